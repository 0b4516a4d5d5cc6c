"""A model reads texts: surprise of characters against one token at a time, whatever else is read with them."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scanner.errors import Refused
from scanner.generation import LocalModel, TextReader
from scanner.generation import model as reading
from scanner.generation.model import FIRST_SURPRISE
from scanner.watermark.level_laws import STEPS_A_NAT

ROOT = Path(__file__).parents[2]
TEXTS = ["w3 w4 w50 w9 w9 w12", "w7", "", " ".join(f"w{3 + i * i % 90}" for i in range(60))]


def plain_sums(model: LocalModel, text: str) -> list[float]:
    """Running sums of surprise at the end of each word, asked for one word after the other."""
    ids, sums, total = [model.tokenizer.token_to_id(word) for word in text.split()], [], 0.0
    for t, token in enumerate(ids):
        surprise = FIRST_SURPRISE
        if t:
            with torch.inference_mode():
                logits = model.model(torch.tensor([ids[:t]])).logits[0, -1].double()
            surprise = -float(torch.log_softmax(logits, 0)[token])
        total += surprise
        sums.append(total)
    return sums


@pytest.fixture(scope="module")
def tiny_reader(tiny_folder: Path) -> TextReader:
    return TextReader(tiny_folder)


def test_surprise_is_that_of_one_token_after_the_other(tiny: LocalModel, tiny_reader: TextReader) -> None:
    for text, steps in zip(TEXTS, tiny_reader.surprise(TEXTS), strict=True):
        assert steps.shape == (len(text),)
        begins = np.cumsum([0, *(len(word) + 1 for word in text.split())])[1:]  # a blank is of the word before it
        sums = [int(steps[:begin].sum()) / STEPS_A_NAT for begin in begins]
        assert sums == pytest.approx(plain_sums(tiny, text), abs=0.04)


def test_what_is_read_together_changes_nothing_but_rounding(tiny_reader: TextReader) -> None:
    together = tiny_reader.surprise(TEXTS * 3)
    for text, steps in zip(TEXTS * 3, together, strict=True):
        (alone,) = tiny_reader.surprise([text])
        assert np.abs(np.cumsum(steps.astype(int)) - np.cumsum(alone.astype(int))).max(initial=0) <= 1


def test_a_long_text_is_read_to_a_limit(tiny_reader: TextReader, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny_reader.surprise(TEXTS)
    monkeypatch.setattr(reading, "CHARACTERS_READ", 11)
    for steps, of_whole in zip(tiny_reader.surprise(TEXTS), whole, strict=True):
        assert len(steps) == min(len(of_whole), 11)
        assert np.abs(np.cumsum(steps.astype(int)) - np.cumsum(of_whole[:11].astype(int)))[:8].max(initial=0) <= 1


def test_a_model_without_probabilities_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    save_file({name: of * math.nan for name, of in weights.items()}, file, {"format": "pt"})
    with pytest.raises(Refused, match="gives no probabilities in float32"):
        TextReader(tmp_path / "model")


def test_a_reader_does_not_change_with_its_file(tiny_folder: Path, tmp_path: Path) -> None:
    """Weights that are the file's own pages would be those of whatever is copied over it while texts are read."""
    shutil.copytree(tiny_folder, tmp_path / "model")
    reader = TextReader(tmp_path / "model")
    before = reader.surprise(TEXTS)
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        end = file.seek(0, 2)
        file.seek(begin)
        file.write(bytes(end - begin))
    assert [one.tolist() for one in reader.surprise(TEXTS)] == [one.tolist() for one in before]


@pytest.mark.model
def test_a_real_model_expects_what_stood_there_before_and_not_another_name() -> None:
    reader = TextReader(ROOT / ".model" / "smollm2-135m-instruct")
    text = "Maria Kowalski sells seven green umbrellas. Maria Kowalski sells seven green Zanzibar."
    (steps,) = reader.surprise([text])
    words, name = "sells seven green", text.index("Zanzibar")
    first, again = (steps[begin : begin + len(words)].sum() for begin in (text.index(words), text.rindex(words)))
    assert 2 * again < first
    assert 2 * again < steps[name : name + 8].sum()
    assert math.isfinite(steps.sum())

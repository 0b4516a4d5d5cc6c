"""A model reads texts: surprise of characters against one token at a time, whatever else is read with them."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from scanner.generation import LocalModel, TextReader
from scanner.generation.text_reader import FIRST
from scanner.text.surprise import STEPS

ROOT = Path(__file__).parents[2]
TEXTS = ["w3 w4 w50 w9 w9 w12", "w7", "", " ".join(f"w{3 + i * i % 90}" for i in range(60))]


def plain_sums(model: LocalModel, text: str) -> list[float]:
    """Running sums of surprise at the end of each word, asked for one word after the other."""
    ids, sums, total = [model.tokenizer.token_to_id(word) for word in text.split()], [], 0.0
    for t, token in enumerate(ids):
        surprise = FIRST
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
        sums = [int(steps[:begin].sum()) / STEPS for begin in begins]
        assert sums == pytest.approx(plain_sums(tiny, text), abs=0.04)


def test_what_is_read_together_changes_nothing_but_rounding(tiny_reader: TextReader) -> None:
    together = tiny_reader.surprise(TEXTS * 3)
    for text, steps in zip(TEXTS * 3, together, strict=True):
        (alone,) = tiny_reader.surprise([text])
        assert np.abs(np.cumsum(steps.astype(int)) - np.cumsum(alone.astype(int))).max(initial=0) <= 1


@pytest.mark.model
def test_a_real_model_expects_what_stood_there_before_and_not_another_name() -> None:
    reader = TextReader(ROOT / ".model" / "smollm2-135m-instruct")
    text = "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy Zanzibar."
    (steps,) = reader.surprise([text])
    again, name = text.rindex("fox jumps over"), text.index("Zanzibar")
    assert steps[again : again + 14].sum() < 3 * STEPS < steps[name : name + 8].sum()
    assert math.isfinite(steps.sum())

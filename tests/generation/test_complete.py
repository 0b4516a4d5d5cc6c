"""Completions of a local model: marked so that the scan's own scores find the right message, and reproducible."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from scanner.errors import Refused, TokenizerError
from scanner.generation import LocalModel, Sampling, complete, load_model
from scanner.watermark import GreenList, Gumbel, LogGumbel, Watermark, batch_tokens, scored_positions

SECRET = bytes(range(40))
MARKS = [
    GreenList(SECRET, 4, Fraction(1, 4)),
    GreenList(SECRET, 1, Fraction(3, 8)),
    Gumbel(SECRET, 4),
    Gumbel(SECRET, 1),
]
PROMPTS = ["w3 w4 w5 w6 w7", "w9 w10 w11 w12", "w20 w21 w22 w23 w24 w25 w26"]
MESSAGES = [3, 99, 41]


def ids_of(model: LocalModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.label)
def test_marked_text_names_its_message(tiny: LocalModel, mark: Watermark) -> None:
    done = complete(tiny, PROMPTS, Sampling(max_new_tokens=120), 1, mark, MESSAGES)
    tokens = batch_tokens([ids_of(tiny, completion.text) for completion in done])
    positions = scored_positions(tokens, mark.window, "ngram")
    best = mark.best_two(tokens, positions, 100)
    assert best.message.tolist() == MESSAGES
    scored = np.diff(positions.offsets)
    assert (mark.law.log10_p(best.score, scored) < -8).all()
    assert (mark.law.log10_p(best.second_score, scored) > -5).all()


@pytest.mark.parametrize("mark", [None, *MARKS], ids=lambda mark: mark.label if mark else "unmarked")
def test_the_same_seed_gives_the_same_text(tiny: LocalModel, mark: Watermark | None) -> None:
    def texts(seed: int) -> list[str]:
        torch.manual_seed(seed + 100)  # the seed decides, whatever the global generator's state
        messages = MESSAGES if mark else []
        return [completion.text for completion in complete(tiny, PROMPTS, Sampling(24), seed, mark, messages)]

    assert texts(1) == texts(1)
    if mark is None or mark.label.startswith("greenlist"):
        assert texts(1) != texts(2)


@pytest.mark.parametrize("mark", MARKS[1::2], ids=lambda mark: mark.label)
def test_used_windows_can_be_left_unmarked(tiny: LocalModel, mark: Watermark) -> None:
    """At h = 1 windows repeat soon; from the first repeat on the two texts differ."""
    texts = [
        complete(tiny, PROMPTS, Sampling(150, temperature=0.5, skip_used_windows=skip), 1, mark, MESSAGES)
        for skip in (False, True)
    ]
    assert texts[0] != texts[1]
    tokens = batch_tokens([ids_of(tiny, completion.text) for completion in texts[1]])
    positions = scored_positions(tokens, 1, "ngram")
    assert mark.best_two(tokens, positions, 100).message.tolist() == MESSAGES


def test_the_global_generator_is_left_alone(tiny: LocalModel) -> None:
    torch.manual_seed(8)
    state = torch.get_rng_state()
    complete(tiny, PROMPTS, Sampling(3), 1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_row_does_not_depend_on_its_neighbours(tiny: LocalModel) -> None:
    """Left padding and the messages of other rows change nothing."""
    mark = MARKS[2]
    together = complete(tiny, PROMPTS[:1] + PROMPTS[2:], Sampling(20), 1, mark, [3, 41])
    alone = [
        complete(tiny, [prompt], Sampling(20), 1, mark, [m])[0] for prompt, m in ((PROMPTS[0], 3), (PROMPTS[2], 41))
    ]
    assert together == alone


def test_a_completion_ends_before_the_end_of_turn(tiny: LocalModel) -> None:
    ends = LocalModel(tiny.model, tiny.tokenizer, tiny.tokenizer_sha256, None, eos_ids=(2,))
    tiny.model.generation_config.eos_token_id = 2
    try:
        done = complete(ends, PROMPTS * 10, Sampling(100, top_p=1.0), 3)
    finally:
        tiny.model.generation_config.eos_token_id = None
    assert min(completion.tokens for completion in done) < 100
    assert all(len(ids_of(tiny, completion.text)) <= completion.tokens for completion in done)


def test_chats_are_written_with_the_models_template(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    shutil.copytree(tiny_folder, folder)
    template = "{% for m in messages %}<end> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w7{% endif %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ids, mask = load_model(folder).encode(["w3 w4", "w5"])
    assert ids[0].tolist() == [2, 3, 4, 7]
    assert ids[1, 1:].tolist() == [2, 5, 7]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]


def test_what_cannot_be_completed_is_refused(tiny: LocalModel) -> None:
    with pytest.raises(Refused, match=r"prompt 1 \(of 0 to [12]\) has no tokens"):
        complete(tiny, ["w3", " "], Sampling(), 0)
    with pytest.raises(Refused, match=r"prompt 1 \(of 0 to [12]\) has 3 tokens, fewer than the window of 4"):
        complete(tiny, [PROMPTS[0], "w3 w4 w5"], Sampling(2), 0, MARKS[0], [1, 2])
    with pytest.raises(Refused, match="max_new_tokens = 256 do not fit the model's 256 positions"):
        complete(tiny, ["w3"], Sampling(max_new_tokens=256), 0)
    with pytest.raises(Refused, match="max_new_tokens = 0"):
        Sampling(max_new_tokens=0)
    with pytest.raises(Refused, match="delta = 0"):
        Sampling(delta=0)
    with pytest.raises(Refused, match="3 messages but 1 prompt lengths"):
        complete(tiny, PROMPTS[:1], Sampling(2), 0, MARKS[0], MESSAGES)
    few = Tokenizer(models.WordLevel({"<unk>": 0, "w3": 1}, unk_token="<unk>"))
    with pytest.raises(Refused, match="97 different tokens, but the key's tokenizer knows 2"):
        complete(replace(tiny, tokenizer=few), ["w3"], Sampling(2), 0, Gumbel(SECRET, 0), [0])


def test_folders_that_hold_no_model_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no config\.json"):
        load_model(tmp_path)
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(Refused, match=r"no model\.safetensors"):
        load_model(folder)
    shutil.copy(tiny_folder / "model.safetensors", folder)
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["vocab"]["w97"] = 97
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(TokenizerError, match="knows 98 tokens, but the model in its folder 97; it is not this model's"):
        load_model(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"is not a tokenizer\.json"):
        load_model(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_model(folder)


def test_the_unweighted_score_reads_what_gumbel_marked(tiny: LocalModel) -> None:
    done = complete(tiny, PROMPTS, Sampling(max_new_tokens=120), 1, Gumbel(SECRET, 4), MESSAGES)
    tokens = batch_tokens([ids_of(tiny, completion.text) for completion in done])
    positions = scored_positions(tokens, 4, "ngram")
    score = LogGumbel(SECRET, 4).score(tokens, positions, np.array(MESSAGES))
    assert (LogGumbel(SECRET, 4).law.log10_p(score, np.diff(positions.offsets)) < -4).all()

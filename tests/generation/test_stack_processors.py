"""Tokens chosen as vLLM and SGLang choose them, against the slow references of their marks, and read back."""

import math

import numpy as np
import pytest
import torch

from scanner.errors import Refused
from scanner.generation import Sampling, complete, marking_of
from scanner.watermark import batch_tokens
from scanner.watermark.formats import make_format
from scanner.watermark.rule import log10_p_of
from scanner.watermark.stacks.sglang.user_keys import user_key
from tests.generation import slow
from tests.generation.conftest import VOCABULARY
from tests.watermark.sglang import reference as sglang
from tests.watermark.vllm import reference as vllm

KEY = 0x0123456789ABCDEF
SECRET = KEY.to_bytes(8, "big")
FORMS = {
    "vllm-gumbel": ({}, SECRET),
    "vllm-dual-key": ({"alpha": 0.3}, SECRET),
    "sglang-one-key": ({}, SECRET),
    "sglang-two-keys": ({}, SECRET + bytes(range(8))),
    "sglang-user-keys": ({}, bytes(range(32))),
}
LENGTHS = [9, 2, 6]
MESSAGES = [0, 0, 0]
SAMPLING = [(1.0, 0, 1.0), (0.8, 0, 0.9), (1.3, 7, 1.0)]


def cheapest(draw, p) -> int:
    """The token of smallest −ln(u)/p, draw by draw."""
    cost = {token: -math.log(draw(token)) / float(p[token]) for token in range(len(p)) if p[token] > 0}
    return min(cost, key=lambda token: (cost[token], token))


def vllm_step(name: str, prompt: list[int], written: list[int], p) -> set[int] | None:
    """The tokens that vLLM may choose, one for each key; None where it samples without the mark."""
    contexts = [tuple(([-1] * 4 + written)[i : i + 4]) for i in range(len(written) + 1)]
    if contexts[-1] in contexts[:-1]:
        return None
    keys = [KEY] if name == "vllm-gumbel" else [vllm.derive(KEY, of) for of in ("key_a", "key_b")]
    return {cheapest(lambda t, key=key: vllm.uniform(vllm.word(key, contexts[-1], t)), p) for key in keys}


def sglang_step(name: str, prompt: list[int], written: list[int], p, message: int) -> set[int] | None:
    whole = prompt + written
    hashes = [sglang.context_hash(whole[max(0, i - 4) : i]) for i in range(len(prompt), len(whole) + 1)]
    if hashes[-1] in hashes[:-1]:
        return None
    key = f"{KEY:x}"
    if name == "sglang-user-keys":
        key = f"{user_key(bytes(range(32)), message):x}"
    if name == "sglang-two-keys":
        other = bytes(range(8)).hex()
        key = key if sglang.coin(key, other, hashes[-1]) < 2**31 else other
    return {cheapest(lambda t: (sglang.token_hash(key, hashes[-1], t) + 0.5) / 2**32, p)}


@pytest.mark.parametrize("name", FORMS)
def test_a_step_chooses_as_the_stack(name: str) -> None:
    """45 steps, in rows of three: at the start, in the middle, and where a context comes again."""
    parameters, secret = FORMS[name]
    mark = make_format(name, parameters).open(secret)
    messages = [0, 3, 7] if name == "sglang-user-keys" else MESSAGES
    unmarked = 0
    for number in range(15):
        random = np.random.default_rng(number)
        ids = random.integers(3, VOCABULARY, (3, 9 + (0, 1, 3, 8, 12)[number % 5]))
        if number >= 10:
            ids[:, -4:] = ids[:, -8:-4]  # the newest context, again
        logits = torch.from_numpy(random.normal(0, 2, (3, VOCABULARY)).astype(np.float32))
        how = dict(zip(("temperature", "top_k", "top_p"), SAMPLING[number % 3], strict=True))
        found = marking_of(mark).processor(mark, messages, LENGTHS, seed=number, **how)(torch.from_numpy(ids), logits)
        for row, length in enumerate(LENGTHS):
            prompt, written = ids[row, 9 - length : 9].tolist(), ids[row, 9:].tolist()
            p = slow.distribution(logits[row].tolist(), *SAMPLING[number % 3])
            step = vllm_step if name.startswith("vllm") else lambda *of, row=row: sglang_step(*of, messages[row])
            allowed = step(name, prompt, written, p)
            chosen = int(found[row].argmax())
            assert (found[row] == 0).sum() == 1
            assert p[chosen] > 0
            assert allowed is None or chosen in allowed
            unmarked += allowed is None
    assert unmarked >= 3  # some contexts were met before


@pytest.mark.parametrize("name", FORMS)
def test_what_is_marked_is_read(tiny, name: str) -> None:
    """Four completions of 60 tokens: p is far below 1e-6 for all of them under the key, for none under another key."""
    parameters, secret = FORMS[name]
    form = make_format(name, parameters)
    messages = [0, 3, 7, 11] if name == "sglang-user-keys" else [0] * 4
    mark, other = form.open(secret), form.open(form.draw_key(bytes(range(1, 33))))
    prompts = ["w3 w4 w5 w6 w7", "w8 w9 w10 w11", "w12 w13 w14 w15 w16", "w17 w18 w19 w20"]
    done = complete(tiny, prompts, Sampling(max_new_tokens=60, top_p=1.0), 1, mark, messages)
    again = complete(tiny, prompts, Sampling(max_new_tokens=60, top_p=1.0), 1, mark, messages)
    assert [one.text for one in done] == [one.text for one in again]
    tokens = batch_tokens([tiny.tokenizer.encode(one.text).ids for one in done])
    for opened, low in ((mark, True), (other, False)):
        positions = opened.rule.positions(tokens, "ngram")
        score = opened.score(tokens, positions, np.array(messages))
        log10_p = log10_p_of(opened.law, score, positions.scored)
        assert ((log10_p < -8) == low).all(), log10_p


def test_refusals() -> None:
    mark = make_format("vllm-gumbel", {}).open(SECRET)
    processor = marking_of(mark).processor
    for lengths, width, wrong in (([5, 4], None, "2 prompt lengths"), ([0], None, "prompt lengths"), ([7], 5, "7")):
        with pytest.raises(Refused, match=wrong):
            processor(mark, [0], lengths, width)
    with pytest.raises(Refused, match="2 rows"):
        processor(mark, [0], [5])(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 9))
    with pytest.raises(Refused, match="knows 8"):
        processor(mark, [0], [5], vocabulary=8)(torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 9))

"""Marking with keys of version 2: single steps against its reference, and what a tiny model writes, read again."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from scanner.generation import GreenListProcessor, GumbelProcessor
from scanner.generation.mark import Sampling, complete
from scanner.watermark import batch_tokens, scored_positions
from scanner.watermark.native.version2_marks import Version2GreenList, Version2Gumbel
from scanner.watermark.rule import search
from tests import reference, reference2
from tests.generation import slow
from tests.generation.batches import LENGTHS, SAMPLING, SECRET, batch

MESSAGES = {None: [0, 17, 2**32 - 1, 300], 40: [0, 17, 1599, 840]}
GAMMA = Fraction(3, 8)


def terms(plain: reference2.Method, previous: list[int], message: int, tokens: int) -> list[tuple[int, int]]:
    """Nonce and entry of each token at the step after some tokens."""
    nonce = reference.window_nonce(plain.keys, previous[len(previous) - plain.window :])
    number = plain.number(message, plain.groups is not None and reference2.is_group_step(nonce))
    return [(nonce, reference2.entry(token, number)) for token in range(tokens)]


@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("groups", [None, 40])
def test_green_list_adds_delta_to_green_tokens_only(groups, extra):
    ids, own, logits = batch(1, extra)
    plain = reference2.Method("greenlist", SECRET, 2, GAMMA, groups)
    mark, messages = Version2GreenList(SECRET, 2, GAMMA, groups), MESSAGES[groups]
    found = GreenListProcessor(mark, messages, LENGTHS, delta=2.5)(ids, logits)
    for row, (previous, message) in enumerate(zip(own, messages, strict=True)):
        read = terms(plain, previous, message, logits.shape[1])
        green = torch.tensor([reference2.is_green(plain.keys, nonce, j, GAMMA) for nonce, j in read])
        assert torch.equal(found[row], logits[row] + 2.5 * green)


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLING)
def test_gumbel_chooses_as_specified(groups, temperature, top_k, top_p):
    plain = reference2.Method("gumbel", SECRET, 2, groups=groups)
    mark, messages = Version2Gumbel(SECRET, 2, groups), MESSAGES[groups]
    for seed in range(5):
        ids, own, logits = batch(seed, 1)
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        found = GumbelProcessor(mark, messages, LENGTHS, **how)(ids, logits)
        for row, (previous, message) in enumerate(zip(own, messages, strict=True)):
            p = slow.distribution(logits[row].tolist(), temperature, top_k, top_p)
            read = terms(plain, previous, message, len(p))
            token = slow.chosen([reference2.stream_word(plain.keys, nonce, 1, 0, j) for nonce, j in read], p)
            assert int(found[row].argmax()) == token


def test_many_tokens_with_few_that_can_be_written():
    """Vocabularies of sizes around a chunk of 256 draws; ties and weights of 0."""
    mark, plain = Version2Gumbel(SECRET, 1), reference2.Method("gumbel", SECRET, 1)
    nonce = mark.window_nonces(np.array([[5]], np.uint32))[0]
    generator = np.random.default_rng(3)
    for size in (255, 256, 257, 700):
        for share in (1.0, 0.3, 0.01):
            weights = np.where(generator.random(size) < share, generator.random(size), 0.0)
            allowed = np.flatnonzero(weights)
            cost = {
                v: reference.minus_ln_r(
                    reference2.stream_word(plain.keys, int(nonce), 1, 0, reference2.entry(int(v), 9))
                )
                / weights[v]
                for v in allowed
            }
            assert mark.choose(nonce, 9, weights) == min(cost, key=cost.get, default=-1)
    assert mark.choose(nonce, 9, np.zeros(300)) == -1


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_what_a_model_writes_is_found(tiny, method, groups):
    mark = Version2GreenList(SECRET, 2, GAMMA, groups) if method == "greenlist" else Version2Gumbel(SECRET, 2, groups)
    messages = [17, 1599]
    written = complete(tiny, ["w5 w6 w7", "w9 w3 w40"], Sampling(150, delta=6.0), 1, mark, messages)
    ids = [[int(word[1:]) for word in one.text.split()] for one in written]
    assert min(map(len, ids)) > 100
    tokens = batch_tokens(ids)
    found = search(mark, tokens, scored_positions(tokens, 2, "ngram"), 1600)
    assert found.message[:, 0].tolist() == messages
    assert (found.log10_p_global[:, 0] < -6).all()


@pytest.mark.parametrize(("groups", "message"), [(None, 2**32), (40, 1600)])
def test_a_message_that_the_key_does_not_have_is_refused(groups, message):
    ids, _, logits = batch(1)
    processor = GreenListProcessor(Version2GreenList(SECRET, 2, GAMMA, groups), [message] * 4, LENGTHS, delta=2.5)
    with pytest.raises(ValueError, match=f"message {message} is out of range"):
        processor(ids, logits)

"""Marking under version 3: green tokens and choices of single steps against the reference, and what is found again."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.watermark import scored_positions
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from tests import reference, reference3
from tests.watermark.native3.known3 import marked, pair
from tests.watermark.pairs import batch_tokens

WINDOWS = [[5, 6], [2**32 - 1, 0], [7, 7]]


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(77, 256), Fraction(1, 2)], ids=str)
def test_green_tokens_are_those_of_the_reference(gamma, groups):
    """Vocabularies over the edge of a chunk of 256 tokens; messages whose numbers lie in other words and blocks."""
    one = pair("greenlist", 2, groups, gamma)
    assert isinstance(one.fast, Version3GreenList)
    messages = [1599, 3, 75]
    green = one.fast.green(one.fast.window_nonces(np.array(WINDOWS, np.uint32)), np.array(messages), 300)
    for row, (window, message) in enumerate(zip(WINDOWS, messages, strict=True)):
        steps = [one.plain.step(window, token) for token in range(300)]
        wanted = [one.plain.term(step, one.plain.number(message, step.of_group)) for step in steps]
        assert green[row].tolist() == [bool(term) for term in wanted]


@pytest.mark.parametrize("groups", [None, 40])
def test_the_chosen_token_is_the_one_of_least_cost(groups):
    """Vocabularies of sizes around a chunk of 256 draws, and weights of 0."""
    one, generator = pair("gumbel", 2, groups), np.random.default_rng(3)
    assert isinstance(one.fast, Version3Gumbel)
    nonces = one.fast.window_nonces(np.array(WINDOWS, np.uint32))
    for size, share, window, message in [(255, 1.0, 0, 9), (256, 0.3, 1, 1599), (257, 1.0, 2, 63), (700, 0.02, 0, 64)]:
        weights = np.where(generator.random(size) < share, generator.random(size), 0.0)
        cost = {}
        for token in np.flatnonzero(weights).tolist():
            step = one.plain.step(WINDOWS[window], token)
            draw = one.plain.draw(step, one.plain.number(message, step.of_group))
            cost[token] = reference.minus_ln_r(draw) / weights[token]
        assert one.fast.choose(nonces[window], message, weights) == min(cost, key=cost.get)
    assert one.fast.choose(nonces[0], 9, np.zeros(300)) == -1


def test_both_nonces_decide_a_step():
    """Whoever knows windows of equal N gains nothing: N' gives them other keys (SPEC_3 §1)."""
    mark = pair("gumbel", 2, 40).fast
    assert isinstance(mark, Version3Gumbel)
    nonces = mark.window_nonces(np.array(WINDOWS, np.uint32))
    assert nonces[0].tolist() == [*reference3.window_nonces(WINDOWS[0], 24)]
    weights = np.ones(5000)
    other = np.array([nonces[0, 0], nonces[1, 1]])
    assert mark.choose(nonces[0], 5, weights) != mark.choose(other, 5, weights)


def test_a_message_that_the_key_does_not_have_is_not_marked():
    mark = pair("gumbel", 2, 40).fast
    assert isinstance(mark, Version3Gumbel)
    with pytest.raises(ValueError, match="message 1600 is out of range; this key has messages below 1600"):
        mark.choose(mark.window_nonces(np.array(WINDOWS, np.uint32))[0], 1600, np.ones(9))


@pytest.mark.parametrize("groups", [None, 31])
@pytest.mark.parametrize("window", [0, 1, 4])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_what_is_marked_scores_high_for_its_message_alone(method, window, groups):
    if groups and not window:
        return
    mark, message = pair(method, window, groups, seeds=12).fast, 700
    tokens = batch_tokens([marked(mark, message, 150, 16)])
    positions = scored_positions(tokens, window, "ngram")
    scored = positions.scored
    log10_p = [float(mark.law.log10_p(mark.score(tokens, positions, m), scored)[0]) for m in (message, message - 1)]
    assert log10_p[0] < -20
    others = [mark.score(tokens, positions, m)[0] for m in range(0, 650, 50)]
    assert max(float(mark.law.log10_p(np.array([s]), scored)[0]) for s in others) > -8
    found = mark.search(tokens, positions, 961)
    assert found.message[0, 0] == message

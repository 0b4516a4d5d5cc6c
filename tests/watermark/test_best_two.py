"""Best and second best of all messages, against brute force: the plain reference where it can, numpy beyond."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.native.greenlist import GREENLIST_TILE
from tests.watermark import brute_force
from tests.watermark.one_message_path import assert_best_of_the_one_message_path
from tests.watermark.pairs import batch_tokens, both, greenlist, gumbel, split, sum_error
from tests.watermark.strategies import DEDUPS, GAMMAS, documents, few, many, random_documents, windows

COUNTS = [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 1000, 4095, 4096, 4097, 5000]


def assert_same_best(pair, batch, count, dedup="ngram", scores=None):
    """`scores`: all messages' scores of a document; the plain reference's own unless given."""
    tokens = batch_tokens(batch)
    positions = pair.positions(tokens, dedup)
    best = pair.fast.best_two(tokens, positions, count)
    assert best.message.dtype == best.second_message.dtype == np.int64
    for d, (document, kept) in enumerate(zip(batch, split(positions, tokens), strict=True)):
        if scores is None:
            wanted = [*pair.plain.best_two(document, count, dedup), (-1, 0)][:2]
        else:
            all_scores = scores(pair.plain, document, count, dedup)
            wanted = [(m, all_scores[m] if m >= 0 else 0) for m in brute_force.best_two(all_scores)]
        assert [best.message[d], best.second_message[d]] == [message for message, _ in wanted]
        for got, (message, score) in zip((best.score[d], best.second_score[d]), wanted, strict=True):
            exact = pair.plain.method == "greenlist" or message < 0
            assert abs(got - score) <= (0 if exact else sum_error(len(kept), score))


@pytest.mark.seconds
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("window", [0, 1, 4])
def test_counts_of_messages(count, window):
    batch = [*random_documents(count + window, [9, 0, window, window + 1]), [7, 7, 7, 7, 7, 8], [2**32 - 1] * 6]
    for pair in both(window):
        assert_same_best(pair, batch, count, scores=None if count <= 128 else brute_force.scores)


@pytest.mark.seconds
@pytest.mark.parametrize("dedup", DEDUPS)
@many
@given(documents, windows, st.integers(1, 80), st.sampled_from(GAMMAS))
def test_greenlist(dedup, batch, window, count, gamma):
    assert_same_best(greenlist(window, gamma), batch, count, dedup)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("dedup", DEDUPS)
@many
@given(documents, windows, st.integers(1, 80))
def test_gumbel(dedup, batch, window, count):
    assert_same_best(gumbel(window), batch, count, dedup)


@pytest.mark.seconds
@few
@given(documents, st.integers(0, 3), st.integers(1, 9000), st.sampled_from(GAMMAS))
def test_more_messages(batch, window, count, gamma):
    for pair in (greenlist(window, gamma), gumbel(window)):
        assert_same_best(pair, batch, count, scores=brute_force.scores)


LENGTHS = [7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 255, 256, 257, 300, 1000, 1023, 1024, 5000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "pair", [greenlist(2), greenlist(2, Fraction(255, 256)), gumbel(2)], ids=["1/4", "255/256", "gumbel"]
)
def test_counters_do_not_overflow(length, pair):
    """At γ = 255/256 nearly every position counts: sums reach the top of their counters."""
    assert_best_of_the_one_message_path(pair, random_documents(length, [length + 2, 20, length + 2]), 130)


@pytest.mark.seconds
def test_every_gamma():
    for gamma in GAMMAS:
        print(f"gamma = {gamma}")  # the last γ that is printed failed
        batch = random_documents(gamma.numerator * 1000 + gamma.denominator, [30, 12])
        assert_best_of_the_one_message_path(greenlist(1, gamma), batch, 300)


@pytest.mark.parametrize("pair", [greenlist(1, Fraction(255, 256)), gumbel(1)], ids=["greenlist", "gumbel"])
def test_seventy_thousand_tokens(pair):
    assert_best_of_the_one_message_path(pair, random_documents(70, [70_000, 10]), 9)


@pytest.mark.seconds
def test_many_documents():
    lengths = np.random.default_rng(9).integers(0, 40, 3000)
    for pair in both(1):
        assert_best_of_the_one_message_path(pair, random_documents(9, lengths, vocabulary=300), 200)


def test_nothing_scored_ties_at_zero():
    for pair in both(4):
        best = pair.fast.best_two(*batch_of(pair, [[], [1, 2, 3, 4], [1]]), 100)
        assert (best.message.tolist(), best.second_message.tolist()) == ([0] * 3, [1] * 3)
        assert (best.score.tolist(), best.second_score.tolist()) == ([0] * 3, [0] * 3)


def test_no_documents():
    for pair in both(4):
        best = pair.fast.best_two(*batch_of(pair, []), 100)
        assert [len(column) for column in best] == [0, 0, 0, 0]


def test_one_message_has_no_second():
    for pair in both(1):
        tokens, positions = batch_of(pair, [[1, 2, 3], []])
        best = pair.fast.best_two(tokens, positions, 1)
        assert (best.message.tolist(), best.second_message.tolist()) == ([0, 0], [-1, -1])
        np.testing.assert_array_equal(best.score, pair.fast.score(tokens, positions, 0))


def batch_of(pair, batch):
    tokens = batch_tokens(batch)
    return tokens, pair.positions(tokens)


@pytest.mark.seconds
@pytest.mark.parametrize("count", [2, 64, 65, 1000, 70_000])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_ties_go_to_the_smallest_message(count, length):
    """A quarter of all messages share the best count where T = 1; very many share it where T is 2 or 3."""
    batch = random_documents(count + length, [length] * 40)
    assert_same_best(greenlist(0), batch, count, scores=brute_force.scores)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize(
    "count", [GREENLIST_TILE - 1, GREENLIST_TILE, GREENLIST_TILE + 1, GREENLIST_TILE + 70, 2 * GREENLIST_TILE + 5]
)
def test_tiles_of_greenlist(count):
    """Ties within and across tiles: with T = 1 and 2 many messages of each tile share the best count."""
    assert_same_best(greenlist(0), random_documents(count, [1, 2, 40]), count, scores=brute_force.scores)


def test_identical_documents_get_identical_answers():
    for pair in both(2):
        best = pair.fast.best_two(*batch_of(pair, random_documents(1, [60]) * 5), 3000)
        for column in best:
            assert len(set(column.tolist())) == 1

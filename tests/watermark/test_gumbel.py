"""Gumbel's exactness: 32-bit sums may shortlist, but what is published is the one-message path's, bit for bit."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.gumbel import minus_ln_r
from tests import reference
from tests.watermark import brute_force
from tests.watermark.pairs import gumbel, ragged, scores_of_all, sum_error
from tests.watermark.strategies import DEDUPS, documents, few, many, random_documents, windows

CORNERS = [0, 1, 2, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 129, 2**32 - 3, 2**32 - 2, 2**32 - 1]


def assert_minus_ln_r(words):
    got = minus_ln_r(np.array(words, np.uint32))
    assert (got.dtype, got.shape) == (np.float64, (len(words),))
    for value, w in zip(got.tolist(), words, strict=True):
        exact = reference.minus_ln_r(w)
        assert abs(mpmath.mpf(value) - exact) <= 1e-12 * exact, w


def test_minus_ln_r_at_the_corners():
    assert_minus_ln_r(CORNERS + [2**bit for bit in range(32)] + [2**32 - 2**bit for bit in range(1, 32)])


@many
@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_minus_ln_r(words):
    assert_minus_ln_r(words)


def test_minus_ln_r_never_reaches_zero_and_falls():
    near_one = minus_ln_r(np.arange(2**32 - 100_000, 2**32, dtype=np.uint32))
    assert (near_one > 0).all()
    assert (np.diff(near_one) < 0).all()
    assert (np.diff(minus_ln_r(np.arange(0, 2**32, 40_009, dtype=np.uint32))) < 0).all()


def assert_best_is_that_of_the_one_message_path(pair, batch, count, dedup="ngram"):
    tokens = ragged(batch)
    positions = pair.positions(tokens, dedup)
    best = pair.fast.best_two(tokens, positions, count)
    for d, row in enumerate(scores_of_all(pair, tokens, positions, count)):
        first, second = brute_force.best_two(row)
        assert (best.message[d], best.second_message[d]) == (first, second)
        assert best.score[d] == row[first]
        assert second < 0 or best.second_score[d] == row[second]


@pytest.mark.parametrize("dedup", DEDUPS)
@few
@given(documents, windows, st.integers(1, 200))
def test_published_scores_are_the_one_message_path_s(dedup, batch, window, count):
    assert_best_is_that_of_the_one_message_path(gumbel(window), batch, count, dedup)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 255, 256, 257, 1000])
@pytest.mark.parametrize("window", [0, 2])
def test_batches(window, count):
    batch = random_documents(count, [40, 0, 1, 2, 3, 300, window, 17], vocabulary=1000)
    assert_best_is_that_of_the_one_message_path(gumbel(window), batch, count)


def test_one_sum_per_message_in_the_order_of_positions():
    """The sum of a text and that of its reverse differ in the last bits; both are those of the plain loop."""
    pair, text = gumbel(0), random_documents(2, [3000], vocabulary=2**32 - 1)[0]
    for document in (text, text[::-1]):
        tokens = ragged([document])
        score = pair.fast.score(tokens, pair.positions(tokens), 3)[0]
        wanted = pair.plain.score(document, 3)
        assert abs(score - wanted) <= sum_error(3000, wanted)


@pytest.mark.parametrize("dedup", DEDUPS)
def test_repeats_without_a_window(dedup):
    """h = 0: all positions share one stream, and repeated tokens repeat their draws."""
    batch = [[5] * 50, [1, 2] * 30, list(range(40)), [2**32 - 1] * 20, [0]]
    assert_best_is_that_of_the_one_message_path(gumbel(0), batch, 500, dedup)


def test_many_short_documents():
    """Short sums crowd together: the closest best and second of 20,000 are about 1e-5 apart."""
    pair, tokens = gumbel(1), ragged(random_documents(11, [4] * 20_000))
    positions = pair.positions(tokens)
    best = pair.fast.best_two(tokens, positions, 100)
    scores = scores_of_all(pair, tokens, positions, 100)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :2]
    np.testing.assert_array_equal(best.message, order[:, 0])
    np.testing.assert_array_equal(best.second_message, order[:, 1])
    np.testing.assert_array_equal(best.score, np.take_along_axis(scores, order[:, :1], 1)[:, 0])
    np.testing.assert_array_equal(best.second_score, np.take_along_axis(scores, order[:, 1:], 1)[:, 0])

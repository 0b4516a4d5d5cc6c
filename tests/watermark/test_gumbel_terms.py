"""The bound under Gumbel's shortlist: how far an approximate term can be from −ln(1−r), over every draw there is."""

import numpy as np
import pytest

from scanner.watermark.native import gumbel

CHUNK = 1 << 22


def largest_miss(draws: np.ndarray) -> float:
    """Largest error of the approximate terms against numpy's double-precision logarithm, in units of ln 2 / 2^23."""
    terms = np.empty(len(draws), np.uint32)
    gumbel.approximate_terms(draws, np.empty(len(draws), np.float32), terms)
    assert terms.max() <= 2**28
    exact = (32 - np.log2(2.0**32 - draws.astype(np.float64))) * 2**23
    return float(np.abs(terms - exact).max())


@pytest.mark.seconds
def test_every_fraction_of_one_power_of_two_and_both_ends():
    fractions = (np.uint32(2**24) + np.arange(2**23, dtype=np.uint32) * np.uint32(2)) - np.uint32(1)
    ends = np.concatenate([np.arange(2**18, dtype=np.uint32), ~np.arange(2**18, dtype=np.uint32)])
    for draws in (~fractions, ends):
        assert largest_miss(draws) <= gumbel.TERM_ERROR


def test_the_bound_is_not_idle():
    """A bound ten times smaller would be wrong, so the test above can fail."""
    assert largest_miss(~np.arange(2**20, dtype=np.uint32)) > gumbel.TERM_ERROR / 10


@pytest.mark.long
def test_every_draw():
    worst = 0.0
    for start in range(0, 2**32, CHUNK):
        worst = max(worst, largest_miss(np.arange(start, start + CHUNK, dtype=np.int64).astype(np.uint32)))
    assert worst <= gumbel.TERM_ERROR

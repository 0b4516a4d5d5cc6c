"""The bound under Gumbel's shortlist: no score is larger than its bound says, for any draw and any document."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.native import gumbel as version1
from scanner.watermark.native.ciphers import WORDS_A_GROUP
from tests.watermark.one_message_path import assert_best_of_the_one_message_path
from tests.watermark.pairs import batch_tokens, gumbel, scores_of_all
from tests.watermark.strategies import documents, few, random_documents

UNIT = np.log(2) / 2**11


def over_exact(draws: np.ndarray) -> np.ndarray:
    """Excess of the bound of one term over −ln(1−r)."""
    sums = np.zeros(len(draws), np.uint32)
    version1._add_bits(draws, sums)
    exact = -np.log((2.0**32 - draws.astype(np.float64)) * 2.0**-32)
    return (version1.MOST_OF_A_TERM - sums.astype(np.int64)) * UNIT - exact


@pytest.mark.seconds
def test_one_term():
    """Every fraction of one power of two, both ends, and draws at random; rounding to a float may cost 2^-24."""
    fractions = (np.uint32(2**24) + np.arange(2**23, dtype=np.uint32) * np.uint32(2)) - np.uint32(1)
    ends = np.arange(2**18, dtype=np.uint32)
    anywhere = np.random.default_rng(1).integers(0, 2**32, 2**20, dtype=np.uint32)
    most = 0.0861 * np.log(2) + 2 * UNIT
    for draws, limit in ((~fractions, most), (fractions, most), (ends, most), (anywhere, most), (~ends, np.inf)):
        over = over_exact(draws)
        assert over.min() >= -(2.0**-24)
        assert over.max() <= limit


def test_what_rounding_costs_is_less_than_the_room_for_it():
    """Rounding makes a bound too small by LONGEST_BOUNDED · 2^-24 at most over all positions; it has room for 1."""
    assert version1.LONGEST_BOUNDED * 2.0**-24 < UNIT
    assert (
        version1.LONGEST_BOUNDED * ((version1.MOST_OF_A_TERM >> 1) + 1) < 2**32
    )  # sums fit 32 bits: a float below 2^33 has half of it


def sums_of(pair, tokens, positions, count, first=0):
    nonces, ids = pair.fast._nonces(tokens, positions), tokens.ids[positions.index]
    sums = np.empty(count + 2 * WORDS_A_GROUP, np.uint32)
    version1.sum_bits(pair.fast._keys.chacha, ids, nonces, first, sums)
    return sums[WORDS_A_GROUP : WORDS_A_GROUP + count].copy(), nonces, ids


@pytest.mark.seconds
@few
@given(
    st.lists(st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1)), max_size=12),
    st.integers(1, 3000),
    st.integers(0, 2**33),
)
def test_sums_are_those_of_the_draws(text, count, first):
    pair, tokens = gumbel(1), batch_tokens([text])
    sums, nonces, ids = sums_of(pair, tokens, pair.positions(tokens), count, first)
    wanted = np.zeros(count, np.uint32)
    if len(ids):
        for draws in pair.fast.draws(nonces, ids.astype(np.int64) + first, count):
            version1._add_bits(draws, wanted)
    np.testing.assert_array_equal(sums, wanted)


@few
@given(documents, st.integers(1, 200))
def test_no_message_that_reaches_a_score_is_left_out(batch, count):
    pair = gumbel(0)
    for document in batch:
        tokens = batch_tokens([document])
        positions = pair.positions(tokens, "none")
        sums, _, ids = sums_of(pair, tokens, positions, count)
        for score, own in zip(scores_of_all(pair, tokens, positions, count)[0], sums, strict=True):
            assert own <= version1.largest_sum_of(score, len(ids))


def test_most_messages_are_left_out():
    pair, tokens = gumbel(4), batch_tokens(random_documents(3, [260]))
    positions = pair.positions(tokens)
    best = pair.fast.best_two(tokens, positions, 20_000)
    sums, _, ids = sums_of(pair, tokens, positions, 20_000)
    limit = version1.largest_sum_of(best.second_score[0], len(ids))
    assert 2 <= (sums <= limit).sum() < 200


@pytest.mark.parametrize(
    "scored", [version1.LONGEST_BOUNDED - 1, version1.LONGEST_BOUNDED, version1.LONGEST_BOUNDED + 1]
)
@pytest.mark.parametrize("count", [2, 3, 255, 257])
def test_where_long_documents_begin(scored, count):
    (document,) = random_documents(scored, [scored])
    assert_best_of_the_one_message_path(gumbel(0), [np.arange(len(document)) + document[0]], count)


@pytest.mark.seconds
@pytest.mark.parametrize(
    "count",
    [
        version1.BOUND_TILE - 1,
        version1.BOUND_TILE,
        version1.BOUND_TILE + 1,
        2 * version1.BOUND_TILE + 5,
    ],
)
def test_tiles(count):
    batch = [*random_documents(count, [3, 12]), [5] * 4]
    assert_best_of_the_one_message_path(gumbel(0), batch, count)

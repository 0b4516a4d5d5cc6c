"""The bounds under a search of runs: no score is larger than its bound says, for any draw, document and number."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark import scored_positions
from scanner.watermark.native import gumbel_runs
from scanner.watermark.native.ciphers import LANES
from scanner.watermark.native.gumbel_runs import FACTORS_A_PRODUCT, PER_LN2, STEPS_A_PRODUCT, bound_run, units_of
from scanner.watermark.native.streams import steps_of
from tests.watermark.native2.known2 import pair
from tests.watermark.pairs import batch_tokens
from tests.watermark.strategies import few, many, random_documents, token_ids

WASTE = LANES * 0.0861 * math.log(2.0)
"""Most that the bits of LANES floats lack of a logarithm."""

draws = st.one_of(
    st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]), st.integers(0, 2**10)
)


def bounds_of(mark, document, blocks, first=0):
    """Bounds of a document's first positions under so many blocks of numbers, and how many positions these are."""
    tokens = batch_tokens([document])
    positions = scored_positions(tokens, mark.window, "ngram")
    steps = steps_of(tokens, positions, mark._nonces(tokens, positions))
    bounds = np.empty(blocks << gumbel_runs.BITS, np.int64)
    bound_run(mark.sub_keys.chacha, steps.ids, steps.nonces, first, bounds)
    return bounds, len(steps.ids)


@few
@given(st.lists(token_ids, max_size=12), st.sampled_from([0, 5 << 16, (65_535 << 16) + 4080]))
def test_no_score_of_the_reference_is_larger(document, first):
    mark, plain = pair("gumbel", 1)
    bounds, scored = bounds_of(mark, document, 1, first)
    steps = plain.steps(document)
    assert len(steps) == scored
    for number, bound in enumerate(bounds.tolist()):
        score = plain.sum_of(steps, first + number)
        assert units_of(score, scored) <= bound <= (score + WASTE + scored * 2.0**-20) * PER_LN2 + LANES


@pytest.mark.parametrize(
    "scored",
    [1, 15, 16, 17, 111, 112, 113, STEPS_A_PRODUCT - 1, STEPS_A_PRODUCT, STEPS_A_PRODUCT + 1, 3 * STEPS_A_PRODUCT + 40],
)
@pytest.mark.parametrize("blocks", [3, 2 * LANES + 1])
def test_no_score_is_larger_and_none_smaller_by_much(scored, blocks):
    """Vectors that are not full, products that are, several parts of a document, and blocks side by side or not."""
    mark = pair("gumbel", 1).fast
    (document,) = random_documents(scored, (scored + 1,))
    bounds, _ = bounds_of(mark, document, blocks)
    copies = batch_tokens([document] * len(bounds))
    scores = mark.score(copies, scored_positions(copies, 1, "none"), np.arange(len(bounds)))
    parts = -(-scored // STEPS_A_PRODUCT)
    for score, bound in zip(scores.tolist(), bounds.tolist(), strict=True):
        assert units_of(score, scored) <= bound <= (score + parts * WASTE + scored * 2.0**-20) * PER_LN2 + LANES * parts


@pytest.mark.seconds
@many
@given(st.lists(draws, min_size=1, max_size=3 * FACTORS_A_PRODUCT))
def test_any_draws_of_one_lane(drawn):
    """Among them those that no stream need ever hold: 2^32 − 1, whose score is 22, seven times in a row."""
    products = np.full(16 * LANES, gumbel_runs._START, np.uint32)
    logarithms = np.zeros(17 * LANES, np.uint32)
    for place, draw in enumerate(drawn):
        if place and place % FACTORS_A_PRODUCT == 0:
            gumbel_runs._move_exponents(products, logarithms)
        products[0] = gumbel_runs._times(products[0], np.uint32(draw), np.uint32(1))
        products[1:] = gumbel_runs._times(products[1], np.uint32(draw), ~np.uint32(0))
    looks = (len(drawn) - 1) // FACTORS_A_PRODUCT
    gumbel_runs._take_logarithms(products, logarithms)
    gumbel_runs._add_up(logarithms, products)
    bound = (LANES * (32 * len(drawn) + looks + 1) << 11) - int(logarithms[0])
    exact = math.fsum(32.0 - math.log2(2**32 - draw) for draw in drawn) * 2**11
    assert exact - len(drawn) * 2.0**-11 <= bound
    if min(2**32 - draw for draw in drawn) > 2**24:
        assert bound <= exact + 0.0861 * 2**11 + 1 + len(drawn) * 2.0**-11
    assert logarithms[1] == LANES * (32 * len(drawn) + looks + 1) << 11  # lanes without a step add nothing


def test_hardly_a_number_is_scored_in_vain():
    """Beside the best of 320 numbers, whose score is some 50 beyond the mean, others within 1 of it are seldom."""
    mark, kept = pair("gumbel", 1).fast, 0
    for document in random_documents(7, (300,) * 60):
        bounds, scored = bounds_of(mark, document, 20)
        copies = batch_tokens([document])
        best = mark.score(copies, scored_positions(copies, 1, "ngram"), int(bounds.argmax()))[0]
        kept += int((bounds >= units_of(best, scored)).sum())
    assert 60 <= kept <= 80

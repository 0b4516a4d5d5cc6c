"""The laws in log10 against exact sums at 50 digits: relative error of the log at most 1e-9, or 1e-300 absolute."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark import pvalues
from scanner.watermark.pvalues import log10_greenlist, log10_gumbel, log10_gumbel_log
from tests import reference
from tests.watermark.mpmath_oracle import assert_right
from tests.watermark.strategies import GAMMAS, many

SCORED = [1, 2, 3, 7, 15, 16, 17, 50, 149, 1000, 9999, 100_000]
SOME_GAMMAS = [Fraction(1, 256), Fraction(1, 4), Fraction(3, 8), Fraction(1, 2), Fraction(77, 256), Fraction(255, 256)]


def around(mean: float, deviation: float) -> list[float]:
    """Scores in both tails and around the mean, as far as 60 standard deviations."""
    return [mean + z * deviation for z in (-60, -37, -20, -8, -3, -1, -0.1, 0, 0.1, 1, 3, 5.5, 8, 20, 37, 60)]


@pytest.mark.parametrize("gamma", SOME_GAMMAS, ids=str)
@pytest.mark.parametrize("scored", SCORED)
def test_greenlist(scored, gamma):
    mean, deviation = scored * float(gamma), math.sqrt(scored * float(gamma * (1 - gamma)))
    scores = {round(min(max(score, 0), scored)) for score in around(mean, deviation)}
    scores |= {0, 1, scored - 1, scored, math.floor(mean), math.ceil(mean)}
    scores = sorted(scores)
    got = log10_greenlist(np.array(scores), np.array(scored), gamma)
    for value, score in zip(got.tolist(), scores, strict=True):
        assert_right(value, reference.log10_greenlist(score, scored, gamma))


@pytest.mark.costly
@pytest.mark.parametrize("scored", SCORED)
def test_gumbel_and_gumbel_log(scored):
    scores = [score for score in around(scored, math.sqrt(scored)) if score > 0]
    scores += [1e-300, 1e-9, 0.5, np.nextafter(scored, 0), np.nextafter(scored, 1e9), 3.0 * scored, 22.18 * scored]
    upper = log10_gumbel(np.array(scores), np.array([scored]))
    lower = log10_gumbel_log(-np.array(scores), np.array([scored]))
    for i, score in enumerate(scores):
        assert_right(upper[i], reference.log10_gumbel(score, scored))
        assert_right(lower[i], reference.log10_gumbel_log(-score, scored))


@pytest.mark.parametrize("gamma", [Fraction(1, 2), Fraction(77, 256)], ids=str)
def test_all_scores_of_short_texts(gamma):
    for scored in range(40):
        got = log10_greenlist(np.arange(scored + 1), np.full(scored + 1, scored), gamma)
        for score in range(scored + 1):
            assert_right(got[score], reference.log10_greenlist(score, scored, gamma))


@many
@given(st.integers(1, 2000), st.sampled_from(GAMMAS), st.data())
def test_greenlist_anywhere(scored, gamma, data):
    score = data.draw(st.integers(0, scored))
    got = log10_greenlist(np.array([score]), np.array([scored]), gamma)
    assert_right(got[0], reference.log10_greenlist(score, scored, gamma))


@many
@given(st.integers(1, 2000), st.floats(0, 23))
def test_gumbel_anywhere(scored, mean):
    score = mean * scored
    assert_right(log10_gumbel([score], [scored])[0], reference.log10_gumbel(score, scored))
    if score > 0:
        assert_right(log10_gumbel_log([-score], [scored])[0], reference.log10_gumbel_log(-score, scored))


def test_one_scored_position():
    gamma = Fraction(3, 8)
    assert log10_greenlist([0, 1], 1, gamma) == pytest.approx([0, math.log10(3 / 8)], rel=1e-12)
    assert log10_gumbel([2.5], 1) == pytest.approx([-2.5 / math.log(10)], rel=1e-12)
    assert log10_gumbel_log([-2.5], 1) == pytest.approx([math.log10(-math.expm1(-2.5))], rel=1e-12)


def test_too_short_is_an_answer():
    assert log10_greenlist([0, 0], [0, 9], Fraction(1, 4)).tolist() == [0, 0]
    assert log10_gumbel([0.0, 0.0], [0, 9]).tolist() == [0, 0]
    assert log10_gumbel_log([0.0, -math.inf, -math.inf], [0, 1, 9]).tolist() == [0, 0, 0]


def test_a_probability_of_zero_is_the_only_infinity():
    assert log10_gumbel_log([0.0], [3]).tolist() == [-math.inf]
    assert math.isfinite(log10_gumbel_log([-5e-324], [100_000])[0])


@pytest.mark.parametrize("scored", [1, 30, 1000, 100_000])
def test_finite_and_monotone_far_below(scored):
    """As the score grows, log10 p never rises and never becomes infinite, with p as small as 1e-240000."""
    step = max(1, scored // 2000)
    for gamma in (Fraction(1, 256), Fraction(1, 4), Fraction(255, 256)):
        scores = np.append(np.arange(0, scored, step), scored)
        assert_falling(log10_greenlist(scores, scored, gamma))
    scores = np.linspace(0, 22.2 * scored, 4000)
    assert_falling(log10_gumbel(scores, scored))
    scores = -np.concatenate([scores[:0:-1], np.geomspace(scores[1], 1e-300, 400)])
    assert_falling(log10_gumbel_log(scores, scored))
    assert log10_greenlist(scored, scored, Fraction(1, 256)) == pytest.approx(-scored * math.log10(256), rel=1e-9)


def assert_falling(log10_p):
    assert np.isfinite(log10_p).all()
    assert (np.diff(log10_p) <= 1e-13 * np.abs(log10_p[1:])).all()  # equal up to rounding where steps are tiny
    assert log10_p[0] <= 0


def test_shapes():
    square = np.full((2, 3), 5)
    for got in (
        log10_greenlist(square, 9, Fraction(1, 4)),
        log10_gumbel(square, [9, 8, 7]),
        log10_gumbel_log(-square, np.full((2, 1), 9)),
    ):
        assert (got.shape, got.dtype) == ((2, 3), np.float64)
    assert log10_gumbel(np.empty(0), np.empty(0)).shape == (0,)
    assert float(log10_gumbel(5, 9)) == log10_gumbel([5], [9])[0]


@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(77, 256)], ids=str)
def test_what_is_looked_up_is_what_would_be_summed(gamma):
    for scored in (
        0,
        1,
        2,
        16,
        pvalues.LONGEST_TABULATED - 1,
        pvalues.LONGEST_TABULATED,
        pvalues.LONGEST_TABULATED + 1,
    ):
        scores, all_scored = np.arange(scored + 1.0), np.full(scored + 1, float(scored))
        summed = pvalues._each_greenlist(scores, all_scored, float(gamma), np.empty((0, 0)))
        assert log10_greenlist(scores, scored, gamma).tobytes() == summed.tobytes()


def test_small_stirling_errors():
    for n, error in enumerate(pvalues._SMALL_STIRLING_ERRORS, start=1):
        exact = mpmath.log(mpmath.factorial(n)) - mpmath.log(mpmath.sqrt(2 * mpmath.pi * n) * (n / mpmath.e) ** n)
        assert abs(float(error) - exact) < 1e-14

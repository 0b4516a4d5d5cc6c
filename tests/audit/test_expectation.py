"""Attainable p-values against sums of exact fractions, and randomised ones against the uniform law."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.audit.statistics.hits import RowMemory, chances, critical_scores, randomised_p
from scanner.audit.statistics.judgement import uniformity
from scanner.watermark import log10_gumbel
from scanner.watermark.laws import Normal
from tests.watermark.pairs import law_of
from tests.watermark.strategies import GAMMAS, few

THRESHOLDS = [0.5, 0.1, 1e-2, 1e-4, 1e-8]


def tails(scored: int, gamma: Fraction) -> list[Fraction]:
    """P(at least s of T are green) for s = 0 … T, exactly."""
    chances = [math.comb(scored, k) * gamma**k * (1 - gamma) ** (scored - k) for k in range(scored + 1)]
    return [sum(chances[s:], Fraction(0)) for s in range(scored + 1)]


@pytest.mark.costly
@pytest.mark.seconds
@few
@given(st.integers(0, 60), st.sampled_from(GAMMAS), st.sampled_from([1, 2, 1000]))
def test_greenlist_levels_are_the_largest_attainable(scored, gamma, messages):
    found = critical_scores(law_of(gamma), [scored], THRESHOLDS, messages)
    corrected = [1 - (1 - tail) ** messages for tail in tails(scored, gamma)]
    for j, alpha in enumerate(THRESHOLDS):
        attained = [p for p in corrected if p <= Fraction(alpha)]
        if not attained:
            assert (found.critical[0, j], found.chance[0, j]) == (math.inf, 0)
        else:
            assert found.chance[0, j] == pytest.approx(float(max(attained)), rel=1e-9)
            assert found.critical[0, j] == corrected.index(max(attained))


@pytest.mark.seconds
@pytest.mark.parametrize("messages", [1, 100_000])
def test_gumbel_attains_every_threshold(messages):
    scored = np.array([0, 1, 16, 256, 5000])
    found = critical_scores(law_of(None), scored, THRESHOLDS, messages)
    assert (found.critical[0] == math.inf).all()
    assert (found.chance[0] == 0).all()
    possible = found.critical[1:] <= 22.25 * scored[1:, None]
    assert possible[2:].all()
    assert found.chance[1:][possible] == pytest.approx(np.broadcast_to(THRESHOLDS, (4, 5))[possible], rel=1e-9)


def test_a_critical_gumbel_score_is_the_first_double_that_passes():
    critical = critical_scores(law_of(None), [256], [1e-6]).critical[0, 0]
    around = np.array([np.nextafter(critical, 0), critical])
    assert (log10_gumbel(around, 256) <= -6).tolist() == [False, True]


@pytest.mark.seconds
def test_the_z_test_lets_too_low_scores_pass():
    exact, z = (
        critical_scores(law_of(Fraction(1, 4)), [64], [1e-5]),
        critical_scores(Normal(law_of(Fraction(1, 4))), [64], [1e-5]),
    )
    assert z.critical[0, 0] < exact.critical[0, 0]
    assert (
        critical_scores(Normal(law_of(None)), [64], [1e-5]).critical[0, 0]
        < critical_scores(law_of(None), [64], [1e-5]).critical[0, 0]
    )


@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(77, 256), None], ids=str)
def test_randomised_p_values_are_uniform(gamma):
    generator = np.random.default_rng(5)
    scored = generator.integers(1, 40, 20_000)
    if gamma is None:
        score = generator.gamma(scored.astype(float))
    else:
        score = generator.binomial(scored, float(gamma))
    p = randomised_p(score, scored, law_of(gamma), generator)
    assert uniformity(p)[1] > 1e-3
    assert uniformity(1 - p)[1] > 1e-3
    if gamma is not None:  # plain p-values are not uniform, so that the test shows what randomising changes
        plain = 10 ** law_of(gamma).log10_p(score, scored)
        assert uniformity(1 - plain)[1] < 1e-6


def test_randomised_p_values_of_no_positions_are_uniform():
    p = randomised_p(
        np.zeros(1000, np.int64), np.zeros(1000, np.int64), law_of(Fraction(1, 4)), np.random.default_rng(0)
    )
    assert uniformity(p)[1] > 1e-3


def test_too_small_p_values_are_not_uniform():
    p = np.random.default_rng(1).random(20_000) ** 1.05
    assert uniformity(p)[1] < 1e-6
    assert uniformity(1 - p)[1] > 0.1  # one-sided


@pytest.mark.parametrize("messages", [1, 1000])
@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(1, 2), None])
def test_rows_of_short_texts_that_are_found_together_are_those_found_one_by_one(gamma, messages):
    law, kept = law_of(gamma), RowMemory()
    for lengths in ([40, 40, 700], [3, 511, 512, 40], [1200]):
        found = kept.of(law, np.array(lengths), lambda missing: chances(law, missing, THRESHOLDS, messages))
        singly = [chances(law, [length], THRESHOLDS, messages)[0] for length in lengths]
        np.testing.assert_array_equal(found, singly)

"""Limits against brute force by exact fractions and mpmath; dispersion against clusters of known dispersion."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from scanner.audit.statistics.hits import ClusterSums, cluster_sums
from scanner.audit.statistics.judgement import (
    binomial_limits,
    binomial_tail,
    design_effect,
    few_clusters,
    poisson_limits,
)


def chance_of_at_least(hits: int, tests: int, rate: Fraction) -> Fraction:
    return sum((math.comb(tests, k) * rate**k * (1 - rate) ** (tests - k) for k in range(hits, tests + 1)), Fraction(0))


@pytest.mark.parametrize("tests", [1, 7, 40])
@pytest.mark.parametrize("risk", [0.05, 1e-4])
def test_binomial_limits_are_where_the_exact_tail_is_the_risk(tests, risk):
    for hits in range(tests + 1):
        low, high = binomial_limits(hits, tests, risk)
        if hits == 0:
            assert low == 0
        else:
            assert float(chance_of_at_least(hits, tests, Fraction(low))) == pytest.approx(risk, rel=1e-9)
        if hits == tests:
            assert high == 1
        else:
            assert float(1 - chance_of_at_least(hits + 1, tests, Fraction(high))) == pytest.approx(risk, rel=1e-9)


@pytest.mark.parametrize("hits", [0, 3, 10, 250])
def test_limits_of_very_many_tests_are_poisson(hits):
    tests = 1e10
    binomial, poisson = binomial_limits(hits, tests, 1e-3), poisson_limits(hits, 1e-3)
    assert np.array(binomial) * tests == pytest.approx(np.array(poisson), rel=1e-6)


@pytest.mark.parametrize("count", [0, 1, 10, 400])
@pytest.mark.parametrize("risk", [0.05, 1e-6])
def test_poisson_limits_against_mpmath(count, risk):
    low, high = poisson_limits(count, risk)
    with mpmath.workdps(40):
        assert float(mpmath.gammainc(count + 1, high, regularized=True)) == pytest.approx(risk, rel=1e-9)
        if count:
            assert float(mpmath.gammainc(count, 0, low, regularized=True)) == pytest.approx(risk, rel=1e-9)


def test_the_tail_of_a_billion_tests_against_mpmath():
    with mpmath.workdps(40):
        wanted = mpmath.betainc(40, mpmath.mpf(10) ** 9 - 39, 0, mpmath.mpf(1e-8), regularized=True)
    assert binomial_tail(40, 1e9, 1e-8) == pytest.approx(float(wanted), rel=1e-7)
    assert binomial_tail(3, 10, 0.2) == pytest.approx(float(chance_of_at_least(3, 10, Fraction(0.2))), rel=1e-12)


def test_limits_cover_as_often_as_they_say():
    generator, risk = np.random.default_rng(3), 0.05
    missed_low = missed_high = 0
    for hits in generator.binomial(50, 0.1, 4000):
        low, high = binomial_limits(int(hits), 50, risk)
        missed_low += low > 0.1
        missed_high += high < 0.1
    assert max(missed_low, missed_high) / 4000 <= risk


def test_independent_tests_have_no_dispersion():
    generator = np.random.default_rng(4)
    chance = np.tile([0.3, 0.01], (20_000, 1))
    sums = cluster_sums(generator.binomial(50, chance), np.full(20_000, 50), chance)
    assert design_effect(sums) == pytest.approx([1, 1], abs=0.05)


def test_identical_tests_in_a_cluster_have_its_size_as_dispersion():
    generator = np.random.default_rng(4)
    chance = np.full((20_000, 1), 0.2)
    hits = 50 * generator.binomial(1, chance)
    assert design_effect(cluster_sums(hits, np.full(20_000, 50), chance)) == pytest.approx([50], rel=0.02)


def test_a_wrong_rate_is_not_dispersion():
    generator = np.random.default_rng(4)
    chance = np.full((20_000, 1), 0.02)
    hits = generator.binomial(500, 3 * chance)
    sums = cluster_sums(hits, np.full(20_000, 500), chance)
    assert sums.hits / sums.expected == pytest.approx([3], rel=0.01)
    assert design_effect(sums) == pytest.approx([1], abs=0.05)


def test_parts_add_up():
    generator = np.random.default_rng(6)
    chance = generator.random((30, 3))
    hits, tests = generator.binomial(9, chance), np.full(30, 9)
    parts = cluster_sums(hits[:12], tests[:12], chance[:12]).plus(cluster_sums(hits[12:], tests[12:], chance[12:]))
    for a, b in zip(parts, cluster_sums(hits, tests, chance), strict=True):
        assert a == pytest.approx(b)
    assert isinstance(parts, ClusterSums)


def test_few_clusters_are_worth_less():
    assert few_clusters(1, 0.05) == math.inf
    assert few_clusters(10, 0.025) == pytest.approx((2.262157 / 1.959964) ** 2, rel=1e-5)
    assert few_clusters(1e6, 0.025) == pytest.approx(1, rel=1e-4)

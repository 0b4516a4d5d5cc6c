"""Verdicts of audit rows: each where it belongs, errors held over families, and power as stated."""

import numpy as np
import pytest
from scipy import stats

from scanner.audit.statistics.hits import cluster_sums
from scanner.audit.statistics.judgement import Count, counts, holm, judge
from tests.bench.audit_power import POWER
from tests.bench.decisions import smallest_excess

MANY = 1e9


def row(hits: float, expected: float, effect: float = 1.0) -> Count:
    return Count(tests=MANY, hits=hits, expected=expected, clusters=1e6, design_effect=effect)


@pytest.mark.parametrize(
    ("hits", "expected", "verdict"),
    [
        (1000, 1000, "holds"),
        (1030, 1000, "holds"),
        (1500, 1000, "too small"),
        (700, 1000, "conservative"),
        (3, 2, "undecided"),
        (0, 0.1, "undecided"),
        (0, 0, "undecided"),
        (1, 0, "too small"),  # a hit where the law allows none
        (0, 1e4, "conservative"),
    ],
)
def test_verdicts(hits, expected, verdict):
    assert judge([row(hits, expected)], 0.01)[0].verdict == verdict


def test_clusters_take_away_evidence():
    assert judge([row(1200, 1000)], 0.01)[0].verdict == "too small"
    assert judge([row(1200, 1000, effect=50)], 0.01)[0].verdict == "holds"


def test_a_single_cluster_decides_nothing():
    alone = judge([Count(MANY, 1e6, 1e3, clusters=1, design_effect=1)], 0.01)[0]
    assert (alone.verdict, alone.p_value) == ("undecided", 1)


def test_a_bound_allows_so_much_and_no_more():
    assert judge([row(1900, 1000)], 0.01, bound=2)[0].verdict == "undecided"
    assert judge([row(2500, 1000)], 0.01, bound=2)[0].verdict == "too small"


def test_holm_by_hand():
    p = np.array([0.04, 0.001, 0.03, 0.0124])
    assert holm(p, 0.05).tolist() == [False, True, False, True]  # 0.0125, 0.0166, then 0.03 > 0.025
    assert holm(np.array([]), 0.05).tolist() == []
    assert holm(np.array([0.01, 0.02]), 0.05).all()


@pytest.mark.seconds
def test_the_family_wise_error_is_held():
    """Families of 20 true rows: no more than the stated share of them, within chance, has any row called too small."""
    generator = np.random.default_rng(8)
    wrong = 0
    for _ in range(1000):
        family = [row(float(h), e) for e in (3.0, 30.0, 300.0, 3000.0) for h in generator.poisson(e, 5)]
        wrong += any(judged.verdict == "too small" for judged in judge(family, 0.05))
    assert wrong / 1000 <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5


@pytest.mark.parametrize("expected", [0.5, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("rows", [1, 4])
def test_pairs_of_limits_miss_no_more_often_than_stated(expected, rows):
    """Exactly, by the Poisson law of hits, for independent rows with true rates, at an error of 0.2."""
    hits = np.arange(int(expected + 12 * expected**0.5 + 20))
    error, chance = 0.2, stats.poisson.pmf(hits, expected)
    judged = [judge([row(float(h), expected)] * rows, error)[0] for h in hits]
    miss = sum(p for p, said in zip(chance, judged, strict=True) if not said.low <= expected <= said.high)
    assert 1 - (1 - miss) ** rows <= error
    if expected == 1000:
        assert 1 - (1 - miss) ** rows >= 0.8 * error  # and limits are no wider than they must be


@pytest.mark.parametrize("expected", [1.0, 10.0, 1000.0])
def test_the_smallest_excess_is_seen_as_often_as_it_says(expected):
    risk = 1e-3
    count = row(0, expected)
    excess = smallest_excess(count, 1.0, risk)
    hits = np.random.default_rng(9).poisson(excess * expected, 1000)
    seen = sum(judge([row(float(h), expected)], risk)[0].verdict == "too small" for h in hits)
    assert seen / 1000 == pytest.approx(POWER, abs=0.04)


def test_a_design_effect_of_few_hits_is_carried_from_the_larger_threshold():
    generator = np.random.default_rng(10)
    chance = np.tile([1e-1, 1e-5], (4000, 1))
    together = generator.random((4000, 1)) < chance
    first, second = counts(cluster_sums(20 * together, np.full(4000, 20), chance))
    assert first.design_effect == pytest.approx(20, rel=0.1)
    assert second.design_effect == first.design_effect
    assert second.hits < 100

"""Shares and means with intervals: against plain loops, and by how often an interval holds the truth."""

from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

from scanner.research.scores import mean, share, variance_of_mean


def plain_variance(values: list[float], labels: list[object]) -> float:
    centre = sum(values) / len(values)
    sums: dict[object, float] = defaultdict(float)
    for value, label in zip(values, labels, strict=True):
        sums[label] += value - centre
    return len(sums) / (len(sums) - 1) * sum(total**2 for total in sums.values()) / len(values) ** 2


def crossed(random: np.random.Generator, prompts: int = 7, keys: int = 4, n: int = 60):
    return random.normal(size=n), random.integers(prompts, size=n), random.integers(keys, size=n)


@pytest.mark.parametrize("seed", range(20))
def test_variance_is_that_of_plain_loops(seed):
    values, prompts, keys = crossed(np.random.default_rng(seed))
    one, two = (plain_variance(values.tolist(), labels.tolist()) for labels in (prompts, keys))
    both = plain_variance(values.tolist(), list(zip(prompts.tolist(), keys.tolist(), strict=True)))
    assert variance_of_mean(values, prompts) == pytest.approx(one, rel=1e-12)
    assert variance_of_mean(values, prompts, keys) == pytest.approx(max(one + two - both, one, two), rel=1e-12)


def test_without_clusters_they_are_the_textbook_intervals():
    values = np.random.default_rng(5).normal(size=30)
    found = mean(values, np.arange(30))
    expected = stats.t.interval(0.95, 29, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-12)
    assert (found.n, found.hits, found.value) == (30, None, values.mean())
    for hits in (0, 40):
        limits = stats.binomtest(hits, 40).proportion_ci(method="exact")
        estimate = share(np.arange(40) < hits, np.arange(40) % 8)
        assert (estimate.n, estimate.hits, estimate.value) == (40, hits, hits / 40)
        assert (estimate.low, estimate.high) == pytest.approx((limits.low, limits.high), abs=1e-12)


def test_texts_that_only_repeat_their_cluster_add_nothing():
    """12 users with ten equal texts each: as wide as the classic limits of 12 texts, and wider by the t law."""
    users = np.repeat(np.arange(12), 10)
    found = share(users < 4, users)
    limits = stats.binomtest(4, 12).proportion_ci(method="exact")
    assert found.low < limits.low
    assert found.high > limits.high
    assert found.high - found.low < 1.25 * (limits.high - limits.low)


def test_nothing_and_a_single_cluster_say_little():
    nothing = share(np.empty(0, bool), np.empty(0, int))
    assert (nothing.n, nothing.hits) == (0, 0)
    assert np.isnan([nothing.value, nothing.low, nothing.high]).all()
    assert np.isnan(mean(np.empty(0), np.empty(0, int)).value)
    one = share(np.array([True, False]), np.zeros(2))
    assert (one.low, one.high) == (0.0, 1.0)
    assert mean(np.array([1.0, 2.0]), np.zeros(2)).high == np.inf


@pytest.mark.seconds
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.85])
def test_intervals_hold_the_truth_with_clusters_on_both_sides(rate):
    """1,500 samples of 24 prompts under 2 of 8 keys each, both with effects of their own: at least 93 % must hold.

    At 95 % coverage fewer than 93 % has a probability of 4e-4 (binomial); the seed is fixed.
    """
    random = np.random.default_rng(17)
    prompts = np.tile(np.arange(24), 2)
    keys = np.concatenate([np.arange(24), np.arange(24) + 1]) % 8
    runs = 1500
    hold_share = hold_mean = 0
    for _ in range(runs):
        latent = (
            0.5 * random.normal(size=24)[prompts] + 0.3 * random.normal(size=8)[keys] + random.normal(size=48)
        ) / (0.25 + 0.09 + 1) ** 0.5
        found = share(latent < stats.norm.ppf(rate), prompts, keys)
        hold_share += found.low <= rate <= found.high
        of_mean = mean(latent, prompts, keys)
        hold_mean += of_mean.low <= 0 <= of_mean.high
    assert hold_share >= 0.93 * runs
    assert hold_mean >= 0.93 * runs

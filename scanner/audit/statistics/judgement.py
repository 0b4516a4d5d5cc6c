"""Judge stated rates: the promise of a law, limits of the rates behind counts, and whether the rates hold.

The limits are those of Clopper and Pearson at the effective number of tests: the tests divided by the design effect
(Korn and Graubard, Confidence Intervals for Proportions with Small Expected Number of Positive Counts Estimated from
Survey Data, 1998). With one test a cluster and a design effect of 1 they are the exact binomial limits.

Intervals decide whether a rate holds, over a family that is fixed beforehand. Lack of data proves nothing: a row
without a decision reads `undecided`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.audit.statistics.hits import ClusterSums
from schemas.words import AuditVerdict


def uniformity(p: NDArray[np.float64]) -> tuple[float, float]:
    """Test whether independent p-values are too small to be uniform, one-sided, by Kolmogorov and Smirnov.

    Returns:
        (distance, p-value): the largest excess of the empirical over the uniform distribution function, and the
        probability of an excess as large.
    """
    from scipy import stats  # late: it takes a second, and only an audit needs it

    result = stats.kstest(p, "uniform", alternative="greater")
    return float(result.statistic), float(result.pvalue)


class Limits(NamedTuple):
    """Limits of a rate or of a mean count. Each misses the truth with at most the stated risk."""

    low: float
    high: float


def binomial_limits(hits: float, tests: float, risk: float) -> Limits:
    """Compute Clopper and Pearson's limits of a rate, each one-sided. Exact for whole numbers of independent tests.

    Args:
        hits: 0 to tests. An effective number may be no whole number.
        tests: above 0.
        risk: probability that one limit misses.
    """
    low = float(special.betaincinv(hits, tests - hits + 1, risk)) if hits > 0 else 0.0
    high = float(special.betainccinv(hits + 1, tests - hits, risk)) if hits < tests else 1.0
    return Limits(low, high)


def binomial_tail(hits: float, tests: float, rate: float) -> float:
    """Compute P(at least so many hits) under a rate. 0 below 1e-308.

    Hits and tests are real numbers as in `binomial_limits`.
    """
    if hits <= 0 or rate >= 1:
        return 1.0
    return float(special.betainc(hits, tests - hits + 1, rate))


def poisson_limits(count: float, risk: float) -> Limits:
    """Compute exact limits of a Poisson mean, each one-sided (Garwood 1936)."""
    low = float(special.gammaincinv(count, risk)) if count > 0 else 0.0
    return Limits(low, float(special.gammainccinv(count + 1, risk)))


def design_effect(sums: ClusterSums) -> NDArray[np.float64]:
    """Return the variance of the hits between clusters, relative to the binomial variance. 1 where it is unknown.

    The residual of a cluster is h − r e with r = Σh/Σe. So a wrong law shows in the rate and not as dispersion.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        r = sums.hits / sums.expected
        spread = (sums.hh - 2 * r * sums.he + r * r * sums.ee) * sums.clusters / (sums.clusters - 1)
        binomial = sums.hits * (1 - sums.hits / sums.tests)
        effect = spread / binomial
    return np.where(np.isfinite(effect), effect, 1.0)


def few_clusters(clusters: float, risk: float) -> float:
    """Return the correcting factor for a design effect that is estimated from so many clusters.

    It is (t/z)² of Student's and the normal law. It is ∞ for a single cluster, which says nothing about others.
    """
    if clusters < 2:
        return np.inf
    return float((special.stdtrit(clusters - 1, 1 - risk) / special.ndtri(1 - risk)) ** 2)


def clusters_of_one_size(labels: NDArray[np.generic]) -> float:
    """Return the equivalent number of clusters of one size: (Σn)² / Σn², a whole number if sizes are equal.

    Example: one template of 2,000 texts beside 2,000 other texts counts as 4 clusters.

    Args:
        labels: label of each text's cluster, [N].
    """
    sizes = np.unique(labels, return_counts=True)[1].astype(np.float64)
    return round(float(sizes.sum() ** 2 / (sizes**2).sum()), 6)


RATIO_THAT_HOLDS = 2.0
"""A rate holds if its upper limit is at most so many times its expectation."""

ENOUGH_HITS = 100
"""Smallest number of hits from which a threshold's own design effect is estimated.

With fewer hits, the estimate of the next larger threshold is used.
"""

KEY_BOUND = 2.0
"""Ratio of a key's rate to the stated rate above which the key fails. Every key is a little off (SPEC §4)."""


class Count(NamedTuple):
    """Hits at one threshold and their expectation, with the design effect of their clusters (at least 1)."""

    tests: float
    hits: float
    expected: float
    clusters: float
    design_effect: float


class Judgement(NamedTuple):
    """The judgement of a count.

    p_value: probability of at least so many hits if the rate is the expected one times the bound.
    low, high: limits of the expected number of hits, simultaneous over the family.
    verdict: the verdict that follows.
    """

    p_value: float
    low: float
    high: float
    verdict: AuditVerdict


def counts(sums: ClusterSums) -> list[Count]:
    """Return a count for each threshold. The thresholds go from large to small.

    Args:
        sums: over clusters, each [J].
    """
    factors = np.maximum(design_effect(sums), 1.0)
    threshold_counts, carried = [], 1.0
    for j in range(len(factors)):
        if sums.hits[j] >= ENOUGH_HITS:
            carried = float(factors[j])
        tests, hits, expected, clusters = map(float, (sums.tests[j], sums.hits[j], sums.expected[j], sums.clusters[j]))
        threshold_counts.append(Count(tests, hits, expected, clusters, max(carried, float(factors[j]))))
    return threshold_counts


def judge(family: Sequence[Count], error: float, bound: float = 1.0) -> list[Judgement]:
    """Judge a whole family of counts.

    Args:
        family: all counts that are looked at, listed before their hits are known.
        error: the family-wise error. It bounds the probability that any row is called too small although all
            expectations are true (by Holm's procedure). It also bounds the probability that any pair of limits misses
            (by Bonferroni's, half of it for each side).
        bound: `too small` says that the rate is above the expected one times this. 1 for a law. More for one key,
            because its own rate always differs from the average over keys (SPEC §4).
    """
    risk = error / max(len(family), 1)
    effects = [_effect(count, risk) for count in family]
    tails = np.array([_tail(count, effect, bound) for count, effect in zip(family, effects, strict=True)])
    rejected = holm(tails, error)
    judgements = []
    for count, p_value, too_small in zip(family, tails, rejected, strict=True):
        low, high = _limits(count, risk / 2)  # half, because a pair can miss on either side
        verdict = _verdict(bool(too_small), high, count.expected)
        judgements.append(Judgement(float(p_value), low, high, verdict))
    return judgements


def _effect(count: Count, risk: float) -> float:
    return count.design_effect * few_clusters(count.clusters, risk)


def _limits(count: Count, risk: float) -> Limits:
    """Return limits of the mean of the hits. Each misses with this risk."""
    effect = _effect(count, risk)
    low, high = binomial_limits(count.hits / effect, count.tests / effect, risk)
    return Limits(low * count.tests, high * count.tests)


def _tail(count: Count, effect: float, bound: float) -> float:
    if count.hits <= 0:
        return 1.0
    return binomial_tail(count.hits / effect, count.tests / effect, count.expected * bound / count.tests)


def _verdict(too_small: bool, high: float, expected: float) -> AuditVerdict:
    if too_small:
        return AuditVerdict.TOO_SMALL
    if high < expected:
        return AuditVerdict.CONSERVATIVE
    return AuditVerdict.HOLDS if high <= RATIO_THAT_HOLDS * expected else AuditVerdict.UNDECIDED


def holm(p_values: NDArray[np.float64], error: float) -> NDArray[np.bool_]:
    """Return which hypotheses of a family are rejected at a family-wise error (Holm 1979): bool of the same length."""
    order = np.argsort(p_values, kind="stable")
    steps = error / np.arange(len(p_values), 0, -1)
    survivors = np.flatnonzero(p_values[order] > steps)
    rejected = np.zeros(len(p_values), np.bool_)
    rejected[order[: survivors[0] if len(survivors) else len(p_values)]] = True
    return rejected

"""Stated rates: what a law promises, limits of the rates behind counts, and whether they hold.

The limits of Clopper and Pearson are taken
at the effective number of tests, tests divided by the design effect (Korn and Graubard, Confidence Intervals for
Proportions with Small Expected Number of Positive Counts Estimated from Survey Data, 1998): with one test a cluster
and a design effect of 1 they are the exact binomial limits.

Whether a rate holds is decided by intervals, over a family fixed beforehand. Lack of data proves nothing: a row that
can decide neither way reads `undecided`.
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
    from scipy import stats  # takes a second, and only an audit needs it

    result = stats.kstest(p, "uniform", alternative="greater")
    return float(result.statistic), float(result.pvalue)


class Limits(NamedTuple):
    """Limits of a rate or of a mean count; each misses the truth with at most the stated risk."""

    low: float
    high: float


def binomial_limits(hits: float, tests: float, risk: float) -> Limits:
    """Compute Clopper and Pearson's limits of a rate, each one-sided; exact for whole numbers of independent tests.

    Args:
        hits: 0 to tests; a real number if it is effective.
        tests: above 0.
        risk: probability that one limit misses.
    """
    low = float(special.betaincinv(hits, tests - hits + 1, risk)) if hits > 0 else 0.0
    high = float(special.betainccinv(hits + 1, tests - hits, risk)) if hits < tests else 1.0
    return Limits(low, high)


def binomial_tail(hits: float, tests: float, rate: float) -> float:
    """Compute P(at least so many hits) of a rate. 0 below 1e-308.

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
    """Return the variance of the hits between clusters over the binomial variance; 1 where it is unknown.

    The residual of a cluster is h − r e with r = Σh/Σe, so that a wrong law shows in the rate and not as dispersion.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        r = sums.hits / sums.expected
        spread = (sums.hh - 2 * r * sums.he + r * r * sums.ee) * sums.clusters / (sums.clusters - 1)
        binomial = sums.hits * (1 - sums.hits / sums.tests)
        effect = spread / binomial
    return np.where(np.isfinite(effect), effect, 1.0)


def few_clusters(clusters: float, risk: float) -> float:
    """Return the factor on a design effect that is estimated from so many clusters.

    It is (t/z)² of Student's and the normal law; ∞ for a single cluster, which says nothing about the others.
    """
    if clusters < 2:
        return np.inf
    return float((special.stdtrit(clusters - 1, 1 - risk) / special.ndtri(1 - risk)) ** 2)


def clusters_of_one_size(labels: NDArray[np.generic]) -> float:
    """Return how many clusters of one size the clusters of N texts are worth: (Σn)² / Σn², whole where sizes are equal.

    One template of 2,000 texts beside 2,000 other texts is worth 4.

    Args:
        labels: of each text's cluster, [N].
    """
    sizes = np.unique(labels, return_counts=True)[1].astype(np.float64)
    return round(float(sizes.sum() ** 2 / (sizes**2).sum()), 6)


RATIO_THAT_HOLDS = 2.0
"""Ratio of a rate's upper limit to its expectation up to which the rate holds."""

ENOUGH_HITS = 100
"""Fewest hits from which a threshold's own design effect is estimated; with fewer, the next larger threshold's estimate
is used.
"""

KEY_BOUND = 2.0
"""Ratio of a key's rate to the stated rate above which the key fails: every key is a little off (SPEC §4)."""


class Count(NamedTuple):
    """Hits at one threshold against their expectation, with the design effect of their clusters (at least 1)."""

    tests: float
    hits: float
    expected: float
    clusters: float
    design_effect: float


class Judgement(NamedTuple):
    """The judgement of a count.

    p_value: probability of at least so many hits when the rate is the expected one times the bound.
    low, high: limits of the number of hits to expect, simultaneous over the family.
    verdict: what follows from these.
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
        family: all counts that are looked at, enumerated before their hits are known.
        error: family-wise: the probability that any row is called too small although all expectations are true (by
            Holm's procedure), and that any pair of limits misses (by Bonferroni's, half of it for each side).
        bound: `too small` says that the rate is above the expected one times this. 1 for a law; more for one key, whose
            own rate always differs from the average over keys (SPEC §4).
    """
    risk = error / max(len(family), 1)
    effects = [_effect(count, risk) for count in family]
    tails = np.array([_tail(count, effect, bound) for count, effect in zip(family, effects, strict=True)])
    rejected = holm(tails, error)
    judgements = []
    for count, p_value, too_small in zip(family, tails, rejected, strict=True):
        low, high = _limits(count, risk / 2)  # a pair misses on either side
        verdict = _verdict(bool(too_small), high, count.expected)
        judgements.append(Judgement(float(p_value), low, high, verdict))
    return judgements


def _effect(count: Count, risk: float) -> float:
    return count.design_effect * few_clusters(count.clusters, risk)


def _limits(count: Count, risk: float) -> Limits:
    """Return limits of the mean of the hits, each of which misses with this risk."""
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
    """Say which hypotheses of a family are rejected at a family-wise error (Holm 1979): bool of the same length."""
    order = np.argsort(p_values, kind="stable")
    steps = error / np.arange(len(p_values), 0, -1)
    survivors = np.flatnonzero(p_values[order] > steps)
    rejected = np.zeros(len(p_values), np.bool_)
    rejected[order[: survivors[0] if len(survivors) else len(p_values)]] = True
    return rejected

"""From counts to words: does a stated false-positive rate hold? Decided by intervals, over a family fixed beforehand.

Lack of data proves nothing: a row that can decide neither way reads `undecided`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.audit.statistics.intervals import (
    Limits,
    Moments,
    binomial_limits,
    binomial_tail,
    design_effect,
    few_clusters,
    poisson_limits,
)
from schemas.words import AuditVerdict

TOLERANCE = 2.0
"""Ratio of a rate's upper limit to its expectation up to which the rate holds."""

ENOUGH_HITS = 100
"""Fewest hits from which a threshold's own design effect is estimated; with fewer, the next larger threshold's estimate
is used.
"""

KEY_BOUND = 2.0
"""Ratio of a key's rate to the stated rate above which the key fails: every key is a little off (SPEC §4)."""

POWER = 0.9
"""Probability with which a row sees the smallest excess that is stated for it."""


class Count(NamedTuple):
    """Hits at one threshold against their expectation, with the design effect of their clusters (at least 1)."""

    tests: float
    hits: float
    expected: float
    clusters: float
    design_effect: float


class Judged(NamedTuple):
    """The judgement of a count.

    p_value: probability of at least so many hits when the rate is the expected one times the bound; low, high: limits
    of the number of hits to expect, simultaneous over the family; smallest_excess: the ratio of the true to the
    expected rate that this row would have called too small with probability POWER; verdict.
    """

    p_value: float
    low: float
    high: float
    smallest_excess: float
    verdict: AuditVerdict


def counts(sums: Moments) -> list[Count]:
    """One count per threshold. The thresholds go from large to small.

    Args:
        sums: over clusters, each [J].
    """
    own = np.maximum(design_effect(sums), 1.0)
    found, carried = [], 1.0
    for j in range(len(own)):
        if sums.hits[j] >= ENOUGH_HITS:
            carried = float(own[j])
        tests, hits, expected, clusters = map(float, (sums.tests[j], sums.hits[j], sums.expected[j], sums.clusters[j]))
        found.append(Count(tests, hits, expected, clusters, max(carried, float(own[j]))))
    return found


def judge(family: Sequence[Count], error: float, bound: float = 1.0) -> list[Judged]:
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
    judged = []
    for count, effect, p_value, too_small in zip(family, effects, tails, rejected, strict=True):
        low, high = _limits(count, risk / 2)  # a pair misses on either side
        verdict = _verdict(bool(too_small), high, count.expected)
        judged.append(Judged(float(p_value), low, high, smallest_excess(count, effect, risk, bound), verdict))
    return judged


def _effect(count: Count, risk: float) -> float:
    return count.design_effect * few_clusters(count.clusters, risk)


def _limits(count: Count, risk: float) -> Limits:
    """Limits of the mean of the hits, each of which misses with this risk."""
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
    return AuditVerdict.HOLDS if high <= TOLERANCE * expected else AuditVerdict.UNDECIDED


def holm(p_values: NDArray[np.float64], error: float) -> NDArray[np.bool_]:
    """Which of a family of hypotheses are rejected at a family-wise error (Holm 1979): bool of the same length."""
    order = np.argsort(p_values, kind="stable")
    steps = error / np.arange(len(p_values), 0, -1)
    stands = np.flatnonzero(p_values[order] > steps)
    rejected = np.zeros(len(p_values), np.bool_)
    rejected[order[: stands[0] if len(stands) else len(p_values)]] = True
    return rejected


def smallest_excess(count: Count, effect: float, risk: float, bound: float = 1.0) -> float:
    """Ratio of true to expected rate that is seen with probability POWER at this expectation; ∞ if none is.

    By the Poisson law at the effective counts; the level is Bonferroni's, which Holm's procedure only improves.
    """
    if count.expected <= 0 or not np.isfinite(effect):
        return np.inf
    mean = count.expected * bound / effect
    most = float(np.ceil(special.pdtrik(1 - risk, mean)))  # more hits than this are called too small
    return poisson_limits(most, 1 - POWER).high * effect / count.expected

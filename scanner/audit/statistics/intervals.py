"""How precisely a count of hits gives the rate behind it: exact limits, and limits for hits that come in clusters.

Clusters are documents (of fresh keys) or keys (over the same documents). The limits of Clopper and Pearson are taken
at the effective number of tests, tests divided by the design effect (Korn and Graubard, Confidence Intervals for
Proportions with Small Expected Number of Positive Counts Estimated from Survey Data, 1998): with one test a cluster
and a design effect of 1 they are the exact binomial limits.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # type: ignore[import-untyped]


class Limits(NamedTuple):
    """Limits of a rate or of a mean count; each misses the truth with at most the stated risk."""

    low: float
    high: float


def binomial_limits(hits: float, tests: float, risk: float) -> Limits:
    """Clopper and Pearson's limits of a rate, each one-sided; exact for whole numbers of independent tests.

    Args:
        hits: 0 to tests; a real number if it is effective.
        tests: above 0.
        risk: probability that one limit misses.
    """
    low = float(special.betaincinv(hits, tests - hits + 1, risk)) if hits > 0 else 0.0
    high = float(special.betainccinv(hits + 1, tests - hits, risk)) if hits < tests else 1.0
    return Limits(low, high)


def binomial_tail(hits: float, tests: float, rate: float) -> float:
    """P(at least so many hits) of a rate; real numbers of hits and tests as in `binomial_limits`. 0 below 1e-308."""
    if hits <= 0 or rate >= 1:
        return 1.0
    return float(special.betainc(hits, tests - hits + 1, rate))


def poisson_limits(count: float, risk: float) -> Limits:
    """Exact limits of a Poisson mean, each one-sided (Garwood 1936)."""
    low = float(special.gammaincinv(count, risk)) if count > 0 else 0.0
    return Limits(low, float(special.gammainccinv(count + 1, risk)))


COLUMNS = ("tests", "hits", "expected", "hits_squared", "hits_times_expected", "expected_squared", "texts")
"""Columns of AUDIT_COUNTS: the parts of Moments, in their order."""


class Moments(NamedTuple):
    """Sums over clusters that make up a design effect; parts of a sum can be added. Each is float64 of one shape.

    tests: Σ n; hits: Σ h; expected: Σ e = Σ n q; hh, he, ee: Σ h², Σ he, Σ e²; clusters: how many.
    """

    tests: NDArray[np.float64]
    hits: NDArray[np.float64]
    expected: NDArray[np.float64]
    hh: NDArray[np.float64]
    he: NDArray[np.float64]
    ee: NDArray[np.float64]
    clusters: NDArray[np.float64]

    def plus(self, other: "Moments") -> "Moments":
        """Both sums together."""
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """As columns of schemas.audit_tables.AUDIT_COUNTS; counts as int64."""
        whole = {"tests", "hits", "texts"}
        return {
            column: part.astype(np.int64) if column in whole else part
            for column, part in zip(COLUMNS, self, strict=True)
        }

    @classmethod
    def of_columns(cls, columns: Mapping[str, ArrayLike]) -> "Moments":
        """The sum over rows of these columns of AUDIT_COUNTS."""
        return cls(*(np.asarray(columns[column], np.float64) for column in COLUMNS))


def moments(hits: NDArray[np.generic], tests: NDArray[np.generic], chance: NDArray[np.float64]) -> Moments:
    """Sums over the clusters on the first axis.

    Args:
        hits: h, [D, J].
        tests: n, [D] or [D, J].
        chance: q of one test, float64[D, J].
    """
    h = hits.astype(np.float64)
    n = np.broadcast_to(tests.astype(np.float64).reshape(len(h), -1), h.shape)
    e = n * chance
    clusters = np.full(h.shape, 1.0)
    return Moments(*(part.sum(axis=0) for part in (n, h, e, h * h, h * e, e * e, clusters)))


def design_effect(sums: Moments) -> NDArray[np.float64]:
    """Variance of the hits between clusters over the binomial variance; 1 where it is unknown.

    The residual of a cluster is h − r e with r = Σh/Σe, so that a wrong law shows in the rate and not as dispersion.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        r = sums.hits / sums.expected
        spread = (sums.hh - 2 * r * sums.he + r * r * sums.ee) * sums.clusters / (sums.clusters - 1)
        binomial = sums.hits * (1 - sums.hits / sums.tests)
        effect = spread / binomial
    return np.where(np.isfinite(effect), effect, 1.0)


def few_clusters(clusters: float, risk: float) -> float:
    """Factor on a design effect that is estimated from so many clusters: (t/z)² of Student's and the normal law.

    ∞ for a single cluster: it says nothing about the others.
    """
    if clusters < 2:
        return np.inf
    return float((special.stdtrit(clusters - 1, 1 - risk) / special.ndtri(1 - risk)) ** 2)

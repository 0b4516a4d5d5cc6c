"""Stated rates: what a law promises, limits of the rates behind counts, and whether they hold.

The green list attains few p-values, so the chance of p ≤ α is the largest attainable p ≤ α, which can be far below α.
The Gumbel score attains all p-values, except for steps of 2^-32 in each draw, which only make p larger (SPEC §3).

Clusters are documents (of fresh keys) or keys (over the same documents). The limits of Clopper and Pearson are taken
at the effective number of tests, tests divided by the design effect (Korn and Graubard, Confidence Intervals for
Proportions with Small Expected Number of Positive Counts Estimated from Survey Data, 1998): with one test a cluster
and a design effect of 1 they are the exact binomial limits.

Whether a rate holds is decided by intervals, over a family fixed beforehand. Lack of data proves nothing: a row that
can decide neither way reads `undecided`.
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.watermark.laws import Law
from scanner.watermark.rule import corrected
from schemas.words import AuditVerdict

THRESHOLDS = tuple(10.0**-k for k in range(1, 9))
"""Thresholds that are judged: every power of ten down to 1e-8."""

DEEP = tuple(10.0**-k for k in range(1, 13))
"""Thresholds for sets of very many p-values, down to where flags of many messages are decided."""

_MOST_REMEMBERED = 1 << 16
_AT_ONCE = 512  # lengths of short texts, whose rows are found together: a search for one takes as long as for many
_BISECTIONS = 100  # enough to come from the largest score down to neighbouring doubles


class CriticalScores(NamedTuple):
    """Scores that pass, and their chance, for U numbers of scored positions and J thresholds.

    critical: float64[U, J], the smallest score with p ≤ α, ∞ where no score has one (whole numbers of a discrete law);
    chance: float64[U, J], P(p ≤ α) as the law has it: the largest attainable p ≤ α, 0 where there is none.
    """

    critical: NDArray[np.float64]
    chance: NDArray[np.float64]


def critical_scores(law: Law, scored: ArrayLike, thresholds: Sequence[float], messages: int = 1) -> CriticalScores:
    """Find, by bisection over scores, the least score that passes each threshold.

    scored: T, int64[U]; thresholds: α[J], between 0 and 1. messages: M; a p-value is corrected for so many, as the best
    of M is.
    """
    t = np.asarray(scored, np.int64)[:, None]
    log10_alpha = np.log10(np.asarray(thresholds, np.float64))[None, :]
    passes = np.broadcast_to(law.largest(t), (len(t), log10_alpha.shape[1]))
    fails = np.zeros(passes.shape)
    for _ in range(_BISECTIONS):
        middle = np.floor((fails + passes) / 2) if law.discrete else (fails + passes) / 2
        passing = corrected(law.log10_p(middle, t), messages) <= log10_alpha
        passes, fails = np.where(passing, middle, passes), np.where(passing, fails, middle)
        if (passes - fails <= (1.0 if law.discrete else np.spacing(passes))).all():
            break
    log10_p = corrected(law.log10_p(passes, t), messages)
    attained = log10_p <= log10_alpha
    return CriticalScores(np.where(attained, passes, np.inf), np.where(attained, 10.0**log10_p, 0.0))


@functools.lru_cache(maxsize=256)
def critical_scores_up_to(law: Law, longest: int, thresholds: tuple[float, ...], messages: int = 1) -> CriticalScores:
    """Those of every number of scored positions 0 … longest, kept: bisection takes longer than a small experiment."""
    return critical_scores(law, np.arange(longest + 1), thresholds, messages)


def chances(law: Law, scored: ArrayLike, thresholds: Sequence[float], messages: int = 1) -> NDArray[np.float64]:
    """P(p ≤ α) as the law has it, without the scores: float64[U, J], as `critical_scores` gives it."""
    if law.discrete:
        return critical_scores(law, scored, thresholds, messages).chance
    t, alpha = np.asarray(scored, np.int64)[:, None], np.asarray(thresholds, np.float64)[None, :]
    return np.where(corrected(law.log10_p(law.largest(t), t), messages) <= np.log10(alpha), alpha, 0.0)


class RowMemory:
    """Rows by number of scored positions, kept, since finding one takes longer than scoring a document."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[int, NDArray[np.float64]]] = {}

    def of(
        self,
        law: Hashable,
        scored: NDArray[np.int64],
        find: Callable[[list[int]], NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """A row of J numbers for each of D documents: float64[D, J]."""
        known = self._known.setdefault(law, {})
        distinct, which = np.unique(scored, return_inverse=True)
        missing = [t for t in distinct.tolist() if t not in known]
        if any(t < _AT_ONCE for t in missing):
            missing = sorted({*missing, *range(_AT_ONCE)} - known.keys())
        if len(known) + len(missing) > _MOST_REMEMBERED:
            known.clear()
            missing = distinct.tolist()
        if missing:
            known.update(zip(missing, find(missing), strict=True))
        if not len(scored):
            return find([])
        return np.array([known[t] for t in distinct.tolist()])[which]


def randomised_p(
    score: NDArray[np.generic], scored: NDArray[np.int64], law: Law, generator: np.random.Generator
) -> NDArray[np.float64]:
    """p-values that are uniform under a law, though its score may be discrete: float64[D].

    P(S' > S) + V · P(S' = S), with V uniform and S' an independent score. For a continuous score it is the plain
    p-value.
    """
    p = 10.0 ** law.log10_p(score, scored)
    if not law.discrete:
        return p
    whole, most = score.astype(np.int64), law.largest(scored)
    above = np.where(whole < most, 10.0 ** law.log10_p(np.minimum(whole + 1, most), scored), 0.0)
    return np.asarray(above + generator.random(len(p)) * (p - above), np.float64)


def uniformity(p: NDArray[np.float64]) -> tuple[float, float]:
    """Kolmogorov and Smirnov's test, one-sided, whether independent p-values are too small to be uniform.

    Returns:
        (distance, p-value): the largest excess of the empirical over the uniform distribution function, and the
        probability of an excess as large.
    """
    from scipy import stats  # takes a second, and only an audit needs it

    found = stats.kstest(p, "uniform", alternative="greater")
    return float(found.statistic), float(found.pvalue)


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
"""Columns of AUDIT_COUNTS: the parts of ClusterSums, in their order."""


class ClusterSums(NamedTuple):
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

    def plus(self, other: "ClusterSums") -> "ClusterSums":
        """Both sums together."""
        return ClusterSums(*(a + b for a, b in zip(self, other, strict=True)))

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """As columns of schemas.audit.AUDIT_COUNTS; counts as int64."""
        whole = {"tests", "hits", "texts"}
        return {
            column: part.astype(np.int64) if column in whole else part
            for column, part in zip(COLUMNS, self, strict=True)
        }

    @classmethod
    def of_columns(cls, columns: Mapping[str, ArrayLike]) -> "ClusterSums":
        """The sum over rows of these columns of AUDIT_COUNTS."""
        return cls(*(np.asarray(columns[column], np.float64) for column in COLUMNS))


def cluster_sums(hits: NDArray[np.generic], tests: NDArray[np.generic], chance: NDArray[np.float64]) -> ClusterSums:
    """Sums over the clusters on the first axis.

    Args:
        hits: h, [D, J].
        tests: n, [D] or [D, J].
        chance: q of one test, float64[D, J].
    """
    h = hits.astype(np.float64)
    n = np.empty(h.shape)
    n[...] = tests.reshape(len(h), -1)
    e = n * chance
    clusters = np.full(h.shape, 1.0)
    return ClusterSums(*(part.sum(axis=0) for part in (n, h, e, h * h, h * e, e * e, clusters)))


def design_effect(sums: ClusterSums) -> NDArray[np.float64]:
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


class Judgement(NamedTuple):
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


def counts(sums: ClusterSums) -> list[Count]:
    """One count per threshold. The thresholds go from large to small.

    sums: over clusters, each [J].
    """
    factors = np.maximum(design_effect(sums), 1.0)
    found, carried = [], 1.0
    for j in range(len(factors)):
        if sums.hits[j] >= ENOUGH_HITS:
            carried = float(factors[j])
        tests, hits, expected, clusters = map(float, (sums.tests[j], sums.hits[j], sums.expected[j], sums.clusters[j]))
        found.append(Count(tests, hits, expected, clusters, max(carried, float(factors[j]))))
    return found


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
    judged = []
    for count, effect, p_value, too_small in zip(family, effects, tails, rejected, strict=True):
        low, high = _limits(count, risk / 2)  # a pair misses on either side
        verdict = _verdict(bool(too_small), high, count.expected)
        judged.append(Judgement(float(p_value), low, high, smallest_excess(count, effect, risk, bound), verdict))
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
    kept = np.flatnonzero(p_values[order] > steps)
    rejected = np.zeros(len(p_values), np.bool_)
    rejected[order[: kept[0] if len(kept) else len(p_values)]] = True
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

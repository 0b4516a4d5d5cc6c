"""Count hits, which are scores that pass thresholds, with their chance by a law, and sum hits over clusters.

The green list attains few p-values, so the chance of p ≤ α is the largest attainable p ≤ α, which can be far below α.
The Gumbel score attains all p-values, except for steps of 2^-32 in each draw. These only make p larger (SPEC §3).

Clusters are documents (of fresh keys) or keys (over the same documents).
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.laws import Law
from scanner.watermark.rule import corrected

THRESHOLDS = tuple(10.0**-k for k in range(1, 9))
"""Thresholds that are judged: every power of ten down to 1e-8."""

LOG10_THRESHOLDS = np.log10(THRESHOLDS)
"""Their logarithms, float64[J]."""

DEEP_THRESHOLDS = tuple(10.0**-k for k in range(1, 13))
"""Thresholds for sets of very many p-values, down to where flags of many messages are decided."""

_MOST_REMEMBERED = 1 << 16

_AT_ONCE = 512  # lengths of short texts, whose rows are found together: a search for one takes as long as for many

_BISECTIONS = 100  # enough to get from the largest score down to neighbouring doubles


class CriticalScores(NamedTuple):
    """Scores that pass, and their chance, for U numbers of scored positions and J thresholds.

    critical: float64[U, J], the smallest score with p ≤ α. ∞ where no score has one. Whole numbers for a discrete law.
    chance: float64[U, J], P(p ≤ α) by the law: the largest attainable p ≤ α. 0 where there is none.
    """

    critical: NDArray[np.float64]
    chance: NDArray[np.float64]


def critical_scores(law: Law, scored: ArrayLike, thresholds: Sequence[float], messages: int = 1) -> CriticalScores:
    """Find, by bisection over scores, the least score that passes each threshold.

    Args:
        law: law of the scores.
        scored: T, int64[U].
        thresholds: α[J], between 0 and 1.
        messages: M. A p-value is corrected for M, as for the best of M messages.
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
    is_attained = log10_p <= log10_alpha
    return CriticalScores(np.where(is_attained, passes, np.inf), np.where(is_attained, 10.0**log10_p, 0.0))


@functools.lru_cache(maxsize=256)
def critical_scores_up_to(law: Law, longest: int, thresholds: tuple[float, ...], messages: int = 1) -> CriticalScores:
    """Return critical scores of every number of scored positions 0 … longest. The result is cached.

    Bisection takes longer than a small experiment.
    """
    return critical_scores(law, np.arange(longest + 1), thresholds, messages)


def chances(law: Law, scored: ArrayLike, thresholds: Sequence[float], messages: int = 1) -> NDArray[np.float64]:
    """Return P(p ≤ α) by the law, without the scores: float64[U, J], as in `critical_scores`."""
    if law.discrete:
        return critical_scores(law, scored, thresholds, messages).chance
    t, alpha = np.asarray(scored, np.int64)[:, None], np.asarray(thresholds, np.float64)[None, :]
    return np.where(corrected(law.log10_p(law.largest(t), t), messages) <= np.log10(alpha), alpha, 0.0)


class RowMemory:
    """A cache of rows by number of scored positions. Finding a row takes longer than scoring a document."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[int, NDArray[np.float64]]] = {}

    def of(
        self, law: Hashable, scored: NDArray[np.int64], find: Callable[[list[int]], NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Return a row of J numbers for each of D documents: float64[D, J]."""
        rows = self._known.setdefault(law, {})
        distinct, inverse = np.unique(scored, return_inverse=True)
        missing = [t for t in distinct.tolist() if t not in rows]
        if any(t < _AT_ONCE for t in missing):
            missing = sorted({*missing, *range(_AT_ONCE)} - rows.keys())
        if len(rows) + len(missing) > _MOST_REMEMBERED:
            rows.clear()
            missing = distinct.tolist()
        if missing:
            rows.update(zip(missing, find(missing), strict=True))
        if not len(scored):
            return find([])
        return np.array([rows[t] for t in distinct.tolist()])[inverse]


def randomised_p(
    score: NDArray[np.generic], scored: NDArray[np.int64], law: Law, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return p-values that are uniform under a law, even if its score is discrete: float64[D].

    P(S' > S) + V · P(S' = S), with V uniform and S' an independent score. For a continuous score it is the plain
    p-value.
    """
    p = 10.0 ** law.log10_p(score, scored)
    if not law.discrete:
        return p
    whole_score, largest_score = score.astype(np.int64), law.largest(scored)
    p_above = np.where(
        whole_score < largest_score, 10.0 ** law.log10_p(np.minimum(whole_score + 1, largest_score), scored), 0.0
    )
    return np.asarray(p_above + generator.random(len(p)) * (p - p_above), np.float64)


SUM_COLUMNS = ("tests", "hits", "expected", "hits_squared", "hits_times_expected", "expected_squared", "texts")
"""Columns of AUDIT_COUNTS: the parts of ClusterSums, in their order."""


class ClusterSums(NamedTuple):
    """Sums over clusters that make up a design effect, each float64 of one shape. Parts of a sum can be added.

    tests: Σ n.
    hits: Σ h.
    expected: Σ e = Σ n q.
    hh, he, ee: Σ h², Σ he, Σ e².
    clusters: number of clusters.
    """

    tests: NDArray[np.float64]
    hits: NDArray[np.float64]
    expected: NDArray[np.float64]
    hh: NDArray[np.float64]
    he: NDArray[np.float64]
    ee: NDArray[np.float64]
    clusters: NDArray[np.float64]

    def plus(self, other: "ClusterSums") -> "ClusterSums":
        """Return both sums together."""
        return ClusterSums(*(a + b for a, b in zip(self, other, strict=True)))

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return the sums as columns of schemas.audit.AUDIT_COUNTS. Counts are int64."""
        count_columns = {"tests", "hits", "texts"}
        return {
            column: part.astype(np.int64) if column in count_columns else part
            for column, part in zip(SUM_COLUMNS, self, strict=True)
        }

    @classmethod
    def of_columns(cls, columns: Mapping[str, ArrayLike]) -> "ClusterSums":
        """Return the sum over rows of these columns of AUDIT_COUNTS."""
        return cls(*(np.asarray(columns[column], np.float64) for column in SUM_COLUMNS))


def cluster_sums(hits: NDArray[np.generic], tests: NDArray[np.generic], chance: NDArray[np.float64]) -> ClusterSums:
    """Sum over the clusters on the first axis.

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

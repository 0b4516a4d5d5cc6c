"""What a law promises: the p-values that a score can attain, and how often they are at or below a threshold.

The green list attains few p-values, so the chance of p ≤ α is the largest attainable p ≤ α, which can be far below α.
The Gumbel score attains all of them but for steps of 2^-32 in each draw, which only make p larger (SPEC §3).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark import log10_any_of, log10_greenlist, log10_gumbel, log10_z

THRESHOLDS = tuple(10.0**-k for k in range(1, 9))
"""What is judged: every power of ten down to 1e-8."""

_LARGEST_TERM = 22.25  # no Gumbel term is larger: −ln(1−r) ≤ 32 ln 2
_MOST_REMEMBERED = 1 << 16
_BISECTIONS = 100  # enough to come from 22 T down to neighbouring doubles


@dataclass(frozen=True)
class Law:
    """How a score S of T scored positions becomes a p-value.

    name: exact or z; gamma: share of green tokens, None for Gumbel; log10_p: of arrays S and T.
    """

    name: str
    gamma: Fraction | None
    log10_p: Callable[[ArrayLike, ArrayLike], NDArray[np.float64]]


@functools.cache
def exact_law(gamma: Fraction | None) -> Law:
    """The law of SPEC §3: of the green list with that γ, or of Gumbel (None)."""
    if gamma is None:
        return Law("exact", None, log10_gumbel)
    return Law("exact", gamma, lambda score, scored: log10_greenlist(score, scored, gamma))


def z_law(gamma: Fraction | None) -> Law:
    """The Z-test, which takes scores for normal: kept to show where it fails (paper, Z-Test)."""
    mean, variance = (1.0, 1.0) if gamma is None else (float(gamma), float(gamma * (1 - gamma)))
    return Law("z", gamma, lambda score, scored: log10_z(score, scored, mean, variance))


class Levels(NamedTuple):
    """For U numbers of scored positions and J thresholds: which scores pass, and with what chance.

    critical: float64[U, J], the smallest score with p ≤ α, ∞ where no score has one (whole numbers for the green list);
    chance: float64[U, J], P(p ≤ α) as the law has it: the largest attainable p ≤ α, 0 where there is none.
    """

    critical: NDArray[np.float64]
    chance: NDArray[np.float64]


def levels(law: Law, scored: ArrayLike, thresholds: Sequence[float], messages: int = 1) -> Levels:
    """Find, by bisection over scores, what passes each threshold.

    Args:
        law: gives p-values.
        scored: T, int64[U].
        thresholds: α[J], between 0 and 1.
        messages: M; a p-value is corrected for so many, as the best of M is.
    """
    t = np.asarray(scored, np.int64)[:, None]
    log10_alpha = np.log10(np.asarray(thresholds, np.float64))[None, :]
    top = np.broadcast_to(t if law.gamma is not None else t * _LARGEST_TERM, (len(t), log10_alpha.shape[1]))
    fails, passes = np.full(top.shape, 0.0), top.astype(np.float64)
    for _ in range(_BISECTIONS):
        middle = (fails + passes) / 2 if law.gamma is None else np.floor((fails + passes) / 2)
        passing = _corrected(law, middle, t, messages) <= log10_alpha
        passes, fails = np.where(passing, middle, passes), np.where(passing, fails, middle)
        if (passes - fails <= (np.spacing(passes) if law.gamma is None else 1.0)).all():
            break
    log10_p = _corrected(law, passes, t, messages)
    attained = log10_p <= log10_alpha
    return Levels(np.where(attained, passes, np.inf), np.where(attained, 10.0**log10_p, 0.0))


@functools.lru_cache(maxsize=256)
def levels_up_to(law: Law, longest: int, thresholds: tuple[float, ...], messages: int = 1) -> Levels:
    """Levels of every number of scored positions 0 … longest, kept: bisection takes longer than a small experiment."""
    return levels(law, np.arange(longest + 1), thresholds, messages)


def chances(law: Law, scored: ArrayLike, thresholds: Sequence[float], messages: int = 1) -> NDArray[np.float64]:
    """P(p ≤ α) as the law has it, without the scores: float64[U, J], as `levels` gives it."""
    if law.gamma is not None:
        return levels(law, scored, thresholds, messages).chance
    t, alpha = np.asarray(scored, np.int64)[:, None], np.asarray(thresholds, np.float64)[None, :]
    top = np.asarray(t * _LARGEST_TERM, np.float64)
    return np.where(_corrected(law, top, t, messages) <= np.log10(alpha), alpha, 0.0)


class Remembered:
    """Rows that are found by number of scored positions: finding one anew takes longer than a document's scores."""

    def __init__(self) -> None:
        self._known: dict[tuple[Fraction | None, int], dict[int, NDArray[np.float64]]] = {}

    def of(
        self,
        law: tuple[Fraction | None, int],
        scored: NDArray[np.int64],
        find: Callable[[list[int]], NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """A row of J numbers for each of D documents: float64[D, J]."""
        known = self._known.setdefault(law, {})
        distinct, which = np.unique(scored, return_inverse=True)
        missing = [t for t in distinct.tolist() if t not in known]
        if len(known) + len(missing) > _MOST_REMEMBERED:
            known.clear()
            missing = distinct.tolist()
        if missing:
            known.update(zip(missing, find(missing), strict=True))
        return np.array([known[t] for t in distinct.tolist()]).reshape(-1, len(THRESHOLDS))[which]


def _corrected(law: Law, score: NDArray[np.float64], scored: NDArray[np.int64], messages: int) -> NDArray[np.float64]:
    log10_p = law.log10_p(score, scored)
    return log10_p if messages == 1 else log10_any_of(log10_p, messages)


def randomised_p(
    score: NDArray[np.generic], scored: NDArray[np.int64], gamma: Fraction | None, generator: np.random.Generator
) -> NDArray[np.float64]:
    """p-values that are uniform under the exact law, though the green list's score is discrete: float64[D].

    P(S' > S) + V · P(S' = S) with V uniform, S' an independent score; the plain p-value for Gumbel (None).
    """
    law = exact_law(gamma)
    p = 10.0 ** law.log10_p(score, scored)
    if gamma is None:
        return p
    whole = score.astype(np.int64)
    above = np.where(whole < scored, 10.0 ** law.log10_p(np.minimum(whole + 1, scored), scored), 0.0)
    return np.asarray(above + generator.random(len(p)) * (p - above), np.float64)


def uniformity(p: NDArray[np.float64]) -> tuple[float, float]:
    """Kolmogorov and Smirnov's test, one-sided, whether independent p-values are too small to be uniform.

    Returns:
        (distance, p-value): the largest excess of the empirical over the uniform distribution function, and the
        probability of one as large.
    """
    from scipy import stats  # type: ignore[import-untyped]  # takes a second, and only an audit needs it

    found = stats.kstest(p, "uniform", alternative="greater")
    return float(found.statistic), float(found.pvalue)

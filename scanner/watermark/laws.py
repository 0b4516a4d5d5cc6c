"""The laws of the scores under H0, as objects: what a format states once and everything else asks (SPEC §3)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark import pvalues
from scanner.watermark.weighted_gamma import log10_weighted_gamma

_LOG10_E = -0.4342944819032518  # of e^-1
_LN2 = 0.6931471805599453
_LARGEST_DRAW = 22.25
"""Largest term −ln(1−w/2^32), rounded up: 32 ln 2 = 22.18."""


GREENER = (0.2, 0.45, 0.75)
"""Shares of the positions not green by chance that a mark makes green: weak, middling and strong marks."""

RATES = (0.8, 0.6, 0.4)
"""Rates of the terms of marked text, which have rate 1 by chance: one rate for each strength of mark."""


def _column(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)[:, None]


class Law(Protocol):
    """The law of one message's score over T scored positions of text without its mark.

    Laws are values: equal laws compare equal and hash alike. A law that is not exact errs towards larger p-values. The
    law of a key of b bits gives no p-value below 2^-b (`Floored`), since nothing is exact beyond the key's entropy.
    """

    @property
    def discrete(self) -> bool:
        """Whether scores are whole numbers. If not, every p-value counts as attainable."""

    @property
    def mean(self) -> float:
        """Mean of the score of one position."""

    @property
    def variance(self) -> float:
        """Variance of the score of one position."""

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10 P(a score at least this large) of scores S over T positions, at most 0; 0 where T = 0."""

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """A score that none over T positions exceeds."""

    def __hash__(self) -> int:
        """Hash of the law's values."""


@runtime_checkable
class TellsRatios(Protocol):
    """A law that tells how much likelier a score is under marks of some strengths, which are fixed."""

    def log_ratios(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Natural logarithm of the likelihood of scores S over T positions under each strength, over that under H0.

        float64[D, S]; the mean of each ratio under H0 is 1 at most; 0 where T = 0.
        """


@dataclass(frozen=True)
class Binomial:
    """The number of successes, each of chance γ: the green list's score (paper, Kirchenbauer et al.)."""

    gamma: Fraction
    discrete: ClassVar[bool] = True

    @property
    def mean(self) -> float:
        """γ."""
        return float(self.gamma)

    @property
    def variance(self) -> float:
        """γ(1 − γ)."""
        return float(self.gamma * (1 - self.gamma))

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10 I_γ(S, T−S+1)."""
        return pvalues.log10_greenlist(score, scored, self.gamma)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Every position."""
        return np.asarray(scored, np.float64)

    def log_ratios(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """S ln(q/γ) + (T−S) ln((1−q)/(1−γ)), where marks make parts q of all positions green, γ + (1−γ)·GREENER."""
        s, t, gamma = _column(score), _column(scored), self.mean
        green = gamma + (1.0 - gamma) * np.array(GREENER)
        return np.asarray(s * np.log(green / gamma) + (t - s) * np.log((1.0 - green) / (1.0 - gamma)), np.float64)


@dataclass(frozen=True)
class Gamma:
    """A sum of exponential variables of mean 1: the Gumbel score (paper, Aaronson et al.)."""

    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = 1.0
    variance: ClassVar[float] = 1.0

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10 Γ(T, S)/Γ(T)."""
        return pvalues.log10_gumbel(score, scored)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """The largest term times T."""
        return np.asarray(scored, np.float64) * _LARGEST_DRAW

    def log_ratios(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """T ln λ + (1−λ)·S, where marks make terms exponential of rate λ, each of RATES."""
        rates = np.array(RATES)
        return np.asarray(_column(scored) * np.log(rates) + (1.0 - rates) * _column(score), np.float64)


@dataclass(frozen=True)
class WeightedGamma:
    """(1−a)·X + a·Y of two such gamma sums: the score of two keys, either of which may have marked a token (vLLM)."""

    weight: float
    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = 1.0

    @property
    def variance(self) -> float:
        """(1−a)² + a²."""
        return (1.0 - self.weight) ** 2 + self.weight**2

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10 p by a series of positive terms."""
        return log10_weighted_gamma(score, scored, self.weight)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """The largest term times T."""
        return np.asarray(scored, np.float64) * _LARGEST_DRAW


@dataclass(frozen=True)
class Surprise:
    """−ln of the p-value that a text's own law gives a sum of `layers` bits a position: exponential, of mean 1 in all.

    The law of the sum depends on more of the text than its scored positions. The format computes it and gives −ln p as
    score.
    """

    layers: int
    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = 0.0
    variance: ClassVar[float] = 0.0

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """−S/ln 10."""
        s, t = np.broadcast_arrays(np.asarray(score, np.float64), np.asarray(scored, np.float64))
        out: NDArray[np.float64] = np.where(t > 0, np.minimum(s * _LOG10_E, 0.0), 0.0)
        return out

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Score of a text in which every bit is 1."""
        return np.asarray(scored, np.float64) * (self.layers * _LN2)


@dataclass(frozen=True)
class NegativeGamma:
    """Minus a gamma sum: the law of the unweighted score Σ ln r (paper, Simplified Score Function)."""

    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = -1.0
    variance: ClassVar[float] = 1.0

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10 γ(T, −S)/Γ(T)."""
        return pvalues.log10_gumbel_log(score, scored)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Score of a text in which every r is 1."""
        return np.zeros(np.shape(scored))


@dataclass(frozen=True)
class Normal:
    """The Z-test, which takes another law's score for normal; it is kept to show where it fails (paper, Z-Test)."""

    of: Law

    @property
    def discrete(self) -> bool:
        """Whether the underlying law is discrete, whatever the test takes its score for."""
        return self.of.discrete

    @property
    def mean(self) -> float:
        """The underlying law's mean."""
        return self.of.mean

    @property
    def variance(self) -> float:
        """The underlying law's variance."""
        return self.of.variance

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10(1 − Φ(Z)), Z = (S − Tμ)/(σ√T)."""
        return pvalues.log10_z(score, scored, self.mean, self.variance)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """The underlying law's largest score."""
        return self.of.largest(scored)


@dataclass(frozen=True)
class Floored:
    """A law for keys of `bits` bits: no p-value is below 2^-bits, since the p-value holds over the draw of the key."""

    of: Law
    bits: int

    @property
    def discrete(self) -> bool:
        """Whether the underlying law is discrete."""
        return self.of.discrete

    @property
    def mean(self) -> float:
        """The underlying law's mean."""
        return self.of.mean

    @property
    def variance(self) -> float:
        """The underlying law's variance."""
        return self.of.variance

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """The underlying law's value, or −bits·log10 2 where it is smaller."""
        return np.asarray(np.maximum(self.of.log10_p(score, scored), -self.bits * np.log10(2.0)), np.float64)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """The underlying law's largest score."""
        return self.of.largest(scored)


def least_score(law: Law, scored: NDArray[np.int64], log10_p: float) -> NDArray[np.float64]:
    """The least score whose p is 10^log10_p or less, float64[D].

    Where no score has such a p, a number that no score over T positions reaches. Where scores are real numbers, the
    result is smaller by 2^-40 of the largest score, so that every score below it can be skipped without a further look.

    Args:
        law: the score's law.
        scored: T, int64[D].
        log10_p: below 0.
    """
    low, high = np.zeros(len(scored)), law.largest(scored) + 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        enough = law.log10_p(np.floor(middle) if law.discrete else middle, scored) <= log10_p
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.floor(low) + 1.0 if law.discrete else low


_HALVINGS = 40

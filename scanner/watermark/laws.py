"""The laws of the scores under H0, as objects: what a format states once and everything else asks (SPEC §3)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark import pvalues
from scanner.watermark.weighted_gamma import log10_weighted_gamma

_LOG10_E = -0.4342944819032518  # of e^-1
_LN2 = 0.6931471805599453
_LARGEST_DRAW = 22.25
"""No term −ln(1−w/2^32) is larger: at most 32 ln 2 = 22.18."""


class Law(Protocol):
    """The law of one message's score over T scored positions, if nothing was marked for it.

    Laws are values: equal laws compare equal and hash alike. A law that is not exact errs to larger p-values, and one
    of a key of b bits gives none below 2^-b (`Floored`): nothing is exact beyond the key's entropy.
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
        """Of its values."""


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
        """The largest term, T times."""
        return np.asarray(scored, np.float64) * _LARGEST_DRAW


@dataclass(frozen=True)
class WeightedGamma:
    """(1−a)·X + a·Y of two such sums: the score of two keys, of which either may have marked a token (vLLM)."""

    weight: float
    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = 1.0

    @property
    def variance(self) -> float:
        """(1−a)² + a²."""
        return (1.0 - self.weight) ** 2 + self.weight**2

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """By a positive series."""
        return log10_weighted_gamma(score, scored, self.weight)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """The largest term, T times."""
        return np.asarray(scored, np.float64) * _LARGEST_DRAW


@dataclass(frozen=True)
class Surprise:
    """−ln of the p-value that a text's own law gives a sum of `layers` bits a position: exponential, of mean 1 in all.

    The law of the sum depends on more of the text than its scored positions, so that the format itself asks it.
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
        """Where every bit is 1."""
        return np.asarray(scored, np.float64) * (self.layers * _LN2)


@dataclass(frozen=True)
class NegativeGamma:
    """Minus such a sum: the unweighted score Σ ln r (paper, Simplified Score Function)."""

    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = -1.0
    variance: ClassVar[float] = 1.0

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10 γ(T, −S)/Γ(T)."""
        return pvalues.log10_gumbel_log(score, scored)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Where every r is 1."""
        return np.zeros(np.shape(scored))


@dataclass(frozen=True)
class Normal:
    """The Z-test of another law's score, which takes it for normal: kept to show where it fails (paper, Z-Test)."""

    of: Law

    @property
    def discrete(self) -> bool:
        """That of the law, whatever the test takes its score for."""
        return self.of.discrete

    @property
    def mean(self) -> float:
        """That of the law."""
        return self.of.mean

    @property
    def variance(self) -> float:
        """That of the law."""
        return self.of.variance

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """log10(1 − Φ(Z)), Z = (S − Tμ)/(σ√T)."""
        return pvalues.log10_z(score, scored, self.mean, self.variance)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """That of the law."""
        return self.of.largest(scored)


@dataclass(frozen=True)
class Floored:
    """A law under keys of so many bits: no p-value is below 2^-bits, over whose draw it holds."""

    of: Law
    bits: int

    @property
    def discrete(self) -> bool:
        """That of the law."""
        return self.of.discrete

    @property
    def mean(self) -> float:
        """That of the law."""
        return self.of.mean

    @property
    def variance(self) -> float:
        """That of the law."""
        return self.of.variance

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """That of the law, or −bits·log10 2 where it is smaller."""
        return np.asarray(np.maximum(self.of.log10_p(score, scored), -self.bits * np.log10(2.0)), np.float64)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """That of the law."""
        return self.of.largest(scored)


def least_score(law: Law, scored: NDArray[np.int64], log10_p: float) -> NDArray[np.float64]:
    """The least score whose p is 10^log10_p or less, float64[D]; one over T that no score reaches where none is.

    Of scores that are no whole numbers it is a little less, by 2^-40 of the largest: what is smaller can be left out
    unseen.

    Args:
        law: of the score.
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

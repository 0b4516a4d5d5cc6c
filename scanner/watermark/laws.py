"""Compute the laws of scores under H0. A format states its law once, and all other code asks it (SPEC §3).

**A weighted sum of layers**, each an independent draw of one law on 0 … T, is the score of SynthID. The laws are tilted
so that the mean of the sum is the score. One transform for each layer then gives the law of the sum with full
precision, however small the tail. The normal law, of the same variance or a larger one, is a thousand times as fast.

**(1−a)·Γ(T) + a·Γ(T)** is a weighted sum of two independent sums of exponential variables. Only one of them is the
mark's. An exponential of mean 1−a is a sum of exponentials of mean a < 1/2. Their number is geometric, of success q =
a/(1−a). So

    P(S ≥ s) = Σ_{N ≥ T} C(N−1, T−1) q^T (1−q)^(N−T) · Q(T+N, s/a),   Q(k, x) = Γ(k, x)/Γ(k).

All terms are positive, so nothing cancels. They are log-concave in N, so the omitted rest at either end is less than a
geometric series. This series is added, so p is never too small.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark import pvalues
from scanner.watermark.kernel import kernel
from scanner.watermark.pvalues import LN10, _log_binomial, _log_poisson, _log_upper_gamma, log10_z

_LOG10_E = -0.4342944819032518  # of e^-1
_LN2 = 0.6931471805599453
_LARGEST_DRAW = 22.25
"""Largest term −ln(1−w/2^32), rounded up: 32 ln 2 = 22.18."""


class Law(Protocol):
    """The law of one message's score over T scored positions of text without its mark.

    Laws are values: equal laws compare equal and hash alike. A law that is not exact errs towards larger p-values. The
    law of a key of b bits gives no p-value below 2^-b (`Floored`), because nothing is exact beyond the key's entropy.
    """

    @property
    def discrete(self) -> bool:
        """Return whether scores are whole numbers. If not, every p-value counts as attainable."""

    @property
    def mean(self) -> float:
        """Return the mean of the score of one position."""

    @property
    def variance(self) -> float:
        """Return the variance of the score of one position."""

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Compute log10 P(a score at least this large) of scores S over T positions, at most 0. 0 where T = 0."""

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return a score that no text of T positions exceeds."""

    def __hash__(self) -> int:
        """Hash the law's values."""


@dataclass(frozen=True)
class Binomial:
    """The number of successes, each of chance γ: the green list's score (paper, Kirchenbauer et al.)."""

    gamma: Fraction
    discrete: ClassVar[bool] = True

    @property
    def mean(self) -> float:
        """Return γ."""
        return float(self.gamma)

    @property
    def variance(self) -> float:
        """Return γ(1 − γ)."""
        return float(self.gamma * (1 - self.gamma))

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Compute log10 I_γ(S, T−S+1)."""
        return pvalues.log10_greenlist(score, scored, self.gamma)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return T, the score if every position succeeds."""
        return np.asarray(scored, np.float64)


@dataclass(frozen=True)
class Gamma:
    """A sum of exponential variables of mean 1: the Gumbel score (paper, Aaronson et al.)."""

    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = 1.0
    variance: ClassVar[float] = 1.0

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Compute log10 Γ(T, S)/Γ(T)."""
        return pvalues.log10_gumbel(score, scored)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return the largest term times T."""
        return np.asarray(scored, np.float64) * _LARGEST_DRAW


@dataclass(frozen=True)
class WeightedGamma:
    """(1−a)·X + a·Y of two such gamma sums: the score of two keys, if either may have marked a token (vLLM)."""

    weight: float
    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = 1.0

    @property
    def variance(self) -> float:
        """Return (1−a)² + a²."""
        return (1.0 - self.weight) ** 2 + self.weight**2

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Compute log10 p by a series of positive terms."""
        return log10_weighted_gamma(score, scored, self.weight)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return the largest term times T."""
        return np.asarray(scored, np.float64) * _LARGEST_DRAW


@dataclass(frozen=True)
class _MinusLogP:
    """Scores that are −ln of a p-value, which the format computed from more than one number of a text."""

    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = 0.0
    variance: ClassVar[float] = 0.0

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        s, t = np.broadcast_arrays(np.asarray(score, np.float64), np.asarray(scored, np.float64))
        out: NDArray[np.float64] = np.where(t > 0, np.minimum(s * _LOG10_E, 0.0), 0.0)
        return out


@dataclass(frozen=True)
class SeveralWeights(_MinusLogP):
    """−ln of the smallest p of (1−a)·X + a·Y over several weights a. Each p is divided by the share of its weight.

    X and Y are the sums of two keys, either of which may have marked a token (vLLM). p is never too small, because the
    shares sum to 1: P(p_a ≤ x · share_a for some a) ≤ Σ x · share_a = x.

    weights: each weight with its share.
    """

    weights: tuple[tuple[float, float], ...]

    def score(self, first: ArrayLike, second: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Compute the score of sums X and Y over T positions: float64 of their common shape."""
        x, y, log_p = np.asarray(first, np.float64), np.asarray(second, np.float64), []
        for weight, share in self.weights:
            log_p.append(log10_weighted_gamma((1.0 - weight) * x + weight * y, scored, weight) - math.log10(share))
        return np.asarray(np.maximum(np.min(log_p, axis=0) / _LOG10_E, 0.0), np.float64)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return the score of the largest terms."""
        largest_sum = np.asarray(scored, np.float64) * _LARGEST_DRAW
        return self.score(largest_sum, largest_sum, scored)


@dataclass(frozen=True)
class Surprise(_MinusLogP):
    """−ln of the p-value that a text's own law gives a sum of `layers` bits a position.

    Over all texts: exponential, mean 1.

    The law of the sum depends on more of the text than its scored positions.
    """

    layers: int

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return the score of a text in which every bit is 1."""
        return np.asarray(scored, np.float64) * (self.layers * _LN2)


@dataclass(frozen=True)
class NegativeGamma:
    """Minus a gamma sum: the law of the unweighted score Σ ln r (paper, Simplified Score Function)."""

    discrete: ClassVar[bool] = False
    mean: ClassVar[float] = -1.0
    variance: ClassVar[float] = 1.0

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Compute log10 γ(T, −S)/Γ(T)."""
        return pvalues.log10_gumbel_log(score, scored)

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return the score of a text in which every r is 1."""
        return np.zeros(np.shape(scored))


@dataclass(frozen=True)
class DerivedLaw:
    """A law whose scores are those of another, and whose p-values differ."""

    of: Law

    @property
    def discrete(self) -> bool:
        """Return whether the underlying law is discrete."""
        return self.of.discrete

    @property
    def mean(self) -> float:
        """Return the underlying law's mean."""
        return self.of.mean

    @property
    def variance(self) -> float:
        """Return the underlying law's variance."""
        return self.of.variance

    def largest(self, scored: ArrayLike) -> NDArray[np.float64]:
        """Return the underlying law's largest score."""
        return self.of.largest(scored)


@dataclass(frozen=True)
class Normal(DerivedLaw):
    """The Z-test, which treats another law's score as normal. It is kept to show where it fails (paper, Z-Test)."""

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Compute log10(1 − Φ(Z)), Z = (S − Tμ)/(σ√T)."""
        return pvalues.log10_z(score, scored, self.mean, self.variance)


@dataclass(frozen=True)
class Floored(DerivedLaw):
    """A law for keys of `bits` bits.

    No p-value is below 2^-bits, because the p-value holds over the draw of the key. For example, 32 bits give 2.3e-10.
    """

    bits: int

    def log10_p(self, score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
        """Return the underlying law's value, or −bits·log10 2 where it is smaller."""
        return np.asarray(np.maximum(self.of.log10_p(score, scored), -self.bits * np.log10(2.0)), np.float64)


def least_score(law: Law, scored: NDArray[np.int64], log10_p: float) -> NDArray[np.float64]:
    """Find the least score with a p of 10^log10_p or less, by bisection.

    Args:
        law: the law of the scores.
        scored: T, int64[D].
        log10_p: below 0.

    Returns:
        float64[D]. If no score has such a p, a number that no score over T positions reaches. If scores are real
        numbers, the result is smaller by 2^-40 of the largest score, so that every score below it can be skipped.
    """
    low, high = np.zeros(len(scored)), law.largest(scored) + 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        is_enough = law.log10_p(np.floor(middle) if law.discrete else middle, scored) <= log10_p
        low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
    return np.floor(low) + 1.0 if law.discrete else low


_HALVINGS = 40


_WIDTH = 12.0  # standard deviations on either side that a transform holds; less than 1e-30 of the law is beyond
_HALVINGS_OF_A_TILT = 200


def log_tail(score: int, weights: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """Compute ln P(Σ v·C ≥ score), each C an independent draw of the law `chances`.

    The relative error of p is below 1e-9.

    Args:
        score: the sum to reach.
        weights: v > 0 of each layer, int64[m].
        chances: P(C = 0), P(C = 1), …: float64[T+1].
    """
    values = np.flatnonzero(chances)
    log_chance = np.log(chances[values])
    if score > int(weights.sum()) * int(values[-1]):
        return -math.inf
    if score <= int(weights.sum()) * int(values[0]):
        return 0.0
    if score == int(weights.sum()) * int(values[-1]):
        return len(weights) * float(log_chance[-1])
    tilt = _tilt_of_layers(score, weights, values, log_chance)
    if tilt <= 0.0:  # the score is below the mean
        return 0.0
    log_moments, tilted_laws = _tilted(tilt, weights, values, log_chance)
    means = (tilted_laws * values).sum(axis=1)
    spread = math.sqrt(float((weights**2 * ((tilted_laws * values**2).sum(axis=1) - means**2)).sum()))
    from scipy.fft import next_fast_len  # type: ignore[import-untyped] # late: half a second, for few laws

    size = next_fast_len(int(2.0 * _WIDTH * max(spread, 1.0)) + 2 * int(weights.max()), real=True)
    transform = np.ones(size // 2 + 1, np.complex128)
    for weight, law in zip(weights, tilted_laws, strict=True):
        wrapped_law = np.zeros(size)
        np.add.at(wrapped_law, weight * values % size, law)  # it wraps around, but only one turn has any weight
        transform *= np.fft.rfft(wrapped_law)
    excess = np.arange(size // 2)
    # clipped, because rounding makes some of the smallest chances negative
    sums = np.clip(np.fft.irfft(transform, size)[(score + excess) % size], 0.0, None)
    return float(log_moments.sum()) - tilt * score + math.log(float((sums * np.exp(-tilt * excess)).sum()))


def _tilted(
    tilt: float, weights: NDArray[np.int64], values: NDArray[np.int64], log_chance: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute ln E e^(tilt·v·C) of each layer, float64[m], and the layer's law tilted by it, float64[m, values]."""
    powers = log_chance + tilt * weights[:, None] * values
    highest = powers.max(axis=1, keepdims=True)
    terms = np.exp(powers - highest)
    sums = terms.sum(axis=1, keepdims=True)
    return (np.log(sums) + highest)[:, 0], terms / sums


def _tilt_of_layers(
    score: int, weights: NDArray[np.int64], values: NDArray[np.int64], log_chance: NDArray[np.float64]
) -> float:
    """Find the tilt whose mean is the score, by bisection. 0 if the mean is above the score without a tilt."""

    def mean(tilt: float) -> float:
        _, tilted_laws = _tilted(tilt, weights, values, log_chance)
        return float((weights * (tilted_laws * values).sum(axis=1)).sum())

    low, high = 0.0, 1e-6
    if mean(0.0) >= score:
        return 0.0
    while mean(high) < score and high < 1e3:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS_OF_A_TILT):
        middle = (low + high) / 2.0
        low, high = (middle, high) if mean(middle) < score else (low, middle)
        if high - low < 1e-9 * high:
            break
    return low


def log10_normal(
    score: NDArray[np.int64], scored: NDArray[np.int64], weights: NDArray[np.int64], share: float, spread: float
) -> NDArray[np.float64]:
    """Compute log10 p of the sum by the normal law, where each bit is 1 with chance `share`: float64[D] for int64[D].

    spread: the variance relative to that of independent bits, because the bits of one text are not quite independent.
    """
    variance = spread * share * (1.0 - share) * float((weights**2).sum())
    return log10_z(score - 1, scored, share * float(weights.sum()), variance)


SMALLEST_WEIGHT = 0.01
"""Smallest weight above 0 of the lighter sum.

The series has some 10·√T/a terms (T = 256: 5 µs at 0.1, 0.4 ms at this weight).
"""

_NEGLIGIBLE = 1e-17  # share of the sum; from such a term on, the rest is bounded instead of added
_TERMS_A_CHECK = 32  # terms between two tests for the end


def checked_weight(weight: float) -> float:
    """Return the weight, checked.

    Raises:
        ValueError: the weight is not allowed. The message says which weights are.
    """
    lighter = min(weight, 1.0 - weight)
    if not (lighter == 0.0 or SMALLEST_WEIGHT <= lighter <= 0.5):
        raise ValueError(f"is not allowed; give 0, 1, or {SMALLEST_WEIGHT} to {1.0 - SMALLEST_WEIGHT}")
    return weight


def log10_weighted_gamma(score: ArrayLike, scored: ArrayLike, weight: float) -> NDArray[np.float64]:
    """Compute log10 P((1−a)·X + a·Y ≥ S) of independent X and Y, each a sum of T exponential variables.

    Args:
        score: S ≥ 0, reals.
        scored: T, integers. T = 0 gives 0.
        weight: a, 0 to 1.

    Returns:
        float64 of their common shape, with a relative error of the log10 below 1e-11.

    Raises:
        ValueError: the weight is neither 0 nor 1, and nearer to one of these than SMALLEST_WEIGHT.
    """
    checked_weight(weight)
    s, t = np.broadcast_arrays(np.asarray(score, np.float64), np.asarray(scored, np.float64))
    return _log10_p_each(s.flatten(), t.flatten(), min(weight, 1.0 - weight)).reshape(s.shape)


@kernel
def _tilt_of_sums(s: float, t: float, a: float) -> float:
    """Return the θ that gives S the mean s when every exponential is tilted by e^(θ·its share of S)."""
    r, ab = s / t, a * (1.0 - a)
    half, root = r - 2.0 * ab, math.sqrt((r * (1.0 - 2.0 * a)) ** 2 + 4.0 * ab * ab)
    return 2.0 * (r - 1.0) / (half + root) if half > 0.0 else (half - root) / (2.0 * r * ab)


@kernel
def _first_term(s: float, t: float, a: float) -> float:
    """Return the N at which the series begins: twelve standard deviations below its mean, given S = s."""
    tilt = _tilt_of_sums(s, t, a)
    q = a / (1.0 - a) * (1.0 - tilt * (1.0 - a)) / (1.0 - tilt * a)
    variance = t * (1.0 - q) / (q * q)
    summands = t / q + t
    return max(t, math.floor(t / q - 12.0 * math.sqrt(variance * summands / (variance + summands))))


@kernel
def _log_series(s: float, t: float, a: float) -> float:
    """Compute ln P(S ≥ s) for 0 < a < 1/2, s > 0."""
    q, x = a / (1.0 - a), s / a
    first = _first_term(s, t, a)
    n, log_tail = first, _log_upper_gamma(t + first, x)
    log_scale = math.log(t / n) + _log_binomial(t, n, q) + log_tail
    # in units of the first term: `power` of the negative binomial, `tail` of Q, `step` by which Q grows
    power, tail, step = 1.0, 1.0, math.exp(_log_poisson(t + n, x) - log_tail)
    total, term, last = 1.0, 1.0, 1.0
    while term >= last or term > _NEGLIGIBLE * total:
        for _ in range(_TERMS_A_CHECK):
            last = term
            power *= (1.0 - q) * n / (n - t + 1.0)
            tail += step
            step *= x / (t + n + 1.0)
            n += 1.0
            term = power * tail
            total += term
            if n == first + 1.0 and first > t:
                total += 1.0 / (term - 1.0) if term > 1.0 else math.inf
        log_scale += math.log(total)
        power, step, tail = power * tail / total, step / tail, 1.0
        term, last, total = term / total, last / total, 1.0
    return min(0.0, log_scale + math.log1p(term * term / (last - term)))


@kernel
def _log10_p_each(s: NDArray[np.float64], t: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        if s[i] <= 1e-9 * t[i]:  # p is 1 to the last bit
            continue
        if a == 0.0:
            out[i] = _log_upper_gamma(t[i], s[i]) / LN10
        elif a == 0.5:
            out[i] = _log_upper_gamma(2.0 * t[i], 2.0 * s[i]) / LN10
        else:
            out[i] = _log_series(s[i], t[i], a) / LN10
    return out

"""Compute the laws of scores under H0, in logarithms, and the corrections for many messages and keys (SPEC §3).

A tail is the probability of its first outcome times a sum of ratios. All are positive, so nothing cancels. The smaller
of the two tails is summed, and the other one is its complement, so the logarithm keeps its relative precision at both
ends. The probability of one outcome comes from Loader's saddle-point expansion (C. Loader, Fast and Accurate
Computation of Binomial Probabilities, 2000). It computes the deviance without cancellation where the outcome is near
its mean.

Scores S and numbers of scored positions T have any shapes that fit each other, and results are float64 of their common
shape. T = 0 gives 0.
"""

import functools
import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.kernel import kernel

LONGEST_TABULATED = 255
"""Number of scored positions up to which the green list's law is tabulated, half a megabyte for each γ."""

LN10 = math.log(10.0)

# _stirling_error of 1 … 15
_SMALL_STIRLING_ERRORS = np.array([
    0.08106146679532733, 0.041340695955409235, 0.02767792568499816, 0.020790672103765395, 0.016644691189821703,
    0.013876128823070655, 0.011896709945890205, 0.010411265261975, 0.00925546218271256, 0.008330563433362581,
    0.00757367548795207, 0.006942840107212245, 0.00640899418800478, 0.0059513701127626994, 0.005554733551961899,
])  # fmt: skip


def log10_greenlist(score: ArrayLike, scored: ArrayLike, gamma: Fraction) -> NDArray[np.float64]:
    """Compute log10 I_γ(S, T−S+1) = log10 P(at least S of T tokens are green) (paper, Kirchenbauer et al.).

    S and T are integers, 0 ≤ S ≤ T. The result is 0 when S = 0.
    """
    s, t = _broadcast(score, scored)
    return _each_greenlist(s.ravel(), t.ravel(), float(gamma), _short_law(float(gamma))).reshape(s.shape)


def log10_gumbel(score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
    """Compute log10 Γ(T, S)/Γ(T) = log10 P(a sum of T exponential variables is at least S) (paper, Aaronson et al.)."""
    s, t = _broadcast(score, scored)
    return _each_gumbel(s.ravel(), t.ravel()).reshape(s.shape)


def log10_gumbel_log(score: ArrayLike, scored: ArrayLike) -> NDArray[np.float64]:
    """Compute log10 γ(T, −S)/Γ(T) for the score S = Σ ln r ≤ 0 without weights (paper, Simplified Score Function).

    S may be −∞.
    """
    s, t = _broadcast(score, scored)
    return _each_gumbel_log(s.ravel(), t.ravel()).reshape(s.shape)


def log10_z(score: ArrayLike, scored: ArrayLike, mean: float, variance: float) -> NDArray[np.float64]:
    """Compute log10(1 − Φ(Z)), Z = (S − Tμ)/(σ√T): the test that assumes normal scores (paper, Z-Test).

    It is kept to show where it fails, never for verdicts. For ln r small scores count against H0, so give −S and mean
    1.

    Args:
        score: S.
        scored: T.
        mean: μ of one scored token: γ, 1 for Gumbel, −1 for ln r.
        variance: σ² of one scored token: γ(1 − γ), 1, 1.
    """
    s, t = _broadcast(score, scored)
    return _each_z(s.ravel(), t.ravel(), mean, variance).reshape(s.shape)


def log10_any_of(log10_p: ArrayLike, tests: ArrayLike, further: ArrayLike = 1) -> NDArray[np.float64]:
    """Compute log10(1 − (1 − p)^N): correct the smallest of N ≥ 1 valid p-values for N, then likewise for `further`.

    It takes two steps (SPEC §3: messages, then keys), because the product of both numbers may be beyond 2^53.
    """
    p, n, m = _broadcast(log10_p, tests, further)
    return _each_any_of(p.ravel(), n.ravel(), m.ravel()).reshape(p.shape)


@functools.lru_cache(maxsize=128)
def _short_law(gamma: float) -> NDArray[np.float64]:
    """Tabulate log10 p of every score of up to LONGEST_TABULATED scored positions, float64[T, S].

    Most documents are so short.
    """
    t, s = np.mgrid[: LONGEST_TABULATED + 1, : LONGEST_TABULATED + 1].astype(np.float64)
    return _each_greenlist(np.minimum(s, t).ravel(), t.ravel(), gamma, np.empty((0, 0))).reshape(t.shape)


def _broadcast(*given: ArrayLike) -> NDArray[np.float64]:
    """Return all in their common shape, copied. numpy's views of such a shape take longer to make than short arrays."""
    arrays = [np.asarray(values, np.float64) for values in given]
    out = np.empty((len(arrays), *np.broadcast(*arrays).shape))
    for place, values in enumerate(arrays):
        out[place] = values
    return out


@kernel
def _log_any_of(log_p: float, log_tests: float) -> float:
    if log_p >= 0.0:
        return 0.0
    if log_p < -40.0:  # −ln(1 − p) = p to the last bit
        log_hazard = log_tests + log_p
    else:
        log_hazard = log_tests + math.log(-_log1m_exp(log_p))
    if log_hazard < -40.0:
        return log_hazard
    return _log1m_exp(-math.exp(log_hazard))


@kernel
def _log1m_exp(x: float) -> float:
    """Compute ln(1 − e^x) for x < 0, by the form that does not cancel."""
    if x > -0.6931471805599453:
        return math.log(-math.expm1(x))
    return math.log1p(-math.exp(x))


@kernel
def _stirling_error(n: float) -> float:
    """Compute ln n! − ln(√(2πn) (n/e)^n) for an integer n ≥ 1."""
    if n < 16.0:
        return float(_SMALL_STIRLING_ERRORS[int(n) - 1])
    m = n * n
    return (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - (1.0 / 1680.0 - 1.0 / 1188.0 / m) / m) / m) / m) / n


@kernel
def _deviance(x: float, mean: float) -> float:
    """Compute x ln(x/mean) + mean − x, by its series in (x − mean)/(x + mean) where the plain form would cancel."""
    if abs(x - mean) >= 0.1 * (x + mean):
        ratio = x / mean
        return x * (math.log(ratio) if ratio < math.inf else math.log(x) - math.log(mean)) + mean - x
    v = (x - mean) / (x + mean)
    total = (x - mean) * v
    term = 2.0 * x * v
    k = 1.0
    while True:
        term *= v * v
        k += 2.0
        next_total = total + term / k
        if next_total == total:
            return total
        total = next_total


@kernel
def _log_binomial(x: float, n: float, p: float) -> float:
    """Compute ln P(X = x) for X ~ Binomial(n, p), n ≥ 1."""
    if x == 0.0:
        return n * math.log1p(-p)
    if x == n:
        return n * math.log(p)
    core = _stirling_error(n) - _stirling_error(x) - _stirling_error(n - x)
    core -= _deviance(x, n * p) + _deviance(n - x, n * (1.0 - p))
    return core + 0.5 * math.log(n / (2.0 * math.pi * x * (n - x)))


@kernel
def _log_poisson(x: float, mean: float) -> float:
    """Compute ln P(X = x) for X ~ Poisson(mean)."""
    if x == 0.0:
        return -mean
    return -_stirling_error(x) - _deviance(x, mean) - 0.5 * math.log(2.0 * math.pi * x)


@kernel
def _log_binomial_tail(s: float, n: float, p: float) -> float:
    """Compute ln P(X ≥ s) for X ~ Binomial(n, p)."""
    if s <= 0.0:
        return 0.0
    total, term = 1.0, 1.0
    if s > n * p:
        k = s
        while term > 1e-17 * total:
            term *= (n - k) / (k + 1.0) * (p / (1.0 - p))
            total += term
            k += 1.0
        return _log_binomial(s, n, p) + math.log(total)
    k = s - 1.0
    while term > 1e-17 * total:
        term *= k / (n - k + 1.0) * ((1.0 - p) / p)
        total += term
        k -= 1.0
    return math.log1p(-math.exp(_log_binomial(s - 1.0, n, p) + math.log(total)))


@kernel
def _log_poisson_below(x: float, mean: float) -> float:
    """Compute ln P(X ≤ x) by summing downwards, for x < mean."""
    total, term, k = 1.0, 1.0, x
    while term > 1e-17 * total:
        term *= k / mean
        total += term
        k -= 1.0
    return _log_poisson(x, mean) + math.log(total)


@kernel
def _log_poisson_above(x: float, mean: float) -> float:
    """Compute ln P(X ≥ x) by summing upwards, for x > mean."""
    total, term, k = 1.0, 1.0, x
    while term > 1e-17 * total:
        k += 1.0
        term *= mean / k
        total += term
    return _log_poisson(x, mean) + math.log(total)


@kernel
def _log_upper_gamma(t: float, s: float) -> float:
    """Compute ln Γ(t, s)/Γ(t) for an integer t ≥ 1: a Poisson variable of mean s is below t."""
    if s <= 0.0:
        return 0.0
    if s >= t:
        return _log_poisson_below(t - 1.0, s)
    return math.log1p(-math.exp(_log_poisson_above(t, s)))


@kernel
def _log_lower_gamma(t: float, s: float) -> float:
    """Compute ln γ(t, s)/Γ(t) for an integer t ≥ 1: a Poisson variable of mean s is t or more."""
    if s <= 0.0:
        return -math.inf
    if s == math.inf:
        return 0.0
    if s >= t:
        return math.log1p(-math.exp(_log_poisson_below(t - 1.0, s)))
    return _log_poisson_above(t, s)


@kernel
def _each_greenlist(
    s: NDArray[np.float64], t: NDArray[np.float64], gamma: float, short: NDArray[np.float64]
) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        if 0.0 <= s[i] <= t[i] < len(short):
            out[i] = short[np.uint64(t[i]), np.uint64(s[i])]
        elif t[i] > 0.0:
            out[i] = _log_binomial_tail(s[i], t[i], gamma) / LN10
    return out


@kernel
def _each_gumbel(s: NDArray[np.float64], t: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        if t[i] > 0.0:
            out[i] = _log_upper_gamma(t[i], s[i]) / LN10
    return out


@kernel
def _each_gumbel_log(s: NDArray[np.float64], t: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        if t[i] > 0.0:
            out[i] = _log_lower_gamma(t[i], -s[i]) / LN10
    return out


@kernel
def _each_any_of(
    log10_p: NDArray[np.float64], tests: NDArray[np.float64], further: NDArray[np.float64]
) -> NDArray[np.float64]:
    out = log10_p.copy()
    for numbers in (tests, further):
        last, log_last = 1.0, 0.0  # N is the same for most
        for i in range(len(out)):
            if numbers[i] != last:
                last, log_last = numbers[i], math.log(numbers[i])
            # with one test, p itself
            out[i] = _log_any_of(out[i] * LN10, log_last) / LN10 if last > 1.0 else min(out[i], 0.0)
    return out


@kernel
def _log_normal_tail(z: float) -> float:
    """Compute ln(1 − Φ(z)): by erfc as long as it does not underflow, then by its asymptotic series."""
    if z < 0.0:
        return math.log1p(-0.5 * math.erfc(-z * 0.7071067811865476))
    if z < 30.0:
        return math.log(0.5 * math.erfc(z * 0.7071067811865476))
    u = 1.0 / (z * z)
    return -0.5 * z * z - math.log(z) - 0.9189385332046727 + math.log1p(-u * (1.0 - u * (3.0 - u * (15.0 - 105.0 * u))))


@kernel
def _each_z(s: NDArray[np.float64], t: NDArray[np.float64], mean: float, variance: float) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        if t[i] > 0.0:
            out[i] = _log_normal_tail((s[i] - t[i] * mean) / math.sqrt(t[i] * variance)) / LN10
    return out

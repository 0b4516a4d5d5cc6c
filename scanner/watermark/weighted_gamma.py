"""The law of (1−a)·Γ(T) + a·Γ(T), two independent sums of exponential variables of which only one is the mark's.

An exponential of mean 1−a is a sum of exponentials of mean a < 1/2, geometric in number, of success q = a/(1−a). So

    P(S ≥ s) = Σ_{N ≥ T} C(N−1, T−1) q^T (1−q)^(N−T) · Q(T+N, s/a),   Q(k, x) = Γ(k, x)/Γ(k):

positive terms, so nothing cancels. They are log-concave in N: what is left out at either end is less than a geometric
series, which is added, so that p is never too small.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.pvalues import _log_binomial, _log_poisson, _log_upper_gamma

SMALLEST_WEIGHT = 0.01
"""Smallest weight above 0 of the lighter sum: the series has some 10·√T/a terms (T = 256: 5 µs at 0.1, 0.4 ms here)."""

_LN10 = math.log(10.0)
_NOTHING = 1e-17  # share of the sum; from such a term on, the rest is bounded
_BLOCK = 32  # terms between two looks at the end


def checked_weight(weight: float) -> float:
    """The weight, checked.

    Raises:
        ValueError: with what is allowed.
    """
    lighter = min(weight, 1.0 - weight)
    if not (lighter == 0.0 or SMALLEST_WEIGHT <= lighter <= 0.5):
        raise ValueError(f"is not allowed; give 0, 1, or {SMALLEST_WEIGHT} to {1.0 - SMALLEST_WEIGHT}")
    return weight


def log10_weighted_gamma(score: ArrayLike, scored: ArrayLike, weight: float) -> NDArray[np.float64]:
    """log10 P((1−a)·X + a·Y ≥ S) of independent X and Y, each a sum of T exponential variables.

    Relative error of the log10 below 1e-11.

    Args:
        score: S ≥ 0, reals.
        scored: T, integers; T = 0 gives 0.
        weight: a, 0 to 1.

    Returns:
        float64 of their common shape.

    Raises:
        ValueError: a weight that is neither 0 nor 1 and nearer to either than SMALLEST_WEIGHT.
    """
    checked_weight(weight)
    s, t = np.broadcast_arrays(np.asarray(score, np.float64), np.asarray(scored, np.float64))
    return _each(s.flatten(), t.flatten(), min(weight, 1.0 - weight)).reshape(s.shape)


@kernel
def _tilt(s: float, t: float, a: float) -> float:
    """θ with which S has the mean s when every exponential is tilted by e^(θ·its share of S)."""
    r, ab = s / t, a * (1.0 - a)
    half, root = r - 2.0 * ab, math.sqrt((r * (1.0 - 2.0 * a)) ** 2 + 4.0 * ab * ab)
    return 2.0 * (r - 1.0) / (half + root) if half > 0.0 else (half - root) / (2.0 * r * ab)


@kernel
def _first_term(s: float, t: float, a: float) -> float:
    """N at which the series begins: twelve standard deviations below its mean where S is s."""
    tilt = _tilt(s, t, a)
    q = a / (1.0 - a) * (1.0 - tilt * (1.0 - a)) / (1.0 - tilt * a)
    variance = t * (1.0 - q) / (q * q)
    summands = t / q + t
    return max(t, math.floor(t / q - 12.0 * math.sqrt(variance * summands / (variance + summands))))


@kernel
def _log_series(s: float, t: float, a: float) -> float:
    """ln P(S ≥ s) for 0 < a < 1/2, s > 0."""
    q, x = a / (1.0 - a), s / a
    first = _first_term(s, t, a)
    n, log_tail = first, _log_upper_gamma(t + first, x)
    log_scale = math.log(t / n) + _log_binomial(t, n, q) + log_tail
    # in units of the first term: `power` of the negative binomial, `tail` of Q, `step` by which Q grows
    power, tail, step = 1.0, 1.0, math.exp(_log_poisson(t + n, x) - log_tail)
    total, term, last = 1.0, 1.0, 1.0
    while term >= last or term > _NOTHING * total:
        for _ in range(_BLOCK):
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
def _each(s: NDArray[np.float64], t: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        if s[i] <= 1e-9 * t[i]:  # where p is 1 to the last bit
            continue
        if a == 0.0:
            out[i] = _log_upper_gamma(t[i], s[i]) / _LN10
        elif a == 0.5:
            out[i] = _log_upper_gamma(2.0 * t[i], 2.0 * s[i]) / _LN10
        else:
            out[i] = _log_series(s[i], t[i], a) / _LN10
    return out

"""The laws of sums by levels once more, by a path that shares nothing with level_laws: transforms of tilted laws.

Tilted so that its mean is the score, a law is found from its characteristic function with its digits kept, however
small the tail. It imports nothing of ours.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq  # type: ignore[import-untyped]

_NEGLIGIBLE = 1e-17
_MOST_NODES = 2**22


def ln_tail(score: float, counts: Sequence[int], gamma: Fraction | None) -> float:
    """ln P(Σ v·x ≥ score), where counts[v] of the x have the value v.

    gamma: chance that an x is 1; None: each x is exponential, of mean 1. 0 where no token counts.
    """
    values = np.array([v for v, n in enumerate(counts) if v and n], np.float64)
    n = np.array([n for v, n in enumerate(counts) if v and n], np.float64)
    if not len(n) or score <= 0.0:
        return 0.0
    return _ln_exponential(score, values, n) if gamma is None else _ln_binary(round(score), values, n, float(gamma))


def _ln_exponential(score: float, values: NDArray[np.float64], n: NDArray[np.float64]) -> float:
    """P(S ≥ s) = e^(K(t)−ts)/π · ∫ Re[φ_t(u) e^(−ius)/(t+iu)] du from 0, t the tilt: by equal steps.

    Steps of h count S at s + 2πk/h as well, where the tilted law is negligible.
    """
    if n.sum() == 1.0:
        return -score / float(values[0])

    def slope(t: float) -> float:
        return float((n * values / (1.0 - t * values)).sum()) - score - 1.0 / t

    top = 1.0 / float(values.max())
    t = brentq(slope, top * 1e-12, top * (1.0 - 1e-12), xtol=1e-300, rtol=1e-14)
    width = math.sqrt(float((n * (values / (1.0 - t * values)) ** 2).sum()) + 1.0 / t**2)
    step = 2.0 * math.pi / (45.0 * width)
    total, done, block = 0.5 / t, 0, 1 << 12
    while done < _MOST_NODES:
        u = step * np.arange(done + 1, done + block + 1)
        log_ratio = -(n[:, None] * np.log1p(-1j * u * values[:, None] / (1.0 - t * values[:, None]))).sum(axis=0)
        terms = (np.exp(log_ratio - 1j * u * score) / (t + 1j * u)).real
        total += float(terms.sum())
        done += block
        if np.exp(log_ratio[-1].real) < _NEGLIGIBLE:
            break
    log_moment = -float((n * np.log1p(-t * values)).sum())
    return log_moment - float(t) * score + math.log(total * step / math.pi)


def _ln_binary(score: int, values: NDArray[np.float64], n: NDArray[np.float64], gamma: float) -> float:
    """The whole law of the tilted sum, by one transform over as many frequencies as it has values."""
    largest = int((n * values).sum())
    if score > largest:
        return -math.inf
    if score == largest:
        return float(n.sum()) * math.log(gamma)

    def mean(t: float) -> float:
        odds = gamma * np.exp(t * values)
        return float((n * values * odds / (1.0 - gamma + odds)).sum())

    t = 0.0
    if mean(0.0) < score:
        high = 1.0
        while mean(high) < score and high < 64.0:
            high *= 2.0
        t = brentq(lambda t: mean(t) - score, 0.0, high, rtol=1e-14)
    size = 1 << (largest + 1).bit_length()
    odds = gamma * np.exp(t * values)
    share = odds / (1.0 - gamma + odds)
    turn = np.exp(-2j * np.pi * (np.arange(size // 2 + 1)[:, None] * values % size) / size)
    log_function = (n * np.log1p(share * (turn - 1.0))).sum(axis=1)
    law = np.clip(np.fft.irfft(np.exp(log_function), size), 0.0, None)
    over = np.arange(score, largest + 1)
    log_moment = float((n * np.log1p(gamma * np.expm1(t * values))).sum())
    return log_moment - float(t) * score + math.log(float((law[over] * np.exp(-t * (over - score))).sum()))

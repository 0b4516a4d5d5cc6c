"""The law of a weighted sum of layers, each an independent draw of one law on 0 … T: SynthID's scores.

Tilted so that its mean is the score, a sum's law is found by one transform a layer with its digits kept, however small
the tail. The normal law, of the same variance or a larger one, is a thousand times as fast.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len  # type: ignore[import-untyped]

from scanner.watermark.pvalues import log10_z

_WIDTH = 12.0  # standard deviations on either side that a transform holds; less than 1e-30 of it lies beyond
_HALVINGS = 200


def log_tail(score: int, weights: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """ln P(Σ v·C ≥ score), each C an independent draw of the law `chances`; relative error of p below 1e-9.

    Args:
        score: a whole number.
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
    tilt = _tilt(score, weights, values, log_chance)
    if tilt <= 0.0:  # the score is below the mean
        return 0.0
    log_moments, tilted = _tilted(tilt, weights, values, log_chance)
    means = (tilted * values).sum(axis=1)
    spread = math.sqrt(float((weights**2 * ((tilted * values**2).sum(axis=1) - means**2)).sum()))
    size = next_fast_len(int(2.0 * _WIDTH * max(spread, 1.0)) + 2 * int(weights.max()), real=True)
    transform = np.ones(size // 2 + 1, np.complex128)
    for weight, law in zip(weights, tilted, strict=True):
        laid_out = np.zeros(size)
        np.add.at(laid_out, weight * values % size, law)  # wraps around: one turn alone has any weight
        transform *= np.fft.rfft(laid_out)
    over = np.arange(size // 2)
    sums = np.clip(np.fft.irfft(transform, size)[(score + over) % size], 0.0, None)
    return float(log_moments.sum()) - tilt * score + math.log(float((sums * np.exp(-tilt * over)).sum()))


def _tilted(
    tilt: float, weights: NDArray[np.int64], values: NDArray[np.int64], log_chance: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """ln E e^(tilt·v·C) of each layer, float64[m], and the layer's law tilted by it, float64[m, values]."""
    powers = log_chance + tilt * weights[:, None] * values
    highest = powers.max(axis=1, keepdims=True)
    terms = np.exp(powers - highest)
    sums = terms.sum(axis=1, keepdims=True)
    return (np.log(sums) + highest)[:, 0], terms / sums


def _tilt(score: int, weights: NDArray[np.int64], values: NDArray[np.int64], log_chance: NDArray[np.float64]) -> float:
    """The tilt whose mean is the score, by halving; 0 where the mean is above it."""

    def mean(tilt: float) -> float:
        _, tilted = _tilted(tilt, weights, values, log_chance)
        return float((weights * (tilted * values).sum(axis=1)).sum())

    low, high = 0.0, 1e-6
    if mean(0.0) >= score:
        return 0.0
    while mean(high) < score and high < 1e3:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if mean(middle) < score else (low, middle)
        if high - low < 1e-9 * high:
            break
    return low


def log10_normal(
    score: NDArray[np.int64], scored: NDArray[np.int64], weights: NDArray[np.int64], share: float, spread: float
) -> NDArray[np.float64]:
    """log10 p of the sum by the normal law, where each bit is 1 with chance `share`: float64[D] for int64[D].

    `spread`: the variance over that of independent bits, since those of one text are not quite independent.
    """
    variance = spread * share * (1.0 - share) * float((weights**2).sum())
    return log10_z(score - 1, scored, share * float(weights.sum()), variance)

"""Prove SynthID-Text's marks in plain Python, and compute its laws by folding and tilting."""

import hashlib
import math
from collections.abc import Collection, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve  # type: ignore[import-untyped]
from scipy.special import logsumexp  # type: ignore[import-untyped]
from scipy.stats import norm  # type: ignore[import-untyped]

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.proof import counted_positions, floored
from scanner.watermark.stacks.plain_draws import signed, words

_64 = 2**64
_LCG = 6_364_136_223_846_793_005


def log_urn(scored: int, variance: float) -> NDArray[np.float64]:
    """Return ln of the chance of each number of heads that an urn of two kinds of coins gives.

    The urn grows with every draw. The variance of the number of heads is `variance` times that of an urn that does not
    grow.
    """
    correlation = min((variance - 1.0) / max(scored - 1, 1), 1.0 - 1e-9)
    growth = correlation / (1.0 - correlation)
    k = np.arange(scored)
    log_ratios = np.log((scored - k) / (k + 1.0)) + np.log((0.5 + k * growth) / (0.5 + (scored - k - 1.0) * growth))
    log_law = np.concatenate([[0.0], np.cumsum(log_ratios)])
    return np.asarray(log_law - logsumexp(log_law), np.float64)


class SynthIdProof:
    """The proof of the mark of a list of keys, 8 bytes each. Its repr shows none of them.

    table: seed and size of the table. None: the git version's rounds are used.
    bits: no p-value is below 2^-bits.
    """

    def __init__(
        self, secret: bytes, depth: int, length: int, weighted: bool, table: tuple[int, int] | None, bits: int
    ) -> None:
        keys = [int.from_bytes(secret[8 * i : 8 * i + 8], "big") for i in range(depth)]
        key_bytes = b"".join(key.to_bytes(8, "little") for key in keys)
        start = 1 if table else int.from_bytes(hashlib.sha256(key_bytes).digest(), "big") % (2**63 - 1)
        self._length, self._bits = length, bits
        self._table = np.array(words(*table)) % 2 if table else None
        steps = [Fraction(10) - Fraction(9 * i, depth - 1) for i in range(depth)] if weighted and depth > 1 else []
        scale = math.lcm(*(step.denominator for step in steps)) if steps else 1
        whole_weights = [int(step * scale) for step in steps] or [1] * depth
        # keys that are equal, or equal in the part that selects a place of the table, are one layer
        modulus, gcd = table[1] if table else _64, math.gcd(*whole_weights)
        residues = [key % modulus for key in keys]
        distinct = sorted(set(residues), key=residues.index)
        self._key = HiddenValue((distinct, start))
        self._weights = [
            sum(w // gcd for w, residue in zip(whole_weights, residues, strict=True) if residue == key)
            for key in distinct
        ]

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath. The mark has one message, and its score is −ln p."""
        ids, window = tokens.tolist(), self._length - 1
        places = range(window, len(ids))
        contexts = [tuple(ids[t - window : t]) for t in places]
        unit = "none" if dedup == "none" else "context"
        indices = counted_positions(places, contexts, [ids[t] for t in places], unit, common_places)
        if not indices:
            return 0, [0.0] * len(messages)
        keys, start = self._key.value
        states = [self._hash(start, [*contexts[i], ids[places[i]]]) for i in indices]
        ones = [sum(self._bit(state, key) for state in states) for key in keys]
        score = sum(weight * count for weight, count in zip(self._weights, ones, strict=True))
        return len(indices), [self._surprise(score, states)] * len(messages)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return floored(-score / math.log(10.0), self._bits) if scored else 0.0

    def _hash(self, state: int, values: list[int]) -> int:
        for value in values:
            state = ((state + value) * _LCG + 1) % _64
        return state

    def _bit(self, state: int, key: int) -> int:
        state = self._hash(state, [key])
        if self._table is not None:
            return int(self._table[state % len(self._table)])
        for _ in range(12):
            state = signed(self._hash(state, [1])) >> 5
        return (state >> 30) % 2

    def _surprise(self, score: int, states: list[int]) -> float:
        """Return −ln p by the law of a score. The variance decides between a normal law and the layers' folded laws."""
        if self._table is not None:
            normal = self._normal(score, len(states), 1.0 + 5.0 / math.sqrt(len(self._table)))
            return normal if normal < 3.0 * math.log(10.0) else self._folded(score, self._log_law(self._table, states))
        narrowest = self._normal(score, len(states), 1.0)
        if narrowest < 2.0 * math.log(10.0):
            return min(self._normal(score, len(states), variance_factor) for variance_factor in (3.0, 1.0 / 3.0))
        if narrowest < 3.0 * math.log(10.0):
            return self._normal(score, len(states), self._most_variance(states, 512))
        return self._folded(score, log_urn(len(states), self._most_variance(states, 16_384)))

    def _normal(self, score: int, scored: int, variance_factor: float) -> float:
        """Return −ln p by a normal law with `variance_factor` times the variance of independent bits."""
        share = 0.5 if self._table is None else max(0.5, float(self._table.mean()))
        mean, squares = share * sum(self._weights), sum(weight**2 for weight in self._weights)
        spread = math.sqrt(variance_factor * share * (1.0 - share) * squares * scored)
        return -float(norm.logsf((score - 1 - mean * scored) / spread))

    def _most_variance(self, states: list[int], points: int) -> float:
        """Return the upper 99 % limit of a layer's variance, relative to that of independent bits.

        It is measured under fixed numbers in place of keys: `points` of them, fewer for a long text.
        """
        numbers = np.frombuffer(hashlib.shake_256(b"brickscan synthid-mixed points").digest(8 * 16_384), "<i8")
        numbers = numbers[: max(512, min(points, 2**27 // len(states)))]
        excesses = np.zeros(len(numbers), np.int64)
        for state in states:
            x = (numbers + signed(state - states[0])) * _LCG + 1
            for _ in range(12):
                x = ((x + 1) * _LCG + 1) >> 5
            excesses += np.where(x & 2**30, 1, -1)
        squares = [excess * excess / len(states) for excess in excesses.tolist()]
        mean = math.fsum(squares) / len(squares)
        deviation = math.fsum((square - mean) ** 2 for square in squares) / (len(squares) - 1)
        return max(1.0, mean + float(norm.ppf(0.99)) * math.sqrt(deviation / len(squares)))

    def _folded(self, score: int, log_law: NDArray[np.float64]) -> float:
        """Return −ln p by the laws of the layers, folded one after the other.

        They are tilted until their sum's mean is near the score.
        """
        values = np.arange(len(log_law))
        tilt = self._tilt(score, values, log_law)
        sums, begin, log_scale = np.ones(1), 0, 0.0
        for weight in self._weights:
            power = log_law + tilt * weight * values
            total = logsumexp(power)
            log_scale += total
            law = np.zeros(weight * (len(log_law) - 1) + 1)
            law[:: max(weight, 1)] = np.exp(power - total)
            sums = np.clip(fftconvolve(sums, law), 0.0, None)
            support = np.flatnonzero(sums > 1e-19 * sums.max())
            begin, sums = begin + int(support[0]), sums[support[0] : support[-1] + 1]
        excess = np.arange(len(sums)) + begin - score
        is_enough = excess >= 0
        return float(tilt * score - log_scale - math.log((sums[is_enough] * np.exp(-tilt * excess[is_enough])).sum()))

    def _log_law(self, table: NDArray[np.int64], states: list[int]) -> NDArray[np.float64]:
        """Return ln of the chance of each number of ones of a layer by the table. −∞ for an impossible number."""
        size = len(table)
        sums = np.zeros(size, np.int64)
        wrapped_table = np.concatenate([table, table])
        for state in states:
            place = self._hash(state, [0]) % size
            sums += wrapped_table[place : place + size]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.bincount(sums, minlength=len(states) + 1) / size), np.float64)

    def _tilt(self, score: int, values: NDArray[np.int64], log_law: NDArray[np.float64]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2.0
            mean = 0.0
            for weight in self._weights:
                power = log_law + middle * weight * values
                mean += weight * float((np.exp(power - logsumexp(power)) * values).sum())
            low, high = (middle, high) if mean < score else (low, middle)
        return low

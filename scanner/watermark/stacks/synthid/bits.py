"""Compute SynthID's bits of n-grams, and the law of their weighted sum over random keys.

A layer's bit of an n-gram depends only on the n-gram's hash and the layer's key. So layers are independent given the
text, and each has the same law. Bits of two n-grams in one layer may depend on each other. The difference of their
hashes decides the dependence, and no key changes that difference.

The law for the table is exact. Twelve rounds of mixing are too many to enumerate and too few to make bits independent.
Over keys, the variance of a layer's sum is 0.9 to 1.35 of the binomial's in texts of people, and up to 2.9 in
progressions of token ids (docs/concepts/mixed-bits.md). If a text may pass, its own variance is measured under fixed
points in place of keys, and the upper confidence limit of the variance widens the law.
"""

import functools
import hashlib
import math
from typing import Protocol

import numpy as np
from numpy import int64, uint8, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.laws import log10_normal, log_tail
from scanner.watermark.pvalues import LN10

LCG_FACTOR = uint64(6364136223846793005)
_ROUNDS = 12
_LN2 = math.log(2.0)

EXACT_BELOW = -3.0
"""Largest log10 p by the normal law at which a law is folded over the layers."""

MEASURED_BELOW = -2.0
"""Largest log10 p by the normal law of independent bits at which a text's own variance is measured."""

LARGEST_VARIANCE = 3.0
"""Largest variance of a text without a measurement, relative to the binomial's. The smallest is 1/LARGEST_VARIANCE."""

FEW, MANY, MOST_BITS = 2**9, 2**14, 2**27
"""Numbers of points and bits of a measurement.

FEW: points where p is above 10^EXACT_BELOW.
MANY: points where p is below it.
MOST_BITS: most bits at the points of a long text.
"""

_CONFIDENCE = 2.326347874040841  # standard errors above the mean that 99 % of measurements stay below


@inlined
def _taken_in(state: uint64, value: uint64) -> uint64:
    return (state + value) * LCG_FACTOR + uint64(1)


@kernel
def hashes(ids: NDArray[np.uint32], index: NDArray[np.int64], length: int, start: uint64) -> NDArray[np.uint64]:
    """Return the hash of the `length` tokens that end at each place: uint64[P]."""
    out = np.empty(len(index), np.uint64)
    for p in range(len(index)):
        state = start
        for i in range(index[p] - length + 1, index[p] + 1):
            state = _taken_in(state, uint64(ids[i]))
        out[p] = state
    return out


@kernel
def table_bit(state: uint64, key: uint64, table: NDArray[np.uint8]) -> uint8:
    """Return the table's entry for a hash and a key. The table's size is a power of two."""
    return uint8(table[_taken_in(state, key) & uint64(len(table) - 1)])


@kernel
def mixed_bit(state: uint64, key: uint64) -> uint8:
    """Return the bit after twelve rounds. Each round shifts a signed number."""
    x = int64(_taken_in(state, key))
    for _ in range(_ROUNDS):
        x = int64(_taken_in(uint64(x), uint64(1))) >> int64(5)
    return uint8((x >> int64(30)) & int64(1))


@kernel
def table_ones(
    states: NDArray[np.uint64], offsets: NDArray[np.int64], keys: NDArray[np.uint64], table: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Count ones of each document and layer by the table: int64[D, m]."""
    out = np.zeros((len(offsets) - 1, len(keys)), np.int64)
    for d in range(len(out)):
        for p in range(offsets[d], offsets[d + 1]):
            for k in range(len(keys)):
                out[d, k] += int64(table_bit(states[p], keys[k], table))
    return out


@kernel
def mixed_ones(states: NDArray[np.uint64], offsets: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Count ones of each document and layer by twelve rounds: int64[D, m]."""
    out = np.zeros((len(offsets) - 1, len(keys)), np.int64)
    for d in range(len(out)):
        for k in range(len(keys)):
            ones = int64(0)
            for p in range(offsets[d], offsets[d + 1]):
                ones += int64(mixed_bit(states[p], keys[k]))
            out[d, k] = ones
    return out


class Bits(Protocol):
    """Bits of n-grams under keys, and the law of their sums over distinct keys.

    key_mask: the bits of a key that matter. Keys that are equal in these draw alike.
    """

    @property
    def key_mask(self) -> int:
        """See the class."""

    def ones(
        self, states: NDArray[np.uint64], offsets: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """Count ones of each document and layer, int64[D, m].

        Args:
            states: hashes, uint64[P].
            offsets: int64[D+1], the places that divide them into documents.
            keys: uint64[m].
        """

    def surprise(
        self,
        sums: NDArray[np.int64],
        weights: NDArray[np.int64],
        states: NDArray[np.uint64],
        offsets: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Return −ln p of weighted sums of ones, float64[D]. 0 without hashes.

        Args:
            sums: int64[D].
            weights: of the layers, int64[m].
            states: hashes, uint64[P].
            offsets: int64[D+1], the places that divide them into documents.
        """


class TableBits:
    """Entries of a table of coins, uint8 of a size that is a power of two. The coins are not quite fair."""

    def __init__(self, table: NDArray[np.uint8]) -> None:
        self.table, self.key_mask = table, len(table) - 1
        self._share, self._spread = max(0.5, float(table.mean())), 1.0 + 5.0 / math.sqrt(len(table))

    def ones(
        self, states: NDArray[np.uint64], offsets: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """See Bits."""
        return table_ones(states, offsets, keys, self.table)

    def surprise(
        self,
        sums: NDArray[np.int64],
        weights: NDArray[np.int64],
        states: NDArray[np.uint64],
        offsets: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """See Bits.

        Exact where p is at most 1e-3 by a normal law of slightly too large variance. Elsewhere it is that law's p.
        """
        scored = np.diff(offsets)
        log10_p = log10_normal(sums, scored, weights, self._share, self._spread)
        surprise = -LN10 * log10_p
        for d in np.flatnonzero((log10_p <= EXACT_BELOW) & (scored > 0)):
            law = layer_law(states[offsets[d] : offsets[d + 1]], self.table)
            surprise[d] = -log_tail(int(sums[d]), weights, law)
        return np.where(scored > 0, surprise, 0.0)


def layer_law(states: NDArray[np.uint64], table: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the law of a layer's sum over keys uniform mod the table's size: float64[T+1].

    states: hashes of T positions.
    """
    size = len(table)
    places = np.bincount(((states * LCG_FACTOR + uint64(1)) & uint64(size - 1)).astype(np.int64), minlength=size)
    sums = np.fft.irfft(np.conj(np.fft.rfft(places)) * np.fft.rfft(table), size)
    counts = np.bincount(np.rint(sums).astype(np.int64), minlength=len(states) + 1)
    return np.asarray(counts / size, np.float64)


class MixedBits:
    """Bits after twelve rounds of mixing. In some texts their sums vary more than sums of independent bits."""

    key_mask = 2**64 - 1

    def ones(
        self, states: NDArray[np.uint64], offsets: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> NDArray[np.int64]:
        """See Bits."""
        return mixed_ones(states, offsets, keys)

    def surprise(
        self,
        sums: NDArray[np.int64],
        weights: NDArray[np.int64],
        states: NDArray[np.uint64],
        offsets: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """See Bits.

        The p by the normal law of independent bits, the narrowest law, decides the law of a text:

        - p above 1e-2: the larger p of the normal laws of the largest and the smallest variance.
        - p down to 1e-3: the normal law of the text's own variance.
        - p below: the law of a layer that has this variance, folded over the layers.
        """
        scored = np.diff(offsets)
        narrow_log10_p, *extreme_log10_p = (
            log10_normal(sums, scored, weights, 0.5, v) for v in (1.0, LARGEST_VARIANCE, 1.0 / LARGEST_VARIANCE)
        )
        surprise = -LN10 * np.maximum(*extreme_log10_p)
        for d in np.flatnonzero((narrow_log10_p <= MEASURED_BELOW) & (scored > 0)):
            document_states = states[offsets[d] : offsets[d + 1]]
            if narrow_log10_p[d] <= EXACT_BELOW:
                surprise[d] = -log_tail(
                    int(sums[d]), weights, wide_law(len(document_states), variance_limit(document_states, MANY))
                )
            else:
                variance = variance_limit(document_states, FEW)
                surprise[d] = -LN10 * log10_normal(sums[d : d + 1], scored[d : d + 1], weights, 0.5, variance)[0]
        return np.where(scored > 0, surprise, 0.0)


@functools.cache
def points() -> NDArray[np.uint64]:
    """Return fixed numbers in place of hashed keys: uint64[MANY].

    They must never change, because p-values depend on them.
    """
    data = hashlib.shake_256(b"brickscan synthid-mixed points").digest(8 * MANY)
    return np.frombuffer(data, "<u8").astype(np.uint64)


def variance_limit(states: NDArray[np.uint64], count: int) -> float:
    """Return the 99 % upper limit of the variance of a layer's sum over keys.

    It is relative to the variance of independent fair bits, and at least 1.

    Args:
        states: hashes of T > 0 positions, uint64[T], from any start.
        count: number of points to measure at, at most MANY. For a text of more than MOST_BITS / count positions it is
            lowered, but not below FEW.
    """
    keys = points()[: max(FEW, min(count, MOST_BITS // len(states)))]
    ones = mixed_ones(states - states[0], np.array([0, len(states)]), keys)[0]
    squares = (2.0 * ones - len(states)) ** 2 / len(states)
    return max(1.0, float(squares.mean() + _CONFIDENCE * squares.std(ddof=1) / math.sqrt(len(keys))))


def wide_law(scored: int, variance: float) -> NDArray[np.float64]:
    """Return the beta-binomial law of T fair bits whose sum has `variance` times the binomial's variance: float64[T+1].

    Each bit is drawn from Pólya's urn. All bits before it count like `growth` coins of the first.
    """
    correlation = min((variance - 1.0) / max(scored - 1, 1), 1.0 - 1e-9)  # correlation of any two bits
    growth = correlation / (1.0 - correlation)
    steps = np.arange(scored)
    log_products = np.concatenate([[0.0], np.cumsum(np.log1p(2.0 * growth * steps))])
    from scipy.special import gammaln  # type: ignore[import-untyped] # late: a tenth of a second

    log_factorials = gammaln(np.arange(1.0, scored + 2))
    log_law = (
        log_factorials[-1] - log_factorials - log_factorials[::-1] - scored * _LN2 + log_products + log_products[::-1]
    )
    return np.asarray(np.exp(log_law - np.log1p(growth * steps).sum()), np.float64)

"""An upper bound on the Gumbel score of each number of a run (SPEC_2 §1, §3), from products of draws.

A score is Σ −ln(R/2^32) over R = 2^32 − w, hence a logarithm of the product of all R. PRODUCT factors are multiplied in
single precision before an exponent is looked at, LANES steps side by side. A logarithm is taken once a lane, at the
end: the bits of a float are one to base 2 that runs straight between powers of two, below the true one by up to 0.0861.

So no bound is too small, and every STEPS steps make it too large by 16 · 0.0861 · ln 2 = 0.96 at most:
1. (2^32 − 1 − w) | 1 is R or R − 1, and at least 1. A factor that is too small makes the bound larger.
2. To round a factor to a float, and a product, adds 2^-24 of it at most: 2^-12 / ln 2 units of ln 2 / 2^11 a step,
   which `units_of` takes off. A product lies between 2^-126 and 2^99, so that no float overflows or loses digits.
3. Cutting off bits of a float makes a logarithm smaller and the bound larger.
"""

import numpy as np
from numpy import float32, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.native.bounds import PER_LN2
from scanner.watermark.native.ciphers import LANES, block_after, three_columns

BITS = 4
"""log2 of the numbers that a block holds."""

STEPS = 448
"""Steps that are multiplied before logarithms are taken: what their blocks share stays in the first-level cache."""

PRODUCT = 7
"""Factors of at most 2^32 that are multiplied before exponents are looked at: they make 2^-126 no larger than 2^99."""

_START, _FRACTION = uint32(1 << 23), uint32((1 << 23) - 1)  # the bits of 2^-126, and those of a float behind the point
_NUMBERS = 1 << BITS
_TILE = _NUMBERS * LANES  # products of a block: those of number k, in LANES lanes, from k · LANES on
_SHARED = 17 * LANES  # what LANES steps keep for all their blocks: counters, nonces, columns, and which lanes are none


@kernel
def bound_run(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first: int,
    bounds: NDArray[np.int64],
) -> None:
    """Bound the score of one document for each number of a run, in units of ln 2 / 2^11.

    Args:
        key: uint32[8].
        ids: uint32[T].
        nonces: uint64[T].
        first: the first number of a block.
        bounds: int64[16 · blocks], written.
    """
    k = (key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7])
    shared = np.empty((min(len(ids), STEPS) + LANES - 1) // LANES * _SHARED, np.uint32)
    products, logarithms = np.empty(_TILE, np.uint32), np.empty(_TILE + LANES, np.uint32)
    bounds[:] = 0
    for p in range(0, len(ids), STEPS):
        steps = min(STEPS, len(ids) - p)
        _share(k, ids[p : p + steps], nonces[p : p + steps], first, shared)
        vectors = (steps + LANES - 1) // LANES
        looks = (vectors - 1) // PRODUCT
        most = np.int64(LANES * (32 * vectors + looks + 1)) << 11  # a product begins at exponent 1
        for b in range(uint64(len(bounds) >> BITS)):
            products[:] = _START
            logarithms[:] = uint32(0)
            for begin in range(0, vectors, PRODUCT):
                if begin:
                    _look(products, logarithms)
                _multiply(k, shared, uint64(begin), uint64(min(begin + PRODUCT, vectors)), uint32(b), products)
            _add_lanes(products, logarithms)
            for n in range(uint64(_NUMBERS)):
                bounds[b * uint64(_NUMBERS) + n] += most - np.int64(logarithms[n * uint64(LANES)])


@kernel
def _share(
    key: tuple[uint32, ...], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, out: NDArray[np.uint32]
) -> None:
    """What the blocks of each step have in common, LANES steps after LANES steps; a lane without a step has nothing."""
    for v in range((len(ids) + LANES - 1) // LANES):
        own = out[v * _SHARED : (v + 1) * _SHARED]
        own[16 * LANES :] = ~uint32(0)
        for i in range(min(LANES, len(ids) - v * LANES)):
            token, nonce = ids[v * LANES + i], nonces[v * LANES + i]
            own[i] = uint32(token << uint32(32 - BITS)) | uint32(first >> BITS)
            own[LANES + i] = token >> uint32(BITS)
            own[2 * LANES + i], own[3 * LANES + i] = uint32(nonce), uint32(nonce >> uint64(32))
            own[16 * LANES + i] = uint32(1)
        for i in range(LANES):
            x = three_columns(key, own[LANES + i], own[2 * LANES + i], own[3 * LANES + i])
            own[4 * LANES + i], own[5 * LANES + i], own[6 * LANES + i] = x[0], x[1], x[2]
            own[7 * LANES + i], own[8 * LANES + i], own[9 * LANES + i] = x[3], x[4], x[5]
            own[10 * LANES + i], own[11 * LANES + i], own[12 * LANES + i] = x[6], x[7], x[8]
            own[13 * LANES + i], own[14 * LANES + i], own[15 * LANES + i] = x[9], x[10], x[11]


@inlined
def _multiply(
    key: tuple[uint32, ...],
    shared: NDArray[np.uint32],
    begin: uint64,
    end: uint64,
    block: uint32,
    products: NDArray[np.uint32],
) -> None:
    """Multiply the products of a block's numbers, as the bits of floats, by the factors of some vectors of steps.

    A lane without a step has the factor 2^32: all bits of it are set.
    """
    for v in range(begin, end):
        own = shared[v * uint64(_SHARED) : (v + uint64(1)) * uint64(_SHARED)]
        for i in range(LANES):
            columns = (
                own[4 * LANES + i], own[5 * LANES + i], own[6 * LANES + i], own[7 * LANES + i],
                own[8 * LANES + i], own[9 * LANES + i], own[10 * LANES + i], own[11 * LANES + i],
                own[12 * LANES + i], own[13 * LANES + i], own[14 * LANES + i], own[15 * LANES + i],
            )  # fmt: skip
            counter = uint32(own[i] + block)
            x = block_after(key, columns, counter, own[LANES + i], own[2 * LANES + i], own[3 * LANES + i])
            none = own[16 * LANES + i]
            products[i] = _times(products[i], x[0], none)
            products[LANES + i] = _times(products[LANES + i], x[1], none)
            products[2 * LANES + i] = _times(products[2 * LANES + i], x[2], none)
            products[3 * LANES + i] = _times(products[3 * LANES + i], x[3], none)
            products[4 * LANES + i] = _times(products[4 * LANES + i], x[4], none)
            products[5 * LANES + i] = _times(products[5 * LANES + i], x[5], none)
            products[6 * LANES + i] = _times(products[6 * LANES + i], x[6], none)
            products[7 * LANES + i] = _times(products[7 * LANES + i], x[7], none)
            products[8 * LANES + i] = _times(products[8 * LANES + i], x[8], none)
            products[9 * LANES + i] = _times(products[9 * LANES + i], x[9], none)
            products[10 * LANES + i] = _times(products[10 * LANES + i], x[10], none)
            products[11 * LANES + i] = _times(products[11 * LANES + i], x[11], none)
            products[12 * LANES + i] = _times(products[12 * LANES + i], x[12], none)
            products[13 * LANES + i] = _times(products[13 * LANES + i], x[13], none)
            products[14 * LANES + i] = _times(products[14 * LANES + i], x[14], none)
            products[15 * LANES + i] = _times(products[15 * LANES + i], x[15], none)


@kernel
def _times(product: uint32, draw: uint32, none: uint32) -> uint32:
    """A float's bits multiplied by the factor of a draw."""
    factor = float32(uint32(product).view(np.float32) * float32(uint32(~draw | none)))
    return factor.view(np.uint32)


@inlined
def _look(products: NDArray[np.uint32], exponents: NDArray[np.uint32]) -> None:
    """Take the exponents of products off, and add them up."""
    for i in range(uint64(_TILE)):
        exponents[i] += products[i] >> uint32(23)
        products[i] = (products[i] & _FRACTION) | _START


@inlined
def _add_lanes(products: NDArray[np.uint32], logarithms: NDArray[np.uint32]) -> None:
    """Turn exponents into logarithms in units of 2^-11, and add those of LANES lanes up in lane 0."""
    for i in range(uint64(_TILE)):
        logarithms[i] = uint32(logarithms[i] << uint32(11)) + (products[i] >> uint32(12))
    _add_apart(logarithms, 8)
    _add_apart(logarithms, 4)
    _add_apart(logarithms, 2)
    _add_apart(logarithms, 1)


@inlined
def _add_apart(values: NDArray[np.uint32], lanes: int) -> None:
    for i in range(uint64(_TILE)):
        values[i] += values[i + uint64(lanes)]


@kernel
def units_of(score: float, scored: int) -> int:
    """A number whose bound is smaller than this has a smaller score than `score`, over so many positions.

    It leaves more room than the error of logarithms and sums in double precision, and than that of products.
    """
    score *= 1.0 - 1e-9 - scored * 2.0**-50
    return int(score * PER_LN2 - scored * 2.0**-11) - 2

"""Gumbel scores of all numbers of runs (SPEC_2 §1, §3): bounds on every score from above, then a shortlist.

A score is Σ −ln(R/2^32) over R = 2^32 − w. The bits of a float are a logarithm to base 2 that runs straight between
powers of two, below the true one by up to 0.0861. Sums of these bits therefore bound every score from above, at a
quarter of the cost of the logarithm itself, and only the few messages whose bound reaches an exact score need theirs.
Version 1 adds the bits of each R (`sum_bits`).

Version 2 takes the logarithm of a product (`bound_run`): FACTORS_A_PRODUCT factors are multiplied in single precision
before an exponent is looked at, and a logarithm is taken once a lane, at the end. A lane is one of LANES blocks, so
that none is empty and none are added up; the blocks that are left, fewer, have LANES steps side by side. No bound is
too small, and every STEPS_A_PRODUCT steps make it too large by 16 · 0.0861 · ln 2 = 0.96 at most:
1. (2^32 − 1 − w) | 1 is R or R − 1, and at least 1. A factor that is too small makes the bound larger.
2. To round a factor to a float, and a product, adds 2^-24 of it at most: 2^-12 / ln 2 units of ln 2 / 2^11 a step,
   which `units_of` takes off. A product lies between 2^-126 and 2^99, so that no float overflows or loses digits.
3. Cutting off bits of a float makes a logarithm smaller and the bound larger.
"""

import math
from typing import Any

import numpy as np
from numpy import float32, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.native.ciphers import (
    CHUNK,
    LANES,
    WORDS_A_GROUP,
    block_after,
    chacha8_group,
    chacha8_lanes,
    three_columns,
)
from scanner.watermark.native.keyed import term
from scanner.watermark.native.streams import RunRequest, ScoredSteps, begin_run, blocks_of_runs

LONGEST_BOUNDED = 2048
"""Most positions for which the bound is used: sums fit 32 bits, and few messages reach an exact score by mistake."""

BOUND_TILE = 8192
"""Messages that are summed at a time: their sums stay in the first-level cache."""

GROUPS_A_LOOP = 4
"""Groups whose bits are added by one loop."""

PER_LN2 = 2.0**11 / math.log(2.0)  # units of the sums in one ln 2
MOST_OF_A_TERM = (127 + 32) << 11  # a term at log2(2^32 − w) = −127


@kernel
def _add_bits(draws: NDArray[np.uint32], sums: NDArray[np.uint32]) -> None:
    """Add to sums the exponent and 11 bits of the fraction of (2^32 − w) as a float, which is at most one too small."""
    for i in range(len(draws)):
        complement = float32(uint32(~draws[i] | uint32(1)))
        sums[i] += uint32(complement.view(np.uint32) >> uint32(12))


@kernel
def sum_bits(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first_message: int,
    sums: NDArray[np.uint32],
) -> None:
    """Write sums of one document under a tile of messages; the larger a score, the smaller its sum.

    Args:
        key: uint32[8].
        ids: uint32[T], scored tokens, T ≤ LONGEST_BOUNDED.
        nonces: uint64[T].
        first_message: of the tile.
        sums: uint32[WORDS_A_GROUP + messages + WORDS_A_GROUP], written: message first_message + i stands at
            WORDS_A_GROUP + i, and the rest is waste.
    """
    block = np.empty(GROUPS_A_LOOP * WORDS_A_GROUP, np.uint32)
    messages = len(sums) - 2 * WORDS_A_GROUP
    sums[:] = uint32(0)
    for t in range(len(ids)):
        start = int(ids[t]) + first_message
        first, stop = start // WORDS_A_GROUP, (start + messages - 1) // WORDS_A_GROUP + 1
        place = WORDS_A_GROUP - (start - first * WORDS_A_GROUP)
        for begin in range(first, stop, GROUPS_A_LOOP):
            groups = min(GROUPS_A_LOOP, stop - begin)
            for group in range(groups):
                out = block[group * WORDS_A_GROUP : (group + 1) * WORDS_A_GROUP]
                chacha8_group(key, uint64((begin + group) * LANES), nonces[t], out)
            _add_bits(block[: groups * WORDS_A_GROUP], sums[place : place + groups * WORDS_A_GROUP])
            place += groups * WORDS_A_GROUP


@kernel
def largest_sum_of(score: float, scored: int) -> int:
    """Return the largest sum that a message with this score can have, over so many positions.

    A message whose sum is larger has a smaller score. Cutting off bits makes a sum smaller and the bound larger, as it
    may. A conversion rounds up by 2^-24 at most, far less than one unit over all positions; 1e-9 is more than
    double-precision sums can miss.
    """
    return int(scored * MOST_OF_A_TERM - score * (1.0 - 1e-9) * PER_LN2) + 2


BITS = 4
"""log2 of the numbers that a block holds."""

STEPS_A_PRODUCT = 448
"""Steps that are multiplied before logarithms are taken: what their blocks share stays in the first-level cache."""

FACTORS_A_PRODUCT = 7
"""Factors of at most 2^32 that are multiplied before exponents are looked at: they make 2^-126 no larger than 2^99."""

_START, _FRACTION = uint32(1 << 23), uint32((1 << 23) - 1)  # the bits of 2^-126, and those of a float behind the point
_NUMBERS = 1 << BITS
_TILE = _NUMBERS * LANES  # products of a block: those of number k, in LANES lanes, from k · LANES on
_SHARED = 17 * LANES  # what LANES steps keep for all their blocks: counters, nonces, columns, and which lanes are none


@kernel
def bound_run(
    key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, bounds: NDArray[np.int64]
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
    shared = np.empty((min(len(ids), STEPS_A_PRODUCT) + LANES - 1) // LANES * _SHARED, np.uint32)
    tile_end = len(bounds) // _TILE * _TILE
    bounds[:] = 0
    for p in range(0, len(ids), STEPS_A_PRODUCT):
        steps = min(STEPS_A_PRODUCT, len(ids) - p)
        _write_shared(k, ids[p : p + steps], nonces[p : p + steps], first, shared)
        _bound_blocks(k, shared, steps, bounds[:tile_end])
        _bound_steps(k, shared, steps, tile_end >> BITS, bounds[tile_end:])


@kernel
def _bound_blocks(key: tuple[uint32, ...], shared: NDArray[np.uint32], steps: int, bounds: NDArray[np.int64]) -> None:
    """Add bounds over some steps for numbers of whole tiles: LANES blocks of a step stand side by side."""
    products, logarithms = np.empty(_TILE, np.uint32), np.empty(_TILE, np.uint32)
    largest_sum = _most_of(steps, 1)
    for tile in range(0, len(bounds), _TILE):
        _multiply_all(key, shared, steps, uint32(tile >> BITS), 0, products, logarithms)
        _turn(logarithms, products)
        for n in range(uint64(_TILE)):
            bounds[uint64(tile) + n] += largest_sum - np.int64(logarithms[n])


@kernel
def _bound_steps(
    key: tuple[uint32, ...], shared: NDArray[np.uint32], steps: int, block: int, bounds: NDArray[np.int64]
) -> None:
    """Add bounds over some steps for the numbers from a block on: LANES steps of a block stand side by side."""
    products, logarithms = np.empty(_TILE, np.uint32), np.empty(_TILE, np.uint32)
    vectors = (steps + LANES - 1) // LANES
    largest_sum = _most_of(vectors, LANES)
    for b in range(uint64(len(bounds) >> BITS)):
        _multiply_all(key, shared, vectors, uint32(block + b), 1, products, logarithms)
        _add_up(logarithms, products)
        for n in range(uint64(_NUMBERS)):
            bounds[b * uint64(_NUMBERS) + n] += largest_sum - np.int64(logarithms[n])


@kernel
def _most_of(factors: int, lanes: int) -> int:
    """Return the logarithms of so many lanes, in units of 2^-11, if each of their factors were 2^32."""
    moves = (factors - 1) // FACTORS_A_PRODUCT
    return lanes * (32 * factors + moves + 1) << 11  # a product begins at exponent 1


@kernel
def _write_shared(
    key: tuple[uint32, ...], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, out: NDArray[np.uint32]
) -> None:
    """Write what the blocks of each step share, LANES steps after LANES steps; a lane without a step has nothing."""
    for v in range((len(ids) + LANES - 1) // LANES):
        vector = out[v * _SHARED : (v + 1) * _SHARED]
        vector[16 * LANES :] = ~uint32(0)
        for i in range(min(LANES, len(ids) - v * LANES)):
            token, nonce = ids[v * LANES + i], nonces[v * LANES + i]
            vector[i] = uint32(token << uint32(32 - BITS)) | uint32(first >> BITS)
            vector[LANES + i] = token >> uint32(BITS)
            vector[2 * LANES + i], vector[3 * LANES + i] = uint32(nonce), uint32(nonce >> uint64(32))
            vector[16 * LANES + i] = uint32(1)
        for i in range(LANES):
            x = three_columns(key, vector[LANES + i], vector[2 * LANES + i], vector[3 * LANES + i])
            vector[4 * LANES + i], vector[5 * LANES + i], vector[6 * LANES + i] = x[0], x[1], x[2]
            vector[7 * LANES + i], vector[8 * LANES + i], vector[9 * LANES + i] = x[3], x[4], x[5]
            vector[10 * LANES + i], vector[11 * LANES + i], vector[12 * LANES + i] = x[6], x[7], x[8]
            vector[13 * LANES + i], vector[14 * LANES + i], vector[15 * LANES + i] = x[9], x[10], x[11]


@inlined
def _multiply_all(
    key: tuple[uint32, ...],
    shared: NDArray[np.uint32],
    factors: int,
    block: uint32,
    stride: int,
    products: NDArray[np.uint32],
    logarithms: NDArray[np.uint32],
) -> None:
    """Write logarithms of products of so many factors in each lane, in units of 2^-11, number after number.

    stride: as of `_multiply`.
    products: uint32[_TILE], for its use.
    logarithms: uint32[_TILE], written.
    """
    products[:] = _START
    logarithms[:] = uint32(0)
    for begin in range(0, factors, FACTORS_A_PRODUCT):
        if begin:
            _move_exponents(products, logarithms)
        end = min(begin + FACTORS_A_PRODUCT, factors)
        _multiply(key, shared, uint64(begin), uint64(end), block, stride, products)
    _take_logarithms(products, logarithms)


@inlined
def _multiply(
    key: tuple[uint32, ...],
    shared: NDArray[np.uint32],
    begin: uint64,
    end: uint64,
    block: uint32,
    stride: int,
    products: NDArray[np.uint32],
) -> None:
    """Multiply products of numbers, as the bits of floats, by factors begin … end−1 of each lane.

    A lane is a block, and a factor one step of all; or stride is 1, a lane is a step, and factors are those of LANES
    steps after LANES steps. A lane without a step has the factor 2^32: all bits of it are set.
    """
    for f in range(begin, end):
        v, first = (f, uint64(0)) if stride else (f // uint64(LANES), f % uint64(LANES))
        steps = shared[v * uint64(_SHARED) + first :]
        for i in range(LANES):
            s = i * stride
            columns = (
                steps[4 * LANES + s], steps[5 * LANES + s], steps[6 * LANES + s], steps[7 * LANES + s],
                steps[8 * LANES + s], steps[9 * LANES + s], steps[10 * LANES + s], steps[11 * LANES + s],
                steps[12 * LANES + s], steps[13 * LANES + s], steps[14 * LANES + s], steps[15 * LANES + s],
            )  # fmt: skip
            counter = uint32(uint32(steps[s] + block) + uint32(i * (1 - stride)))
            x = block_after(key, columns, counter, steps[LANES + s], steps[2 * LANES + s], steps[3 * LANES + s])
            none = steps[16 * LANES + s]
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
    """Multiply a float's bits by the factor of a draw."""
    factor = float32(uint32(product).view(np.float32) * float32(uint32(~draw | none)))
    return factor.view(np.uint32)


@inlined
def _move_exponents(products: NDArray[np.uint32], exponents: NDArray[np.uint32]) -> None:
    """Move the exponents of products into their sums."""
    for i in range(uint64(_TILE)):
        exponents[i] += products[i] >> uint32(23)
        products[i] = (products[i] & _FRACTION) | _START


@inlined
def _take_logarithms(products: NDArray[np.uint32], logarithms: NDArray[np.uint32]) -> None:
    """Turn sums of exponents into logarithms of products in units of 2^-11."""
    for i in range(uint64(_TILE)):
        logarithms[i] = uint32(logarithms[i] << uint32(11)) + (products[i] >> uint32(12))


@inlined
def _turn(values: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> None:
    """Put the values of each lane side by side, where those of each number were; both uint32[_TILE]."""
    _interleave_halves(values, scratch)
    _interleave_halves(scratch, values)
    _interleave_halves(values, scratch)
    _interleave_halves(scratch, values)


@inlined
def _interleave_halves(values: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    for i in range(uint64(_TILE // 2)):
        out[uint64(2) * i], out[uint64(2) * i + uint64(1)] = values[i], values[i + uint64(_TILE // 2)]


@inlined
def _add_up(values: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> None:
    """Add the values of LANES lanes up, number after number; both uint32[_TILE] or more."""
    _add_pairs(values, scratch, _TILE // 2)
    _add_pairs(scratch, values, _TILE // 4)
    _add_pairs(values, scratch, _TILE // 8)
    _add_pairs(scratch, values, _TILE // 16)


@inlined
def _add_pairs(values: NDArray[np.uint32], out: NDArray[np.uint32], count: int) -> None:
    for i in range(uint64(count)):
        out[i] = values[uint64(2) * i] + values[uint64(2) * i + uint64(1)]


@kernel
def units_of(score: float, scored: int) -> int:
    """Return the least bound, in units of ln 2 / 2^11, that a number of this score can have, over so many positions.

    A number whose bound is smaller has a smaller score. The result leaves more room than the error of logarithms and
    sums in double precision, and than that of products.
    """
    score *= 1.0 - 1e-9 - scored * 2.0**-50
    return int(score * PER_LN2 - scored * 2.0**-11) - 2


def largest_scores(
    key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, length: int
) -> NDArray[np.float64]:
    """Return a score that no number of a run exceeds, the inverse of `units_of`: float64[length].

    Args:
        key: uint32[8].
        ids: uint32[T].
        nonces: uint64[T].
        first: the first number of a block.
        length: how many numbers the run has.
    """
    bounds = np.empty(((length - 1) >> BITS) + 1 << BITS, np.int64)
    bound_run(key, ids, nonces, first, bounds)
    upper_bounds = bounds[:length] + 3.0 + len(ids) * 2.0**-11
    return np.asarray(upper_bounds / (PER_LN2 * (1.0 - 1e-9 - len(ids) * 2.0**-50)), np.float64)


@kernel
def best_of_runs(
    keys: NDArray[np.uint32], steps: ScoredSteps, request: RunRequest
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of largest scores of each run, best first, ties to the smaller, and these scores.

    Args:
        keys: uint32[K, 8].
        steps: of D documents.
        request: its `least` is 2 at most.

    Returns:
        Numbers, int64[R, most], and scores, float64[R, most]; −1 and 0 where there are fewer.
    """
    shape = len(request.first), request.most
    numbers, scores = np.full(shape, -1, np.int64), np.zeros(shape)
    bounds = np.empty(((request.length - 1) >> BITS) + 1 << BITS, np.int64)
    for r in range(len(request.first)):
        document = request.documents[r]
        key, begin, end = keys[steps.whose[document]], steps.offsets[document], steps.offsets[document + 1]
        ids, nonces, first = steps.ids[begin:end], steps.nonces[begin:end], request.first[r]
        bound_run(key, ids, nonces, first, bounds)
        run = key, ids, nonces, first
        list_best(run, bounds[: request.length], request.least, request.floors[r], numbers[r], scores[r])
    return numbers, scores


@kernel
def list_best(
    run: tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint64], int],
    bounds: NDArray[np.int64],
    least: int,
    floor: float,
    numbers: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Write the numbers of largest scores of one run, by bounds on all of them, as `best_of_runs` does.

    Args:
        run: key, uint32[8]; ids, uint32[T]; nonces, uint64[T]; and its first number.
        bounds: int64[length], in units of ln 2 / 2^11, of which `units_of` tells what reaches a score.
        least: 0, 1 or 2.
        floor: of the others.
        numbers: int64[most], written; −1 before.
        scores: float64[most], written; 0 before.
    """
    key, ids, nonces, first = run
    a = _largest(bounds, -1)
    if least == 0 and bounds[a] < units_of(floor, len(ids)):
        return
    best_score = least_score = score_of_number(key, ids, nonces, first + a)
    if least > 1 and len(bounds) > 1:
        least_score = min(best_score, score_of_number(key, ids, nonces, first + _largest(bounds, a)))
    least_bound = units_of(least_score if len(numbers) == 1 else min(least_score, floor), len(ids))
    for number in range(len(bounds)):
        if bounds[number] >= least_bound:
            score = best_score if number == a else score_of_number(key, ids, nonces, first + number)
            _insert(number, score, numbers, scores)
    drop_below(floor, least, numbers, scores)


@kernel
def drop_below(floor: float, least: int, numbers: NDArray[np.int64], scores: NDArray[Any]) -> None:
    """Take out the numbers that score less than a floor, except the first `least` of them."""
    for place in range(least, len(numbers)):
        if scores[place] < floor:
            numbers[place], scores[place] = -1, 0


@kernel
def _largest(bounds: NDArray[np.int64], but: int) -> int:
    """Return the place of the largest value, the first of equal ones, except for place `but`; −1: no exception.

    There is another place than `but`.
    """
    largest_value = np.int64(-(2**63))
    for i in range(len(bounds)):
        largest_value = max(largest_value, bounds[i] if i != but else np.int64(-(2**63)))
    place = 0
    while bounds[place] != largest_value or place == but:
        place += 1
    return place


@kernel
def score_of_number(key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], number: int) -> float:
    """Compute the score of one document for one number, summed in order of position."""
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    total, row = 0.0, (number & 15) * CHUNK
    for p in range(0, len(ids), CHUNK):
        lanes = min(CHUNK, len(ids) - p)
        begin_run(ids[p : p + lanes], nonces[p : p + lanes], number, BITS, inputs)
        chacha8_lanes(key, inputs, lanes, block)
        for draw in block[row : row + lanes]:
            total += term(draw)
    return total


@kernel
def level_sums(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    levels: NDArray[np.uint8],
    numbers: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Compute Σ level · term of one document for each of R numbers, summed in order of position: float64[R]."""
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    sums = np.zeros(len(numbers))
    for r in range(len(numbers)):
        row = (numbers[r] & 15) * CHUNK
        for p in range(0, len(ids), CHUNK):
            lanes = min(CHUNK, len(ids) - p)
            begin_run(ids[p : p + lanes], nonces[p : p + lanes], numbers[r], BITS, inputs)
            chacha8_lanes(key, inputs, lanes, block)
            for i in range(lanes):
                sums[r] += float(levels[p + i]) * term(block[row + i])
    return sums


@kernel
def draws_at(
    key: NDArray[np.uint32], tokens: NDArray[np.int64], nonces: NDArray[np.uint64], numbers: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return the draw of one number of each token's run: uint32[P] for int64[P], uint64[P] and int64[P]."""
    draws = np.empty(len(numbers), np.uint32)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    for p in range(0, len(numbers), CHUNK):
        end = min(p + CHUNK, len(numbers))
        blocks_of_runs(key, nonces[p:end], tokens[p:end], numbers[p:end], BITS, inputs, block)
        for i in range(p, end):
            draws[i] = block[(numbers[i] & 15) * CHUNK + i - p]
    return draws


@kernel
def _insert(number: int, score: float, numbers: NDArray[np.int64], scores: NDArray[Any]) -> None:
    """Put a number among the best so far, which are all smaller: those of the same score stay before it."""
    place = len(numbers)
    while place > 0 and (numbers[place - 1] < 0 or scores[place - 1] < score):
        place -= 1
    for i in range(len(numbers) - 1, place, -1):
        numbers[i], scores[i] = numbers[i - 1], scores[i - 1]
    if place < len(numbers):
        numbers[place], scores[place] = number, score

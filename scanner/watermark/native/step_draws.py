"""Compute draws of version 3: a token's draw at a step under a number, and the token that a step marks (SPEC_3 §1).

Every step has a key of its own. So scores are computed with a step in each lane, whichever key it came from. To mark a
step, its candidate tokens are computed side by side under its one key.

Kernels take these arguments:

- rule: n, b and planes of γ = n / 2^b.
- in_groups: whether the label has groups. Then draws begin with eight digits from planes.
- numbers: int64, the number that is read at each step.
"""

import math

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_keyed_lanes, chacha8_lanes
from scanner.watermark.native.gumbel import approximate_terms, cheapest
from scanner.watermark.native.keyed import below, term
from scanner.watermark.native.steps import Steps
from scanner.watermark.native.streams import begin_run, log2, next_block
from scanner.watermark.positions import Ranges

BITS = 4
"""log2 of the count of draws that a block holds in one plane."""

ROUGH_BITS = 6
"""log2 of the count of numbers whose eight digits a block holds."""

_TILE = 16 * LANES
"""Count of numbers whose running sums are kept at a time."""

_SMALLEST = 2.0**-1000
"""Products above it have lost no precision to numbers that are too small for double precision."""

_ROUGH = uint32(2**31)  # in the higher word of a counter: 2^63, from which on blocks hold the eight planes


def greens_of(steps: Steps, numbers: NDArray[np.int64], rule: tuple[int, int, int]) -> NDArray[np.int64]:
    """Return 1 where the token of a step is green under the number that is read there, else 0: int64[P].

    Args:
        steps: P steps.
        numbers: int64[P].
        rule: of the green list.
    """
    return _greens_of(steps.ids, steps.nonces, steps.keys, numbers, rule)


@kernel
def _greens_of(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    numbers: NDArray[np.int64],
    rule: tuple[int, int, int],
) -> NDArray[np.int64]:
    n, bits, planes = rule
    height = 16 // planes
    out = np.empty(len(ids), np.int64)
    inputs, block = np.empty(12 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    greens = np.empty(16 * CHUNK, np.uint32)
    for begin in range(0, len(ids), CHUNK):
        lanes = min(CHUNK, len(ids) - begin)
        _blocks(ids, nonces, keys, numbers, begin, lanes, 5 + log2(height), uint32(0), inputs, block)
        below(n, bits, height * CHUNK, block, greens[: height * CHUNK])
        for i in range(lanes):
            number = numbers[begin + i]
            word = greens[uint64(((number >> 5) & (height - 1)) * CHUNK + i)]
            out[begin + i] = np.int64((word >> uint32(number & 31)) & uint32(1))
    return out


def draws_of(steps: Steps, numbers: NDArray[np.int64], in_groups: bool) -> NDArray[np.uint32]:
    """Return the draw w of each step's token under the number that is read there: uint32[P].

    Args:
        steps: P steps.
        numbers: int64[P].
        in_groups: whether the label has groups.
    """
    return _draws_of(steps.ids, steps.nonces, steps.keys, numbers, in_groups)


@kernel
def _draws_of(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    numbers: NDArray[np.int64],
    in_groups: bool,
) -> NDArray[np.uint32]:
    out = np.empty(len(ids), np.uint32)
    inputs, block = np.empty(12 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    for begin in range(0, len(ids), CHUNK):
        lanes = min(CHUNK, len(ids) - begin)
        _blocks(ids, nonces, keys, numbers, begin, lanes, BITS, uint32(0), inputs, block)
        for i in range(lanes):
            out[begin + i] = block[uint64((numbers[begin + i] & 15) * CHUNK + i)]
        if in_groups:
            _blocks(ids, nonces, keys, numbers, begin, lanes, ROUGH_BITS, _ROUGH, inputs, block)
            for i in range(lanes):
                out[begin + i] = _with_digits(block, i, numbers[begin + i], out[begin + i])
    return out


@kernel
def _blocks(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    numbers: NDArray[np.int64],
    begin: int,
    lanes: int,
    bits: int,
    top: uint32,
    inputs: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """Write the block with the entry that each step of begin … begin+lanes−1 reads under its number.

    Args:
        ids: of all steps.
        nonces: likewise, N.
        keys: likewise, uint32[8, P].
        numbers: likewise.
        begin: the first step.
        lanes: number of lanes.
        bits: log2 of the count of numbers in a block.
        top: added to the higher words of counters.
        inputs: uint32[12 · CHUNK], scratch.
        out: uint32[16 · CHUNK], written.
    """
    low, high = uint32(32 - bits), uint32(bits)
    _keys_of_lanes(keys, begin, begin + lanes, inputs)
    for i in range(lanes):
        token, nonce = ids[begin + i], nonces[begin + i]
        inputs[8 * CHUNK + i] = uint32(token << low) | uint32(uint32(numbers[begin + i]) >> high)
        inputs[9 * CHUNK + i] = uint32(token >> high) | top
        inputs[10 * CHUNK + i], inputs[11 * CHUNK + i] = uint32(nonce), uint32(nonce >> uint64(32))
    chacha8_keyed_lanes(inputs, lanes, out)


@kernel
def _with_digits(block: NDArray[np.uint32], lane: int, number: int, word: uint32) -> uint32:
    """Return the draw under a label with groups: eight digits from planes of a block, then 24 bits of a word."""
    place, bit = ((number >> 5) & 1) * CHUNK + lane, uint32(number & 31)
    digits = uint32(0)
    for plane in range(8):
        digit = (block[uint64(2 * plane * CHUNK + place)] >> bit) & uint32(1)
        digits = uint32(uint32(digits << uint32(1)) | digit)
    return uint32(uint32(digits << uint32(24)) | uint32(word >> uint32(8)))


@kernel
def _keys_of_lanes(keys: NDArray[np.uint32], begin: int, end: int, inputs: NDArray[np.uint32]) -> None:
    """Write the keys of steps begin … end−1, at most CHUNK, for `chacha8_keyed_lanes`."""
    for w in range(8):
        inputs[w * CHUNK : w * CHUNK + end - begin] = keys[w, begin:end]


@kernel
def count_run(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    begin: int,
    end: int,
    first: int,
    rule: tuple[int, int, int],
    counts: NDArray[np.int64],
) -> None:
    """Count the green draws of steps begin … end−1 for each number of a run.

    Args:
        ids: of all steps.
        nonces: likewise, N.
        keys: likewise, uint32[8, P].
        begin: the first step.
        end: one past the last.
        first: the first number, which is the first of a block.
        rule: of the green list.
        counts: int64[whole blocks], written.
    """
    n, bits, planes = rule
    height = 16 // planes
    inputs, block, row = np.empty(12 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32), np.empty(CHUNK, np.uint32)
    counters = inputs[8 * CHUNK :]
    counts[:] = 0
    for p in range(begin, end, CHUNK):
        stop = min(p + CHUNK, end)
        lanes = stop - p
        _keys_of_lanes(keys, p, stop, inputs)
        begin_run(ids[p:stop], nonces[p:stop], first, 5 + log2(height), counters)
        for b in range(len(counts) // (32 * height)):
            chacha8_keyed_lanes(inputs, lanes, block)
            next_block(counters)
            for k in range(height):
                below(n, bits, height * CHUNK, block[k * CHUNK :], row[:lanes])
                word = counts[32 * (height * b + k) :]
                for j in range(16):  # two numbers at once, 16 bits apart: counts of CHUNK steps fit 16 bits
                    total = uint32(0)
                    for i in range(lanes):
                        total += uint32(row[i] >> uint32(j)) & uint32(0x00010001)
                    word[j] += np.int64(total & uint32(0xFFFF))
                    word[16 + j] += np.int64(total >> uint32(16))


@kernel
def sum_run(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    begin: int,
    end: int,
    first: int,
    in_groups: bool,
    sums: NDArray[np.float64],
) -> None:
    """Add up Gumbel scores of steps begin … end−1 for each number of a run, within `rounding` of the published ones.

    Args:
        ids: of all steps.
        nonces: likewise, N.
        keys: likewise, uint32[8, P].
        begin: the first step.
        end: one past the last.
        first: the first number, which is the first of a block of digits.
        in_groups: whether the label has groups.
        sums: float64[whole blocks of draws], written.
    """
    inputs, block = np.empty(12 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    rough_inputs, digits = np.empty(12 * CHUNK, np.uint32), np.zeros(16 * CHUNK, np.uint32)
    draws, bits = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint64)
    factors = bits.view(np.float64)
    counters, rough_counters = inputs[8 * CHUNK :], rough_inputs[8 * CHUNK :]
    sums[:] = 0.0
    for p in range(begin, end, CHUNK):
        stop = min(p + CHUNK, end)
        lanes = stop - p
        _keys_of_lanes(keys, p, stop, inputs)
        _keys_of_lanes(keys, p, stop, rough_inputs)
        begin_run(ids[p:stop], nonces[p:stop], first, BITS, counters)
        begin_run(ids[p:stop], nonces[p:stop], first, ROUGH_BITS, rough_counters)
        for i in range(lanes):
            rough_counters[CHUNK + i] |= _ROUGH
        for number in range(len(sums)):
            if number & 15 == 0:
                chacha8_keyed_lanes(inputs, lanes, block)
                next_block(counters)
            if in_groups and number & 63 == 0:
                chacha8_keyed_lanes(rough_inputs, lanes, digits)
                next_block(rough_counters)
            words = block[(number & 15) * CHUNK : ((number & 15) + 1) * CHUNK]
            if in_groups:
                _draws_with_digits(digits[(number >> 5 & 1) * CHUNK :], number & 31, words[:lanes], draws)
                words = draws
            sums[number] -= _log_of_product(words, lanes, bits, factors)


@kernel
def _log_of_product(
    draws: NDArray[np.uint32], count: int, bits: NDArray[np.uint64], factors: NDArray[np.float64]
) -> float:
    """Return Σ ln(1−r) of the first draws.

    It is the logarithm of a product of factors that are exact in double precision.

    Args:
        draws: uint32[CHUNK].
        count: number of draws.
        bits: uint64[CHUNK], scratch.
        factors: the same memory, as float64.
    """
    width = LANES
    while width < count:
        width *= 2
    for i in range(uint64(count)):
        bits[i] = uint64(0x4330000000000000) | uint64(~draws[i])  # 2^52 + 2^32 − 1 − w
    for i in range(uint64(count)):
        factors[i] = (factors[i] - (2.0**52 - 1.0)) * 2.0**-32
    factors[count:width] = 1.0
    while width > LANES:  # at most CHUNK / LANES factors of at least 2^-32: the product is above 2^-512
        width //= 2
        low, high = factors[:width], factors[width : 2 * width]
        for i in range(uint64(width)):
            low[i] *= high[i]
    product = 1.0
    for i in range(LANES):
        product *= factors[i]
    if product > _SMALLEST:
        return math.log(product)
    total = 0.0
    for i in range(LANES):
        total += math.log(factors[i])
    return total


@kernel
def rounding(scored: int, score: float) -> float:
    """Bound the distance between `sum_run`'s score over so many steps and the published one, with a small reserve.

    Both sums, and the product's logarithm, are off by less than one unit in the last place of each operation.
    """
    return (scored + 32) * (score + 32.0) * 2.0**-50


@kernel
def _draws_with_digits(
    digits: NDArray[np.uint32], bit: int, words: NDArray[np.uint32], draws: NDArray[np.uint32]
) -> None:
    """Write the draws of `_with_digits`, of one number at many steps.

    Args:
        digits: uint32[…], the planes' words of the lanes, 2 · CHUNK apart.
        bit: bit of the number in them.
        words: uint32[L], whose upper bits follow the digits.
        draws: uint32[L] or more, written.
    """
    for i in range(len(words)):
        draws[i] = words[i] >> uint32(8)
    for plane in range(8):
        row = digits[2 * plane * CHUNK : 2 * plane * CHUNK + len(words)]
        for i in range(len(words)):
            draws[i] |= uint32((row[i] >> uint32(bit)) & uint32(1)) << uint32(31 - plane)


@kernel
def whole_blocks(count: int, bits: int) -> int:
    """Return how many numbers the blocks of 2^bits have that hold the first `count` numbers."""
    return ((count - 1 >> bits) + 1) << bits


def best_of_all(steps: Steps, count: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the best numbers among 0 … count−1 of each document under a Gumbel label without groups, and their scores.

    They come best first, ties to the smaller: int64[D, most] and float64[D, most]. −1 and 0 where there are fewer.
    """
    documents = len(steps.offsets) - 1
    numbers, scores = np.full((documents, most), -1, np.int64), np.zeros((documents, most))
    _best_of_all(*steps, count, numbers, scores)
    return numbers, scores


@kernel
def _best_of_all(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    count: int,
    numbers: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    most = min(numbers.shape[1], count)
    sums, largest = np.empty(whole_blocks(count, BITS)), np.empty(most)
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        sum_run(ids, nonces, keys, begin, end, 0, False, sums)
        run = sums[:count]
        largest[:] = -1.0
        for total in run:
            if total > largest[0]:  # replace the least of the largest sums so far
                place = 0
                while place + 1 < most and largest[place + 1] < total:
                    largest[place] = largest[place + 1]
                    place += 1
                largest[place] = total
        # `most` numbers reach largest[0], and all of them beat every number two bounds below it
        candidates = np.flatnonzero(run >= largest[0] - 2.0 * rounding(end - begin, largest[most - 1]))
        exact = np.empty(len(candidates))
        for c in range(len(candidates)):
            exact[c] = score_of(ids, nonces, keys, begin, end, candidates[c], False)
        order = np.argsort(-exact, kind="mergesort")  # stable: of ties the smaller number first
        for place in range(most):
            numbers[d, place], scores[d, place] = candidates[order[place]], exact[order[place]]


def best_in_windows(steps: Steps, windows: Ranges, count: int) -> NDArray[np.int64]:
    """Return the number among 0 … count−1 of largest Gumbel score in each window, or one that scores nearly as much.

    Each step is drawn once, and sums of windows are differences of running sums, in units of ln 2 / 2^11.

    Args:
        steps: of D documents under a label without groups, at most LONGEST_AT_ONCE steps each.
        windows: W ranges of them.
        count: count of numbers.

    Returns:
        int64[W].
    """
    numbers = np.zeros(len(windows.begin), np.int64)
    longest = int(steps.scored[np.diff(windows.first) > 0].max(initial=0))
    sums = np.empty((longest + 1, _TILE), np.uint32)
    _best_in_windows(*steps, *windows, count, sums, numbers)
    return numbers


@kernel
def _best_in_windows(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    count: int,
    sums: NDArray[np.uint32],
    numbers: NDArray[np.int64],
) -> None:
    key, inputs, block = np.empty(8, np.uint32), np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    draws, terms, scratch = np.empty(_TILE, np.uint32), np.empty(_TILE, np.uint32), np.empty(_TILE, np.float32)
    best, difference = np.zeros(len(numbers), np.uint32), np.empty(_TILE, np.uint32)
    places = np.arange(_TILE)
    order = places % LANES * 16 + places // LANES  # number at each place: word k of all blocks, then word k + 1
    for d in range(len(first) - 1):
        if first[d] == first[d + 1]:
            continue
        for tile in range(0, count, _TILE):
            sums[0] = 0
            for p in range(offsets[d], offsets[d + 1]):
                key[:] = keys[:, p]
                low, high = uint32(ids[p] << uint32(32 - BITS)) | uint32(tile >> BITS), uint32(ids[p] >> uint32(BITS))
                for i in range(LANES):
                    inputs[i], inputs[CHUNK + i] = low + uint32(i), high
                    inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = uint32(nonces[p]), uint32(nonces[p] >> uint64(32))
                chacha8_lanes(key, inputs, LANES, block)
                for k in range(16):
                    draws[k * LANES : (k + 1) * LANES] = block[k * CHUNK : k * CHUNK + LANES]
                approximate_terms(draws, scratch, terms)
                before, after = sums[p - offsets[d]], sums[p - offsets[d] + 1]
                for i in range(_TILE):
                    after[i] = before[i] + uint32(terms[i] >> uint32(12))
            for w in range(first[d], first[d + 1]):
                before, after = sums[begin[w] - offsets[d]], sums[end[w] - offsets[d]]
                largest = uint32(0)
                for i in range(_TILE):
                    difference[i] = after[i] - before[i] if tile + order[i] < count else uint32(0)
                    largest = max(largest, difference[i])
                if largest > best[w]:
                    number = _TILE
                    for i in range(_TILE):
                        if difference[i] == largest:
                            number = min(number, order[i])
                    best[w], numbers[w] = largest, tile + number


@kernel
def score_of(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    begin: int,
    end: int,
    number: int,
    in_groups: bool,
) -> float:
    """Compute the Gumbel score of one number over steps begin … end−1 as published: in order, in double precision.

    Args:
        ids: of all steps.
        nonces: likewise, N.
        keys: likewise, uint32[8, P].
        begin: the first step.
        end: one past the last.
        number: the number that is read.
        in_groups: whether the label has groups.
    """
    numbers = np.full(end - begin, number, np.int64)
    total = 0.0
    for draw in _draws_of(ids[begin:end], nonces[begin:end], keys[:, begin:end], numbers, in_groups):
        total += term(draw)
    return total


@kernel
def green_tokens(
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    numbers: NDArray[np.int64],
    rule: tuple[int, int, int],
    tokens: int,
) -> NDArray[np.bool_]:
    """Return which of the tokens 0 … V−1 are green at each step under the number that is read there: bool[R, V].

    Args:
        nonces: N, uint64[R].
        keys: uint32[8, R].
        numbers: int64[R].
        rule: of the green list.
        tokens: V.
    """
    n, bits, planes = rule
    height = 16 // planes
    out = np.empty((len(nonces), tokens), np.bool_)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    ids, step_nonces, row = (np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint32))
    for r in range(len(nonces)):
        key, number = keys[:, r].copy(), numbers[r]
        step_nonces[:] = nonces[r]
        for first in range(0, tokens, CHUNK):
            lanes = min(CHUNK, tokens - first)
            for i in range(lanes):
                ids[i] = first + i
            begin_run(ids[:lanes], step_nonces, number, 5 + log2(height), inputs)
            chacha8_lanes(key, inputs, lanes, block)
            below(n, bits, height * CHUNK, block[((number >> 5) & (height - 1)) * CHUNK :], row[:lanes])
            for i in range(lanes):
                out[r, first + i] = (row[i] >> uint32(number & 31)) & uint32(1) != 0
    return out


@kernel
def choose_token(
    nonce: uint64, key: NDArray[np.uint32], number: int, in_groups: bool, weights: NDArray[np.float64]
) -> int:
    """Return the token of one step: the least −ln(r)/p_v among those with p_v > 0, ties to the smallest id.

    Args:
        nonce: N.
        key: uint32[8].
        number: the number that is read there.
        in_groups: whether the label has groups.
        weights: float64[V], p up to a factor.

    Returns:
        The token. −1 if there is none.
    """
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    ids, chances, step_nonces = (np.empty(CHUNK, np.uint32), np.empty(CHUNK), np.full(CHUNK, nonce))
    draws, row = np.empty(CHUNK, np.uint32), (number & 15) * CHUNK
    best_token, cost, lanes = -1, math.inf, 0
    for token in range(len(weights)):
        if weights[token] > 0.0:
            ids[lanes], chances[lanes] = token, weights[token]
            lanes += 1
        if lanes == CHUNK or (lanes and token == len(weights) - 1):
            begin_run(ids[:lanes], step_nonces, number, BITS, inputs)
            chacha8_lanes(key, inputs, lanes, block)
            draws[:lanes] = block[row : row + lanes]
            if in_groups:
                begin_run(ids[:lanes], step_nonces, number, ROUGH_BITS, inputs)
                for i in range(lanes):
                    inputs[CHUNK + i] |= _ROUGH
                chacha8_lanes(key, inputs, lanes, block)
                for i in range(lanes):
                    draws[i] = _with_digits(block, i, number, draws[i])
            place, cost = cheapest(draws[:lanes], chances[:lanes], 0, -1, cost)
            if place >= 0:
                best_token = int(ids[place])
            lanes = 0
    return best_token

"""Windows of a document under version 2: which message may stand out in which, and the best number of each (SPEC_2 §1).

With groups the group steps say which group is the best of each window, and where that is better than chance alone
makes it, the window's user steps say which user of it. That can only miss (scanner.looks.parts.search).

The running sums of each number over the steps are made once, and a window is a difference of two of them. So all W
windows of T steps take T draws and W differences a number, where a search of each window took as many draws as it has
steps. A green list's sums are bytes, COLUMNS of them side by side, in documents of MOST_IN_BYTES steps at most: eight
are added by one addition of 64 bits. In longer documents they have 16 bits.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import float32, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_lanes
from scanner.watermark.native.gumbel_runs import BITS, MOST_OF_A_TERM, _insert, drop_below, list_best
from scanner.watermark.native.keyed import below
from scanner.watermark.native.streams import ScoredSteps, begin_run, log2
from scanner.watermark.positions import Ranges

LONGEST_TOGETHER = 512
"""Most steps of a part whose best numbers are found with those of windows: in longer ones too many bounds of Gumbel
scores reach a score by mistake.
"""

MOST_SUMS = 1 << 16
"""Most sums of a document's parts that are kept for a while, which a mark does whose scores are bounded: what is kept
stays in a cache.
"""


class PartRequest(NamedTuple):
    """Parts of documents with windows, of which numbers are listed: the best, and others that score enough.

    first: as of Ranges.
    begin: as of Ranges.
    end: as of Ranges, LONGEST_TOGETHER steps after `begin` at most.
    most: numbers of a part.
    floors: float64[R], the score that all but the best need.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    most: int
    floors: NDArray[np.float64]

    @classmethod
    def none(cls, documents: int) -> "PartRequest":
        """Return a request without parts, for this number of documents."""
        return cls(np.zeros(documents + 1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), 0, np.empty(0))


class BestNumbers(NamedTuple):
    """Best numbers of W windows and R parts.

    number: int64[W], the one that scores most in each window.
    bound: float64[W], on that score.
    of_parts: int64[R, most], as BestOfRuns gives them.
    scores: [R, most], likewise.
    """

    number: NDArray[np.int64]
    bound: NDArray[np.float64]
    of_parts: NDArray[np.int64]
    scores: NDArray[np.generic]


WIDTH = 32
"""Numbers of a word."""

COLUMNS = 8 * WIDTH
"""Numbers whose green steps are counted side by side."""

MOST_IN_BYTES = 255
"""Most steps of a document whose sums are bytes: none carries into the next."""


class GreenScratch(NamedTuple):
    """Arrays that `best_green` works in, made outside of its kernel: to compile np.empty and views takes seconds.

    inputs: uint32[4 · CHUNK].
    block: uint32[16 · CHUNK].
    row: uint32[CHUNK].
    words: uint32[steps, W], which numbers of a run are green in each step.
    word_bytes: the same, flat and as bytes.
    sums: running sums, uint8[(steps + 1) · COLUMNS] or more.
    sums_of_16_bits, sums_of_64_bits: the same as wider numbers.
    places: uint32[COLUMNS], 0 and on.
    """

    inputs: NDArray[np.uint32]
    block: NDArray[np.uint32]
    row: NDArray[np.uint32]
    words: NDArray[np.uint32]
    word_bytes: NDArray[np.uint8]
    sums: NDArray[np.uint8]
    sums_of_16_bits: NDArray[np.uint16]
    sums_of_64_bits: NDArray[np.uint64]
    places: NDArray[np.uint32]

    @classmethod
    def of_steps(cls, longest: int, height: int) -> "GreenScratch":
        """Make the arrays for documents of so many steps at most; height: words of a block."""
        words = np.zeros((longest, max(height, COLUMNS // WIDTH)), np.uint32)
        sums = np.empty((longest + 1) * COLUMNS * (1 if longest <= MOST_IN_BYTES else 2), np.uint8)
        return cls(
            np.empty(4 * CHUNK, np.uint32),
            np.empty(16 * CHUNK, np.uint32),
            np.empty(CHUNK, np.uint32),
            words,
            words.reshape(-1).view(np.uint8),
            sums,
            sums.view(np.uint16),
            sums.view(np.uint64),
            np.arange(COLUMNS, dtype=np.uint32),
        )


def best_green(
    keys: NDArray[np.uint32],
    steps: ScoredSteps,
    windows: Ranges,
    parts: PartRequest,
    count: int,
    rule: tuple[int, int, int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of largest count of each window, ties to the smaller, and that count; then those of parts.

    Args:
        keys: uint32[K, 8].
        steps: of all documents.
        windows: ranges of `steps`.
        parts: ranges of `steps`, of documents with windows.
        count: numbers 0 … count−1.
        rule: n, b and planes of γ = n / 2^b.

    Returns:
        Numbers and counts of windows, int64[W] both, then numbers of largest counts of each part and these counts, as
        `green_runs.best_of_runs` gives them, int64[R, most] both.
    """
    numbers, scores = np.zeros(len(windows.begin), np.int64), np.full(len(windows.begin), -1)
    shape = len(parts.begin), parts.most
    listed_numbers, listed_scores = np.full(shape, -1), np.zeros(shape, np.int64)
    scratch = GreenScratch.of_steps(int(np.diff(steps.offsets).max(initial=0)), 16 // rule[2])
    _best_green(keys, steps, windows, parts, count, rule, scratch, numbers, scores, listed_numbers, listed_scores)
    return numbers, scores, listed_numbers, listed_scores


@kernel
def _best_green(
    keys: NDArray[np.uint32],
    steps: ScoredSteps,
    windows: Ranges,
    parts: PartRequest,
    count: int,
    rule: tuple[int, int, int],
    scratch: GreenScratch,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
    listed_numbers: NDArray[np.int64],
    listed_scores: NDArray[np.int64],
) -> None:
    """Write what `best_green` returns."""
    first, begin, end = windows
    n, bits, planes = rule
    height = 16 // planes
    per_block = 5 + log2(height)
    inputs, block, row, words, word_bytes, sums, sums_of_16_bits, sums_of_64_bits, places = scratch
    for d in range(len(first) - 1):
        key, document_begin, size = keys[steps.whose[d]], steps.offsets[d], steps.offsets[d + 1] - steps.offsets[d]
        of_windows = document_begin, first[d], first[d + 1], begin, end, numbers, scores
        of_parts = document_begin, d, parts, listed_numbers, listed_scores
        for run in range(0, count if first[d + 1] > first[d] else 0, height * WIDTH):
            # 1. Draw which numbers of the run are green in each step.
            for p in range(document_begin, document_begin + size, CHUNK):
                lanes = min(CHUNK, document_begin + size - p)
                begin_run(steps.ids[p : p + lanes], steps.nonces[p : p + lanes], run, per_block, inputs)
                chacha8_lanes(key, inputs, lanes, block)
                for k in range(height):
                    below(n, bits, height * CHUNK, block[k * CHUNK :], row[:lanes])
                    _put_words(row[:lanes], count - run - k * WIDTH, words[p - document_begin :, k])
            # 2. Sum them up, and look at the windows and parts.
            for number in range(run, min(run + height * WIDTH, count), COLUMNS):
                if size <= MOST_IN_BYTES:
                    _sum_in_bytes(word_bytes[(number - run) // 8 :], 4 * words.shape[1], size, sums_of_64_bits)
                    _find_best(sums, places, number, *of_windows)
                    _list_best(sums, number, count, *of_parts)
                else:
                    _sum_in_halves(words[:size, (number - run) // WIDTH :], sums_of_16_bits)
                    _find_best(sums_of_16_bits, places, number, *of_windows)
                    _list_best(sums_of_16_bits, number, count, *of_parts)
        for p in range(parts.first[d], parts.first[d + 1]):
            drop_below(parts.floors[p], 1, listed_numbers[p], listed_scores[p])


@kernel
def _put_words(row: NDArray[np.uint32], valid: int, out: NDArray[np.uint32]) -> None:
    """Write a word of each step into its row of words, without the bits of all but the first `valid` numbers."""
    mask = uint32(0) if valid <= 0 else ~uint32(0) if valid >= WIDTH else uint32((1 << valid) - 1)
    for i in range(uint64(len(row))):
        out[i] = row[i] & mask


@kernel
def _sum_in_bytes(word_bytes: NDArray[np.uint8], stride: int, steps: int, sums: NDArray[np.uint64]) -> None:
    """Write running sums of the bits of COLUMNS numbers over some steps as bytes, eight in a word.

    word_bytes: the bytes of each step's words, `stride` bytes behind those of the one before.
    """
    ones, each_bit, fill = uint64(0x0101010101010101), uint64(0x8040201008040201), uint64(0x7F7F7F7F7F7F7F7F)
    columns = uint64(COLUMNS // 8)
    totals = np.zeros(COLUMNS // 8, np.uint64)
    sums[:columns] = uint64(0)
    for i in range(uint64(steps)):
        step, next_begin = i * uint64(stride), (i + uint64(1)) * columns
        for k in range(columns):
            # bit j of a byte comes into byte j, and each byte that has one becomes 1
            spread = uint64(uint64(word_bytes[step + k]) * ones) & each_bit
            totals[k] += uint64(uint64(spread + fill) >> uint64(7)) & ones
            sums[next_begin + k] = totals[k]


@kernel
def _sum_in_halves(words: NDArray[np.uint32], sums: NDArray[np.uint16]) -> None:
    """Write running sums as `_sum_in_bytes` does, in 16 bits each; words: [steps, numbers / 32]."""
    totals = np.zeros(COLUMNS, np.uint16)
    sums[:COLUMNS] = np.uint16(0)
    for i in range(uint64(len(words))):
        next_begin = (i + uint64(1)) * uint64(COLUMNS)
        for k in range(uint64(COLUMNS // WIDTH)):
            word, place = words[i, k], k * uint64(WIDTH)
            for j in range(uint64(WIDTH)):
                totals[place + j] += np.uint16(uint32(word >> uint32(j)) & uint32(1))
                sums[next_begin + place + j] = totals[place + j]


@kernel
def _list_best(
    sums: NDArray[np.unsignedinteger[Any]],
    number: int,
    count: int,
    document_begin: int,
    document: int,
    parts: PartRequest,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Put numbers among the best of each part of a document: the first of all, better ones, those that reach a floor.

    sums: as of `_find_best`.
    number: the first of COLUMNS numbers, of which those below `count` count.
    """
    narrow, columns = sums.dtype.type, uint64(COLUMNS)
    for p in range(parts.first[document], parts.first[document + 1]):
        low, high = uint64(parts.begin[p] - document_begin) * columns, uint64(parts.end[p] - document_begin) * columns
        largest, floor = narrow(0), parts.floors[p]
        for j in range(columns):
            largest = max(largest, narrow(sums[high + j] - sums[low + j]))
        if numbers[p, 0] >= 0 and np.int64(largest) <= scores[p, 0] and np.int64(largest) < floor:
            continue  # as of most numbers
        for j in range(uint64(min(COLUMNS, count - number))):
            score = int(np.int64(narrow(sums[high + j] - sums[low + j])))
            if numbers[p, 0] < 0 or score > scores[p, 0] or score >= floor:
                _insert(int(number + np.int64(j)), score, numbers[p], scores[p])


@kernel
def _room_for(
    parts: PartRequest, count: int, columns: int, zero: float
) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]:
    """Return numbers of parts, −1, their scores, `zero`, and room for sums of all numbers of a document's parts."""
    shape = len(parts.begin), parts.most
    part_count = np.max(np.diff(parts.first)) if len(parts.first) > 1 else 0
    return np.full(shape, -1), np.full(shape, zero), np.empty((part_count, count + columns), np.int64)


@kernel
def _keep_sums(
    sums: NDArray[np.uint32],
    places: NDArray[np.uint32],
    number: int,
    document_begin: int,
    document: int,
    parts: PartRequest,
    out: NDArray[np.int64],
) -> None:
    """Write the sums of some numbers over each part of a document: int64[R, numbers]; arguments as of `_find_best`."""
    columns, first = uint64(len(places)), parts.first[document]
    for p in range(first, parts.first[document + 1]):
        low, high = uint64(parts.begin[p] - document_begin) * columns, uint64(parts.end[p] - document_begin) * columns
        for j in range(columns):
            out[p - first, number + np.int64(places[j])] = uint32(sums[high + j] - sums[low + j])


@kernel
def _find_best(
    sums: NDArray[np.unsignedinteger[Any]],
    places: NDArray[np.uint32],
    number: int,
    document_begin: int,
    first: int,
    last: int,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Keep the best number of each of a document's windows, first … last−1, where it is better than any before.

    sums: [steps + 1, C], flat, running sums of C numbers, as narrow as they are. Differences of sums that went around
        are right still.
    places: uint32[C], which number each is, from `number` on.
    """
    narrow, columns = sums.dtype.type, uint64(len(places))
    for w in range(first, last):
        low, high = uint64(begin[w] - document_begin) * columns, uint64(end[w] - document_begin) * columns
        largest = narrow(0)
        for j in range(columns):
            largest = max(largest, narrow(sums[high + j] - sums[low + j]))
        if np.int64(largest) > scores[w]:
            place = ~uint32(0)
            for j in range(columns):
                if narrow(sums[high + j] - sums[low + j]) == largest:
                    place = min(place, places[j])
            scores[w], numbers[w] = largest, number + np.int64(place)


NUMBERS = 1 << BITS
"""Numbers of a block."""


@kernel
def best_gumbel(
    keys: NDArray[np.uint32], steps: ScoredSteps, windows: Ranges, parts: PartRequest, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the number of largest bound on its score of each window, and that bound; then those of parts.

    Arguments and result are as of `best_green`, with bounds of windows in units of ln 2 / 2^11 and scores of parts. A
    window has 2^16 steps at most.
    """
    first, begin, end = windows
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK + LANES, np.uint32)
    longest = np.max(np.diff(steps.offsets))
    # number k of block b in column LANES · k + b; differences of sums that went around are right still
    sums, columns = np.zeros((longest + 1) * LANES * NUMBERS, np.uint32), np.arange(LANES * NUMBERS)
    places = (columns % LANES * NUMBERS + columns // LANES).astype(np.uint32)
    is_none = np.ones(((count - 1) // len(places) + 1, len(places)), np.uint32)
    is_none[-1] = np.where(places <= uint32((count - 1) % len(places)), uint32(1), ~uint32(0))
    numbers, scores = np.zeros(len(begin), np.int64), np.full(len(begin), -1)
    listed_numbers, listed_scores, sums_of_parts = _room_for(parts, count, LANES * NUMBERS, 0.0)
    for d in range(len(first) - 1):
        key, document_begin, size = keys[steps.whose[d]], steps.offsets[d], steps.offsets[d + 1] - steps.offsets[d]
        for run in range(0, count if first[d + 1] > first[d] else 0, LANES * NUMBERS):
            side = min(LANES, (count - run + NUMBERS - 1) // NUMBERS)
            at_once, none = CHUNK // side, is_none[run // len(places)]
            for p in range(0, size, at_once):
                step_count = min(at_once, size - p)
                _begin_side_by_side(steps, document_begin + p, step_count, run >> BITS, side, inputs)
                chacha8_lanes(key, inputs, step_count * side, block)
                _add_bounds(block, side, step_count, none, sums[p * len(places) :])
            _find_best(sums, places, run, document_begin, first[d], first[d + 1], begin, end, numbers, scores)
            _keep_sums(sums, places, run, document_begin, d, parts, sums_of_parts)
        for p in range(parts.first[d], parts.first[d + 1]):
            part_steps = key, steps.ids[parts.begin[p] : parts.end[p]], steps.nonces[parts.begin[p] : parts.end[p]], 0
            bounds = sums_of_parts[p - parts.first[d], :count]
            list_best(part_steps, bounds, 1, parts.floors[p], listed_numbers[p], listed_scores[p])
    return numbers, scores, listed_numbers, listed_scores


@kernel
def _begin_side_by_side(
    steps: ScoredSteps, first: int, size: int, block: int, side: int, inputs: NDArray[np.uint32]
) -> None:
    """Write counters and nonces of `side` blocks of each of some steps, step by step, as `chacha8_lanes` takes them."""
    for i in range(uint64(size)):
        p, lane = uint64(first) + i, i * uint64(side)
        low, high = uint32(steps.ids[p] << uint32(32 - BITS)) | uint32(block), steps.ids[p] >> uint32(BITS)
        low_nonce, high_nonce = uint32(steps.nonces[p]), uint32(steps.nonces[p] >> uint64(32))
        for b in range(uint64(side)):
            inputs[lane + b], inputs[uint64(CHUNK) + lane + b] = low + uint32(b), high
            inputs[uint64(2 * CHUNK) + lane + b], inputs[uint64(3 * CHUNK) + lane + b] = low_nonce, high_nonce


@kernel
def _add_bounds(
    block: NDArray[np.uint32], side: int, size: int, none: NDArray[np.uint32], sums: NDArray[np.uint32]
) -> None:
    """Go on with running sums of bounds on the terms of some steps, from those before the first of them.

    A number that is none adds 0: all bits of it are set, and those of every other one's last place.
    """
    row, width = uint64(CHUNK), uint64(LANES)
    for i in range(uint64(size)):
        last_begin, next_begin = i * uint64(LANES * NUMBERS), (i + uint64(1)) * uint64(LANES * NUMBERS)
        for k in range(uint64(0), uint64(NUMBERS), uint64(4)):
            draws, place = k * row + i * uint64(side), k * width
            for lane in range(width):  # four at once: the compiler unrolls a shorter loop, and finds no vectors then
                a, j = draws + lane, place + lane
                b, c, d = j + width, j + width + width, j + width + width + width
                sums[next_begin + j] = sums[last_begin + j] + _bound_of(block[a], none[j])
                sums[next_begin + b] = sums[last_begin + b] + _bound_of(block[a + row], none[b])
                sums[next_begin + c] = sums[last_begin + c] + _bound_of(block[a + row + row], none[c])
                sums[next_begin + d] = sums[last_begin + d] + _bound_of(block[a + row + row + row], none[d])


@kernel
def _bound_of(draw: uint32, none: uint32) -> uint32:
    """Return a bound on a draw's term in units of ln 2 / 2^11, by exponent and 11 bits of the fraction of 2^32 − w."""
    complement = float32(uint32(~draw | none))
    return uint32(MOST_OF_A_TERM) - uint32(complement.view(np.uint32) >> uint32(12))

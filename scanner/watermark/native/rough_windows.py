"""Find the best numbers of windows and parts of documents by rough score (SPEC_3 §4). Every step is drawn once.

A range's rough score is the difference of two running sums. These are needed only where ranges begin and end. So the
digits of the steps in between are first counted in vertical counters, 16 words of 32 numbers side by side, and become
bytes there. Sums have 8, 16 or 32 bits, the fewest that hold the sums of the whole document. Narrower sums let more
differences be taken at once.
"""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy import uint16, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_keyed_lanes
from scanner.watermark.native.rough_runs import (
    ROW,
    add3,
    bytes_of_planes,
    digits_of_block,
    fill_lanes,
    first_bits,
    largest_digit,
    rows_of_digit,
)
from scanner.watermark.native.steps import Steps
from scanner.watermark.native.streams import log2
from scanner.watermark.positions import Ranges, offsets_of

COLUMNS = 32 * LANES
"""Count of numbers whose running sums are kept at a time."""

LEVELS = 6
"""Levels of the counters between two sums. They hold 7 steps of Gumbel marks, or 63 of a green list."""

_WORDS = LANES * CHUNK + LANES
"""Words in one row of bits of a chunk's digits, step by step."""


class _Scratch(NamedTuple):
    """Arrays of one call. They are made outside of the kernel, because compiling np.empty and views takes seconds.

    inputs: uint32[12 · CHUNK].
    block: uint32[16 · CHUNK].
    segments: int64[CHUNK, 5], as in `fill_lanes`.
    begin, end, first: int64[1], a document's steps and a number.
    digits: uint32[LANES · rows · ROW], rows of bits of each word's digits.
    quarters: uint32[4 · 4 · CHUNK], for `_turn`.
    turned: uint32[rows · _WORDS], the same rows with the words of a step side by side.
    counters: uint32[LEVELS · LANES], vertical counters of LANES words.
    totals: uint32[COLUMNS], sums so far.
    sums: uint32, sums at each edge of a document.
    sums_of_8_bits, sums_of_16_bits: the same, as narrower numbers.
    places_of_8_bits, places_of_16_bits, places: uint16[COLUMNS], the number that each sum of an edge counts.
    columns_of_8_bits, columns_of_16_bits, columns: uint16[COLUMNS], the sum that counts each number.
    differences_of_8_bits, differences_of_16_bits, differences: [COLUMNS], sums of one range.
    valid: uint32[W], the bits of words that belong to numbers.
    """

    inputs: NDArray[np.uint32]
    block: NDArray[np.uint32]
    segments: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    first: NDArray[np.int64]
    digits: NDArray[np.uint32]
    quarters: NDArray[np.uint32]
    turned: NDArray[np.uint32]
    counters: NDArray[np.uint32]
    totals: NDArray[np.uint32]
    sums: NDArray[np.uint32]
    sums_of_8_bits: NDArray[np.uint8]
    sums_of_16_bits: NDArray[np.uint16]
    places_of_8_bits: NDArray[np.uint16]
    places_of_16_bits: NDArray[np.uint16]
    places: NDArray[np.uint16]
    columns_of_8_bits: NDArray[np.uint16]
    columns_of_16_bits: NDArray[np.uint16]
    columns: NDArray[np.uint16]
    differences_of_8_bits: NDArray[np.uint8]
    differences_of_16_bits: NDArray[np.uint16]
    differences: NDArray[np.uint32]
    valid: NDArray[np.uint32]

    @classmethod
    def of_edges(cls, most_words: int, count: int, rule: tuple[int, int, int]) -> Self:
        """Make the arrays. `most_words` is the number of words for the sums of a document."""
        rows, sums, number = rows_of_digit(rule), np.empty(most_words, np.uint32), np.arange(COLUMNS)
        word, byte, bit = number // 32, number // 8 % 4, number % 8  # for each number
        columns_of_8_bits = (4 * (bit * LANES + word) + byte).astype(np.uint16)
        columns_of_16_bits = (2 * ((2 * bit + byte % 2) * LANES + word) + byte // 2).astype(np.uint16)
        columns = ((4 * bit + byte) * LANES + word).astype(np.uint16)
        places_of_8_bits, places_of_16_bits, places = (
            np.argsort(each).astype(np.uint16) for each in (columns_of_8_bits, columns_of_16_bits, columns)
        )
        return cls(
            np.zeros(12 * CHUNK, np.uint32),
            np.zeros(16 * CHUNK, np.uint32),
            np.empty((CHUNK, 5), np.int64),
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            np.zeros(LANES * rows * ROW, np.uint32),
            np.empty(16 * CHUNK, np.uint32),
            np.empty(rows * _WORDS, np.uint32),
            np.zeros(LEVELS * LANES, np.uint32),
            np.zeros(COLUMNS, np.uint32),
            sums,
            sums.view(np.uint8),
            sums.view(np.uint16),
            *(places_of_8_bits, places_of_16_bits, places),
            *(columns_of_8_bits, columns_of_16_bits, columns),
            np.empty(COLUMNS, np.uint8),
            np.empty(COLUMNS, np.uint16),
            np.empty(COLUMNS, np.uint32),
            first_bits(np.arange(-(-count // COLUMNS) * LANES), count),
        )


class _Edges(NamedTuple):
    """The edges of ranges in documents: sums are kept there.

    places: int64[E], the number of steps before each edge, ascending within a document.
    first: int64[D+1], the edges of each document. The first one is before its first step.
    windows, parts: int64[D+1], the ranges of each document.
    window_low, window_high: int64[W], the edges where windows begin and end, counted from the document's first.
    part_low, part_high: int64[R], the same for parts.
    """

    places: NDArray[np.int64]
    first: NDArray[np.int64]
    windows: NDArray[np.int64]
    parts: NDArray[np.int64]
    window_low: NDArray[np.int64]
    window_high: NDArray[np.int64]
    part_low: NDArray[np.int64]
    part_high: NDArray[np.int64]


def _edges_of(offsets: NDArray[np.int64], windows: Ranges, parts: Ranges) -> _Edges:
    """Return the edges of ranges of documents."""
    numbers = np.arange(len(offsets) - 1)
    # a place may end one document and begin the next, so the document's number is added
    begins, of_windows, of_parts = offsets[:-1] + numbers, windows.whose, parts.whose
    ends = windows.begin + of_windows, windows.end + of_windows, parts.begin + of_parts, parts.end + of_parts
    is_edge = np.zeros(offsets[-1] + len(offsets), np.bool_)
    for places in (begins, *ends):
        is_edge[places] = True
    edges_before = offsets_of(is_edge)
    first = edges_before[np.append(begins, len(is_edge))]
    whose = (of_windows, of_windows, of_parts, of_parts)
    within = [edges_before[places] - first[documents] for places, documents in zip(ends, whose, strict=True)]
    places = np.flatnonzero(is_edge) - np.repeat(numbers, np.diff(first))
    return _Edges(places, first, windows.first, parts.first, *within)


def best_of_ranges(
    steps: Steps,
    windows: Ranges,
    parts: Ranges,
    count: int,
    most: int,
    rule: tuple[int, int, int],
    floors: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of largest rough score of each window, ties to the smaller, and the best numbers of each part.

    Args:
        steps: of D documents.
        windows: W ranges of `steps`.
        parts: R ranges of `steps`.
        count: numbers 0 … count−1 are searched, 1 or more.
        most: count of numbers to return for each part.
        rule: as in `rough_runs.best_rough`.
        floors: float64[R], the score that every number but a part's best must reach. None: no floor.

    Returns:
        Numbers and scores of windows, int64[W] both. Then those of parts, as `rough_runs.best_rough` returns them for
        their steps, int64[R, most] both.
    """
    numbers, scores = np.zeros(len(windows.begin), np.int64), np.full(len(windows.begin), -1)
    shape = len(parts.begin), most
    part_numbers, part_scores = np.full(shape, -1), np.zeros(shape, np.int64)
    edges = _edges_of(steps.offsets, windows, parts)
    # bytes of a sum that hold the largest sum of each document plus one
    sizes = np.array([1, 2, 4])[np.searchsorted([255, 65_535], largest_digit(rule) * steps.scored, "right")]
    most_words = int((np.diff(edges.first) * sizes).max(initial=1)) * COLUMNS // 4
    scratch = _Scratch.of_edges(most_words, count, rule)
    if floors is None:
        floors = np.full(len(parts.begin), -np.inf)
    found = numbers, scores, part_numbers, part_scores
    _best_of_ranges(steps, edges, sizes, count, rule, floors, scratch, *found)
    return found


@kernel
def _best_of_ranges(
    steps: Steps,
    edges: _Edges,
    sizes: NDArray[np.int64],
    count: int,
    rule: tuple[int, int, int],
    floors: NDArray[np.float64],
    scratch: _Scratch,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
    part_numbers: NDArray[np.int64],
    part_scores: NDArray[np.int64],
) -> None:
    """Write the result of `best_of_ranges`. sizes: int64[D], bytes of a sum of each document."""
    n, _, planes = rule
    height, rows, most_steps = 16 // planes, 1 if n else 4, 63 if n else 7
    inputs, block, segments, begins, ends, first, digits, quarters, turned, counters, totals, sums = scratch[:12]
    for d in range(len(sizes)):
        windows, parts = (edges.windows[d], edges.windows[d + 1]), (edges.parts[d], edges.parts[d + 1])
        if windows[0] == windows[1] and parts[0] == parts[1]:
            continue
        begin = int(steps.offsets[d])
        size = int(edges.places[edges.first[d + 1] - 1]) - begin  # no range has steps after the last edge
        begins[0], ends[0] = begin, steps.offsets[d + 1]
        for number in range(0, count, COLUMNS):
            first[0] = number
            counters[:] = 0
            totals[:] = 0
            edge, counted = edges.first[d], 0
            for p in range(0, size, CHUNK):
                # 1. Draw the digits of some steps.
                _, lanes, _, _ = fill_lanes(
                    steps, begins, ends, first, 5 + log2(height), n == 0, 0, p, inputs, segments
                )
                for b in range(min(LANES // height, -(-(count - number) // (32 * height)))):
                    chacha8_keyed_lanes(inputs, lanes, block)
                    for i in range(uint64(CHUNK)):
                        inputs[uint64(8 * CHUNK) + i] += uint32(1)
                    digits_of_block(block, lanes, rule, ROW, b * height * rows * ROW, rows * ROW, digits)
                for q in range(rows):
                    _turn(digits, q * ROW, rows * ROW, lanes, quarters, turned, q * _WORDS)
                # 2. Count them, and keep the sums where ranges begin and end.
                step = 0
                while step < lanes:
                    while edge < edges.first[d + 1] and edges.places[edge] == begin + p + step:
                        _keep(totals, sizes[d], sums, edge - edges.first[d])
                        edge += 1
                    if edge == edges.first[d + 1]:
                        break
                    end = min(step + most_steps - counted, lanes, int(edges.places[edge]) - begin - p)
                    if n:
                        _add_greens(turned, step, end, counters)
                    else:
                        _add_digits(turned, step, end, counters)
                    counted += end - step
                    step = end
                    if counted == most_steps or edges.places[edge] == begin + p + step:
                        _add_to_totals(counters, scratch.valid, number >> 5, sizes[d], totals)
                        counters[:] = 0
                        counted = 0
            while edge < edges.first[d + 1]:
                _keep(totals, sizes[d], sums, edge - edges.first[d])
                edge += 1
            # 3. Look at the ranges.
            of_windows = number, windows, edges.window_low, edges.window_high, numbers, scores
            of_parts = number, count, parts, edges.part_low, edges.part_high, floors, part_numbers, part_scores
            if sizes[d] == 1:
                _find_best(scratch.sums_of_8_bits, scratch.places_of_8_bits, *of_windows)
                _list_best(
                    scratch.sums_of_8_bits,
                    scratch.places_of_8_bits,
                    scratch.columns_of_8_bits,
                    scratch.differences_of_8_bits,
                    *of_parts,
                )
            elif sizes[d] == 2:
                _find_best(scratch.sums_of_16_bits, scratch.places_of_16_bits, *of_windows)
                _list_best(
                    scratch.sums_of_16_bits,
                    scratch.places_of_16_bits,
                    scratch.columns_of_16_bits,
                    scratch.differences_of_16_bits,
                    *of_parts,
                )
            else:
                _find_best(sums, scratch.places, *of_windows)
                _list_best(sums, scratch.places, scratch.columns, scratch.differences, *of_parts)


@kernel
def _turn(
    rows: NDArray[np.uint32],
    first: int,
    apart: int,
    lanes: int,
    quarters: NDArray[np.uint32],
    out: NDArray[np.uint32],
    place: int,
) -> None:
    """Put the words of each lane side by side. Before, the words of each row were side by side.

    Args:
        rows: row w is at first + w · apart, LANES of them.
        first: place of the first row.
        apart: words between rows.
        lanes: number of lanes.
        quarters: uint32[16 · CHUNK], scratch.
        out: word w of lane i is written at place + LANES · i + w.
        place: place of the first word in out.
    """
    for w in range(4):
        _interleave(rows, first + w * apart, 4 * apart, lanes, quarters, 4 * CHUNK * w)
    _interleave(quarters, 0, 4 * CHUNK, 4 * lanes, out, place)


@kernel
def _interleave(
    rows: NDArray[np.uint32], first: int, apart: int, count: int, out: NDArray[np.uint32], place: int
) -> None:
    """Write the first words of four rows, then the second ones, and so on."""
    a, b, c, d = uint64(first), uint64(first + apart), uint64(first + 2 * apart), uint64(first + 3 * apart)
    for i in range(uint64(count)):
        j = uint64(place) + uint64(4) * i
        out[j], out[j + uint64(1)], out[j + uint64(2)], out[j + uint64(3)] = (
            rows[a + i],
            rows[b + i],
            rows[c + i],
            rows[d + i],
        )


@kernel
def _add_digits(turned: NDArray[np.uint32], begin: int, end: int, counters: NDArray[np.uint32]) -> None:
    """Add digits of four bits of some steps to the counters of LANES words."""
    width, row = uint64(LANES), uint64(_WORDS)
    for step in range(uint64(begin), uint64(end)):
        for i in range(width):
            x = step * width + i
            s, a = counters[i], turned[x]
            counters[i], c = s ^ a, s & a
            counters[width + i], c = add3(counters[width + i], turned[row + x], c)
            j = width + width + i
            counters[j], c = add3(counters[j], turned[row + row + x], c)
            j += width
            counters[j], c = add3(counters[j], turned[row + row + row + x], c)
            j += width
            s = counters[j]
            counters[j], c = s ^ c, s & c
            counters[j + width] ^= c


@kernel
def _add_greens(turned: NDArray[np.uint32], begin: int, end: int, counters: NDArray[np.uint32]) -> None:
    """Add bits of some steps to the counters of LANES words."""
    width = uint64(LANES)
    for step in range(uint64(begin), uint64(end)):
        for i in range(width):
            s, c = counters[i], turned[step * width + i]
            counters[i], c = s ^ c, s & c
            j = width + i
            s = counters[j]
            counters[j], c = s ^ c, s & c
            j += width
            s = counters[j]
            counters[j], c = s ^ c, s & c
            j += width
            s = counters[j]
            counters[j], c = s ^ c, s & c
            j += width
            s = counters[j]
            counters[j], c = s ^ c, s & c
            counters[j + width] ^= c


@kernel
def _add_to_totals(
    counters: NDArray[np.uint32], valid: NDArray[np.uint32], word: int, size: int, totals: NDArray[np.uint32]
) -> None:
    """Add the counts of numbers to their sums of `size` bytes. valid: as in _Scratch, from `word` on."""
    if size == 1:
        for i in range(uint64(LANES)):
            b0, b1, b2, b3, b4, b5, b6, b7 = _bytes_of(counters, valid, word, i)
            totals[i] += b0
            totals[uint64(LANES) + i] += b1
            totals[uint64(2 * LANES) + i] += b2
            totals[uint64(3 * LANES) + i] += b3
            totals[uint64(4 * LANES) + i] += b4
            totals[uint64(5 * LANES) + i] += b5
            totals[uint64(6 * LANES) + i] += b6
            totals[uint64(7 * LANES) + i] += b7
    elif size == 2:
        for i in range(uint64(LANES)):
            b0, b1, b2, b3, b4, b5, b6, b7 = _bytes_of(counters, valid, word, i)
            _add_halves(b0, uint64(i), totals)
            _add_halves(b1, uint64(2 * LANES) + i, totals)
            _add_halves(b2, uint64(4 * LANES) + i, totals)
            _add_halves(b3, uint64(6 * LANES) + i, totals)
            _add_halves(b4, uint64(8 * LANES) + i, totals)
            _add_halves(b5, uint64(10 * LANES) + i, totals)
            _add_halves(b6, uint64(12 * LANES) + i, totals)
            _add_halves(b7, uint64(14 * LANES) + i, totals)
    else:
        for i in range(uint64(LANES)):
            b0, b1, b2, b3, b4, b5, b6, b7 = _bytes_of(counters, valid, word, i)
            _add_quarters(b0, uint64(i), totals)
            _add_quarters(b1, uint64(4 * LANES) + i, totals)
            _add_quarters(b2, uint64(8 * LANES) + i, totals)
            _add_quarters(b3, uint64(12 * LANES) + i, totals)
            _add_quarters(b4, uint64(16 * LANES) + i, totals)
            _add_quarters(b5, uint64(20 * LANES) + i, totals)
            _add_quarters(b6, uint64(24 * LANES) + i, totals)
            _add_quarters(b7, uint64(28 * LANES) + i, totals)


@inlined
def _bytes_of(
    counters: NDArray[np.uint32], valid: NDArray[np.uint32], word: int, i: int
) -> tuple[uint32, uint32, uint32, uint32, uint32, uint32, uint32, uint32]:
    """Return the counts of 32 numbers, four bytes in each word, as `bytes_of_planes` does."""
    mask, none = valid[uint64(word) + i], uint32(0)
    return bytes_of_planes(
        counters[i] & mask,
        counters[uint64(LANES) + i] & mask,
        counters[uint64(2 * LANES) + i] & mask,
        counters[uint64(3 * LANES) + i] & mask,
        counters[uint64(4 * LANES) + i] & mask,
        counters[uint64(5 * LANES) + i] & mask,
        none,
        none,
    )


@kernel
def _add_halves(four: uint32, place: uint64, totals: NDArray[np.uint32]) -> None:
    """Add four bytes to sums of 16 bits, two to a word, from `place` on."""
    totals[place] += four & uint32(0x00FF00FF)
    totals[place + uint64(LANES)] += uint32(four >> uint32(8)) & uint32(0x00FF00FF)


@kernel
def _add_quarters(four: uint32, place: uint64, totals: NDArray[np.uint32]) -> None:
    """Add four bytes to sums of 32 bits, from `place` on."""
    totals[place] += four & uint32(0xFF)
    totals[place + uint64(LANES)] += uint32(four >> uint32(8)) & uint32(0xFF)
    totals[place + uint64(2 * LANES)] += uint32(four >> uint32(16)) & uint32(0xFF)
    totals[place + uint64(3 * LANES)] += uint32(four >> uint32(24))


@kernel
def _keep(totals: NDArray[np.uint32], size: int, sums: NDArray[np.uint32], edge: int) -> None:
    """Keep the sums of `size` bytes at an edge."""
    words = size * COLUMNS // 4
    for i in range(uint64(words)):
        sums[uint64(edge * words) + i] = totals[i]


@kernel
def _find_best(
    sums: NDArray[np.unsignedinteger[Any]],
    places: NDArray[np.uint16],
    number: int,
    windows: tuple[int, int],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Keep the best number of each window of a document, if it is better than any before.

    Args:
        sums: [edges, COLUMNS], flat.
        places: uint16[COLUMNS], the number of each column, from `number` on.
        number: the first number.
        windows: the document's first window, and the one after its last.
        low: int64[W], the edges where windows begin.
        high: int64[W], the edges where windows end.
        numbers: int64[W], written.
        scores: int64[W], written. −1 before.
    """
    narrow, columns = sums.dtype.type, uint64(COLUMNS)
    for w in range(windows[0], windows[1]):
        begin, end = uint64(low[w]) * columns, uint64(high[w]) * columns
        largest = narrow(0)
        for j in range(columns):
            largest = max(largest, narrow(sums[end + j] - sums[begin + j]))
        if np.int64(largest) > scores[w]:
            place = uint16(0xFFFF)
            for j in range(columns):
                is_largest = narrow(sums[end + j] - sums[begin + j]) == largest
                place = min(place, places[j] if is_largest else uint16(0xFFFF))
            scores[w], numbers[w] = largest, number + np.int64(place)


@kernel
def _list_best(
    sums: NDArray[np.unsignedinteger[Any]],
    places: NDArray[np.uint16],
    columns_of: NDArray[np.uint16],
    differences: NDArray[np.unsignedinteger[Any]],
    number: int,
    count: int,
    parts: tuple[int, int],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    floors: NDArray[np.float64],
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Put numbers among the best of each part of a document. The numbers before them are smaller.

    Args:
        sums: as in `_find_best`.
        places: likewise.
        columns_of: uint16[COLUMNS], the column of each number.
        differences: [COLUMNS], scratch.
        number: the first number.
        count: count of all numbers.
        parts: the document's first part, and the one after its last.
        low: int64[R], the edges where parts begin.
        high: int64[R], the edges where parts end.
        floors: float64[R], the score that every number but the best must reach.
        numbers: int64[R, most], written. −1 before.
        scores: int64[R, most], written.
    """
    narrow, columns = sums.dtype.type, uint64(COLUMNS)
    for p in range(parts[0], parts[1]):
        begin, end = uint64(low[p]) * columns, uint64(high[p]) * columns
        for j in range(columns):  # plus one: 0 means that the number is listed already
            differences[j] = sums[end + j] - sums[begin + j] + narrow(1)
        for _ in range(min(numbers.shape[1], count - number, COLUMNS)):
            largest, place = narrow(0), uint16(0xFFFF)
            for j in range(columns):
                largest = max(largest, differences[j])
            score = int(largest) - 1
            if not _belongs(score, floors[p], numbers[p], scores[p]):
                break
            for j in range(columns):
                place = min(place, places[j] if differences[j] == largest else uint16(0xFFFF))
            _insert(number + int(place), score, floors[p], numbers[p], scores[p])
            differences[columns_of[place]] = narrow(0)


@kernel
def _belongs(score: int, floor: float, numbers: NDArray[np.int64], scores: NDArray[np.int64]) -> bool:
    """Return whether a score is among the best so far, after equal ones."""
    if numbers[0] < 0 or score > scores[0]:
        return True
    return bool(score >= floor and (numbers[-1] < 0 or score > scores[-1]))


@kernel
def _insert(number: int, score: int, floor: float, numbers: NDArray[np.int64], scores: NDArray[np.int64]) -> None:
    """Put a number among the best so far, after those of equal scores.

    A number below the floor is the only one in the list, and a better one replaces it.
    """
    if numbers[0] < 0 or scores[0] < floor:
        numbers[0], scores[0] = number, score
        return
    place = len(numbers) - 1
    while place > 0 and (numbers[place - 1] < 0 or scores[place - 1] < score):
        numbers[place], scores[place] = numbers[place - 1], scores[place - 1]
        place -= 1
    numbers[place], scores[place] = number, score

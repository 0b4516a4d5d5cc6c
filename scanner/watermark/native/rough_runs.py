"""Compute rough scores of all numbers of runs, find the best ones, and score a few numbers exactly (SPEC_3 §1, §4).

A step gives each number of its run a digit. For a green list the digit is 1 if the number is green. For Gumbel marks it
is the count of leading ones of eight binary digits, 0 to 8. The sums of digits are kept in vertical counters: one word
holds bit l of the sums of 32 numbers. Eight nested green lists add up to a digit of four bits. Each of these bits is an
exclusive or of some of the lists, so all eight cost as much as four.

Every step has a key of its own, so lanes need not know about documents. The steps of one run follow those of another
without a gap, and only the counts begin anew (`_best_by_steps`). The counts of LANES lanes are then added up. The
counts of all numbers become bytes, which makes the largest quick to find. Counts that do not fit a byte are compared
bit by bit. In long runs the lanes hold blocks of one step, and no lanes have to be added up (`_best_by_blocks`).
"""

from typing import NamedTuple, Self

import numpy as np
from numpy import uint8, uint16, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_keyed_lanes, chacha8_run
from scanner.watermark.native.steps import Steps
from scanner.watermark.native.streams import log2
from scanner.watermark.native.vertical_counters import bit_length

EIGHT_DIGITS = (0, 8, 8)
"""Rule of Gumbel marks, in place of a green list's n, b and planes: the leading ones of eight planes."""

LARGEST_DIGIT = 8
"""Largest digit of a step under EIGHT_DIGITS. For a green list it is 1."""

BLOCK_OF_DIGITS = 6
"""log2 of the count of numbers in a block under EIGHT_DIGITS."""

BLOCK_OF_DRAWS = 4
"""log2 of the count of numbers in a block of draws in one plane."""

FEWEST_BLOCKS_ASIDE = 32
"""Smallest number of blocks in a run that are put side by side. With fewer blocks, steps are put side by side."""

LEVELS = 8
"""Levels of vertical counters that become bytes.

A byte is one more than its count, and 0 means no number. Counts of 255 and more have no byte.
"""

_BLOCKS_ASIDE = 128
"""Largest number of blocks that are worked on side by side.

The digits of some of their steps fit the second-level cache.
"""

_PASS = 4 * LANES
"""Largest number of lanes that one pass of the adders takes, if lanes are steps."""

ROW = CHUNK + _PASS
"""Words in a row of digits, if lanes are steps. A pass that begins in the last lane reads no further."""

_WORDS_KEPT = 128
"""Largest number of words whose counters wait until their lanes are added up. The words of one run always fit."""

_LEVEL = FEWEST_BLOCKS_ASIDE * 16 * LANES + LANES
"""Words in a level of the counters of lanes. Not a power of two: levels would evict each other from the cache."""

_DIGITS_ASIDE = 2 * _BLOCKS_ASIDE + LANES
_GREENS_ASIDE = 16 * _BLOCKS_ASIDE + LANES
"""Words in a row, if lanes are blocks. Not a power of two either."""


def rows_of_digit(rule: tuple[int, int, int]) -> int:
    """Return how many bits the digit of a number has."""
    return 1 if rule[0] else 4


def largest_digit(rule: tuple[int, int, int]) -> int:
    """Return the largest digit that a step adds."""
    return 1 if rule[0] else LARGEST_DIGIT


def first_bits(order: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
    """Return the bits of each word that belong to the first `count` numbers.

    order: int64[W], the group of 32 numbers that each word holds.
    """
    filled = np.clip(count - 32 * order, 0, 32)
    return ((uint64(1) << filled.astype(np.uint64)) - uint64(1)).astype(np.uint32)


class Bytes(NamedTuple):
    """Counts of numbers as bytes, in which the largest are found.

    counts: uint32[8 · words], one more than each count, four to a word, those of LANES words together. 0: no number.
    count_bytes: the same array, as bytes.
    valid: uint32[8 · words], all bits of the bytes that belong to numbers.
    numbers: uint16[32 · words], the number that each byte counts.
    """

    counts: NDArray[np.uint32]
    count_bytes: NDArray[np.uint8]
    valid: NDArray[np.uint32]
    numbers: NDArray[np.uint16]

    @classmethod
    def of_words(cls, words: int, count: int) -> Self:
        """Make the arrays for `words` words of 32 numbers. Only the first `count` numbers are valid."""
        number = np.arange(32 * words)
        place = 4 * (number // (32 * LANES) * 8 * LANES + number % 8 * LANES + number // 32 % LANES) + number // 8 % 4
        numbers, valid = np.empty(len(number), np.uint16), np.zeros(len(number), np.uint8)
        numbers[place], valid[place[:count]] = number, 255
        counts = np.zeros(8 * words, np.uint32)
        return cls(counts, counts.view(np.uint8), valid.view(np.uint32), numbers)


class Words(NamedTuple):
    """Vertical counters of numbers, in which the largest are found.

    counters: uint32[levels, W]. Word w of level l holds bit l of the counts of 32 numbers.
    order: uint32[W], the group of 32 numbers that each word holds.
    valid: uint32[W], the bits that belong to numbers.
    remaining, candidates: uint32[W], scratch for the search.
    """

    counters: NDArray[np.uint32]
    order: NDArray[np.uint32]
    valid: NDArray[np.uint32]
    remaining: NDArray[np.uint32]
    candidates: NDArray[np.uint32]

    @classmethod
    def of_order(cls, levels: int, order: NDArray[np.int64], count: int) -> Self:
        """Make the arrays for words in this order. Only the first `count` numbers are valid."""
        room = np.empty((2, len(order)), np.uint32)
        return cls(np.zeros((levels, len(order)), np.uint32), order.astype(np.uint32), first_bits(order, count), *room)


class _Runs(NamedTuple):
    """R runs, each over its steps begin … end−1, as in `best_in_ranges`."""

    steps: Steps
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    first: NDArray[np.int64]
    rule: tuple[int, int, int]
    floors: NDArray[np.float64]


class _LaneScratch(NamedTuple):
    """Arrays for one call of `_best_by_steps`.

    They are made outside of the kernel, because compiling np.empty takes seconds.

    inputs: uint32[12 · CHUNK].
    block: uint32[16 · CHUNK].
    segments: int64[CHUNK, 5], as `fill_lanes` writes them.
    digits: uint32[words · rows · ROW], rows of bits of each word's digits.
    ones: uint32[2 · _PASS], all bits set in the first half and none in the second.
    lane_counters: uint32[levels · _LEVEL], vertical counters of all lanes. Level l of lane i of word w is at l · _LEVEL
        + LANES · w + i.
    halves: of the same shape.
    carry: uint32, a word for each two lanes.
    """

    inputs: NDArray[np.uint32]
    block: NDArray[np.uint32]
    segments: NDArray[np.int64]
    digits: NDArray[np.uint32]
    ones: NDArray[np.uint32]
    lane_counters: NDArray[np.uint32]
    halves: NDArray[np.uint32]
    carry: NDArray[np.uint32]


class _BlockScratch(NamedTuple):
    """Arrays for one call of `_best_by_blocks`.

    key: uint32[8].
    block: uint32[16 · CHUNK].
    rows: uint32, bits of digits of the steps of a pass.
    sums: uint32, a carry, then the counters of a tile, level by level.
    """

    key: NDArray[np.uint32]
    block: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    sums: NDArray[np.uint32]


def best_rough(
    steps: Steps,
    documents: NDArray[np.int64],
    first: NDArray[np.int64],
    length: int,
    most: int,
    rule: tuple[int, int, int],
    floors: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of largest rough score in each run, best first, and these scores.

    Ties go to the smaller number.

    Args:
        steps: of D documents.
        documents: int64[R], the document whose steps each run is scored on.
        first: int64[R], the first number of each run, a multiple of 2^16.
        length: count of numbers in each run, 1 or more.
        most: count of numbers to return.
        rule: n, b and planes of γ = n / 2^b, or EIGHT_DIGITS.
        floors: float64[R], the score that every number but the best must reach. None: no floor.

    Returns:
        Numbers, counted from 0, and scores, int64[R, most] both. −1 and 0 where there are fewer.
    """
    return best_in_ranges(
        steps, steps.offsets[documents], steps.offsets[documents + 1], first, length, most, rule, floors
    )


def best_in_ranges(
    steps: Steps,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    length: int,
    most: int,
    rule: tuple[int, int, int],
    floors: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Do as `best_rough`, for runs over any consecutive steps: begin … end−1, int64[R] both."""
    shape = len(begin), most
    numbers, scores = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
    if floors is None:
        floors = np.full(len(begin), -np.inf)
    height = 16 // rule[2]
    blocks = -(-length // (32 * height))  # rounded up, as below
    longest = int((end - begin).max(initial=0))
    of_runs = _Runs(steps, begin, end, first, rule, floors)
    if blocks < FEWEST_BLOCKS_ASIDE:
        padded = -(-blocks * height // LANES) * LANES
        lane_levels = max(4 if rule[0] else 8, (largest_digit(rule) * (longest // LANES + 2)).bit_length())
        levels = max(LEVELS, lane_levels + 4)
        lane_scratch = _LaneScratch(
            np.zeros(12 * CHUNK, np.uint32),
            np.empty(16 * CHUNK, np.uint32),
            np.empty((CHUNK, 5), np.int64),
            np.zeros(blocks * height * rows_of_digit(rule) * ROW, np.uint32),
            np.repeat(np.array([~uint32(0), 0], np.uint32), _PASS),
            np.empty(levels * _LEVEL, np.uint32),
            np.empty(levels * _LEVEL, np.uint32),
            np.empty(_LEVEL // 2, np.uint32),
        )
        words = Words.of_order(levels, np.arange(padded), length)
        count_bytes = Bytes.of_words(padded, length)
        _best_by_steps(
            of_runs, blocks, lane_levels, lane_scratch, count_bytes, words, min(most, length), numbers, scores
        )
    else:
        tiles = -(-blocks // _BLOCKS_ASIDE)
        side = -(-blocks // (tiles * LANES)) * LANES
        tile, k, lane = np.indices((tiles, height, side)).reshape(3, -1)
        levels = max(LEVELS, (largest_digit(rule) * longest).bit_length())
        row = _GREENS_ASIDE if rule[0] else _DIGITS_ASIDE
        block_scratch = _BlockScratch(
            np.empty(8, np.uint32),
            np.empty(16 * CHUNK, np.uint32),
            np.zeros(8 * row if rule[0] else 16 * row, np.uint32),
            np.zeros((1 + levels) * row, np.uint32),
        )
        words = Words.of_order(levels, (tile * side + lane) * height + k, length)
        _best_by_blocks(of_runs, side, block_scratch, words, min(most, length), numbers, scores)
    return numbers, scores


@kernel
def add3(a: uint32, b: uint32, c: uint32) -> tuple[uint32, uint32]:
    """Return sum and carry of three bits, in 32 places.

    No intermediate value is wider than 32 bits, because vectors would then hold half as many.
    """
    half = uint32(a ^ b)
    return uint32(half ^ c), uint32(uint32(a & b) | uint32(half & c))


@kernel
def _best_by_steps(
    of_runs: _Runs,
    blocks: int,
    lane_levels: int,
    scratch: _LaneScratch,
    count_bytes: Bytes,
    words: Words,
    most: int,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Write the result of `best_rough`, with steps side by side.

    Args:
        of_runs: the runs.
        blocks: number of blocks in a run.
        lane_levels: how many levels the count of a lane can fill, including those that the adders always fill.
        scratch: scratch arrays.
        count_bytes: likewise.
        words: likewise, a multiple of LANES words that holds all numbers.
        most: how many numbers are listed, no more than a run has.
        numbers: int64[R, most] or more, written.
        scores: likewise.
    """
    steps, begin, end, first, rule, floors = of_runs
    n, _, planes = rule
    inputs, block, segments, digits, ones, lane_counters, halves, carry = scratch
    height, digit, rows = 16 // planes, 1 if n else LARGEST_DIGIT, 1 if n else 4
    padded = words.counters.shape[1]
    run, step, kept, longest = 0, 0, 0, 0
    while run < len(begin):
        segment_count, lanes, run, step = fill_lanes(
            steps, begin, end, first, 5 + log2(height), n == 0, run, step, inputs, segments
        )
        for b in range(blocks):
            chacha8_keyed_lanes(inputs, lanes, block)
            for i in range(uint64(CHUNK)):
                inputs[uint64(8 * CHUNK) + i] += uint32(1)
            digits_of_block(block, lanes, rule, ROW, b * height * rows * ROW, rows * ROW, digits)
        for s in range(segment_count):
            r, begins, ends = segments[s, 0], segments[s, 3], segments[s, 4]
            scored = int(end[r] - begin[r])
            place = kept * padded * LANES
            if begins:
                for level in range(uint64(lane_levels)):
                    for i in range(uint64(padded * LANES)):
                        lane_counters[level * uint64(_LEVEL) + uint64(place) + i] = uint32(0)
            levels = bit_length(digit * (scored // LANES + 2))
            if n:
                _add_greens(
                    digits, segments[s, 1], segments[s, 2], blocks * height, ones, levels, lane_counters, place, carry
                )
            else:
                _add_digits(
                    digits, segments[s, 1], segments[s, 2], blocks * height, ones, levels, lane_counters, place, carry
                )
            if ends:
                kept, longest = kept + 1, max(longest, scored)
                if r + 1 < len(begin) and (kept + 1) * padded <= _WORDS_KEPT:
                    continue
                levels = _add_lanes_up(
                    lane_counters, halves, kept * padded, bit_length(digit * (longest // LANES + 2)),
                    bit_length(digit * longest), carry,
                )  # fmt: skip
                for level in range(uint64(levels), uint64(LEVELS)):
                    for i in range(uint64(kept * padded)):
                        lane_counters[level * uint64(_LEVEL) + i] = uint32(0)
                for k in range(kept):
                    row = r + 1 - kept + k
                    if _fit_bytes(lane_counters, k * padded, padded, levels):
                        _to_bytes(lane_counters, k * padded, padded, count_bytes)
                        _list_bytes(count_bytes, floors[row], most, numbers[row], scores[row])
                    else:
                        for level in range(uint64(levels)):
                            for i in range(uint64(padded)):
                                words.counters[level, i] = lane_counters[
                                    level * uint64(_LEVEL) + uint64(k * padded) + i
                                ]
                        _list_words(words, levels, floors[row], most, numbers[row], scores[row])
                kept, longest = 0, 0


@kernel
def fill_lanes(
    steps: Steps,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    per_block: int,
    in_upper_half: bool,
    run: int,
    step: int,
    inputs: NDArray[np.uint32],
    segments: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Write keys, counters and nonces of the next steps, run after run, for `chacha8_keyed_lanes`.

    Args:
        steps: of any documents.
        begin: int64[R], the first step of each run.
        end: int64[R], one past its last step.
        first: int64[R], a number of the run's first block.
        per_block: log2 of the count of numbers in a block.
        in_upper_half: whether 2^63 is added to counters.
        run: the first run.
        step: its first step, counted from its begin.
        inputs: uint32[12 · CHUNK], written.
        segments: int64[CHUNK, 5], written: run, first lane, count of lanes, whether the run begins there, whether it
            ends.

    Returns:
        The number of segments and of lanes, then the next run and step.
    """
    count, lanes = 0, 0
    while run < len(begin) and lanes < CHUNK and count < len(segments):
        left = int(end[run] - begin[run]) - step
        size = min(left, CHUNK - lanes)
        place, lane = uint64(begin[run] + step), uint64(lanes)
        for w in range(uint64(8)):
            for i in range(uint64(size)):
                inputs[w * uint64(CHUNK) + lane + i] = steps.keys[w, place + i]
        for i in range(uint64(size)):
            nonce = steps.nonces[place + i]
            inputs[uint64(10 * CHUNK) + lane + i] = uint32(nonce)
            inputs[uint64(11 * CHUNK) + lane + i] = uint32(nonce >> uint64(32))
        write_counters(steps.ids, place, first[run], per_block, in_upper_half, lane, uint64(size), inputs)
        segments[count, 0], segments[count, 1], segments[count, 2] = run, lanes, size
        segments[count, 3], segments[count, 4] = int(step == 0), int(size == left)
        count, lanes, step = count + 1, lanes + size, step + size
        if size == left:
            run, step = run + 1, 0
    return count, lanes, run, step


@kernel
def write_counters(
    ids: NDArray[np.uint32],
    place: uint64,
    number: int,
    per_block: int,
    in_upper_half: bool,
    lane: uint64,
    size: uint64,
    inputs: NDArray[np.uint32],
) -> None:
    """Write counters of the blocks that hold a number, for `size` steps from `place` on, into lanes from `lane` on.

    per_block and in_upper_half are as in `fill_lanes`.
    """
    low, high, block = uint32(32 - per_block), uint32(per_block), uint32(number >> per_block)
    top = uint32(0x80000000) if in_upper_half else uint32(0)
    for i in range(size):
        token = ids[place + i]
        inputs[uint64(8 * CHUNK) + lane + i] = uint32(token << low) | block
        inputs[uint64(9 * CHUNK) + lane + i] = uint32(token >> high) | top


@kernel
def digits_of_block(
    block: NDArray[np.uint32],
    lanes: int,
    rule: tuple[int, int, int],
    row: int,
    place: int,
    apart: int,
    out: NDArray[np.uint32],
) -> None:
    """Write the digits of a block's numbers in each lane as rows of bits.

    A green list has one row, leading ones have four.

    Args:
        block: uint32[16 · CHUNK], from `chacha8_keyed_lanes`.
        lanes: number of lanes.
        rule: n, b and planes of γ = n / 2^b, or EIGHT_DIGITS.
        row: words between the rows of a word.
        place: place of the first row of the first word.
        apart: words between the first rows of two words.
        out: uint32, written.
    """
    n, bits, planes = rule
    height = 16 // planes
    for k in range(height):
        if n:
            _greens(n, bits, block, uint64(k * CHUNK), height * CHUNK, uint64(lanes), uint64(place + k * apart), out)
        else:
            _leading_ones(block, uint64(k * CHUNK), uint64(lanes), row, uint64(place + k * apart), out)


@inlined
def _greens(
    n: int,
    bits: int,
    block: NDArray[np.uint32],
    first: uint64,
    apart: int,
    lanes: uint64,
    place: uint64,
    out: NDArray[np.uint32],
) -> None:
    """Write one bit for each number, as `keyed.below` does. Slices of arrays would take longer than the bits."""
    if bits == 1:
        for i in range(lanes):
            out[place + i] = ~block[first + i]
        return
    # the last two digits in one loop
    last, x = first + uint64((bits - 1) * apart), first + uint64((bits - 2) * apart)
    if (n >> 1) & 1:
        for i in range(lanes):
            out[place + i] = ~(block[x + i] & block[last + i])
    else:
        for i in range(lanes):
            out[place + i] = ~(block[x + i] | block[last + i])
    for q in range(bits - 3, -1, -1):
        x = first + uint64(q * apart)
        if (n >> (bits - 1 - q)) & 1:
            for i in range(lanes):
                out[place + i] |= ~block[x + i]
        else:
            for i in range(lanes):
                out[place + i] &= ~block[x + i]


@inlined
def _leading_ones(
    block: NDArray[np.uint32], first: uint64, lanes: uint64, row: int, place: uint64, out: NDArray[np.uint32]
) -> None:
    """Write the leading ones of eight planes as four rows of bits, the last digit first.

    Args:
        block: uint32[16 · CHUNK], plane q of lane i is at 2 · CHUNK · q + first + i.
        first: place of plane 0.
        lanes: number of lanes.
        row: words between rows.
        place: place of the first row.
        out: uint32, written.
    """
    for i in range(lanes):
        x, y = first + i, place + i
        a = block[x]
        b = a & block[uint64(2 * CHUNK) + x]
        c = b & block[uint64(4 * CHUNK) + x]
        d = c & block[uint64(6 * CHUNK) + x]
        e = d & block[uint64(8 * CHUNK) + x]
        f = e & block[uint64(10 * CHUNK) + x]
        g = f & block[uint64(12 * CHUNK) + x]
        h = g & block[uint64(14 * CHUNK) + x]
        twos = b ^ d ^ f ^ h
        out[y] = a ^ c ^ e ^ g ^ twos
        out[uint64(row) + y] = twos
        out[uint64(2 * row) + y] = d ^ h
        out[uint64(3 * row) + y] = h


@kernel
def _add_digits(
    digits: NDArray[np.uint32],
    lane: int,
    size: int,
    words: int,
    ones: NDArray[np.uint32],
    levels: int,
    counters: NDArray[np.uint32],
    first: int,
    carry: NDArray[np.uint32],
) -> None:
    """Add digits of four bits to the counters of their lanes, 2 · LANES of them at a time.

    Args:
        digits: rows of ROW words, the last digit first, word after word.
        lane: the first lane.
        size: number of lanes.
        words: words of 32 numbers.
        ones: as in _LaneScratch.
        levels: number of levels that the counters need.
        counters: as in _LaneScratch, added to.
        first: place of the counters of word 0.
        carry: uint32[LANES] or more, scratch.
    """
    width, row = uint64(LANES), uint64(ROW)
    for w in range(uint64(words)):
        at = uint64(first) + w * width
        for v in range(uint64(0), uint64(size), uint64(2 * LANES)):
            x, y = uint64(4 * ROW) * w + uint64(lane) + v, uint64(_PASS) - min(uint64(size) - v, uint64(2 * LANES))
            for i in range(width):
                mask, next_mask, j, k = ones[y + i], ones[y + width + i], x + i, at + i
                a, b = digits[j] & mask, digits[j + width] & next_mask
                s, c = add3(counters[k], a, b)
                counters[k] = s
                a, b = digits[row + j] & mask, digits[row + j + width] & next_mask
                s, d = add3(counters[uint64(_LEVEL) + k], a, b)
                counters[uint64(_LEVEL) + k], c = s ^ c, s & c
                a, b = digits[row + row + j] & mask, digits[row + row + j + width] & next_mask
                s, e = add3(counters[uint64(2 * _LEVEL) + k], a, b)
                s, d = add3(s, c, d)
                counters[uint64(2 * _LEVEL) + k] = s
                a, b = digits[row + row + row + j] & mask, digits[row + row + row + j + width] & next_mask
                s, c = add3(counters[uint64(3 * _LEVEL) + k], a, b)
                s, d = add3(s, d, e)
                counters[uint64(3 * _LEVEL) + k] = s
                s, c = add3(counters[uint64(4 * _LEVEL) + k], c, d)
                counters[uint64(4 * _LEVEL) + k] = s
                s = counters[uint64(5 * _LEVEL) + k]
                counters[uint64(5 * _LEVEL) + k], c = s ^ c, s & c
                s = counters[uint64(6 * _LEVEL) + k]
                counters[uint64(6 * _LEVEL) + k], c = s ^ c, s & c
                s = counters[uint64(7 * _LEVEL) + k]
                counters[uint64(7 * _LEVEL) + k], carry[i] = s ^ c, s & c
            for level in range(uint64(8), uint64(levels)):
                for i in range(width):
                    s, c = counters[level * uint64(_LEVEL) + at + i], carry[i]
                    counters[level * uint64(_LEVEL) + at + i], carry[i] = s ^ c, s & c


@kernel
def _add_greens(
    greens: NDArray[np.uint32],
    lane: int,
    size: int,
    words: int,
    ones: NDArray[np.uint32],
    levels: int,
    counters: NDArray[np.uint32],
    first: int,
    carry: NDArray[np.uint32],
) -> None:
    """Add bits to the counters of their lanes, 4 · LANES of them at a time.

    The arguments are those of `_add_digits`.
    """
    width = uint64(LANES)
    for w in range(uint64(words)):
        at = uint64(first) + w * width
        for v in range(uint64(0), uint64(size), uint64(4 * LANES)):
            x, y = uint64(ROW) * w + uint64(lane) + v, uint64(_PASS) - min(uint64(size) - v, uint64(4 * LANES))
            for i in range(width):
                j, k, o = x + i, at + i, y + i
                a, b = greens[j] & ones[o], greens[j + width] & ones[o + width]
                s, c = add3(counters[k], a, b)
                a = greens[j + uint64(2 * LANES)] & ones[o + uint64(2 * LANES)]
                b = greens[j + uint64(3 * LANES)] & ones[o + uint64(3 * LANES)]
                s, d = add3(s, a, b)
                counters[k] = s
                s, c = add3(counters[uint64(_LEVEL) + k], c, d)
                counters[uint64(_LEVEL) + k] = s
                s = counters[uint64(2 * _LEVEL) + k]
                counters[uint64(2 * _LEVEL) + k], c = s ^ c, s & c
                s = counters[uint64(3 * _LEVEL) + k]
                counters[uint64(3 * _LEVEL) + k], carry[i] = s ^ c, s & c
            for level in range(uint64(4), uint64(levels)):
                for i in range(width):
                    s, c = counters[level * uint64(_LEVEL) + at + i], carry[i]
                    counters[level * uint64(_LEVEL) + at + i], carry[i] = s ^ c, s & c


@kernel
def _add_lanes_up(
    counters: NDArray[np.uint32],
    halves: NDArray[np.uint32],
    words: int,
    levels: int,
    most_levels: int,
    carry: NDArray[np.uint32],
) -> int:
    """Add up the counters of a word's lanes, neighbours to neighbours, until one is left.

    Args:
        counters: as in _LaneScratch. Afterwards bit l of word w is at l · _LEVEL + w.
        halves: of the same size, scratch.
        words: number of words, a multiple of LANES.
        levels: number of levels that the count of a lane can fill.
        most_levels: number of levels that the count of all lanes can fill.
        carry: uint32[LANES / 2 · words], scratch.

    Returns:
        The number of filled levels.
    """
    levels = _add_neighbours(counters, 8 * words, levels, most_levels, carry, halves)
    levels = _add_neighbours(halves, 4 * words, levels, most_levels, carry, counters)
    levels = _add_neighbours(counters, 2 * words, levels, most_levels, carry, halves)
    return _add_neighbours(halves, words, levels, most_levels, carry, counters)


@kernel
def _add_neighbours(
    counters: NDArray[np.uint32],
    count: int,
    levels: int,
    most_levels: int,
    carry: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> int:
    """Write `count` sums of two neighbours each. Return the number of filled levels."""
    for i in range(uint64(count)):
        carry[i] = uint32(0)
    for level in range(uint64(levels)):
        place = level * uint64(_LEVEL)
        for i in range(uint64(count)):
            s, c = add3(counters[place + uint64(2) * i], counters[place + uint64(2) * i + uint64(1)], carry[i])
            out[place + i], carry[i] = s, c
    if levels >= most_levels:
        return levels
    for i in range(uint64(count)):
        out[uint64(levels * _LEVEL) + i] = carry[i]
    return levels + 1


@kernel
def _fit_bytes(flat: NDArray[np.uint32], place: int, words: int, levels: int) -> bool:
    """Return whether all counts of `words` words from `place` on are below 255."""
    too_large = uint32(0)
    if levels >= LEVELS:
        for i in range(uint64(place), uint64(place + words)):
            too_large |= (
                flat[i] & flat[uint64(_LEVEL) + i] & flat[uint64(2 * _LEVEL) + i] & flat[uint64(3 * _LEVEL) + i]
                & flat[uint64(4 * _LEVEL) + i] & flat[uint64(5 * _LEVEL) + i] & flat[uint64(6 * _LEVEL) + i]
                & flat[uint64(7 * _LEVEL) + i]
            )  # fmt: skip
    for level in range(uint64(LEVELS), uint64(levels)):
        for i in range(uint64(place), uint64(place + words)):
            too_large |= flat[level * uint64(_LEVEL) + i]
    return bool(too_large == 0)


@kernel
def _to_bytes(flat: NDArray[np.uint32], place: int, words: int, out: Bytes) -> None:
    """Write one more than each count of `words` words from `place` on as a byte, and 0 for a place without a number."""
    one = uint32(0x01010101)
    counts, _, valid, _ = out
    for begin in range(uint64(0), uint64(words), uint64(LANES)):
        for i in range(uint64(LANES)):
            x, y = uint64(place) + begin + i, uint64(8) * begin + i
            b0, b1, b2, b3, b4, b5, b6, b7 = bytes_of_planes(
                flat[x], flat[uint64(_LEVEL) + x], flat[uint64(2 * _LEVEL) + x], flat[uint64(3 * _LEVEL) + x],
                flat[uint64(4 * _LEVEL) + x], flat[uint64(5 * _LEVEL) + x], flat[uint64(6 * _LEVEL) + x],
                flat[uint64(7 * _LEVEL) + x],
            )  # fmt: skip
            counts[y] = uint32(b0 + one) & valid[y]
            counts[uint64(LANES) + y] = uint32(b1 + one) & valid[uint64(LANES) + y]
            counts[uint64(2 * LANES) + y] = uint32(b2 + one) & valid[uint64(2 * LANES) + y]
            counts[uint64(3 * LANES) + y] = uint32(b3 + one) & valid[uint64(3 * LANES) + y]
            counts[uint64(4 * LANES) + y] = uint32(b4 + one) & valid[uint64(4 * LANES) + y]
            counts[uint64(5 * LANES) + y] = uint32(b5 + one) & valid[uint64(5 * LANES) + y]
            counts[uint64(6 * LANES) + y] = uint32(b6 + one) & valid[uint64(6 * LANES) + y]
            counts[uint64(7 * LANES) + y] = uint32(b7 + one) & valid[uint64(7 * LANES) + y]


@inlined
def bytes_of_planes(
    p0: uint32, p1: uint32, p2: uint32, p3: uint32, p4: uint32, p5: uint32, p6: uint32, p7: uint32
) -> tuple[uint32, uint32, uint32, uint32, uint32, uint32, uint32, uint32]:
    """Turn eight words into bytes. The words hold the binary digits of 32 numbers, the last digit first.

    Digits of neighbours are joined in pairs, then in fours, then in eights. Byte b of word j belongs to place 8·b + j.
    """
    a0, a1 = _pairs(p0, p1, uint32(1), uint32(0x55555555))
    b0, b1 = _pairs(p2, p3, uint32(1), uint32(0x55555555))
    c0, c1 = _pairs(p4, p5, uint32(1), uint32(0x55555555))
    d0, d1 = _pairs(p6, p7, uint32(1), uint32(0x55555555))
    e0, e2 = _pairs(a0, b0, uint32(2), uint32(0x33333333))
    e1, e3 = _pairs(a1, b1, uint32(2), uint32(0x33333333))
    f0, f2 = _pairs(c0, d0, uint32(2), uint32(0x33333333))
    f1, f3 = _pairs(c1, d1, uint32(2), uint32(0x33333333))
    g0, g4 = _pairs(e0, f0, uint32(4), uint32(0x0F0F0F0F))
    g1, g5 = _pairs(e1, f1, uint32(4), uint32(0x0F0F0F0F))
    g2, g6 = _pairs(e2, f2, uint32(4), uint32(0x0F0F0F0F))
    g3, g7 = _pairs(e3, f3, uint32(4), uint32(0x0F0F0F0F))
    return g0, g1, g2, g3, g4, g5, g6, g7


@kernel
def _pairs(low: uint32, high: uint32, bits: uint32, even: uint32) -> tuple[uint32, uint32]:
    """Put fields of two words side by side: the even fields in one word, the odd ones in another.

    A field has so many bits.
    """
    return (
        uint32(low & even) | uint32(uint32(high & even) << bits),
        uint32(uint32(low >> bits) & even) | uint32(high & ~even),
    )


@kernel
def _list_bytes(counts: Bytes, floor: float, most: int, numbers: NDArray[np.int64], scores: NDArray[np.int64]) -> None:
    """Write the numbers of largest count, best first, ties to the smaller, and set their bytes to 0.

    Args:
        counts: of all numbers.
        floor: the count that every number but the first must reach.
        most: how many numbers are listed at most, no more than there are.
        numbers: int64[most] or more, written.
        scores: likewise.
    """
    _, count_bytes, _, byte_numbers = counts
    for place in range(most):
        largest, number = uint8(0), uint16(0xFFFF)
        for i in range(uint64(len(count_bytes))):
            largest = max(largest, count_bytes[i])
        score = np.int64(largest) - 1
        if place and score < floor:
            break
        for i in range(uint64(len(count_bytes))):
            number = min(number, byte_numbers[i] if count_bytes[i] == largest else uint16(0xFFFF))
        numbers[place], scores[place] = number, score
        word, byte, bit = int(number >> 5), int(number >> 3) & 3, int(number) & 7
        count_bytes[4 * (word // LANES * 8 * LANES + bit * LANES + word % LANES) + byte] = uint8(0)


@kernel
def _list_words(
    words: Words, levels: int, floor: float, most: int, numbers: NDArray[np.int64], scores: NDArray[np.int64]
) -> None:
    """Write the numbers of largest count as `_list_bytes` does.

    `levels` is the number of filled levels of the counters.
    """
    counters, order, valid, remaining, candidates = words
    # loops, because compiling a copy of a whole array takes seconds
    for w in range(uint64(len(valid))):
        remaining[w] = valid[w]
    for place in range(most):
        for w in range(uint64(len(valid))):
            candidates[w] = remaining[w]
        score = 0
        for level in range(levels - 1, -1, -1):
            common = uint32(0)
            for w in range(uint64(len(candidates))):
                common |= candidates[w] & counters[level, w]
            if common:
                score |= 1 << level
                for w in range(uint64(len(candidates))):
                    candidates[w] &= counters[level, w]
        if place and score < floor:
            break
        # the word with the smallest numbers, and its place
        found = ~uint64(0)
        for w in range(uint64(len(candidates))):
            found = min(found, (uint64(order[w]) << uint64(32)) | w if candidates[w] else ~uint64(0))
        word, bit = found & uint64(0xFFFFFFFF), 0
        while not (candidates[word] >> uint32(bit)) & uint32(1):
            bit += 1
        numbers[place], scores[place] = np.int64(found >> uint64(32)) * 32 + bit, score
        remaining[word] &= ~uint32(1 << bit)


@kernel
def _best_by_blocks(
    of_runs: _Runs,
    side: int,
    scratch: _BlockScratch,
    words: Words,
    most: int,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Write the result of `best_rough`, with blocks of one step side by side, `side` of them in a tile."""
    steps, begins, ends, first, rule, floors = of_runs
    n, _, planes = rule
    key, block, rows, sums = scratch
    height, digit, top = 16 // planes, 1 if n else LARGEST_DIGIT, uint32(0 if n else 0x80000000)
    width, per_block = height * side, 5 + log2(height)
    at_once, row, rows_of_step = (8, _GREENS_ASIDE, 1) if n else (4, _DIGITS_ASIDE, 4)
    for r in range(len(begins)):
        begin, end = begins[r], ends[r]
        levels = bit_length(digit * (end - begin))
        for tile in range(words.counters.shape[1] // width):
            sums[:] = 0
            for p in range(begin, end, at_once):
                count = min(at_once, end - p)
                if count < at_once:
                    rows[:] = 0
                for s in range(count):
                    for w in range(8):
                        key[w] = steps.keys[w, p + s]
                    token = steps.ids[p + s]
                    first_block = uint32((first[r] >> per_block) + tile * side)
                    low = uint32(token << uint32(32 - per_block)) | first_block
                    chacha8_run(key, low, uint32(token >> uint32(per_block)) | top, steps.nonces[p + s], side, block)
                    digits_of_block(block, side, rule, row, s * rows_of_step * row, side, rows)
                if n:
                    _add_green_rows(rows, uint64(width), levels, sums)
                else:
                    _add_digit_rows(rows, uint64(width), levels, sums)
            for level in range(levels):
                for i in range(uint64(width)):
                    words.counters[level, uint64(tile * width) + i] = sums[uint64((level + 1) * row) + i]
        _list_words(words, levels, floors[r], most, numbers[r], scores[r])


@kernel
def _add_digit_rows(rows: NDArray[np.uint32], width: uint64, levels: int, sums: NDArray[np.uint32]) -> None:
    """Add digits of four steps, four rows of bits each, to vertical counters.

    The first row of `sums` is for a carry.
    """
    row = _DIGITS_ASIDE
    for i in range(width):
        s, a = add3(sums[uint64(row) + i], rows[i], rows[uint64(4 * row) + i])
        s, b = add3(s, rows[uint64(8 * row) + i], rows[uint64(12 * row) + i])
        sums[uint64(row) + i] = s
        s, c = add3(sums[uint64(2 * row) + i], rows[uint64(1 * row) + i], rows[uint64(5 * row) + i])
        s, d = add3(s, rows[uint64(9 * row) + i], rows[uint64(13 * row) + i])
        s, a = add3(s, a, b)
        sums[uint64(2 * row) + i] = s
        s, b = add3(sums[uint64(3 * row) + i], rows[uint64(2 * row) + i], rows[uint64(6 * row) + i])
        s, e = add3(s, rows[uint64(10 * row) + i], rows[uint64(14 * row) + i])
        s, c = add3(s, c, d)
        sums[uint64(3 * row) + i], a = s ^ a, s & a
        s, d = add3(sums[uint64(4 * row) + i], rows[uint64(3 * row) + i], rows[uint64(7 * row) + i])
        s, f = add3(s, rows[uint64(11 * row) + i], rows[uint64(15 * row) + i])
        s, b = add3(s, b, e)
        s, a = add3(s, a, c)
        sums[uint64(4 * row) + i] = s
        s, d = add3(sums[uint64(5 * row) + i], d, f)
        s, a = add3(s, a, b)
        sums[uint64(5 * row) + i] = s
        s, a = add3(sums[uint64(6 * row) + i], a, d)
        sums[uint64(6 * row) + i] = s
        s = sums[uint64(7 * row) + i]
        sums[uint64(7 * row) + i], a = s ^ a, s & a
        s = sums[uint64(8 * row) + i]
        sums[uint64(8 * row) + i], sums[i] = s ^ a, s & a
    for place in range(uint64(9 * row), uint64((levels + 1) * row), uint64(row)):
        for i in range(width):
            s, a = sums[place + i], sums[i]
            sums[place + i], sums[i] = s ^ a, s & a


@kernel
def _add_green_rows(rows: NDArray[np.uint32], width: uint64, levels: int, sums: NDArray[np.uint32]) -> None:
    """Add bits of eight steps, one row each, to vertical counters. The first row of `sums` is for a carry."""
    row = _GREENS_ASIDE
    for i in range(width):
        s, a = add3(sums[uint64(row) + i], rows[i], rows[uint64(row) + i])
        s, b = add3(s, rows[uint64(2 * row) + i], rows[uint64(3 * row) + i])
        s, c = add3(s, rows[uint64(4 * row) + i], rows[uint64(5 * row) + i])
        s, d = add3(s, rows[uint64(6 * row) + i], rows[uint64(7 * row) + i])
        sums[uint64(row) + i] = s
        s, a = add3(sums[uint64(2 * row) + i], a, b)
        s, b = add3(s, c, d)
        sums[uint64(2 * row) + i] = s
        s, a = add3(sums[uint64(3 * row) + i], a, b)
        sums[uint64(3 * row) + i] = s
        s = sums[uint64(4 * row) + i]
        sums[uint64(4 * row) + i], a = s ^ a, s & a
        s = sums[uint64(5 * row) + i]
        sums[uint64(5 * row) + i], sums[i] = s ^ a, s & a
    for place in range(uint64(6 * row), uint64((levels + 1) * row), uint64(row)):
        for i in range(width):
            s, a = sums[place + i], sums[i]
            sums[place + i], sums[i] = s ^ a, s & a

"""Green counts of all numbers of runs (SPEC_2 §1, §3), and the vertical counters that add them.

Bit l of the counts of many numbers lies in one word, so that bits are added many at a time. Carry-save adders count
over the steps of a lane; then the lanes of a vector are added to each other. In long runs the lanes hold blocks of one
step, and the steps follow one another. To add up lanes takes longer than to count in documents of few steps: their
counts are bytes, four of which are added at once (`_count_in_bytes`).
"""

from typing import NamedTuple

import numpy as np
from numpy import uint8, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_lanes
from scanner.watermark.native.keyed import below
from scanner.watermark.native.streams import RunRequest, ScoredSteps, begin_run, log2, next_block


@kernel
def add3(a: uint64, b: uint64, c: uint64) -> tuple[uint64, uint64]:
    """Return sum and carry of three bits, in 64 places."""
    half = a ^ b
    return half ^ c, (a & b) | (half & c)


@kernel
def bit_length(number: int) -> int:
    """Return how many binary digits a number has that is not negative."""
    bits = 0
    while number >> bits:
        bits += 1
    return bits


@kernel
def first_bits(words: NDArray[np.uint64], count: int) -> None:
    """Set the first `count` bits of the words, and no others."""
    words[:] = 0
    words[: count >> 6] = ~uint64(0)
    if count & 63:
        words[count >> 6] = (uint64(1) << uint64(count & 63)) - uint64(1)


@kernel
def largest(counters: NDArray[np.uint64], candidates: NDArray[np.uint64]) -> tuple[int, int]:
    """Return the largest count among the candidates and the first place that has it; narrow the candidates to those."""
    largest = 0
    for level in range(counters.shape[0] - 1, -1, -1):
        common_bits = uint64(0)
        for w in range(len(candidates)):
            common_bits |= candidates[w] & counters[level, w]
        if common_bits:
            largest |= 1 << level
            for w in range(len(candidates)):
                candidates[w] &= counters[level, w]
    for w in range(len(candidates)):
        if candidates[w]:
            bit = 0
            while not (candidates[w] >> uint64(bit)) & uint64(1):
                bit += 1
            return largest, 64 * w + bit
    return largest, -1


@kernel
def at_least(
    counters: NDArray[np.uint64], critical: int, valid: NDArray[np.uint64], passing: NDArray[np.uint64]
) -> np.int64:
    """Count the valid vertical counters that are critical or more: compared bit by bit, from the last one up."""
    if critical >> len(counters):
        return np.int64(0)
    passing[:] = valid
    for level in range(len(counters)):
        if (critical >> level) & 1:
            for w in range(len(passing)):
                passing[w] &= counters[level, w]
        else:
            for w in range(len(passing)):
                passing[w] |= counters[level, w]
    total = np.int64(0)
    for w in range(len(passing)):
        total += _ones(passing[w] & valid[w])
    return total


@kernel
def _ones(x: uint64) -> np.int64:
    x = x - ((x >> uint64(1)) & uint64(0x5555555555555555))
    x = (x & uint64(0x3333333333333333)) + ((x >> uint64(2)) & uint64(0x3333333333333333))
    x = (x + (x >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * uint64(0x0101010101010101)) >> uint64(56))


VECTORS_A_PASS = 8
"""Vectors that one pass of the adders takes."""

FEWEST_BLOCKS_ASIDE = 64
"""Fewest blocks of a run that stand side by side in a vector; with fewer, steps do, which is faster then."""

BLOCKS_ASIDE = 128
"""Most blocks that are worked on side by side: their bits of eight steps stay in the second-level cache."""

MOST_IN_BYTES = 254
"""Most steps of a document that are counted in bytes, if its run has fewer than FEWEST_BLOCKS_ASIDE blocks."""

BLOCKS_A_TILE = 16
"""Blocks of a run whose counters stay in the first-level cache while all steps are gone through."""


class RunScratch(NamedTuple):
    """Arrays that `best_of_runs` works in, made outside of its kernel: to compile np.empty and views takes seconds.

    inputs: uint32[4 · CHUNK].
    block: uint32[16 · CHUNK].
    row: uint32[CHUNK].
    counters: vertical counters, uint32[levels, W], W even.
    counter_pairs: the same, two words in one.
    remaining_bits, candidates: uint64[W / 2].
    counts: a byte of each number, four in a word, as `_count_in_bytes` writes them.
    count_bytes: the same, as bytes.
    byte_numbers: uint32, which number each byte counts.
    mask: as of `_count_in_bytes`.
    """

    inputs: NDArray[np.uint32]
    block: NDArray[np.uint32]
    row: NDArray[np.uint32]
    counters: NDArray[np.uint32]
    counter_pairs: NDArray[np.uint64]
    remaining_bits: NDArray[np.uint64]
    candidates: NDArray[np.uint64]
    counts: NDArray[np.uint32]
    count_bytes: NDArray[np.uint8]
    byte_numbers: NDArray[np.uint32]
    mask: NDArray[np.uint32]

    @classmethod
    def of_run(cls, length: int, longest: int, height: int) -> "RunScratch":
        """Make the arrays for runs of so many numbers and documents of so many steps; height: words of a block."""
        pairs = (length + 63) // 64
        counters = np.empty((max(1, longest.bit_length()), 2 * pairs), np.uint32)
        counts = np.empty(8 * height * -(-length // (32 * height)), np.uint32)
        byte_numbers = numbers_of_bytes(4 * len(counts))
        return cls(
            np.empty(4 * CHUNK, np.uint32),
            np.empty(16 * CHUNK, np.uint32),
            np.empty(CHUNK, np.uint32),
            counters,
            counters.view(np.uint64),
            np.empty(pairs, np.uint64),
            np.empty(pairs, np.uint64),
            counts,
            counts.view(np.uint8),
            byte_numbers,
            np.where(byte_numbers < length, uint8(255), uint8(0)).view(np.uint32),
        )


def numbers_of_bytes(count: int) -> NDArray[np.uint32]:
    """Return which number each byte counts, word j of eight being the sum of bits j, 8 + j, 16 + j and 24 + j."""
    places = np.arange(count)
    return (places // 32 * 32 + places % 4 * 8 + places // 4 % 8).astype(np.uint32)


def best_of_runs(
    keys: NDArray[np.uint32], steps: ScoredSteps, request: RunRequest, rule: tuple[int, int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of largest counts of each run, best first, ties to the smaller, and these counts.

    Args:
        keys: uint32[K, 8].
        steps: of D documents.
        request: the runs.
        rule: n, b and planes of γ = n / 2^b.

    Returns:
        Numbers and counts, int64[R, most] both; −1 and 0 where there are fewer.
    """
    shape, height = (len(request.first), request.most), 16 // rule[2]
    numbers, scores = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
    longest = int(np.diff(steps.offsets).max(initial=0))
    most_in_bytes = MOST_IN_BYTES if request.length <= 32 * height * (FEWEST_BLOCKS_ASIDE - 1) else -1
    scratch = RunScratch.of_run(request.length, longest, height)
    _best_of_runs(keys, steps, request, rule, most_in_bytes, scratch, numbers, scores)
    return numbers, scores


@kernel
def _best_of_runs(
    keys: NDArray[np.uint32],
    steps: ScoredSteps,
    request: RunRequest,
    rule: tuple[int, int, int],
    most_in_bytes: int,
    scratch: RunScratch,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Write what `best_of_runs` returns.

    most_in_bytes: most steps of documents that are counted in bytes.
    """
    inputs, block, row, counters, pairs, remaining_bits, candidates, counts, count_bytes, byte_numbers, mask = scratch
    for r in range(len(request.first)):
        document = request.documents[r]
        key, begin, end = keys[steps.whose[document]], steps.offsets[document], steps.offsets[document + 1]
        if end - begin <= most_in_bytes:
            begin_run(steps.ids[begin:end], steps.nonces[begin:end], request.first[r], 9 - log2(rule[2]), inputs)
            _count_in_bytes(key, inputs, rule, block, row[: end - begin], mask, counts)
            of_run = request.least, request.floors[r], numbers[r, : request.length], scores[r]
            _list_largest(count_bytes, byte_numbers, *of_run)
            continue
        used_counters = counters[: max(1, bit_length(end - begin))]
        count_run(key, steps.ids[begin:end], steps.nonces[begin:end], request.first[r], rule, used_counters)
        used_pairs = pairs[: len(used_counters)]
        first_bits(remaining_bits, request.length)
        for place in range(min(request.most, request.length)):
            candidates[:] = remaining_bits
            score, number = largest(used_pairs, candidates)
            if place >= request.least and score < request.floors[r]:
                break
            numbers[r, place], scores[r, place] = number, score
            remaining_bits[number >> 6] &= ~(uint64(1) << uint64(number & 63))


@kernel
def _count_in_bytes(
    key: NDArray[np.uint32],
    inputs: NDArray[np.uint32],
    rule: tuple[int, int, int],
    block: NDArray[np.uint32],
    row: NDArray[np.uint32],
    mask: NDArray[np.uint32],
    counts: NDArray[np.uint32],
) -> None:
    """Count the green steps of one document for each number of a run, and one more: a byte of 0 is no number.

    Args:
        key: uint32[8].
        inputs: of the first block of each step, by `begin_run`.
        rule: n, b and planes of γ = n / 2^b.
        block: uint32[16 · CHUNK], for its use.
        row: uint32[steps], likewise; MOST_IN_BYTES steps at most.
        mask: uint32[8 · words], all bits of the bytes that are numbers.
        counts: uint32[8 · words], written: a byte of each number, in the order of `numbers_of_bytes`.
    """
    n, bits, planes = rule
    height = 16 // planes
    for first in range(uint64(0), uint64(len(counts)), uint64(8 * height)):
        chacha8_lanes(key, inputs, len(row), block)
        next_block(inputs)
        for k in range(uint64(height)):
            below(n, bits, height * CHUNK, block[k * uint64(CHUNK) :], row)
            for j in range(uint64(8)):
                total = uint32(0x01010101)
                for i in range(uint64(len(row))):
                    total += uint32(row[i] >> uint32(j)) & uint32(0x01010101)
                place = first + k * uint64(8) + j
                counts[place] = total & mask[place]


@kernel
def _list_largest(
    counts: NDArray[np.uint8],
    byte_numbers: NDArray[np.uint32],
    least: int,
    floor: float,
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Write the numbers of largest counts, best first, ties to the smaller, and set their bytes to 0.

    Args:
        counts: one more than the count of each number.
        byte_numbers: of each count, as `numbers_of_bytes` says.
        least: how many are listed whatever they score.
        floor: of the others.
        numbers: as many as are listed at most, written.
        scores: as many or more, written.
    """
    for place in range(len(numbers)):
        largest_byte, number = uint8(0), ~uint32(0)
        for i in range(uint64(len(counts))):
            largest_byte = max(largest_byte, counts[i])
        score = np.int64(largest_byte) - 1
        if place >= least and score < floor:
            break
        for i in range(uint64(len(counts))):
            if counts[i] == largest_byte:
                number = min(number, byte_numbers[i])
        numbers[place], scores[place] = number, score
        if place + 1 < len(numbers):
            for i in range(uint64(len(counts))):
                counts[i] = uint8(0) if byte_numbers[i] == number else counts[i]


@kernel
def words_of(count: int, rule: tuple[int, int, int]) -> int:
    """Return the words of 32 numbers in the blocks that hold so many; even."""
    height = 16 // rule[2]
    return (count + 32 * height - 1) // (32 * height) * height


@kernel
def levels_of(offsets: NDArray[np.int64]) -> int:
    """Return the bits of the largest count of a document; 1 at least."""
    return max(1, bit_length(np.max(np.diff(offsets)))) if len(offsets) > 1 else 1


@kernel
def count_run(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first: int,
    rule: tuple[int, int, int],
    counters: NDArray[np.uint32],
) -> None:
    """Count the green steps of one document for each number of a run.

    Args:
        key: uint32[8].
        ids: uint32[T].
        nonces: uint64[T].
        first: the first number of a block.
        rule: n, b and planes of γ = n / 2^b.
        counters: uint32[levels, W], written: bit k of word w of level l is bit l of the count of number 32·w + k. The
            last words of the last block may be left out.
    """
    n, bits, planes = rule
    height = 16 // planes
    per_block = 5 + log2(height)
    levels = max(5, bit_length((len(ids) + LANES - 1) // LANES))
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    row, carry = np.empty(CHUNK, np.uint32), np.empty(LANES, np.uint32)
    # four levels more, for the sums of all lanes
    sums = np.empty(((BLOCKS_A_TILE * height), (levels + 4) * LANES), np.uint32)
    words = counters.shape[1]
    blocks = (words + height - 1) // height
    if blocks >= FEWEST_BLOCKS_ASIDE:
        _count_blocks(key, ids, nonces, first, rule, counters)
        return
    for tile in range(0, blocks, BLOCKS_A_TILE):
        block_count = min(BLOCKS_A_TILE, blocks - tile)
        sums[: block_count * height] = 0
        for p in range(0, len(ids), CHUNK):
            lanes = min(CHUNK, len(ids) - p)
            padded_lanes = (lanes + VECTORS_A_PASS * LANES - 1) // (VECTORS_A_PASS * LANES) * (VECTORS_A_PASS * LANES)
            begin_run(ids[p : p + lanes], nonces[p : p + lanes], first + (tile << per_block), per_block, inputs)
            for b in range(block_count):
                chacha8_lanes(key, inputs, lanes, block)
                next_block(inputs)
                for k in range(min(height, words - (tile + b) * height)):
                    below(n, bits, height * CHUNK, block[k * CHUNK :], row[:lanes])
                    row[lanes:padded_lanes] = 0
                    _add_lanes(row[:padded_lanes], levels, sums[b * height + k], carry)
        for w in range(min(block_count * height, words - tile * height)):
            filled_levels = _fold_lanes(sums[w], bit_length((len(ids) + LANES - 1) // LANES), len(counters), carry)
            for level in range(len(counters)):
                counters[level, tile * height + w] = sums[w, level * LANES] if level < filled_levels else uint32(0)


@kernel
def _count_blocks(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first: int,
    rule: tuple[int, int, int],
    counters: NDArray[np.uint32],
) -> None:
    """Count as `count_run` does, for FEWEST_BLOCKS_ASIDE or more.

    A step's blocks stand side by side, so that no lanes are added up.
    """
    n, bits, planes = rule
    height = 16 // planes
    per_block, levels = 5 + log2(height), len(counters)
    words = counters.shape[1]
    blocks = (words + height - 1) // height
    tiles = (blocks + BLOCKS_ASIDE - 1) // BLOCKS_ASIDE
    side = ((blocks + tiles - 1) // tiles + LANES - 1) // LANES * LANES
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    rows, carry = np.empty((VECTORS_A_PASS, height * side), np.uint32), np.empty(height * side, np.uint32)
    sums = np.empty((max(levels, 5), height * side), np.uint32)
    for tile in range(0, blocks, side):
        block_count = min(side, blocks - tile)
        sums[:] = 0
        for p in range(0, len(ids), VECTORS_A_PASS):
            steps = min(VECTORS_A_PASS, len(ids) - p)
            for s in range(steps):
                _blocks_of_step(ids[p + s], nonces[p + s], (first >> per_block) + tile, per_block, side, inputs)
                chacha8_lanes(key, inputs, block_count, block)
                for k in range(height):
                    below(n, bits, height * CHUNK, block[k * CHUNK :], rows[s, k * side : (k + 1) * side])
            rows[steps:] = 0
            _add_rows(rows, sums, carry)
        for level in range(levels):
            for lane in range(block_count):
                for k in range(min(height, words - (tile + lane) * height)):
                    counters[level, (tile + lane) * height + k] = sums[level, k * side + lane]


@kernel
def _blocks_of_step(token: uint32, nonce: uint64, block: int, bits: int, side: int, inputs: NDArray[np.uint32]) -> None:
    """Write counters and nonces of `side` blocks of one step's run, for `chacha8_lanes`; bits: as in `begin_run`."""
    low, high = uint32(token << uint32(32 - bits)) | uint32(block), uint32(token >> uint32(bits))
    for i in range(side):
        inputs[i], inputs[CHUNK + i] = uint32(low + uint32(i)), high
        inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = (uint32(nonce), uint32(nonce >> uint64(32)))


@kernel
def _add_rows(rows: NDArray[np.uint32], sums: NDArray[np.uint32], carry: NDArray[np.uint32]) -> None:
    """Add VECTORS_A_PASS rows of bits to vertical counters, at least five levels of them: uint32[levels, W]."""
    r0, r1, r2, r3, r4, r5, r6, r7 = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    s0, s1, s2, s3, s4 = sums[0], sums[1], sums[2], sums[3], sums[4]
    for i in range(len(carry)):
        ones, a = add3(s0[i], r0[i], r1[i])
        ones, b = add3(ones, r2[i], r3[i])
        ones, c = add3(ones, r4[i], r5[i])
        s0[i], d = add3(ones, r6[i], r7[i])
        twos, e = add3(s1[i], a, b)
        s1[i], f = add3(twos, c, d)
        s2[i], a = add3(s2[i], e, f)
        s3[i], b = s3[i] ^ a, s3[i] & a
        s4[i], carry[i] = s4[i] ^ b, s4[i] & b
    for level in range(5, len(sums)):
        plane = sums[level]
        for i in range(len(carry)):
            word = plane[i]
            plane[i] = word ^ carry[i]
            carry[i] &= word


@kernel
def _add_lanes(row: NDArray[np.uint32], levels: int, sums: NDArray[np.uint32], carry: NDArray[np.uint32]) -> None:
    """Add vectors of bits to the counters of their lanes: bit l of lane i stands at LANES · l + i of sums.

    Five levels in one loop, since a vector is soon gone through: loops of their own would cost twice as much.
    """
    for v in range(0, len(row), VECTORS_A_PASS * LANES):
        r = row[v:]
        for i in range(LANES):
            ones, a = add3(sums[i], r[i], r[LANES + i])
            ones, b = add3(ones, r[2 * LANES + i], r[3 * LANES + i])
            ones, c = add3(ones, r[4 * LANES + i], r[5 * LANES + i])
            sums[i], d = add3(ones, r[6 * LANES + i], r[7 * LANES + i])
            twos, e = add3(sums[LANES + i], a, b)
            sums[LANES + i], f = add3(twos, c, d)
            sums[2 * LANES + i], a = add3(sums[2 * LANES + i], e, f)
            sums[3 * LANES + i], b = sums[3 * LANES + i] ^ a, sums[3 * LANES + i] & a
            sums[4 * LANES + i], carry[i] = sums[4 * LANES + i] ^ b, sums[4 * LANES + i] & b
        for level in range(5, levels):
            plane = sums[LANES * level :]
            for i in range(LANES):
                word = plane[i]
                plane[i] = word ^ carry[i]
                carry[i] &= word


@kernel
def _fold_lanes(sums: NDArray[np.uint32], levels: int, total_levels: int, carry: NDArray[np.uint32]) -> int:
    """Add the counters of all lanes into that of lane 0: half of them to the other half, until one is left.

    Args:
        sums: bit l of lane i at LANES · l + i, as `_add_lanes` has it.
        levels: how many the count of a lane can fill.
        total_levels: how many the count of all can fill.
        carry: uint32[LANES], for its use.

    Returns:
        How many levels are filled.
    """
    half = LANES // 2
    while half:
        for i in range(half):
            carry[i] = uint32(0)
        for level in range(levels):
            plane = sums[LANES * level :]
            for i in range(half):
                plane[i], carry[i] = add3(plane[i], plane[half + i], carry[i])
        if levels < total_levels:
            for i in range(half):
                sums[LANES * levels + i] = carry[i]
            levels += 1
        half >>= 1
    return levels

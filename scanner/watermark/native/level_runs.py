"""The best numbers of runs by levels, Σ level · score over the steps of a text (SPEC_2 §1, §3), all numbers at a time.

**Green lists.** Vertical counters as without levels (scanner.watermark.native.green_runs). The steps of a level follow
one another, and their bits are added once for each bit of the level, so many places up.

**Gumbel.** The bits of a float are a logarithm that runs below the true one by up to 0.0861 binary digits
(scanner.watermark.native.gumbel_runs). Times the level of its lane and summed they bound each sum from above, in one
pass for all levels. Only numbers whose bound reaches an exact sum need logarithms. Over LONGEST_BOUNDED_BY_LEVELS steps
so much is lost that too many would. There each level is bounded by itself, by products, which lose less and pad few
lanes then.
"""

from typing import NamedTuple

import numpy as np
from numpy import float32, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.level_laws import LEVELS
from scanner.watermark.native.ciphers import CHUNK, LANES, block_after, chacha8_lanes
from scanner.watermark.native.green_runs import (
    BLOCKS_ASIDE,
    VECTORS_A_PASS,
    _add_rows,
    _blocks_of_step,
    bit_length,
    first_bits,
    largest,
    words_of,
)
from scanner.watermark.native.gumbel_runs import (
    _NUMBERS,
    _SHARED,
    _TILE,
    BITS,
    MOST_OF_A_TERM,
    PER_LN2,
    STEPS_A_PRODUCT,
    _add_up,
    _insert,
    _write_shared,
    largest_scores,
    level_sums,
)
from scanner.watermark.native.keyed import below
from scanner.watermark.native.streams import log2

LONGEST_BOUNDED_BY_LEVELS = 1024
"""Most steps for which one pass bounds sums of all levels."""


class LevelSteps(NamedTuple):
    """Scored positions of D documents that count, in order.

    ids: tokens, uint32[P].
    nonces: of their windows, uint64[P].
    levels: 1 to LEVELS, uint8[P].
    offsets: int64[D+1].
    """

    ids: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    levels: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    def select(self, mask: NDArray[np.bool_]) -> "LevelSteps":
        """Return the steps that a mask of bool[P] holds."""
        step_counts = np.append(0, np.cumsum(mask))
        return LevelSteps(self.ids[mask], self.nonces[mask], self.levels[mask], step_counts[self.offsets])


@kernel
def best_green(
    key: NDArray[np.uint32],
    steps: LevelSteps,
    runs: tuple[NDArray[np.int64], NDArray[np.int64]],
    length: int,
    most: int,
    rule: tuple[int, int, int],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of largest sums of each run, best first, ties to the smaller, and these sums.

    Args:
        key: uint32[8].
        steps: of D documents.
        runs: int64[R], over whose steps, and int64[R], the run's first number, the first of a block.
        length: how many numbers each run has.
        most: `length` at most.
        rule: n, b and planes of γ = n / 2^b.

    Returns:
        Numbers, int64[R, most], and sums, float64[R, most].
    """
    documents, first = runs
    numbers, sums = np.empty((len(documents), most), np.int64), np.empty((len(documents), most))
    longest = np.max(np.diff(steps.offsets))
    words = words_of(length, rule)
    counters = np.empty((max(1, bit_length(LEVELS * longest)), words), np.uint32)
    remaining_bits, candidates = np.empty(words // 2, np.uint64), np.empty(words // 2, np.uint64)
    for r in range(len(documents)):
        begin, end = steps.offsets[documents[r]], steps.offsets[documents[r] + 1]
        used_counters = counters[: max(1, bit_length(LEVELS * (end - begin)))]
        _add_steps(
            key, steps.ids[begin:end], steps.nonces[begin:end], steps.levels[begin:end], first[r], rule, used_counters
        )
        pairs = used_counters.view(np.uint64)
        first_bits(remaining_bits, length)
        for place in range(most):
            candidates[:] = remaining_bits
            score, number = largest(pairs, candidates)
            numbers[r, place], sums[r, place] = number, score
            remaining_bits[number >> 6] &= ~(uint64(1) << uint64(number & 63))
    return numbers, sums


@kernel
def _add_steps(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    levels: NDArray[np.uint8],
    first: int,
    rule: tuple[int, int, int],
    counters: NDArray[np.uint32],
) -> None:
    """Add the levels of the green steps of one document for each number of a run, as `count_run` counts them."""
    n, bits, planes = rule
    height = 16 // planes
    per_block, blocks = 5 + log2(height), counters.shape[1] // height
    tiles = (blocks + BLOCKS_ASIDE - 1) // BLOCKS_ASIDE
    side = ((blocks + tiles - 1) // tiles + LANES - 1) // LANES * LANES
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    rows, carry = np.empty((VECTORS_A_PASS, height * side), np.uint32), np.empty(height * side, np.uint32)
    sums = np.empty((max(len(counters), 8), height * side), np.uint32)
    for tile in range(0, blocks, side):
        block_count = min(side, blocks - tile)
        sums[:] = 0
        for level in range(1, LEVELS + 1):
            row_count = 0
            for p in range(len(ids)):
                if levels[p] == level:
                    _blocks_of_step(ids[p], nonces[p], (first >> per_block) + tile, per_block, side, inputs)
                    chacha8_lanes(key, inputs, block_count, block)
                    for k in range(height):
                        below(n, bits, height * CHUNK, block[k * CHUNK :], rows[row_count, k * side : (k + 1) * side])
                    row_count += 1
                    if row_count == VECTORS_A_PASS:
                        _add_times(rows, level, sums, carry)
                        row_count = 0
            if row_count:
                rows[row_count:] = 0
                _add_times(rows, level, sums, carry)
        for plane in range(len(counters)):
            for lane in range(block_count):
                for k in range(height):
                    counters[plane, (tile + lane) * height + k] = sums[plane, k * side + lane]


@kernel
def _add_times(rows: NDArray[np.uint32], times: int, sums: NDArray[np.uint32], carry: NDArray[np.uint32]) -> None:
    """Add VECTORS_A_PASS rows of bits to vertical counters `times` times.

    Args:
        rows: uint32[VECTORS_A_PASS, W].
        times: 8 at most.
        sums: uint32[8 or more, W], the counters.
        carry: uint32[W], for its use.
    """
    for bit in range(4):
        if (times >> bit) & 1:
            _add_rows(rows, sums[bit:], carry)


@kernel
def bound_sums(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    levels: NDArray[np.uint8],
    first: int,
    bounds: NDArray[np.int64],
) -> None:
    """Bound Σ level · score of one document for each number of a run, in units of ln 2 / 2^11.

    Args:
        key: uint32[8].
        ids: uint32[T].
        nonces: uint64[T].
        levels: uint8[T].
        first: the first number of a block.
        bounds: int64[16 · blocks], written.
    """
    k = (key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7])
    shared = np.empty((min(len(ids), STEPS_A_PRODUCT) + LANES - 1) // LANES * _SHARED, np.uint32)
    sums, scratch = np.empty(_TILE, np.uint32), np.empty(_TILE, np.uint32)
    bounds[:] = 0
    for p in range(0, len(ids), STEPS_A_PRODUCT):
        steps = min(STEPS_A_PRODUCT, len(ids) - p)
        _write_shared(k, ids[p : p + steps], nonces[p : p + steps], first, shared)
        # LEVELS · 448 steps · MOST_OF_A_TERM fits 32 bits
        vectors, largest_sum = (steps + LANES - 1) // LANES, np.int64(0)
        for i in range(vectors * LANES):
            level = levels[p + i] if i < steps else np.uint8(0)
            shared[i // LANES * _SHARED + 16 * LANES + i % LANES] = level
            largest_sum += np.int64(level) * MOST_OF_A_TERM
        for b in range(uint64(len(bounds) >> BITS)):
            sums[:] = uint32(0)
            _add_logarithms(k, shared, uint64(vectors), uint32(b), sums)
            _add_up(sums, scratch)
            for n in range(uint64(_NUMBERS)):
                bounds[b * uint64(_NUMBERS) + n] += largest_sum - np.int64(sums[n])


@inlined
def _add_logarithms(
    key: tuple[uint32, ...], shared: NDArray[np.uint32], vectors: uint64, block: uint32, sums: NDArray[np.uint32]
) -> None:
    """Add to the sums of a block's numbers the logarithms of some vectors of steps, each times its lane's level."""
    for v in range(vectors):
        vector = shared[v * uint64(_SHARED) : (v + uint64(1)) * uint64(_SHARED)]
        for i in range(LANES):
            columns = (
                vector[4 * LANES + i], vector[5 * LANES + i], vector[6 * LANES + i], vector[7 * LANES + i],
                vector[8 * LANES + i], vector[9 * LANES + i], vector[10 * LANES + i], vector[11 * LANES + i],
                vector[12 * LANES + i], vector[13 * LANES + i], vector[14 * LANES + i], vector[15 * LANES + i],
            )  # fmt: skip
            counter = uint32(vector[i] + block)
            x = block_after(key, columns, counter, vector[LANES + i], vector[2 * LANES + i], vector[3 * LANES + i])
            level = vector[16 * LANES + i]
            sums[i] += _times_logarithm(level, x[0])
            sums[LANES + i] += _times_logarithm(level, x[1])
            sums[2 * LANES + i] += _times_logarithm(level, x[2])
            sums[3 * LANES + i] += _times_logarithm(level, x[3])
            sums[4 * LANES + i] += _times_logarithm(level, x[4])
            sums[5 * LANES + i] += _times_logarithm(level, x[5])
            sums[6 * LANES + i] += _times_logarithm(level, x[6])
            sums[7 * LANES + i] += _times_logarithm(level, x[7])
            sums[8 * LANES + i] += _times_logarithm(level, x[8])
            sums[9 * LANES + i] += _times_logarithm(level, x[9])
            sums[10 * LANES + i] += _times_logarithm(level, x[10])
            sums[11 * LANES + i] += _times_logarithm(level, x[11])
            sums[12 * LANES + i] += _times_logarithm(level, x[12])
            sums[13 * LANES + i] += _times_logarithm(level, x[13])
            sums[14 * LANES + i] += _times_logarithm(level, x[14])
            sums[15 * LANES + i] += _times_logarithm(level, x[15])


@kernel
def _times_logarithm(level: uint32, draw: uint32) -> uint32:
    """Return a level times exponent and 11 bits of the fraction of (2^32 − w) as a float, at most one too small."""
    complement = float32(uint32(~draw | uint32(1)))
    return uint32(level * uint32(complement.view(np.uint32) >> uint32(12)))


def largest_sums(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    levels: NDArray[np.uint8],
    first: int,
    length: int,
) -> NDArray[np.float64]:
    """Return a sum that no number of a run exceeds: float64[length].

    The arguments are those of `bound_sums`. To round 2^32 − w to a float adds 2^-24 of it at most, 2^-12 units times
    the level. What sums in double precision miss is far less than their share of 1e-9.
    """
    if len(ids) > LONGEST_BOUNDED_BY_LEVELS:
        sums = np.zeros(length)
        for level in np.unique(levels).tolist():
            mask = levels == level
            sums += level * largest_scores(key, ids[mask], nonces[mask], first, length)
        return sums
    bounds = np.empty(((length - 1) >> BITS) + 1 << BITS, np.int64)
    bound_sums(key, ids, nonces, levels, first, bounds)
    upper_bounds = bounds[:length] + (3.0 + int(levels.sum()) * 2.0**-12)
    return np.asarray(upper_bounds / (PER_LN2 * (1.0 - 1e-9)), np.float64)


def best_gumbel(
    key: NDArray[np.uint32],
    steps: LevelSteps,
    runs: tuple[NDArray[np.int64], NDArray[np.int64]],
    length: int,
    most: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of largest Gumbel sums of each run and these sums, as `best_green` does."""
    documents, first = runs
    numbers, sums = np.empty((len(documents), most), np.int64), np.empty((len(documents), most))
    for r, (document, first_number) in enumerate(zip(documents.tolist(), first.tolist(), strict=True)):
        part = slice(steps.offsets[document], steps.offsets[document + 1])
        text_steps = steps.ids[part], steps.nonces[part], steps.levels[part]
        bounds = largest_sums(key, *text_steps, first_number, length)
        numbers[r], sums[r] = _best_by_bounds(key, *text_steps, first_number, bounds, most)
    return numbers, sums


@kernel
def _best_by_bounds(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    levels: NDArray[np.uint8],
    first: int,
    bounds: NDArray[np.float64],
    limit: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of a run's largest sums, best first, ties to the smaller, and these sums.

    Both have `limit` entries, int64 and float64.
    """
    top, top_bounds = np.full(limit, -1, np.int64), np.zeros(limit)
    for number in range(len(bounds)):
        if top[limit - 1] < 0 or bounds[number] > top_bounds[limit - 1]:
            _insert(number, bounds[number], top, top_bounds)
    least_sum = np.min(level_sums(key, ids, nonces, levels, first + top))
    numbers, sums, candidate = np.full(limit, -1, np.int64), np.zeros(limit), np.empty(1, np.int64)
    for number in range(len(bounds)):
        if bounds[number] >= least_sum:
            candidate[0] = first + number
            _insert(number, level_sums(key, ids, nonces, levels, candidate)[0], numbers, sums)
    return numbers, sums

"""Gumbel scores of all numbers of runs (SPEC_2 §1, §3): sums that bound every score from above, then a shortlist.

Which bounds, and why they hold: bounds.py for short documents, the terms of gumbel.py for long ones.
"""

import math

import numpy as np
from numpy import float32, uint32
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.bounds import LONGEST, MOST_OF_A_TERM, PER_LN2
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.gumbel import TERM_ERROR, approximate_terms
from scanner.watermark.native.lanes import blocks_of_runs
from scanner.watermark.native.one_message import term
from scanner.watermark.native.runs import Asked, Steps, begin_run, next_block

BITS = 4
"""log2 of the numbers that a block holds."""

_TERMS_PER_LN2 = 2.0**23 / math.log(2.0)


@kernel
def best_of_runs(key: NDArray[np.uint32], steps: Steps, asked: Asked) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The numbers of largest scores of each run, best first, ties to the smaller: int64[R, most], float64[R, most].

    −1 and 0 where there are fewer; `least` is 1 or 2.
    """
    shape = len(asked.first), asked.most
    numbers, scores = np.full(shape, -1, np.int64), np.zeros(shape)
    bounds = np.empty(((asked.length - 1) >> BITS) + 1 << BITS, np.int64)
    for r in range(len(asked.first)):
        begin, end = steps.offsets[asked.documents[r]], steps.offsets[asked.documents[r] + 1]
        ids, nonces, first = steps.ids[begin:end], steps.nonces[begin:end], asked.first[r]
        if len(ids) <= LONGEST:
            bound_run(key, ids, nonces, first, bounds)
        else:
            sum_run(key, ids, nonces, first, bounds)
            bounds += len(ids) * TERM_ERROR
        a, b = _largest_two(bounds[: asked.length])
        reached = score_of_number(key, ids, nonces, first + a)
        if asked.least > 1 and b >= 0:
            reached = min(reached, score_of_number(key, ids, nonces, first + b))
        enough = units_of(min(reached, asked.floors[r]), len(ids))
        for number in range(asked.length):
            if bounds[number] >= enough:
                _insert(number, score_of_number(key, ids, nonces, first + number), numbers[r], scores[r])
        for place in range(asked.least, asked.most):
            if scores[r, place] < asked.floors[r]:
                numbers[r, place], scores[r, place] = -1, 0.0
    return numbers, scores


@kernel
def bound_run(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first: int,
    bounds: NDArray[np.int64],
) -> None:
    """Bound the score of one document of up to LONGEST steps for each number of a run, in units of ln 2 / 2^11.

    Args:
        key: uint32[8].
        ids: uint32[T].
        nonces: uint64[T].
        first: the first number of a block.
        bounds: int64[16 · blocks], written.
    """
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    bounds[:] = len(ids) * MOST_OF_A_TERM
    for p in range(0, len(ids), CHUNK):
        lanes = min(CHUNK, len(ids) - p)
        begin_run(ids[p : p + lanes], nonces[p : p + lanes], first, BITS, inputs)
        for b in range(len(bounds) >> BITS):
            chacha8_lanes(key, inputs, lanes, block)
            next_block(inputs)
            for k in range(1 << BITS):
                bounds[(b << BITS) + k] -= _bits(block[k * CHUNK : k * CHUNK + lanes])


@kernel
def sum_run(
    key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, sums: NDArray[np.int64]
) -> None:
    """Like `bound_run`, for documents of any length: scores to within TERM_ERROR a step, in units of ln 2 / 2^23."""
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    scratch, terms = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.uint32)
    sums[:] = 0
    for p in range(0, len(ids), CHUNK):
        lanes = min(CHUNK, len(ids) - p)
        begin_run(ids[p : p + lanes], nonces[p : p + lanes], first, BITS, inputs)
        for b in range(len(sums) >> BITS):
            chacha8_lanes(key, inputs, lanes, block)
            next_block(inputs)
            for k in range(1 << BITS):
                approximate_terms(block[k * CHUNK : k * CHUNK + lanes], scratch, terms)
                total = np.int64(0)
                for i in range(lanes):
                    total += np.int64(terms[i])
                sums[(b << BITS) + k] += total


@kernel
def _bits(draws: NDArray[np.uint32]) -> np.int64:
    """Sum of exponent and 11 bits of the fraction of each (2^32 − w) as a float, which is at most one too small."""
    total = uint32(0)
    for i in range(len(draws)):
        rest = float32(uint32(~draws[i] | uint32(1)))
        total = uint32(total + uint32(rest.view(np.uint32) >> uint32(12)))
    return np.int64(total)


@kernel
def units_of(score: float, scored: int) -> int:
    """A number whose bound is smaller than this has a smaller score than `score`, over so many positions.

    It leaves more room than the error of logarithms and sums in double precision.
    """
    score *= 1.0 - 1e-9 - scored * 2.0**-50
    return int(score * (PER_LN2 if scored <= LONGEST else _TERMS_PER_LN2)) - 2


@kernel
def _largest_two(bounds: NDArray[np.int64]) -> tuple[int, int]:
    """Places of the two largest values; the second is −1 where there is only one value."""
    a, b = 0, -1
    for i in range(1, len(bounds)):
        if bounds[i] > bounds[a]:
            a, b = i, a
        elif b < 0 or bounds[i] > bounds[b]:
            b = i
    return a, b


@kernel
def score_of_number(key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], number: int) -> float:
    """Score of one document for one number, summed in order of position."""
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
def draws_at(
    key: NDArray[np.uint32], tokens: NDArray[np.int64], nonces: NDArray[np.uint64], numbers: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The draw of one number of each token's run: uint32[P] for int64[P], uint64[P] and int64[P]."""
    draws = np.empty(len(numbers), np.uint32)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    for p in range(0, len(numbers), CHUNK):
        end = min(p + CHUNK, len(numbers))
        blocks_of_runs(key, nonces[p:end], tokens[p:end], numbers[p:end], BITS, inputs, block)
        for i in range(p, end):
            draws[i] = block[(numbers[i] & 15) * CHUNK + i - p]
    return draws


@kernel
def _insert(number: int, score: float, numbers: NDArray[np.int64], scores: NDArray[np.float64]) -> None:
    """Put a number among the best so far, which are all smaller: those of the same score stay before it."""
    place = len(numbers)
    while place > 0 and (numbers[place - 1] < 0 or scores[place - 1] < score):
        place -= 1
    for i in range(len(numbers) - 1, place, -1):
        numbers[i], scores[i] = numbers[i - 1], scores[i - 1]
    if place < len(numbers):
        numbers[place], scores[place] = number, score

"""Gumbel scores of all numbers of runs (SPEC_2 §1, §3): bounds on every score from above, then a shortlist."""

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.lanes import blocks_of_runs
from scanner.watermark.native.one_message import term
from scanner.watermark.native.run_bounds import BITS, bound_run, units_of
from scanner.watermark.native.runs import Asked, Steps, begin_run


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
        bound_run(key, ids, nonces, first, bounds)
        a, b = _largest_two(bounds[: asked.length])
        best = reached = score_of_number(key, ids, nonces, first + a)
        if asked.least > 1 and b >= 0:
            reached = min(best, score_of_number(key, ids, nonces, first + b))
        enough = units_of(min(reached, asked.floors[r]), len(ids))
        for number in range(asked.length):
            if bounds[number] >= enough:
                score = best if number == a else score_of_number(key, ids, nonces, first + number)
                _insert(number, score, numbers[r], scores[r])
        for place in range(asked.least, asked.most):
            if scores[r, place] < asked.floors[r]:
                numbers[r, place], scores[r, place] = -1, 0.0
    return numbers, scores


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

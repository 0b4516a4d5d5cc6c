"""The best number of each window of a document (SPEC_2 §1): each draw is computed once, whatever windows it is in.

The running sums of each number over the steps are made once, and a window is a difference of two of them. So all W
windows of T steps take T draws and W differences a number, where a search of each window took as many draws as it has
steps.
"""

import numpy as np
from numpy import float32, uint32
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.bounds import MOST_OF_A_TERM
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.lanes import log2
from scanner.watermark.native.one_message import below
from scanner.watermark.native.run_bounds import BITS
from scanner.watermark.native.runs import Steps, begin_run

WIDTH = 32
"""Numbers of a word."""


@kernel
def best_green(
    key: NDArray[np.uint32],
    steps: Steps,
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    count: int,
    rule: tuple[int, int, int],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of largest count of each window, ties to the smaller, and that count: int64[W] both.

    Args:
        key: uint32[8].
        steps: of D documents.
        first: int64[D+1], which windows each document has.
        begin: int64[W], first step of each window, among those of all documents.
        end: int64[W], the one after its last.
        count: numbers 0 … count−1.
        rule: n, b and planes of γ = n / 2^b.
    """
    n, bits, planes = rule
    height = 16 // planes
    per_block = 5 + log2(height)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    longest = np.max(np.diff(steps.offsets))
    words, sums = np.empty((height, longest + CHUNK), np.uint32), np.zeros((longest + 1, WIDTH), np.int32)
    numbers, scores = np.zeros(len(begin), np.int64), np.full(len(begin), -1)
    for d in range(len(first) - 1):
        at, size = steps.offsets[d], steps.offsets[d + 1] - steps.offsets[d]
        for run in range(0, count if first[d + 1] > first[d] else 0, height * WIDTH):
            for p in range(at, at + size, CHUNK):
                lanes = min(CHUNK, at + size - p)
                begin_run(steps.ids[p : p + lanes], steps.nonces[p : p + lanes], run, per_block, inputs)
                chacha8_lanes(key, inputs, lanes, block)
                for k in range(height):
                    below(n, bits, height * CHUNK, block[k * CHUNK :], words[k, p - at : p - at + lanes])
            for k in range(height):
                number = run + k * WIDTH
                if number >= count:
                    break
                for i in range(size):
                    word, now, after = words[k, i], sums[i], sums[i + 1]
                    for j in range(WIDTH):
                        after[j] = now[j] + np.int32(uint32(word >> uint32(j)) & uint32(1))
                width = min(WIDTH, count - number)
                for w in range(first[d], first[d + 1]):
                    low, high = sums[begin[w] - at], sums[end[w] - at]
                    most = np.int32(0)
                    for j in range(WIDTH):
                        most = max(most, np.int32(high[j] - low[j]))
                    if most > scores[w]:
                        for j in range(width):
                            if high[j] - low[j] > scores[w]:
                                scores[w], numbers[w] = high[j] - low[j], number + j
    return numbers, scores


@kernel
def best_gumbel(
    key: NDArray[np.uint32],
    steps: Steps,
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    count: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of largest bound on its score (bounds.py) of each window, and that bound in units of ln 2 / 2^11.

    Arguments and result as of `best_green`; a window has 2^16 steps at most.
    """
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    longest = np.max(np.diff(steps.offsets))
    sums = np.zeros((1 << BITS, longest + 1), np.uint32)  # differences of sums that went around are right still
    numbers, scores = np.zeros(len(begin), np.int64), np.full(len(begin), -1)
    for d in range(len(first) - 1):
        at, size = steps.offsets[d], steps.offsets[d + 1] - steps.offsets[d]
        for run in range(0, count if first[d + 1] > first[d] else 0, 1 << BITS):
            for p in range(at, at + size, CHUNK):
                lanes = min(CHUNK, at + size - p)
                begin_run(steps.ids[p : p + lanes], steps.nonces[p : p + lanes], run, BITS, inputs)
                chacha8_lanes(key, inputs, lanes, block)
                for k in range(1 << BITS):
                    draws, own = block[k * CHUNK : k * CHUNK + lanes], sums[k, p - at : p - at + lanes + 1]
                    for i in range(lanes):
                        rest = float32(uint32(~draws[i] | uint32(1)))
                        draws[i] = uint32(MOST_OF_A_TERM) - uint32(rest.view(np.uint32) >> uint32(12))
                    for i in range(lanes):
                        own[i + 1] = uint32(own[i] + draws[i])
            for k in range(min(1 << BITS, count - run)):
                own = sums[k]
                for w in range(first[d], first[d + 1]):
                    bound = np.int64(uint32(own[end[w] - at] - own[begin[w] - at]))
                    if bound > scores[w]:
                        scores[w], numbers[w] = bound, run + k
    return numbers, scores

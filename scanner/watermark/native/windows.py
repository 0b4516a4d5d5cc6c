"""Windows of a document under version 2: which message may stand out in which, and the best number of each (SPEC_2 §1).

With groups the group steps say which group is the best of each window, and where that is better than chance alone
makes it, the window's user steps say which user of it. That can only miss (scanner.watermark.span_search).

The running sums of each number over the steps are made once, and a window is a difference of two of them. So all W
windows of T steps take T draws and W differences a number, where a search of each window took as many draws as it has
steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy import float32, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.gumbel_runs import BITS, MOST_OF_A_TERM
from scanner.watermark.native.keyed import below
from scanner.watermark.native.streams import ScoredSteps, begin_run, in_two, is_group_step, log2, steps_of
from scanner.watermark.positions import Positions, Tokens, consecutive_positions

GROUPS_BY_CHANCE = 0.1
"""Largest chance, over all groups, of a score as high as a window's best group, at which that group's users are
searched.
"""

MOST_WINDOWS = 2
"""Windows of a document in which the users of a group are searched, those where it is best."""

Windows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""first: int64[D+1], which windows each document has; begin and end: int64[W], among the positions of all documents."""

BestOfWindows = Callable[[ScoredSteps, Windows, int], tuple[NDArray[np.int64], NDArray[np.float64]]]
"""The number of 0 … count−1 that scores most in each window, and a bound on that score: int64[W], float64[W]."""

BestOfGroup = Callable[[ScoredSteps, NDArray[np.int64]], NDArray[np.int64]]
"""The best user of one group a document, int64[R], over steps of users: int64[R]."""


class WindowKey(NamedTuple):
    """What a key brings: its law, nonces of positions, B (None: no groups), and what finds best numbers and users.

    whose: int64[D], which of the mark's keys each document is read with.
    """

    law: Law
    nonces: NDArray[np.uint64]
    whose: NDArray[np.int64]
    groups: int | None
    best_of_windows: BestOfWindows
    best_of_group: BestOfGroup


def standing_out(
    key: WindowKey, tokens: Tokens, positions: Positions, windows: Windows, count: int, share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Windows, and the message of each that may be as good as it is by chance in a share of windows: int64[Q] each.

    key: of version 2; share: of windows of text that nobody marked.
    """
    first, begin, end = windows
    if key.groups is None:
        number, bound = key.best_of_windows(steps_of(tokens, positions, key.nonces, key.whose), windows, count)
        kept = np.flatnonzero(key.law.log10_p(bound, end - begin) <= np.log10(share) - np.log10(count))
        return kept, number[kept]
    shared, users = in_two(tokens, positions, key.nonces, key.whose)
    before = np.append(0, np.cumsum(is_group_step(key.nonces)))
    begins, ends = before[begin], before[end]
    group, bound = key.best_of_windows(shared, (first, begins, ends), key.groups)
    log10_p = key.law.log10_p(bound, ends - begins)
    kept = np.flatnonzero(log10_p <= np.log10(GROUPS_BY_CHANCE) - np.log10(key.groups))
    whose = np.searchsorted(first, kept, side="right") - 1
    best = _best_of_each(whose * key.groups + group[kept], log10_p[kept])
    kept, whose = kept[best], whose[best]
    of_user = consecutive_positions((begin - begins)[kept], (end - begin - ends + begins)[kept])
    steps = ScoredSteps(users.ids[of_user.index], users.nonces[of_user.index], of_user.offsets, users.whose[whose])
    return kept, group[kept] * key.groups + key.best_of_group(steps, group[kept])


def _best_of_each(whose: NDArray[np.int64], log10_p: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of the MOST_WINDOWS smallest p of each, in order."""
    order = np.lexsort((log10_p, whose))
    rank = np.arange(len(order)) - np.searchsorted(whose[order], whose[order])
    return np.sort(order[rank < MOST_WINDOWS])


WIDTH = 32
"""Numbers of a word."""


@kernel
def best_green(
    keys: NDArray[np.uint32],
    steps: ScoredSteps,
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    count: int,
    rule: tuple[int, int, int],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of largest count of each window, ties to the smaller, and that count: int64[W] both.

    keys: uint32[K, 8]; first: int64[D+1], which windows each document has; begin, end: int64[W], of a window's steps
    among those of all documents; count: numbers 0 … count−1; rule: n, b and planes of γ = n / 2^b.
    """
    n, bits, planes = rule
    height = 16 // planes
    per_block = 5 + log2(height)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    longest = np.max(np.diff(steps.offsets))
    words, sums = np.empty((height, longest + CHUNK), np.uint32), np.zeros((longest + 1, WIDTH), np.int32)
    numbers, scores = np.zeros(len(begin), np.int64), np.full(len(begin), -1)
    for d in range(len(first) - 1):
        key, at, size = keys[steps.whose[d]], steps.offsets[d], steps.offsets[d + 1] - steps.offsets[d]
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
    keys: NDArray[np.uint32],
    steps: ScoredSteps,
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    count: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of largest bound on its score of each window, and that bound in units of ln 2 / 2^11.

    Arguments and result as of `best_green`; a window has 2^16 steps at most.
    """
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    longest = np.max(np.diff(steps.offsets))
    sums = np.zeros((longest + 1, 1 << BITS), np.uint32)  # differences of sums that went around are right still
    numbers, scores = np.zeros(len(begin), np.int64), np.full(len(begin), -1)
    for d in range(len(first) - 1):
        key, at, size = keys[steps.whose[d]], steps.offsets[d], steps.offsets[d + 1] - steps.offsets[d]
        for run in range(0, count if first[d + 1] > first[d] else 0, 1 << BITS):
            for p in range(at, at + size, CHUNK):
                lanes = min(CHUNK, at + size - p)
                begin_run(steps.ids[p : p + lanes], steps.nonces[p : p + lanes], run, BITS, inputs)
                chacha8_lanes(key, inputs, lanes, block)
                for k in range(1 << BITS):
                    draws = block[k * CHUNK : k * CHUNK + lanes]
                    for i in range(lanes):
                        rest = float32(uint32(~draws[i] | uint32(1)))
                        draws[i] = uint32(MOST_OF_A_TERM) - uint32(rest.view(np.uint32) >> uint32(12))
                for i in range(uint64(lanes)):
                    now, after = sums[uint64(p - at) + i], sums[uint64(p - at) + i + uint64(1)]
                    for k in range(uint64(1 << BITS)):
                        after[k] = uint32(now[k] + block[k * uint64(CHUNK) + i])
            width = min(1 << BITS, count - run)
            for w in range(first[d], first[d + 1]):
                low, high = sums[begin[w] - at], sums[end[w] - at]
                most = uint32(0)
                for k in range(1 << BITS):
                    most = max(most, uint32(high[k] - low[k]))
                if np.int64(most) > scores[w]:
                    for k in range(width):
                        bound = np.int64(uint32(high[k] - low[k]))
                        if bound > scores[w]:
                            scores[w], numbers[w] = bound, run + k
    return numbers, scores

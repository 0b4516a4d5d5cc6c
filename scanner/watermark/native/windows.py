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

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.laws import Law
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_lanes
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
    """Windows whose best message may have a p of `share` or less, over all messages, and that message: int64[Q] each.

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
    """Places of the MOST_WINDOWS smallest p of each document and group, in order."""
    order = np.lexsort((log10_p, whose))
    rank = np.arange(len(order)) - np.searchsorted(whose[order], whose[order])
    return np.sort(order[rank < MOST_WINDOWS])


WIDTH = 32
"""Numbers of a word."""

COLUMNS = 4 * WIDTH
"""Numbers whose green steps are counted side by side."""


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
    words = np.zeros((max(height, COLUMNS // WIDTH), longest + CHUNK), np.uint32)
    sums, places = np.zeros((longest + 1) * COLUMNS, np.uint32), np.arange(COLUMNS).astype(np.uint32)
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
            for number in range(run, min(run + height * WIDTH, count), COLUMNS):
                _count_bits(words[(number - run) // WIDTH :], size, places < uint32(count - number), sums)
                _find_best(sums, places, number, at, first[d], first[d + 1], begin, end, numbers, scores)
    return numbers, scores


@kernel
def _count_bits(words: NDArray[np.uint32], size: int, valid: NDArray[np.bool_], sums: NDArray[np.uint32]) -> None:
    """Running sums of COLUMNS numbers' bits over so many steps, from words of 32; of those not valid they are 0."""
    now, used = np.zeros(COLUMNS, np.uint32), valid.astype(np.uint32)
    for i in range(uint64(size)):
        a, b, c, d = words[0, i], words[1, i], words[2, i], words[3, i]
        after = (i + uint64(1)) * uint64(COLUMNS)
        for j in range(uint64(WIDTH)):  # four at once: the compiler unrolls a shorter loop, and finds no vectors then
            _add(now, sums, j, after, uint32(a >> uint32(j)) & used[j])
            _add(now, sums, j + uint64(WIDTH), after, uint32(b >> uint32(j)) & used[j + uint64(WIDTH)])
            _add(now, sums, j + uint64(2 * WIDTH), after, uint32(c >> uint32(j)) & used[j + uint64(2 * WIDTH)])
            _add(now, sums, j + uint64(3 * WIDTH), after, uint32(d >> uint32(j)) & used[j + uint64(3 * WIDTH)])


@inlined
def _add(now: NDArray[np.uint32], sums: NDArray[np.uint32], place: int | uint64, after: uint64, more: uint32) -> None:
    """Go on with a running sum: `now` holds those of the last step, and `after` is where the next step's begin."""
    now[place] += more
    sums[after + place] = now[place]


@kernel
def _find_best(
    sums: NDArray[np.uint32],
    places: NDArray[np.uint32],
    number: int,
    at: int,
    first: int,
    last: int,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    numbers: NDArray[np.int64],
    scores: NDArray[np.int64],
) -> None:
    """Keep the best number of each of a document's windows, first … last−1, where it is better than any before.

    sums: uint32[steps + 1, C], flat, running sums of C numbers; places: uint32[C], which each is, from `number` on.
    """
    columns = uint64(len(places))
    for w in range(first, last):
        low, high, most = uint64(begin[w] - at) * columns, uint64(end[w] - at) * columns, uint32(0)
        for j in range(columns):
            most = max(most, uint32(sums[high + j] - sums[low + j]))
        if np.int64(most) > scores[w]:
            place = ~uint32(0)
            for j in range(columns):
                if uint32(sums[high + j] - sums[low + j]) == most:
                    place = min(place, places[j])
            scores[w], numbers[w] = most, number + np.int64(place)


NUMBERS = 1 << BITS
"""Numbers of a block."""


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
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK + LANES, np.uint32)
    longest = np.max(np.diff(steps.offsets))
    # number k of block b in column LANES · k + b; differences of sums that went around are right still
    sums, columns = np.zeros((longest + 1) * LANES * NUMBERS, np.uint32), np.arange(LANES * NUMBERS)
    places = (columns % LANES * NUMBERS + columns // LANES).astype(np.uint32)
    numbers, scores = np.zeros(len(begin), np.int64), np.full(len(begin), -1)
    for d in range(len(first) - 1):
        key, at, size = keys[steps.whose[d]], steps.offsets[d], steps.offsets[d + 1] - steps.offsets[d]
        for run in range(0, count if first[d + 1] > first[d] else 0, LANES * NUMBERS):
            side = min(LANES, (count - run + NUMBERS - 1) // NUMBERS)
            now, at_once, used = (np.zeros(len(places), np.uint32), CHUNK // side, places < uint32(count - run))
            for p in range(0, size, at_once):
                these = min(at_once, size - p)
                _begin_side_by_side(steps, at + p, these, run >> BITS, side, inputs)
                chacha8_lanes(key, inputs, these * side, block)
                _add_bounds(block, side, these, used, now, sums[(p + 1) * len(places) :])
            _find_best(sums, places, run, at, first[d], first[d + 1], begin, end, numbers, scores)
    return numbers, scores


@kernel
def _begin_side_by_side(
    steps: ScoredSteps, first: int, size: int, block: int, side: int, inputs: NDArray[np.uint32]
) -> None:
    """Counters and nonces of `side` blocks of each of some steps, step by step, as `chacha8_lanes` takes them."""
    lane = 0
    for p in range(first, first + size):
        low, high, nonce = uint32(steps.ids[p] << uint32(32 - BITS)), steps.ids[p] >> uint32(BITS), steps.nonces[p]
        for b in range(side):
            inputs[lane], inputs[CHUNK + lane] = low | uint32(block + b), high
            inputs[2 * CHUNK + lane], inputs[3 * CHUNK + lane] = (uint32(nonce), uint32(nonce >> uint64(32)))
            lane += 1


@kernel
def _add_bounds(
    block: NDArray[np.uint32],
    side: int,
    size: int,
    valid: NDArray[np.bool_],
    now: NDArray[np.uint32],
    sums: NDArray[np.uint32],
) -> None:
    """Go on with running sums of bounds on the terms of some steps; of numbers that are not valid they are 0."""
    for k in range(NUMBERS):
        draws = block[k * CHUNK : k * CHUNK + side * size]
        for i in range(len(draws)):
            rest = float32(uint32(~draws[i] | uint32(1)))
            draws[i] = uint32(MOST_OF_A_TERM) - uint32(rest.view(np.uint32) >> uint32(12))
    used, row, width = np.where(valid, ~uint32(0), uint32(0)), uint64(CHUNK), uint64(LANES)
    for i in range(uint64(size)):
        after = i * uint64(LANES * NUMBERS)
        for k in range(uint64(0), uint64(NUMBERS), uint64(4)):
            a, place = k * row + i * uint64(side), k * width
            b, c, d = a + row, a + row + row, a + row + row + row
            for j in range(place, place + width):  # four at once, as in `_count_bits`
                lane = j - place
                _add(now, sums, j, after, block[a + lane] & used[j])
                _add(now, sums, j + width, after, block[b + lane] & used[j + width])
                _add(now, sums, j + width + width, after, block[c + lane] & used[j + width + width])
                _add(now, sums, j + width + width + width, after, block[d + lane] & used[j + width + width + width])

"""The search of a key of version 2 for all its messages, where tokens count by levels (SPEC_2 §3).

A sum by levels is Σ v · (score over the steps of level v). Bounds on the scores of all numbers of a run, level by
level, bound the sums, and cost little more than the search without levels. The numbers of largest bounds are scored
exactly, and more of them until no other can be better.

The rules are those of the search without levels: the best two of all messages, and others that are as rare as one in M;
with groups the best user of the best group, and of other groups whose own p is 1/B or less.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.level_laws import LEVELS
from scanner.watermark.native import green_runs, gumbel_runs
from scanner.watermark.native.secret import planes_of
from scanner.watermark.native.streams import is_group_step
from scanner.watermark.native.version2_marks import (
    MOST_GROUPS_SEARCHED,
    Version2GreenList,
    Version2Gumbel,
    Version2Mark,
)
from schemas.registry import MOST_NUMBERS

MOST_MESSAGES = 16
"""Most candidates of a text under a key without groups."""

LevelTail = Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]]
"""Function that gives log10 p of sums, float64[D], over tokens of which so many have each level, [D, LEVELS + 1]."""

_AT_FIRST = 64  # numbers that are scored exactly, at first
_ROOM = 1e-9  # slack in log10 p, so that rounding decides nothing


class LevelSteps(NamedTuple):
    """The T scored positions of one text that count. ids: uint32[T]; nonces: uint64[T]; levels: uint8[T], above 0."""

    ids: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    levels: NDArray[np.uint8]

    def some(self, mask: NDArray[np.bool_]) -> "LevelSteps":
        """Those of them that a mask of bool[T] holds."""
        return LevelSteps(self.ids[mask], self.nonces[mask], self.levels[mask])


def best_of_run(
    mark: Version2Mark, steps: LevelSteps, first: int, length: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The numbers of largest sums of a run, best first, ties to the smaller: int64[most], float64[most].

    Args:
        mark: the opened key.
        steps: of one text.
        first: the run's first number, the first of a block.
        length: how many numbers the run has.
        most: how many are returned, `length` at most.
    """
    bounds = np.zeros(length)
    for level in np.unique(steps.levels).tolist():
        bounds += level * _bounds(mark, steps.some(steps.levels == level), first, length)
    taken = min(max(_AT_FIRST, most), length)
    while True:
        by_bound = np.argpartition(-bounds, min(taken, length - 1))
        numbers = np.sort(by_bound[:taken])
        sums = bounds[numbers]
        if isinstance(mark, Version2Gumbel):
            sums = gumbel_runs.level_sums(mark.sub_keys.chacha, *steps, first + numbers)
        best_first = np.argsort(-sums, kind="stable")[:most]
        if taken == length or bounds[by_bound[taken]] < sums[best_first[-1]]:
            return numbers[best_first], sums[best_first]
        taken = min(8 * taken, length)


def _bounds(mark: Version2Mark, steps: LevelSteps, first: int, length: int) -> NDArray[np.float64]:
    """What no score over some steps exceeds, for each number of a run; green counts are exact: float64[length]."""
    run = mark.sub_keys.chacha, steps.ids, steps.nonces, first, length
    if isinstance(mark, Version2GreenList):
        gamma = mark.gamma
        return green_runs.counts_of_run(*run, (gamma.numerator, gamma.denominator.bit_length() - 1, planes_of(gamma)))
    return gumbel_runs.largest_scores(*run)


def candidates_of(mark: Version2Mark, steps: LevelSteps, count: int, tail: LevelTail) -> list[int]:
    """The messages among 0 … count−1 that a search of one text looks into; the best of all is among them."""
    if not len(steps.ids):
        return list(range(min(count, 2)))
    if mark.groups is None:
        message, sums = best_of_run(mark, steps, 0, count, min(MOST_MESSAGES, count))
        return list(map(int, message[_rare(sums, steps, tail, count, 2)]))
    shared = is_group_step(steps.nonces)
    of_group, own = steps.some(shared), steps.some(~shared)
    groups = range(min(MOST_GROUPS_SEARCHED, mark.groups))
    if len(of_group.ids):
        best, sums = best_of_run(mark, of_group, 0, mark.groups, len(groups))
        groups = best[_rare(sums, of_group, tail, mark.groups, 1)].tolist()
    users = [
        best_of_run(mark, own, group * MOST_NUMBERS, mark.groups, 1)[0][0] if len(own.ids) else 0 for group in groups
    ]
    return [int(group * mark.groups + user) for group, user in zip(groups, users, strict=True)]


def _rare(sums: NDArray[np.float64], steps: LevelSteps, tail: LevelTail, count: int, least: int) -> NDArray[np.bool_]:
    """Which of the best sums are looked into: the first ones, and those that are as rare as one in so many."""
    counts = np.bincount(steps.levels, minlength=LEVELS + 1)[None]
    rare = tail(sums, np.repeat(counts, len(sums), axis=0)) <= _ROOM - np.log10(count)
    rare[:least] = True
    return np.asarray(rare, np.bool_)

"""Which message may stand out in which window of a document, of keys of version 2, by one look at each draw.

With groups the group steps say which group is the best of each window, and where that is better than chance alone
makes it, the window's user steps say which user of it. That can only miss (scanner.watermark.span_search).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.laws import Law
from scanner.watermark.native.runs import Steps, in_two, is_group_step, steps_of
from scanner.watermark.positions import Positions, Tokens, places

GROUPS_BY_CHANCE = 0.1
"""Users of a group are searched in a window where one of its groups is so good by chance so seldom, or less."""

MOST_WINDOWS = 2
"""Windows of a document in which the users of a group are searched, those where it is best."""

Windows = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""first: int64[D+1], which windows each document has; begin and end: int64[W], among the positions of all documents."""

BestOfWindows = Callable[[Steps, Windows, int], tuple[NDArray[np.int64], NDArray[np.float64]]]
"""The number of 0 … count−1 that scores most in each window, and a bound on that score: int64[W], float64[W]."""

BestOfGroup = Callable[[Steps, NDArray[np.int64]], NDArray[np.int64]]
"""The best user of one group a document, int64[R], over steps of users: int64[R]."""


class Keyed(NamedTuple):
    """What a key brings: its law, nonces of positions, B (None: no groups), and what finds best numbers and users."""

    law: Law
    nonces: NDArray[np.uint64]
    groups: int | None
    best_of_windows: BestOfWindows
    best_of_group: BestOfGroup


def standing_out(
    key: Keyed, tokens: Tokens, positions: Positions, windows: Windows, count: int, share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Windows, and the message of each that may be as good as it is by chance in a share of windows: int64[Q] each.

    Args:
        key: of version 2.
        tokens: of a batch.
        positions: of D documents.
        windows: of these.
        count: messages 0 … count−1.
        share: of windows of text that nobody marked.
    """
    first, begin, end = windows
    if key.groups is None:
        number, bound = key.best_of_windows(steps_of(tokens, positions, key.nonces), windows, count)
        kept = np.flatnonzero(key.law.log10_p(bound, end - begin) <= np.log10(share) - np.log10(count))
        return kept, number[kept]
    shared, own = in_two(tokens, positions, key.nonces)
    before = np.append(0, np.cumsum(is_group_step(key.nonces)))
    begins, ends = before[begin], before[end]
    group, bound = key.best_of_windows(shared, (first, begins, ends), key.groups)
    log10_p = key.law.log10_p(bound, ends - begins)
    kept = np.flatnonzero(log10_p <= np.log10(GROUPS_BY_CHANCE) - np.log10(key.groups))
    whose = np.searchsorted(first, kept, side="right") - 1
    kept = kept[_best_of_each(whose * key.groups + group[kept], log10_p[kept])]
    of_user = places((begin - begins)[kept], (end - begin - ends + begins)[kept])
    steps = Steps(own.ids[of_user.index], own.nonces[of_user.index], of_user.offsets)
    return kept, group[kept] * key.groups + key.best_of_group(steps, group[kept])


def _best_of_each(whose: NDArray[np.int64], log10_p: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of the MOST_WINDOWS smallest p of each, in order."""
    order = np.lexsort((log10_p, whose))
    rank = np.arange(len(order)) - np.searchsorted(whose[order], whose[order])
    return np.sort(order[rank < MOST_WINDOWS])

"""Windows in which scanner.watermark.span_search looks for messages: of half as many scales, half a length apart."""

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.laws import Law
from scanner.watermark.positions import Positions
from scanner.watermark.search import log10_p_of
from scanner.watermark.spans import LENGTHS, scales_of


def least_length(law: Law | None, log10_p: float, longest: int) -> int:
    """The length of the shortest windows that can pass; in shorter ones not even the largest score passes.

    log10_p: the largest with which a window passes; longest: scored positions of the longest document.
    """
    lengths = LENGTHS[: scales_of(longest) + 1]
    can = log10_p_of(law, law.largest(lengths) if law else 0.0, lengths) <= log10_p
    return int(lengths[can.argmax()]) if can.any() else longest + 1


def coarse(positions: Positions, least: int) -> Iterator[tuple[Positions, NDArray[np.int64]]]:
    """Windows that are searched, and the document of each, int64[W]. Windows of one yield share no position.

    Lengths are 24·2^i from `least` on, and the last length below, so that a window of `least` holds a searched one
    whole. They begin half a length apart, and the last window of a document ends with it.
    """
    scored, firsts = positions.scored, positions.offsets[:-1]
    longest = int(scored.max(initial=0))
    for length in LENGTHS[: scales_of(longest) : 2].tolist():
        if 2 * length <= least:
            continue
        for shift in (0, length // 2):
            count = np.maximum((scored - shift) // length, 0) * (scored > length)
            whose = np.repeat(np.arange(len(scored)), count)
            if not len(whose):
                continue
            number = np.arange(len(whose)) - np.repeat(np.cumsum(count) - count, count)
            begin = firsts[whose] + shift + number * length
            end = np.where(number == count[whose] - 1, firsts[whose] + scored[whose], begin + length)
            yield ranges(positions, begin, end), whose


def coarse_of(positions: Positions, least: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The same windows together: each document's part, int64[D+1], begins and ends, as SearchesWindows takes them."""
    each = [_coarse_of(scored, least) for scored in positions.scored.tolist()]
    first = np.concatenate([[0], np.cumsum([len(of_one) for of_one in each], dtype=np.int64)])
    where = np.concatenate([np.empty((0, 2), np.int64), *each])
    where = where + np.repeat(positions.offsets[:-1], np.diff(first))[:, None]
    return first, where[:, 0].copy(), where[:, 1].copy()


@functools.lru_cache(maxsize=4096)
def _coarse_of(scored: int, least: int) -> NDArray[np.int64]:
    """Windows of a document of so many positions: int64[W, 2]."""
    found = [np.empty((0, 2), np.int64)]
    for length in LENGTHS[: scales_of(scored) : 2].tolist():
        if 2 * length > least:
            begins = np.append(np.arange(0, scored - length, length // 2), scored - length)
            found.append(np.stack([begins, begins + length], axis=1))
    return np.concatenate(found)


def ranges(positions: Positions, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Positions:
    """Ranges of the scored positions of a batch, int64[W], as documents of their own."""
    offsets = np.zeros(len(begin) + 1, np.int64)
    np.cumsum(end - begin, out=offsets[1:])
    return Positions(positions.index[np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], end - begin)], offsets)

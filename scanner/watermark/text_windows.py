"""Test windows of a document: their places, their scores, and the p-value of the best of them.

A document of T scored positions is tested at several scales, which depend only on T. At scale i, windows have 24·√2^i
positions and begin a quarter of their length apart, and one more ends with the document. The last scale is the document
itself. A window's score is the difference of two running sums over positions, so no draw is computed twice.

Example: a document of 40 scored positions has 7 windows. Four have 24 positions (0 … 23, 6 … 29, 12 … 35, 16 … 39), two
have 34 (0 … 33, 6 … 39), and one is the whole document.

**Why p holds.** Under H0 the draws are independent. The score of every window, under every message, increases in each
of them. So the scores are positively associated (Esary, Proschan and Walkup 1967): the event that all N of them stay
below their limits is at least as likely as if they were independent. With p_j of a window under a message,

    P(min p_j ≤ x) = 1 − P(all p_j > x) ≤ 1 − Π P(p_j > x) ≤ 1 − (1 − x)^N.

So `1 − (1 − min p)^N` with N = windows · messages is never too small, however the windows overlap. Other parts that are
fixed before any draw (scanner.looks.parts.search) count like windows. Then N = parts · messages.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law
from scanner.watermark.positions import Positions, Ranges, consecutive_positions
from scanner.watermark.pvalues import log10_any_of
from scanner.watermark.rule import log10_p_of

SHORTEST_WINDOW = 24
"""Number of scored positions of the shortest windows."""

WINDOWS_A_LENGTH = 4
"""Number of windows that begin within the length of one."""


def _length(scale: int) -> int:
    """Return 24·√2^scale, rounded up."""
    square = SHORTEST_WINDOW**2 << scale
    root = math.isqrt(square)
    return root + (root * root < square)


WINDOW_LENGTHS = np.array([_length(scale) for scale in range(64)], np.int64)
"""Lengths of the windows of each scale, in scored positions."""


class BestWindows(NamedTuple):
    """The largest score of D documents at each of S scales. The last scale is the whole document.

    length: int64[D, S], of the windows. 0 where a document has none of a scale.
    score: float64[D, S].
    """

    length: NDArray[np.int64]
    score: NDArray[np.float64]


def count_windows(scored: ArrayLike) -> NDArray[np.int64]:
    """Count the windows of documents with so many scored positions, including the whole: int64 of the same shape."""
    t = np.asarray(scored, np.int64)[..., None]
    lengths = WINDOW_LENGTHS[: scales_of(int(t.max(initial=0)))]
    scale_counts = np.where(t > lengths, 1 - (lengths - t) // (lengths // WINDOWS_A_LENGTH), 0)
    return np.asarray(scale_counts.sum(axis=-1) + (t[..., 0] > 0), np.int64)


def scales_of(scored: int) -> int:
    """Count the scales whose windows are shorter than a document of so many positions."""
    return int(np.searchsorted(WINDOW_LENGTHS, scored))


def windows(scored: int) -> NDArray[np.int64]:
    """List all windows of a document: int64[W, 2], the first position and the one after the last.

    The whole comes last.
    """
    scale_windows = []
    for length in WINDOW_LENGTHS[: scales_of(scored)].tolist():
        last = scored - length
        begins = np.append(np.arange(0, last, length // WINDOWS_A_LENGTH), last)
        scale_windows.append(np.stack([begins, begins + length], axis=1))
    return np.concatenate([*scale_windows, np.array([[0, scored]] * (scored > 0), np.int64).reshape(-1, 2)])


def log10_in_document(log10_p: ArrayLike, parts: ArrayLike, messages: int) -> NDArray[np.float64]:
    """Compute log10 p of the smallest p of any part under any of M messages: 1 − (1 − p)^(parts · M).

    Example: of 3 parts and 10 messages, p = 1e-8 becomes 3e-7.

    Args:
        log10_p: of the part and message of smallest p.
        parts: number of parts of its document, the whole included.
        messages: M.
    """
    return log10_any_of(log10_p, messages, np.maximum(parts, 1))


def least_log10_p(law: Law, best: BestWindows) -> NDArray[np.float64]:
    """Compute log10 of the smallest p of any window: float64[D]. 0 for a document without positions."""
    log10_p = np.where(best.length > 0, log10_p_of(law, best.score, best.length), 0.0)
    return np.asarray(log10_p.min(axis=1, initial=0.0), np.float64)


@kernel
def running_sums(terms: NDArray[np.float64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum the first 0 … T terms of each document, in order: float64[P + D].

    The sums of document d begin at offsets[d] + d.

    Args:
        terms: float64[P], the term of each scored position.
        offsets: int64[D+1].
    """
    documents = len(offsets) - 1
    sums = np.empty(len(terms) + documents)
    for d in range(documents):
        total = 0.0
        sums[offsets[d] + d] = total
        for p in range(offsets[d], offsets[d + 1]):
            total += terms[p]
            sums[p + d + 1] = total
    return sums


def totals(sums: NDArray[np.float64], positions: Positions) -> NDArray[np.float64]:
    """Return the last running sum of each document, which is its score: float64[D]."""
    return np.asarray(sums[positions.offsets[1:] + np.arange(len(positions.scored))], np.float64)


def best_of_scales(sums: NDArray[np.float64], positions: Positions, *, windows: bool = True) -> BestWindows:
    """Find the window of largest score of each scale.

    Args:
        sums: sums from `running_sums`.
        positions: of the D documents.
        windows: if false, only the documents as a whole.
    """
    lengths = WINDOW_LENGTHS[: scales_of(int(positions.scored.max(initial=0))) if windows else 0]
    return BestWindows(*_best_of_scales(sums, positions.offsets, lengths, WINDOWS_A_LENGTH))


@kernel
def _best_of_scales(
    sums: NDArray[np.float64], offsets: NDArray[np.int64], lengths: NDArray[np.int64], quarter: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    documents, scales = len(offsets) - 1, len(lengths)
    length_of, score_of = np.zeros((documents, scales + 1), np.int64), np.zeros((documents, scales + 1))
    for d in range(documents):
        scored = offsets[d + 1] - offsets[d]
        document_sums = sums[offsets[d] + d : offsets[d + 1] + d + 1]
        length_of[d, scales], score_of[d, scales] = scored, document_sums[scored]
        for scale in range(scales):
            length = lengths[scale]
            if length >= scored:
                break
            step, last = length // quarter, scored - length
            score = document_sums[scored] - document_sums[last]
            for begin in range(0, last, step):
                score = max(score, document_sums[begin + length] - document_sums[begin])
            length_of[d, scale], score_of[d, scale] = length, score
    return length_of, score_of


def least_length(law: Law | None, log10_p: float, longest: int) -> int:
    """Return the length of the shortest windows that can pass. In shorter ones not even the largest score passes.

    If no window can pass, the result is longer than the longest document.

    Args:
        law: law of the scores.
        log10_p: the largest value with which a window passes.
        longest: scored positions of the longest document.
    """
    lengths = WINDOW_LENGTHS[: scales_of(longest) + 1]
    can = log10_p_of(law, law.largest(lengths) if law else 0.0, lengths) <= log10_p
    return int(lengths[can.argmax()]) if can.any() else longest + 1


def coarse(positions: Positions, least: int) -> Iterator[tuple[Positions, NDArray[np.int64]]]:
    """Yield windows to search, and the document of each, int64[W]. Windows of one yield share no position.

    Lengths are 24·2^i from `least` on, and the last length below `least`, so that every window of length `least`
    contains a whole searched window. Windows begin half a length apart, and the last window of a document ends with it.
    """
    scored, firsts = positions.scored, positions.offsets[:-1]
    longest = int(scored.max(initial=0))
    for length in WINDOW_LENGTHS[: scales_of(longest) : 2].tolist():
        if 2 * length <= least:
            continue
        for shift in (0, length // 2):
            count = np.maximum((scored - shift) // length, 0) * (scored > length)
            documents = np.repeat(np.arange(len(scored)), count)
            if not len(documents):
                continue
            number = np.arange(len(documents)) - np.repeat(np.cumsum(count) - count, count)
            begin = firsts[documents] + shift + number * length
            end = np.where(number == count[documents] - 1, firsts[documents] + scored[documents], begin + length)
            yield ranges(positions, begin, end), documents


def coarse_of(positions: Positions, least: int, longest: int) -> Ranges:
    """Return all windows of `coarse` together, for documents of at most `longest` positions.

    Other documents have none.
    """
    lengths = WINDOW_LENGTHS[: scales_of(min(int(positions.scored.max(initial=0)), longest)) : 2]
    return Ranges(*_coarse_of(positions.offsets, lengths[2 * lengths > least], longest))


@kernel
def _coarse_of(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the ranges of windows, scale by scale in each document."""
    first = np.zeros(len(offsets), np.int64)
    for d in range(len(offsets) - 1):
        scored = offsets[d + 1] - offsets[d]
        first[d + 1] = first[d]
        for length in lengths:
            if length < scored <= longest:
                first[d + 1] += (scored - length - 1) // (length // 2) + 2
    begin, end, w = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64), 0
    for d in range(len(offsets) - 1):
        for length in lengths:
            last = offsets[d + 1] - length
            if offsets[d] < last and offsets[d + 1] - offsets[d] <= longest:
                for start in range(offsets[d], last, length // 2):
                    begin[w], end[w] = start, start + length
                    w += 1
                begin[w], end[w] = last, offsets[d + 1]
                w += 1
    return first, begin, end


def ranges(positions: Positions, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Positions:
    """Return ranges of the scored positions of a batch, int64[W], as documents of their own."""
    numbers = consecutive_positions(begin, end - begin)
    return Positions(positions.index[numbers.index], numbers.offsets)

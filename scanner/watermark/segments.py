"""Segments of documents, fixed by their texts' form: the scored positions and the score of each.

Segments are cut without looking at any key, so they are fixed before any draw. To the law of the best part
(scanner.watermark.spans) a segment is one look more.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law
from scanner.watermark.positions import Positions, Tokens
from scanner.watermark.search import log10_p_of
from scanner.watermark.spans import SHORTEST, best_of_scales, least_log10_p, looks, windows


class Segments(NamedTuple):
    """Ranges of each of D documents, in order; two ranges of one document do not overlap.

    offsets: int64[D+1]; begin, end: int64[S], within the document, of its tokens or of its scored positions; number:
    int64[S], which of the segments of its text each is.
    """

    offsets: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    number: NDArray[np.int64]

    @classmethod
    def none(cls, documents: int) -> "Segments":
        """Segments of so many documents without any."""
        return cls(np.zeros(documents + 1, np.int64), *(np.empty(0, np.int64) for _ in range(3)))

    @property
    def many(self) -> NDArray[np.int64]:
        """Number of segments of each document: int64[D]."""
        return np.diff(self.offsets)

    @property
    def whose(self) -> NDArray[np.int64]:
        """Document of each segment: int64[S]."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.many)

    def only(self, documents: NDArray[np.int64]) -> "Segments":
        """Segments of some documents, int64[d], in their order."""
        count = self.many[documents]
        offsets = np.concatenate([[0], np.cumsum(count)])
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[documents] - offsets[:-1], count)
        return Segments(offsets, *(values[rows] for values in self[1:]))


class Parts(NamedTuple):
    """Parts at which each of D documents is tested besides the whole: windows or none, and segments."""

    windows: bool
    segments: Segments

    @classmethod
    def windows_alone(cls, documents: int) -> "Parts":
        """Windows of so many documents."""
        return cls(True, Segments.none(documents))

    def only(self, documents: NDArray[np.int64]) -> "Parts":
        """Parts of some documents, int64[d]."""
        return Parts(self.windows, self.segments.only(documents))

    def looks(self, scored: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of parts of documents with so many scored positions, int64[D], the whole counted: int64[D]."""
        by_windows = looks(scored) if self.windows else np.minimum(scored, 1)
        return by_windows + self.segments.many

    def places(self, document: int, scored: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All parts of a document of so many scored positions: int64[L, 2], first position and that after the last.

        The second result is the number of each part's segment in its text, int64[L], −1: none. Segments come before
        windows.
        """
        of_windows = windows(scored) if self.windows else np.array([[0, scored]])
        own = self.segments.only(np.array([document]))
        number = np.concatenate([own.number, np.full(len(of_windows), -1)])
        return np.concatenate([np.stack([own.begin, own.end], axis=1), of_windows]), number


def joined_segments(several: list[Segments]) -> Segments:
    """Segments of several batches as of one."""
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([one.many for one in several]))])
    begin, end, number = (np.concatenate(values) for values in list(zip(*several, strict=True))[1:])
    return Segments(offsets, begin, end, number)


def of_positions(segments: Segments, tokens: Tokens, positions: Positions, documents: NDArray[np.int64]) -> Segments:
    """Segments that are tested, by scored positions: each has SHORTEST at least, and is less than the whole.

    Args:
        segments: of all documents of a batch, by their tokens.
        tokens: of the batch.
        positions: of some of its documents.
        documents: int64[D], places of these documents in the batch.
    """
    of_these = segments.only(documents)
    begin, end = _scored_before(of_these, tokens.offsets[documents], positions.index, positions.offsets)
    kept = (end - begin >= SHORTEST) & (end - begin < positions.scored[of_these.whose])
    offsets = np.concatenate([[0], np.cumsum(kept)])[of_these.offsets]
    return Segments(offsets, begin[kept], end[kept], of_these.number[kept])


@kernel
def _scored_before(
    segments: Segments, tokens: NDArray[np.int64], index: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of scored positions before each segment begins, and before it ends: int64[S] each.

    Args:
        segments: of D documents, by their tokens.
        tokens: int64[D], places in the batch at which each document's tokens begin.
        index: scored positions, places in the batch.
        offsets: int64[D+1], each document's part of `index`.
    """
    begin, end = np.empty_like(segments.begin), np.empty_like(segments.end)
    for d in range(len(tokens)):
        at = offsets[d]
        for s in range(segments.offsets[d], segments.offsets[d + 1]):
            while at < offsets[d + 1] and index[at] < tokens[d] + segments.begin[s]:
                at += 1
            begin[s] = at - offsets[d]
            while at < offsets[d + 1] and index[at] < tokens[d] + segments.end[s]:
                at += 1
            end[s] = at - offsets[d]
    return begin, end


def scores_of(segments: Segments, sums: NDArray[np.float64], positions: Positions) -> NDArray[np.float64]:
    """Score of each segment, float64[S], from running sums of its D documents (scanner.watermark.spans)."""
    first = (positions.offsets[:-1] + np.arange(len(positions.scored)))[segments.whose]
    return np.asarray(sums[first + segments.end] - sums[first + segments.begin], np.float64)


def least_of_parts(law: Law, sums: NDArray[np.float64], positions: Positions, parts: Parts) -> NDArray[np.float64]:
    """log10 of the smallest p of any part of each document: float64[D]; 0 of a document without positions."""
    least = least_log10_p(law, best_of_scales(sums, positions, windows=parts.windows))
    segments = parts.segments
    score = scores_of(segments, sums, positions)
    np.minimum.at(least, segments.whose, log10_p_of(law, score, segments.end - segments.begin))
    return least

"""Define the parts of texts that are tested besides the whole, and spans, the parts that pass.

The number of scored positions decides the windows (scanner.watermark.text_windows). The form of a text decides its
segments. No score and no key decides which parts there are, so they are fixed before any draw.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.positions import Positions, Ranges, consecutive_positions, offsets_of
from scanner.watermark.text_windows import count_windows, windows

MOST_SEARCHES = 40
"""Largest number of searches of the documents in a search for spans.

There are two at each of 18 scales, one of segments, and a few more.
"""

FEW_SEARCHES = 16
"""Largest number of searches of documents whose windows are all searched at once: generous, they take four."""

LONGEST_AT_ONCE = 2**16 - 1
"""Largest number of positions of documents whose windows are all searched at once, if the mark can do so.

More positions take too much memory. Their counts fit 16 bits.
"""


class PartKinds(NamedTuple):
    """Which parts of documents are tested besides the whole."""

    windows: bool
    segments: bool


class Segments(NamedTuple):
    """Ranges of each of D documents, in order. Two ranges of one document do not overlap.

    offsets: int64[D+1].
    begin, end: int64[S], within the document, counted in its tokens or in its scored positions.
    number: int64[S], the number of each segment in its text.
    """

    offsets: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    number: NDArray[np.int64]

    @classmethod
    def none(cls, documents: int) -> "Segments":
        """Return no segments for so many documents."""
        return cls(np.zeros(documents + 1, np.int64), *(np.empty(0, np.int64) for _ in range(3)))

    @property
    def many(self) -> NDArray[np.int64]:
        """Return the number of segments of each document: int64[D]."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def whose(self) -> NDArray[np.int64]:
        """Return the document of each segment: int64[S]."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.many)

    def of_documents(self, documents: NDArray[np.int64]) -> "Segments":
        """Return the segments of some documents, int64[d], in their order."""
        rows = consecutive_positions(self.offsets[documents], self.many[documents])
        return Segments(rows.offsets, *(values[rows.index] for values in self[1:]))


class Parts(NamedTuple):
    """The parts of each of D documents that are tested besides the whole: windows or none, and segments."""

    windows: bool
    segments: Segments

    def of_documents(self, documents: NDArray[np.int64]) -> "Parts":
        """Return the parts of some documents, int64[d]."""
        return Parts(self.windows, self.segments.of_documents(documents))

    def count_parts(self, scored: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the parts of documents with so many scored positions, int64[D], including the whole: int64[D]."""
        by_windows = count_windows(scored) if self.windows else np.minimum(scored, 1)
        return by_windows + self.segments.many

    def with_wholes(self, positions: Positions) -> tuple[Ranges, NDArray[np.bool_]]:
        """List each document as a whole and then its segments, R ranges, and whether each is a segment, bool[R]."""
        many = self.segments.many + 1
        first = offsets_of(many)
        is_segment = np.ones(first[-1], np.bool_)
        is_segment[first[:-1]] = False
        begin, end = np.repeat(positions.offsets[:-1], many), np.repeat(positions.offsets[1:], many)
        end[is_segment] = begin[is_segment] + self.segments.end
        begin[is_segment] += self.segments.begin
        return Ranges(first, begin, end), is_segment

    def exist_in(self, scored: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether documents with so many scored positions, int64[D], have parts besides the whole: bool[D]."""
        return self.count_parts(scored) > 1

    def ranges_of(self, document: int, scored: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List all parts of a document of so many scored positions, segments before windows.

        Returns:
            The first position of each part and the one after its last, int64[L, 2].
            The number of each part's segment in its text, int64[L]. −1 for windows.
        """
        window_ranges = windows(scored) if self.windows else np.array([[0, scored]])
        segments = self.segments.of_documents(np.array([document]))
        number = np.concatenate([segments.number, np.full(len(window_ranges), -1)])
        return np.concatenate([np.stack([segments.begin, segments.end], axis=1), window_ranges]), number


def join_segments(batches: list[Segments]) -> Segments:
    """Join the segments of several batches."""
    offsets = offsets_of(np.concatenate([batch.many for batch in batches]))
    begin, end, number = (np.concatenate(values) for values in list(zip(*batches, strict=True))[1:])
    return Segments(offsets, begin, end, number)


class Limit(NamedTuple):
    """The limit that a span must pass: its p, corrected for all parts, all messages and K keys, is at most `rate`."""

    rate: float
    messages: int
    correction: float

    @property
    def log10_p(self) -> float:
        """Return the largest log10 p with which a part can pass in any document.

        1 − (1−p)^N ≤ rate needs p ≤ −ln(1−rate)/N.
        """
        return math.log10(-math.log1p(-self.rate)) - math.log10(self.messages) - math.log10(self.correction)


class Span(NamedTuple):
    """A part that passes: positions begin … end−1 among a document's scored ones, under a message.

    log10_p: of this part and message alone.
    log10_p_in_document: corrected for all parts and messages.
    log10_p_global: corrected for all keys too.
    log10_p_own: p of the user evidence, corrected alike. −∞ where names need no further evidence.
    independent: whether one message's mark leaves the scores of others unchanged.
    segment: the number of the segment in its text. −1: none.
    """

    document: int
    message: int
    begin: int
    end: int
    score: float
    log10_p: float
    log10_p_in_document: float
    log10_p_global: float
    log10_p_own: float
    independent: bool
    segment: int = -1

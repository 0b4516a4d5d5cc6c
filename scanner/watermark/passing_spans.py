"""Parts of documents that pass under given messages, from running sums; the best of overlapping parts."""

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.abilities import ScoresParts
from scanner.watermark.coarse_windows import ranges
from scanner.watermark.laws import Law, least_score
from scanner.watermark.positions import Positions, Tokens, only
from scanner.watermark.pvalues import log10_any_of
from scanner.watermark.search import corrected, log10_p_of, passes
from scanner.watermark.segments import Parts, scores_of
from scanner.watermark.spans import LENGTHS, best_of_scales, log10_in_document

MOST_SPANS = 64
"""Most spans of a document under a message; the spans of smallest p are kept."""


class Limit(NamedTuple):
    """Limit that a span must pass: its p, corrected for all parts, all messages and K keys, is at most `rate`."""

    rate: float
    messages: int
    keys: float

    @property
    def log10_p(self) -> float:
        """Largest log10 p with which a part can pass in any document: 1 − (1−p)^N ≤ rate needs p ≤ −ln(1−rate)/N."""
        return math.log10(-math.log1p(-self.rate)) - math.log10(self.messages) - math.log10(self.keys)


class Span(NamedTuple):
    """A part that passes: positions begin … end−1 of a document's scored ones, under a message.

    log10_p: of this part and message alone; log10_p_in_document: corrected for all parts and messages;
    log10_p_global: for all keys too; log10_p_own: by what the message shares with no other, corrected alike (−∞: names
    need nothing besides); independent: whether one message's mark leaves the scores of others as they were; segment:
    which of its text's segments it is, −1: none.
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

    def overlaps(self, other: "Span") -> bool:
        """Whether the spans share a position."""
        return self.document == other.document and self.begin < other.end and other.begin < self.end


class Among(NamedTuple):
    """D documents in which parts are looked for under a key: tokens, scored positions, the parts to test, the limit.

    independent: whether one message's mark leaves the scores of others as they were.
    """

    mark: ScoresParts
    tokens: Tokens
    positions: Positions
    parts: Parts
    limit: Limit
    independent: bool

    @property
    def law(self) -> Law:
        """The key's law."""
        if self.mark.law is None:
            raise ValueError(f"{self.mark.label}: has no law, so that no part of a document has a p-value")
        return self.mark.law


def passing_spans(
    among: Among, documents: NDArray[np.int64], messages: NDArray[np.int64], sums: NDArray[np.float64]
) -> list[Span]:
    """Spans of Q pairs of a document and a message, int64[Q] each, from the running sums of each pair."""
    kept, parts = only(among.positions, documents), among.parts.only(documents)
    found = []
    for pair in np.flatnonzero(_may_pass(among, kept, parts, sums)).tolist():
        own = sums[kept.offsets[pair] + pair : kept.offsets[pair + 1] + pair + 1]
        where, number = parts.places(pair, len(own) - 1)
        chosen = _apart(own, where, among)
        if len(chosen):
            found += _spans(among, int(documents[pair]), int(messages[pair]), where[chosen], number[chosen])
    return found


def _may_pass(among: Among, kept: Positions, parts: Parts, sums: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of Q pairs have a part whose p may pass, whatever a rounding does: bool[Q]."""
    law, enough = among.law, among.limit.log10_p
    best = best_of_scales(sums, kept, windows=parts.windows)
    floors = np.append(_floors(law, enough, best.score.shape[1] - 1), -np.inf)
    may = (best.length > 0) & (best.score >= floors)
    may[:, -1] &= log10_p_of(law, best.score[:, -1], kept.scored) <= enough
    found: NDArray[np.bool_] = np.asarray(may.any(axis=1), np.bool_)
    segments = parts.segments
    if len(segments.begin):
        # a segment needs at least the score that the longest windows no longer than it need
        score, length = scores_of(segments, sums, kept), segments.end - segments.begin
        scale = np.searchsorted(LENGTHS, length, side="right") - 1
        high = np.flatnonzero(score >= _floors(law, enough, int(scale.max()) + 1)[scale])
        high = high[log10_p_of(law, score[high], length[high]) <= enough]
        found[segments.whose[high]] = True
    return found


@functools.lru_cache(maxsize=64)
def _floors(law: Law, log10_p: float, scales: int) -> NDArray[np.float64]:
    """Scores below which no window of each scale passes: float64[S]."""
    return least_score(law, LENGTHS[:scales], log10_p)


def _apart(own: NDArray[np.float64], where: NDArray[np.int64], among: Among) -> list[int]:
    """Parts of one document that pass under one message and share no position, the smallest p first.

    Args:
        own: its running sums.
        where: its parts, int64[L, 2].
        among: the documents.
    """
    limit = among.limit
    log10_p = log10_p_of(among.law, own[where[:, 1]] - own[where[:, 0]], where[:, 1] - where[:, 0])
    of_all = log10_any_of(log10_in_document(log10_p, len(where), limit.messages), limit.keys)
    chosen: list[int] = []
    left = passes(of_all, limit.rate)
    while left.any() and len(chosen) < MOST_SPANS:
        one = int(np.where(left, log10_p, np.inf).argmin())
        chosen.append(one)
        left &= (where[:, 1] <= where[one, 0]) | (where[:, 0] >= where[one, 1])
    return chosen


def _spans(
    among: Among, document: int, message: int, chosen: NDArray[np.int64], number: NDArray[np.int64]
) -> list[Span]:
    """Spans of the chosen parts, with scores by `score`: a difference of sums may be off in its last bits.

    chosen: int64[C, 2], number: int64[C], as of Parts.places.
    """
    mark, tokens, positions, parts, limit, independent = among
    first = positions.offsets[document]
    of_parts = ranges(positions, first + chosen[:, 0], first + chosen[:, 1])
    of_message = np.full(len(chosen), message)
    score = mark.score(tokens, of_parts, of_message).astype(np.float64)
    looks = int(parts.only(np.array([document])).looks(positions.scored[document : document + 1])[0])
    log10_p = log10_p_of(mark.law, score, of_parts.scored)
    of_all = log10_in_document(log10_p, looks, limit.messages)
    own = mark.own(tokens, of_parts, of_message)
    log10_own = np.full(len(chosen), -np.inf)
    if own is not None:
        alone = log10_p_of(mark.law, own.score[:, 0], own.scored)
        log10_own = corrected(alone, own.tests * looks, limit.keys)
    log10_global = log10_any_of(of_all, limit.keys)
    numbers = np.stack((score, log10_p, of_all, log10_global, log10_own), axis=1).tolist()
    each = zip(chosen.tolist(), numbers, number.tolist(), strict=True)
    return [Span._make([document, message, *where, *p, independent, segment]) for where, p, segment in each]

"""Find spans: parts of documents that pass under one key, among windows and segments. Each has a p-value of its own.

Segments are cut by a text's form without looking at any key, so they are fixed before any draw. To the law of the best
part (scanner.watermark.text_windows) a segment is one more part. Of overlapping parts the best is kept.

Under a key of one message, every part of every document is scored. Under a key of many messages, scoring each message
in each window would cost thirty times as much as scoring the documents. So messages are first looked for in segments,
and in windows of half as many scales, half a length apart (`search_together`). Messages that stand out there are scored
in every part. Marks that can search all windows of a document at once do so. The shortcut can miss spans, but it never
flags more, because p is corrected for all parts and all messages.
"""

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.format import Candidates, ScoresParts, SearchesWindows, Watermark
from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law, least_score
from scanner.watermark.parts import LONGEST_AT_ONCE, Limit, PartKinds, Parts, Segments, Span
from scanner.watermark.positions import Positions, Tokens, offsets_of, select_positions
from scanner.watermark.pvalues import log10_any_of
from scanner.watermark.rule import KeyFindings, candidates, corrected, findings_of, log10_p_of, passes, search
from scanner.watermark.text_windows import (
    SHORTEST_WINDOW,
    WINDOW_LENGTHS,
    best_of_scales,
    coarse,
    coarse_of,
    least_length,
    least_log10_p,
    log10_in_document,
    ranges,
    running_sums,
    totals,
)


def scored_parts(
    kinds: PartKinds,
    segments: Segments | None,
    tokens: Tokens,
    positions: Positions,
    documents: NDArray[np.int64],
) -> Parts:
    """Return the parts of D documents that are tested, by scored positions.

    A segment has at least SHORTEST_WINDOW scored positions, and is less than the whole.

    Arguments and results are as in scanner.looks.text_parts.PartsLook.
    """
    if segments is None:
        return Parts(kinds.windows, Segments.none(len(documents)))
    document_segments = segments.of_documents(documents)
    begin, end = _scored_before(document_segments, tokens.offsets[documents], positions.index, positions.offsets)
    is_tested = (end - begin >= SHORTEST_WINDOW) & (end - begin < positions.scored[document_segments.whose])
    tested_segments = Segments(
        offsets_of(is_tested)[document_segments.offsets],
        begin[is_tested],
        end[is_tested],
        document_segments.number[is_tested],
    )
    return Parts(kinds.windows, tested_segments)


@kernel
def _scored_before(
    segments: Segments, tokens: NDArray[np.int64], index: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count scored positions before each segment begins, and before it ends: int64[S] each."""
    # tokens: int64[D], where documents begin in the batch. index: places in the batch, each document's by offsets.
    begin, end = np.empty_like(segments.begin), np.empty_like(segments.end)
    for d in range(len(tokens)):
        position = offsets[d]
        for s in range(segments.offsets[d], segments.offsets[d + 1]):
            while position < offsets[d + 1] and index[position] < tokens[d] + segments.begin[s]:
                position += 1
            begin[s] = position - offsets[d]
            while position < offsets[d + 1] and index[position] < tokens[d] + segments.end[s]:
                position += 1
            end[s] = position - offsets[d]
    return begin, end


def scores_of(segments: Segments, sums: NDArray[np.float64], positions: Positions) -> NDArray[np.float64]:
    """Return the score of each segment, float64[S], from running sums of its D documents.

    The sums are those of scanner.watermark.text_windows.
    """
    first = (positions.offsets[:-1] + np.arange(len(positions.scored)))[segments.whose]
    return np.asarray(sums[first + segments.end] - sums[first + segments.begin], np.float64)


def least_of_parts(law: Law, sums: NDArray[np.float64], positions: Positions, parts: Parts) -> NDArray[np.float64]:
    """Return log10 of the smallest p of any part of each document: float64[D]. 0 for a document without positions."""
    least = least_log10_p(law, best_of_scales(sums, positions, windows=parts.windows))
    segments = parts.segments
    score = scores_of(segments, sums, positions)
    np.minimum.at(least, segments.whose, log10_p_of(law, score, segments.end - segments.begin))
    return least


MOST_SPANS = 64
"""Largest number of spans of a document under a message. The spans of smallest p are kept."""


class PartSearch(NamedTuple):
    """D documents in which parts are looked for under a key.

    mark: mark of the key.
    tokens: of the batch.
    positions: scored positions of the documents.
    parts: parts to test.
    limit: the limit that a span must pass.
    independent: whether one message's mark leaves the scores of others unchanged.
    """

    mark: ScoresParts
    tokens: Tokens
    positions: Positions
    parts: Parts
    limit: Limit
    independent: bool

    @property
    def law(self) -> Law:
        """Return the key's law."""
        if self.mark.law is None:
            raise ValueError(f"{self.mark.label}: has no law, so parts of a document have no p-value")
        return self.mark.law


def passing_spans(
    part_search: PartSearch, documents: NDArray[np.int64], messages: NDArray[np.int64], sums: NDArray[np.float64]
) -> list[Span]:
    """Return spans of Q pairs of a document and a message, int64[Q] each, from the running sums of each pair."""
    pair_positions, parts = (
        select_positions(part_search.positions, documents),
        part_search.parts.of_documents(documents),
    )
    spans = []
    # a document without parts has no share for them: it is tested only as a whole
    for pair in np.flatnonzero(
        parts.exist_in(pair_positions.scored) & _may_pass(part_search, pair_positions, parts, sums)
    ).tolist():
        pair_sums = sums[pair_positions.offsets[pair] + pair : pair_positions.offsets[pair + 1] + pair + 1]
        where, number = parts.ranges_of(pair, len(pair_sums) - 1)
        chosen = _disjoint(pair_sums, where, part_search)
        if len(chosen):
            spans += _spans(part_search, int(documents[pair]), int(messages[pair]), where[chosen], number[chosen])
    return spans


def _may_pass(
    part_search: PartSearch, positions: Positions, parts: Parts, sums: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which of Q pairs have a part whose p may pass, whatever the rounding does: bool[Q]."""
    law, highest_log10_p = part_search.law, part_search.limit.log10_p
    best = best_of_scales(sums, positions, windows=parts.windows)
    floors = np.append(_floors(law, highest_log10_p, best.score.shape[1] - 1), -np.inf)
    may_pass = (best.length > 0) & (best.score >= floors)
    may_pass[:, -1] &= log10_p_of(law, best.score[:, -1], positions.scored) <= highest_log10_p
    passing: NDArray[np.bool_] = np.asarray(may_pass.any(axis=1), np.bool_)
    segments = parts.segments
    if len(segments.begin):
        # a segment needs at least the score that the longest windows no longer than it need
        score, length = scores_of(segments, sums, positions), segments.end - segments.begin
        scale = np.searchsorted(WINDOW_LENGTHS, length, side="right") - 1
        passing_segments = np.flatnonzero(score >= _floors(law, highest_log10_p, int(scale.max()) + 1)[scale])
        passing_segments = passing_segments[
            log10_p_of(law, score[passing_segments], length[passing_segments]) <= highest_log10_p
        ]
        passing[segments.whose[passing_segments]] = True
    return passing


@functools.lru_cache(maxsize=64)
def _floors(law: Law, log10_p: float, scales: int) -> NDArray[np.float64]:
    """Return the scores below which no window of each scale passes: float64[S]."""
    return least_score(law, WINDOW_LENGTHS[:scales], log10_p)


def _disjoint(sums: NDArray[np.float64], where: NDArray[np.int64], part_search: PartSearch) -> list[int]:
    """Choose parts of one document that pass under one message and share no position, the smallest p first.

    Args:
        sums: running sums of the document under the message.
        where: int64[L, 2], the document's parts.
        part_search: the search.

    Returns:
        Places of the parts in `where`, at most MOST_SPANS.
    """
    limit = part_search.limit
    log10_p = log10_p_of(part_search.law, sums[where[:, 1]] - sums[where[:, 0]], where[:, 1] - where[:, 0])
    log10_p_global = log10_any_of(log10_in_document(log10_p, len(where), limit.messages), limit.correction)
    chosen: list[int] = []
    is_free = passes(log10_p_global, limit.rate)
    while is_free.any() and len(chosen) < MOST_SPANS:
        best = int(np.where(is_free, log10_p, np.inf).argmin())
        chosen.append(best)
        is_free &= (where[:, 1] <= where[best, 0]) | (where[:, 0] >= where[best, 1])
    return chosen


def _spans(
    part_search: PartSearch, document: int, message: int, chosen: NDArray[np.int64], number: NDArray[np.int64]
) -> list[Span]:
    """Return spans of C chosen parts.

    Scores are computed by `score`, because a difference of sums may be off in its last bits.
    """
    mark, tokens, positions, parts, limit, independent = part_search
    first = positions.offsets[document]
    part_ranges = ranges(positions, first + chosen[:, 0], first + chosen[:, 1])
    part_messages = np.full(len(chosen), message)
    score = mark.score(tokens, part_ranges, part_messages).astype(np.float64)
    tested = int(parts.of_documents(np.array([document])).count_parts(positions.scored[document : document + 1])[0])
    log10_p = log10_p_of(mark.law, score, part_ranges.scored)
    log10_in_all = log10_in_document(log10_p, tested, limit.messages)
    evidence = mark.user_evidence(tokens, part_ranges, part_messages)
    log10_own = np.full(len(chosen), -np.inf)
    if evidence is not None:
        log10_user = log10_p_of(mark.law, evidence.score[:, 0], evidence.scored)
        log10_own = corrected(log10_user, evidence.messages * tested, limit.correction)
    log10_global = log10_any_of(log10_in_all, limit.correction)
    numbers = np.stack((score, log10_p, log10_in_all, log10_global, log10_own), axis=1).tolist()
    rows = zip(chosen.tolist(), numbers, number.tolist(), strict=True)
    return [Span._make([document, message, *where, *p, independent, segment]) for where, p, segment in rows]


PROMISING = 0.1
"""Threshold for scoring a message in every part.

A message is scored so if the chance that any message scores as high in a searched part is at most this.
"""

MOST_PROMISING = 256
"""Largest number of messages of a document that are scored in every part, those of the smallest p.

In a long text, chance brings one such message in a hundred positions, and each would be scored at all positions.
"""

POSITIONS_AT_A_TIME = 2**22
"""Largest number of positions that are scored together for such messages. One text of 16 MiB may have as many."""

BEST_MESSAGES = 4
"""Number of best messages of a window that are looked at."""


def search_parts(
    mark: Watermark,
    tokens: Tokens,
    positions: Positions,
    messages: int,
    correction: ArrayLike,
    limit: Limit,
    parts: Parts,
) -> tuple[KeyFindings, list[Span]]:
    """Search D documents as a whole, as scanner.watermark.rule.search does, and their parts.

    Spans of one message in one document share no position. For one message the sums of the windows also give the
    documents' scores, so no draw is computed twice. For more messages, a mark that can do so searches documents
    together with their parts.

    A mark that scores no parts has no spans. Arguments and results are as in scanner.looks.text_parts.PartsLook.
    """
    if not isinstance(mark, ScoresParts) or mark.law is None or not len(positions.scored):
        return search(mark, tokens, positions, messages, correction), []
    spans = list[Span]()
    if messages == 1:
        sums = running_sums(mark.terms(tokens, positions, 0), positions.offsets)
        findings = findings_of(mark, mark.single_message(totals(sums, positions)), positions.scored, 1, correction)
        part_search = PartSearch(mark, tokens, positions, parts, limit, findings.independent)
        documents = np.arange(len(positions.scored))
        spans += passing_spans(part_search, documents, np.zeros_like(documents), sums)
    else:
        best, pairs = search_together(mark, tokens, positions, limit, parts)
        findings = findings_of(mark, best, positions.scored, messages, correction)
        part_search = PartSearch(mark, tokens, positions, parts, limit, findings.independent)
        for documents, pair_messages in _few(positions.scored, *pairs):
            pair_positions = select_positions(positions, documents)
            sums = running_sums(mark.terms(tokens, pair_positions, pair_messages), pair_positions.offsets)
            spans += passing_spans(part_search, documents, pair_messages, sums)
    return findings, sorted(spans, key=_best_first)


def _few(
    scored: NDArray[np.int64], documents: NDArray[np.int64], messages: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs with together at most POSITIONS_AT_A_TIME positions. A longer pair is yielded separately."""
    ends, begin = np.cumsum(scored[documents]), 0
    while begin < len(ends):
        positions_before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, positions_before + POSITIONS_AT_A_TIME, side="right")))
        yield documents[begin:end], messages[begin:end]
        begin = end


def search_together(
    mark: ScoresParts, tokens: Tokens, positions: Positions, limit: Limit, parts: Parts
) -> tuple[Candidates, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Search D documents as a whole together with their parts.

    Returns:
        Candidates of the documents as a whole.
        Documents and messages that stand out in some part, int64[Q] each. Every such pair comes once, in order. A
        document has at most MOST_PROMISING messages.
    """
    pair_lists, searched_documents = list[_Pairs](), np.arange(len(positions.scored))
    searched, is_segment = parts.with_wholes(positions)
    least = least_length(mark.law, limit.log10_p, int(positions.scored.max(initial=0)))
    if isinstance(mark, SearchesWindows):
        longest = LONGEST_AT_ONCE if parts.windows else 0
        windows_of = coarse_of(positions, least, longest)
        best, window, message = mark.search_parts(tokens, positions, searched, windows_of, limit.messages, PROMISING)
        there = ranges(positions, windows_of.begin[window], windows_of.end[window])
        log10_p = log10_p_of(mark.law, mark.score(tokens, there, message), there.scored)
        pair_lists.append(_standing_out(windows_of.whose[window], message[:, None], log10_p[:, None], limit))
        searched_documents = searched_documents[positions.scored > longest]
    else:
        best = candidates(mark, tokens, ranges(positions, searched.begin, searched.end), limit.messages)
    log10_p = log10_p_of(mark.law, best.score, searched.length[:, None])
    pair_lists.append(_standing_out(searched.whose, best.message, log10_p, limit))
    if parts.windows:
        for part, documents in coarse(select_positions(positions, searched_documents), least):
            part_candidates = candidates(mark, tokens, part, limit.messages)
            log10_p = log10_p_of(mark.law, part_candidates.score, part.scored[:, None])
            pair_lists.append(_standing_out(searched_documents[documents], part_candidates.message, log10_p, limit))
    pairs = _best_of(_Pairs(*map(np.concatenate, zip(*pair_lists, strict=True))))
    return best.of_documents(np.flatnonzero(~is_segment)), pairs


class _Pairs(NamedTuple):
    """Documents, messages, and log10 p of the message in a searched part: [Q] each."""

    document: NDArray[np.int64]
    message: NDArray[np.int64]
    log10_p: NDArray[np.float64]

    def select(self, which: NDArray[Any]) -> "_Pairs":
        return _Pairs(*(values[which] for values in self))


def _standing_out(
    documents: NDArray[np.int64], messages: NDArray[np.int64], log10_p: NDArray[np.float64], limit: Limit
) -> _Pairs:
    """Return which of the best messages of R parts, [R, C], stand out there.

    Args:
        documents: int64[R], of the parts.
        messages: [R, C], best first.
        log10_p: [R, C], of the messages in the parts.
        limit: gives the number of tested messages.
    """
    stands_out = log10_p[:, :BEST_MESSAGES] <= math.log10(PROMISING) - math.log10(limit.messages)
    which = np.nonzero(stands_out)
    return _Pairs(documents[which[0]], messages[which], log10_p[which])


def _best_of(pairs: _Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct pairs, the best MOST_PROMISING of each document, sorted by document and message."""
    ordered = pairs.select(np.lexsort((pairs.log10_p, pairs.message, pairs.document)))
    first = np.ones(len(ordered.document), np.bool_)
    first[1:] = (np.diff(ordered.document) != 0) | (np.diff(ordered.message) != 0)
    distinct = ordered.select(first)
    by_p = np.lexsort((distinct.log10_p, distinct.document))
    rank = np.arange(len(by_p)) - np.searchsorted(distinct.document, distinct.document)
    best_pairs = distinct.select(np.sort(by_p[rank < MOST_PROMISING]))
    return best_pairs.document, best_pairs.message


def _best_first(span: Span) -> tuple[int, float, int, int]:
    return span.document, span.log10_p, span.begin, span.message

"""Spans: parts of documents that pass, found under one key; each with a p-value of its own.

Under a key of one message every part of every document is scored. Under a key of many messages, scoring each message in
each window would cost thirty times as much as scoring the documents. So messages are looked for in segments, and in
windows of half as many scales, half a length apart (`promising`). Messages that stand out there are scored in every
part. Marks that can search all windows of a document at once do so. The shortcut can miss spans, and never flags more:
p is corrected for all parts and all messages.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.abilities import ScoresParts, SearchesWindows
from scanner.watermark.coarse_windows import coarse, coarse_of, least_length, ranges
from scanner.watermark.format import Watermark
from scanner.watermark.passing_spans import Among, Limit, Span, passing_spans
from scanner.watermark.positions import Positions, Tokens, only
from scanner.watermark.search import Found, found_of, log10_p_of, search
from scanner.watermark.segments import Parts
from scanner.watermark.spans import running_sums, totals

PROMISING = 0.1
"""Largest probability, by chance, of a message's score in a searched part at which it is scored in every part."""

MOST_PROMISING = 256
"""Most messages of a document that are scored in every part, those of the smallest p. In a long text chance brings one
in a hundred positions, and each would be scored at all positions."""

AT_A_TIME = 2**22
"""Most positions that are scored together for such messages; one text of 16 MiB may have as many."""

MOST_SEARCHES = 40
"""Most searches of the documents in a search for spans: two at each of 18 scales, one of segments, and a few more.
"""

LONGEST_AT_ONCE = 2**16
"""Most positions of documents whose windows are searched all at once, where the mark can; more take memory."""

BEST_MESSAGES = 4
"""Best messages of a window that are looked at."""


def spans_of(
    mark: Watermark,
    tokens: Tokens,
    positions: Positions,
    limit: Limit,
    whole: Found,
    sums: NDArray[np.float64] | None = None,
    parts: Parts | None = None,
) -> list[Span]:
    """The spans of D documents, by document, the smallest p first; none for a mark that scores no parts.

    Spans of one message in one document share no position.

    Args:
        mark: the opened key.
        tokens: of the batch.
        positions: of the D documents.
        limit: what a span must pass.
        whole: result of the search of the documents as a whole.
        sums: running sums of message 0 (scanner.watermark.spans.running_sums), where it is the only one.
        parts: parts tested besides the whole; None: windows.
    """
    if not isinstance(mark, ScoresParts) or mark.law is None or not len(positions.scored):
        return []
    parts = Parts.windows_alone(len(positions.scored)) if parts is None else parts
    among = Among(mark, tokens, positions, parts, limit, whole.independent)
    if sums is not None:
        documents = np.arange(len(positions.scored))
        return sorted(passing_spans(among, documents, np.zeros_like(documents), sums), key=_best_first)
    documents, messages = promising(mark, tokens, positions, limit, whole, parts)
    found = []
    for some in _few(positions.scored[documents]):
        kept = only(positions, documents[some])
        sums = running_sums(mark.terms(tokens, kept, messages[some]), kept.offsets)
        found += passing_spans(among, documents[some], messages[some], sums)
    return sorted(found, key=_best_first)


def _few(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Runs of pairs with AT_A_TIME positions together at most; a longer pair is a run by itself."""
    ends, begin = np.cumsum(sizes), 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + AT_A_TIME, side="right")))
        yield slice(begin, end)
        begin = end


def search_parts(
    mark: Watermark,
    tokens: Tokens,
    positions: Positions,
    messages: int,
    keys: float,
    limit: Limit,
    parts: Parts | None = None,
) -> tuple[Found, list[Span]]:
    """Result of a search of D documents (scanner.watermark.search.search), and their spans.

    For one message the windows' sums give the documents' scores too, so that no draw is computed twice.

    Args:
        mark: the opened key.
        tokens: of the batch.
        positions: of the documents.
        messages: M.
        keys: K for documents as a whole.
        limit: what a span must pass.
        parts: as of `spans_of`.
    """
    if messages > 1 or not isinstance(mark, ScoresParts):
        found = search(mark, tokens, positions, messages, keys)
        return found, spans_of(mark, tokens, positions, limit, found, parts=parts)
    sums = running_sums(mark.terms(tokens, positions, 0), positions.offsets)
    found = found_of(mark, mark.alone(totals(sums, positions)), positions.scored, 1, keys)
    return found, spans_of(mark, tokens, positions, limit, found, sums, parts)


def promising(
    mark: Watermark, tokens: Tokens, positions: Positions, limit: Limit, whole: Found, parts: Parts
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Documents and messages that stand out in some part: int64[Q] each, every pair once, in order.

    A document has MOST_PROMISING messages at most. Arguments as of `spans_of`.
    """
    enough = math.log10(PROMISING) - math.log10(limit.messages)

    def standing_out(documents: NDArray[np.int64], found: Found) -> _Pairs:
        log10_p = found.log10_p[:, :BEST_MESSAGES]
        stands_out = log10_p <= enough
        message = found.message[:, :BEST_MESSAGES][stands_out]
        return _Pairs(np.repeat(documents, stands_out.sum(axis=1)), message, log10_p[stands_out])

    found = [standing_out(np.arange(len(positions.scored)), whole)]
    segments = parts.segments
    if len(segments.begin):
        first = positions.offsets[segments.whose]
        of_segments = ranges(positions, first + segments.begin, first + segments.end)
        found.append(standing_out(segments.whose, search(mark, tokens, of_segments, limit.messages)))
    least = least_length(mark.law, limit.log10_p, int(positions.scored.max(initial=0)))
    if parts.windows:
        short = (positions.scored <= LONGEST_AT_ONCE) & isinstance(mark, SearchesWindows)
        if isinstance(mark, SearchesWindows) and short.any():
            found.append(_in_windows(mark, tokens, positions, np.flatnonzero(short), least, limit.messages))
        others = np.flatnonzero(~short)
        for part, documents in coarse(only(positions, others), least):
            found.append(standing_out(others[documents], search(mark, tokens, part, limit.messages)))
    return _best_of(_Pairs(*map(np.concatenate, zip(*found, strict=True))))


def _in_windows(
    mark: SearchesWindows, tokens: Tokens, positions: Positions, documents: NDArray[np.int64], least: int, messages: int
) -> "_Pairs":
    """Messages that stand out in windows of some documents, int64[d], which are searched all at once."""
    of_these = only(positions, documents)
    first, begin, end = coarse_of(of_these, least)
    window, message = mark.in_windows(tokens, of_these, (first, begin, end), messages, PROMISING)
    there = ranges(of_these, begin[window], end[window])
    log10_p = log10_p_of(mark.law, mark.score(tokens, there, message), there.scored)
    pairs = _Pairs(documents[np.searchsorted(first, window, side="right") - 1], message, log10_p)
    return pairs.among(log10_p <= math.log10(PROMISING) - math.log10(messages))


class _Pairs(NamedTuple):
    """Documents, messages, and log10 p of the message in a searched part: [Q] each."""

    document: NDArray[np.int64]
    message: NDArray[np.int64]
    log10_p: NDArray[np.float64]

    def among(self, which: NDArray[Any]) -> "_Pairs":
        return _Pairs(*(values[which] for values in self))


def _best_of(pairs: _Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct pairs, the best MOST_PROMISING of each document, sorted by document and message."""
    ordered = pairs.among(np.lexsort((pairs.log10_p, pairs.message, pairs.document)))
    first = np.ones(len(ordered.document), np.bool_)
    first[1:] = (np.diff(ordered.document) != 0) | (np.diff(ordered.message) != 0)
    once = ordered.among(first)
    by_p = np.lexsort((once.log10_p, once.document))
    rank = np.arange(len(by_p)) - np.searchsorted(once.document, once.document)
    kept = once.among(np.sort(by_p[rank < MOST_PROMISING]))
    return kept.document, kept.message


def _best_first(span: Span) -> tuple[int, float, int, int]:
    return span.document, span.log10_p, span.begin, span.message

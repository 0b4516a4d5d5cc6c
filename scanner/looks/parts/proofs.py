"""Prove spans before their rows are committed: compute them again from the stored text and the key's secret."""

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.detection.attribution import DocumentSpan
from scanner.detection.left_out import LeftOut, places_left_out
from scanner.detection.rounding import nearly_equal
from scanner.looks.parts.segments import segments_of
from scanner.text import HuggingFaceTokenizer
from scanner.watermark.format import ProofPath, ProvesParts
from scanner.watermark.parts import PartKinds, Span
from schemas.words import Dedup, Proof


def parts_of(
    kinds: PartKinds, tokenizer: HuggingFaceTokenizer, text: str, places: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """Return all parts of a text: first scored position, position after the last, number of its segment (−1: none).

    Segments have at least SHORTEST_PART scored positions and are less than the whole text. A position is where its
    token begins.

    Arguments and results are as in scanner.looks.text_parts.PartsLook.
    """
    from scanner.watermark.proof import SHORTEST_PART, windows_of  # late: only flags need mpmath

    parts = [(*window, -1) for window in (windows_of(len(places)) if kinds.windows else {(0, len(places))})]
    if kinds.segments:
        begins = tokenizer.begins(text)[places]
        for number, segment in enumerate(segments_of(text)):
            begin, end = (int(np.searchsorted(begins, edge)) for edge in (segment.begin, segment.end))
            if SHORTEST_PART <= end - begin < len(places):
                parts.append((begin, end, number))
    return parts


def span_holds(
    span: Span,
    terms: NDArray[np.float64],
    is_own: NDArray[np.bool_] | None,
    path: ProofPath,
    parts: Collection[tuple[int, int, int]],
    tests: tuple[int, int, float],
) -> bool:
    """Return whether a span's score and p-values are confirmed, and its place is a part of its document.

    Args:
        span: the span that was found.
        terms: float64[P], the term of each position of the document for the message's score.
        is_own: bool[P], whether the message shares the position with no other. None: names need no second p-value.
        path: the key's slow path.
        parts: parts of the document, from `parts_of`.
        tests: M, the number of messages among which it is the best by its own positions, and K.
    """
    from scanner.watermark.proof import log10_any_of  # late: only flags need mpmath

    messages, users, correction = tests
    part = slice(span.begin, span.end)
    if (span.begin, span.end, span.segment) not in parts or not nearly_equal(
        span.score, math.fsum(terms[part].tolist())
    ):
        return False
    # p is taken at the claimed score, so that the rounding of scores does not count twice
    uncorrected = path.log10_p(span.score, span.end - span.begin)
    in_document = log10_any_of(log10_any_of(uncorrected, messages), len(parts))
    stated = [(span.log10_p, uncorrected), (span.log10_p_in_document, in_document)]
    stated.append((span.log10_p_global, log10_any_of(in_document, correction)))
    if is_own is None:
        by_group = span.log10_p_own == -math.inf
    else:
        own_terms = terms[part][is_own[part]]
        p = log10_any_of(path.log10_p(math.fsum(own_terms.tolist()), len(own_terms)), users * len(parts))
        by_group = nearly_equal(span.log10_p_own, log10_any_of(p, correction))
    return by_group and all(nearly_equal(a, b) for a, b in stated)


def prove_spans(
    path: ProofPath | None,
    tokenizer: HuggingFaceTokenizer,
    text: str,
    document_spans: Sequence[DocumentSpan],
    tests: tuple[int, float],
    dedup: Dedup,
    kinds: PartKinds,
    common: LeftOut | None = None,
) -> Proof:
    """Prove all spans of one key in a text. The result is `differs` if one of them is not confirmed.

    Arguments and results are as in scanner.looks.text_parts.PartsLook.
    """
    if not isinstance(path, ProvesParts):
        return Proof.NOT_OFFERED
    ids = tokenizer.encode([text]).ids
    messages = sorted({document_span.span.message for document_span in document_spans})
    places, terms, is_own, users = path.parts(ids, messages, dedup, places_left_out(common, ids))
    parts = frozenset(parts_of(kinds, tokenizer, text, places))
    terms_of = dict(zip(messages, terms, strict=True))
    tests_of = tests[0], users, tests[1]
    spans = [document_span.span for document_span in document_spans]
    holds = all(span_holds(span, terms_of[span.message], is_own, path, parts, tests_of) for span in spans)
    return Proof.PROVED if holds else Proof.DIFFERS

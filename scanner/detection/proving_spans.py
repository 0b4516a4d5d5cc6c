"""Spans computed again, as flags are (scanner.detection.proving): by slow paths that share no code with the first."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.alike import alike
from scanner.detection.filter import plainly_left_out
from scanner.detection.located import Located
from scanner.text import HuggingFaceTokenizer
from scanner.text.quoting import segments_of
from scanner.watermark.format import ProofPath as SlowPath
from scanner.watermark.format import ProvesParts
from scanner.watermark.positions import CommonNgrams
from scanner.watermark.span_search import Span
from schemas.config import Dedup
from schemas.words import Proof


class Which(NamedTuple):
    """Parts at which documents are tested besides the whole."""

    windows: bool
    segments: bool


def parts_of(
    which: Which, tokenizer: HuggingFaceTokenizer, text: str, places: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """All parts of a text: first scored position, position after the last, number of its segment, −1: none.

    Segments have SHORTEST scored positions or more and are not the whole; a position is where its token begins.

    Args:
        which: the kinds of parts.
        tokenizer: the reference tokenizer.
        text: the text as it stands.
        places: which of its tokens are scored, int64[P].
    """
    from scanner.watermark.proof import SHORTEST, windows_of  # flags alone need mpmath

    found = [(*window, -1) for window in (windows_of(len(places)) if which.windows else {(0, len(places))})]
    if which.segments:
        at = tokenizer.begins(text)[places]
        for number, segment in enumerate(segments_of(text)):
            begin, end = (int(np.searchsorted(at, edge)) for edge in (segment.begin, segment.end))
            if SHORTEST <= end - begin < len(places):
                found.append((begin, end, number))
    return found


def span_holds(
    span: Span,
    terms: NDArray[np.float64],
    of_user: NDArray[np.bool_] | None,
    path: SlowPath,
    parts: Collection[tuple[int, int, int]],
    tests: tuple[int, int, float],
) -> bool:
    """Whether a span's score and p-values are confirmed, and its place is one of its document's parts.

    Args:
        span: the span as it was found.
        terms: what each position of the document adds to the message's score, float64[P].
        of_user: positions that the message shares with no other, bool[P]; None: names need no second p-value.
        path: gives p-values.
        parts: the parts of the document.
        tests: M; number of messages among which it is the best by its own positions; K.
    """
    from scanner.watermark.proof import log10_any_of  # flags alone need mpmath

    messages, users, keys = tests
    part = slice(span.begin, span.end)
    if (span.begin, span.end, span.segment) not in parts or not alike(span.score, math.fsum(terms[part].tolist())):
        return False
    # p of the claimed score, so that rounding of scores does not count twice
    uncorrected = path.log10_p(span.score, span.end - span.begin)
    of_all = log10_any_of(log10_any_of(uncorrected, messages), len(parts))
    stated = [(span.log10_p, uncorrected), (span.log10_p_in_document, of_all)]
    stated.append((span.log10_p_global, log10_any_of(of_all, keys)))
    if of_user is None:
        by_group = span.log10_p_own == -math.inf
    else:
        user_terms = terms[part][of_user[part]]
        p = log10_any_of(path.log10_p(math.fsum(user_terms.tolist()), len(user_terms)), users * len(parts))
        by_group = alike(span.log10_p_own, log10_any_of(p, keys))
    return by_group and all(alike(a, b) for a, b in stated)


def prove_spans(
    path: SlowPath | None,
    tokenizer: HuggingFaceTokenizer,
    text: str,
    located: Sequence[Located],
    tests: tuple[int, float],
    dedup: Dedup,
    which: Which,
    common: CommonNgrams | None = None,
) -> Proof:
    """Prove all spans of one key in a text: `differs` where one is not confirmed.

    Args:
        path: the key's slow path; None: its format has none.
        tokenizer: the reference tokenizer.
        text: the text as it stands.
        located: the key's spans.
        tests: M and K.
        dedup: which repeats are left out.
        which: the kinds of parts that are tested.
        common: n-grams that are left out of scoring; None: none are.
    """
    if not isinstance(path, ProvesParts):
        return Proof.NOT_OFFERED
    ids = tokenizer.encode([text]).ids
    messages = sorted({one.span.message for one in located})
    places, terms, of_user, users = path.parts(ids, messages, dedup, plainly_left_out(common, ids))
    parts = frozenset(parts_of(which, tokenizer, text, places))
    of_message = dict(zip(messages, terms, strict=True))
    tests_of = tests[0], users, tests[1]
    holds = (span_holds(one.span, of_message[one.span.message], of_user, path, parts, tests_of) for one in located)
    return Proof.PROVED if all(holds) else Proof.DIFFERS

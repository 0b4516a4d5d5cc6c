"""Segments: which scored positions they have, what they score, and how many looks they are, against plain loops."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from scanner.looks.parts.search import least_of_parts, scored_parts, search_parts
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.parts import Limit, PartKinds, Parts, Segments, join_segments
from scanner.watermark.positions import select_positions
from scanner.watermark.rule import search
from scanner.watermark.text_windows import count_windows, log10_in_document, running_sums
from tests.watermark.marked_tokens import marked_tokens, plain_tokens
from tests.watermark.pairs import SECRET, batch_tokens

MARKS = {
    "greenlist-v3": lambda: Version3GreenList(SECRET, 2, Fraction(1, 4)),
    "gumbel-v3": lambda: Version3Gumbel(SECRET, 2),
    "greenlist-v3 with groups": lambda: Version3GreenList(SECRET, 2, Fraction(1, 4), 30),
}
BOTH = PartKinds(windows=True, segments=True)
every_mark = pytest.mark.parametrize("name", MARKS)


def cut(lengths: list[int], edges: list[list[int]]) -> Segments:
    """Segments of documents of `lengths` tokens, cut before the tokens at `edges`."""
    each = [[0, *of_text, length] for length, of_text in zip(lengths, edges, strict=True)]
    offsets = np.cumsum([0, *(len(one) - 1 for one in each)])
    begin, end = (np.array([edge for one in each for edge in run(one)], np.int64) for run in (head, tail))
    return Segments(offsets, begin, end, np.concatenate([np.arange(len(one) - 1) for one in each]))


def head(edges: list[int]) -> list[int]:
    return edges[:-1]


def tail(edges: list[int]) -> list[int]:
    return edges[1:]


def batch(seed: int, lengths: list[int]):
    generator = np.random.default_rng(seed)
    return batch_tokens([plain_tokens(generator, length) for length in lengths])


def test_segments_of_positions_are_those_of_a_plain_count():
    """Repeats are left out; short segments and the whole are no looks; documents may be missing."""
    lengths = [90, 400, 30, 200, 120]
    tokens, mark = batch(1, lengths), MARKS["gumbel-v3"]()
    tokens.ids[90 + 50 : 90 + 130] = tokens.ids[90 + 210 : 90 + 290]
    of_tokens = cut(lengths, [[40], [49, 52, 100, 300, 399], [], [], [60, 60, 84]])
    whole = mark.rule.positions(tokens, "ngram")
    documents = np.array([0, 1, 3, 4])
    positions = select_positions(whole, documents)
    found = scored_parts(BOTH, of_tokens, tokens, positions, documents).segments
    wanted = []
    for place, d in enumerate(documents.tolist()):
        at = (positions.index[positions.offsets[place] : positions.offsets[place + 1]] - tokens.offsets[d]).tolist()
        own = of_tokens.of_documents(np.array([d]))
        for number, (first, last) in enumerate(zip(own.begin.tolist(), own.end.tolist(), strict=True)):
            inside = [i for i, token in enumerate(at) if first <= token < last]
            if 24 <= len(inside) < len(at):
                wanted.append((place, inside[0], inside[-1] + 1, number))
    assert [
        tuple(map(int, one)) for one in zip(found.whose, found.begin, found.end, found.number, strict=True)
    ] == wanted
    assert len(wanted) > 4
    halves = [of_tokens.of_documents(np.arange(2)), of_tokens.of_documents(np.arange(2, 5))]
    assert all((a == b).all() for a, b in zip(join_segments(halves), of_tokens, strict=True))


@every_mark
def test_the_best_part_is_that_of_a_plain_search(name):
    lengths = [150, 60, 20, 300]
    tokens, mark = batch(2, lengths), MARKS[name]()
    positions = mark.rule.positions(tokens, "ngram")
    segments = scored_parts(
        BOTH, cut(lengths, [[50, 90], [30], [], [100, 280]]), tokens, positions, np.arange(4)
    ).segments
    sums = running_sums(mark.terms(tokens, positions, 5), positions.offsets)
    for windows in (False, True):
        parts = Parts(windows, segments)
        least = least_of_parts(mark.law, sums, positions, parts)
        counted = []
        for d, scored in enumerate(positions.scored.tolist()):
            where, _ = parts.ranges_of(d, scored)
            terms = mark.terms(tokens, select_positions(positions, [d]), 5)
            scores = [math.fsum(terms[begin:end]) for begin, end in where.tolist()]
            assert least[d] == pytest.approx(mark.law.log10_p(scores, where[:, 1] - where[:, 0]).min(), rel=1e-9)
            counted.append(len(where))
        assert parts.count_parts(positions.scored).tolist() == counted


@every_mark
@pytest.mark.parametrize("windows", [False, True])
def test_a_marked_segment_is_one_look_that_fits(name, windows):
    mark, generator = MARKS[name](), np.random.default_rng(3)
    messages = 900 if "groups" in name else 40
    text = [*plain_tokens(generator, 700), *marked_tokens(mark, 31, 100, generator), *plain_tokens(generator, 500)]
    tokens = batch_tokens([plain_tokens(generator, 200), text])
    positions = mark.rule.positions(tokens, "ngram")
    segments = scored_parts(BOTH, cut([200, 1_300], [[100], [300, 700, 800]]), tokens, positions, np.arange(2)).segments
    limit, parts = Limit(1e-6, messages, 2), Parts(windows, segments)
    found, spans = search_parts(mark, tokens, positions, messages, 2, limit, parts)
    assert not found.log10_p_global[1, 0] <= -6
    (span,) = spans
    assert (span.document, span.message) == (1, 31)
    assert windows or (span.segment, span.begin, span.end) == (2, 698, 798)
    assert (span.begin < 720, span.end > 780) == (True, True)  # some window may score better still
    count = (count_windows(1_298) if windows else 1) + 4
    p = mark.law.log10_p(span.score, span.end - span.begin)
    assert span.log10_p == p
    assert span.log10_p_in_document == log10_in_document(p, count, messages)


def test_no_segment_that_passes_is_missed_under_one_message():
    """Every segment that passes by itself overlaps a found part, without windows. High limits let chance alone pass."""
    mark, lengths = MARKS["gumbel-v3"](), [330] * 30
    tokens = batch(4, lengths)
    positions = mark.rule.positions(tokens, "ngram")
    segments = scored_parts(BOTH, cut(lengths, [[40, 70, 150, 290]] * 30), tokens, positions, np.arange(30)).segments
    limit = Limit(0.9, 1, 1)
    _, spans = search_parts(mark, tokens, positions, 1, 1, limit, Parts(False, segments))
    wanted = set()
    for d, begin, end in zip(segments.whose.tolist(), segments.begin.tolist(), segments.end.tolist(), strict=True):
        terms = mark.terms(tokens, select_positions(positions, [d]), 0)
        p = 10.0 ** mark.law.log10_p(math.fsum(terms[begin:end]), end - begin)
        if 1 - (1 - p) ** 6 <= limit.rate:
            wanted.add((d, begin, end))
    of_segments = {(span.document, span.begin, span.end) for span in spans if span.segment >= 0}
    assert of_segments <= wanted
    for d, begin, end in wanted:
        assert any(span.document == d and span.begin < end and begin < span.end for span in spans)
    assert len(of_segments) > 5


@pytest.mark.seconds
def test_the_law_of_the_best_segment():
    """20,000 documents of eight segments: p ≤ α no oftener than α; counted as one look, far oftener.

    Each bound fails by chance less than once in a million runs.
    """
    mark, documents = MARKS["greenlist-v3"](), 20_000
    tokens = batch(5, [8 * 40 + 2] * documents)
    positions = mark.rule.positions(tokens, "none")
    edges = [list(range(42, 320, 40))] * documents
    segments = scored_parts(BOTH, cut([322] * documents, edges), tokens, positions, np.arange(documents)).segments
    parts = Parts(False, segments)
    assert parts.count_parts(positions.scored).tolist() == [9] * documents
    least = least_of_parts(
        mark.law, running_sums(mark.terms(tokens, positions, 0), positions.offsets), positions, parts
    )
    in_document = 10 ** log10_in_document(least, parts.count_parts(positions.scored), 1)
    for alpha in (0.5, 0.1, 0.01, 1e-3):
        hits = int((in_document <= alpha).sum())
        assert stats.binom.sf(hits - 1, documents, alpha) > 1e-7
        assert hits > documents * alpha / 10
        as_one = int((10**least <= alpha).sum())
        assert stats.binom.sf(as_one - 1, documents, alpha) < 1e-7


def test_a_search_of_many_messages_needs_no_windows():
    """Without windows and segments the whole alone is tested, as in a plain search."""
    mark, tokens = MARKS["greenlist-v3 with groups"](), batch(6, [100, 200])
    positions = mark.rule.positions(tokens, "ngram")
    parts = Parts(False, Segments.none(2))
    found, spans = search_parts(mark, tokens, positions, 900, 1, Limit(1.0 - 1e-12, 900, 1), parts)
    assert found.message.tolist() == search(mark, tokens, positions, 900).message.tolist()
    assert {(span.begin, span.end) for span in spans} <= {(0, 98), (0, 198)}

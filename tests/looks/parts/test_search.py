"""Windows of documents: which there are, what they score, and the law of the best of them, against plain loops."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from scanner.looks.parts import search
from scanner.looks.parts.search import search_parts, search_together
from scanner.watermark import GreenList, Gumbel
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.parts import Limit, Parts, Segments
from scanner.watermark.positions import Positions, select_positions
from scanner.watermark.text_windows import (
    best_of_scales,
    count_windows,
    least_log10_p,
    log10_in_document,
    running_sums,
    totals,
    windows,
)
from tests.watermark.marked_tokens import marked_tokens, plain_tokens
from tests.watermark.pairs import SECRET, batch_tokens

MARKS = {
    "greenlist": lambda: GreenList(SECRET, 2, Fraction(1, 4)),
    "gumbel": lambda: Gumbel(SECRET, 2),
    "greenlist-v3": lambda: Version3GreenList(SECRET, 2, Fraction(1, 4)),
    "gumbel-v3": lambda: Version3Gumbel(SECRET, 2),
    "greenlist-v3 with groups": lambda: Version3GreenList(SECRET, 2, Fraction(1, 4), 30),
    "gumbel-v3 with groups": lambda: Version3Gumbel(SECRET, 2, 30),
}
MESSAGES = {"greenlist-v3 with groups": 900, "gumbel-v3 with groups": 900}
every_mark = pytest.mark.parametrize("name", MARKS)


def plain_windows(scored: int) -> list[tuple[int, int]]:
    """Windows by their definition, without the tables of the code."""
    found = []
    scale = 0
    while (length := math.ceil(24 * math.sqrt(2) ** scale - 1e-9)) < scored:
        begin = 0
        while begin + length < scored:
            found.append((begin, begin + length))
            begin += length // 4
        found.append((scored - length, scored))
        scale += 1
    return [*found, (0, scored)] if scored else []


def overlap(a, b) -> bool:
    """Whether two spans share a position."""
    return a.document == b.document and a.begin < b.end and b.begin < a.end


def test_there_are_as_many_windows_as_the_rule_says():
    assert count_windows([500, 10_000]).tolist() == [254, 5_707]
    for scored in [*range(300), 2_000, 9_999]:
        assert [tuple(window) for window in windows(scored).tolist()] == plain_windows(scored)
        assert count_windows(scored) == len(plain_windows(scored))


def test_a_short_document_has_one_window():
    assert [count_windows(scored).tolist() for scored in (0, 1, 23, 24, 25)] == [0, 1, 1, 1, 3]


def batch(seed: int, lengths: list[int]):
    generator = np.random.default_rng(seed)
    return batch_tokens([plain_tokens(generator, length) for length in lengths])


@every_mark
def test_what_positions_add_comes_to_the_score_whatever_their_order(name):
    mark, tokens = MARKS[name](), batch(1, [700, 3, 40, 300])
    positions = mark.rule.positions(tokens, "ngram")
    messages = np.array([7, 0, 29, 800])
    terms = mark.terms(tokens, positions, messages)
    score = mark.score(tokens, positions, messages)
    sums = running_sums(terms, positions.offsets)
    if "gumbel" in name and "groups" in name:  # Gumbel with groups adds up group steps by themselves
        assert totals(sums, positions) == pytest.approx(score, rel=1e-14)
    else:
        assert totals(sums, positions).tolist() == score.tolist()
    order = np.random.default_rng(2).permutation(700 - 2)
    shuffled = Positions(positions.index[order], np.array([0, len(order)]))
    assert mark.terms(tokens, shuffled, np.array([7])).tolist() == terms[order].tolist()
    twice = select_positions(positions, [3, 0, 0])
    assert mark.score(tokens, twice, messages[[3, 0, 0]]).tolist() == score[[3, 0, 0]].tolist()


@every_mark
def test_the_best_of_each_scale_is_that_of_a_plain_search(name):
    mark, tokens = MARKS[name](), batch(3, [27, 2, 500, 131])
    positions = mark.rule.positions(tokens, "ngram")
    terms = mark.terms(tokens, positions, 5)
    best = best_of_scales(running_sums(terms, positions.offsets), positions)
    for d, scored in enumerate(positions.scored.tolist()):
        own = terms[positions.offsets[d] : positions.offsets[d + 1]]
        wanted: dict[int, float] = {}
        for begin, end in plain_windows(scored):
            wanted[end - begin] = max(wanted.get(end - begin, 0.0), math.fsum(own[begin:end]))
        found = {int(n): score for n, score in zip(best.length[d], best.score[d], strict=True) if n}
        assert found == pytest.approx(wanted, rel=1e-12)


def passing_by_brute_force(mark, tokens, positions, limit: Limit) -> set[tuple[int, int, int, int]]:
    """Document, message, begin and end of all windows that pass, each window scored by itself."""
    found = set()
    for d, scored in enumerate(positions.scored.tolist()):
        for begin, end in plain_windows(scored):
            first = positions.offsets[d]
            part = Positions(positions.index[first + begin : first + end], np.array([0, end - begin]))
            for message in range(limit.messages):
                p = 10.0 ** mark.law.log10_p(mark.score(tokens, part, message), end - begin)[0]
                if 1 - (1 - p) ** (len(plain_windows(scored)) * limit.messages * limit.correction) <= limit.rate:
                    found.add((d, message, begin, end))
    return found


def found_by(mark, tokens, positions, limit: Limit):
    parts = Parts(True, Segments.none(len(positions.scored)))
    return search_parts(mark, tokens, positions, limit.messages, limit.correction, limit, parts)[1]


@pytest.mark.parametrize("name", sorted(MARKS.keys() - MESSAGES))
def test_no_window_that_passes_is_missed_under_one_message(name):
    """Every reported window passes. Each that passes overlaps a reported one; reported windows overlap no other."""
    mark, tokens = MARKS[name](), batch(4, [130] * 25)
    positions = mark.rule.positions(tokens, "ngram")
    limit = Limit(0.9, 1, 1)  # high, so that chance alone passes
    wanted = passing_by_brute_force(mark, tokens, positions, limit)
    found = found_by(mark, tokens, positions, limit)
    told = {(span.document, span.message, span.begin, span.end) for span in found}
    assert len(told) == len(found) > 3
    assert told <= wanted
    for d, _, begin, end in wanted:
        assert any(span.document == d and span.begin < end and begin < span.end for span in found)
    assert not any(overlap(a, b) for i, a in enumerate(found) for b in found[:i])


@every_mark
def test_two_marked_parts_are_two_spans(name):
    mark, count = MARKS[name](), MESSAGES.get(name, 40)
    generator = np.random.default_rng(6)
    parts = [(None, 150), (31, 150), (None, 150), (3, 150), (None, 50)]
    text: list[int] = []
    for message, length in parts:
        if message is None:
            text += plain_tokens(generator, length)
        else:
            text += marked_tokens(mark, message, length, generator, 6)
    tokens = batch_tokens([text, plain_tokens(generator, 400)])
    positions = mark.rule.positions(tokens, "ngram")
    limit = Limit(1e-6, count, 2)
    found = found_by(mark, tokens, positions, limit)
    assert {(span.document, span.message) for span in found} == {(0, 31), (0, 3)}
    for message, begin in ((31, 150), (3, 450)):
        (span,) = (one for one in found if one.message == message)
        common = min(span.end, begin + 150) - max(span.begin, begin)
        assert common / (max(span.end, begin + 150) - min(span.begin, begin)) > 0.6
        part = Positions(positions.index[span.begin : span.end], np.array([0, span.end - span.begin]))
        assert span.score == mark.score(tokens, part, message)[0]
        p = 10.0 ** mark.law.log10_p(span.score, span.end - span.begin)
        assert span.log10_p == pytest.approx(math.log10(p))
        assert 10**span.log10_p_in_document == pytest.approx(p * count_windows(648) * count, rel=1e-4)
        assert 10**span.log10_p_global == pytest.approx(p * count_windows(648) * count * 2, rel=1e-4)
        assert span.log10_p_own < (-6 if "groups" in name else -1e9)


def test_many_marked_parts_are_told_up_to_a_number(monkeypatch):
    monkeypatch.setattr(search, "MOST_SPANS", 2)
    mark = MARKS["gumbel-v3"]()
    generator = np.random.default_rng(8)
    text: list[int] = []
    for _ in range(4):
        text += marked_tokens(mark, 0, 60, generator, 40) + plain_tokens(generator, 1_000)
    tokens = batch_tokens([text])
    found = found_by(mark, tokens, mark.rule.positions(tokens, "ngram"), Limit(1e-6, 1, 1))
    assert len(found) == 2
    assert {span.end - span.begin < 100 for span in found} == {True}


@pytest.mark.parametrize("name", ["greenlist", "gumbel-v3"])
def test_what_a_long_text_takes_is_bounded_and_its_marked_part_is_found(name, monkeypatch):
    """Chance makes a message promising per hundred positions, and each is scored at all: 16 MiB killed a worker."""
    monkeypatch.setattr(search, "MOST_PROMISING", 5)
    monkeypatch.setattr(search, "POSITIONS_AT_A_TIME", 12_000)
    mark, generator = MARKS[name](), np.random.default_rng(10)
    part = marked_tokens(mark, 31, 150, generator)
    tokens = batch_tokens(
        [plain_tokens(generator, 3_000) + part + plain_tokens(generator, 2_000), plain_tokens(generator, 4_000)]
    )
    positions = mark.rule.positions(tokens, "ngram")
    limit, scored_at_once = Limit(1e-6, 40, 2), []
    _, (documents, messages) = search_together(mark, tokens, positions, limit, Parts(True, Segments.none(2)))
    assert np.bincount(documents).tolist() == [5, 5]
    assert len(set(zip(documents.tolist(), messages.tolist(), strict=True))) == 10
    of_all = mark.terms
    monkeypatch.setattr(mark, "terms", lambda t, p, m: (scored_at_once.append(int(p.scored.sum())), of_all(t, p, m))[1])
    found = found_by(mark, tokens, positions, limit)
    assert {(span.document, span.message) for span in found} == {(0, 31)}
    assert max(scored_at_once) <= 12_000
    assert sum(scored_at_once) == positions.scored[documents].sum()
    monkeypatch.setattr(search, "POSITIONS_AT_A_TIME", 1)
    assert found_by(mark, tokens, positions, limit) == found


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("name", ["greenlist-v3", "gumbel-v3"])
def test_the_law_of_the_best_window(name):
    """40,000 documents of 60 to 160 draws that nobody marked: p ≤ α no oftener than α; as one look, far oftener.

    Each bound fails by chance less than once in a million runs.
    """
    mark, documents = MARKS[name](), 40_000
    tokens = batch(9, np.random.default_rng(9).integers(60, 160, size=documents).tolist())
    positions = mark.rule.positions(tokens, "ngram")
    best = best_of_scales(running_sums(mark.terms(tokens, positions, 0), positions.offsets), positions)
    log10_p = least_log10_p(mark.law, best)
    in_document = 10 ** log10_in_document(log10_p, count_windows(positions.scored), 1)
    for alpha in (0.5, 0.1, 0.01, 1e-3, 1e-4):
        hits = int((in_document <= alpha).sum())
        assert stats.binom.sf(hits - 1, documents, alpha) > 1e-7
        assert hits > documents * alpha / 30 or alpha < 0.01  # p is small at times
        as_one = int((10**log10_p <= alpha).sum())
        assert stats.binom.sf(as_one - 1, documents, alpha) < 1e-7


def test_p_is_exact_where_it_is_tiny():
    assert log10_in_document(-300.0, 5_707, 10**9) == pytest.approx(-300 + math.log10(5_707 * 1e9), rel=1e-12)

"""Searches of parts and windows under version 3: the same as searches of each alone, and what is marked is told."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.looks.parts.search import search_parts
from scanner.watermark.format import SearchesWindows
from scanner.watermark.native import version3_marks
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.parts import Limit, Parts, Segments
from scanner.watermark.positions import Positions, Ranges, Tokens, offsets_of, select_positions
from scanner.watermark.rule import search
from scanner.watermark.text_windows import coarse_of, ranges
from tests.watermark.marked_tokens import marked_tokens, plain_tokens
from tests.watermark.native3.known3 import BEACON, SECRET
from tests.watermark.pairs import batch_tokens

MARKS = {
    "greenlist": lambda groups, secret=SECRET: Version3GreenList(secret, 2, Fraction(1, 4), groups, 12, BEACON),
    "greenlist, eight bits": lambda groups, secret=SECRET: Version3GreenList(
        secret, 2, Fraction(77, 256), groups, 12, BEACON
    ),
    "gumbel": lambda groups, secret=SECRET: Version3Gumbel(secret, 2, groups, 12, BEACON),
}
every_mark = pytest.mark.parametrize("name", MARKS)
LONGEST = 10_000


def wholes(positions: Positions) -> Ranges:
    """Each document as one range."""
    return Ranges(np.arange(len(positions.offsets)), positions.offsets[:-1], positions.offsets[1:])


def texts(seed: int, lengths: list[int]) -> Tokens:
    generator = np.random.default_rng(seed)
    return batch_tokens([plain_tokens(generator, length) for length in lengths])


@every_mark
@pytest.mark.parametrize("count", [1, 65, 256, 300, 513])
def test_the_best_number_of_each_window_is_that_of_a_plain_search(name, count):
    mark, tokens = MARKS[name](None), texts(2, [90, 300, 10])
    positions = mark.rule.positions(tokens, "ngram")
    windows = coarse_of(positions, 0, LONGEST)
    number, score = mark._best_in_windows(mark.steps(tokens, positions), windows, count)
    there = ranges(positions, windows.begin, windows.end)
    scores = np.stack([mark.score(tokens, there, message) for message in range(count)])
    assert len(number) > 20
    assert score.tolist() == scores[number, np.arange(len(number))].tolist()
    if "greenlist" in name:
        assert number.tolist() == scores.argmax(axis=0).tolist()
    else:  # terms are cut to units of ln 2 / 2^11
        assert (score >= scores.max(axis=0) - there.scored * 2.0**-11).all()


@every_mark
@pytest.mark.parametrize("groups", [None, 30])
def test_a_marked_window_is_told_with_its_message(name, groups):
    mark, generator = MARKS[name](groups), np.random.default_rng(3)
    count = 900 if groups else 300
    assert isinstance(mark, SearchesWindows)
    text = [*plain_tokens(generator, 300), *marked_tokens(mark, 31, 110, generator), *plain_tokens(generator, 200)]
    tokens = batch_tokens([plain_tokens(generator, 400), text])
    positions = mark.rule.positions(tokens, "ngram")
    windows = coarse_of(positions, 0, LONGEST)
    _, window, message = mark.search_parts(tokens, positions, wholes(positions), windows, count, 0.1)
    first, begin, end = windows
    marked = (message == 31) & (window >= first[1])
    assert marked.any()
    there = ranges(positions, begin[window[marked]], end[window[marked]])
    assert mark.law.log10_p(mark.score(tokens, there, 31), there.scored).min() < -10
    assert len(window) < 0.5 * len(begin)


@every_mark
@pytest.mark.parametrize("groups", [None, 30])
def test_a_window_is_told_where_its_message_is_as_rare_as_was_asked(name, groups):
    """Whatever share is asked: those that are told are rare enough, and more are told for a larger share."""
    mark, tokens = MARKS[name](groups), texts(5, [500, 300, 700])
    positions = mark.rule.positions(tokens, "ngram")
    count, windows = 900 if groups else 300, coarse_of(positions, 0, LONGEST)
    told = []
    for share in (0.01, 0.3, 900.0):
        _, window, message = mark.search_parts(tokens, positions, wholes(positions), windows, count, share)
        for w, m in zip(window.tolist(), message.tolist(), strict=True):
            there = ranges(positions, windows.begin[[w]], windows.end[[w]])
            log10_p = mark.law.log10_p(mark.score(tokens, there, m), there.scored)[0]
            assert log10_p <= np.log10(share) - np.log10(count) + 1e-9
        told.append(set(window.tolist()))
    assert told[0] <= told[1] <= told[2]
    assert told[2]


@every_mark
@pytest.mark.parametrize("groups", [None, 30])
def test_a_document_says_the_same_whatever_stands_beside_it(name, groups, monkeypatch):
    monkeypatch.setattr(version3_marks, "GROUPS_BY_CHANCE", 1.0)
    mark, tokens = MARKS[name](groups), texts(4, [300, 40, 3, 200])
    positions = mark.rule.positions(tokens, "ngram")
    count = 900 if groups else 300
    windows = coarse_of(positions, 0, LONGEST)
    _, window, message = mark.search_parts(tokens, positions, wholes(positions), windows, count, 1.0)
    found = []
    for d in (0, 1, 3):
        alone = select_positions(positions, [d])
        _, own, its = mark.search_parts(tokens, alone, wholes(alone), coarse_of(alone, 0, LONGEST), count, 1.0)
        found += [(int(windows[0][d]) + int(w), int(m)) for w, m in zip(own, its, strict=True)]
    assert list(zip(window.tolist(), message.tolist(), strict=True)) == found
    assert found


@every_mark
@pytest.mark.parametrize("groups", [None, 2, 30, 300])
def test_parts_have_the_candidates_of_a_search_of_each_alone(name, groups):
    """Parts that overlap, without positions, and of documents without windows."""
    mark, generator, count = MARKS[name](groups), np.random.default_rng(6), groups**2 if groups else 300
    message = 31 % count
    text = [*plain_tokens(generator, 90), *marked_tokens(mark, message, 110, generator), *plain_tokens(generator, 50)]
    tokens = batch_tokens([plain_tokens(generator, 260), text, plain_tokens(generator, 20), [], text[100:180]])
    positions = mark.rule.positions(tokens, "ngram")
    shares = np.array([(0.0, 1.0), (0.0, 0.1), (0.1, 0.7), (0.35, 0.8), (0.5, 0.5), (0.8, 1.0)])
    places = positions.offsets[:-1, None, None] + (positions.scored[:, None, None] * shares).astype(np.int64)
    begin, end = places.reshape(-1, 2).T
    parts = Ranges(offsets_of(np.full(5, len(shares))), begin, end)
    found, *_ = mark.search_parts(tokens, positions, parts, coarse_of(positions, 0, LONGEST), count, 0.1)
    alone = mark.search(tokens, ranges(positions, begin, end), count)
    assert (found.message == message).any()
    assert found.independent == alone.independent
    for one, other in ((found.message, alone.message), (found.score, alone.score)):
        np.testing.assert_array_equal(one, other)
    if groups:
        np.testing.assert_array_equal(found.user_evidence.score, alone.user_evidence.score)
        np.testing.assert_array_equal(found.user_evidence.scored, alone.user_evidence.scored)


@pytest.mark.seconds
@pytest.mark.parametrize("groups", [None, 18])
@pytest.mark.parametrize("name", ["greenlist", "gumbel"])
def test_joined_marks_have_the_spans_of_each(name, groups):
    """Documents of few different tokens, so that windows come again; some are too short to have positions."""
    generator = np.random.default_rng(1)
    documents = [generator.integers(40, size=length).tolist() for length in (300, 3, 0, 140, 31, 400, 5, 500)]
    marks = [MARKS[name](groups, bytes([number]) * 32) for number in range(len(documents))]
    documents[5][100:100] = marked_tokens(marks[5], 7, 60, generator)
    tokens = batch_tokens(documents)
    joined, messages = marks[0].join_marks(marks, tokens.offsets[:-1]), 18**2
    assert joined is not None
    positions, limit = joined.rule.positions(tokens, "ngram"), Limit(1.0 - 1e-9, messages, 1)
    whole = search(joined, tokens, positions, messages)
    found, spans = search_parts(
        joined, tokens, positions, messages, 1, limit, Parts(True, Segments.none(len(documents)))
    )
    assert spans
    assert found.message.tolist() == whole.message.tolist()
    for d, mark in enumerate(marks):
        one = select_positions(positions, [d])
        _, of_one = search_parts(mark, tokens, one, messages, 1, limit, Parts(True, Segments.none(1)))
        assert [span._replace(document=0) for span in spans if span.document == d] == of_one

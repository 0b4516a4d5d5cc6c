"""Searches of version 3: without groups against scores message by message, with groups against the reference."""

from fractions import Fraction
from itertools import chain

import numpy as np
import pytest

from scanner.looks.parts.search import search_parts
from scanner.watermark import scored_positions
from scanner.watermark.native.exact_scores import exact_scores
from scanner.watermark.native.steps import Steps, in_two
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.parts import Limit, Parts, Segments
from scanner.watermark.positions import Tokens, select_positions
from scanner.watermark.rule import search
from tests.watermark.native3.known3 import BEACON, Mark, marked, pair
from tests.watermark.pairs import batch_tokens
from tests.watermark.strategies import random_documents

LENGTHS = (0, 1, 3, 15, 16, 17, 63, 64, 65, 70, 257, 300)
GREEN = [Fraction(1, 2), Fraction(1, 4), Fraction(77, 256)]


def candidates_by_hand(mark, tokens, positions, count):
    """Messages and scores that each document's search must give, best first: two, or all whose p is 1/count or less."""
    scores = np.stack([mark.score(tokens, positions, message) for message in range(count)], axis=1)
    log10_p = mark.law.log10_p(scores, positions.scored[:, None])
    for d in range(len(scores)):
        order = np.lexsort((np.arange(count), -scores[d]))
        told = max(2, int((log10_p[d] <= 1e-9 - np.log10(count)).sum())) if count > 1 else 1
        yield order[:told].tolist(), scores[d, order[:told]].tolist()


def assert_found(mark, tokens, positions, count):
    found = mark.search(tokens, positions, count)
    assert found.independent
    assert found.user_evidence is None
    for d, (messages, scores) in enumerate(candidates_by_hand(mark, tokens, positions, count)):
        there = int((found.message[d] >= 0).sum())
        assert there == min(len(messages), count)
        assert found.message[d, : len(messages)].tolist() == messages
        assert found.score[d, : len(messages)].tolist() == scores
        assert (found.message[d, there:] == -1).all()
        assert (found.score[d, there:] == 0).all()


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 1000])
@pytest.mark.parametrize("gamma", [*GREEN, None], ids=str)
def test_without_groups(gamma, count):
    mark = pair("gumbel", 1).fast if gamma is None else pair("greenlist", 1, gamma=gamma).fast
    docs = [*random_documents(1, LENGTHS), marked(mark, count - 1, 60, 4), marked(mark, count // 2, 60, 2)]
    tokens = batch_tokens(docs)
    assert_found(mark, tokens, scored_positions(tokens, 1, "ngram"), count)


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_ties_go_to_the_smaller_message(method):
    """All messages tie where nothing is scored; under a green list with one position nearly all do."""
    mark = pair(method, 2).fast
    tokens = batch_tokens([[], [1], [1, 2], [5, 6, 7]])
    positions = scored_positions(tokens, 2, "ngram")
    assert mark.search(tokens, positions, 500).message[:3].tolist() == [[0, 1]] * 3
    assert_found(mark, tokens, positions, 500)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_everybody_whose_text_a_document_holds_is_a_candidate(method):
    """Forty users in one document are more than the search looks for at first."""
    mark = pair(method, 1).fast
    users = list(range(3, 123, 3))
    pieces = [marked(mark, user, 300, 12, seed=user) for user in users]
    tokens = batch_tokens([list(chain(*pieces)), *random_documents(4, (50, 60))])
    positions = scored_positions(tokens, 1, "ngram")
    found = mark.search(tokens, positions, 130)
    assert set(users) <= set(found.message[0].tolist())
    assert found.message.shape[1] >= 40
    assert_found(mark, tokens, positions, 130)


def assert_searched_as_the_reference_does(one, docs, window):
    tokens = batch_tokens(docs)
    found = one.fast.search(tokens, scored_positions(tokens, window, "ngram"), one.plain.groups**2)
    assert found.independent
    assert found.user_evidence.messages == one.plain.groups
    looked_into = []
    for d, doc in enumerate(docs):
        wanted = one.plain.search(doc)
        there = found.message[d] >= 0
        assert found.message[d][there].tolist() == [candidate.message for candidate in wanted]
        assert found.score[d][there].tolist() == pytest.approx([candidate.score for candidate in wanted], rel=1e-12)
        own = [candidate.score - candidate.score_group for candidate in wanted]
        assert found.user_evidence.score[d][there].tolist() == pytest.approx(own, rel=1e-12, abs=1e-12)
        assert found.user_evidence.scored[d] == sum(not step.of_group for step in one.plain.steps(doc))
        assert (found.score[d][~there] == 0).all()
        looked_into.append(len(wanted))
    return found, looked_into


@pytest.mark.seconds
@pytest.mark.parametrize("groups", [2, 7, 31])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_with_groups(method, groups):
    """Unmarked texts, and texts marked for one, two and three users, of one group and of several."""
    one = pair(method, 1, groups, seeds=12)
    last = groups**2 - 1
    pieces = [marked(one.fast, user, 60, 8, seed=user) for user in (last, last - 1, 0)]
    docs = [*random_documents(5, (0, 1, 9, 40), 60), pieces[0], pieces[0] + pieces[1], list(chain(*pieces))]
    found, looked_into = assert_searched_as_the_reference_does(one, docs, 1)
    assert groups == 31 or max(looked_into) > 1
    if groups > 2:
        assert found.message[4, 0] == last


@pytest.mark.seconds
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_more_groups_are_marked_than_are_scored_in_full(method, window):
    """Nine users of nine groups: eight groups of largest rough score are scored in full, whichever they are."""
    one = pair(method, window, 20, seeds=4)
    pieces = [marked(one.fast, 40 * group + 3, 50, 12, seed=group) for group in range(9)]
    _, looked_into = assert_searched_as_the_reference_does(one, [list(chain(*pieces)), pieces[5]], window)
    assert looked_into[0] >= 5


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_ties_between_groups_and_users_go_to_the_smaller(method):
    """Texts of few steps, where most groups and users have one rough score; many have no group steps, or no other."""
    one = pair(method, 1, 70)
    _, looked_into = assert_searched_as_the_reference_does(one, random_documents(8, (2, 3, 2, 4, 2, 5, 3, 2, 2, 3)), 1)
    assert min(looked_into) == 1


def test_a_key_with_groups_is_searched_for_all_its_messages():
    tokens = batch_tokens([[1, 2]])
    positions = scored_positions(tokens, 1, "ngram")
    with pytest.raises(ValueError, match="360 messages cannot be searched; this key has 361"):
        pair("gumbel", 1, 19).fast.search(tokens, positions, 360)
    with pytest.raises(ValueError, match="20 groups cannot be searched; this key has 19"):
        pair("gumbel", 1, 19).fast.search_groups(tokens, positions, 20)
    with pytest.raises(ValueError, match="at least 1 is needed"):
        pair("gumbel", 1).fast.search(tokens, positions, 0)


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_the_first_groups_alone(method):
    """A search of the first five groups, and five users of each, finds the best of these."""
    mark, tokens = pair(method, 1, 40).fast, batch_tokens(random_documents(9, (60, 200, 5)))
    positions = scored_positions(tokens, 1, "ngram")
    found = mark.search_groups(tokens, positions, 5)
    is_candidate = found.message >= 0
    assert (found.message[is_candidate] // 40 < 5).all()
    assert (found.message[is_candidate] % 40 < 5).all()
    for d in range(3):
        alone = mark.score(tokens, positions, int(found.message[d, 0]))
        assert found.score[d, 0] == alone[d]


def plainly(mark: Mark):
    """What `best_rough` finds, by scoring every number of every run alone; and how often it was asked."""
    calls = []

    def rough_scores(one: Steps, first: int, length: int):
        terms = np.array([mark._added(one, np.full(len(one.ids), first + number)) for number in range(length)])
        if isinstance(mark, Version3GreenList):
            return terms.sum(axis=1)
        # eight leading ones at most: the largest power of two that 1/(1 − r) reaches, cut at 2^8
        return np.minimum(np.floor(terms / np.log(2) + 1e-9), 8).sum(axis=1).astype(np.int64)

    def best_rough(steps: Steps, documents, first, length, most, rule):
        calls.append(len(documents))
        numbers, scores = np.full((len(documents), most), -1, np.int64), np.zeros((len(documents), most), np.int64)
        for r, document in enumerate(documents.tolist()):
            each = rough_scores(steps.of_documents(np.array([document])), first[r], length)
            order = np.lexsort((np.arange(length), -each))[:most]
            numbers[r, : len(order)], scores[r, : len(order)] = order, each[order]
        return numbers, scores

    return best_rough, calls


@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_a_search_elsewhere_finds_the_same(method):
    mark = pair(method, 1, 12).fast
    best_rough, calls = plainly(mark)
    elsewhere = mark.searched_by(best_rough, "on paper")
    assert repr(elsewhere) == f"{mark!r} on paper"
    tokens = batch_tokens([*random_documents(10, (0, 30, 90)), marked(mark, 143, 50, 6)])
    positions = scored_positions(tokens, 1, "ngram")
    here, there = mark.search(tokens, positions, 144), elsewhere.search(tokens, positions, 144)
    assert len(calls) == 2
    assert here.message.tolist() == there.message.tolist()
    assert here.score.tolist() == there.score.tolist()
    begins = tokens.offsets[:-1]
    assert elsewhere.join_marks([elsewhere] * 4, begins) is None
    assert mark.join_marks([mark, pair(method, 1).fast], begins) is None


def open_mark(method: str, groups: int | None, number: int) -> Mark:
    secret, beacon = bytes([number]) * 32, bytes([number, *BEACON[1:]])
    if method == "gumbel":
        return Version3Gumbel(secret, 2, groups, 12, beacon)
    return Version3GreenList(secret, 2, Fraction(1, 4), groups, 12, beacon)


@pytest.mark.seconds
@pytest.mark.parametrize("groups", [None, 18])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_joined_marks_score_each_document_as_its_own_mark_does(method, groups):
    """Documents of few different tokens, so that windows come again; some are too short to have positions."""
    lengths = (300, 3, 0, 140, 31, 400, 5, 500)
    ids = np.random.default_rng(1).integers(40, size=sum(lengths), dtype=np.uint32)
    tokens = Tokens(ids, np.cumsum([0, *lengths]))
    marks = [open_mark(method, groups, number) for number in range(len(lengths))]
    joined = marks[0].join_marks(marks, tokens.offsets[:-1])
    assert joined is not None
    positions, messages = joined.rule.positions(tokens, "ngram"), 18**2
    of_document = np.arange(len(lengths)) * 7
    limit, whole = Limit(1.0 - 1e-9, messages, 1), search(joined, tokens, positions, messages)
    score, terms = joined.score(tokens, positions, of_document), joined.terms(tokens, positions, of_document)
    found, spans = search_parts(joined, tokens, positions, messages, 1, limit, Parts(True, Segments.none(len(lengths))))
    assert spans
    assert found.message.tolist() == whole.message.tolist()
    for d, mark in enumerate(marks):
        one = select_positions(positions, [d])
        alone = search(mark, tokens, one, messages)
        width = alone.message.shape[1]
        for name in ("message", "score", "log10_p", "log10_p_own"):
            np.testing.assert_array_equal(getattr(found, name)[d, :width], getattr(alone, name)[0])
        assert (found.message[d, width:] == -1).all()
        assert score[d] == mark.score(tokens, one, int(of_document[d]))[0]
        of_terms = slice(positions.offsets[d], positions.offsets[d + 1])
        np.testing.assert_array_equal(terms[of_terms], mark.terms(tokens, one, int(of_document[d])))
        _, of_one = search_parts(mark, tokens, one, messages, 1, limit, Parts(True, Segments.none(1)))
        assert [span._replace(document=0) for span in spans if span.document == d] == of_one


def test_exact_scores_are_those_of_one_message():
    mark = pair("gumbel", 1, 300).fast
    tokens = batch_tokens(random_documents(12, (100, 0, 70)))
    positions = scored_positions(tokens, 1, "ngram")
    shared, _ = in_two(mark.steps(tokens, positions))
    groups = np.array([[5, 299], [0, 1], [64, 63]])
    found = exact_scores(shared, shared.offsets[:-1], shared.offsets[1:], groups)
    for column in range(2):
        of_group, _ = mark.parts(tokens, positions, groups[:, column] * 300)
        assert found[:, column].tolist() == of_group.tolist()

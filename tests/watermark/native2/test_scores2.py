"""Scores of one message a document under version 2, against the reference that is written from the specification."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark import scored_positions
from scanner.watermark.native.version2_marks import Version2GreenList, Version2Gumbel
from tests import reference2
from tests.watermark.native2.known2 import SECRET, pair
from tests.watermark.pairs import batch_tokens, sum_error
from tests.watermark.strategies import DEDUPS, GAMMAS, documents, few, windows

METHODS = ("greenlist", "gumbel", "gumbel-log")


def same(fast: np.ndarray, plain: list, scored: np.ndarray) -> None:
    for got, wanted, count in zip(fast.tolist(), plain, scored.tolist(), strict=True):
        if isinstance(wanted, int):
            assert got == wanted
        else:
            assert got == wanted or abs(got - wanted) <= sum_error(count, wanted)


@few
@given(documents, windows, st.sampled_from(DEDUPS), st.sampled_from(METHODS), st.sampled_from(GAMMAS), st.data())
def test_without_groups(docs, window, dedup, method, gamma, data):
    one = pair(method, window, gamma=gamma)
    tokens = batch_tokens(docs)
    positions = scored_positions(tokens, window, dedup)
    messages = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(docs), max_size=len(docs)))
    wanted = [one.plain.scores(doc, message, dedup)[0] for doc, message in zip(docs, messages, strict=True)]
    same(one.fast.score(tokens, positions, np.array(messages, np.int64)), wanted, positions.scored)


@few
@given(
    documents,
    st.integers(1, 16),
    st.sampled_from(DEDUPS),
    st.sampled_from(METHODS),
    st.sampled_from([2, 19, 1026, 65_536]),
    st.data(),
)
def test_with_groups(docs, window, dedup, method, groups, data):
    """Both parts of the score, with one message for all documents and with one message for each."""
    one = pair(method, window, groups)
    tokens = batch_tokens(docs)
    positions = scored_positions(tokens, window, dedup)
    messages = data.draw(st.lists(st.integers(0, groups**2 - 1), min_size=len(docs), max_size=len(docs)))
    of_group, of_user = one.fast.parts(tokens, positions, np.array(messages, np.int64))
    wanted = [one.plain.scores(doc, message, dedup) for doc, message in zip(docs, messages, strict=True)]
    same(of_group, [group for _, group in wanted], positions.scored)
    same(of_group + of_user, [total for total, _ in wanted], positions.scored)
    steps = one.fast.group_steps(tokens, positions)
    assert steps.tolist() == [step.of_group for doc in docs for step in one.plain.steps(doc, dedup)]
    last = groups**2 - 1
    same(one.fast.score(tokens, positions, last), [one.plain.scores(d, last, dedup)[0] for d in docs], positions.scored)


@pytest.mark.seconds
@pytest.mark.parametrize("groups", [None, 19])
def test_the_draws_that_one_message_meets(groups):
    """The draws are the reference's, step by step, over the edge of a chunk, with a message for each document."""
    one, generator = pair("gumbel", 2, groups), np.random.default_rng(5)
    docs = [generator.integers(0, 2**32, length, np.uint32).tolist() for length in (200, 0, 90)]
    tokens, messages = batch_tokens(docs), np.array([17, 3, 360], np.int64)
    wanted = [
        reference2.stream_word(one.plain.keys, step.nonce, 1, 0, reference2.entry(step.token, number))
        for doc, message in zip(docs, messages.tolist(), strict=True)
        for step in one.plain.steps(doc)
        for number in [one.plain.number(message, step.of_group)]
    ]
    assert isinstance(one.fast, Version2Gumbel)
    assert one.fast.draws_of(tokens, scored_positions(tokens, 2, "ngram"), messages).tolist() == wanted


def test_long_documents_and_short_ones_between():
    """Lengths around the edges of the chunks that fill lanes, with empty and short documents between them."""
    generator = np.random.default_rng(7)
    docs = [generator.integers(0, 2**32, length, np.uint32) for length in (255, 0, 1, 256, 257, 64, 65, 600)]
    tokens = batch_tokens(docs)
    for method, groups in (("greenlist", None), ("gumbel", 31)):
        one = pair(method, 2, groups)
        positions = scored_positions(tokens, 2, "ngram")
        wanted = [one.plain.scores(doc, 77)[0] for doc in docs]
        same(one.fast.score(tokens, positions, 77), wanted, positions.scored)


@pytest.mark.parametrize(("groups", "message"), [(None, 2**32), (19, 361), (None, -1), (19, -1)])
def test_messages_that_a_key_does_not_have(groups, message):
    tokens = batch_tokens([[1, 2, 3]])
    mark = Version2Gumbel(SECRET, 1, groups)
    with pytest.raises(ValueError, match=f"message {message} is out of range"):
        mark.score(tokens, scored_positions(tokens, 1, "ngram"), message)


@pytest.mark.parametrize(("window", "groups"), [(0, 19), (4, 1), (4, 65_537)])
def test_groups_that_no_key_has(window, groups):
    for make in (lambda: Version2Gumbel(SECRET, window, groups), lambda: green(window, groups)):
        with pytest.raises(ValueError, match="2 to 65536 groups, window 1 or more"):
            make()


def green(window: int, groups: int) -> Version2GreenList:
    return Version2GreenList(SECRET, window, Fraction(1, 4), groups)


def test_nothing_is_opened_with_what_is_no_share_or_no_secret():
    with pytest.raises(ValueError, match="gamma"):
        Version2GreenList(SECRET, 4, Fraction(1, 3))
    with pytest.raises(ValueError, match="a secret has 16 to 64 bytes; this one has 15"):
        Version2Gumbel(bytes(15), 4)

"""A key for each user: the search against the slow reference, user by user; colliding keys; whom a text names."""

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.watermark import batch_tokens
from scanner.watermark.stacks.sglang.user_keys import (
    SglangUserKeysFormat,
    best_two,
    exact_scores,
    scores_under,
    user_key,
)
from tests.watermark.known import cases, wrong
from tests.watermark.sglang import reference

SECRET = bytes(range(32))
TOKENS = st.lists(st.integers(0, 3), max_size=30) | st.lists(st.integers(0, 2**32 - 1), max_size=80)


@pytest.mark.seconds
def test_known_answers():
    """Known answers of our own, made by the slow reference."""
    form, some = SglangUserKeysFormat, cases(SglangUserKeysFormat)
    assert {group: len(of_group) for group, of_group in some.items()} == {
        "sglang_user_keys": 12,
        "sglang_user_texts": 6,
    }
    assert [line for group, of_group in some.items() for case in of_group for line in wrong(form, group, case)] == []


def test_user_keys():
    """Keys of users by plain HMAC, as a gateway in any language derives them."""
    for message in (0, 1, 2**40):
        digest = hmac.new(SECRET, b"brickscan sglang user key v1" + message.to_bytes(8, "big"), hashlib.sha256)
        assert f"{user_key(SECRET, message):016x}" == digest.hexdigest()[:16]


@pytest.mark.seconds
@settings(max_examples=30, deadline=None)
@given(documents=st.lists(TOKENS, min_size=1, max_size=3), count=st.integers(1, 7))
def test_the_search_finds_the_best_two(documents, count):
    tokens, mark = batch_tokens(documents), SglangUserKeysFormat(context_window=2).open(SECRET)
    positions = mark.rule.positions(tokens, "ngram")
    found = mark.search(tokens, positions, count)
    assert found.independent
    for d, document in enumerate(documents):
        at = (positions.index[positions.offsets[d] : positions.offsets[d + 1]] - tokens.offsets[d]).tolist()
        scores = [reference.safe_score(document, at, f"{user_key(SECRET, m):x}", 2) for m in range(count)]
        order = sorted(range(count), key=lambda m: (-scores[m], m))[:2]
        assert [m for m in found.message[d].tolist() if m >= 0] == order
        assert np.allclose(found.score[d, : len(order)], [float(scores[m]) for m in order], rtol=1e-13, atol=1e-300)
    for message in range(count):
        single = mark.score(tokens, positions, message)
        for i in range(2):
            best = found.message[:, i] == message
            assert (single[best] == found.score[best, i]).all()


def test_many_users_and_long_texts():
    """Scores by tiles of states, whose products put their exponent aside many times, against exact scores."""
    rng = np.random.default_rng(0)
    states = rng.integers(2**32, size=2500, dtype=np.uint32)
    seeds, tokens = (rng.integers(2**32, size=3001, dtype=np.uint32) for _ in range(2))
    for length in (0, 1, 29, 30, 31, 3001):
        about = np.empty(len(states))
        scores_under(states, seeds[:length], tokens[:length], about)
        some, offsets = states[::50], np.array([0, length])
        exact = np.array([exact_scores(some[m : m + 1], seeds, tokens, offsets)[0] for m in range(len(some))])
        assert np.abs(about[::50] - exact).max() <= 1e-12 * (1 + exact.max()), length


def test_ties_go_to_the_smaller_message():
    rng = np.random.default_rng(1)
    states = np.repeat(rng.integers(2**32, size=50, dtype=np.uint32), 3)
    seeds, tokens = (rng.integers(2**32, size=200, dtype=np.uint32) for _ in range(2))
    message, score = best_two(states, seeds, tokens, np.array([0, 200]), np.ones(200, np.uint8))
    assert score[0, 0] == score[0, 1]
    assert message[0, 0] % 3 == 0
    assert message[0, 1] == message[0, 0] + 1


def test_two_users_of_one_state_name_nobody():
    """Their scores are equal, so neither passes alone."""
    mark = SglangUserKeysFormat().open(SECRET)
    mark.states(10)
    tokens = batch_tokens([list(range(50))])
    positions = mark.rule.positions(tokens, "ngram")
    assert mark.search(tokens, positions, 10).independent
    same = mark.states(10).copy()
    same[7] = same[2]
    mark._states.value = same
    assert not mark.search(tokens, positions, 10).independent
    assert mark.search(tokens, positions, 7).independent


def test_how_many_users():
    form = SglangUserKeysFormat()
    form.check_messages(1)
    form.check_messages(10**5)
    for count in (0, 10**5 + 1):
        with pytest.raises(ValueError, match="allowed: 1 to 100,000"):
            form.check_messages(count)
    mark, tokens = form.open(SECRET), batch_tokens([[1, 2]])
    with pytest.raises(ValueError, match="messages count from 0"):
        mark.score(tokens, mark.rule.positions(tokens, "ngram"), -1)

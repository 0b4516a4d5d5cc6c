"""The score of one message per document, against the reference: integers exactly, sums to double precision."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.pairs import SECRET, batch_tokens, greenlist, gumbel, log_gumbel, split, sum_error
from tests.watermark.strategies import DEDUPS, GAMMAS, documents, many, random_documents, windows

messages = st.one_of(st.integers(0, 70), st.integers(0, 2_000_000))


def assert_same_scores(pair, batch, wanted_messages, dedup):
    tokens = batch_tokens(batch)
    positions = pair.positions(tokens, dedup)
    got = pair.fast.score(tokens, positions, np.array(wanted_messages, np.int64))
    assert len(got) == len(batch)
    for document, message, score, kept in zip(
        batch, wanted_messages, got.tolist(), split(positions, tokens), strict=True
    ):
        wanted = pair.plain.score(document, message, dedup)
        assert type(score) is type(wanted)
        assert score == wanted or abs(score - wanted) <= sum_error(len(kept), wanted)


@pytest.mark.seconds
@pytest.mark.parametrize("dedup", DEDUPS)
@many
@given(documents, windows, st.sampled_from(GAMMAS), st.data())
def test_greenlist(dedup, batch, window, gamma, data):
    chosen = [data.draw(messages) for _ in batch]
    assert_same_scores(greenlist(window, gamma), batch, chosen, dedup)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("dedup", DEDUPS)
@pytest.mark.parametrize("make", [gumbel, log_gumbel])
@many
@given(documents, windows, st.data())
def test_gumbel(make, dedup, batch, window, data):
    chosen = [data.draw(messages) for _ in batch]
    assert_same_scores(make(window), batch, chosen, dedup)


@pytest.mark.costly
@pytest.mark.seconds
def test_every_gamma():
    for gamma in GAMMAS:
        (document,) = random_documents(gamma.numerator * 1000 + gamma.denominator, [40])
        pair, tokens = greenlist(1, gamma), batch_tokens([document])
        positions = pair.positions(tokens)
        assert pair.fast.score(tokens, positions, 5).tolist() == [pair.plain.score(document, 5)], f"gamma = {gamma}"


@pytest.mark.seconds
@pytest.mark.parametrize("make", [greenlist, gumbel, log_gumbel])
@pytest.mark.parametrize("length", [17, 255, 256, 257, 511, 512, 513, 1000])
def test_documents_longer_than_a_chunk(make, length):
    pair = make(4)
    assert_same_scores(pair, random_documents(length, [length, 3, length]), [0, 1, 99_999], "ngram")


@pytest.mark.parametrize("make", [greenlist, gumbel, log_gumbel])
def test_one_message_for_all_is_that_message_for_each(make):
    pair, tokens = make(2), batch_tokens(random_documents(3, [50, 0, 1, 2, 3, 200]))
    positions = pair.positions(tokens)
    one = pair.fast.score(tokens, positions, 77)
    np.testing.assert_array_equal(one, pair.fast.score(tokens, positions, np.full(6, 77)), strict=True)


@pytest.mark.parametrize("make", [greenlist, gumbel, log_gumbel])
def test_a_batch_scores_each_document_as_if_alone(make):
    """Bit for bit: a document's sum does not depend on its neighbours."""
    batch = random_documents(4, [300, 0, 17, 3, 1200, 5], vocabulary=40)
    pair, tokens = make(1), batch_tokens(batch)
    together = pair.fast.score(tokens, pair.positions(tokens), 12)
    for document, score in zip(batch, together.tolist(), strict=True):
        alone = batch_tokens([document])
        assert pair.fast.score(alone, pair.positions(alone), 12).tolist() == [score]


@pytest.mark.parametrize("make", [greenlist, gumbel, log_gumbel])
def test_no_documents_and_nothing_scored(make):
    pair = make(4)
    for batch in ([], [[]], [[1, 2, 3, 4]], [[], [1], []]):
        tokens = batch_tokens(batch)
        assert pair.fast.score(tokens, pair.positions(tokens), 9).tolist() == [0] * len(batch)


@pytest.mark.parametrize("make", [greenlist, gumbel])
def test_the_message_shifts_the_secret_vector(make):
    """Token x under message m meets entry x + m, past 32 bits too (paper: the cyclic shift)."""
    pair, last = make(0), 2**32 - 1
    for token, message, other in [(5, 1000, 1005), (last, 0, last), (last, 7, last + 7)]:
        tokens = batch_tokens([[token]])
        score = pair.fast.score(tokens, pair.positions(tokens), message)
        zero = batch_tokens([[0]])
        assert score.tolist() == pair.fast.score(zero, pair.positions(zero), other).tolist()


@pytest.mark.parametrize("make", [greenlist, gumbel, log_gumbel])
def test_another_secret_another_score(make):
    tokens = batch_tokens(random_documents(8, [200]))
    scores = [
        pair.fast.score(tokens, pair.positions(tokens), 0)[0]
        for pair in (make(2), make(2, secret=SECRET[::-1]), make(3))
    ]
    assert len(set(scores)) == 3


@pytest.mark.parametrize("window", [-1, 17])
def test_a_window_out_of_range_is_refused(window):
    for make in (greenlist, gumbel, log_gumbel):
        with pytest.raises(ValueError, match=f"(?s){window}.*16"):
            make(window)

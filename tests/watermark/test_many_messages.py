"""A hundred thousand and a million messages on a few short texts, by brute force in numpy; and the edges of tiles."""

from fractions import Fraction

import numpy as np
import pytest

from tests.watermark import brute_force
from tests.watermark.pairs import batch_tokens, greenlist, gumbel, sum_error
from tests.watermark.strategies import random_documents

PAIRS = {
    "greenlist 1/4": greenlist(2, Fraction(1, 4)),
    "greenlist 77/256": greenlist(0, Fraction(77, 256)),
    "gumbel h=0": gumbel(0),
    "gumbel h=2": gumbel(2),
}


def assert_best_of(pair, batch, count):
    tokens = batch_tokens(batch)
    positions = pair.positions(tokens)
    best = pair.fast.best_two(tokens, positions, count)
    found = zip(best.message.tolist(), best.second_message.tolist(), strict=True)
    for d, (document, messages) in enumerate(zip(batch, found, strict=True)):
        scores = brute_force.scores(pair.plain, document, count)
        assert list(messages) == brute_force.best_two(scores)
        for message, published in zip(messages, (best.score[d], best.second_score[d]), strict=True):
            if pair.plain.method == "greenlist":
                assert published == scores[message]
            else:
                assert abs(published - scores[message]) <= sum_error(len(document), scores[message])
    # bit for bit, whichever path computes it
    np.testing.assert_array_equal(best.score, pair.fast.score(tokens, positions, best.message))
    np.testing.assert_array_equal(best.second_score, pair.fast.score(tokens, positions, best.second_message))


@pytest.mark.parametrize("name", PAIRS)
def test_a_hundred_thousand(name):
    assert_best_of(PAIRS[name], random_documents(1, [1, 2, 5, 12]), 100_000)


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("name", PAIRS)
def test_a_million(name):
    assert_best_of(PAIRS[name], random_documents(2, [3, 7], vocabulary=2**32 - 1), 1_000_000)


@pytest.mark.long
@pytest.mark.parametrize("name", PAIRS)
def test_a_million_and_longer(name):
    assert_best_of(PAIRS[name], random_documents(3, [100, 300, 4, 1]), 1_000_000)
    assert_best_of(PAIRS[name], random_documents(4, [40, 3]), 3_000_017)


@pytest.mark.seconds
@pytest.mark.parametrize("count", [2**14 - 1, 2**14, 2**14 + 1, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**17, 2**17 + 1])
def test_edges_of_tiles(count):
    batch = random_documents(count, [3, 3, 4, 9, 20])
    for pair in (greenlist(2, Fraction(1, 4)), gumbel(2)):
        assert_best_of(pair, batch, count)


def test_the_last_message_can_be_the_best():
    """A count that ends just past the best message finds it; a count of one less does not."""
    for pair in (greenlist(0, Fraction(1, 256)), gumbel(0)):
        (document,) = random_documents(5, [6])
        scores = brute_force.scores(pair.plain, document, 200_000)
        records = np.flatnonzero(scores > np.maximum.accumulate(np.concatenate([[-1], scores[:-1]])))
        for message in records[1:].tolist():
            tokens = batch_tokens([document])
            positions = pair.positions(tokens)
            assert pair.fast.best_two(tokens, positions, message + 1).message.tolist() == [message]
            assert pair.fast.best_two(tokens, positions, message).message[0] < message

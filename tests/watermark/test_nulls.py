"""Hits of all messages under fresh keys against the public scores of scanner.watermark, message by message."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from scanner.audit.calibration.law_counts import fresh_entropy
from scanner.audit.statistics.hits import critical_scores
from scanner.watermark import GreenList, Gumbel, label, scored_positions
from scanner.watermark.native.nulls import count_hits, keys_of
from tests.watermark.pairs import batch_tokens, law_of
from tests.watermark.strategies import random_documents

SEED = b"seed of the tests"
THRESHOLDS = [0.9, 0.5, 0.1, 1e-2, 1e-3]
LENGTHS = [70, 3, 0, 257, 40]
NUMBERS = np.array([5, 0, 2, 900_000, 7])


def secret_of(label_text: str, number: int) -> bytes:
    data = label_text.encode() + b"\0" + int(number).to_bytes(8, "little")
    return hashlib.blake2b(data, key=SEED, digest_size=32, person=b"audit-v1").digest()


def fresh_keys(name, numbers):
    return keys_of(fresh_entropy(SEED, name, numbers), name)


def expected(make, tokens, positions, name, messages, critical):
    """Hits and first scores by the one-message path, each document under its own key."""
    hits, first = np.zeros(critical.shape, np.int64), np.zeros(len(NUMBERS))
    for d, number in enumerate(NUMBERS):
        mark = make(secret_of(name, number))
        scores = np.array([mark.score(tokens, positions, m)[d] for m in range(messages)])
        first[d] = scores[0]
        hits[d] = (scores[:, None] >= critical[d][None, :]).sum(axis=0)
    return hits, first


@pytest.mark.parametrize("gamma", [Fraction(1, 2), Fraction(1, 4), Fraction(77, 256)], ids=str)
@pytest.mark.parametrize(("window", "messages"), [(0, 1), (2, 64), (4, 331)])
def test_greenlist(window, messages, gamma):
    tokens = batch_tokens(random_documents(1, LENGTHS))
    positions = scored_positions(tokens, window, "ngram")
    name = label("greenlist", window, gamma)
    critical = critical_scores(law_of(gamma), positions.scored, THRESHOLDS).critical
    keys = fresh_keys(name, NUMBERS)
    found = count_hits(keys, tokens, positions, window, gamma, messages, critical)
    hits, first = expected(lambda s: GreenList(s, window, gamma), tokens, positions, name, messages, critical)
    assert (found.hits == hits).all()
    assert (found.first == first).all()
    assert found.hits[:, 0].any()


@pytest.mark.parametrize("critical", [0, 1, 255, 256, 257, 10**9])
def test_critical_counts_at_the_edges_of_the_counters(critical):
    tokens = batch_tokens([[7] * 256])
    positions = scored_positions(tokens, 0, "none")  # one token: its count is 0 or 256
    name = label("greenlist", 0, Fraction(1, 2))
    found = count_hits(
        fresh_keys(name, NUMBERS[:1]), tokens, positions, 0, Fraction(1, 2), 1000, np.array([[float(critical)]])
    )
    mark = GreenList(secret_of(name, 5), 0, Fraction(1, 2))
    green = int(mark.green(mark.window_nonces(np.empty((1, 0), np.uint32)), np.array([7]), 1000).sum())
    assert found.hits[0, 0] == (1000 if critical == 0 else green if critical <= 256 else 0)


@pytest.mark.parametrize(("window", "messages"), [(0, 1), (4, 331)])
def test_gumbel(window, messages):
    tokens = batch_tokens(random_documents(1, LENGTHS))
    positions = scored_positions(tokens, window, "ngram")
    name = label("gumbel", window)
    critical = critical_scores(law_of(None), positions.scored, THRESHOLDS).critical
    found = count_hits(fresh_keys(name, NUMBERS), tokens, positions, window, None, messages, critical)
    hits, first = expected(lambda s: Gumbel(s, window), tokens, positions, name, messages, critical)
    assert (found.hits == hits).all()
    assert (found.first == first).all()


def test_gumbel_edges_are_exact():
    """Critical scores are scores or the next double, which approximate sums alone could not tell apart."""
    tokens = batch_tokens(random_documents(1, [50]))
    positions = scored_positions(tokens, 1, "ngram")
    name = label("gumbel", 1)
    mark = Gumbel(secret_of(name, 5), 1)
    scores = np.array([mark.score(tokens, positions, m)[0] for m in range(300)])
    critical = np.concatenate([scores, np.nextafter(scores, np.inf)])[None, :]
    found = count_hits(fresh_keys(name, NUMBERS[:1]), tokens, positions, 1, None, 300, critical)
    assert (found.hits[0] == (scores[:, None] >= critical).sum(axis=0)).all()


def test_more_messages_than_a_tile():
    tokens = batch_tokens(random_documents(1, [20]))
    positions = scored_positions(tokens, 1, "ngram")
    many, gamma = 70_000, Fraction(1, 4)
    keys = fresh_keys(label("greenlist", 1, gamma), NUMBERS[:1])
    found = count_hits(keys, tokens, positions, 1, gamma, many, np.array([[0.0, 5.0, 20.0]]))
    best = GreenList(secret_of(label("greenlist", 1, gamma), 5), 1, gamma).best_two(tokens, positions, many)
    top = count_hits(keys, tokens, positions, 1, gamma, many, np.array([[float(best.score[0]), best.score[0] + 1.0]]))
    assert found.hits[0, 0] == many
    assert top.hits[0, 0] >= 1
    assert top.hits[0, 1] == 0
    gumbel = count_hits(
        fresh_keys(label("gumbel", 1), NUMBERS[:1]), tokens, positions, 1, None, 9000, np.array([[0.0, np.inf]])
    )
    assert gumbel.hits[0].tolist() == [9000, 0]


def test_keys_differ_by_document_and_label_and_are_not_shown():
    keys = fresh_keys("gumbel;h=1", np.arange(50))
    assert len({row.tobytes() for row in keys.chacha}) == 50
    assert (fresh_keys("gumbel;h=2", np.arange(50)).chacha != keys.chacha).any(axis=1).all()
    assert repr(keys) == "FreshKeys(50 documents)"

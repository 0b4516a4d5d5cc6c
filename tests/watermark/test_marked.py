"""Texts that the reference really marked (SPEC §2): the fast path finds their message among all, by both methods."""

import random
from fractions import Fraction

import numpy as np
import pytest

from scanner.watermark.pvalues import log10_any_of
from tests import reference
from tests.watermark.pairs import batch_tokens, greenlist, gumbel

VOCABULARY = range(60)


def start(pair, seed: int) -> tuple[random.Random, list[int]]:
    generator = random.Random(seed)
    return generator, [generator.choice(VOCABULARY) for _ in range(pair.fast.window)]


def mark_greenlist(pair, message: int, length: int, seed: int) -> list[int]:
    """A text with δ = ∞: each token is a green one of 20 random tokens, where one of them is green."""
    generator, text = start(pair, seed)
    while len(text) < length:
        nonce = reference.window_nonce(pair.plain.keys, text[len(text) - pair.fast.window :])
        candidates = generator.sample(VOCABULARY, 20)
        green = (v for v in candidates if reference.is_green(pair.plain.keys, nonce, v + message, pair.plain.gamma))
        text.append(next(green, candidates[0]))
    return text


def mark_gumbel(pair, message: int, length: int, seed: int) -> list[int]:
    """A text of which each token has the smallest −ln(r) / p, under a law drawn anew for every step."""
    generator, text = start(pair, seed)
    while len(text) < length:
        nonce = reference.window_nonce(pair.plain.keys, text[len(text) - pair.fast.window :])
        weights = [generator.expovariate(1) for _ in VOCABULARY]
        draws = [reference.draw(pair.plain.keys, nonce, v + message) for v in VOCABULARY]
        costs = [float(reference.minus_ln_r(w)) / p for w, p in zip(draws, weights, strict=True)]
        text.append(costs.index(min(costs)))
    return text


def assert_found(pair, texts: list[list[int]], messages: list[int], count: int) -> None:
    tokens = batch_tokens(texts)
    positions = pair.positions(tokens)
    best = pair.fast.best_two(tokens, positions, count)
    scored = np.diff(positions.offsets)
    assert best.message.tolist() == messages
    log10_p = pair.fast.law.log10_p(best.score, scored)
    assert (log10_any_of(log10_p, count) < -9).all()
    second = pair.fast.law.log10_p(best.second_score, scored)
    assert (log10_any_of(second, count) > -4).all()  # no other message is accused
    for d, (text, message) in enumerate(zip(texts, messages, strict=True)):
        exact = pair.plain.log10_p(pair.plain.score(text, message), int(scored[d]))
        assert log10_p[d] == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(77, 256)], ids=str)
def test_greenlist(window, gamma):
    pair, messages = greenlist(window, gamma), [0, 31, 32, 1999, 2000, 99_999]
    texts = [mark_greenlist(pair, message, 70, seed) for seed, message in enumerate(messages)]
    assert_found(pair, texts, messages, 100_000)


@pytest.mark.seconds
@pytest.mark.parametrize("window", [1, 4])
def test_gumbel(window):
    pair, messages = gumbel(window), [0, 1, 4095, 20_000, 99_999]
    texts = [mark_gumbel(pair, message, 60, seed) for seed, message in enumerate(messages)]
    assert_found(pair, texts, messages, 100_000)


def test_among_a_million():
    pair = greenlist(2, Fraction(1, 4))
    assert_found(pair, [mark_greenlist(pair, 765_432, 80, 1)], [765_432], 1_000_000)
    pair = gumbel(2)
    assert_found(pair, [mark_gumbel(pair, 765_432, 60, 1)], [765_432], 1_000_000)


def test_another_key_finds_nothing():
    for make, mark in ((greenlist, mark_greenlist), (gumbel, mark_gumbel)):
        text = mark(make(2), 5, 80, 0)
        other, tokens = make(2, secret=b"another secret of 32 bytes......"), batch_tokens([text])
        positions = other.positions(tokens)
        best = other.fast.best_two(tokens, positions, 1000)
        log10_p = other.fast.law.log10_p(best.score, np.diff(positions.offsets))
        assert log10_any_of(log10_p, 1000)[0] > -4

"""H0 itself: over random keys, p-values of unmarked documents are uniform (SPEC §4).

Each check counts p ≤ α among N independent documents and compares with the exact binomial interval that holds with
probability 1 − 1e-6 on each side. N and the seeds are fixed; a wrong tail, a shifted law or dependent draws leave it.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from scanner.watermark.pvalues import log10_any_of
from tests.watermark.pairs import batch_tokens, greenlist, gumbel, log_gumbel
from tests.watermark.strategies import random_documents

KEYS, PER_KEY, LENGTH = 40, 500, 60
DOCUMENTS = KEYS * PER_KEY
LEVELS = (0.5, 0.1, 0.01, 0.001)
RISK = 1e-6


def interval(count: int, chance: float) -> tuple[int, int]:
    """Smallest and largest number of hits that are not rarer than RISK on their side, by exact sums."""
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(chance) + (count - k) * math.log1p(-chance)
        for k in range(count + 1)
    ]  # fmt: skip
    at_most = np.cumsum(np.exp(logs))
    at_least = np.cumsum(np.exp(logs)[::-1])[::-1]
    return int(np.argmax(at_most > RISK)), int(np.max(np.nonzero(at_least > RISK)))


def fresh_documents(seed: int):
    """Tokens from all of 32 bits, so that no window comes twice and the documents of a key are independent."""
    return batch_tokens(random_documents(seed, [LENGTH] * PER_KEY, vocabulary=2**32 - 1))


def secret_of(seed: int) -> bytes:
    return np.random.default_rng(10_000 + seed).bytes(32)


def test_the_interval_is_exact():
    assert interval(10, 0.5) == (0, 10)
    low, high = interval(1000, 0.5)
    chances = [math.comb(1000, k) * 0.5**1000 for k in range(1001)]
    assert sum(chances[:low]) <= RISK < sum(chances[: low + 1])
    assert sum(chances[high + 1 :]) <= RISK < sum(chances[high:])


def p_values(make) -> np.ndarray:
    found = []
    for seed in range(KEYS):
        pair, tokens = make(secret_of(seed)), fresh_documents(seed)
        positions = pair.positions(tokens)
        score = pair.fast.score(tokens, positions, seed * 1000)
        found.append(10 ** pair.fast.law.log10_p(score, np.diff(positions.offsets)))
    return np.concatenate(found)


def assert_hits(p: np.ndarray, level: float, chance: float) -> None:
    low, high = interval(len(p), chance)
    hits = int((p <= level).sum())
    assert low <= hits <= high, f"{hits} of {len(p)} at p <= {level}: outside {low} to {high}"


@pytest.mark.seconds
@pytest.mark.parametrize("make", [gumbel, log_gumbel])
def test_gumbel(make):
    p = p_values(lambda secret: make(4, secret))
    assert len(p) == DOCUMENTS
    for level in LEVELS:
        assert_hits(p, level, level)
        assert_hits(1 - p, level, level)


@pytest.mark.seconds
@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(1, 2), Fraction(77, 256)], ids=str)
def test_greenlist(gamma):
    """P-values of a green list are discrete: the chance of a hit at α is the largest p-value up to α."""
    p = p_values(lambda secret: greenlist(4, gamma, secret))
    scored = LENGTH - 4
    chances = [math.comb(scored, k) * gamma**k * (1 - gamma) ** (scored - k) for k in range(scored + 1)]
    tails = [float(sum(chances[k:])) for k in range(scored + 1)]
    for level in LEVELS:
        attained = max(tail for tail in tails if tail <= level)
        assert_hits(p, level, attained)


@pytest.mark.seconds
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_the_best_of_many_messages_is_corrected(method):
    """Where all windows differ, every message meets its own draws, so the corrected p is uniform too.

    The green list's p is discrete, so it is tested for being too small alone.
    """
    count, found = 200, []
    for seed in range(KEYS):
        secret = secret_of(seed)
        pair = gumbel(4, secret) if method == "gumbel" else greenlist(4, Fraction(1, 4), secret)
        tokens = fresh_documents(1000 + seed)
        positions = pair.positions(tokens)
        best = pair.fast.best_two(tokens, positions, count)
        found.append(10 ** log10_any_of(pair.fast.law.log10_p(best.score, np.diff(positions.offsets)), count))
    p = np.concatenate(found)
    for level in LEVELS:
        low, high = interval(len(p), level)
        hits = int((p <= level).sum())
        assert hits <= high
        assert method == "greenlist" or hits >= low

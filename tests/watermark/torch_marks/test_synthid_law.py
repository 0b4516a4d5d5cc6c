"""The law of SynthID's mixed bits, on a text whose n-grams collide: some blocks of five tokens have the same hash."""

import math
import statistics
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from scanner.watermark import batch_tokens
from scanner.watermark.formats import make_format
from scanner.watermark.stacks.synthid.bits import (
    FEW,
    MANY,
    MixedBits,
    hashes,
    mixed_ones,
    points,
    variance_limit,
    wide_law,
)
from scanner.watermark.stacks.synthid.proof import SynthIdProof, log_urn
from tests.bench import fresh_keys, mixed_law

FACTOR = 6364136223846793005
SAME_HASH = np.array(
    [[-1581, 4057, -5024, 547, -1079], [-1104, 2190, 1987, 4546, 5333], [3655, 588, -1723, 2679, -6187]]
)
"""Differences of five tokens that change no hash: the sum of d[i]·FACTOR^(4−i) is 0 mod 2^64 (found by LLL)."""

BLOCKS = 16_000 + np.array(list(product(range(3), repeat=3))) @ SAME_HASH
COLLIDING = batch_tokens([BLOCKS.ravel().tolist()])
"""Blocks that collide: 27 of its 130 scored n-grams have one bit in every layer."""

VARIANCE = (27**2 + 103) / 130
ORDINARY = batch_tokens([np.random.default_rng(7).integers(0, 32_000, 60).tolist()])


def states_of(tokens, start=0):
    positions = make_format("synthid-mixed", {}).rule().positions(tokens, "ngram")
    return hashes(tokens.ids, positions.index, 5, np.uint64(start))


def plain_bit(state: int, key: int) -> int:
    """One bit, in Python's whole numbers."""
    x = ((state + key) * FACTOR + 1) % 2**64
    for _ in range(12):
        x = ((x + 1) * FACTOR + 1) % 2**64
        x = (x - 2**64 * (x >= 2**63)) >> 5
    return (x >> 30) & 1


def plain_limit(states: list[int], numbers: list[int]) -> float:
    """The limit of the variance, plainly."""
    squares = []
    for number in numbers:
        ones = sum(plain_bit((state - states[0]) % 2**64, number) for state in states)
        squares.append((2 * ones - len(states)) ** 2 / len(states))
    return max(
        1.0, statistics.fmean(squares) + stats.norm.ppf(0.99) * statistics.stdev(squares) / math.sqrt(len(numbers))
    )


def test_blocks_collide():
    states = states_of(COLLIDING)
    assert (len(states), np.count_nonzero(states == states[0]), len(set(states.tolist()))) == (130, 27, 130 - 26)


@pytest.mark.seconds
@pytest.mark.parametrize("text", [COLLIDING, ORDINARY], ids=["colliding", "ordinary"])
def test_the_variance_is_that_of_plain_numbers_under_the_same_points(text):
    states = states_of(text)
    assert variance_limit(states, FEW) == pytest.approx(
        plain_limit(states.tolist(), points()[:FEW].tolist()), rel=1e-12
    )


def test_the_variance_is_the_known_one():
    """The variance of 27 equal bits among independent ones, up to a tenth: the other bits depend on each other too."""
    few, many = (variance_limit(states_of(COLLIDING), count) for count in (FEW, MANY))
    assert many == pytest.approx(VARIANCE, rel=0.1)
    assert many < few < 1.5 * VARIANCE
    assert 1.0 <= variance_limit(states_of(ORDINARY), MANY) < 1.15


def test_the_variance_is_one_of_the_text_alone():
    assert variance_limit(states_of(COLLIDING), FEW) == variance_limit(states_of(COLLIDING, 2**63 + 5), FEW)
    assert variance_limit(states_of(ORDINARY)[:1], MANY) == 1.0


def test_a_long_text_is_measured_at_fewer_points(monkeypatch):
    states, few = states_of(ORDINARY), variance_limit(states_of(ORDINARY), FEW)
    monkeypatch.setattr("scanner.watermark.stacks.synthid.bits.MOST_BITS", 600 * len(states))
    assert variance_limit(states, MANY) == variance_limit(states, 600)
    monkeypatch.setattr("scanner.watermark.stacks.synthid.bits.MOST_BITS", 1)
    assert variance_limit(states, MANY) == few


def test_points_never_change():
    assert points()[:2].tolist() == [10080592910648883609, 15028628262011842158]
    assert (len(points()), len(set(points().tolist()))) == (MANY, MANY)


def urn(scored: int, alike: Fraction) -> list[Fraction]:
    """Chance of each number of ones among bits from Pólya's urn, where each bit copies an earlier one or is new."""
    growth, chances = alike / (1 - alike), [Fraction(1)]
    for drawn in range(scored):
        more = [Fraction(0)] * (drawn + 2)
        for ones, chance in enumerate(chances):
            again = (Fraction(1, 2) + ones * growth) / (1 + drawn * growth)
            more[ones + 1] += chance * again
            more[ones] += chance * (1 - again)
        chances = more
    return chances


@pytest.mark.parametrize("scored", [1, 2, 9, 30])
@pytest.mark.parametrize("alike", [Fraction(0), Fraction(1, 1000), Fraction(1, 7), Fraction(9, 10)])
def test_the_wide_law_is_that_of_an_urn(scored, alike):
    variance = 1 + alike * (scored - 1)
    plain = [float(chance) for chance in urn(scored, alike)]
    assert wide_law(scored, float(variance)) == pytest.approx(plain, rel=1e-11)
    assert np.exp(log_urn(scored, float(variance))) == pytest.approx(plain, rel=1e-11)
    centred = sum(p * (2 * k - scored) ** 2 for k, p in enumerate(plain)) / scored
    assert centred == pytest.approx(float(variance), rel=1e-11)


@pytest.mark.parametrize("variance", [1.0, 1.0 + 1e-12, 1.03, 2.9, 400.0, 500.0])
def test_both_ways_to_the_wide_law_agree(variance):
    """Both agree also where the variance is above the one of bits that are all equal."""
    law = wide_law(400, variance)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.log(law) == pytest.approx(log_urn(400, variance), abs=1e-9)


@pytest.mark.seconds
@pytest.mark.parametrize("score", ["weighted", "mean"])
@pytest.mark.parametrize("text", [COLLIDING, ORDINARY], ids=["colliding", "ordinary"])
def test_the_proof_finds_the_same_under_every_law(text, score):
    form = make_format("synthid-mixed", {"depth": 5, "score": score})
    states, weights = states_of(text), form.weights()
    proof = SynthIdProof(form.decoy_key(bytes(32)), 5, 5, score == "weighted", None, 64)
    mean, spread = len(states) * weights.sum() / 2, math.sqrt(len(states) * (weights**2).sum()) / 2
    for z in (-2.0, 1.5, 2.7, 6.0):
        total = round(mean + z * spread)
        fast = MixedBits().surprise(np.array([total]), weights, states, np.array([0, len(states)]))[0]
        assert proof._surprise(total, states.tolist()) == pytest.approx(fast, rel=1e-9, abs=1e-12)


def test_p_is_never_below_that_of_independent_bits():
    """Where the text's own variance was not measured, p is above 0.08 too."""
    form = make_format("synthid-mixed", {"depth": 5})
    states, weights = states_of(ORDINARY), form.weights()
    sums, p = fresh_keys.p_of_sums(states, weights)
    independent = fresh_keys.tails(wide_law(len(states), 1.0), weights)[sums]
    assert np.all(p[independent > 1e-12] >= 0.99 * independent[independent > 1e-12])
    assert np.all(p[: np.flatnonzero(independent <= 0.012)[0]] > 0.08)


def hits_beyond_chance(keys: int) -> np.ndarray:
    """Chances of so many hits or more at 1e-2, 1e-3 and 1e-4 under fresh lists of keys, if p-values hold."""
    weights, states = make_format("synthid-mixed", {"depth": 3}).weights(), states_of(COLLIDING)
    drawn = np.random.default_rng(5).integers(0, 2**63, 3 * keys, np.uint64)
    scores = mixed_ones(states, np.array([0, len(states)]), drawn).reshape(keys, 3) @ weights
    sums, p = fresh_keys.p_of_sums(states, weights)
    levels = np.array([1e-2, 1e-3, 1e-4])
    hits = np.array([(scores >= sums[np.argmax(p <= level)]).sum() for level in levels])
    return stats.binom.sf(hits - 1, keys, levels)


def test_p_values_of_a_text_that_collides_hold_over_keys(monkeypatch):
    """P-values of independent bits do not hold: at 1e-3 they are too small by tens of times."""
    assert np.all(hits_beyond_chance(20_000) > 1e-7)
    monkeypatch.setattr(fresh_keys, "variance_limit", lambda states, count: 1.0)
    assert np.all(hits_beyond_chance(20_000) < 1e-50)


def test_rates_that_follow_from_the_law_of_a_layer():
    """By the wide law no rate is above its level; by the law of fair bits 1e-6 is reached 10,000 times too often."""
    weights = make_format("synthid-mixed", {"depth": 5}).weights()
    wide, fair = mixed_law.rates(states_of(COLLIDING), weights, np.random.default_rng(6))
    assert np.all(wide <= 1.0)
    assert fair[mixed_law.LEVELS == 1e-6] > 1e4


def test_rates_of_bits_that_hardly_depend_are_near_their_levels():
    weights = make_format("synthid-mixed", {"depth": 5}).weights()
    wide, _ = mixed_law.rates(states_of(ORDINARY), weights, np.random.default_rng(6))
    assert np.all((wide[1:5] > 0.2) & (wide[1:5] < 1.1))

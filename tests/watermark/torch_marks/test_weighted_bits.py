"""SynthID's law: against whole numbers, and over every key of a small table."""

import math
from itertools import product

import numpy as np
import pytest

from scanner.watermark import batch_tokens
from scanner.watermark.laws import log_tail
from scanner.watermark.stacks.synthid.bits import layer_law
from scanner.watermark.stacks.synthid.format import SynthIdMixedFormat, SynthIdTableFormat


def counted(weights, ways) -> dict[int, int]:
    """Number of ways in which each sum comes about."""
    sums = {0: 1}
    for weight in weights:
        more: dict[int, int] = {}
        for total, many in sums.items():
            for k, way in enumerate(ways):
                more[total + weight * k] = more.get(total + weight * k, 0) + many * way
        sums = more
    return sums


@pytest.mark.parametrize(("depth", "scored"), [(1, 20), (2, 15), (3, 30), (5, 12), (9, 10)])
def test_tails_of_fair_bits_are_those_of_whole_numbers(depth, scored):
    weights = SynthIdMixedFormat(depth=depth).weights()
    ways = [math.comb(scored, k) for k in range(scored + 1)]
    sums = counted(weights.tolist(), ways)
    ordered, everything = sorted(sums), 2 ** (scored * depth)
    chances = np.array(ways) / 2.0**scored
    for share in (0.55, 0.7, 0.9, 0.97, 0.999, 1.0):
        score = ordered[min(int(len(ordered) * share), len(ordered) - 1)]
        wanted = math.log(sum(sums[total] for total in ordered if total >= score)) - math.log(everything)
        assert log_tail(score, weights, chances) == pytest.approx(wanted, rel=1e-11, abs=1e-11)
    assert log_tail(ordered[-1] + 1, weights, chances) == -math.inf
    assert log_tail(0, weights, chances) == 0.0


def test_weights_are_the_stacks_in_whole_numbers():
    for depth in (2, 9, 30):
        weights = SynthIdTableFormat(depth=depth).weights()
        assert np.gcd.reduce(weights) == 1
        assert weights / weights[-1] == pytest.approx(np.linspace(10, 1, depth))


@pytest.mark.seconds
def test_p_is_exact_over_every_key():
    """Three layers of 2^12 places: all 2^36 keys on one text, counted, beside p where it is at most 1e-3.

    A key that comes twice in a list is one layer: there all keys of so many layers are counted.
    """
    size = 2**12
    form = SynthIdTableFormat(depth=3, ngram_len=3, sampling_table_size=size, sampling_table_seed=3, published=True)
    tokens = batch_tokens([np.random.default_rng(8).integers(0, 1000, 70).tolist()])
    # keys of one remainder mod the size draw the same bits
    marks = [form.open(key.to_bytes(8, "big") + bytes(16)) for key in range(size)]
    positions = marks[0].rule.positions(tokens, "ngram")
    ones = np.array([mark.ones(tokens, positions)[0, 0] for mark in marks])
    ways = np.bincount(ones, minlength=positions.scored[0] + 1)
    assert layer_law(marks[0].states(tokens, positions), marks[0]._bits.table).tolist() == (ways / size).tolist()
    weights, exact = form.weights(), 0
    for keys in product(np.argsort(-ones)[[0, 1, 5, 40, 400]].tolist(), repeat=3):
        score = int(ones[list(keys)] @ weights)
        layers = [sum(int(weights[i]) for i in range(3) if keys[i] == key) for key in set(keys)]
        sums = counted(layers, ways.tolist())
        share = sum(many for total, many in sums.items() if total >= score) / size ** len(layers)
        mark = form.open(b"".join(key.to_bytes(8, "big") for key in keys))
        p = math.exp(-float(mark.score(tokens, positions, 0)[0]))
        assert p >= share * (1 - 1e-9) or p > 1e-3
        if p <= 1e-3:
            assert p == pytest.approx(share, rel=1e-9)
            exact += 1
    assert exact > 10


@pytest.mark.seconds
def test_above_a_thousandth_p_is_not_below_the_exact_one():
    """Above 1e-3 p is by the normal law: over keys no more than a share p reaches it, up to five standard errors."""
    form = SynthIdTableFormat(depth=5, sampling_table_seed=1)
    tokens = batch_tokens([np.random.default_rng(9).integers(0, 1000, 150).tolist()])
    scores = []
    for number in range(3000):
        mark = form.open(form.draw_key(number.to_bytes(32, "big")))
        scores.append(float(mark.score(tokens, mark.rule.positions(tokens, "ngram"), 0)[0]))
    p = np.exp(-np.array(scores))
    for level in (0.3, 0.1, 0.03, 0.01):
        assert (p <= level).sum() < 3000 * level + 5 * math.sqrt(3000 * level)

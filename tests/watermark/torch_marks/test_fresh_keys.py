"""`make null` counts what a scan computes: its scores of many keys at once are the scores of each opened key."""

import numpy as np
import pytest
from scipy import stats

from scanner.watermark import batch_tokens
from scanner.watermark.formats import make_format
from tests.bench import fresh_keys, one_key

TEXT = batch_tokens([np.random.default_rng(3).integers(1, 300, 60).tolist() * 2])


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["three-bricks-openai", "three-bricks-maryland"])
def test_all_payloads_at_once(name):
    form = make_format(name, {"vocab_size": 300, "window": 2})
    mark = form.open(form.decoy_key(bytes(range(32))))
    positions = mark.rule.positions(TEXT, "ngram")
    scores = fresh_keys.payload_scores(mark, TEXT, positions.index, 300)
    for payload in (0, 1, 150, 299):
        assert scores[payload] == mark.score(TEXT, positions, payload)[0]


@pytest.mark.parametrize(("name", "more"), [("hf-lefthash", {}), ("hf-selfhash", {"context_width": 4})])
def test_green_tokens_of_many_pieces(name, more):
    """Pieces share draws, and each draw is looked up once."""
    form = make_format(name, {"vocab_size": 300} | more)
    text = fresh_keys.pieces(batch_tokens([*np.random.default_rng(4).integers(0, 9, (5, 40)).tolist(), [7] * 9]), 4, 8)
    counts, scored = fresh_keys.green_counts(form.open(form.decoy_key(bytes(32))), text)
    mark = form.open(form.decoy_key(bytes(32)))
    positions = mark.rule.positions(text, "ngram")
    assert (counts.tolist(), scored.tolist()) == (mark.score(text, positions, 0).tolist(), positions.scored.tolist())


def test_no_key_meets_a_piece_twice():
    text = batch_tokens(np.random.default_rng(5).integers(0, 300, (3, 40)).tolist())
    tally = fresh_keys.green_lists("hf-lefthash", {"vocab_size": 300}, text, 6)
    assert (tally.trials, len(tally.of_keys)) == (6, 2)


def test_where_keys_are_the_units_the_interval_is_that_of_their_mean():
    of_keys = tuple(np.array([hits]) for hits in [5] * 10 + [15] * 10)
    low, high = fresh_keys.interval(fresh_keys.Tally(20_000, sum(of_keys), np.array([200.0]), of_keys), 0)
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 19, 0.01, stats.sem([0.005] * 10 + [0.015] * 10)))
    seldom = (np.array([1]), *(np.array([0]) for _ in range(19)))
    few = fresh_keys.Tally(20_000, sum(seldom), np.array([1.0]), seldom)
    assert fresh_keys.interval(few, 0) == fresh_keys.clopper_pearson(1, 20_000)


def test_sums_that_are_looked_up():
    form = make_format("synthid-table", {"depth": 9})
    secrets = [form.decoy_key(bytes([number] * 32)) for number in range(5)]
    marks = [form.open(secret) for secret in secrets]
    positions = marks[0].rule.positions(TEXT, "ngram")
    states = marks[0].states(TEXT, positions)
    keys = np.stack([mark._keys.value for mark in marks])
    looked_up = fresh_keys.sums_under(keys, states, marks[0]._bits.table, form.weights())
    assert looked_up.tolist() == [int(mark.ones(TEXT, positions)[0] @ form.weights()) for mark in marks]


def test_the_least_sum_of_a_level():
    form = make_format("synthid-table", {"depth": 9})
    mark = form.open(form.decoy_key(bytes(32)))
    states = mark.states(TEXT, mark.rule.positions(TEXT, "ngram"))
    least = fresh_keys.least_sums(mark, states, len(states) * int(form.weights().sum()))
    levels = -np.log(fresh_keys.LEVELS)
    assert np.all(fresh_keys.surprises(mark, least, states) >= levels)
    assert np.all(fresh_keys.surprises(mark, least - 1, states) < levels)


def test_p_of_every_sum_of_mixed_bits():
    """A fold without tilt against p-values of a scan, at each level and around the places where the law changes."""
    form = make_format("synthid-mixed", {"depth": 9})
    mark = form.open(form.decoy_key(bytes(32)))
    states = mark.states(TEXT, mark.rule.positions(TEXT, "ngram"))
    sums, p = fresh_keys.p_of_sums(states, form.weights())
    levels = np.concatenate([fresh_keys.LEVELS, [0.2, 1.001e-2, 9.99e-3, 1.001e-3, 9.99e-4]])
    some = np.array([np.flatnonzero(p <= level)[0] for level in levels])
    assert np.exp(-fresh_keys.surprises(mark, sums[some], states)) == pytest.approx(p[some], rel=1e-6)


@pytest.mark.costly
@pytest.mark.seconds
def test_mixed_bits_under_many_lists():
    form = make_format("synthid-mixed", {"depth": 9})
    marks = [form.open(form.decoy_key(bytes([number] * 32))) for number in range(4)]
    positions = marks[0].rule.positions(TEXT, "ngram")
    keys = np.stack([mark._keys.value for mark in marks])
    ones = fresh_keys._mixed_ones(TEXT.ids, positions.index, form.ngram_len, fresh_keys.starts_of(keys), keys)
    assert ones.tolist() == [mark.ones(TEXT, positions)[0].tolist() for mark in marks]


@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (7, 1000), (50, 50)])
def test_the_interval_is_that_of_clopper_and_pearson(hits, trials):
    wanted = stats.binomtest(hits, trials).proportion_ci(0.95, "exact")
    found = fresh_keys.clopper_pearson(hits, trials)
    assert found == pytest.approx((wanted.low, wanted.high))


@pytest.mark.parametrize(("name", "more"), [("hf-lefthash", {"vocab_size": 300}), ("synthid-mixed", {"depth": 3})])
def test_how_much_more_the_count_of_a_key_varies(name, more):
    """A text that is given twice meets every draw twice, so that the variance of a sum is twice as large."""
    form = make_format(name, more)
    mark, ids = form.open(form.decoy_key(bytes(32))), list(range(1, 60))
    assert one_key.met_again(mark, batch_tokens([ids])) == 1.0
    assert one_key.met_again(mark, batch_tokens([ids, ids])) == 2.0

"""What `make null` counts is what a scan computes: its scores of many keys at once beside those of each opened key."""

import numpy as np
import pytest
from scipy import stats

from scanner.watermark import ragged
from scanner.watermark.formats import make_format
from tests.bench import fresh_keys, one_key

TEXT = ragged([np.random.default_rng(3).integers(1, 300, 60).tolist() * 2])


@pytest.mark.parametrize("name", ["three-bricks-openai", "three-bricks-maryland"])
def test_all_payloads_at_once(name):
    form = make_format(name, {"vocab_size": 300, "window": 2})
    mark = form.open(form.decoy_key(bytes(range(32))))
    positions = mark.rule.positions(TEXT, "ngram")
    scores = fresh_keys.payload_scores(mark, TEXT, positions.index, 300)
    for payload in (0, 1, 150, 299):
        assert scores[payload] == mark.score(TEXT, positions, payload)[0]


def test_sums_that_are_looked_up():
    form = make_format("synthid-table", {"depth": 9})
    secrets = [form.decoy_key(bytes([number] * 32)) for number in range(5)]
    marks = [form.open(secret) for secret in secrets]
    positions = marks[0].rule.positions(TEXT, "ngram")
    states = marks[0].states(TEXT, positions)
    keys = np.stack([mark._keys.value for mark in marks])
    looked_up = fresh_keys.sums_under(keys, states, marks[0]._table, form.weights())
    assert looked_up.tolist() == [int(mark.ones(TEXT, positions)[0] @ form.weights()) for mark in marks]


def test_the_least_sum_of_a_level():
    form = make_format("synthid-mixed", {"depth": 9})
    mark = form.open(form.decoy_key(bytes(32)))
    states = np.zeros(40, np.uint64)
    least = fresh_keys.least_sums(mark, states, 40 * int(form.weights().sum()))
    levels = -np.log(fresh_keys.LEVELS)
    assert np.all(fresh_keys.surprises(mark, least, states) >= levels)
    assert np.all(fresh_keys.surprises(mark, least - 1, states) < levels)


def test_mixed_bits_under_many_lists():
    form = make_format("synthid-mixed", {"depth": 9})
    marks = [form.open(form.decoy_key(bytes([number] * 32))) for number in range(4)]
    positions = marks[0].rule.positions(TEXT, "ngram")
    keys = np.stack([mark._keys.value for mark in marks])
    starts = fresh_keys.starts_of(keys)
    ones = fresh_keys._mixed_ones(TEXT.ids, positions.index, positions.offsets, form.ngram_len, starts, keys)
    assert ones.tolist() == [mark.ones(TEXT, positions)[0].tolist() for mark in marks]


@pytest.mark.parametrize(("hits", "trials"), [(0, 50), (7, 1000), (50, 50)])
def test_the_interval_is_that_of_clopper_and_pearson(hits, trials):
    wanted = stats.binomtest(hits, trials).proportion_ci(0.95, "exact")
    found = fresh_keys.clopper_pearson(hits, trials)
    assert found == pytest.approx((wanted.low, wanted.high))


@pytest.mark.parametrize(("name", "more"), [("hf-lefthash", {"vocab_size": 300}), ("synthid-mixed", {"depth": 3})])
def test_how_much_more_the_count_of_a_key_varies(name, more):
    """Of two texts that say the same every draw is met twice, and varies a sum by twice as much."""
    form = make_format(name, more)
    mark, ids = form.open(form.decoy_key(bytes(32))), list(range(1, 60))
    assert one_key.met_again(mark, ragged([ids])) == 1.0
    assert one_key.met_again(mark, ragged([ids, ids])) == 2.0

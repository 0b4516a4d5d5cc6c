"""Hits of all messages under fresh keys of version 2 against its public scores, message by message."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.audit.calibration.law_counts import fresh_entropy
from scanner.audit.statistics.hits import critical_scores
from scanner.watermark import scored_positions
from scanner.watermark.formats import make_format
from scanner.watermark.native import nulls
from scanner.watermark.native.gumbel import SUM_UNIT, TERM_ERROR
from scanner.watermark.native.nulls import sum_run
from scanner.watermark.native.streams import steps_of
from tests.watermark.native2.known2 import pair
from tests.watermark.pairs import batch_tokens
from tests.watermark.strategies import random_documents

NUMBERS = np.array([5, 0, 2, 900_000, 7])
THRESHOLDS = [0.9, 0.5, 0.1, 1e-2, 1e-3]


def counted(form, tokens, positions, messages, critical):
    """Hits that `count_hits` counts, checked by the one-message path, with each document under its own key."""
    secrets = fresh_entropy(b"seed of the tests", form.label(), NUMBERS[: len(critical)])
    found = form.count_hits(secrets, tokens, positions, messages, critical)
    scores = np.array(
        [
            [form.open(secret).score(tokens, positions, m)[d] for m in range(messages)]
            for d, secret in enumerate(secrets)
        ]
    )
    assert (found.hits == (scores[:, None, :] >= critical[:, :, None]).sum(axis=2)).all()
    assert (found.first == scores[:, 0]).all()
    return found.hits


@pytest.mark.parametrize("gamma", [Fraction(1, 2), Fraction(1, 4), Fraction(77, 256), None], ids=str)
@pytest.mark.parametrize(("window", "messages"), [(0, 1), (2, 64), (4, 331)])
def test_hits(window, messages, gamma):
    parameters = {"window": window} | ({} if gamma is None else {"gamma": str(gamma)})
    form = make_format("gumbel-v2" if gamma is None else "greenlist-v2", parameters)
    tokens = batch_tokens(random_documents(1, [70, 3, 0, 257, 40]))
    positions = scored_positions(tokens, window, "ngram")
    hits = counted(
        form, tokens, positions, messages, critical_scores(form.law(), positions.scored, THRESHOLDS).critical
    )
    assert hits[:, 0].any()


@pytest.mark.parametrize("gamma", ["1/4", None])
def test_the_users_of_the_first_group(gamma):
    parameters = {"window": 1, "groups": 20} | ({} if gamma is None else {"gamma": gamma})
    form = make_format("gumbel-v2" if gamma is None else "greenlist-v2", parameters)
    tokens = batch_tokens(random_documents(1, [70, 3, 0, 257, 2]))
    positions = scored_positions(tokens, 1, "ngram")
    hits = counted(form, tokens, positions, 20, critical_scores(form.law(), positions.scored, THRESHOLDS).critical)
    assert hits[:, 0].any()


def test_edges_are_exact():
    """Critical scores are scores or the next double, which approximate sums alone could not tell apart."""
    form = make_format("gumbel-v2", {"window": 1})
    secret = fresh_entropy(b"seed of the tests", form.label(), NUMBERS[:1])[0]
    for length in (50, 2100):
        tokens = batch_tokens(random_documents(1, [length]))
        positions = scored_positions(tokens, 1, "ngram")
        scores = np.array([form.open(secret).score(tokens, positions, m)[0] for m in range(100)])
        critical = np.concatenate([scores, np.nextafter(scores, np.inf), [np.inf]])[None, :]
        assert counted(form, tokens, positions, 100, critical)[0, -1] == 0


@pytest.mark.parametrize("critical", [0, 1, 255, 256, 257, 10**9])
def test_critical_counts_at_the_edges_of_the_counters(critical):
    tokens = batch_tokens([[7] * 256])
    positions = scored_positions(tokens, 0, "none")  # one token: a count is 0 or 256
    counted(
        make_format("greenlist-v2", {"window": 0, "gamma": "1/2"}),
        tokens,
        positions,
        300,
        np.array([[float(critical)]]),
    )


def test_sums_are_as_near_to_scores_as_they_say():
    """Beside the one-message path: 4 documents of 1 to 2,100 positions, 48 numbers each."""
    mark = pair("gumbel", 1).fast
    tokens = batch_tokens(random_documents(6, (1, 40, 700, 2100)))
    positions = scored_positions(tokens, 1, "ngram")
    steps = steps_of(tokens, positions, mark._nonces(tokens, positions))
    exact = np.stack([mark.score(tokens, positions, number) for number in range(48)], axis=1)
    sums = np.empty(48, np.int64)
    for d, scored in enumerate(positions.scored.tolist()):
        own = slice(steps.offsets[d], steps.offsets[d + 1])
        sum_run(mark.sub_keys.chacha, steps.ids[own], steps.nonces[own], 0, sums)
        assert np.abs(sums * SUM_UNIT - exact[d]).max() <= scored * TERM_ERROR * SUM_UNIT


@pytest.mark.seconds
@pytest.mark.parametrize("most", [(512, 2048), (7, 9)])
@pytest.mark.parametrize("gamma", ["1/4", None])
def test_pairs_of_groups_and_users(gamma, most, monkeypatch):
    """Beside the scores of single messages, whose group and user steps are added crosswise."""
    monkeypatch.setattr(nulls, "PAIRED_GROUPS", most[0])
    monkeypatch.setattr(nulls, "PAIRED_USERS", most[1])
    parameters = {"window": 1, "groups": 20} | ({} if gamma is None else {"gamma": gamma})
    form = make_format("gumbel-v2" if gamma is None else "greenlist-v2", parameters)
    assert form.counted(400) == (20**3 if most[0] == 512 else 7 * 9)
    tokens = batch_tokens(random_documents(1, [70, 3, 0, 257, 2]))
    positions = scored_positions(tokens, 1, "ngram")
    secrets = fresh_entropy(b"seed of the tests", form.label(), NUMBERS)
    every, critical = np.arange(400), critical_scores(form.law(), positions.scored, THRESHOLDS).critical
    sums = []
    for d, secret in enumerate(secrets):
        parts = [form.open(secret).parts(tokens, positions, int(message)) for message in every]
        of_group = np.array([shared[d] for shared, _ in parts])[::20][: most[0]]
        of_user = np.array([own[d] for _, own in parts])[: most[1]]
        sums.append((of_group[:, None] + of_user[None, :]).ravel())
    if gamma is None:  # critical scores that are scores, or the next double
        own_scores = np.array([np.sort(one)[-5:] for one in sums])
        critical = np.concatenate([critical, own_scores, np.nextafter(own_scores, np.inf)], axis=1)
    found = form.count_all(secrets, tokens, positions, 400, critical)
    assert (found == [(one[:, None] >= least).sum(axis=0) for one, least in zip(sums, critical, strict=True)]).all()
    assert found[:, 1].any()


def test_pairs_are_about_a_million_however_many_groups_there_are():
    for groups, pairs in ((2, 2 * 4), (46, 46 * 45 * 46), (325, 325 * 7 * 325), (1026, 512 * 2 * 1026)):
        form = make_format("gumbel-v2", {"window": 4, "groups": groups})
        assert form.counted(groups**2) == pairs
    assert make_format("gumbel-v2", {"window": 4, "groups": 32445}).counted(32445**2) == 512 * 2048

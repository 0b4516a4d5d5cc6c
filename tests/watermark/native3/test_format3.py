"""The formats of version 3: R, hits under fresh keys message by message, pairs, and proofs against the reference."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from scanner.audit.calibration.law_counts import fresh_entropy
from scanner.audit.statistics.hits import critical_scores
from scanner.watermark import scored_positions
from scanner.watermark.formats import make_format
from scanner.watermark.native import step_nulls
from scanner.watermark.native.step_draws import rounding, sum_run
from scanner.watermark.native.steps import in_two
from tests import reference3
from tests.watermark.native3.known3 import BEACON, SECRET, pair
from tests.watermark.pairs import batch_tokens
from tests.watermark.strategies import random_documents

NUMBERS = np.array([5, 0, 2, 900_000, 7])
THRESHOLDS = [0.9, 0.5, 0.1, 1e-2, 1e-3]


def form_of(gamma: str | None, window: int, groups: int | None = None, seeds: int = 24):
    parameters = {"window": window, "groups": groups, "seeds": seeds, "beacon": BEACON.hex()}
    return (
        make_format("gumbel-v3", parameters)
        if gamma is None
        else make_format("greenlist-v3", {**parameters, "gamma": gamma})
    )


def test_a_key_whose_beacon_is_not_set_opens_nothing():
    for name, more in (("gumbel-v3", {}), ("greenlist-v3", {"gamma": "1/4"})):
        form = make_format(name, {"window": 4, **more})
        assert form.seeds == 24
        for use in (form.open, form.proof):
            with pytest.raises(ValueError, match="names a beacon whose value is not set yet"):
                use(SECRET)
        assert form.commitment(SECRET) == reference3.commitment(SECRET, form.label())


@pytest.mark.parametrize("wrong", ["", "5A" * 32, "5a" * 31, "5a" * 32 + "\n", "x" * 64])
def test_a_beacon_is_64_hex_digits(wrong):
    with pytest.raises(ValueError, match="beacon"):
        make_format("gumbel-v3", {"window": 4, "beacon": wrong})


@pytest.mark.parametrize("seeds", [3, 29])
def test_seeds_are_4_to_28(seeds):
    with pytest.raises(ValueError, match="seeds"):
        make_format("gumbel-v3", {"window": 4, "seeds": seeds})


def test_shards_under_another_beacon_or_other_seeds_have_another_id():
    forms = [form_of(None, 4), form_of(None, 4, seeds=23), make_format("gumbel-v3", {"window": 4}), form_of(None, 4, 9)]
    assert len({str(sorted(form.digest_fields().items(), key=str)) for form in forms}) == 4


def test_messages_of_a_key():
    form_of(None, 4, 9).check_messages(81)
    form_of(None, 4).check_messages(65_536)
    with pytest.raises(ValueError, match="a key with groups = 9 has 81"):
        form_of(None, 4, 9).check_messages(80)
    with pytest.raises(ValueError, match="give --users"):
        form_of(None, 4).check_messages(65_537)
    assert not form_of(None, 4).can_be_framed()


def test_messages_that_are_scored_in_full_have_more_time():
    """By `seconds` a scan says that a worker stalled: windows of Gumbel marks took 6 ns a step and message."""
    assert form_of(None, 4).seconds(1000) / 1000 > 1e-8
    assert form_of(None, 4, 9).seconds(81) == form_of("1/4", 4, 9).seconds(81)
    assert form_of("1/4", 4).seconds(1000) == make_format("greenlist", {"window": 4, "gamma": "1/4"}).seconds(1000)


def counted(form, tokens, positions, messages, critical):
    """Hits that `count_hits` counts, checked by the one-message path, with each document under its own key."""
    secrets = fresh_entropy(b"seed of the tests", form.label(), NUMBERS[: len(critical)])
    found = form.count_hits(secrets, tokens, positions, messages, critical)
    marks = [form.open(secret) for secret in secrets]
    scores = np.array([[mark.score(tokens, positions, m)[d] for m in range(messages)] for d, mark in enumerate(marks)])
    assert (found.hits == (scores[:, None, :] >= critical[:, :, None]).sum(axis=2)).all()
    assert (found.first == scores[:, 0]).all()
    return found.hits


@pytest.mark.parametrize("gamma", ["1/2", "1/4", "77/256", None])
@pytest.mark.parametrize(("window", "messages"), [(0, 1), (2, 64), (4, 331)])
def test_hits(window, messages, gamma):
    form = form_of(gamma, window)
    tokens = batch_tokens(random_documents(1, [70, 3, 0, 257, 40]))
    positions = scored_positions(tokens, window, "ngram")
    critical = critical_scores(form.law(), positions.scored, THRESHOLDS).critical
    hits = counted(form, tokens, positions, messages, critical)
    assert hits[:, 0].any()
    if messages > 1:
        secrets = fresh_entropy(b"seed of the tests", form.label(), NUMBERS)
        assert (form.count_all(secrets, tokens, positions, messages, critical) == hits).all()


@pytest.mark.parametrize("gamma", ["1/4", None])
def test_the_users_of_the_first_group(gamma):
    form = form_of(gamma, 1, 20)
    tokens = batch_tokens(random_documents(1, [70, 3, 0, 257, 2]))
    positions = scored_positions(tokens, 1, "ngram")
    hits = counted(form, tokens, positions, 20, critical_scores(form.law(), positions.scored, THRESHOLDS).critical)
    assert hits[:, 0].any()


@pytest.mark.parametrize("critical", [0, 1, 255, 256, 257, 10**9])
def test_critical_counts_at_the_edges_of_the_counters(critical):
    tokens = batch_tokens([[7] * 600])
    positions = scored_positions(tokens, 0, "none")  # one token: a count is 0 or 600
    counted(form_of("1/2", 0), tokens, positions, 300, np.array([[float(critical)]]))


@pytest.mark.seconds
def test_edges_are_exact():
    """Critical scores are scores or the next double, which approximate sums alone could not tell apart."""
    form = form_of(None, 1)
    secret = fresh_entropy(b"seed of the tests", form.label(), NUMBERS[:1])[0]
    for length in (50, 700):
        tokens = batch_tokens(random_documents(1, [length]))
        positions = scored_positions(tokens, 1, "ngram")
        scores = np.array([form.open(secret).score(tokens, positions, m)[0] for m in range(100)])
        critical = np.concatenate([scores, np.nextafter(scores, np.inf), [np.inf]])[None, :]
        assert counted(form, tokens, positions, 100, critical)[0, -1] == 0


@pytest.mark.parametrize("groups", [None, 70])
def test_sums_are_as_near_to_scores_as_they_say(groups):
    """Beside the one-message path: 4 documents of 1 to 700 positions, 64 numbers each."""
    mark = pair("gumbel", 1, groups).fast
    tokens = batch_tokens(random_documents(6, (1, 40, 300, 700)))
    positions = scored_positions(tokens, 1, "ngram")
    steps = mark.steps(tokens, positions)
    steps = steps if groups is None else in_two(steps)[0]
    of_group = [mark.parts(tokens, positions, number * (groups or 1))[0 if groups else 1] for number in range(64)]
    sums = np.empty(64)
    for d, scored in enumerate(steps.scored.tolist()):
        sum_run(steps.ids, steps.nonces, steps.keys, *steps.offsets[d : d + 2], 0, groups is not None, sums)
        exact = np.array(of_group)[:, d]
        assert (np.abs(sums - exact) <= [rounding(scored, one) for one in exact]).all()


@pytest.mark.seconds
@pytest.mark.parametrize("most", [(512, 2048), (7, 9)])
@pytest.mark.parametrize("gamma", ["1/4", None])
def test_pairs_of_groups_and_users(gamma, most, monkeypatch):
    """Beside the scores of single messages, whose group and user steps are added crosswise."""
    monkeypatch.setattr(step_nulls, "PAIRED_GROUPS", most[0])
    monkeypatch.setattr(step_nulls, "PAIRED_USERS", most[1])
    form = form_of(gamma, 1, 20)
    assert form.counted(400) == (20**3 if most[0] == 512 else 7 * 9)
    tokens = batch_tokens(random_documents(1, [70, 3, 0, 257, 2]))
    positions = scored_positions(tokens, 1, "ngram")
    secrets = fresh_entropy(b"seed of the tests", form.label(), NUMBERS)
    every, critical = np.arange(400), critical_scores(form.law(), positions.scored, THRESHOLDS).critical
    sums = []
    for d, secret in enumerate(secrets):
        mark = form.open(secret)
        parts = [mark.parts(tokens, positions, int(message)) for message in every]
        of_group = np.array([shared[d] for shared, _ in parts])[::20][: most[0]]
        of_user = np.array([own[d] for _, own in parts])[: most[1]]
        sums.append((of_group[:, None] + of_user[None, :]).ravel())
    if gamma is None:  # critical scores that are scores, or the next double
        own_scores = np.array([np.sort(one)[-5:] for one in sums])
        critical = np.concatenate([critical, own_scores, np.nextafter(own_scores, np.inf)], axis=1)
    critical = np.pad(critical, ((0, 0), (0, 1)), constant_values=np.inf)
    found = form.count_all(secrets, tokens, positions, 400, critical)
    assert (found == [(one[:, None] >= least).sum(axis=0) for one, least in zip(sums, critical, strict=True)]).all()
    assert found[:, 1].any()


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("gamma", ["3/8", None])
@pytest.mark.parametrize("window", [1, 3])
def test_proofs_are_the_references(window, gamma, groups):
    """Scores, user evidence and what each position adds, of texts with repeats."""
    form = form_of(gamma, window, groups, 12)
    share = None if gamma is None else Fraction(gamma)
    plain = reference3.Method("gumbel" if gamma is None else "greenlist", SECRET, window, share, groups, 12, BEACON)
    proof, random = form.proof(SECRET), np.random.default_rng(window)
    assert SECRET.hex() not in repr(proof)
    messages = [0, 39, 1599]
    for length in (0, 5, 60):
        text = random.integers(0, 12, length).astype(np.uint32)
        steps = plain.steps(text.tolist())
        scored, scores = proof.scores(text, messages, "ngram")
        assert scored == len(steps)
        assert scores == pytest.approx([plain.scores(text.tolist(), m)[0] for m in messages], rel=1e-12)
        places, terms, alone, among = proof.parts(text, messages, "ngram")
        assert places.tolist() == [step.place for step in steps]
        wanted = [[plain.term(step, plain.number(m, step.of_group)) for step in steps] for m in messages]
        assert terms == pytest.approx(np.array(wanted, np.float64).reshape(3, -1), rel=1e-12)
        own = proof.user_evidence(text, messages, "ngram")
        if groups is None:
            assert (alone, among, own) == (None, 1, None)
            continue
        assert alone.tolist() == [not step.of_group for step in steps]
        each = [sum(t for t, step in zip(row, steps, strict=True) if not step.of_group) for row in wanted]
        assert own == (sum(alone.tolist()), pytest.approx(each, rel=1e-12), 40)


def test_a_proof_needs_nothing_of_the_fast_path():
    """One step by hashlib and the reference's ciphers."""
    form = form_of(None, 1)
    key = hashlib.blake2b(form.label().encode(), key=SECRET, digest_size=32, person=b"watermark-v3").digest()
    nonce, second = reference3.window_nonces([7], 24)
    seed = reference3.seed_of(reference3.words_of(key), nonce >> 40)
    draw = reference3.draw(reference3.step_key(seed, BEACON, second), nonce, 9 * 2**32 + 5, False)
    scored, (score,) = form.proof(SECRET).scores(np.array([7, 9], np.uint32), [5], "ngram")
    assert (scored, score) == (1, pytest.approx(-np.log1p(-draw / 2**32), rel=1e-14))

"""Scores of one message a document under version 3, against the reference that is written from the specification."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scanner.watermark import Positions, scored_positions
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel
from scanner.watermark.rule import log10_p_of
from tests.watermark.native3.known3 import BEACON, SECRET, pair
from tests.watermark.pairs import batch_tokens, sum_error
from tests.watermark.strategies import DEDUPS, GAMMAS, documents, few, random_documents, windows

METHODS = ("greenlist", "gumbel", "gumbel-log")
SEEDS = (4, 12, 24, 28)


def same(fast: np.ndarray, plain: list, scored: np.ndarray) -> None:
    for got, wanted, count in zip(fast.tolist(), plain, scored.tolist(), strict=True):
        if isinstance(wanted, int):
            assert got == wanted
        else:
            assert got == wanted or abs(got - wanted) <= sum_error(count, wanted)


@few
@given(
    documents,
    windows,
    st.sampled_from(DEDUPS),
    st.sampled_from(METHODS),
    st.sampled_from(GAMMAS),
    st.sampled_from(SEEDS),
    st.data(),
)
def test_without_groups(docs, window, dedup, method, gamma, seeds, data):
    one = pair(method, window, gamma=gamma, seeds=seeds)
    tokens = batch_tokens(docs)
    positions = scored_positions(tokens, window, dedup)
    messages = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(docs), max_size=len(docs)))
    wanted = [one.plain.scores(doc, message, dedup)[0] for doc, message in zip(docs, messages, strict=True)]
    same(one.fast.score(tokens, positions, np.array(messages, np.int64)), wanted, positions.scored)


@few
@given(
    documents,
    st.integers(1, 16),
    st.sampled_from(DEDUPS),
    st.sampled_from(METHODS),
    st.sampled_from([2, 19, 1026, 65_536]),
    st.sampled_from(SEEDS),
    st.data(),
)
def test_with_groups(docs, window, dedup, method, groups, seeds, data):
    """Both parts of the score, with one message for all documents and with one message for each."""
    one = pair(method, window, groups, seeds=seeds)
    tokens = batch_tokens(docs)
    positions = scored_positions(tokens, window, dedup)
    messages = data.draw(st.lists(st.integers(0, groups**2 - 1), min_size=len(docs), max_size=len(docs)))
    of_group, of_user = one.fast.parts(tokens, positions, np.array(messages, np.int64))
    wanted = [one.plain.scores(doc, message, dedup) for doc, message in zip(docs, messages, strict=True)]
    same(of_group, [group for _, group in wanted], positions.scored)
    same(of_group + of_user, [total for total, _ in wanted], positions.scored)
    steps = one.fast.group_steps(tokens, positions)
    assert steps.tolist() == [step.of_group for doc in docs for step in one.plain.steps(doc, dedup)]
    last = groups**2 - 1
    same(one.fast.score(tokens, positions, last), [one.plain.scores(d, last, dedup)[0] for d in docs], positions.scored)


@pytest.mark.parametrize("seeds", [4, 12])
@pytest.mark.parametrize("groups", [None, 7])
@pytest.mark.parametrize("window", [0, 1, 4])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_texts_of_many_lanes(method, window, groups, seeds):
    """Texts over the edges of vectors and chunks, and what each position adds, in any order."""
    if groups and not window:
        with pytest.raises(ValueError, match="window 1 or more"):
            pair(method, window, groups, seeds=seeds)
        return
    one = pair(method, window, groups, Fraction(3, 8), seeds)
    docs = random_documents(7, (3, 300, 65, 0, 150))
    tokens, message = batch_tokens(docs), 41
    positions = scored_positions(tokens, window, "ngram")
    same(one.fast.score(tokens, positions, message), [one.plain.scores(d, message)[0] for d in docs], positions.scored)
    terms = one.fast.terms(tokens, positions, message)
    steps = [step for doc in docs for step in one.plain.steps(doc)]
    wanted = [one.plain.term(step, one.plain.number(message, step.of_group)) for step in steps]
    assert terms.tolist() == pytest.approx(wanted, rel=1e-14)
    backwards = Positions(positions.index[::-1].copy(), np.array([0, len(terms)]))
    assert one.fast.terms(tokens, backwards, message).tolist() == terms[::-1].tolist()


@pytest.mark.parametrize("groups", [None, 19])
def test_the_draws_that_one_message_meets(groups):
    """The draws are the reference's, step by step, over the edge of a chunk, with a message for each document."""
    one = pair("gumbel", 2, groups)
    docs = random_documents(5, (200, 0, 90), 2**32)
    tokens, messages = batch_tokens(docs), np.array([17, 3, 360], np.int64)
    wanted = [
        one.plain.draw(step, one.plain.number(message, step.of_group))
        for doc, message in zip(docs, messages.tolist(), strict=True)
        for step in one.plain.steps(doc)
    ]
    assert isinstance(one.fast, Version3Gumbel)
    assert one.fast.draws_of(tokens, scored_positions(tokens, 2, "ngram"), messages).tolist() == wanted


def test_secret_beacon_seeds_and_groups_each_change_all_draws():
    """Of 300 draws of 32 bits, two alike in one place have a chance of 300 · 2^-32 < 1e-7."""
    tokens = batch_tokens(random_documents(3, (302,)))
    positions = scored_positions(tokens, 2, "ngram")
    other = bytes([201, *BEACON[1:]])
    marks = [
        Version3Gumbel(SECRET, 2, None, 24, BEACON),
        Version3Gumbel(SECRET, 2, None, 24, other),
        Version3Gumbel(SECRET, 2, None, 23, BEACON),
        Version3Gumbel(SECRET, 2, 9, 24, BEACON),
        Version3Gumbel(bytes(32), 2, None, 24, BEACON),
    ]
    draws = np.array([mark.draws_of(tokens, positions, 1) for mark in marks])
    assert draws.shape == (5, 300)
    for i in range(5):
        for j in range(i):
            assert (draws[i] != draws[j]).all()


def test_a_bucket_has_one_seed_but_windows_that_share_it_share_no_draw():
    mark = pair("gumbel", 1, seeds=4).fast
    tokens = batch_tokens([np.repeat(np.arange(200, dtype=np.uint32), 2)])  # each window twice
    positions = scored_positions(tokens, 1, "none")
    steps, buckets = mark.steps(tokens, positions), mark.buckets(tokens, positions)
    assert set(buckets.tolist()) == set(range(16))
    seeds = {(bucket, *key) for bucket, key in zip(buckets.tolist(), steps.keys[2:].T.tolist(), strict=True)}
    assert len(seeds) == 16  # words 2 to 7 of the keys are the seeds' alone
    assert len(set(mark.draws_of(tokens, positions, 0).tolist())) == 399


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"seeds": 3}, "2\\^3 seeds; allowed: 2\\^4 to 2\\^28"),
        ({"seeds": 29}, "2\\^29 seeds; allowed"),
        ({"beacon": b"short"}, "a beacon R has 32 bytes; this one has 5"),
        ({"groups": 1}, "1 groups, window 2: 2 to 65536 groups"),
    ],
)
def test_what_no_key_can_have(wrong, told):
    with pytest.raises(ValueError, match=told):
        Version3GreenList(SECRET, 2, Fraction(1, 4), **{"groups": None, "seeds": 24, "beacon": BEACON, **wrong})


@pytest.mark.costly
@pytest.mark.parametrize("groups", [None, 19])
@pytest.mark.parametrize("method", ["greenlist", "gumbel"])
def test_scores_of_unmarked_text_have_the_law_over_keys_and_over_messages(method, groups):
    """4,000 keys of 16 seeds each, and 361 messages of 20 keys.

    Kolmogorov-Smirnov at 1e-7 each, with the randomised p of a discrete law. With 16 seeds most windows share theirs.
    """
    generator = np.random.default_rng(11)
    tokens = batch_tokens([generator.integers(0, 40, 90).tolist()])
    mark = pair(method, 2, groups, seeds=4).fast
    positions = scored_positions(tokens, 2, "ngram")
    scores = []
    for number in range(4000):
        one = pair(method, 2, groups, seeds=4, secret=number.to_bytes(32, "little")).fast
        scores.append(float(one.score(tokens, positions, 5)[0]))
    of_messages = []
    for number in range(20):
        one = pair(method, 2, groups, seeds=4, secret=number.to_bytes(31, "little")).fast
        copies = batch_tokens([tokens.ids] * 19)
        own = np.arange(19) * 19 + np.arange(19)  # of different groups, so that no two share a draw
        of_messages.extend(one.score(copies, scored_positions(copies, 2, "ngram"), own).tolist())
    for found in (np.array(scores), np.array(of_messages)):
        scored = np.full(len(found), positions.scored[0])
        p = 10.0 ** log10_p_of(mark.law, found, scored)
        if mark.law.discrete:
            p -= generator.random(len(found)) * (p - 10.0 ** log10_p_of(mark.law, found + 1, scored))
        assert stats.kstest(p, "uniform").pvalue > 1e-7

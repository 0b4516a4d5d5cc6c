"""Marks by levels: scores, searches of all messages, slow paths and null laws, against plain sums over all messages."""

from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from scanner.watermark.by_levels import ByLevels, ByLevelsProof, lacks_for_levels
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels
from scanner.watermark.pvalues import LN10
from scanner.watermark.rule import corrected, search
from tests.watermark.native3.known3 import marked, pair
from tests.watermark.native3.plain_levels import PlainLevels
from tests.watermark.pairs import batch_tokens
from tests.watermark.random_levels import levels_of, texts
from tests.watermark.strategies import random_documents

FORMS: dict[str, dict[str, Any]] = {
    "greenlist-v3": {"window": 3, "gamma": "1/4", "beacon": "5a" * 32},
    "gumbel-v3": {"window": 3, "beacon": "5a" * 32},
}
METHODS = ["greenlist", "gumbel"]
VALUES = np.arange(LEVELS + 1)


def plain_log10_p(method: str, terms: NDArray[np.float64], levels: NDArray[np.uint8]) -> float:
    counts = np.bincount(levels, minlength=LEVELS + 1)[None]
    total = np.array([float(np.dot(levels, terms))])
    if method == "greenlist-v3":
        return float(log10_greenlist_levels(total, counts, VALUES, Fraction(1, 4))[0])
    return float(log10_gumbel_levels(total, counts, VALUES)[0])


@pytest.mark.seconds
@pytest.mark.parametrize("name", FORMS)
def test_scores_and_proofs_are_of_the_sum_by_levels(name: str) -> None:
    form, secret = make_format(name, FORMS[name]), b"a secret of 16 b"
    mark, path = form.open(secret), form.proof(secret)  # type: ignore[attr-defined]
    tokens = texts(5, 120)
    positions = mark.rule.positions(tokens, "ngram")
    weighted = ByLevels(mark, levels_of)
    found, terms = search(weighted, tokens, positions, 1), mark.terms(tokens, positions, 0)  # type: ignore[attr-defined]
    levels = levels_of(tokens)[positions.index]
    for d in range(5):
        part = slice(positions.offsets[d], positions.offsets[d + 1])
        assert found.log10_p[d, 0] == pytest.approx(plain_log10_p(name, terms[part], levels[part]), abs=1e-9)
        ids = tokens.ids[tokens.offsets[d] : tokens.offsets[d + 1]]
        proof = ByLevelsProof(path, levels_of, form)
        scored, (score,) = proof.scores(ids, [0], "ngram")
        assert (scored, score) == (positions.scored[d], pytest.approx(found.score[d, 0], rel=1e-8, abs=1e-8))
        assert proof.log10_p(score, scored) == pytest.approx(found.log10_p[d, 0], rel=1e-8, abs=1e-8)


@pytest.mark.seconds
@pytest.mark.parametrize(("number", "length", "messages"), [(4, 90, 700), (1, 1100, 70), (2, 0, 70), (2, 50, 2)])
@pytest.mark.parametrize("name", FORMS)
def test_a_search_finds_the_best_messages_of_all(name: str, number: int, length: int, messages: int) -> None:
    mark, tokens = make_format(name, FORMS[name]).open(b"a secret of 16 b"), texts(number, length)
    positions = mark.rule.positions(tokens, "ngram")
    weighted = ByLevels(mark, levels_of)
    found = weighted.search(tokens, positions, messages)
    every = np.stack([weighted.score(tokens, positions, message) for message in range(messages)], axis=1)
    best = np.lexsort((np.broadcast_to(np.arange(messages), every.shape), -every), axis=1)[:, :2]
    assert found.independent
    assert found.user_evidence is None
    assert found.message[:, :2].tolist() == best.tolist()
    assert found.score[:, :2] == pytest.approx(np.take_along_axis(every, best, axis=1))
    rare = every >= np.log(messages)
    assert [set(row[row >= 0]) >= set(np.flatnonzero(wanted)) for row, wanted in zip(found.message, rare, strict=True)]


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("method", METHODS)
def test_a_search_of_groups_finds_what_the_reference_finds(method: str) -> None:
    """In unmarked texts and such as are marked for users of one group and of ten."""
    groups = 12
    one = pair(method, 1, groups, seeds=6)
    pieces = [marked(one.fast, 12 * group + 3, 22, 16, seed=group) for group in range(10)]
    docs = [*random_documents(5, (0, 1, 2, 2, 3, 5, 9, 40), 60), pieces[3], pieces[0] + pieces[5], list(chain(*pieces))]
    tokens = batch_tokens(docs)
    positions = one.fast.rule.positions(tokens, "ngram")
    levels = levels_of(tokens)
    found = ByLevels(one.fast, levels_of).search(tokens, positions, groups**2)
    assert found.user_evidence is not None
    assert found.user_evidence.messages == groups
    looked_into = []
    for d, (begin, end) in enumerate(zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)):
        wanted = PlainLevels(one.plain, levels[begin:end].tolist()).search(docs[d])
        there = found.message[d] >= 0
        assert found.message[d][there].tolist() == [candidate.message for candidate in wanted]
        for score, p in (
            (found.score[d][there], [candidate.log10_p for candidate in wanted]),
            (found.user_evidence.score[d][there], [candidate.log10_p_user for candidate in wanted]),
        ):
            assert (-score / LN10).tolist() == pytest.approx(p, rel=1e-9, abs=1e-9)
            assert (-score / LN10 >= np.array(p) - 1e-12 * np.abs(p)).all()  # never too small
        assert found.user_evidence.scored[d] == sum(not step.of_group for step in one.plain.steps(docs[d]))
        assert (found.score[d][~there] == 0.0).all()
        looked_into.append(len(wanted))
    assert max(looked_into) > 2
    assert found.message[8, 0] == 39


@pytest.mark.seconds
@pytest.mark.parametrize("name", FORMS)
def test_proofs_of_users_by_levels_agree_with_the_search(name: str) -> None:
    groups = 40
    form = make_format(name, FORMS[name] | {"groups": groups})
    mark, path = form.open(b"a secret of 16 b"), form.proof(b"a secret of 16 b")  # type: ignore[attr-defined]
    tokens = texts(3, 90, seed=3)
    weighted = ByLevels(mark, levels_of)
    positions = mark.rule.positions(tokens, "ngram")
    found = weighted.search(tokens, positions, groups**2)
    again = weighted.user_evidence(tokens, positions, found.message[:, 0])
    assert found.user_evidence is not None
    assert again is not None
    assert again.score.ravel().tolist() == found.user_evidence.score[:, 0].tolist()
    proof = ByLevelsProof(path, levels_of, form)
    for d in range(3):
        messages = found.message[d][found.message[d] >= 0].tolist()
        ids = tokens.ids[tokens.offsets[d] : tokens.offsets[d + 1]]
        scored, own, tests = proof.user_evidence(ids, messages, "ngram")  # type: ignore[misc]
        assert (scored, tests) == (found.user_evidence.scored[d], groups)
        assert own == pytest.approx(found.user_evidence.score[d][found.message[d] >= 0].tolist(), rel=1e-8, abs=1e-8)
        _, whole = proof.scores(ids, messages, "ngram")
        assert whole == pytest.approx(found.score[d][found.message[d] >= 0].tolist(), rel=1e-8, abs=1e-8)


def test_what_cannot_be_scored_by_levels_says_why() -> None:
    assert lacks_for_levels(make_format("gumbel-v3", {"window": 4}), 1000) == ""
    assert lacks_for_levels(make_format("greenlist-v3", {"window": 4, "gamma": "1/4", "groups": 9}), 81) == ""
    assert "share draws" in lacks_for_levels(make_format("gumbel", {"window": 4}), 1000)
    assert "does not say what each token adds" in lacks_for_levels(make_format("hf-lefthash", {"vocab_size": 9}), 1)


@pytest.mark.costly
@pytest.mark.parametrize("name", FORMS)
def test_fresh_keys_reach_each_rate_as_often_as_it_says(name: str) -> None:
    """4,000 keys on 5 texts each; levels do not depend on keys. Counts are binomial; 1e-7 on each side of each."""
    form, rng = make_format(name, FORMS[name]), np.random.default_rng(11)
    tokens, found = texts(5, 60, seed=5), []
    for _ in range(4_000):
        mark = form.open(rng.bytes(16))
        positions = mark.rule.positions(tokens, "ngram")
        weighted = ByLevels(mark, levels_of)
        found.append(corrected(search(weighted, tokens, positions, 1).log10_p[:, 0], 1))
    log10_p = np.concatenate(found)
    for rate in (0.5, 0.1, 0.01, 0.001):
        hits = (log10_p <= np.log10(rate)).sum()
        assert special.bdtrc(hits - 1, len(log10_p), rate) > 1e-7
        if name != "greenlist-v3":
            assert special.bdtr(hits, len(log10_p), rate) > 1e-7


@pytest.mark.costly
@pytest.mark.parametrize("name", FORMS)
def test_searches_under_fresh_keys_reach_no_rate_more_often_than_it_says(name: str) -> None:
    """3,000 keys of 49 messages in groups on 2 texts each: what is found, corrected for all messages; 1e-7 as above."""
    groups, rng = 7, np.random.default_rng(12)
    form = make_format(name, FORMS[name] | {"groups": groups})
    tokens, found = texts(2, 60, seed=6), []
    for _ in range(3_000):
        mark = form.open(rng.bytes(16))
        positions = mark.rule.positions(tokens, "ngram")
        of_key = search(ByLevels(mark, levels_of), tokens, positions, groups**2)
        found.append(of_key.log10_p_global[:, 0])
    log10_p = np.concatenate(found)
    for rate in (0.5, 0.1, 0.01, 0.001):
        assert special.bdtrc((log10_p <= np.log10(rate)).sum() - 1, len(log10_p), rate) > 1e-7

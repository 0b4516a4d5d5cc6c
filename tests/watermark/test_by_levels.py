"""Marks by levels: scores, searches of all messages, slow paths and null laws, against plain sums over all messages."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scanner.watermark.by_levels import ByLevels, ByLevelsProof, lacks_for_levels
from scanner.watermark.formats import make_format
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels
from scanner.watermark.native.gumbel_runs import level_sums
from scanner.watermark.native.level_runs import LONGEST_BOUNDED_BY_LEVELS, largest_sums
from scanner.watermark.rule import corrected, search
from tests.watermark.random_levels import levels_of, texts

FORMS: dict[str, dict[str, Any]] = {
    "greenlist-v2": {"window": 3, "gamma": "1/4"},
    "gumbel-v2": {"window": 3},
}
VALUES = np.arange(LEVELS + 1)


def plain_log10_p(method: str, terms: NDArray[np.float64], levels: NDArray[np.uint8]) -> float:
    counts = np.bincount(levels, minlength=LEVELS + 1)[None]
    total = np.array([float(np.dot(levels, terms))])
    if method == "greenlist-v2":
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
@pytest.mark.parametrize(("number", "length", "messages"), [(4, 90, 700), (1, LONGEST_BOUNDED_BY_LEVELS + 80, 70)])
@pytest.mark.parametrize("name", ["greenlist-v2", "gumbel-v2"])
def test_a_search_finds_the_best_messages_of_all(name: str, number: int, length: int, messages: int) -> None:
    mark, tokens = make_format(name, FORMS[name]).open(b"a secret of 16 b"), texts(number, length)
    positions = mark.rule.positions(tokens, "ngram")
    weighted = ByLevels(mark, levels_of)
    found = weighted.search(tokens, positions, messages)
    every = np.stack([weighted.score(tokens, positions, message) for message in range(messages)], axis=1)
    best = np.lexsort((np.broadcast_to(np.arange(messages), every.shape), -every), axis=1)[:, :2]
    assert found.message[:, :2].tolist() == best.tolist()
    assert found.score[:, :2] == pytest.approx(np.take_along_axis(every, best, axis=1))
    rare = every >= np.log(messages)
    assert [set(row[row >= 0]) >= set(np.flatnonzero(wanted)) for row, wanted in zip(found.message, rare, strict=True)]


@pytest.mark.parametrize("scored", [1, 16, 17, 448, 449, LONGEST_BOUNDED_BY_LEVELS, LONGEST_BOUNDED_BY_LEVELS + 1])
def test_bounds_of_sums_are_never_smaller_and_little_larger(scored: int) -> None:
    """A logarithm is too large by 0.0861 binary digits at most, one of LANES products likewise, and bits cut off."""
    rng, numbers = np.random.default_rng(scored), np.arange(100)
    key, ids = rng.integers(0, 2**32, 8, np.uint32), rng.integers(0, 2**20, scored, np.uint32)
    nonces, levels = rng.integers(0, 2**64, scored, np.uint64), rng.integers(1, LEVELS + 1, scored).astype(np.uint8)
    exact = level_sums(key, ids, nonces, levels, 64 + numbers)
    bounds = largest_sums(key, ids, nonces, levels, 64, len(numbers))
    assert (bounds >= exact).all()
    assert (bounds <= exact + (0.0861 + 2.0**-11) * np.log(2.0) * levels.sum() + 0.1).all()


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["greenlist-v2", "gumbel-v2"])
def test_a_search_of_groups_looks_into_the_best_group_and_rare_ones(name: str) -> None:
    groups = 40
    form = make_format(name, FORMS[name] | {"groups": groups})
    mark, path = form.open(b"a secret of 16 b"), form.proof(b"a secret of 16 b")  # type: ignore[attr-defined]
    tokens = texts(3, 90, seed=3)
    positions = mark.rule.positions(tokens, "ngram")
    weighted, levels = ByLevels(mark, levels_of), levels_of(tokens)[positions.index]
    found = weighted.search(tokens, positions, groups**2)
    assert found.user_evidence is not None
    shared = mark.group_steps(tokens, positions)
    proof = ByLevelsProof(path, levels_of, form)
    for d in range(3):
        part = slice(positions.offsets[d], positions.offsets[d + 1])

        def log10_p(message: int, mask: NDArray[np.bool_], part: slice = part) -> float:
            terms = mark.terms(tokens, positions, message)[part]
            return plain_log10_p(name, terms[mask[part]], levels[part][mask[part]])

        of_groups = [log10_p(group * groups, shared) for group in range(groups)]
        wanted = {int(np.argmin(of_groups))} | {g for g, p in enumerate(of_groups) if p <= -np.log10(groups)}
        messages = found.message[d][found.message[d] >= 0].tolist()
        assert {message // groups for message in messages} == wanted
        for message in messages:
            group = message // groups
            users = [log10_p(group * groups + user, ~shared) for user in range(groups)]
            assert message % groups == int(np.argmin(users))
        ids = tokens.ids[tokens.offsets[d] : tokens.offsets[d + 1]]
        scored, own, tests = proof.user_evidence(ids, messages, "ngram")  # type: ignore[misc]
        assert (scored, tests) == (found.user_evidence.scored[d], groups)
        assert own == pytest.approx(found.user_evidence.score[d][found.message[d] >= 0].tolist(), rel=1e-8, abs=1e-8)


def test_what_cannot_be_scored_by_levels_says_why() -> None:
    assert lacks_for_levels(make_format("gumbel-v2", {"window": 4}), 1000) == ""
    assert "share draws" in lacks_for_levels(make_format("gumbel", {"window": 4}), 1000)
    assert "does not say what each token adds" in lacks_for_levels(make_format("hf-lefthash", {"vocab_size": 9}), 1)


@pytest.mark.costly
@pytest.mark.parametrize("name", FORMS)
def test_fresh_keys_reach_each_rate_as_often_as_it_says(name: str) -> None:
    """4,000 keys on 5 texts each; levels do not depend on keys. Counts are binomial; five standard errors of each."""
    form, rng = make_format(name, FORMS[name]), np.random.default_rng(11)
    tokens, found = texts(5, 60, seed=5), []
    for _ in range(4_000):
        mark = form.open(rng.bytes(16))
        positions = mark.rule.positions(tokens, "ngram")
        weighted = ByLevels(mark, levels_of)
        found.append(corrected(search(weighted, tokens, positions, 1).log10_p[:, 0], 1))
    log10_p = np.concatenate(found)
    for rate in (0.5, 0.1, 0.01, 0.001):
        hits, expected = (log10_p <= np.log10(rate)).sum(), rate * len(log10_p)
        assert hits <= expected + 5.0 * np.sqrt(expected)
        if name != "greenlist-v2":
            assert hits >= expected - 5.0 * np.sqrt(expected)

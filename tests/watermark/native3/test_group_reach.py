"""How often a search of groups finds small p-values, against searches of random text under the real cipher."""

import numpy as np
import pytest

from scanner.watermark import Tokens, scored_positions
from scanner.watermark.formats import make_format

GROUPS, DOCUMENTS, KEYS = 20, 400, 5
P = np.array([1e-2, 1e-3, 1e-4])


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("length", [24, 120])
@pytest.mark.parametrize("gamma", ["1/4", None])
def test_as_many_are_found_as_expected(gamma, length):
    """2,000 texts of 400 messages each: those of groups that the search looked into, within four standard errors."""
    form = make_format(
        "gumbel-v3" if gamma is None else "greenlist-v3",
        {"window": 1, "groups": GROUPS, "beacon": "00" * 32} | ({} if gamma is None else {"gamma": gamma}),
    )
    random, found, expected = np.random.default_rng(5), [], []
    for _ in range(KEYS):
        ids = random.integers(0, 50_000, DOCUMENTS * length).astype(np.uint32)
        tokens = Tokens(ids, np.arange(0, len(ids) + 1, length))
        positions, mark = scored_positions(tokens, 1, "ngram"), form.open(random.bytes(32))
        scores = np.stack([mark.score(tokens, positions, message) for message in range(GROUPS**2)], axis=1)
        hits = form.law().log10_p(scores, positions.scored[:, None])[..., None] <= np.log10(P)
        message = mark.search(tokens, positions, GROUPS**2).message
        looked_into = (message[:, :, None] // GROUPS == np.arange(GROUPS)).any(axis=1)
        found.append((hits & np.repeat(looked_into, GROUPS, axis=1)[..., None]).sum(axis=1))
        expected.append(GROUPS**2 * form.found_chance(positions.scored, P))
    counts, chances = np.concatenate(found), np.concatenate(expected)
    error = counts.std(axis=0) / np.sqrt(len(counts))
    assert (np.abs(counts.mean(axis=0) - chances.mean(axis=0)) <= 4 * error).all()
    assert (chances.mean(axis=0) < 0.8 * GROUPS**2 * P)[:2].all()


def test_without_groups_every_message_is_found():
    form = make_format("gumbel-v3", {"window": 1})
    assert (form.found_chance(np.array([5, 500]), P) == P).all()

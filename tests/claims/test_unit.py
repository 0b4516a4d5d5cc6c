"""The unit of a claim: p of each window is the one that whoever checks the claim computes."""

from types import SimpleNamespace

import numpy as np
import pytest

from scanner.claims.unit import Unit, _log10_p, _steps
from scanner.evidence.check_claim import chosen_of, corrected_p, leaf_of, places_in, windows_of
from scanner.registry.key_records import read_record
from tests.support.claiming import MESSAGE, make_registry
from tests.support.forged_claims import Forger
from tests.support.opened import opened

TOKENS, SHARE = 1500, 0.25


def with_groups(checker, ngrams, fields):
    """Return log10 p of the larger of both rules, as the script that checks claims computes it."""
    own = [ngram for ngram in ngrams if not checker.is_shared(ngram)]
    both = ((ngrams, 2500), (own, checker.groups))
    return max(
        corrected_p(checker.log10_p(checker.score(rows, MESSAGE), len(rows)), number, fields) for rows, number in both
    )


@pytest.mark.parametrize("method", ["greenlist-v3", "gumbel-v3"])
def test_p_of_each_window_is_that_of_whoever_checks_the_claim(tmp_path, words, method):
    """Of a text with marked and repeated words, some of whose seeds were shown."""
    registry = make_registry(tmp_path / "registry", method)
    (opened_key,) = opened(registry)
    forger = Forger(tmp_path / "forged", registry, "", MESSAGE)
    text, checker = forger.mark_words(words, MESSAGE, 160, 1), forger.mark()
    marked, drawn = opened_key.tokenizer.reference.encode_with_offsets(text)[0], np.random.default_rng(1)
    repeats = drawn.choice(words.tokens, 40)
    ids = np.concatenate([repeats, marked, repeats, drawn.choice(words.tokens, TOKENS), marked]).astype(np.uint32)
    h, tokens = checker.window, ids.tolist()
    shown = np.unique([checker.bucket(tuple(tokens[at - h : at + 1])) for at in range(50, 90)])
    checker.known = frozenset(leaf_of(checker.seed(bucket)) for bucket in shown.tolist())
    counted = places_in(checker, tokens, 0, len(tokens))
    windows = sorted((counted[b] - h, counted[e - 1] + 1) for b, e in windows_of(len(counted)) if e > b)[::3]
    windows += [(0, len(tokens)), (0, len(tokens) - 1)]
    fields = {"parts": len(windows), "correction": 1 / SHARE}
    expected = []
    for begin, end in windows:
        chosen = chosen_of(checker, tokens, places_in(checker, tokens, begin, end))
        expected.append(with_groups(checker, [tuple(tokens[at - h : at + 1]) for at in chosen], fields))
    record = read_record(registry, opened_key.key)[0]
    record = record.model_copy(update={"looks": {"parts/1": SHARE}})
    steps, before = _steps(opened_key, record, ids, MESSAGE), SimpleNamespace(buckets=shown)
    units = [Unit(begin, end, None, "span", len(windows)) for begin, end in windows]
    found = _log10_p(opened_key, record, steps, before, units)
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert (min(expected) < -15, max(expected) > -1, len(counted) > 1500) == (True, True, True)

"""What a filter learns: by the length of texts and by accounts, and by nothing that any key says of them."""

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection.open_plan import open_keys
from scanner.detection.rows import TextIds
from scanner.ngram_filter import common_ngrams
from scanner.ngram_filter.common_ngrams import CommonNgrams
from scanner.ngram_filter.learner import Learner
from scanner.registry import load_registry

pytestmark = pytest.mark.seconds

LEAST = 16


@pytest.fixture
def tests(registry, monkeypatch):
    monkeypatch.setattr(common_ngrams, "CELLS_OF_A_ROW", 1 << 15)
    return [test for test in open_keys(registry, load_registry(registry).keys) if test.key.key_id == "green"]


def left_out(tests, texts, accounts, looked_at, *, by_account=True) -> int:
    """How many positions of a text are left out by what was learnt from others."""
    ids = TextIds(b"a secret of the audit, of 32 byte"[:32])
    learner = Learner(tests, ids, 1.0, 1 << 20, LEAST, by_account=by_account)
    learner.learn(pa.array([text.encode() for text in texts], pa.large_binary()), pa.array(accounts, pa.string()))
    ((_, sketch),) = learner.sketches
    tokens = tests[0].tokenizer.encode([looked_at])
    positions = tests[0].watermark.rule.positions(tokens, "ngram")
    kept = CommonNgrams(sketch.reach, learner.key, sketch.common(LEAST)).without(tokens, positions)
    return int(positions.scored[0] - kept.scored[0])


def test_texts_shorter_than_what_is_scored_teach_nothing(tests, plain):
    """480 posts, each too short to be scored, cannot make the n-grams of a long text common."""
    words = plain(200, 1).split()
    pieces = [" " + " ".join(words[i : i + 12]) for i in range(180)]
    posts = [f"{piece} {number}" for piece in pieces for number in range(3)]
    assert left_out(tests, posts, [None] * len(posts), " " + " ".join(words), by_account=False) == 0
    longer = [" " + " ".join(words[i : i + 40]) for i in range(160)]
    assert left_out(tests, longer, [None] * len(longer), " " + " ".join(words), by_account=False) > 100


def test_texts_of_one_account_count_once(tests, plain):
    shared = plain(60, 1)
    texts = [plain(30, 100 + i) + shared for i in range(64)]
    many = [f"account {i}" for i in range(64)]
    assert left_out(tests, texts, ["one"] * 64, shared) == 0
    assert left_out(tests, texts, many, shared) > 40
    assert left_out(tests, texts, [None] * 64, shared, by_account=False) > 40  # an input without accounts counts texts
    assert left_out(tests, texts, [None] * 64, shared) == 0  # posts without an account may all be one person's


def test_what_is_learnt_depends_on_no_key(tests, plain, marked, registry):
    """Sketches are a function of earlier texts and accounts: other keys, scores and flags change no bit of them."""
    texts = [marked(3, 60, i) for i in range(20)] + [plain(60, i) for i in range(20)]
    stored = pa.array([text.encode() for text in texts], pa.large_binary())
    found = []
    for others in (tests, [_blind(test) for test in tests]):
        learner = Learner(others, TextIds(bytes(32)), 0.5, 1 << 20, LEAST, by_account=False)
        learner.learn(stored, pa.nulls(len(texts), pa.string()))
        found.append([sketch.cells for _, sketch in learner.sketches])
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
    assert found[0][0].any()


def test_texts_are_counted_for_each_tokenizer(registry, monkeypatch):
    """An admission asks from how many texts a filter was learnt: ten words are many bytes, and too few tokens."""
    monkeypatch.setattr(common_ngrams, "CELLS_OF_A_ROW", 1 << 15)
    keys = open_keys(registry, load_registry(registry).keys)
    learner = Learner(keys, TextIds(bytes(32)), 1.0, 1 << 20, LEAST, by_account=False)
    short = " ".join(["number"] * 10)
    learner.learn(pa.array([f"{short} {i}".encode() for i in range(9)], pa.large_binary()), pa.nulls(9, pa.string()))
    of_key = {test.key.key_id: test.key.tokenizer.sha256 for test in keys}
    learnt = {name: texts for (name, _), texts in zip(learner.sketches, learner.texts, strict=True)}
    assert (learnt[of_key["green"]], learnt[of_key["gum"]]) == (0, 9)


def _blind(test):
    """A key under test whose mark knows its rule and nothing else: whatever asks it for a score fails."""

    class Rule:
        rule = test.watermark.rule

    return type(test)(test.key, Rule(), test.tokenizer, test.to_device)

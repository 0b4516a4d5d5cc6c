"""Flags are computed again before their rows are committed: right ones are proved, and every sabotage is caught."""

import dataclasses
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection import attribution, proving
from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_keys, open_prover
from scanner.detection.rules import Rules
from scanner.registry import Holders, load_registry, new_key
from scanner.watermark import GreenList, Tokens, rule
from scanner.watermark.formats import FORMATS
from scanner.watermark.laws import Binomial
from scanner.watermark.positions import WholeWindows
from schemas.tables import DOCUMENTS
from tests.support.toy import ToyFormat
from tests.support.two_keys import TOKENIZER, message_of

RATE = 1e-6
ORIGIN = BatchOrigin("scan", "shard", "/in/a.parquet")


@pytest.fixture(scope="module")
def tests(registry):
    """The key `green`, opened, with the reference tokenizer."""
    return open_keys(registry, [key for key in load_registry(registry).keys if key.key_id == "green"], fast=False)


@pytest.fixture
def rows(registry, tests):
    """Gives the verdicts on texts, by a detector that is made at each call."""

    def make(texts: list[str], under_test=None, rate: float = RATE) -> list[dict]:
        under_test = under_test or tests
        holders = Holders.load(registry, [test.key.key_id for test in tests])
        rules = Rules(rate, len(under_test))
        prover = open_prover(registry, tests, rules)
        documents = [{"row": i, "text": text.encode()} for i, text in enumerate(texts)]
        verdicts, *_ = Detector(under_test, holders, rules, prover).score_batch(
            pa.RecordBatch.from_pylist(documents, DOCUMENTS), ORIGIN
        )
        verdicts.validate(full=True)
        return verdicts.to_pylist()

    return make


def told(rows: list[dict]) -> list[tuple]:
    return [(row["naming"], row["user_id"], row["proof"]) for row in rows]


PROVED, DIFFERS = ("named", "alice", "proved"), ("unproved", None, "differs")


@pytest.fixture
def night(registry, marked, plain) -> list[str]:
    """Two texts of alice, one of alice and bob, and two of nobody."""
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    both = marked(alice, 80, 3) + marked(bob, 80, 4)
    return [marked(alice, 60, 1), plain(60, 1), marked(alice, 90, 2), both, plain(3, 2)]


def test_what_is_right_is_proved(rows, night):
    found = rows(night)
    assert told(found) == [PROVED, ("none", None, None), PROVED, ("ambiguous", None, "proved"), ("none", None, None)]
    assert [row["flagged"] for row in found] == [True, False, True, True, False]


def test_rounding_is_no_difference(rows, night, monkeypatch):
    law = Binomial.log10_p
    monkeypatch.setattr(Binomial, "log10_p", lambda *arguments: law(*arguments) * (1 + 1e-12))
    assert told(rows(night))[0] == PROVED


def flag_what_is_plain(monkeypatch):
    """The kernel raises the best message's score by half of the positions, up to all."""
    plain = GreenList.search

    def wrong(self, tokens, positions, count):
        found = plain(self, tokens, positions, count)
        score = found.score.copy()
        score[:, 0] = np.minimum(score[:, 0] + positions.scored // 2, positions.scored)
        return found._replace(score=score)

    monkeypatch.setattr(GreenList, "search", wrong)


def name_another_message(monkeypatch):
    """Message and runner-up change places, with their scores."""
    plain = GreenList.search

    def wrong(self, tokens, positions, count):
        found = plain(self, tokens, positions, count)
        return found._replace(message=found.message[:, ::-1].copy())

    monkeypatch.setattr(GreenList, "search", wrong)


def see_no_second(monkeypatch):
    """Where two messages pass, the better one is taken for the only one."""
    plain = attribution.decide

    def wrong(*arguments):
        decided = plain(*arguments)
        decided.naming[decided.flagged] = "named"
        return decided

    monkeypatch.setattr(attribution, "decide", wrong)


def lose_the_correction(monkeypatch):
    monkeypatch.setattr(rule, "corrected", lambda log10_p, *_: np.asarray(log10_p))


def make_p_too_small(monkeypatch):
    law = Binomial.log10_p
    monkeypatch.setattr(Binomial, "log10_p", lambda *arguments: law(*arguments) * 1.001)


def count_repeats(monkeypatch):
    plain = WholeWindows.positions
    monkeypatch.setattr(WholeWindows, "positions", lambda self, tokens, _: plain(self, tokens, "none"))


@pytest.mark.parametrize(
    ("sabotage", "wrong"),
    [
        (flag_what_is_plain, {1}),
        (name_another_message, {0, 2, 3}),
        (see_no_second, {3}),
        (lose_the_correction, {0, 2, 3}),
        (make_p_too_small, {0, 2, 3}),
        (count_repeats, {5}),
    ],
)
def test_what_flags_wrongly_is_caught(rows, night, plain, marked, registry, monkeypatch, sabotage, wrong):
    """Every wrong flag names nobody, and stays in the table as it was found."""
    alice = message_of(registry, "green", "alice")
    night = [*night, marked(alice, 60, 7) + " is said again" * 9]
    right = rows(night)
    sabotage(monkeypatch)
    found = rows(night)
    assert wrong <= {i for i, row in enumerate(found) if row["flagged"]}
    assert {i for i, row in enumerate(found) if row["naming"] == "unproved"} >= wrong
    for i, row in enumerate(found):
        assert (row["naming"] == "unproved") == (row["proof"] == "differs")
        if row["naming"] == "unproved":
            assert (row["user_id"], row["held_since"], row["first_seen_at"]) == (None, None, None)
            assert row["flagged"]
        else:
            assert told([row]) == told([right[i]])


class Careless:
    """A tokenizer that loses the last token of a text, beside the reference that does not."""

    def __init__(self, reference) -> None:
        self.reference, self.vocab_size = reference, reference.vocab_size

    def encode(self, texts) -> Tokens:
        parts = [self.reference.encode([text]).ids[:-1] for text in texts]
        return Tokens(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))


def test_another_tokenizer_is_caught(rows, tests, night):
    careless = [dataclasses.replace(test, tokenizer=Careless(test.tokenizer)) for test in tests]
    assert told(rows(night, careless))[0] == DIFFERS


def test_of_too_many_a_sample_is_drawn(rows, marked, registry, monkeypatch):
    """The sample has as many flags as the cap allows, the same ones in every run and order."""
    alice = message_of(registry, "green", "alice")
    texts = [marked(alice, 60, seed) for seed in range(12)]
    assert {row["proof"] for row in rows(texts)} == {"proved"}
    a_flag = 60 + proving.TOKENS_A_FLAG
    monkeypatch.setattr(proving, "TOKENS_PROVED", 5 * a_flag + a_flag // 2)
    found = rows(texts)
    assert Counter(row["proof"] for row in found) == {"proved": 5, "not drawn": 7}
    assert {(row["naming"], row["user_id"]) for row in found} == {("named", "alice")}
    again = rows(texts[::-1])[::-1]
    assert [row["proof"] for row in again] == [row["proof"] for row in found]
    monkeypatch.setattr(proving, "LONGEST_PROVED", 50)
    assert {row["proof"] for row in rows(texts)} == {"not drawn"}


def test_a_format_that_offers_no_proof_says_so(tmp_path, words, monkeypatch):
    monkeypatch.setitem(FORMATS, ToyFormat.name, ToyFormat)
    key = new_key(tmp_path, "toy", format=ToyFormat.name, salt=3, messages=1, tokenizer=TOKENIZER)
    tests = open_keys(tmp_path, [key], fast=False)
    mark = tests[0].watermark
    counting = [word for word, token in zip(words.words, words.tokens, strict=True) if mark.counts(token)]
    rules = Rules(RATE, 1)
    prover = open_prover(tmp_path, tests, rules)
    document = pa.RecordBatch.from_pylist([{"row": 0, "text": " ".join(counting[:60]).encode()}], DOCUMENTS)
    verdicts, *_ = Detector(tests, Holders.load(tmp_path, ["toy"]), rules, prover).score_batch(document, ORIGIN)
    assert verdicts["flagged"].to_pylist() == [True]
    assert verdicts["proof"].to_pylist() == ["not offered"]

"""Weights of keys: fixed for ever, at most 1 together; a text is ever flagged falsely no more often than promised."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.detection.one_text import TextCheck, check_text
from scanner.detection.open_plan import open_keys, open_prover
from scanner.detection.rules import Rules
from scanner.errors import Refused
from scanner.registry import Holders, add_users, clock, load_registry, new_key, registry_sha256
from scanner.registry.keys import SETTING_UP, with_weights
from scanner.scan_plan import keys_tested
from scanner.watermark import log10_greenlist
from scanner.watermark.rule import corrected
from schemas.registry import MasterKey, TokenizerFile
from schemas.tables import DOCUMENTS
from tests import reference
from tests.fixed import fix_secrets
from tests.support.command_line import call
from tests.support.two_keys import TOKENIZER, marked_text, message_of

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def key(number: int, after: timedelta) -> MasterKey:
    return MasterKey(
        key_id=f"k{number}",
        format="gumbel",
        parameters={"window": 4},
        messages=10,
        tokenizer=TokenizerFile(file="t.json", sha256="a" * 64),
        secret="env:SECRET",
        commitment="b" * 64,
        created_at=BEGAN + after,
    )


def registry_of(first: int, later: int) -> list[tuple[MasterKey, ...]]:
    """The keys after each new key: `first` keys come on the first day, then one a day."""
    made: list[tuple[MasterKey, ...]] = [()]
    for number in range(first + later):
        day = timedelta(hours=number) if number < first else timedelta(days=1 + number)
        made.append(with_weights(made[-1], key(number, day), lambda _: True))
    return made


@pytest.mark.parametrize("first", [1, 2, 5])
def test_weights_are_fixed_when_the_first_later_key_comes_and_sum_to_one_at_most(first):
    made = registry_of(first, 200)
    assert all(one.one_of is None for one in made[first])
    assert [one.one_of for one in made[first + 3]] == [2 * first] * first + [4, 12, 24]
    final = {one.key_id: one.one_of for one in made[-1]}
    for then in made[first + 1 :]:
        assert {one.key_id: one.one_of for one in then}.items() <= final.items()
    whole = sum(Fraction(1, one.one_of) for one in made[-1])
    assert 1 - Fraction(1, 2 * 200) < whole + Fraction(1, 2 * 100) <= 1 + Fraction(1, 2 * 100)


def test_the_setting_up_ends_to_the_moment():
    one = (key(0, timedelta(0)),)
    within = with_weights(one, key(1, SETTING_UP - timedelta(microseconds=1)), lambda _: True)
    assert [k.one_of for k in within] == [None, None]
    assert [k.one_of for k in with_weights(one, key(1, SETTING_UP), lambda _: True)] == [2, 4]


def test_keys_without_p_values_have_no_weight_and_count_for_none():
    first = (key(0, timedelta(0)), key(1, timedelta(0)))
    made = with_weights(first, key(2, timedelta(days=9)), lambda k: k.key_id != "k1")
    assert [k.one_of for k in made] == [2, None, 4]
    assert [k.one_of for k in with_weights(first, key(2, timedelta(days=9)), lambda k: k.key_id != "k2")] == [None] * 3


def test_nothing_is_left_where_weights_were_edited():
    one = (key(0, timedelta(0)).model_copy(update={"one_of": 1}),)
    with pytest.raises(Refused, match="none is left for another"):
        with_weights(one, key(1, timedelta(days=9)), lambda _: True)


def one_rate(alpha: float, k: int) -> float:
    """The largest p-value that passes after the corrections of a scan, by bisection of log10 p."""
    low, high = -40.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if corrected(middle, 1, k) <= np.log10(alpha) else (low, middle)
    return 10**low


@pytest.mark.parametrize("first", [1, 4])
def test_a_text_is_ever_flagged_falsely_no_more_often_than_promised(first):
    """The exact chance for a document scanned under each new key. If all keys shared anew, it would be too high."""
    alpha, made = 1e-3, registry_of(first, 60)
    quiet = np.prod([1 - one_rate(alpha, one.one_of) for one in made[-1]])
    assert 1 - quiet <= alpha * (1 + 1e-9)
    anew = np.prod([1 - one_rate(alpha, n) for n in range(1, first + 61)])
    assert 1 - anew > 3 * alpha


@pytest.fixture
def grown(tmp_path, monkeypatch):
    """A registry begun with the key `green`, to which `late` came a month later; alice holds a message of `green`."""
    folder = tmp_path / "registry"
    fix_secrets(folder, "green", "late")
    how = {"format": "greenlist", "window": 2, "gamma": "1/4", "messages": 2000, "tokenizer": TOKENIZER}
    new_key(folder, "green", **how)
    add_users(folder, None, ["alice"])
    before = registry_sha256(load_registry(folder))

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=30)

    monkeypatch.setattr(clock, "datetime", Later)
    late = new_key(folder, "late", **how)
    monkeypatch.undo()
    assert late.one_of == 4
    assert registry_sha256(load_registry(folder)) != before
    return folder


def test_each_key_is_corrected_by_its_own_weight_and_its_flags_are_proved(grown, words):
    registry = load_registry(grown)
    assert [one.one_of for one in registry.keys] == [2, 4]
    tests = open_keys(grown, registry.keys, fast=False)
    rules = Rules(1e-6, keys_tested(registry))
    detector = Detector(tests, Holders.load(grown, ["green", "late"]), rules, open_prover(grown, tests, rules))
    text = marked_text(grown, words)(message_of(grown, "green", "alice"), 60, 1)
    documents = pa.RecordBatch.from_pylist([{"row": 0, "text": text.encode()}], DOCUMENTS)
    (row,) = detector.score_batch(documents, BatchOrigin("s", "s", "p"))[0].to_pylist()
    assert (row["key_id"], row["user_id"], row["proof"], row["correction"]) == ("green", "alice", "proved", 2)
    own = float(log10_greenlist(int(row["score"]), row["scored"], 1 / 4))
    assert row["log10_p"] == pytest.approx(own, rel=1e-12)
    assert row["log10_p_global"] == pytest.approx(reference.log10_any_of(own, 2000 * 2), rel=1e-9)

    of_key = check_text(TextCheck.of_registry(grown, (), 1e-6), text.encode())
    assert [one["correction"] for one in of_key] == [4, 8]  # half of a key's weight is for parts of the text
    assert of_key[0]["log10_p"] == row["log10_p"]
    for one in of_key:
        whole = reference.log10_any_of(one["log10_p"], 2000 * one["correction"])
        assert one["log10_p_global"] == pytest.approx(whole, rel=1e-9)
    out = call("keys", "list", "--registry", grown)[1]
    assert "weight 1/2 of a false-positive rate" in out
    assert "weight 1/4 of a false-positive rate" in out


def test_weights_that_were_edited_are_refused(grown):
    text = (grown / "keys.toml").read_text()
    (grown / "keys.toml").write_text(text.replace("one_of = 4", "one_of = 1"))
    with pytest.raises(Refused, match="sum to more than 1"):
        load_registry(grown)
    (grown / "keys.toml").write_text(text.replace("one_of = 4\n", ""))
    with pytest.raises(Refused, match=r"keys\.1: has no weight \(one_of\), but other keys have"):
        load_registry(grown)

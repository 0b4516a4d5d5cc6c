"""Texts whose mark somebody hid: their normalised text, and the verdict from both variants."""

import math
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.detection.detector import Detector
from scanner.detection.normalising import normalise
from scanner.detection.shares import Weights
from scanner.detection.under_test import KeyUnderTest, Origin
from scanner.registry import Holders
from schemas.tables import DOCUMENTS
from tests.support.opened import opened
from tests.support.two_keys import message_of

ORIGIN = Origin("scan", "shard", "/in/a.parquet")
RATE = 1e-6
PLAIN = "The cat sat on a mat. It saw me, and I saw it!\nThen we ate."
LOOK_ALIKES = str.maketrans("aceopxy", "асеорху")


def hidden(text: str) -> str:
    return "\u200b".join(text)


def soft(text: str) -> str:
    return text.replace("at", "a\u00adt")


EVASIONS = {
    "zero-width": hidden,
    "soft hyphens": soft,
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "doubled spaces": lambda text: text.replace(" ", "  "),
    "homoglyphs": lambda text: text.translate(LOOK_ALIKES),
    "full width": lambda text: text.translate({ord(c): chr(ord(c) + 0xFEE0) for c in "abcdefgh"}),
    "upper case": str.upper,
    "variation selectors": lambda text: text.replace("e", "e\ufe0f"),
    "tags": lambda text: text.replace("e", "e\U000e0041"),
}


def test_each_evasion_is_undone():
    for name, evade in EVASIONS.items():
        assert evade(PLAIN) != PLAIN, name
        assert normalise(evade(PLAIN)) == PLAIN, name
        assert normalise(hidden(evade(PLAIN))) == PLAIN, name


def test_other_texts_stay_what_they_are():
    for text in (
        "",
        PLAIN,
        "def f(x):\n    if x:\n        return 1",
        "Привет, мир: это русский текст, и word по-английски.",
        "Ελληνικά και English.",
        "café, naïve, 東京, عربي, ภาษาไทย",
        "123 456",
    ):
        assert normalise(text) == text


def test_few_changes_are_left_alone():
    assert normalise("two  spaces" + "x" * 98) == "two  spaces" + "x" * 98
    assert normalise("two  spaces" + "x" * 88) == "two spaces" + "x" * 88


@pytest.mark.costly
@given(st.text())
def test_what_is_normalised_stays_so_and_hides_nothing(text):
    once = normalise(text)
    if once != text:
        assert normalise(once) in (once, unicodedata.normalize("NFC", once))
        assert not any(hidden_one in once for hidden_one in "\u200b\u00ad\u2060\ufeff\u00a0")


@pytest.fixture(scope="module")
def keys(registry) -> list[KeyUnderTest]:
    return opened(registry)


@pytest.fixture
def rows_of(registry, keys):
    def scan(texts: list[str], *, normalised: bool, each: float = 0.5) -> list[dict]:
        detector = Detector(
            keys,
            Holders.load(registry, [test.key.key_id for test in keys]),
            keys_tested=len(keys),
            dedup="ngram",
            min_scored=16,
            false_positive_rate=RATE,
            weights=Weights(as_written=each, normalised=each if normalised else None),
        )
        rows = [{"row": i, "text": text.encode()} for i, text in enumerate(texts)]
        verdicts, refused = detector.detect(pa.RecordBatch.from_pylist(rows, DOCUMENTS), ORIGIN)
        assert not len(refused)
        verdicts.validate(full=True)
        return verdicts.to_pylist()

    return scan


@pytest.mark.seconds
def test_a_verdict_is_the_better_of_two_texts_under_twice_the_keys(rows_of, marked, plain, registry):
    alice = message_of(registry, "green", "alice")
    texts = [hidden(marked(alice, 60, 1)), marked(alice, 60, 2), plain(60, 3), plain(60, 4).replace(" ", "  ")]
    texts += ["  ".join(plain(30, seed).split(" ")) + plain(30, seed + 1) for seed in range(40)]
    texts += ["a  b", "", "x" * 3, hidden("ab")]
    both = rows_of(texts, normalised=True)
    as_they_are, plain_ones = (rows_of(some, normalised=False) for some in (texts, [normalise(text) for text in texts]))
    seen = set()
    for text, row, raw, other in zip(texts, both, as_they_are, plain_ones, strict=True):
        second = normalise(text) != text and other["message"] is not None
        second = second and (raw["message"] is None or other["log10_p_global"] < raw["log10_p_global"])
        wanted = other if second else raw
        assert row["variant"] == ("normalised" if second else None)
        same = ("status", "tokens", "scored", "key_id", "message", "score", "log10_p", "log10_p_global", "keys_tested")
        if wanted["message"] is not None:
            assert {name: row[name] for name in same} == {name: wanted[name] for name in same}
        assert row["flagged"] == (raw["flagged"] or other["flagged"])
        assert row["text_sha256"] == raw["text_sha256"]
        seen.add(row["variant"])
    assert seen == {"normalised", None}
    assert [(row["user_id"], row["variant"]) for row in both[:4]] == [
        ("alice", "normalised"), ("alice", None), (None, None), (None, both[3]["variant"]),
    ]  # fmt: skip


def test_messages_that_pass_in_different_texts_name_nobody(rows_of, marked, registry):
    """One message passes in the text as it stands, another in the normalised text, which shows the hidden part."""
    alice, bob = (message_of(registry, "green", user) for user in ("alice", "bob"))
    row = rows_of([marked(bob, 90, 5) + hidden(marked(alice, 120, 6))], normalised=True)[0]
    assert (row["flagged"], row["naming"], row["user_id"]) == (True, "ambiguous", None)


def test_a_message_that_passes_in_both_texts_is_named(rows_of, marked, registry):
    alice = message_of(registry, "green", "alice")
    row = rows_of([marked(alice, 90, 7) + "  and" + hidden(" more")], normalised=True)[0]
    assert (row["naming"], row["user_id"]) == ("named", "alice")


def test_without_difference_nothing_changes_but_what_is_paid(rows_of, marked, plain, registry):
    alice = message_of(registry, "green", "alice")
    texts = [marked(alice, 60, 8), plain(60, 9), plain(5, 1)]
    for one, two in zip(rows_of(texts, normalised=False, each=1.0), rows_of(texts, normalised=True), strict=True):
        changed = {name for name in one if one[name] != two[name]} - {"scanned_at"}
        assert changed <= {"log10_p_global", "runner_up_log10_p_global", "keys_tested", "named"}
        p = -math.expm1(2 * math.log1p(-(10 ** one["log10_p_global"])))
        if one["message"] is not None:
            assert np.isclose(10 ** two["log10_p_global"], p, rtol=1e-9)

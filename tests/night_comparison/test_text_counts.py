"""What workers count of texts: traits, scripts, accounts and flags, beside a plain count by another path."""

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.detection.attribution import BatchOrigin
from scanner.detection.rows import TextIds
from scanner.night_comparison.account_sketches import estimate_accounts, sketch_of
from scanner.night_comparison.text_counts import TextCounter
from scanner.night_comparison.text_traits import BLANK, GARBLED, HIDDEN, SCRIPTS, traits_of
from scanner.text.utf8 import Utf8
from schemas.tables import DOCUMENTS, TEXT_COUNTS, VERDICTS
from tests.support.rows import filled


def traits(*stored: str | bytes) -> list[int]:
    return traits_of(of_bytes(*stored))[0].tolist()


def scripts(*texts: str) -> list[str]:
    return [SCRIPTS[number] for number in traits_of(of_bytes(*texts))[1]]


def of_bytes(*stored: str | bytes) -> Utf8:
    raw = [text.encode() if isinstance(text, str) else text for text in stored]
    return Utf8(np.frombuffer(b"".join(raw), np.uint8), np.cumsum([0, *map(len, raw)]))


def test_ordinary_texts_have_no_trait():
    assert set(
        traits("hello", "été “café”", "❤\ufe0f 👨\u200d👩", "می\u200cخواهم", "1\ufe0f\u20e3", "日本語です", "CAFÉ ”")
    ) == {0}


def test_blank_hidden_and_garbled_texts():
    assert set(traits("", " \t\r\n", "\u3000\u00a0", "\x00")) == {BLANK}
    assert traits("\u200b\ufeff") == [BLANK | HIDDEN]
    assert set(traits("h\u200bi", "a\u200db", "x\ufe0f", "a\U000e0041", "so\u00adft")) == {HIDDEN}
    assert set(
        traits("Ã©tÃ©", "itâ€™s", "ÐŸÑ€Ð¸Ð²ÐµÑ‚", "a\ufffdb", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\xaf", b"a\xe2\x82")
    ) == {GARBLED}


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_utf8_of_any_text_that_windows_misread_is_garbled(text):
    """Every text with a letter beyond ASCII, unless a byte of it is none of that code page."""
    try:
        misread = text.encode().decode("cp1252")
    except UnicodeDecodeError:
        return
    assert bool(traits(misread)[0] & GARBLED) == (not text.isascii()) or "\ufffd" in text


@given(st.binary(max_size=30))
def test_bytes_that_are_no_utf8_are_garbled(raw):
    try:
        raw.decode()
    except UnicodeDecodeError:
        assert traits(raw)[0] & GARBLED


def test_scripts_are_those_of_most_letters():
    assert scripts("Привет, world! Как дела", "hello мир", "12 %", "汉字", "日本語です", "한국어", "नमस्ते", "ไทย") == [
        *("Cyrillic", "Latin", "none", "Han", "Kana", "Hangul", "Indic", "Southeast Asian")
    ]
    assert scripts("Ελλάδα", "שלום", "مرحبا", "հայ", "\U00020000") == ["Greek", "Hebrew", "Arabic", "other", "Han"]


@given(st.characters(codec="utf-8", max_codepoint=0xFFFF))
def test_only_letters_have_a_script(character):
    assert (scripts(character) != ["none"]) == unicodedata.category(character).startswith("L")


def test_accounts_are_estimated_from_the_sketches_of_shards():
    """The standard error is 6.5 %; four of them are missed once in 16,000 draws, and these are always the same."""
    digests = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 60_000)
    halves = [sketch_of(digests[:40_000]).tobytes(), sketch_of(digests[20_000:]).tobytes()]
    assert estimate_accounts(halves) == pytest.approx(60_000, rel=0.26)
    assert estimate_accounts([sketch_of(digests[:1]).tobytes()]) == pytest.approx(1, abs=0.1)
    assert estimate_accounts([]) == 0


def documents(texts: list[bytes | None], accounts: list[str | None]) -> pa.RecordBatch:
    rows = [
        filled(DOCUMENTS, row=row, text=text, account_id=account)
        for row, (text, account) in enumerate(zip(texts, accounts, strict=True))
    ]
    return pa.RecordBatch.from_pylist(rows, DOCUMENTS)


def test_rows_are_summed_by_shard():
    counter = TextCounter(TextIds(bytes(16)))
    batch = documents([b"a text", None, b" ", "Привет".encode()], ["ann", "ann", None, "bo"])
    flags = [(0, True, False, "green"), (2, False, None, None), (3, True, True, "green")]
    verdicts = pa.RecordBatch.from_pylist(
        [filled(VERDICTS, row=row, flagged=flagged, canary=canary, key_id=key) for row, flagged, canary, key in flags],
        VERDICTS,
    )
    rows = [counter.rows(batch, verdicts, BatchOrigin("scan", shard, "/in/a")) for shard in ("s1", "s2", "s1")]
    (written,) = counter.in_order(rows)
    assert written.schema == TEXT_COUNTS
    first, second = written.to_pylist()
    assert (first["scan_id"], first["shard_id"], first["documents"]) == ("scan", "s1", 8)
    names = ("documents", "missing", "blank", "hidden", "garbled", "without_account")
    assert [second[name] for name in names] == [4, 1, 1, 0, 0, 1]
    assert second["scripts"] == [{"script": "Latin", "texts": 1}, {"script": "Cyrillic", "texts": 1}]
    assert second["flags"] == [{"key_id": "green", "documents": 1}]
    assert estimate_accounts([first["accounts"], second["accounts"]]) == pytest.approx(2, abs=0.1)
    assert counter.in_order([]) == []


def test_a_batch_without_a_single_text_counts():
    counter = TextCounter(TextIds(bytes(16)))
    empty = counter.rows(
        documents([None, None], [None, None]), pa.RecordBatch.from_pylist([], VERDICTS), BatchOrigin("s", "h", "/a")
    )
    (row,) = counter.in_order([empty])[0].to_pylist()
    assert (row["documents"], row["missing"], row["without_account"], row["scripts"]) == (2, 2, 2, [])

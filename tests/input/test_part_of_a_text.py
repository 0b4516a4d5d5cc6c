"""The part that is scored of a text that cannot be read whole: a function of the bytes alone, of bounded size."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.input import documents
from scanner.input.documents import read_text
from schemas.words import PART_REASONS

KNOWN_ANSWERS = Path(__file__).parents[1] / "data" / "scored_texts.json"

LEFT = "\ufffd"


@pytest.mark.parametrize(
    ("stored", "left", "reason"),
    [
        # the Unicode Standard 15.0, tables 3-8 to 3-11
        ("C0 AF E0 80 BF F0 81 82 41", LEFT * 8 + "A", "invalid_utf8"),
        ("ED A0 80 ED BF BF ED AF 41", LEFT * 8 + "A", "invalid_utf8"),
        ("F4 91 92 93 FF 41 80 BF 42", LEFT * 5 + "A" + LEFT * 2 + "B", "invalid_utf8"),
        ("E1 80 E2 F0 91 92 F1 BF 41", LEFT * 4 + "A", "invalid_utf8"),
        ("61 ED A0 80 62", "a" + LEFT * 3 + "b", "surrogates"),
        ("ED A0 BD ED B8 80", LEFT * 6, "surrogates"),  # a pair of surrogates is no character either
        ("61 FF", "a" + LEFT, "invalid_utf8"),
        ("61 C3", "a" + LEFT, "invalid_utf8"),
    ],
)
def test_bytes_that_are_no_characters(stored, left, reason):
    text, why, detail = read_text(bytes.fromhex(stored))
    assert (text, why) == (left, reason)
    assert detail.startswith("byte ")


@pytest.mark.parametrize("case", json.loads(KNOWN_ANSWERS.read_text()), ids=lambda case: case["what"])
def test_known_answers(case):
    """A claim's script is held to the same ones (tests/evidence/test_claim.py)."""
    assert read_text(bytes.fromhex(case["posted"]))[0] == case["scored"]


def test_what_is_whole_and_what_is_nothing():
    assert read_text("zwölf".encode()) == ("zwölf", "", "")
    assert read_text(b"") == ("", "", "")
    assert read_text(None) == (None, "null_text", "there is no text")


@pytest.mark.parametrize("most", [7, 8, 9, 10])
@pytest.mark.parametrize("letter", ["a", "é", "€", "😀"])
def test_a_text_is_cut_between_characters(monkeypatch, most, letter):
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", most)
    size = len(letter.encode())
    whole = letter * (most // size)
    assert read_text(whole.encode()) == (whole, "", "")
    detail = f"the text has {size * (most // size + 1)} bytes; the first {len(whole.encode())} are scored"
    assert read_text((whole + letter).encode()) == (whole, "too_long", detail)


def test_a_text_of_invalid_bytes_does_not_grow_beyond_the_most(monkeypatch):
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 10)
    assert read_text(b"\xff" * 10)[:2] == (LEFT * 3, "invalid_utf8")
    assert read_text(b"\xff" * 11)[:2] == (LEFT * 3, "too_long")


PIECES = st.sampled_from(
    [b"a", "é".encode(), "€".encode(), "😀".encode(), b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f"]
)


@given(st.lists(PIECES, max_size=14).map(b"".join), st.integers(4, 16))
@example(b"\x80" * 14, 4)
@example(b"", 4)
def test_whatever_is_posted_has_a_text_that_can_be_tokenised(stored, most):
    with patch.object(documents, "MAX_TEXT_BYTES", most):
        text, reason, detail = read_text(stored)
        assert (text, reason, detail) == read_text(stored)
        assert read_text(text.encode()) == (text, "", "")  # the part is a text like any other
    assert bool(detail) == bool(reason) == (text.encode() != stored)
    assert reason in ("", *PART_REASONS)
    # character by character, the slow way, until no more fits
    ends = [end for end in range(most - 3, most + 1) if len(stored) > most and not 0x80 <= stored[end] < 0xC0]
    slow = ""
    for character in stored[: max(ends, default=most if len(stored) <= most else most - 3)].decode(errors="replace"):
        if len((slow + character).encode()) > most:
            break
        slow += character
    assert text == slow

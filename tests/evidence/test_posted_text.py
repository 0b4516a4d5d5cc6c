"""Posts are shown as they were posted in every script, and what hides something is an escape."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.evidence.posted_text import as_posted, is_inside_letter, shown_characters
from scanner.printable import INVISIBLE

EVERYDAY = {
    "emoji with a variation selector": "I \u2764\ufe0f it",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466!",
    "profession of a colour": "\U0001f469\U0001f3fd\u200d\U0001f52c",
    "keycap": "1\ufe0f\u20e3 and #\ufe0f\u20e3",
    "flag of Scotland": "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "Persian": "می\u200cخواهم کتاب\u200cها را",
    "Hindi": "क\u094d\u200dष हिन\u094dदी",
    "Bengali": "র\u200d\u09cdয",
    "Malayalam": "അവന\u0d4d\u200d",
    "Burmese": "မြန်မာ\u200bစာ",
    "Thai": "ภาษา\u200bไทย",
    "Khmer": "ភាសា\u200bខ្មែរ",
    "Tibetan": "བསྒྲུབས་པ",
    "Hebrew with points and cantillation": "בְּרֵאשִׁ\u0596ית",
    "Hebrew beside English": "\u200fשלום\u200f (hello)",
    "Mongolian": "\u182e\u1823\u180b\u1829",
    "Korean in jamo": unicodedata.normalize("NFD", "한국어"),
    "Vietnamese, decomposed": unicodedata.normalize("NFD", "Việt ngữ"),
    "French blanks": "Bonjour\u00a0! Oui\u202f?",
    "Japanese blank": "日本語\u3000です",
    "ideographic variation": "葛\U000e0100城",
    "tabs and line ends": "a\tb\nc",
}

HIDING = {
    "joiner between Latin letters": ("wa\u200dter", r"wa\u200dter"),
    "non-joiner between Latin letters": ("wa\u200cter", r"wa\u200cter"),
    "zero-width space": ("a\u200bb", r"a\u200bb"),
    "word joiner": ("a\u2060b", r"a\u2060b"),
    "soft hyphen": ("wa\u00adter", r"wa\xadter"),
    "override": ("\u202eretaw\u202c", r"\u202eretaw\u202c"),
    "variation selectors as bytes": ("x\ufe00\ufe01\ufe02", r"x\ufe00\ufe01\ufe02"),
    "variation selectors behind an emoji": ("\u2764\ufe0f\ufe01", "\u2764\ufe0f\\ufe01"),
    "tags without a flag": ("a\U000e0041\U000e0042", r"a\U000e0041\U000e0042"),
    "Hangul filler": ("a\u3164b", r"a\u3164b"),
    "empty Braille": ("a\u2800b", r"a\u2800b"),
    "private use": ("a\ue000", r"a\ue000"),
    "escape sequence": ("\x1b[31m", r"\x1b[31m"),
    "lone surrogate": ("a\ud800", r"a\ud800"),
    "pile of accents": ("a" + "\u0301" * 9, "a" + "\u0301" * 8 + r"\u0301"),
}


@pytest.mark.parametrize("text", EVERYDAY.values(), ids=EVERYDAY)
def test_show_everyday_writing_as_posted(text):
    assert as_posted(text) == text


@pytest.mark.parametrize(("text", "shown"), HIDING.values(), ids=HIDING)
def test_escape_what_hides_something(text, shown):
    assert as_posted(text) == shown


@pytest.mark.seconds
def test_show_every_letter_mark_number_and_sign_of_unicode():
    """Over all scripts: what can be seen is shown, and stands behind a letter of its script or of another."""
    seen = 0
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character)[0] in "LMNPSZ" and not INVISIBLE.match(character):
            if character in "\u2028\u2029\u2800":
                continue
            seen += 1
            assert as_posted(f"a{character}") == f"a{character}", hex(code)
    assert seen > 140_000


@given(st.text())
def test_characters_join_to_the_text(text):
    shown = shown_characters(text)
    assert len(shown) == len(text)
    assert "".join(shown) == as_posted(text)


@given(st.text(alphabet="a\u0301\u200d\ufe0f\U0001f469\U0001f3fd\u202e\u05d0\u200f\n", max_size=30))
def test_nothing_steers_a_page(text):
    shown = as_posted(text)
    assert "\u202e" not in shown
    assert all(character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs", "Co") for character in shown)


CLUSTERS = ("\U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301", "\u2764\ufe0f", "ก\u0e34\u0e48")


@pytest.mark.parametrize("text", CLUSTERS)
def test_a_letter_is_not_cut(text):
    assert all(is_inside_letter(text, place) for place in range(1, len(text)))
    assert not is_inside_letter("ab", 1)

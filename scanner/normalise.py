"""Text as a reader sees it: changes that nobody sees, and so cost an evader nothing, are taken back.

Characters that show nothing go, blanks of every kind become single ones, letters of other scripts that look Latin
become Latin, and text in capitals is written as sentences are. Pure functions of a text.
"""

import re
import unicodedata
from collections.abc import Mapping

LEAST_CAPITALS = 20
"""Fewest letters of a text in capitals alone that is taken for disguised, and not for a title."""

TWINS: Mapping[str, str] = dict(
    zip(
        "асеорхуіјѕԁһԛԝӏАВСЕНІЈКМОРЅТХУԌԚԜοανικρυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "aceopxyijsdhqwlABCEHIJKMOPSTXYGQWoavikpuxABEZHIKMNOPTYX",
        strict=True,
    )
)
"""Cyrillic and Greek letters, with the Latin letters that they look like (a part of Unicode's confusables, UTS 39)."""

_STYLED = {
    chr(code): plain
    for code in (*range(0xFF21, 0xFF5B), *range(0xFF10, 0xFF1A), *range(0x1D400, 0x1D800))
    if (plain := unicodedata.normalize("NFKC", chr(code))).isascii()
}
"""Full-width and mathematical letters and digits."""

_TWINS = str.maketrans(dict(TWINS))
_STYLES = str.maketrans(_STYLED)
UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters of Unicode's Default_Ignorable_Code_Point, and the soft hyphen among them."""
_BLANK = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000\t]")
_BLANKS = re.compile(" {2,}")
_AT_AN_END = re.compile(" *\n *")
_FIRST = re.compile(r"(?:^|[.!?][\"')\]]*\s+|\n)[\"'(\[]*([a-z])")
_I = re.compile(r"\bi\b")


def normalised(text: str) -> str:
    """The text as a reader sees it; the same text if nothing in it is hidden.

    Characters that have meaning for some writers go too: joiners of Persian and of emoji, the blanks that indent code.
    So this is a second text to look at, never the text.
    """
    if not text.isascii():
        text = UNSEEN.sub("", unicodedata.normalize("NFC", text)).translate(_STYLES)
        if _is_latin(text):
            text = text.translate(_TWINS)
    text = _BLANK.sub(" ", text)
    text = _AT_AN_END.sub("\n", _BLANKS.sub(" ", text)).strip(" ")
    return _as_sentences(text) if text.isupper() and _letters(text) >= LEAST_CAPITALS else text


def skeleton(name: str) -> str:
    """The common form of names that look alike: case, blanks at the ends and letters' scripts make no difference."""
    seen = UNSEEN.sub("", unicodedata.normalize("NFKC", name)).translate(_TWINS)
    return " ".join(seen.casefold().split())


def _is_latin(text: str) -> bool:
    """Whether letters that are surely Latin outnumber those that are surely Cyrillic or Greek."""
    latin = others = 0
    for letter in text:
        if letter.isascii():
            latin += letter.isalpha()
        elif "\u0370" <= letter <= "\u052f" and letter not in TWINS:
            others += letter.isalpha()
    return latin > others


def _letters(text: str) -> int:
    return sum(map(str.isalpha, text))


def _as_sentences(text: str) -> str:
    lower = _FIRST.sub(lambda match: match[0][:-1] + match[0][-1].upper(), text.lower())
    return _I.sub("I", lower)

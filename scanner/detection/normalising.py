"""A text without what hides a mark at no cost to who posts it: a second text that is scored where it differs.

Zero-width characters, soft hyphens, other spaces, doubled spaces, look-alike letters and upper case leave a text as
readable as it was, and change nearly all of its tokens. What is taken out here follows from the text alone, no key has
a part in it, so p-values hold for what is left as for any text; it is a look of its own, which K counts (SPEC §3).
"""

import re
import unicodedata

_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""Characters that show nothing (Default_Ignorable_Code_Point in DerivedCoreProperties.txt of Unicode), and U+FFF8."""

_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
"""Spaces (general category Zs) but for the usual one."""

_FORMS = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff]")
"""Full-width and mathematical forms of letters and digits, which have a compatible one (NFKC)."""

_DOUBLED = re.compile(r"(?<=\S) {2,}(?=\S)")
"""Doubled spaces, except at the beginning of a line, where they indent."""

_SENTENCE = re.compile(r"(?:^|[.!?…]['\"”’)\]]*\s+|\n\s*)['\"“‘(\[]*[^\W\d_]|\bi\b")
"""Beginning of a sentence up to its first letter; and the English I."""

_LOOK_ALIKES = str.maketrans(
    # Cyrillic, then Greek letters that look as Latin ones do: confusables.txt of Unicode Technical Standard 39
    "асԁеһіјорԛѕԝхуАВСЕНІЈКМОРЅТХҮ" + "ονρυΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "acdehijopqswxyABCEHIJKMOPSTXY" + "ovpuABEZHIKMNOPTYX",
)
_NOT_LATIN = re.compile("[\u0370-\u03ff\u0400-\u052f]")
_LATIN = re.compile("[A-Za-z]")


LEAST_CHANGES = 100
"""Characters for each change, at most: fewer changes leave nearly all of a mark, and are in many texts by custom."""


def normalise(text: str) -> str:
    """A text as it was before somebody hid its mark, as far as the text shows that; mostly the same text."""
    plain, changes = (text, 0) if text.isascii() else _of_plain_characters(text)
    if "  " in plain:
        plain, doubled = _DOUBLED.subn(" ", plain)
        changes += doubled
    lower = plain.lower()
    if plain != lower and plain == plain.upper():
        plain = _SENTENCE.sub(lambda begin: begin[0].upper(), lower)
        changes += len(plain)
    return plain if changes * LEAST_CHANGES >= len(text) else text


def _of_plain_characters(text: str) -> tuple[str, int]:
    """The text without hidden characters, other spaces, forms and look-alikes; and how many characters these were."""
    composed = unicodedata.normalize("NFC", text)
    plain, hidden = _HIDDEN.subn("", composed)
    plain, spaces = _SPACES.subn(" ", plain)
    plain, forms = _FORMS.subn(lambda form: unicodedata.normalize("NFKC", form[0]), plain)
    changes = len(text) - len(composed) + hidden + spaces + forms
    foreign = len(_NOT_LATIN.findall(plain))
    if not 0 < foreign < len(_LATIN.findall(plain)):
        return plain, changes
    return plain.translate(_LOOK_ALIKES), changes + foreign

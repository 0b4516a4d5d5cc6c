"""Handle text from outside: recognise look-alike characters, make text printable, and cut off manifests.

Strangers write ids, paths, column names and the messages of libraries. None of these texts may steer a terminal, forge
a line of a log, vanish, or pass for another column.

There is one table for each kind of deceptive character: characters that show nothing, other blanks, and those that
`scanner.look_alikes` takes from Unicode. `scanner.looks.normal_form` undoes disguises by these tables, and `skeleton`
compares names by them. This module imports only the standard library and that one, because every command imports it.

C2PA manifests inside texts are cut off before a text is scored. People do not read them, but a tokenizer does. A
manifest says who made a text, and is signed. Its issuer is not verified here. In plain text it is a wrapper of
invisible variation selectors, one a byte (C2PA 2.4, A.8): a manifest of 1,500 bytes is thousands of tokens. In text
with comments or front matter it is a reference between two lines of armour (A.9). A damaged wrapper would hide a mark
as well as a whole one. So long runs of characters that show nothing are cut off, whatever they contain.
"""

import functools
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Literal

from scanner.look_alikes import LOOK_ALIKES_BY_SCRIPT

INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that show nothing: Default_Ignorable_Code_Point (DerivedCoreProperties.txt), and marks of annotations."""

CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
"""Control characters, except blanks and line ends."""

BLANKS = re.compile("[\u000b\u000c\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000]")
"""Blanks other than the usual one and tabs: spaces (general category Zs), vertical tabs and empty Braille."""

LINE_ENDS = re.compile("\r\n?|[\u0085\u2028\u2029]")
"""Line ends other than the usual one."""

COMBINING_LINES = re.compile("[\u0305\u0332\u0333\u0335-\u0337\u033f]")
"""Combining lines over, under and through a letter. No orthography needs them."""

LOOK_ALIKES: Mapping[str, str] = {
    other: latin
    for others, latins in LOOK_ALIKES_BY_SCRIPT.values()
    for other, latin in zip(others, latins, strict=True)
}
"""Characters of other scripts, each with the Latin letter that looks like it (Unicode's confusables, UTS 39)."""

AS_FOREIGN: Mapping[str, Mapping[str, str]] = {
    "Cyrillic": {LOOK_ALIKES[letter]: letter for letter in "асеорхуіјѕАВЕКМНОРСТУХІЈЅ"},
    "Greek": {LOOK_ALIKES[letter]: letter for letter in "οναιΑΒΕΖΗΙΚΜΝΟΡΤΥΧ"},
}
"""Latin letters, each with the letter of everyday Cyrillic or Greek that looks the same."""


MOST_COMBINING = 30
"""Largest number of combining marks in a row, as in Unicode's stream-safe text format (UAX #15, section 13)."""


@functools.cache
def combining() -> str:
    """Return all characters that Unicode orders behind a letter.

    Their combining class in UnicodeData.txt is not 0, or they are made of such characters, as three Tibetan vowels are.
    """
    letters = map(chr, range(0x300, 0x1E94B))
    return "".join(one for one in letters if unicodedata.combining(unicodedata.normalize("NFD", one)[0]))


@functools.cache
def _long_runs_of_marks() -> re.Pattern[str]:
    """Compile the pattern of runs of too many marks. Group 1 is the marks that stay."""
    return re.compile(f"([{combining()}]{{{MOST_COMBINING}}})[{combining()}]+")


@functools.cache
def _likely_runs() -> re.Pattern[str]:
    """Compile a pattern that every text with a long run of marks matches, and few others.

    It is fast, because it has only characters of 16 bits.
    """
    # `re` compares each character with every single one of a class that is beyond 16 bits, so this takes all of these
    # as one range. The first character is separate, because `re` finds it faster.
    marks = "".join(mark for mark in combining() if mark < "\U00010000") + "\U00010000-\U0010ffff"
    return re.compile(f"[{marks}][{marks}]{{{MOST_COMBINING}}}")


def compose(text: str, form: Literal["NFC", "NFKC"] = "NFC") -> str:
    """Return a text in a normal form of Unicode, with at most 30 marks on one letter.

    The time to order a run of marks grows with the square of its length. The stream-safe format begins a new run with
    an invisible character, but a normalised text must not have one. So further marks are left out instead. No real
    letter has them.
    """
    if not text.isascii():
        text = _long_runs_of_marks().sub(r"\1", text) if _likely_runs().search(text) else text
    return unicodedata.normalize(form, text)


def skeleton(name: str) -> str:
    """Return the common form of names that look alike.

    Case, blanks at the ends and the scripts of letters make no difference.
    """
    visible = INVISIBLE.sub("", compose(name.translate(_AS_LATIN), "NFKC")).translate(_AS_LATIN)
    return " ".join(visible.casefold().split())


_AS_LATIN = str.maketrans(dict(LOOK_ALIKES))

MOST_MARKS = 2
"""Largest number of combining characters that are shown on one letter. More of them paint over the lines above."""

_BLANK_BRAILLE = "\u2800"  # Python calls it printable, like every character that INVISIBLE matches


def combines(character: str) -> bool:
    """Return whether a character is painted on the one before it, like a separate accent."""
    return unicodedata.category(character) in ("Mn", "Me")


def safe(line: str) -> str:
    """Return one line that shows a whole text.

    Characters that are not visible, and piles of combining ones, become escapes.
    """
    if line.isascii() and line.isprintable():
        return line
    out, marks = [], MOST_MARKS  # nothing to combine with yet
    for character in line:
        marks = marks + 1 if combines(character) else 0
        hidden = (
            not character.isprintable()
            or character == _BLANK_BRAILLE
            or INVISIBLE.match(character)
            or marks > MOST_MARKS
        )
        out.append(character.encode("unicode_escape").decode("ascii") if hidden else character)
    return "".join(out)


def printable(value: str, longest: int | None = None) -> str:
    """Write a value in a line of ours, as `safe` does, with escapes for blanks that would separate columns.

    longest: number of characters after which it is cut by …. None: it is not cut.
    """
    if longest is not None and len(value) > longest:
        return cut(printable(value[:longest]) + printable(value[-longest:]), longest)
    text = re.sub(r"^ | $|(?<= ) ", r"\\x20", safe(value))
    return text if longest is None or len(text) <= longest else cut(text, longest)


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings of cells that a spreadsheet takes for formulas (OWASP, CSV Injection)."""

_FORMULA_AFTER_SEMICOLON = re.compile(r"(;[\s\"]*)(?=[=+\-@＝＋－＠])")
"""Semicolons before a formula. Where decimals have commas, spreadsheets split cells at semicolons, quoted or not."""


def cell(value: object) -> str:
    """Write a value in a table for spreadsheets, as `safe` does. Text that looks like a formula gets an apostrophe."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    return safe(_FORMULA_AFTER_SEMICOLON.sub(r"\1'", f"'{value}" if value.startswith(FORMULA) else value))


def cut(text: str, longest: int) -> str:
    """Cut printable text to at most so many characters, with … in place of the middle of a longer one."""
    half = longest // 2
    return f"{text[: longest - half - 1]}…{text[-half:]}"


LEAST_SHOWN = -9.0
"""log10 of the smallest p-value that people are shown. Below it, guessed keys and faults are likelier than chance."""


def one_in(log10_p: float) -> str:
    """Write a p-value for people, with two digits: `1 in 2,300,000`, `less than 1 in a billion`, or `1 in 1`."""
    if log10_p < LEAST_SHOWN:
        return "less than 1 in a billion"
    return f"1 in {amount(10.0**-log10_p)}"


def at_most(number: float) -> str:
    """Write a limit for people, as `amount` writes it: `at most 0.04`, or `less than 0.001`."""
    words = amount(number)
    return words if words.startswith("less") else f"at most {words}"


def in_hours(hours: float) -> str:
    """Write hours, such as `12.3` or `0.0046`."""
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2g}"


def counted(number: int, noun: str) -> str:
    """Write a number of things, such as `1 file` and `1,200 files`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def amount(number: float) -> str:
    """Write a number for people, however small or large, with two digits: `0.04`, `2,300,000`."""
    if number > 0 and number < 0.001:
        return "less than 0.001"
    if number > 1e9 * (1 + 1e-9):
        return "more than a billion"
    if number < 99.5:
        return f"{number:.2g}"
    return f"{round(number, 1 - math.floor(math.log10(number))):,.0f}"


_LEAST_SELECTOR, _FIRST_SELECTORS, _MORE_SELECTORS = 16, 0xFE00, 0xE0100


def _selector(byte: int) -> str:
    """Return the variation selector for a byte."""
    return chr(_FIRST_SELECTORS + byte if byte < _LEAST_SELECTOR else _MORE_SELECTORS + byte - _LEAST_SELECTOR)


_MARKER = "\ufeff" + "".join(map(_selector, b"C2PATXT\0\1"))
"""Beginning of a wrapper: its mark, magic number and version."""

_LENGTH_BYTES = 4  # bytes of the manifest's length, the most significant first

MOST_UNSEEN = 9
"""Largest number of unseen characters in a row that stay. Emoji and flags have seven, the shortest wrapper fourteen."""

_UNSEEN_RUN = re.compile(INVISIBLE.pattern + f"{{{MOST_UNSEEN + 1},}}+")

_BEGIN_ARMOUR, _END_ARMOUR = "-----BEGIN C2PA MANIFEST-----", "-----END C2PA MANIFEST-----"
_ARMOUR_BLOCK = (
    rf"[^\S\n]*+(?:#|//|--|/\*|<!--|;|%|NOTE)?[^\S\n]*+{_BEGIN_ARMOUR}\s{{1,2}}"
    r"(?:https?://[!-~]{1,2048}+|data:application/c2pa;base64,[A-Za-z0-9+/=_-]{1,1000000}+)"
    rf"\s{{1,2}}{_END_ARMOUR}[^\S\n]*+(?:\*/|-->)?[^\S\n]*+"
)
_ARMOUR = re.compile(rf"(?:\r?\n|\A){_ARMOUR_BLOCK}\Z|(?:(?<=\n)|\A){_ARMOUR_BLOCK}\r?\n")
"""A block of armour with its line. It is one reference, ASCII of bounded length, so no words can hide in it."""


def without_manifests(text: str) -> str:
    """Return a text without its manifests. If there are none, it is the same object.

    Long runs of characters that show nothing are cut off whole, whether they are a wrapper, a damaged one or something
    else. A tokenizer reads them, and a mark beside them would be lost in them.
    """
    if not text.isascii() and INVISIBLE.search(text[:: MOST_UNSEEN + 1]):  # a longer run has one of these characters
        text = _UNSEEN_RUN.sub("", text)
    return _ARMOUR.sub("", text) if _BEGIN_ARMOUR in text else text


def has_manifest(text: str) -> bool:
    """Return whether a text has a C2PA manifest, damaged or not, or a reference to one."""
    return _MARKER in text or (_BEGIN_ARMOUR in text and _ARMOUR.search(text) is not None)


def with_manifest(text: str, manifest: bytes) -> str:
    """Return a text followed by a manifest in a wrapper."""
    return text + _MARKER + "".join(map(_selector, len(manifest).to_bytes(_LENGTH_BYTES, "big") + manifest))

"""Text from outside made printable: a terminal, a log or a page shows all of it, and is not steered by it.

Ids, paths, column names and the messages of libraries are written by strangers. None of them may steer a terminal,
forge a line of a log, vanish, or pass for another column.
"""

import math
import re
import unicodedata

from scanner.characters import UNSEEN

MOST_MARKS = 2
"""Most combining characters on one letter that are shown; more of them paint over the lines above."""

_BLANK_BRAILLE = "\u2800"  # Python calls it printable, as it does everything that UNSEEN matches


def combines(character: str) -> bool:
    """Whether a character is painted on the one before it, as an accent of its own is."""
    return unicodedata.category(character) in ("Mn", "Me")


def safe(line: str) -> str:
    """One line that shows a whole text.

    Characters that are not visible, and piles of combining ones, become escapes.
    """
    if line.isascii() and line.isprintable():
        return line
    shown, marks = [], MOST_MARKS  # nothing to combine with yet
    for character in line:
        marks = marks + 1 if combines(character) else 0
        hidden = (
            not character.isprintable() or character == _BLANK_BRAILLE or UNSEEN.match(character) or marks > MOST_MARKS
        )
        shown.append(character.encode("unicode_escape").decode("ascii") if hidden else character)
    return "".join(shown)


def printable(value: str, longest: int | None = None) -> str:
    """One value in a line of ours: as `safe`, with escapes for blanks that would part columns, a long one cut by …"""
    if longest is not None and len(value) > longest:
        return cut(printable(value[:longest]) + printable(value[-longest:]), longest)
    shown = re.sub(r"^ | $|(?<= ) ", r"\\x20", safe(value))
    return shown if longest is None or len(shown) <= longest else cut(shown, longest)


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings of cells that a spreadsheet takes for formulas (OWASP, CSV Injection)."""


_FORMULA_AFTER_SEMICOLON = re.compile(r"(;[\s\"]*)(?=[=+\-@＝＋－＠])")
"""Semicolons before a formula: where decimals have commas, spreadsheets part cells at semicolons, quoted or not."""


def cell(value: object) -> str:
    """A value in a table for spreadsheets: text that one would take for a formula gets an apostrophe; as `safe`."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    return safe(_FORMULA_AFTER_SEMICOLON.sub(r"\1'", f"'{value}" if value.startswith(FORMULA) else value))


def cut(text: str, longest: int) -> str:
    """Printable text of at most so many characters: … stands for the middle of a longer one."""
    half = longest // 2
    return f"{text[: longest - half - 1]}…{text[-half:]}"


LEAST_SHOWN = -9.0
"""log10 of the smallest p-value that people are shown: below it, guessed keys and faults are likelier than chance."""


def one_in(log10_p: float) -> str:
    """A p-value for people, with two digits: `1 in 2,300,000`, `less than 1 in a billion`, or `nearly all`."""
    if log10_p < LEAST_SHOWN:
        return "less than 1 in a billion"
    times = amount(10.0**-log10_p)
    return "nearly all" if times == "1" else f"1 in {times}"


def at_most(number: float) -> str:
    """A limit for people, as `amount` writes it: `at most 0.04`, or `less than 0.001`."""
    said = amount(number)
    return said if said.startswith("less") else f"at most {said}"


def amount(number: float) -> str:
    """A number for people, however small or large, with two digits: `0.04`, `2,300,000`."""
    if number > 0 and number < 0.001:
        return "less than 0.001"
    if number > 1e9 * (1 + 1e-9):
        return "more than a billion"
    if number < 99.5:
        return f"{number:.2g}"
    return f"{round(number, 1 - math.floor(math.log10(number))):,.0f}"

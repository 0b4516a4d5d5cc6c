"""Makes scanner/look_alikes.py: `pip install icukit-pyicu==78.3.1` and `python -m tests.support.look_alikes`.

ICU 78.3 has the confusables (UTS 39) and the decompositions of Unicode 17.0. The package is no dependency of anything
else, so install it into an environment of its own.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

TABLE = Path(__file__).parents[2] / "scanner" / "look_alikes.py"

STYLES = ("FINAL", "FONT", "INITIAL", "ISOLATED", "MEDIAL", "NARROW", "SUB", "SUPER", "WIDE")
ASCII_STYLES = ("CIRCLE", "COMPAT", "SQUARE")
"""Kinds of compatible forms that are one letter in another style, and those that are some letters of ASCII."""

SMALL_CAPITALS = re.compile(r"LATIN LETTER SMALL CAPITAL ([A-Z])")
WHITE_ON_BLACK = re.compile(r"(?:CROSSED )?NEGATIVE (?:CIRCLED|SQUARED) LATIN CAPITAL LETTER ([A-Z])")
"""Letters by their names, since neither a decomposition nor a prototype says what they look like."""

EVERYDAY = "ıþ"
"""Latin letters of today's languages that look like one of A-Z: Turkish has both, Icelandic readers tell them apart."""

CAPITAL_I = "ІΙⲒ"
"""Letters whose prototype is l and that are I in words."""

WITHOUT_BLANKS = ("Han", "Khmer", "Lao", "Myanmar", "Thai")
"""Scripts whose letters stand beside Latin ones in everyday text, since they write no blanks."""

MORE_GREEK = {"κ": "k", "χ": "x"}

HEAD = '''"""Characters that pass for others: letters in other styles, and letters that look Latin.

Made by `python -m tests.support.look_alikes` on {date} from ICU {icu}, which has the data of Unicode {unicode}.
"""

from collections.abc import Mapping

'''


def plain_letters(icu, code: int) -> str | None:
    """The letters that a character is another style of, or None."""
    character, name = chr(code), icu.Char.charName(chr(code))
    for pattern, case in ((SMALL_CAPITALS, str.lower), (WHITE_ON_BLACK, str.upper)):
        if match := pattern.fullmatch(name):
            return case(match[1])
    kind = icu.Char.getPropertyValueName(
        icu.UProperty.DECOMPOSITION_TYPE,
        icu.Char.getIntPropertyValue(character, icu.UProperty.DECOMPOSITION_TYPE),
        icu.UPropertyNameChoice.LONG_PROPERTY_NAME,
    ).upper()
    plain = icu.Normalizer2.getNFKCInstance().normalize(character).strip("()")
    letters = all(icu.Char.isUAlphabetic(one) and icu.Char.charType(one) < 6 for one in plain)
    digits = kind in ("FONT", "WIDE") and len(plain) == 1 and plain.isdecimal()
    jamo = any(0x1100 <= ord(one) < 0x1200 for one in plain)  # of compatible jamo, which Korean chats are full of
    if plain and plain != character and (letters or digits) and not jamo:
        of_han = any(icu.Script.getScript(one).getShortName() == "Hani" for one in plain)
        if (plain.isascii() and kind in (*STYLES, *ASCII_STYLES)) or (
            len(plain) == 1 and kind in STYLES and not of_han
        ):
            return plain
    prototype = icu.SpoofChecker().getSkeleton(0, character)
    latin = icu.Script.getScript(character).getShortName() == "Latn" and re.fullmatch("[A-Za-z]", prototype)
    return prototype if latin and character not in EVERYDAY and not character.isascii() else None


def tables(icu) -> tuple[dict[str, str], dict[str, dict[str, str]], dict[str, list[tuple[int, int]]]]:
    """Styled characters, look-alikes by script, and ranges of the letters of these scripts and of Latin."""
    styled: dict[str, str] = {}
    alike: dict[str, dict[str, str]] = defaultdict(dict)
    letters: dict[str, list[int]] = defaultdict(list)
    checker = icu.SpoofChecker()
    for code in (*range(0x41, 0xD800), *range(0xE000, 0x20000)):
        character = chr(code)
        script = icu.Script.getScript(character).getName()
        if icu.Char.isUAlphabetic(character) and icu.Char.charType(character) < 6:
            letters[script].append(code)
        if code < 0x80 or icu.Char.charType(character) == 0:
            continue
        if plain := plain_letters(icu, code):
            styled[character] = plain
            continue
        prototype = MORE_GREEK.get(character) or checker.getSkeleton(0, character)
        if script != "Latin" and re.fullmatch("[A-Za-z]", prototype) and "IOTA SUBSCRIPT" not in named(icu, character):
            alike[script][character] = "I" if character in CAPITAL_I else prototype
    spaced = ("Latin", *sorted({*alike} - {*WITHOUT_BLANKS, "Common"}))
    return styled, dict(alike), {script: [*ranges(letters[script])] for script in spaced}


def named(icu, character: str) -> str:
    """The name of a character; both small forms of iota below a letter look like i only where a letter is above."""
    return "IOTA SUBSCRIPT" if character in "\u037a\u1fbe" else str(icu.Char.charName(character))


def ranges(codes: list[int]) -> Iterator[tuple[int, int]]:
    """First and behind the last of each run of numbers."""
    for _, run in groupby(enumerate(codes), lambda one: one[1] - one[0]):
        numbers = [code for _, code in run]
        yield numbers[0], numbers[-1] + 1


def lines(text: str) -> str:
    """A literal of a text, some characters a line."""
    return "\n".join(f'        "{text[i : i + 64]}"' for i in range(0, len(text), 64))


def module(icu, date: str) -> str:
    """The text of scanner/look_alikes.py."""
    styled, alike, scripts = tables(icu)
    single = {other: plain for other, plain in styled.items() if len(plain) == 1}
    text = HEAD.format(date=date, icu=icu.ICU_VERSION, unicode=icu.UNICODE_VERSION)
    text += "# fmt: off\n_SINGLE: tuple[str, str] = (\n"
    text += f"    (\n{lines(''.join(single))}\n    ),\n    (\n{lines(''.join(single.values()))}\n    ),\n)\n"
    text += "STYLED: Mapping[str, str] = {\n    **dict(zip(*_SINGLE, strict=True)),\n"
    text += "".join(f'    "{other}": "{plain}",\n' for other, plain in styled.items() if len(plain) > 1)
    text += '}\n"""Characters that are other styles of letters or digits, with the plain ones."""\n\n'
    text += "LOOK_ALIKES_BY_SCRIPT: Mapping[str, tuple[str, str]] = {\n"
    for script, pairs in sorted(alike.items()):
        text += f'    "{script}": ("{"".join(pairs)}", "{"".join(pairs.values())}"),\n'
    text += '}\n"""Characters of other scripts that look like a Latin letter, and these letters."""\n\n'
    text += "SCRIPTS: Mapping[str, tuple[range, ...]] = {\n"
    for script, runs in scripts.items():
        text += f'    "{script}": (\n'
        parts = [f"range({first:#x}, {stop:#x})," for first, stop in runs]
        text += "".join(f"        {' '.join(parts[i : i + 4])}\n" for i in range(0, len(parts), 4)) + "    ),\n"
    return (
        text + '}\n"""Letters of Latin and of scripts that have look-alikes and blanks between words."""\n# fmt: on\n'
    )


def main() -> None:
    """Write the table."""
    import datetime

    import icu  # type: ignore[import-not-found]

    TABLE.write_text(module(icu, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Put letters under an override of direction into the order in which they are seen (UAX #9, explicit levels).

RLO (U+202E) shows the following text from right to left, whatever it is: RLO + `cba` + PDF is read as `abc`.
"""

import re
import unicodedata

SIGNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Embeddings, overrides and isolates, and their ends."""

_MOST_LEVELS = 125  # of UAX #9, BD2: a sign beyond opens nothing
_EMBEDDINGS, _ISOLATES = "\u202a\u202b\u202d\u202e", "\u2066\u2067\u2068"
_END, _END_OF_ISOLATE = "\u202c", "\u2069"
_LEFT_TO_RIGHT, _RIGHT_TO_LEFT = "\u202d", "\u202e"
_PARTS = re.compile("[\u202a-\u202e\u2066-\u2069]|[^\u202a-\u202e\u2066-\u2069]+")
_MIRRORED = str.maketrans("()<>[]{}«»‹›", ")(><][}{»«›‹")
"""Signs that are mirrored from right to left (UAX #9, L4)."""


def as_read(text: str) -> str:
    """Return the text in the order in which it is read, without signs of direction. Lines end with `\\n`.

    Text without an override stays in its order, in which both Latin and Hebrew are read. Under an override, letters are
    reversed if they are against their own direction. The first letter decides this.
    """
    return "\n".join(_line(line) if SIGNS.search(line) else line for line in text.split("\n"))


class _Level:
    """Text under one sign: runs of text, and the text under signs within, each already in the order of reading."""

    def __init__(self, sign: str) -> None:
        self.sign = sign
        self.parts: list[tuple[str, bool]] = []  # text, and whether it is of a level within

    def as_read(self) -> str:
        if not self._is_against():
            return "".join(text for text, _ in self.parts)
        units: list[str] = []
        for text, within in self.parts:
            if within:
                units.append(text)
                continue
            for letter in text.translate(_MIRRORED):
                if units and unicodedata.combining(letter):
                    units[-1] += letter
                else:
                    units.append(letter)
        return "".join(reversed(units))

    def _is_against(self) -> bool:
        if self.sign not in (_LEFT_TO_RIGHT, _RIGHT_TO_LEFT):
            return False
        letters = (letter for text, _ in self.parts for letter in text if letter.isalpha())
        directions = map(unicodedata.bidirectional, letters)
        first = next((direction for direction in directions if direction in ("L", "R", "AL")), "L")
        return (first == "L") == (self.sign == _RIGHT_TO_LEFT)


def _line(line: str) -> str:
    opened = [_Level("")]
    beyond = 0  # signs that opened nothing, whose ends end nothing

    def close(count: int) -> None:
        for _ in range(count):
            text = opened.pop().as_read()
            opened[-1].parts.append((text, True))

    for part in _PARTS.findall(line):
        if part in _EMBEDDINGS or part in _ISOLATES:
            if len(opened) <= _MOST_LEVELS:
                opened.append(_Level(part))
            else:
                beyond += 1
        elif part in (_END, _END_OF_ISOLATE) and beyond:
            beyond -= 1
        elif part == _END:
            close(len(opened) > 1 and opened[-1].sign in _EMBEDDINGS)
        elif part == _END_OF_ISOLATE:
            isolate = next((i for i in reversed(range(len(opened))) if opened[i].sign in [*_ISOLATES]), len(opened))
            close(len(opened) - isolate)
        else:
            opened[-1].parts.append((part, False))
    close(len(opened) - 1)
    return opened[0].as_read()

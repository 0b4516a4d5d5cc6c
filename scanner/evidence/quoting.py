"""The parts of a text, by its form alone: lines that quote others, and own words.

A quoted line begins with `>` (mail, Markdown); what stands between `<blockquote>` and its end is quoted too. The form
is chosen without a look at any key, so a p-value of a part holds as that of a text does.
"""

import re
from typing import Literal, NamedTuple

Kind = Literal["own", "quoted"]

_LINE = re.compile(r"[^\n]*\n?")
_QUOTED_LINE = re.compile(r"[ \t]{0,3}(?:>|&gt;)")
_TAG = re.compile(r"<(/?)blockquote\b[^<>]*>", re.IGNORECASE)  # no "<", or many that never end take hours


class Part(NamedTuple):
    """Characters begin … end−1 of a text."""

    kind: Kind
    begin: int
    end: int


def parts_of(text: str) -> list[Part]:
    """The parts of a text, in order; neighbours differ in kind, and together they are the text."""
    blocks = _blocks(text)
    found: list[Part] = []
    for line in _LINE.finditer(text):
        begin = line.start()
        if begin == line.end():
            break
        while blocks and blocks[0][1] <= begin:
            blocks.pop(0)
        if _QUOTED_LINE.match(line.group()):
            _add(found, Part("quoted", begin, line.end()))
            continue
        for first, last in blocks:
            if first >= line.end():
                break
            _add(found, Part("own", begin, max(begin, first)))
            _add(found, Part("quoted", max(begin, first), min(last, line.end())))
            begin = min(last, line.end())
        _add(found, Part("own", begin, line.end()))
    return found


def _blocks(text: str) -> list[tuple[int, int]]:
    """What stands between the tags of a quotation, the outermost of several; one that never ends goes to the end."""
    found, depth, begin = [], 0, 0
    for tag in _TAG.finditer(text):
        if not tag.group(1):
            begin = begin if depth else tag.end()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                found.append((begin, tag.start()))
    return [*found, (begin, len(text))] if depth else found


def _add(found: list[Part], part: Part) -> None:
    if part.begin >= part.end:
        return
    if found and found[-1].kind == part.kind:
        found[-1] = found[-1]._replace(end=part.end)
    else:
        found.append(part)

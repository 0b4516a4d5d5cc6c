"""Find the quoted lines and the own words of a text.

A quoted line begins with `>` (mail, Markdown). Text between `<blockquote>` and its end is quoted too. The form is
chosen without looking at any key, so a part's p-value holds like a text's.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["own", "quoted"]

_LINE = re.compile(r"[^\n]*\n?")
_QUOTED_LINE = re.compile(r"[ \t]{0,3}(?:>|&gt;)")
# a name ends as HTML says; no "<" within a tag, because many tags that never end would take hours
_TAG = re.compile(r"<(/?)blockquote(?=[ \t\n\f\r/>])[^<>]*>", re.IGNORECASE | re.ASCII)


class TextPart(NamedTuple):
    """Characters begin … end−1 of a text."""

    kind: Kind
    begin: int
    end: int


def iterate_parts(text: str) -> Iterator[TextPart]:
    """Yield the parts that `parts_of` lists.

    A hostile text has a part in three characters, so its list would dwarf it.
    """
    return _joined(_lines_and_blocks(text))


def parts_of(text: str) -> list[TextPart]:
    """List the parts of a text, in order. Neighbours differ in kind, and together they are the text."""
    return [*iterate_parts(text)]


def unquoted_words(text: str) -> str:
    """Return a text without the lines and blocks that quote others."""
    return "".join(text[part.begin : part.end] for part in iterate_parts(text) if part.kind == "own")


def _joined(parts: Iterable[TextPart]) -> Iterator[TextPart]:
    """Yield the parts that are not empty, with neighbours of one kind joined."""
    last: TextPart | None = None
    for part in parts:
        if part.begin >= part.end:
            continue
        if last is not None and last.kind == part.kind:
            last = last._replace(end=part.end)
        else:
            if last is not None:
                yield last
            last = part
    if last is not None:
        yield last


def _lines_and_blocks(text: str) -> Iterator[TextPart]:
    """Yield lines, quoted or own, in order. Own lines are split where quoted blocks begin and end."""
    blocks = deque(_blocks(text))  # a deque, because pop(0) of a list moves all other items
    for line in _LINE.finditer(text):
        begin = line.start()
        if begin == line.end():
            break
        while blocks and blocks[0][1] <= begin:
            blocks.popleft()
        if _QUOTED_LINE.match(line.group()):
            yield TextPart("quoted", begin, line.end())
            continue
        for first, last in blocks:
            if first >= line.end():
                break
            yield TextPart("own", begin, max(begin, first))
            yield TextPart("quoted", max(begin, first), min(last, line.end()))
            begin = min(last, line.end())
        yield TextPart("own", begin, line.end())


def _blocks(text: str) -> list[tuple[int, int]]:
    """Find the text between quotation tags, the outermost if nested.

    A block that never ends goes to the end of the text.
    """
    blocks, depth, begin = [], 0, 0
    for tag in _TAG.finditer(text):
        if not tag.group(1):
            begin = begin if depth else tag.end()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                blocks.append((begin, tag.start()))
    return [*blocks, (begin, len(text))] if depth else blocks

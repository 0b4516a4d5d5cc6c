"""The parts of a text, by its form alone: lines that quote others, own words, and paragraphs of these.

A quoted line begins with `>` (mail, Markdown); text between `<blockquote>` and its end is quoted too. The form is
chosen without a look at any key, so a p-value of a part holds as a text's does.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["own", "quoted"]

Form = Literal["paragraph", "quotation"]

_LINE = re.compile(r"[^\n]*\n?")
_QUOTED_LINE = re.compile(r"[ \t]{0,3}(?:>|&gt;)")
# a name ends as HTML says; no "<" within a tag, since many tags that never end take hours
_TAG = re.compile(r"<(/?)blockquote(?=[ \t\n\f\r/>])[^<>]*>", re.IGNORECASE | re.ASCII)
_BLANK = re.compile(r"\n(?:[ \t\r]*\n)+")


class Part(NamedTuple):
    """Characters begin … end−1 of a text."""

    kind: Kind
    begin: int
    end: int


class Segment(NamedTuple):
    """Characters begin … end−1 of a text: a quotation, or a paragraph of own words."""

    form: Form
    begin: int
    end: int


def segments_of(text: str) -> Iterator[Segment]:
    """Quotations and, between them, paragraphs of own words, which blank lines part; in order.

    One after the other: a hostile text has one in three characters, whose list would take far more than the text.
    """
    for part in _joined(_pieces(text)):
        if part.kind == "quoted":
            yield Segment("quotation", part.begin, part.end)
            continue
        begin = part.begin
        for blank in _BLANK.finditer(text, part.begin, part.end):
            if begin < blank.start():
                yield Segment("paragraph", begin, blank.start())
            begin = blank.end()
        if begin < part.end:
            yield Segment("paragraph", begin, part.end)


def parts_of(text: str) -> list[Part]:
    """The parts of a text, in order; neighbours differ in kind, and together they are the text."""
    return [*_joined(_pieces(text))]


def own_words(text: str) -> str:
    """A text without the lines that quote others."""
    return "".join(text[part.begin : part.end] for part in _joined(_pieces(text)) if part.kind == "own")


def _joined(pieces: Iterable[Part]) -> Iterator[Part]:
    """Pieces without those of no length; neighbours of one kind are one."""
    last: Part | None = None
    for piece in pieces:
        if piece.begin >= piece.end:
            continue
        if last is not None and last.kind == piece.kind:
            last = last._replace(end=piece.end)
        else:
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last


def _pieces(text: str) -> Iterator[Part]:
    """Lines that are quoted or own, and what of own lines stands in blocks, in order."""
    blocks = deque(_blocks(text))  # a deque, since pop(0) of a list moves all other items
    for line in _LINE.finditer(text):
        begin = line.start()
        if begin == line.end():
            break
        while blocks and blocks[0][1] <= begin:
            blocks.popleft()
        if _QUOTED_LINE.match(line.group()):
            yield Part("quoted", begin, line.end())
            continue
        for first, last in blocks:
            if first >= line.end():
                break
            yield Part("own", begin, max(begin, first))
            yield Part("quoted", max(begin, first), min(last, line.end()))
            begin = min(last, line.end())
        yield Part("own", begin, line.end())


def _blocks(text: str) -> list[tuple[int, int]]:
    """Text between the tags of quotations, the outermost of nested ones; one that never ends goes to the text's end."""
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

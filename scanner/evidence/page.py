"""A flag as a page: one file that needs no script, no network and no other file, and prints as it looks.

Charts are inline SVG, with words for people who cannot see them.

The text comes from a stranger. Everything is escaped (Jinja2's autoescape), what no eye sees is shown as escapes, and
the page's policy (`default-src 'none'`) lets nothing in it load or run.
"""

import functools
import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from scanner.evidence.advice import advise, in_short
from scanner.evidence.explanation import LEVELS, Explanation
from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found
from scanner.printable import MOST_MARKS, amount, combines, printable, safe
from schemas.words import WEIGHED

_WIDTH, _HEIGHT, _LEFT, _BELOW = 520, 300, 60, 50


def rates_chart(rows: Sequence[Mapping[str, Any]], tested: str = "decoy keys") -> Markup:
    """Observed against stated rates, both on a logarithmic scale, with their limits; the line is "as stated".

    rows: of schemas.audit.AUDITS, with tests, hits, expected, low and high; no hits stand at the bottom. tested: what
    the rates are of, in words.
    """
    points = [
        (
            row["expected"] / row["tests"],
            row["hits"] / row["tests"],
            row["low"] / row["tests"],
            row["high"] / row["tests"],
        )
        for row in rows
        if row["tests"] and row["expected"] > 0
    ]
    least = min((stated for stated, *_ in points), default=1e-8) / 10
    decades = -math.log10(least)

    def at(rate: float) -> float:
        return 1 + math.log10(max(rate, least)) / decades

    def x(rate: float) -> float:
        return _LEFT + at(rate) * (_WIDTH - _LEFT - 10)

    def y(rate: float) -> float:
        return 10 + (1 - at(rate)) * (_HEIGHT - _BELOW - 10)

    drawn = [Markup('<path class="stated" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(x(least), y(least), x(1), y(1))]
    for exponent in range(math.floor(decades) + 1):
        rate = 10.0**-exponent
        words = ("1",) if not exponent else (f"1e-{exponent}",)
        drawn += [
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x(rate), _HEIGHT - 30, *words),
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(_LEFT - 6, y(rate) + 4, *words),
        ]
    for stated, observed, low, high in points:
        drawn += [
            Markup('<path class="limits" d="M{0:.1f} {1:.1f}V{2:.1f}"/>').format(x(stated), y(low), y(high)),
            Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(x(stated), y(observed)),
        ]
    caption = f"{len(points)} rates on {tested}: observed against stated, with limits."
    axes = Markup('<text x="{}" y="{}" text-anchor="middle">stated rate</text>').format(_WIDTH // 2, _HEIGHT - 4)
    return _svg(caption, _HEIGHT, [*drawn, axes])


def bars_chart(rows: Sequence[tuple[str, int]], caption: str) -> Markup:
    """A bar a row, below its words, with its number beside it; 40 letters fit on a phone."""
    most = max((count for _, count in rows), default=1)
    drawn = []
    for i, (words, count) in enumerate(rows):
        y = 40 * i
        width = max(1.0, 420 * count / most)
        drawn += [
            Markup('<text x="0" y="{}">{}</text>').format(y + 16, words),
            Markup('<rect x="0" y="{}" width="{:.1f}" height="12"/>').format(y + 22, width),
            Markup('<text x="{:.1f}" y="{}">{:,}</text>').format(width + 8, y + 33, count),
        ]
    return _svg(caption, 40 * len(rows), drawn)


def _svg(caption: str, height: int, drawn: Sequence[Markup]) -> Markup:
    head = Markup('<svg role="img" viewBox="0 0 {} {}" aria-label="{}"><title>{}</title>')
    return head.format(_WIDTH, height, escape(caption), escape(caption)) + Markup("").join(drawn) + Markup("</svg>")


MOST_CHARACTERS = 40_000
"""Most characters of a text on a page; fewer where escapes or many short runs would make it larger than MOST_BYTES."""

MOST_BYTES = 180_000
"""Most bytes of the text with its marks, so that a page stays below 200 kB."""

LONGEST_TITLE = 400
"""Most characters of a document's id above its page: an id may have as many as a text."""

_SPAN_BYTES = len('<span class="l4 q m" title="very strongly"></span>')

LEVEL_WORDS = ("nothing", "a little", "some", "strongly", "very strongly")


class PageSegment(NamedTuple):
    """Some characters of a text.

    level: level of their run; None: they are not scored; marked: they stand in a part that is marked by itself.
    """

    text: str
    level: int | None
    quoted: bool
    marked: bool


def segments(explained: Explanation, most: int = MOST_CHARACTERS) -> list[PageSegment]:
    """The text's first characters, cut wherever evidence or kind of part changes."""
    text = (explained.text or "")[:most]
    runs = explained.weighed.runs if explained.weighed else []
    # places of marked parts are in the text as it stands
    spans = explained.spans if explained.row["variant"] is None else ()
    marked = [(span["char_from"], span["char_to"]) for span in spans]
    speaking = {kind: kind not in explained.silent for kind in ("quoted", "own")}
    cuts = {0, len(text)}
    evidence = [*((run.begin, run.end) for run in runs), *((part.begin, part.end) for part in explained.parts)]
    for begin, end in [*evidence, *marked]:
        cuts |= {min(begin, len(text)), min(end, len(text))}
    bounds = sorted({_behind_accents(text, cut) for cut in cuts})
    found = []
    run, part = 0, 0
    for begin, end in pairwise(bounds):
        while run < len(runs) and runs[run].end <= begin:
            run += 1
        while part < len(explained.parts) and explained.parts[part].end <= begin:
            part += 1
        inside = run < len(runs) and runs[run].begin <= begin
        quoted = part < len(explained.parts) and explained.parts[part].kind == "quoted"
        of_span = any(first <= begin < last for first, last in marked)
        level = None if not inside else runs[run].level if speaking["quoted" if quoted else "own"] else 0
        found.append(PageSegment(visible(text[begin:end]), level, quoted, of_span))
    return found


def _behind_accents(text: str, index: int) -> int:
    """A place behind the accents that are shown on the letter before it; piles of them are no accents."""
    end = min(index + MOST_MARKS, len(text)) if index else 0
    while index < end and combines(text[index]):
        index += 1
    return index


def _fitting(explained: Explanation) -> tuple[list[PageSegment], int]:
    """The text as far as a page holds it, and how many of its characters that are."""
    most = min(MOST_CHARACTERS, len(explained.text or ""))
    while True:
        found = segments(explained, most)
        if sum(len(escape(part.text).encode()) + _SPAN_BYTES for part in found) <= MOST_BYTES:
            return found, most
        most = most * 3 // 4


def visible(text: str) -> str:
    """Text whose lines show all characters in them; line ends stay."""
    return "\n".join(safe(line) for line in text.replace("\r\n", "\n").split("\n"))


def page(explained: Explanation, back: str | None = None) -> str:
    """The page of a flag, as HTML; `back`: a link to its night."""
    return environment().get_template("flag.html.j2").render(**about(explained), back=back)


def about(explained: Explanation) -> dict[str, Any]:
    """Values for the template `about_flag.html.j2`, and the title of its page."""
    text, (of_text, most) = explained.text or "", _fitting(explained)
    return {
        "title": f"Flag: {printable(explained.row['doc_id'] or explained.case.where, LONGEST_TITLE)}",
        "advice": advise(explained),
        "in_short": safe(in_short(explained)),
        "facts": [(heading, safe(sentence)) for heading, sentence in what_was_found(explained)],
        "does_not_say": DOES_NOT_SAY,
        "no_text": explained.no_text and safe(explained.no_text),
        "segments": of_text,
        "left_out": len(text) - most,
        "weighed": explained.weighed,
        "by_model": explained.row["unit"] == WEIGHED,
        "spans": explained.spans,
        "not_weighed": explained.not_weighed and safe(explained.not_weighed),
        "levels": list(enumerate(LEVEL_WORDS)),
    }


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read."""
    with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


@functools.cache
def environment() -> jinja2.Environment:
    """Templates of this package; their values are escaped."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("scanner.evidence", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["amount"] = amount
    return found


if len(LEVEL_WORDS) != len(LEVELS) + 1:  # a level without a word would be shown as nothing
    raise ValueError("each level of evidence needs its word")

"""Render a flag as a page: one file that needs no script, no network and no other file, and prints as it looks.

The text comes from a stranger. Everything is escaped (Jinja2's autoescape), invisible characters are shown as escapes,
and the page's policy (`default-src 'none'`) lets nothing in it load or run.
"""

import functools
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import escape

from scanner.evidence.advice import advise, by_chance, in_short
from scanner.evidence.explanation import RUN_STRENGTHS, Explanation
from scanner.evidence.posted_text import is_inside_letter, shown_characters
from scanner.evidence.sentences import DOES_NOT_SAY, name, signature_in_words, what_was_found
from scanner.printable import amount, printable, safe
from schemas.words import LEVELS, Naming

CHARACTERS_A_PAGE = 40_000
"""Most characters of a text on a page. It has fewer if escapes or many short runs would take TEXT_BYTES_A_PAGE."""


TEXT_BYTES_A_PAGE = 180_000
"""Most bytes of the text with its marks. The page then stays below 200 kB."""


LONGEST_TITLE = 400
"""Most characters of a document's id above its page. An id may be as long as a text."""


_SPAN_BYTES = len('<span class="l4 u3 q pb pe" title="very strongly"></span>')


LEVEL_WORDS = ("nothing", "a little", "some", "strongly", "very strongly")


class PageSegment(NamedTuple):
    """Some characters of a text."""

    text: str
    level: int | None
    """Strength of their run, an index in LEVEL_WORDS. None: they are not scored."""
    quoted: bool
    user: int = 0
    """User whose mark their run supports: an index in `marked_users`."""
    marked: bool = False
    """Whether they are in a part that is marked by itself."""
    begins_part: bool = False
    ends_part: bool = False


MOST_HUES = 4
"""Most users whose evidence is shown in one text, each in its own colour."""


def marked_users(explained: Explanation) -> list[str]:
    """Return the users whose evidence is shown, the flag's own user first. It is one user if nobody is named."""
    first_user = (
        name(explained.row["user_id"]) if explained.row["naming"] == Naming.NAMED else "the message of this flag"
    )
    return [first_user, *(name(other.user_id) for other in explained.others)][:MOST_HUES]


def segments(explained: Explanation, most: int = CHARACTERS_A_PAGE) -> list[PageSegment]:
    """Cut a text's first characters wherever evidence or kind of part changes."""
    text = (explained.text or "")[:most]
    # 1. collect runs of tokens, the flag's own user first, and marked parts, if the text is shown as written
    user_runs = [explained.text_evidence.runs if explained.text_evidence else []]
    user_runs += [other.runs for other in explained.others[: MOST_HUES - 1]]
    spans = explained.spans if explained.row["variant"] is None else ()
    ends = ("char_from", "char_to")
    # 2. collect the cuts, none of them within a letter
    edges = [edge for runs in user_runs for run in runs for edge in (run.begin, run.end)]
    edges += [edge for part in explained.parts for edge in (part.begin, part.end)]
    edges += [span[end] for span in spans for end in ends]
    behind = _behind_letters(text, [0, *edges, len(text)])
    marked_ranges = [tuple(behind[span[end]] for end in ends) for span in spans]
    bounds = sorted({*behind.values()})
    # 3. find the strongest run of any user in each segment
    places, part = [0] * len(user_runs), 0
    speaking = {kind: kind not in explained.silent for kind in ("quoted", "own")}
    characters, page_segments = shown_characters(text), []
    for begin, end in pairwise(bounds):
        while part < len(explained.parts) and explained.parts[part].end <= begin:
            part += 1
        quoted = part < len(explained.parts) and explained.parts[part].kind == "quoted"
        levels: list[tuple[int, int]] = []
        for user, runs in enumerate(user_runs):
            while places[user] < len(runs) and runs[places[user]].end <= begin:
                places[user] += 1
            if places[user] < len(runs) and runs[places[user]].begin <= begin:
                levels.append((runs[places[user]].level, -user))
        level, user = max(levels, default=(None, 0))
        if level is not None and not speaking["quoted" if quoted else "own"]:
            level = 0
        within = [(first, last) for first, last in marked_ranges if first <= begin < last]
        begins_part, ends_part = any(first == begin for first, _ in within), any(last == end for _, last in within)
        part_fields = bool(within), begins_part, ends_part
        page_segments.append(PageSegment("".join(characters[begin:end]), level, quoted, -user, *part_fields))
    return page_segments


class PageLine(NamedTuple):
    """A line of a text, with a line in its margin if a marked part reaches into it."""

    segments: list[PageSegment]
    marked: bool


def lines_of(found: Sequence[PageSegment]) -> list[PageLine]:
    """Cut segments into the lines of their text."""
    lines: list[list[PageSegment]] = [[]]
    for segment in found:
        first, *more = segment.text.split("\n")
        lines[-1].append(segment._replace(text=first, ends_part=segment.ends_part and not more))
        for number, text in enumerate(more, 1):
            ends = segment.ends_part and number == len(more)
            lines.append([segment._replace(text=text, begins_part=False, ends_part=ends)])
    return [PageLine(line, any(part.marked and part.text.strip() for part in line)) for line in lines]


def _behind_letters(text: str, places: Iterable[int]) -> dict[int, int]:
    """Find, for each place, the next place of the text that is not inside a letter or emoji as a reader sees it."""
    behind, end = {}, 0
    for place in sorted({*places}):
        # go through a letter with several places only once: a text may be one letter of 40,000 characters
        end = max(end, min(place, len(text)))
        while is_inside_letter(text, end):
            end += 1
        behind[place] = end
    return behind


def _fitting(explained: Explanation) -> tuple[list[PageSegment], int]:
    """Return as much of the text as fits on a page, and the number of its characters."""
    length = min(CHARACTERS_A_PAGE, len(explained.text or ""))
    while True:
        page_segments = segments(explained, length)
        if sum(len(escape(part.text).encode()) + _SPAN_BYTES for part in page_segments) <= TEXT_BYTES_A_PAGE:
            return page_segments, length
        length = length * 3 // 4


def page(explained: Explanation, back: str | None = None) -> str:
    """Render the page of a flag as HTML.

    Args:
        explained: the flag.
        back: a link to its night.
    """
    return environment().get_template("flag.html.j2").render(**about(explained), back=back)


def about(explained: Explanation) -> dict[str, Any]:
    """Return the values for the template `about_flag.html.j2`, and the title of its page."""
    text, (page_segments, length) = explained.text or "", _fitting(explained)
    return {
        "title": f"Flag: {printable(explained.row['doc_id'] or explained.case.where, LONGEST_TITLE)}",
        "advice": advise(explained),
        "in_short": safe(in_short(explained)),
        "by_chance": by_chance(explained),
        "alarm": None if explained.alarm is None else safe(explained.alarm),
        "facts": [(heading, safe(sentence)) for heading, sentence in what_was_found(explained)],
        "does_not_say": DOES_NOT_SAY,
        "no_text": explained.no_text and safe(explained.no_text),
        "lines": lines_of(page_segments),
        "users": marked_users(explained),
        "more_characters": len(text) - length,
        "text_evidence": explained.text_evidence,
        "by_model": explained.row["look"] == LEVELS,
        "spans": explained.spans,
        "no_evidence": explained.no_evidence and safe(explained.no_evidence),
        "levels": list(enumerate(LEVEL_WORDS)),
    }


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises OSError: it already exists."""
    with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


@functools.cache
def environment() -> jinja2.Environment:
    """Return the templates of this package, which escape their values."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("scanner.evidence", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["amount"] = amount
    templates.filters["signature"] = signature_in_words
    return templates


if len(LEVEL_WORDS) != len(RUN_STRENGTHS) + 1:  # a level without a word would be invisible
    raise ValueError("each level of evidence needs its word")

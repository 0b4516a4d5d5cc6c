"""`brickscan explain CONFIG|RESULTS DOC`: one flag, in words that a moderator, a user and a court can follow."""

import json
import os
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.options import NamedPath, results_argument, results_at
from jobs.text import tell
from scanner.errors import Refused

if TYPE_CHECKING:
    from scanner.evidence.explanation import Explanation
    from scanner.evidence.page import Segment

MOST_CHARACTERS = 3_000
"""Most characters of a text in a terminal."""

_MARKS = (" ", ".", "-", "=", "#")
_WIDEST = 100


@click.command()
@results_argument
@click.argument("document", metavar="DOC")
@click.option("--html", "page_file", type=NamedPath(path_type=Path), help="Write a page here; it needs no network.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--run", type=click.IntRange(1), help="Scored tokens shown as one. Below 8: material of the key.  [8]")
def explain(results: str, document: str, page_file: Path | None, as_json: bool, run: int | None) -> None:
    """Explain one flag: what was found, how seldom chance does it, where it stands in the text, what it does not say.

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results, with which the text is not shown. DOC: the
    id of a document, or PATH:ROW. The text is read again from its file, or from what the scan kept ([evidence]
    keep_text), and shown only if it is the one that was scanned. Below each line of it stands how strongly it speaks
    for the mark: nothing, then . - = #. Quoted lines (`>`, <blockquote>) and own words have p-values of their own,
    which decide nothing. What single tokens say is material of the key: who collects many such pages learns the mark,
    so that runs of 8 are shown, in five steps.

    \b
    Example:
      brickscan explain scan.toml post-4711
      brickscan explain scan.toml /data/2026-11-20/a.parquet:17 --html flag.html
    """
    if page_file is not None and as_json:
        raise click.UsageError("Give --html or --json; one of the two.")
    from scanner.evidence.explainer import Explainer
    from scanner.evidence.records import record_of
    from scanner.evidence.weighing import RUN

    place = results_at(results)
    explained = Explainer(place.config or place.folder, run or RUN).explain(document)
    if page_file is not None:
        _write(page_file, explained)
        tell(f"page: {page_file}")
    elif as_json:
        tell(*json.dumps(record_of(explained), indent=1).splitlines())
    else:
        tell(*_lines(explained))


def _write(file: Path, explained: "Explanation") -> None:
    from scanner.evidence.page import page, write_private

    file = file.absolute()  # "." has no name
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.unfinished")
    try:
        write_private(unfinished, page(explained))
        unfinished.replace(file)
    except OSError as error:
        raise Refused(
            f"--html {file}: cannot be written ({error.strerror}); name a file in a folder of yours"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


def _lines(explained: "Explanation") -> Iterator[str]:
    from scanner.evidence.page import segments
    from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found

    width = min(shutil.get_terminal_size().columns, _WIDEST)
    for heading, sentence in what_was_found(explained):
        yield from _wrapped(f"{heading}: {sentence}", width)
    yield from _wrapped(f"What this does not say: {'; '.join(DOES_NOT_SAY)}", width)
    yield ""
    if explained.text is None:
        yield from _wrapped(f"The text is not shown: {explained.no_text}.", width)
        return
    if explained.not_weighed is not None:
        yield from _wrapped(f"The text stands without its evidence: {explained.not_weighed}.", width)
    yield from _marked_lines(segments(explained, MOST_CHARACTERS), width)
    if len(explained.text) > MOST_CHARACTERS:
        yield f"({len(explained.text) - MOST_CHARACTERS:,} more characters; --html shows more)"


def _wrapped(line: str, width: int) -> list[str]:
    """Text wrapped so that paths and ids stay whole and can be copied."""
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _marked_lines(parts: "list[Segment]", width: int) -> Iterator[str]:
    """Lines of a text, each with a line of marks below it; a prefix tells own words from quoted ones.

    A character's mark stands below it, where a terminal gives each character one column.
    """
    shown, marks = "", ""
    for part in parts:
        mark = " " if part.level is None else _MARKS[part.level]
        for character in part.text:
            if character == "\n" or len(shown) >= width:
                yield from _pair(shown, marks)
                shown, marks = "", ""
            if character != "\n":
                shown, marks = shown + character, marks + mark
    yield from _pair(shown, marks)


def _pair(shown: str, marks: str) -> Iterator[str]:
    yield shown
    if marks.strip():
        yield marks.rstrip()

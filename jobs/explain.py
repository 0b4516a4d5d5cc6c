"""`brickscan explain CONFIG|RESULTS DOC|ACCOUNT`: one flag or marked account, in words that all can follow."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.options import Day, NamedPath, results_argument, results_at, scanned
from jobs.text import tell, wrapped
from scanner.errors import Refused
from scanner.printable import combines, cut, safe

if TYPE_CHECKING:
    from scanner.evidence.explanation import Explanation
    from scanner.evidence.marked_accounts import AccountExplained, Post
    from scanner.evidence.page import Segment

MOST_CHARACTERS = 3_000
"""Most characters of a text in a terminal."""

MOST_POSTS = 20
"""Most posts of an account in a terminal."""

LONGEST_PART = 400
"""Most characters of quoted lines, or of own words between them, of a post in a terminal."""

_MARKS = (" ", ".", "-", "=", "#")
_WIDEST = 100


@click.command()
@results_argument
@click.argument("document", metavar="DOC|ACCOUNT")
@click.option(
    "--account", "of_account", is_flag=True, help="Explain the account of this name, whatever documents have it."
)
@click.option("--date", "night", type=Day(), help="Of an account: its night, as the date of its data.  [the newest]")
@click.option("--html", "page_file", type=NamedPath(path_type=Path), help="Write a page here; it needs no network.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--run", type=click.IntRange(1), help="Scored tokens shown as one. Below 8: material of the key.  [8]")
def explain(
    results: str,
    document: str,
    of_account: bool,
    night: datetime | None,
    page_file: Path | None,
    as_json: bool,
    run: int | None,
) -> None:
    """Explain one flag: what was found, how seldom chance does it, where it stands in the text, what it does not say.

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results, with which the text is not shown. DOC: the
    id of a document, or PATH:ROW. The text is read again from its file, or from what the scan kept ([evidence]
    keep_text), and shown only if it is the one that was scanned. Below each line of it stands how strongly it speaks
    for the mark: nothing, then . - = #. Quoted lines (`>`, <blockquote>) and own words have p-values of their own,
    which decide nothing. What single tokens say is material of the key: who collects many such pages learns the mark,
    so that runs of 8 are shown, in five steps.

    ACCOUNT: a marked account (`brickscan accounts`), where no flagged document has this name: why it is named or not,
    and its posts, those that speak strongest for the mark first, own words beside quoted lines.

    \b
    Example:
      brickscan explain scan.toml post-4711
      brickscan explain scan.toml /data/2026-11-20/a.parquet:17 --html flag.html
      brickscan explain scan.toml --account user-17 --date 2026-11-20
    """
    if page_file is not None and as_json:
        raise click.UsageError("Give --html or --json; one of the two.")
    from scanner.evidence.account_page import account_page, record_of_account
    from scanner.evidence.explainer import Explainer
    from scanner.evidence.marked_accounts import explain_account, marked_accounts
    from scanner.evidence.page import page
    from scanner.evidence.records import record_of
    from scanner.evidence.weighing import RUN

    place = results_at(results)
    if not scanned(place):
        return
    explainer = Explainer(place.config or place.folder, run or RUN)
    day = night.date() if night else None
    explained = None
    if not of_account and day is None:
        try:
            explained = explainer.explain(document)
        except Refused:
            if not marked_accounts(explainer, day, [document]):
                raise
    found = explain_account(explainer, document, day) if explained is None else []
    if page_file is not None:
        _write(page_file, page(explained) if explained else account_page(found))
        tell(f"page: {page_file}")
    elif as_json:
        record = record_of(explained) if explained else {"accounts": [record_of_account(one) for one in found]}
        tell(*json.dumps(record, indent=1).splitlines())
    else:
        tell(*(_lines(explained) if explained else _account_lines(found)))


def _write(file: Path, html: str) -> None:
    from scanner.evidence.page import write_private

    file = file.absolute()  # "." has no name
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.unfinished")
    try:
        write_private(unfinished, html)
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
        yield from wrapped(f"{heading}: {sentence}", width, "  ")
    yield from wrapped(f"What this does not say: {'; '.join(DOES_NOT_SAY)}", width, "  ")
    yield ""
    if explained.text is None:
        yield from wrapped(f"The text is not shown: {explained.no_text}.", width, "  ")
        return
    if explained.not_weighed is not None:
        yield from wrapped(f"The text stands without its evidence: {explained.not_weighed}.", width, "  ")
    yield from _marked_lines(segments(explained, MOST_CHARACTERS), width)
    if len(explained.text) > MOST_CHARACTERS:
        yield f"({len(explained.text) - MOST_CHARACTERS:,} more characters; --html shows more)"


def _account_lines(found: "Sequence[AccountExplained]") -> Iterator[str]:
    from scanner.evidence.account_page import posts_in_words, what_was_found

    width = min(shutil.get_terminal_size().columns, _WIDEST)
    for explained in found:
        for heading, sentence in what_was_found(explained):
            yield from wrapped(f"{heading}: {safe(sentence)}", width, "  ")
        yield ""
        yield from wrapped(posts_in_words(explained, MOST_POSTS), width, "  ")
        for post in explained.posts[:MOST_POSTS]:
            yield ""
            yield from _post_lines(post, width)


def _post_lines(post: "Post", width: int) -> Iterator[str]:
    from scanner.evidence.account_page import about_post
    from scanner.evidence.page import visible

    yield from wrapped(about_post(post), width, "  ")
    for part in post.parts:
        margin = "  quotes | " if part.kind == "quoted" else "  writes | "
        text = visible(post.text[part.begin : part.end].rstrip())
        for line in (text if len(text) <= LONGEST_PART else cut(text, LONGEST_PART)).split("\n"):
            yield from wrapped(margin + line, width, margin) if line.strip() else ()


def _marked_lines(parts: "list[Segment]", width: int) -> Iterator[str]:
    """Lines of a text, each with a line of marks below it; a prefix tells own words from quoted ones.

    A character's mark stands below it, where a terminal gives each character one column, and accents none. Lines end
    behind a blank where they have one.
    """
    line: list[tuple[str, str]] = []  # what stands in a column, and its mark
    for part in parts:
        mark = " " if part.level is None else _MARKS[part.level]
        for character in part.text:
            if line and combines(character):
                line[-1] = line[-1][0] + character, line[-1][1]
                continue
            if character == "\n":
                yield from _pair(line)
                line = []
                continue
            if len(line) >= width:
                end = next((i for i in range(len(line), 0, -1) if character == " " or line[i - 1][0] == " "), len(line))
                yield from _pair(line[:end])
                line = line[end:]
            line.append((character, mark))
    yield from _pair(line)


def _pair(line: list[tuple[str, str]]) -> Iterator[str]:
    marks = "".join(mark for _, mark in line).rstrip()
    yield "".join(shown for shown, _ in line)
    if marks:
        yield marks

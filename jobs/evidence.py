"""Run `brickscan explain`, `replay` and `report`: explain flags, score them again, and write them as pages."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from jobs.options import Day, NamedPath, refuse_unscanned, results_argument, results_at
from jobs.text import columns, complain, tell, wrap_line
from scanner.errors import Refused
from scanner.evidence.posted_text import as_posted
from scanner.printable import combines, counted, cut, printable, safe
from schemas.words import Naming

if TYPE_CHECKING:
    from scanner.evidence.explanation import Explanation
    from scanner.evidence.page import PageSegment
    from scanner.looks.marked_account import AccountExplanation, AccountPost

CHARACTERS_IN_TERMINAL = 3_000
"""Most characters of a text in a terminal."""

POSTS_IN_TERMINAL = 20
"""Most posts of an account in a terminal."""

LONGEST_PART = 400
"""Most characters of quoted lines, or of own words between them, of a post in a terminal."""

_MARKS = (" ", ".", "-", "=", "#")
_LEGEND = (
    "The text, and below each line how strongly the words above speak for the mark: . a little, - some, = strongly, "
    "# very strongly."
)
_WIDEST = 100


@click.command()
@results_argument
@click.argument("document", metavar="DOC|ACCOUNT")
@click.option("--account", "is_account", is_flag=True, help="Account with this name, even if a document has it too")
@click.option("--date", "night", type=Day(), help="Night of an account, as the date of its data  [default: the newest]")
@click.option("--html", "page_file", type=NamedPath(path_type=Path), help="File to write as a web page")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text")
def explain(
    results: str,
    document: str,
    is_account: bool,
    night: datetime | None,
    page_file: Path | None,
    as_json: bool,
) -> None:
    """Explain one flag: what was found, how rarely chance does it, and where it is in the text.

    Give the scan's CONFIG; with only the folder or URI of its RESULTS, the text is not shown. DOC is the id of a
    document, or PATH:ROW. The text is read again and shown only if it is the one that was scanned. Below each line,
    `. - = #` say how strongly it speaks for the mark. Quoted lines and own words have p-values of their own, which
    decide nothing.

    For an ACCOUNT (`brickscan accounts`), you see why it is named or not, and its posts, strongest first.

    \b
    Example:
      brickscan explain scan.toml post-4711
      brickscan explain scan.toml /data/2026-11-20/a.parquet:17 --html flag.html
      brickscan explain scan.toml --account user-17 --date 2026-11-20
    """
    if page_file is not None and as_json:
        raise click.UsageError("Give either --html or --json.")
    from scanner.evidence.explainer import Explainer
    from scanner.evidence.page import page
    from scanner.evidence.sentences import record_of
    from scanner.looks.marked_accounts import account_look, marked_accounts

    location = results_at(results)
    refuse_unscanned(location)
    explainer = Explainer(location.config or location.folder)
    day = night.date() if night else None
    explained = None
    if not is_account and day is None:
        try:
            explained = explainer.explain(document)
        except Refused:
            if not marked_accounts(explainer, day, [document]):
                raise
    accounts = account_look().explain_account(explainer, document, day) if explained is None else []
    if page_file is not None:
        _write(page_file, page(explained) if explained else account_look().account_page(accounts))
        tell(f"page: {page_file}")
    elif as_json:
        if explained:
            record = record_of(explained)
        else:
            record = {"accounts": [account_look().record_of_account(account) for account in accounts]}
        tell(*json.dumps(record, indent=1).splitlines())
    else:
        tell(*(_lines(explained) if explained else _account_lines(accounts)))


def _write(file: Path, html: str) -> None:
    from scanner.evidence.page import write_private
    from scanner.storage.locations import unfinished_beside

    file = file.absolute()  # "." has no name
    if file.is_dir():
        raise Refused(f"--html {file}: is a folder; name a file in it")
    try:
        with unfinished_beside(file) as unfinished:
            write_private(unfinished, html)
            unfinished.replace(file)
    except OSError as error:
        raise Refused(
            f"--html {file}: cannot be written ({error.strerror}); name a file in a folder of yours"
        ) from None


def _lines(explained: "Explanation") -> Iterator[str]:
    from scanner.evidence.page import segments
    from scanner.evidence.sentences import DOES_NOT_SAY, what_was_found

    width = min(shutil.get_terminal_size().columns, _WIDEST)
    for heading, sentence in what_was_found(explained):
        yield from wrap_line(f"{heading}: {sentence}", width, "  ")
    yield from wrap_line(f"What this does not say: {'; '.join(DOES_NOT_SAY)}", width, "  ")
    yield ""
    if explained.text is None:
        yield from wrap_line(f"The text is not shown: {explained.no_text}.", width, "  ")
        return
    if explained.no_evidence is not None:
        yield from wrap_line(f"The text is shown without its evidence: {explained.no_evidence}.", width, "  ")
    else:
        yield from wrap_line(_LEGEND, width, "")
        yield ""
    yield from _marked_lines(segments(explained, CHARACTERS_IN_TERMINAL), width)
    if len(explained.text) > CHARACTERS_IN_TERMINAL:
        yield f"({counted(len(explained.text) - CHARACTERS_IN_TERMINAL, 'more character')}; --html shows more)"


def _account_lines(accounts: "Sequence[AccountExplanation]") -> Iterator[str]:
    from scanner.looks.marked_accounts import account_look

    look = account_look()
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    for explained in accounts:
        for heading, sentence in look.what_was_found(explained):
            yield from wrap_line(f"{heading}: {safe(sentence)}", width, "  ")
        yield ""
        yield from wrap_line(look.posts_in_words(explained, POSTS_IN_TERMINAL), width, "  ")
        for post in explained.posts[:POSTS_IN_TERMINAL]:
            yield ""
            yield from _post_lines(post, width)


def _post_lines(post: "AccountPost", width: int) -> Iterator[str]:
    from scanner.looks.marked_accounts import account_look

    yield from wrap_line(account_look().about_post(post), width, "  ")
    for part in post.parts:
        margin = "  quotes | " if part.kind == "quoted" else "  writes | "
        text = as_posted(post.text[part.begin : part.end].rstrip())
        for line in (text if len(text) <= LONGEST_PART else cut(text, LONGEST_PART)).split("\n"):
            yield from wrap_line(margin + line, width, margin) if line.strip() else ()


def _marked_lines(parts: "list[PageSegment]", width: int) -> Iterator[str]:
    """Yield a text's lines with marks below, in a terminal's columns. A prefix tells own words from quoted ones."""
    line: list[tuple[str, str]] = []  # the content of a column, and its mark
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
    yield "".join(cell for cell, _ in line)
    if marks:
        yield marks


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@click.argument("document", metavar="DOC")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text")
@click.option("--proof", "folder", type=NamedPath(path_type=Path), help="New folder for the expert who checks the flag")
def replay(config: Path, document: str, as_json: bool, folder: Path | None) -> int:
    """Compute one verdict again and compare it with the recorded one, field by field.

    DOC is the id of a flagged document, or PATH:ROW. The text is read again and must be the one that was scanned. Score
    and p-value come from a slower method that shares no code with the scan. Exit code 3: something differs.

    --proof writes what an expert needs who is given the secret: claim, text, tokens, tokenizer, and the key's public
    record. No file in it holds anything of the secret, and check_claim.py checks it without brickscan.

    \b
    Example:
      brickscan replay scan.toml post-4711
      brickscan replay scan.toml post-4711 --proof case-17
    """
    from scanner.evidence.replay import replay as replay_flag

    result = replay_flag(config, document)
    if folder is not None and result.evidence_equal:
        from scanner.evidence.explainer import Explainer
        from scanner.evidence.replay import write_claim

        write_claim(Explainer(config), result.case, folder)
    if as_json:
        fields = [
            comparison._asdict() | {"recorded": _plain(comparison.recorded), "again": _plain(comparison.again)}
            for comparison in result.fields
        ]
        record = {"document": result.case.where, "equal": result.equal, "text_not_from_file": result.not_from_file}
        record["unchecked"], record["fields"] = result.unchecked, fields
        tell(*json.dumps(record, indent=1).splitlines())
        return 0 if result.equal else 3
    rows = [
        (
            comparison.field,
            _shown(comparison.recorded),
            _shown(comparison.again),
            "equal" if comparison.equal else "DIFFERS",
            comparison.why or "",
        )
        for comparison in result.fields
    ]
    tell(*columns([("field", "recorded", "computed again", "", ""), *rows]))
    if result.not_from_file is not None:
        tell(
            f"The text is the copy that the scan kept ({result.not_from_file}); the other columns of its row are not "
            "compared."
        )
    if result.unchecked is not None:
        tell(f"signatures of tables were not checked: {result.unchecked}")
    if folder is not None and not result.evidence_equal:
        tell(f"no claim is written to {folder}: the verdict comes out differently, so there is nothing to prove")
    elif folder is not None:
        from scanner.evidence import check_claim

        tell(f"claim: {folder}; python -I check_claim.py {folder} SECRET_FILE LIST HEAD checks it")
        tell(
            f"The script is {check_claim.__file__}; the person who checks should take it from a copy of brickscan "
            "that they trust."
        )
    if result.equal:
        tell("The verdict comes out the same.")
    elif result.evidence_equal:
        tell("The evidence comes out the same, but the message's user does not: see `brickscan users verify`.")
    else:
        tell("The verdict comes out DIFFERENTLY: do not use this flag.")
    return 0 if result.equal else 3


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.10g}"
    return printable(str(_plain(value)), 60)


@click.command()
@results_argument
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), help="Date of the data  [default: the newest scan's]")
@click.option("--out", required=True, type=NamedPath(path_type=Path, file_okay=False), help="New folder for the pages")
def report(results: str, day: datetime | None, out: Path) -> None:
    """Write a night as web pages: an overview, a page for each flag and each marked account.

    Give the scan's CONFIG; with only the folder or URI of its RESULTS, no text is shown. Open index.html in a browser.
    Pages need no network and no script, print as they look, and each has a JSON twin. They hold people's texts, so only
    you can read them. An earlier report in the folder is replaced.

    \b
    Example:
      brickscan report scan.toml --out report
      brickscan report scan.toml --date 2026-11-20 --out reports/2026-11-20
    """
    from scanner.evidence.explainer import Explainer
    from scanner.looks.marked_accounts import marked_accounts
    from scanner.night_report import night_of, write_report
    from scanner.signing import unchecked_notes

    location = results_at(results)
    refuse_unscanned(location)
    explainer = Explainer(location.config or location.folder)
    night = night_of(
        explainer.results,
        explainer.rate,
        day.date() if day else None,
        explainer.canaries,
    )
    with tqdm(total=len(night.flags), unit=" flags", disable=None, dynamic_ncols=True) as progress:
        marked = marked_accounts(explainer, night.day)
        pages = write_report(explainer, night, out, lambda: progress.update(), marked)
    decided = [(which, precision) for which, precision in night.decided.items() if precision.texts]
    tell(
        f"night of {night.day}: {night.light}; {night.documents:,} documents read, {night.counted.in_words()}",
        *([f"false flags: {night.false_flags.in_words()}"] if night.flags and night.false_flags else []),
        *(f"- {reason}" for reason in night.why),
        *(
            f"decided on, {which}: {counted(precision.texts, 'text')}, precision {precision.in_words()}: "
            f"{precision.counts_in_words()}"
            for which, precision in decided
        ),
        *([f"{counted(len(marked), 'marked account')}; {_named(marked):,} named for a user"] if marked else []),
        f"{pages:,} pages of flags: {printable(str(out / 'index.html'))}",
    )
    complain(*unchecked_notes(explainer.results))


def _named(marked: Sequence[Mapping[str, Any]]) -> int:
    return len({row["account_id"] for row in marked if row["naming"] == Naming.NAMED})

"""`brickscan quarantine CONFIG|RESULTS`: what could not be scored to this day, by reason, account or document."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from jobs.options import (
    Form,
    form_option,
    results_argument,
    results_at,
    scanned,
    show_footer,
    show_records,
    show_table,
    since_option,
    until_option,
)
from jobs.text import counted
from scanner.printable import printable
from schemas.words import DOCUMENT_REASONS, LASTING_FILE_REASONS, PASSING_FILE_REASONS

if TYPE_CHECKING:
    from scanner.results.quarantine_list import By, InQuarantine

_NEWEST = 20
_LONGEST = 60
_OURS = "keep the document, report it"

WORDS: Mapping[str, str] = {
    "null_text": "no text; ask who exports",
    "unreadable": "corrupt on the disk; write the file anew",
    "failed": _OURS,
    "killed_worker": _OURS,
    "out_of_memory": "raise worker_memory_mb, `touch` file, scan again",
    "timed_out": "raise stall_seconds, `touch` file, scan again",
    "no_regular_file": "a pipe, a device or a broken name",
    "not_parquet": "other content under .parquet",
    "truncated": "the end is missing; copy it anew",
    "missing_column": "lacks a column of [input]",
    "wrong_type": "a column of [input] has a wrong type",
    "vanished": "gone meanwhile; the next scan tries",
    "changed": "written meanwhile; the next scan tries",
    "io_error": "not readable then; the next scan tries",
}
"""Meaning of each reason, and advice, in a few words."""

_SUMS = ("documents", "files", "accounts", "reasons", "texts", "first", "last")
_RECORD: Mapping[str, tuple[str, ...]] = {
    "reason": ("reason", *_SUMS),
    "account": ("account_id", *_SUMS),
    "document": (
        *("scanned_at", "reason", "detail", "doc_id", "account_id"),
        *("path", "row", "text_sha256", "scan_id", "shard_id"),
    ),
}
_CUT = {"document": 8, "account": 8, "where": 12}
_REASONS = sorted({*DOCUMENT_REASONS, *LASTING_FILE_REASONS, *PASSING_FILE_REASONS})


@click.command()
@results_argument
@click.option(
    "--group-by", "by", type=click.Choice(("reason", "account", "document")), default="reason", show_default=True
)
@click.option("--limit", type=click.IntRange(min=1), help=f"How many to show.  [default: {_NEWEST}]")
@click.option("--all", "everything", is_flag=True, help="Show all.")
@since_option
@until_option
@click.option("--reason", "reasons", multiple=True, type=click.Choice(_REASONS), metavar="REASON", help="For this one.")
@click.option("--account", "accounts", multiple=True, metavar="ID", help="Of this account; several times: of any.")
@form_option
def quarantine(
    results: str,
    by: "By",
    limit: int | None,
    everything: bool,
    since: datetime | None,
    before: datetime | None,
    reasons: tuple[str, ...],
    accounts: tuple[str, ...],
    form: Form,
) -> None:
    """Show what could not be scored and was not since, and why.

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results. What a later scan could score is not shown;
    the table `quarantine` holds all. With JSON and CSV, what was counted goes to stderr.

    \b
    Example:
      brickscan quarantine scan.toml
      brickscan quarantine scan.toml --since 2026-11-01 --group-by account
      brickscan quarantine results --reason timed_out --group-by document --all --format csv > timed_out.csv
    """
    if everything and limit is not None:
        raise click.UsageError("Give --limit or --all; one of the two.")
    from scanner.results.quarantine_list import Unscored, in_quarantine

    place = results_at(results)
    if not scanned(place):
        return
    wanted, most = Unscored(since, before, reasons, accounts), None if everything else limit or _NEWEST
    found = in_quarantine(place.folder, wanted, most, by)
    _show(found, by, form)
    show_footer(form, [_footer(found, asked=any(wanted))])


def _show(found: "InQuarantine", by: "By", form: Form) -> None:
    rows = list(found.rows.iter_rows(named=True))
    if form != "table":
        totals = {"entries": found.entries, "documents": found.documents, "files": found.files}
        show_records(form, rows, totals, _RECORD[by])
    elif not rows:
        pass  # a sentence says so
    else:
        head, line = _TABLES[by]
        show_table(head, [line(row) for row in rows], {name: least for name, least in _CUT.items() if name in head})


def _by_reason(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["reason"], *_counts(row, "accounts"), WORDS.get(row["reason"], "-")


def _by_account(row: Mapping[str, Any]) -> tuple[str, ...]:
    return _id(row["account_id"]), *_counts(row, "reasons")


def _counts(row: Mapping[str, Any], distinct: str) -> tuple[str, ...]:
    numbers = (f"{row[name]:,}" for name in ("documents", "files", distinct))
    return *numbers, f"{row['last']:%Y-%m-%d %H:%M}"


def _document(row: Mapping[str, Any]) -> tuple[str, ...]:
    where = printable(row["path"]) + (", the whole file" if row["row"] is None else f" row {row['row']}")
    return f"{row['scanned_at']:%Y-%m-%d %H:%M}", row["reason"], _id(row["doc_id"]), _id(row["account_id"]), where


_TABLES: Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], tuple[str, ...]]]] = {
    "reason": (("reason", "documents", "files", "accounts", "last", "what it is, what to do"), _by_reason),
    "account": (("account", "documents", "files", "reasons", "last"), _by_account),
    "document": (("scanned", "reason", "document", "account", "where"), _document),
}


def _id(value: str | None) -> str:
    return "-" if value is None else printable(value, _LONGEST)


def _footer(found: "InQuarantine", *, asked: bool) -> str:
    if not found.entries:
        return "Nothing that was asked for is in quarantine." if asked else "Nothing is in quarantine."
    more = " (--limit or --all shows more)" if found.entries > len(found.rows) else ""
    what = documents_and_files(found.documents, found.files)
    return f"{len(found.rows):,} of {found.entries:,} shown{more}; in quarantine: {what}"


def documents_and_files(documents: int, files: int) -> str:
    """Such as `3 documents, 1 whole file`."""
    parts = [counted(number, kind) for number, kind in ((documents, "document"), (files, "whole file")) if number]
    return ", ".join(parts) or "0 documents"

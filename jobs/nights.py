"""Run `brickscan status`, `quarantine` and `accounts`: show people their nights."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from jobs.flagged import LONGEST_ID_SHOWN, limit_option, marked_for, most_shown
from jobs.options import (
    Day,
    Form,
    Results,
    Whole,
    canaries_of,
    form_option,
    results_argument,
    results_at,
    scanned,
    show_footer,
    show_records,
    show_table,
    since_option,
    time_of,
    until_option,
)
from scanner.errors import BrickscanError
from scanner.printable import counted, one_in, printable
from schemas.words import DOCUMENT_REASONS, LASTING_FILE_REASONS, PASSING_FILE_REASONS, AuditState, Naming

if TYPE_CHECKING:
    from scanner.results.scan_list import By, LastScans, QuarantineList

EXIT_CODE_WORDS: Mapping[int, str] = {
    0: "done",
    1: "failed",
    2: "refused",
    3: "audit alarm",
    4: "too little read",
    5: "canaries lost",
    130: "interrupted by Ctrl-C",
    143: "ended by SIGTERM",
}
"""Words for the exit codes of scanner.cluster.scan."""

_STOPPED = (1, 2, 130, 143)
_HEAD = ("scan", "night", "began", "took", "ended", "documents", "flagged", "quarantine", "audit")
_RECORD = (
    *("scan_id", "started_at", "finished_at", "exit_code", "documents", "flagged", "canaries"),
    *("too_short", "filtered", "scored_in_part", "quarantined", "files_quarantined", "values_not_read", "audit"),
    *("false_positive_rate", "shards"),
    *("shards_skipped", "committed", "version", "part", "night", "night_stated"),
)


@click.command()
@results_argument
@click.option("--limit", default=5, show_default=True, type=Whole(1), help="Number of scans")
@form_option
def status(results: str, limit: int, form: Form) -> None:
    """Show the last scans, what their audits said, and what needs your attention.

    Give the scan's CONFIG, or the folder or URI of its RESULTS. Times are in UTC. Each flag counts in the newest scan
    that found it; canaries that were found and named right are counted beside the flags. With JSON and CSV, what needs
    attention also goes to stderr.

    \b
    Example:
      brickscan status scan.toml
      brickscan status results --limit 100 --format json
    """
    from scanner.comparing import compare_nights
    from scanner.results.flags import NO_FLAGS, counts_of_scans
    from scanner.results.scan_list import QuarantineFilter, in_quarantine, last_scans
    from scanner.signing import unchecked_notes

    location = results_at(results)
    if not scanned(location):
        return
    last = last_scans(location.folder, limit)
    compared = compare_nights(location.folder, {date.fromisoformat(night) for night in last.ended["night"]})
    hands = [
        *_registry_hands(location),
        *_hands(last, in_quarantine(location.folder, QuarantineFilter(), 0, "reason"), location),
        *(f"amber: {night.moved}" for night in compared if night.moved),
        *_nights_to_scan_anew(location),
    ]
    counts_of = counts_of_scans(location.folder, location.false_positive_rate, canaries_of(location))
    rows = [row | counts_of.get(row["scan_id"], NO_FLAGS)._asdict() for row in last.ended.iter_rows(named=True)]
    if form != "table":
        totals = {
            "scans": last.number,
            "needs_attention": hands,
            "compared_nights": [night.record for night in compared],
        }
        show_records(form, rows, totals, _RECORD)
    elif rows:
        show_table(_HEAD, [_line(row) for row in rows], {"scan": 16})
    more = " (--limit shows more)" if last.number > len(rows) else ""
    notes = [f"{len(rows):,} of {counted(last.number, 'scan')} shown{more}"]
    notes += unchecked_notes(location.folder)
    notes += [night.waiting for night in compared[:1] if night.waiting]
    show_footer(
        form,
        [
            *notes,
            *(
                ["needs your attention:", *(f"- {hand}" for hand in hands)]
                if hands
                else ["nothing needs your attention"]
            ),
        ],
    )


def _registry_hands(location: Results) -> list[str]:
    """Write a sentence if the registry is older than these results, so that a scan would be refused."""
    from scanner.results.registry_record import lost_record

    try:
        lost = None if location.registry is None else lost_record(location.registry, location.folder)
    except BrickscanError as error:
        lost = f"the registry cannot be compared with these results: {error}"
    return [] if lost is None else [lost]


def _nights_to_scan_anew(location: Results) -> Iterator[str]:
    """Write a sentence for each key with nights that were scanned before it was made, and are still to be scanned."""
    from scanner.registry import load_registry
    from scanner.results.scan_list import nights_to_scan_anew
    from scanner.scan_plan import read_config

    if location.config is None or location.registry is None:
        return
    config = read_config(location.config)
    try:
        keys = load_registry(location.registry).keys
    except BrickscanError:
        return  # _registry_hands tells
    since = {key.key_id: key.marked_since().date() for key in keys if not config.keys or key.key_id in config.keys}
    dated = any("{date}" in path for path in config.input.paths)
    for key_id, nights in nights_to_scan_anew(location.folder, since).items():
        again = f"brickscan scan {shlex.quote(str(location.config))}"
        which = f"night {nights[0]} was" if len(nights) == 1 else f"nights {_enumerated(nights)} were"
        yield (
            f"{which} scanned without key {key_id}: run `{again}{' --date DATE' if dated else ''}` again"
            + (" for each" if len(nights) > 1 else "")
        )


def _enumerated(nights: Sequence[str]) -> str:
    """List a few nights completely. Of many, list the first, the last and their number."""
    return ", ".join(nights) if len(nights) <= _NIGHTS_NAMED else f"{nights[0]} to {nights[-1]} ({len(nights):,})"


_NIGHTS_NAMED = 5


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    files = row["files_quarantined"]
    return (
        row["scan_id"],
        row["night"] + (f" (stated {row['night_stated']})" if row["night_stated"] else ""),
        f"{row['started_at']:%Y-%m-%d %H:%M}",
        _took(row["finished_at"] - row["started_at"]),
        _ended(row),
        f"{row['documents']:,}" + (f" ({row['filtered']:,} filtered)" if row["filtered"] else ""),
        f"{row['flagged']:,}" + (f" + {row['canaries']:,} of canaries" if row["canaries"] else ""),
        f"{row['quarantined']:,}" + (f" + {counted(files, 'file')}" if files else ""),
        row["audit"],
    )


def _took(time: timedelta) -> str:
    seconds = round(time.total_seconds())
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _ended(row: Mapping[str, Any]) -> str:
    word = EXIT_CODE_WORDS.get(row["exit_code"], f"exit code {row['exit_code']}")
    left = (
        f", {_left(row):,} of {counted(row['shards'], 'shard')} left"
        if row["exit_code"] in _STOPPED and _left(row)
        else ""
    )
    return (f"part {row['part']} " if row["part"] else "") + word + left


def _left(row: Mapping[str, Any]) -> int:
    """Count the shards that a scan found and left undone. A file at fault counts as one."""
    return max(int(row["shards"] - row["shards_skipped"] - row["committed"] - row["files_quarantined"]), 0)


def _hands(last: "LastScans", unscored: "QuarantineList", location: Results) -> Iterator[str]:
    """Yield sentences on things that need attention, the worst first."""
    rows = list(last.ended.iter_rows(named=True))
    for row in rows:
        if row["audit"] == AuditState.ALARM:
            from scanner.controls.alarms import advise_on_scan  # brings scipy, for half a second

            yield f"scan {row['scan_id']}: {advise_on_scan(location.folder, row['scan_id'])}"
        if row["audit"] == AuditState.CANARIES_LOST:
            yield f"scan {row['scan_id']}: canaries were not found as planned, so other marked text is missed as well"
        if row["audit"] == AuditState.POSSIBLE_FRAMING:
            yield (
                f"scan {row['scan_id']}: possible framing: texts of a few accounts carry messages that no user holds; "
                "look at them before you name anyone"
            )
    for row in last.silent.iter_rows(named=True):
        yield (
            f"scan {row['scan_id']} finished {counted(row['shards'], 'shard')}, the last at {time_of(row['last'])}, "
            f"{_took(datetime.now(UTC) - row['last'])} ago, but did not record an end: it is still running, or its "
            "process was killed (SIGKILL, out of memory, power failure); if it is not running, run the same command "
            "again to continue"
        )
    for row in rows:
        if _undone(row, rows):
            advice = (
                "fix what it reported and run it again" if row["exit_code"] in (1, 2) else "run the same command again"
            )
            yield f"scan {row['scan_id']} {_ended(row)}: {advice}, unless a later scan did its work"
        elif row["level_shards_left"] and not _gone_on(row, rows):
            yield (
                f"scan {row['scan_id']}: its night is not final: the model has not read "
                f"{counted(row['level_shards_left'], 'shard')}; run the same command again"
            )
    see = f"`brickscan quarantine {shlex.quote(str(location.config or location.folder))} --group-by document`"
    yield from _newest_hands(rows[0], see) if rows else ()
    if unscored.files:
        yield f"{counted(unscored.files, 'whole file')} could not be read: {see} lists them and says why"


def _no_decoys(row: Mapping[str, Any]) -> str:
    """Return why a scan had no decoys, as far as its row shows."""
    if row["documents"] <= row["too_short"] + (row["filtered"] or 0) + row["quarantined"]:
        return "it scored no document: everything it read was too short, too short after the filter, or in quarantine"
    return "the registry has no audit secret (`brickscan keys audit-secret`), or shares in [audit] are 0"


def _undone(row: Mapping[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Return whether a scan stopped before its end, and no scan in the list continued it."""
    if row["exit_code"] not in _STOPPED or (row["exit_code"] in (130, 143) and row["shards"] and not _left(row)):
        return False
    return not _gone_on(row, rows)


def _gone_on(row: Mapping[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Return whether a scan in the list continued another."""
    from scanner.results.scan_list import resumed_by

    return any(resumed_by(row, other) for other in rows if other is not row)


def _newest_hands(row: Mapping[str, Any], see: str) -> Iterator[str]:
    """Yield sentences on the newest scan.

    see: the command that lists documents that could not be read.
    """
    from scanner.results.shown_shares import used_up

    if row["exit_code"] == 4:
        unread = row["quarantined"] or row["files_quarantined"]
        reason = (
            f"more files could not be read than the configuration allows; {see} lists them"
            if unread
            else "nothing was read"
        )
        yield f"scan {row['scan_id']}: {reason}"
    yield from (f"scan {row['scan_id']}: {sentence}" for sentence in used_up(row["keys"]))
    if row["audit"] == AuditState.NO_DECOYS:
        yield (
            f"scan {row['scan_id']}: no document was scored under decoy keys, so its rates were not tested: "
            + _no_decoys(row)
        )
    for key_id in row["keys_left_out"] or ():
        yield f"scan {row['scan_id']} scored no text under key {key_id}: run `brickscan scan --check` to see why"
    if row["values_not_read"]:
        yield f"{row['values_not_read']:,} documents have an id, account or time that cannot be read and is null"


_OURS = "keep the document, report it"

REASON_WORDS: Mapping[str, str] = {
    "null_text": "no text; ask who exports",
    "unreadable": "corrupt on disk; write the file again",
    "failed": _OURS,
    "killed_worker": _OURS,
    "out_of_memory": "raise worker_memory_mb, `touch` file, scan again",
    "timed_out": "raise stall_seconds, `touch` file, scan again",
    "no_regular_file": "a pipe, a device or a broken name",
    "not_parquet": "other content under .parquet",
    "encrypted": "encrypted; write it without encryption",
    "truncated": "the end is missing; copy it again",
    "missing_column": "lacks a column of [input]",
    "wrong_type": "a column of [input] has the wrong type",
    "vanished": "deleted meanwhile; the next scan retries",
    "changed": "changed meanwhile; the next scan retries",
    "io_error": "not readable then; the next scan retries",
}
"""Meaning of each reason, and advice, in a few words."""

_SUMS = ("documents", "files", "accounts", "reasons", "texts", "first", "last")
_QUARANTINE_RECORD: Mapping[str, tuple[str, ...]] = {
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
@limit_option
@click.option("--all", "everything", is_flag=True, help="No limit")
@since_option
@until_option
@click.option(
    "--reason", "reasons", multiple=True, type=click.Choice(_REASONS), metavar="REASON", help="Only this reason"
)
@click.option("--account", "accounts", multiple=True, metavar="ID", help="Only this account (repeatable)")
@form_option
def quarantine(
    results: str,
    by: "By",
    limit: int | None,
    everything: bool,
    since: datetime | None,
    until: datetime | None,
    reasons: tuple[str, ...],
    accounts: tuple[str, ...],
    form: Form,
) -> None:
    """List what could not be scored, and why.

    Give the scan's CONFIG, or the folder or URI of its RESULTS. Documents that a later scan could score are not shown;
    the table `quarantine` has them all.

    \b
    Example:
      brickscan quarantine scan.toml
      brickscan quarantine scan.toml --since 2026-11-01 --group-by account
      brickscan quarantine results --reason timed_out --group-by document --all --format csv > timed_out.csv
    """
    max_rows = most_shown(limit, everything=everything)
    from scanner.results.scan_list import QuarantineFilter, in_quarantine
    from scanner.signing import unchecked_notes

    location = results_at(results)
    if not scanned(location):
        return
    query = QuarantineFilter(since, until, reasons, accounts)
    listing = in_quarantine(location.folder, query, max_rows, by)
    _show(listing, by, form)
    show_footer(form, [_footer(listing, filtered=any(query)), *unchecked_notes(location.folder)])


def _show(listing: "QuarantineList", by: "By", form: Form) -> None:
    rows = list(listing.rows.iter_rows(named=True))
    if form != "table":
        totals = {"entries": listing.entries, "documents": listing.documents, "files": listing.files}
        show_records(form, rows, totals, _QUARANTINE_RECORD[by])
    elif not rows:
        pass  # a sentence says so
    else:
        head, line = _TABLES[by]
        show_table(head, [line(row) for row in rows], {name: least for name, least in _CUT.items() if name in head})


def _by_reason(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["reason"], *_counts(row, "accounts"), REASON_WORDS.get(row["reason"], "-")


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
    return "-" if value is None else printable(value, LONGEST_ID_SHOWN)


def _footer(listing: "QuarantineList", *, filtered: bool) -> str:
    if not listing.entries:
        return "Nothing in quarantine matches." if filtered else "Nothing is in quarantine."
    more = " (--limit or --all shows more)" if listing.entries > len(listing.rows) else ""
    contents = documents_and_files(listing.documents, listing.files)
    return f"{len(listing.rows):,} of {listing.entries:,} shown{more}; in quarantine: {contents}"


def documents_and_files(documents: int, files: int) -> str:
    """Count documents and files in words, for example `3 documents, 1 whole file`."""
    parts = [counted(number, kind) for number, kind in ((documents, "document"), (files, "whole file")) if number]
    return ", ".join(parts) or "0 documents"


_HEAD_OF_ACCOUNTS = ("night", "account", "contains text marked for", "key", "p-value", "posts", "texts", "quoted")
_RECORD_OF_ACCOUNT = (
    *("night", "nights", "account_id", "user_id", "naming", "key_id", "message", "posts", "texts", "tokens", "scored"),
    *("quoted_share", "first_post", "last_post", "log10_p_global", "log10_p", "scan_id"),
    *("scanned_at", "proof", "audit"),
)


@click.command()
@results_argument
@limit_option
@click.option("--all", "everything", is_flag=True, help="No limit")
@click.option("--date", "night", type=Day(), help="Only this night")
@click.option("--account", "account_ids", multiple=True, metavar="ID", help="Only this account (repeatable)")
@form_option
def accounts(
    results: str, limit: int | None, everything: bool, night: datetime | None, account_ids: tuple[str, ...], form: Form
) -> None:
    """List the accounts whose posts together are marked, smallest p-value first.

    Give the scan's CONFIG, or the folder or URI of its RESULTS. Accounts are tested where scan.toml has [accounts].
    `quoted` is the share of scored words that occur only in quoted lines. An account is named for a user only if its
    own words name that user.

    \b
    Example:
      brickscan accounts scan.toml
      brickscan accounts scan.toml --date 2026-11-20 --all --format csv > accounts.csv
    """
    max_rows = most_shown(limit, everything=everything)
    from scanner.evidence.explainer import Explainer
    from scanner.looks.marked_accounts import marked_accounts, none_tested
    from scanner.signing import unchecked_notes

    location = results_at(results)
    if not scanned(location):
        return
    rows = marked_accounts(Explainer(location.config or location.folder), night.date() if night else None, account_ids)
    listed = rows[:max_rows]
    if form != "table":
        show_records(form, listed, {"accounts": len({row["account_id"] for row in rows})}, _RECORD_OF_ACCOUNT)
    elif listed:
        show_table(_HEAD_OF_ACCOUNTS, [_line_of_account(row) for row in listed], {"account": 8})
    named = len({row["account_id"] for row in rows if row["naming"] == Naming.NAMED})
    lines = [
        f"{len(listed):,} of {counted(len(rows), 'marked account')} shown; {named:,} named for a user. A mark means "
        "that posts contain marked text; it does not say who wrote it. `brickscan explain` with an account's name "
        "shows why."
    ]
    if none_tested(location.folder):
        lines = ["No scan tested accounts: `accounts = { nights = 1 }` in the scan's configuration turns them on."]
    show_footer(form, [*lines, *unchecked_notes(location.folder)])


def _line_of_account(row: Mapping[str, Any]) -> tuple[str, ...]:
    share = row["quoted_share"]
    return (
        row["night"],
        printable(row["account_id"], LONGEST_ID_SHOWN),
        marked_for({"first_seen_at": row["last_post"], "held_since": row["last_post"], **row}),
        row["key_id"],
        one_in(row["log10_p_global"]),
        f"{row['posts']:,}",
        f"{row['texts']:,}",
        "-" if share is None else f"{share:.0%}",
    )

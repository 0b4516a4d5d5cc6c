"""Run `brickscan flagged CONFIG|RESULTS`: list flags in words for people."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from jobs.options import (
    Form,
    Results,
    Whole,
    canaries_of,
    form_option,
    on_terminal,
    results_argument,
    results_at,
    scanned,
    show_footer,
    show_records,
    show_table,
    since_option,
    until_option,
)
from jobs.text import complain, tell
from scanner.printable import counted, one_in, printable
from schemas.words import WHY_NOBODY, AuditState, Naming, Proof

if TYPE_CHECKING:
    from scanner.results.decision_log import State
    from scanner.results.flags import By, FlagList, FlagTotals, WantedFlags

LONGEST_ID_SHOWN = 60
"""Number of characters of an id that are shown."""

ROWS_BY_DEFAULT = 20
"""Rows of a list, unless more are requested."""

limit_option = click.option("--limit", type=Whole(1), help=f"Number of rows  [default: {ROWS_BY_DEFAULT}]")


def most_shown(limit: int | None, *, everything: bool) -> int | None:
    """Return the largest number of rows that a list shows. None: all.

    Raises:
        UsageError: both `--limit` and `--all` are given.
    """
    if everything and limit is not None:
        raise click.UsageError("Give either --limit or --all.")
    return None if everything else limit or ROWS_BY_DEFAULT


def marked_for(row: Mapping[str, Any]) -> str:
    """Return the user for whom the text of a flagged row of VERDICTS was marked, or why nobody is named."""
    if row["naming"] == Naming.HELD_LATER:
        existed, got = (f"{row[name]:%Y-%m-%d %H:%M}" for name in ("first_seen_at", "held_since"))
        return f"message {row['message']}, seen by {existed}, which its user got later: {got}"
    if row["naming"] == Naming.EVERYBODY or (row["naming"] == Naming.UNALLOCATED and row["messages_tested"] == 1):
        return "nobody: its key marks for everybody alike"
    if row["naming"] == Naming.UNPROVED and row["proof"] != Proof.DIFFERS:  # of accounts only
        return "nobody: its proof was not made"
    return {
        Naming.NAMED: printable(row["user_id"] or "(name erased)", LONGEST_ID_SHOWN),
        Naming.UNALLOCATED: f"message {row['message']}, which no user held then",
        Naming.RESERVED: f"message {row['message']}, which is reserved: a false accusation",
        Naming.REMOVED: f"message {row['message']}, of a removed user",
        Naming.AMBIGUOUS: "several messages",
    }.get(row["naming"]) or f"nobody: {WHY_NOBODY[row['naming']]}"


def user_or_nobody(row: Mapping[str, Any]) -> str:
    """Write the user in a few words, for narrow columns. The totals by reason are below the list."""
    if row["naming"] == Naming.NAMED:
        return printable(row["user_id"] or "(name erased)", LONGEST_ID_SHOWN)
    return f"nobody: {str(row['naming']).replace('_', ' ')}"


_FOR = "contains text marked for"
_HEAD = ("scanned", "document", "account", _FOR, "key", "p-value", "audit", "copies", "where")
_RECORD = (
    *("scanned_at", "doc_id", "account_id", "created_at", "user_id", "naming", "key_id", "message", "log10_p_global"),
    *("log10_p", "runner_up_log10_p", "tokens", "scored", "first_seen_at", "held_since", "basis", "audit", "copies"),
    *("accounts", "path", "row", "text_sha256", "scan_id", "p_rank", "log10_p_shown"),
    *("generator", "piece_documents", "piece_texts", "piece_accounts"),
)
_SUMS = ("documents", "texts", "pieces", "first", "last", "log10_p_global", "log10_p_shown", "alarmed")
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "user": ("user_id", "naming", "accounts"),
    "account": ("account_id", "users"),
    "text": ("text_sha256", "key_id", "message", "user_id", "naming", "accounts"),
}
_GROUP_HEAD = {
    "user_id": "user",
    "account_id": "account",
    "text_sha256": "SHA-256 of the text",
    "key_id": "key",
    "naming": "user is",
}
_SUMS_HEAD = (
    *("documents", "distinct texts", "independent", "first scanned", "last scanned", "smallest p-value"),
    "in scans with an alarm",
)
"""Headings of _GROUPS and of _SUMS. The p-values of _SUMS are one column."""


def _several(name: str, kind: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    help_text = f"Only flags for this {kind} (repeatable)"
    return click.option(f"--{name}", f"{name}s", multiple=True, metavar="ID", help=help_text)


@click.command()
@results_argument
@limit_option
@click.option("--all", "everything", is_flag=True, help="Each document on its own line, canaries included")
@click.option("--canaries", is_flag=True, help="Texts of canaries too")
@since_option
@until_option
@_several("user", "user")
@_several("account", "account")
@_several("key", "key")
@_several("doc", "document id")
@click.option("--open", "state", flag_value="open", help="Only flags without a decision (`brickscan review`)")
@click.option("--unclear", "state", flag_value="unclear", help="Only flags that every reviewer left unclear")
@click.option("--group-by", "by", type=click.Choice(("user", "account", "text")), help="Totals for each, largest first")
@form_option
def flagged(
    results: str,
    limit: int | None,
    everything: bool,
    canaries: bool,
    since: datetime | None,
    until: datetime | None,
    users: tuple[str, ...],
    accounts: tuple[str, ...],
    keys: tuple[str, ...],
    docs: tuple[str, ...],
    state: "State | None",
    by: "By | None",
    form: Form,
) -> None:
    """List the newest flagged documents, and the users their text was marked for.

    Give the scan's CONFIG, or the folder or URI of its RESULTS. Copies of one text share a line. Each line says how the
    audit of its scan ended: after an alarm, do not trust any flag until you know the cause.

    A flag says that a document contains text marked for a user. It does not say who wrote or posted it: text is quoted,
    translated and spliced.

    \b
    Example:
      brickscan flagged scan.toml --limit 50
      brickscan flagged scan.toml --open
      brickscan flagged scan.toml --since 2026-11-01 --until 2026-11-07 --group-by user
      brickscan flagged results --account 4711 --all --format csv > flags.csv
    """
    max_rows = most_shown(limit, everything=everything)
    from scanner.results.flags import WantedFlags, newest, sums
    from scanner.results.scan_list import with_generator
    from scanner.signing import unchecked_notes

    location = results_at(results)
    if not scanned(location):
        return
    query = WantedFlags(since, until, users, accounts, keys, docs, state)
    with_canaries = canaries or everything or bool(users or accounts or docs)  # a request by name shows canaries too
    left_out = () if with_canaries else canaries_of(location)
    if by is None:
        flags = newest(
            location.folder, location.false_positive_rate, query, max_rows, fold=not everything, canaries=left_out
        )
    else:
        flags = sums(location.folder, location.false_positive_rate, query, max_rows, by, canaries=left_out)
    if by is None:
        flags = flags._replace(rows=with_generator(location.folder, flags.rows))
    if flags.totals.alarmed:
        warn = tell if form == "table" else complain
        warn(*_alarm(flags, location.folder))
    notes = _show(flags, by, form)
    notes += unchecked_notes(location.folder)
    if by is None and form == "table":
        notes += [*_drawn(flags), *_hash_alone(flags)]
    show_footer(form, [*_footer(flags, location, query, listed=by is None), *notes])


def _show(flags: "FlagList", by: "By | None", form: Form) -> list[str]:
    """Print the flags. Return sentences below the table that replace columns."""
    rows = list(flags.rows.iter_rows(named=True))
    if form != "table":
        names = _RECORD if by is None else (*_GROUPS[by], *_SUMS)
        expected = flags.totals.expected_false
        totals = {**flags.totals._asdict(), "expected_false": None if expected is None else expected._asdict()}
        show_records(form, rows, totals, names)
    elif not rows:
        pass  # a sentence says so
    elif by is None and on_terminal():
        return _show_narrow(rows)
    elif by is None:
        show_table(_HEAD, [_line(row, marked_for(row)) for row in rows], {})
    else:
        head = [_GROUP_HEAD.get(name, name) for name in _GROUPS[by]]
        narrowest = {_GROUP_HEAD[name]: 12 for name in _GROUPS[by] if name in _CUT}
        show_table([*head, *_SUMS_HEAD], [_sum(row, _GROUPS[by]) for row in rows], narrowest)
    return []


def _show_narrow(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Print rows for a terminal, with files without their folders. Leave out columns that only say that all is well.

    Return a sentence for each such column.
    """
    head = ["marked for" if name == _FOR else name for name in _HEAD]
    lines = [_line({**row, "path": "…/" + row["path"].rpartition("/")[2]}, user_or_nobody(row)) for row in rows]
    usual = {"account": "-", "p-value": one_in(-math.inf), "audit": AuditState.NO_ALARM, "copies": "1"}
    constant_columns = {name for name, value in usual.items() if all(line[head.index(name)] == value for line in lines)}
    indices = [column for column, name in enumerate(head) if name not in constant_columns]
    narrowest = {name: least for name, least in _NARROWEST.items() if name not in constant_columns}
    show_table(
        [head[column] for column in indices], [[line[column] for column in indices] for line in lines], narrowest
    )
    return [f"{name} of everything shown: {usual[name]}" for name in ("p-value", "audit") if name in constant_columns]


_NARROWEST = {"document": 6, "account": 6, "marked for": 18, "key": 5, "where": 12}
_CUT = {"user_id", "account_id", "text_sha256", "key_id"}


def _line(row: Mapping[str, Any], words: str) -> tuple[str, ...]:
    return (
        f"{row['scanned_at']:%Y-%m-%d %H:%M}",
        printable(row["doc_id"] or "-", LONGEST_ID_SHOWN),
        _accounts(row),
        words,
        row["key_id"],
        one_in(row["log10_p_shown"]),
        row["audit"] or "not judged",
        _copies(row),
        f"{printable(row['path'])} row {row['row']}",
    )


def _copies(row: Mapping[str, Any]) -> str:
    """Write the number of copies, and of documents with them or near-duplicates if that is larger."""
    more = (row["piece_documents"] or 0) > row["copies"]
    return f"{row['copies']:,}" + (f" of {row['piece_documents']:,} alike" if more else "")


def _accounts(row: Mapping[str, Any]) -> str:
    """Write the account that posted the newest copy, and the number of other accounts that posted one."""
    others = row["accounts"] - (row["account_id"] is not None)
    return _shown(row["account_id"]) + (f" and {others:,} more" if others else "")


def _sum(row: Mapping[str, Any], group: tuple[str, ...]) -> tuple[str, ...]:
    first, last = (f"{row[name]:%Y-%m-%d %H:%M}" for name in ("first", "last"))
    return (
        *(_shown(row[name]) for name in group),
        *(f"{row['documents']:,}", f"{row['texts']:,}", f"{row['pieces'] or '-'}", first, last),
        *(one_in(row["log10_p_shown"]), f"{row['alarmed']:,}"),
    )


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else printable(str(value), LONGEST_ID_SHOWN)


def _footer(flags: "FlagList", location: Results, query: "WantedFlags", *, listed: bool) -> list[str]:
    """Return the totals of all requested flags, shown or not.

    listed: whether flags are listed, not sums.
    """
    totals = flags.totals
    hidden = f"{counted(totals.canaries, 'canary text')}, found and named correctly, not shown (--canaries shows them)"
    canaries = [hidden] if totals.canaries else []
    if not totals.documents:
        if any(value not in ((), None, "") for value in query):
            return ["No flagged document matches.", *canaries]
        return ["No other document is flagged.", *canaries] if canaries else [_nothing(location.folder)]
    more = " (--limit or --all shows more)" if totals.entries > len(flags.rows) else ""
    folded = listed and totals.entries < totals.documents
    lines = [
        f"{len(flags.rows):,} of {totals.entries:,} shown{more}; {counted(totals.documents, 'flagged document')}, "
        f"{counted(totals.texts, 'distinct text')}{_pieces(totals)}"
        + (", copies of one text on one line" if folded else ""),
        *canaries,
    ]
    if totals.expected_false is not None:
        lines.append(f"false flags: {totals.expected_false.in_words()}")
    if totals.unnamed:
        lines.append(_nobody(totals))
    return lines


def _alarm(flags: "FlagList", results: str) -> Iterator[str]:
    """Yield lines above the list: which flags not to use, why, and what to do."""
    from scanner.controls.alarms import advise_on_scan

    yield (
        f"AUDIT ALARM: {counted(flags.totals.alarmed, 'document')} from scans whose audit raised an alarm. Do not use "
        "any of these flags; `brickscan status` says why, and what to do."
    )
    if "scan_id" in flags.rows.columns:
        alarmed = flags.rows.filter(audit=str(AuditState.ALARM))["scan_id"].unique(maintain_order=True)
        for scan_id in alarmed[:ALARMS_EXPLAINED]:
            yield f"Scan {scan_id}: {advise_on_scan(results, scan_id)}"


ALARMS_EXPLAINED = 3
"""Number of scans whose alarms are explained above a list."""


def _drawn(flags: "FlagList") -> list[str]:
    """Return notes on marks that differ if the text was made on another device."""
    counts = flags.rows["generator"].drop_nulls().value_counts(sort=True, name="count")
    return [
        f"{counted(number, 'flag')} shown under marks of torch's {generator}: text marked by the same code on a GPU "
        "has a different mark and is not flagged"
        for generator, number in counts.iter_rows()
    ]


def _hash_alone(flags: "FlagList") -> list[str]:
    """Return a note on how p-values are shown for keys whose only basis is their hash."""
    if (flags.rows["basis"].fill_null("key") == "key").all():
        return []
    return [
        "a p-value that rests only on a key's hash is shown no smaller than its rank among decoy keys, 1 in 1,000 for "
        "each test of keys and looks"
    ]


def _pieces(totals: "FlagTotals") -> str:
    """Write the number of independent pieces of evidence. Empty: all are independent, or the number is unknown."""
    if totals.pieces is None or totals.pieces == totals.texts:
        return ""
    return f" ({counted(totals.pieces, 'independent piece')}: the others are near-duplicates)"


def _nobody(totals: "FlagTotals") -> str:
    why = "; ".join(f"{number:,}: {WHY_NOBODY[cast(Naming, naming)]}" for naming, number in totals.unnamed.items())
    return f"{counted(sum(totals.unnamed.values()), 'document')} for which no user is named ({why})"


def _nothing(results: str) -> str:
    """Write the message for a list without flags. Perhaps no document was read."""
    import polars as pl

    from scanner.results.queries import ask, quarantine, verdicts
    from scanner.results.scan_list import in_words, reasons

    read = ask(results, lambda: verdicts(results).select(pl.len()).collect().item())
    why = in_words(reasons(quarantine(results)))
    return f"No document is flagged, of {read:,} that were read." + (f" In quarantine: {why}." if why else "")

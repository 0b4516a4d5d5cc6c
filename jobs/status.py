"""`brickscan status CONFIG|RESULTS`: the last scans, how they ended and were audited, and what needs a hand."""

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from jobs.options import (
    Form,
    Results,
    canaries_of,
    form_option,
    results_argument,
    results_at,
    scanned,
    show_footer,
    show_records,
    show_table,
    time_of,
)
from jobs.text import counted
from scanner.errors import BrickscanError
from schemas.words import AuditState

if TYPE_CHECKING:
    from scanner.results.quarantine_list import InQuarantine
    from scanner.results.scan_list import LastScans

ENDED: Mapping[int, str] = {
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
@click.option("--limit", default=5, show_default=True, type=click.IntRange(min=1), help="How many scans to show.")
@form_option
def status(results: str, limit: int, form: Form) -> None:
    """Show the last scans, how they ended, what their audits said, and what needs a hand.

    CONFIG: the file of the scan; or RESULTS: its folder or URI of results. Times are UTC. Flagged are the flags that
    stand, each in the newest scan that found it; those of canaries, found and named right, are counted beside them.
    With JSON and CSV, what needs a hand goes to stderr; JSON holds it too.

    \b
    Example:
      brickscan status scan.toml
      brickscan status results --limit 100 --format json
    """
    from scanner.results.flags import NO_FLAGS, counts_of_scans
    from scanner.results.quarantine_list import Unscored, in_quarantine
    from scanner.results.scan_list import last_scans

    place = results_at(results)
    if not scanned(place):
        return
    last = last_scans(place.folder, limit)
    hands = [*_registry_hands(place), *_hands(last, in_quarantine(place.folder, Unscored(), 0, "reason"), place)]
    of_scans = counts_of_scans(place.folder, place.false_positive_rate, canaries_of(place))
    rows = [row | of_scans.get(row["scan_id"], NO_FLAGS)._asdict() for row in last.ended.iter_rows(named=True)]
    if form != "table":
        show_records(form, rows, {"scans": last.number, "needs_a_hand": hands}, _RECORD)
    elif rows:
        show_table(_HEAD, [_line(row) for row in rows], {"scan": 16})
    more = " (--limit shows more)" if last.number > len(rows) else ""
    said = [f"{len(rows):,} of {counted(last.number, 'scan')} shown{more}"]
    show_footer(
        form, [*said, *(["needs a hand:", *(f"- {hand}" for hand in hands)] if hands else ["nothing needs a hand"])]
    )


def _registry_hands(place: Results) -> list[str]:
    """A sentence on a registry that is older than these results, with which a scan would be refused."""
    from scanner.results.ledger_records import lost_head

    try:
        lost = None if place.registry is None else lost_head(place.registry, place.folder)
    except BrickscanError as error:
        lost = f"the registry cannot be held against these results: {error}"
    return [] if lost is None else [lost]


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
        f"{row['quarantined']:,}" + (f" + {files:,} files" if files else ""),
        row["audit"],
    )


def _took(time: timedelta) -> str:
    seconds = round(time.total_seconds())
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _ended(row: Mapping[str, Any]) -> str:
    word = ENDED.get(row["exit_code"], f"exit code {row['exit_code']}")
    left = f", {_left(row):,} of {row['shards']:,} shards left" if row["exit_code"] in _STOPPED and _left(row) else ""
    return (f"part {row['part']} " if row["part"] else "") + word + left


def _left(row: Mapping[str, Any]) -> int:
    """Shards that a scan found and left undone; a file at fault counts as one."""
    return max(int(row["shards"] - row["shards_skipped"] - row["committed"] - row["files_quarantined"]), 0)


def _hands(last: "LastScans", unscored: "InQuarantine", place: Results) -> Iterator[str]:
    """Sentences on what somebody must look at, the worst first."""
    rows = list(last.ended.iter_rows(named=True))
    for row in rows:
        if row["audit"] == AuditState.ALARM:
            yield f"scan {row['scan_id']}: its audit alarmed: believe none of its flags before the cause is known"
        if row["audit"] == AuditState.CANARIES_LOST:
            yield f"scan {row['scan_id']}: canaries were not found as planned, so other marked text is missed as well"
        if row["audit"] == AuditState.POSSIBLE_FRAMING:
            yield (
                f"scan {row['scan_id']}: possible framing: texts of few accounts carry messages that nobody holds; "
                "look at them before you name anybody"
            )
    for row in last.silent.iter_rows(named=True):
        yield (
            f"scan {row['scan_id']} finished {counted(row['shards'], 'shard')}, the last at {time_of(row['last'])}, "
            f"{_took(datetime.now(UTC) - row['last'])} ago, and wrote no end: it runs still, or its process was killed "
            "(SIGKILL, no memory, no power); where none runs, run the same command again, which goes on from there"
        )
    for row in rows:
        if _undone(row, rows):
            again = "mend what it said and run it again" if row["exit_code"] in (1, 2) else "run the same command again"
            yield f"scan {row['scan_id']} {_ended(row)}: {again}, if no later one did its work"
    see = f"`brickscan quarantine {shlex.quote(str(place.config or place.folder))} --group-by document`"
    yield from _of_newest(rows[0], see) if rows else ()
    if unscored.files:
        yield f"{counted(unscored.files, 'whole file')} could not be read: {see} names them and says why"


def _no_decoys(row: Mapping[str, Any]) -> str:
    """Why a scan had no decoys, as far as its row shows."""
    if row["documents"] <= row["too_short"] + (row["filtered"] or 0) + row["quarantined"]:
        return "it scored no document; all that it read was too short, made so by the filter, or is in quarantine"
    return "the registry has no audit secret (`brickscan keys audit-secret`), or audit.share is 0"


def _undone(row: Mapping[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether a scan stopped before its end, and no scan that is shown went on with it."""
    if row["exit_code"] not in _STOPPED or (row["exit_code"] in (130, 143) and row["shards"] and not _left(row)):
        return False
    from scanner.results.scan_list import went_on

    return not any(went_on(other, row) for other in rows if other is not row)


def _of_newest(row: Mapping[str, Any], see: str) -> Iterator[str]:
    """What the newest scan says; see: the command that lists what could not be read."""
    if row["exit_code"] == 4:
        yield (
            f"scan {row['scan_id']}: nothing was read, or more is in quarantine than the configuration allows; {see} "
            "lists it"
        )
    if row["audit"] == AuditState.NO_DECOYS:
        yield (
            f"scan {row['scan_id']}: no document was scored under decoy keys, so its rates were not tested: "
            + _no_decoys(row)
        )
    for key_id in row["keys_left_out"] or ():
        yield f"scan {row['scan_id']} scored no text under key {key_id}: run `brickscan scan --check` to learn why"
    if row["values_not_read"]:
        yield f"{row['values_not_read']:,} documents have an id, account or time that cannot be read, and is null"

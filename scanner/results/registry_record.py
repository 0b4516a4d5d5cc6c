"""Record with the results how scans verified the registry's users, and compare the registry with this record.

A registry that is older than its own results, or was edited, names nobody. A scan verifies it
(scanner.registry.verification), and keeps a record of that with the results. Somebody who can write the registry cannot
change the record, unless they can also write the results.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from scanner.errors import Refused, ScanFailed, TableError
from scanner.registry import (
    NO_RECORD,
    NamesPart,
    Record,
    given_rows,
    load_registry,
    numbers_of_heads,
    verify_since,
)
from scanner.registry.shown_seeds import ShownUpTo, shown_then
from scanner.results.current_rows import ranges_ever
from scanner.results.queries import ask, exist, scans
from scanner.results.transactions import TableEntry, commit, has_table, open_tables, read_whole
from scanner.scan_plan import read_config, results_beside
from scanner.signing import open_results, sign_with
from scanner.storage.data_files import write_file
from scanner.storage.locations import absolute, parse_json
from schemas.registry import MasterKey
from schemas.tables import NAMED_LISTS, VERIFIED_USERS
from schemas.words import Naming

VERIFIED_USERS_TABLE = "verified_users"


def lost_record(registry: str, results: str) -> str | None:
    """Return a sentence if the registry lacks a key or the users that scans of these results had. None: it has all.

    This reads `scans`, three columns of `shards`, and one of the registry's events.

    Raises:
        Refused: there is no such registry.
    """
    if not exist(results):
        return None
    columns = pl.col("scan_id", "started_at", "users_head", "keys")
    scan_rows = ask(results, lambda: scans(results).select(columns).collect()).sort("started_at", "scan_id")
    newest = scan_rows.drop_nulls("users_head").tail(1).to_dicts()
    if newest and not numbers_of_heads(registry, [newest[0]["users_head"]]):
        lost = f"recorded the head {newest[0]['users_head']}, which this users table never had"
        return _older(registry, results, newest[0], f"{lost}. It might name the wrong users")
    keys = load_registry(registry).keys
    commitments, key_ids = {key.commitment for key in keys}, {key.key_id for key in keys}
    for scan in scan_rows.reverse().to_dicts():
        for key in scan["keys"]:
            # by its commitment, because a key that was made again from its secret may have another id
            is_here = key["key_id"] in key_ids if key["commitment"] is None else key["commitment"] in commitments
            if not is_here:
                return _older(registry, results, scan, _LOST_KEY.format(key["key_id"]))
    # scans that were killed have no row; of their keys, these are on record
    fields = ["scan_id", "began_at", "events"]

    def find_killed() -> pl.DataFrame:
        ranges = ranges_ever(results).select(fields).drop_nulls("events").unique()
        return ranges.join(scans(results), on="scan_id", how="anti").collect()

    killed = ask(results, find_killed)
    for row in killed.select("scan_id", "events", started_at="began_at").to_dicts():
        lost_ids = {*_parse_events(row["events"])} - key_ids
        if lost_ids:
            return _older(registry, results, row, _LOST_KEY.format(min(lost_ids)))
    return None


_LOST_KEY = "tested key {!r}, which this registry lacks. Its p-values would count too few keys"


def _older(registry: str, results: str, scan: Mapping[str, Any], lost: str) -> str:
    began = f"{scan['started_at']:%Y-%m-%d %H:%M} UTC"
    return (
        f"registry {registry}: is older than its own results in {results}, or is a different registry: scan "
        f"{scan['scan_id']} of {began} {lost}: restore the registry that the scan used, or its newest backup"
    )


def verify_registry(registry: str, results: str) -> Record:
    """Compare the registry's users with the record of earlier scans of these results. Write nothing.

    Raises:
        Refused: the registry is older than its own results, or is another one, or another program than brickscan
            changed its users.
        ScanFailed: a file of it is missing.
    """
    return verify_since(registry, users_on_record(registry, results))


def users_on_record(registry: str | Path, results: str) -> Record:
    """Return the record of scans of these results on a registry's users, for VerifiedHolders to check names with.

    Raises:
        Refused: the registry is older than its own results, or is another one.
    """
    fault = lost_record(str(registry), results)
    if fault is not None:
        raise Refused(fault)
    return _on_record(results) if exist(results) else NO_RECORD


def users_of_config(config_file: Path) -> Record:
    """Return `users_on_record` for the registry and the results of a scan's configuration."""
    config = read_config(config_file)
    registry = absolute("registry", config.registry, config_file.absolute().parent)
    return users_on_record(registry, open_results(config, config_file))


def users_beside(registry: str | Path) -> Record:
    """Return `users_on_record` for the results of the `scan.toml` beside a registry, or NO_RECORD without one."""
    results = results_beside(registry)
    if results is None:
        return NO_RECORD
    sign_with(results, str(registry))
    return users_on_record(registry, results)


def refuse_lost_events_of_config(config_file: Path, keys: Sequence[MasterKey]) -> None:
    """Do as `refuse_lost_events`, for the registry and the results of a scan's configuration."""
    if all(key.record is None for key in keys):  # a detector may have no access to results
        return
    config = read_config(config_file)
    registry = absolute("registry", config.registry, config_file.absolute().parent)
    refuse_lost_events(open_results(config, config_file), registry, keys)


def refuse_lost_events_beside(registry: str | Path, keys: Sequence[MasterKey]) -> None:
    """Do as `refuse_lost_events`, for the results of the `scan.toml` beside a registry, if there is one."""
    results = None if all(key.record is None for key in keys) else results_beside(registry)
    if results is not None:
        sign_with(results, str(registry))
        refuse_lost_events(results, str(registry), keys)


def refuse_lost_events(results: str, registry: str, keys: Sequence[MasterKey]) -> None:
    """Refuse a registry that lacks an event of a key's shown seeds which a scan of these results has read.

    Raises:
        Refused: an older registry was put back. Shown seeds that it lacks would be scored as if they were secret.
    """
    if not exist(results):
        return
    stated = ask(results, lambda: ranges_ever(results).select("events").unique().drop_nulls().collect())["events"]
    read = {event_of_key for events in stated for event_of_key in _parse_events(events).items()}
    fields = pl.col("keys").struct.field("commitment", "event", "events_head")
    ended = ask(results, lambda: scans(results).select("keys").explode("keys").select(fields).unique().collect())
    read |= {(commitment, ShownUpTo(*event)) for commitment, *event in ended.drop_nulls().iter_rows()}
    for key in keys:
        # also by its commitment, because a key that was made again from its secret may have another id
        events = {event for name, event in read if name in (key.key_id, key.commitment)}
        for event in events:
            if event.number == max(events).number:
                shown_then(registry, key, event)


def _parse_events(text: str) -> dict[str, ShownUpTo]:
    """Read `events` of a row of SHARDS, by key. Raises Refused: no scan wrote it."""
    try:
        return {key_id: ShownUpTo(int(number), str(head)) for key_id, (number, head) in parse_json(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise Refused(
            f"results: table shards: a row has events = {text[:200]!r}; number and SHA-256 of an event by key are "
            "expected: restore the table from a copy"
        ) from None


def refuse_changed_since(registry: str, results: str, scan_id: str, began: Record) -> None:
    """Refuse a registry that was rolled back, replaced or edited since a scan began. Its workers opened it later.

    If the change was undone in the meantime, it still shows: the scan's rows name other users than the registry.

    Raises:
        ScanFailed: the registry was changed, or a file of it is missing.
    """
    try:
        verify_since(registry, began)
        other = _other_holders(registry, results, scan_id, max(events for events, _ in began.checkpoints))
        if other is not None:
            raise Refused(f"registry {registry}: {other}, so workers had a different registry")
    except (Refused, TableError) as changed:
        raise ScanFailed(
            f"{changed}. It was changed while this scan ran: do not use any of its flags, and scan the input again "
            "into another folder"
        ) from None


def _other_holders(registry: str, results: str, scan_id: str, events: int) -> str | None:
    """Return a sentence if rows of a scan, ended or killed, name other users than the registry. None: they do not.

    Rows that name nobody also differ, if their message was given before event number `events`.
    """
    columns = ["key_id", "message", "user_id", "naming"]

    def named() -> pl.DataFrame:
        frames, ended = [], scans(results).select("scan_id").filter(pl.col("scan_id") != scan_id)
        for table in ("flags", "spans", "accounts"):
            if has_table(results, table):
                rows = read_whole(results, table).join(ended, on="scan_id", how="anti")
                lists = [name for name in NAMED_LISTS if name in rows.collect_schema()]
                listed = (rows.select(name).explode(name).unnest(name).select(columns) for name in lists)
                frames += [rows.select(columns), *listed]
        return pl.concat(frames).drop_nulls("message").unique().collect()

    entries = ask(results, named)
    given = given_rows(registry, entries.select("key_id", "message").unique())
    holders = given.select("key_id", "message", "seq", holder="user_id", given=pl.lit(value=True))
    entries_with_holders = entries.join(holders, on=["key_id", "message"], how="left")
    differs = (pl.col("user_id") != pl.col("holder")) | pl.col("given").is_null()
    misnamed = (pl.col("naming") == Naming.NAMED) & pl.col("user_id").is_not_null() & differs
    unnamed = (pl.col("naming") == Naming.UNALLOCATED) & (pl.col("seq") < events)
    wrong_rows = entries_with_holders.filter(misnamed | unnamed).sort("key_id", "message").to_dicts()
    if not wrong_rows:
        return None
    first = f"message {wrong_rows[0]['message']} of key {wrong_rows[0]['key_id']}"
    return f"for {len(wrong_rows):,} messages, for example {first}, rows have a different user"


def _on_record(results: str) -> Record:
    """Return the newest verification, with all checkpoints."""
    if not has_table(results, VERIFIED_USERS_TABLE):
        return NO_RECORD
    rows = ask(results, lambda: read_whole(results, VERIFIED_USERS_TABLE).collect())
    points, files = rows.drop_nulls("events").select("events", "head"), rows.drop_nulls("file")
    parts = files.join(rows.select(pl.col("verified_at").max()), on="verified_at", how="semi")
    names_parts = (NamesPart(*row) for row in parts.select(NamesPart._fields).iter_rows())
    return Record(NO_RECORD.checkpoints | set(points.iter_rows()), frozenset(names_parts))


def record_verification(results: str, scan_id: str, found: Record) -> None:
    """Record a verification, unless the newest record says the same.

    Raises:
        Refused: the table cannot be made.
        ScanFailed: it cannot be written.
    """
    earlier_record = _on_record(results)
    if found == earlier_record:
        return
    open_tables(results, [VERIFIED_USERS_TABLE])
    nothing = dict.fromkeys(VERIFIED_USERS.names)
    points = sorted(found.checkpoints - earlier_record.checkpoints)
    rows: list[dict[str, object]] = [{"events": events, "head": head} for events, head in points]
    rows += [part._asdict() for part in sorted(found.parts)]
    scan_columns = {"scan_id": scan_id, "verified_at": datetime.now(UTC)}
    batch = pa.RecordBatch.from_pylist([nothing | row | scan_columns for row in rows], VERIFIED_USERS)
    file = write_file(results, VERIFIED_USERS_TABLE, [batch])
    commit(results, VERIFIED_USERS_TABLE, [TableEntry(scan_id, (file,) if file else ())])

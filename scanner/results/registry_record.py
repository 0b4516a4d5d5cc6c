"""Record with the results what scans verified of the registry's users, and hold the registry against it.

A registry that is older than its own results, or was edited, names nobody. A scan verifies it
(scanner.registry.verification), and keeps a record of that with the results: who can write the registry cannot change
the record, unless they can write the results too.
"""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from scanner.errors import Refused, ScanFailed
from scanner.registry import NO_RECORD, NamesPart, Record, given_rows, numbers_of_heads, verify_since
from scanner.results.queries import ask, exist, scans
from scanner.results.transactions import TableEntry, commit, open_tables, read_whole
from scanner.scan_plan import read_config, results_beside, results_of
from scanner.storage.data_files import write_file
from scanner.storage.locations import absolute, table_uri
from schemas.tables import NAMED_LISTS, VERIFIED_USERS
from schemas.words import Naming

VERIFIED_USERS_TABLE = "verified_users"


def lost_head(registry: str, results: str) -> str | None:
    """Return a sentence where the newest head that a scan wrote down is not in the registry's chain; None: it is.

    Reads `scans`, and one column of the registry's events.

    Raises:
        Refused: there is no such registry.
    """
    if not exist(results):
        return None
    columns = pl.col("scan_id", "started_at", "users_head")
    scan_rows = ask(results, lambda: scans(results).select(columns).drop_nulls("users_head").collect())
    newest = scan_rows.sort("started_at", "scan_id").tail(1).to_dicts()
    if not newest or numbers_of_heads(registry, [newest[0]["users_head"]]):
        return None
    scan = newest[0]
    return (
        f"registry {registry}: is older than its own results in {results}, or another: scan {scan['scan_id']} of "
        f"{scan['started_at']:%Y-%m-%d %H:%M} UTC wrote down the head {scan['users_head']}, which its users table "
        "never had. So it would name other users than it should: put back the registry that the scan had, or its "
        "newest backup"
    )


def verify_registry(registry: str, results: str) -> Record:
    """Hold the registry's users against what earlier scans of these results saw of them. Writes nothing.

    Raises:
        Refused: the registry is older than its own results, or another, or its users were changed by something else
            than brickscan.
        ScanFailed: a file of it is missing.
    """
    return verify_since(registry, users_on_record(registry, results))


def users_on_record(registry: str | Path, results: str) -> Record:
    """Return what scans of these results saw of a registry's users, for VerifiedHolders to check names by.

    Raises:
        Refused: the registry is older than its own results, or another.
    """
    fault = lost_head(str(registry), results)
    if fault is not None:
        raise Refused(fault)
    return _on_record(results) if exist(results) else NO_RECORD


def users_of_config(config_file: Path) -> Record:
    """Return `users_on_record` of the registry and the results of a scan's configuration."""
    config = read_config(config_file)
    registry = absolute("registry", config.registry, config_file.absolute().parent)
    return users_on_record(registry, results_of(config, config_file))


def users_beside(registry: str | Path) -> Record:
    """Return `users_on_record` of the results of the `scan.toml` beside a registry; NO_RECORD without one."""
    results = results_beside(registry)
    return NO_RECORD if results is None else users_on_record(registry, results)


def refuse_changed_since(registry: str, results: str, scan_id: str, began: Record) -> None:
    """Refuse a registry that was rolled back, replaced or edited since a scan began, whose workers opened it after.

    A registry that was put back meanwhile shows in the scan's rows, which name other users than it does.

    Raises:
        ScanFailed: the registry was changed, or a file of it is missing.
    """
    try:
        verify_since(registry, began)
        other = _other_holders(registry, results, scan_id, max(events for events, _ in began.checkpoints))
        if other is not None:
            raise Refused(f"registry {registry}: {other}, so that workers had another registry")
    except Refused as changed:
        raise ScanFailed(
            f"{changed}. It was changed while this scan ran: believe no name of this scan that `brickscan flagged` "
            "with the scan's configuration does not confirm"
        ) from None


def _other_holders(registry: str, results: str, scan_id: str, events: int) -> str | None:
    """Return a sentence where rows of a scan name other users than the registry does; else None.

    Rows that name nobody differ too, where their message was given before event number `events`.
    """
    columns = ["key_id", "message", "user_id", "naming"]

    def named() -> pl.DataFrame:
        frames = []
        for table in ("flags", "spans", "accounts"):
            if DeltaTable.is_deltatable(table_uri(results, table)):
                rows = read_whole(results, table).filter(scan_id=scan_id)
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
    return f"of {len(wrong_rows):,} messages, such as {first}, rows say another user"


def changed_names(registry: str | Path, results: str, messages: pl.DataFrame) -> str | None:
    """Return a sentence where the files of some messages are not as scans of these results saw them; else None.

    Reads these files, and the events that came since the last scan.

    Args:
        registry: its folder.
        results: folder or URI.
        messages: rows of key_id and message.

    Raises:
        ScanFailed: a file is missing.
    """
    try:
        verify_since(registry, _on_record(results), messages)
    except Refused as changed:
        return str(changed)
    return None


def _on_record(results: str) -> Record:
    """Return the newest verification, with all checkpoints, by scans that ended, and ran when the row says so.

    Raises:
        Refused: rows contradict each other.
    """
    # Rows of other scans, as of one that was killed, are passed over: then more is verified again. Refused: rows differ
    # in what a file or the chain was like, which no scan changes.
    if not DeltaTable.is_deltatable(table_uri(results, VERIFIED_USERS_TABLE)):
        return NO_RECORD
    ran = scans(results).select("scan_id", "started_at", "finished_at").unique("scan_id")

    def rows_of_scans() -> pl.DataFrame:
        during = pl.col("verified_at").is_between("started_at", pl.min_horizontal("finished_at", datetime.now(UTC)))
        return read_whole(results, VERIFIED_USERS_TABLE).join(ran, on="scan_id").filter(during).collect()

    rows = ask(results, rows_of_scans)
    points, files = rows.drop_nulls("events"), rows.drop_nulls("file")
    for name, facts in (("file", files.select(NamesPart._fields)), ("events", points.select("events", "head"))):
        differing = facts.unique().filter(pl.col(name).is_duplicated())[name]
        if len(differing):
            raise Refused(
                f"results {results}: rows of the table {VERIFIED_USERS_TABLE} say different things of {name} "
                f"{differing[0]}, so it was changed: delete its folder, and the next scan follows the registry's "
                "whole chain"
            )
    parts = files.join(rows.select(pl.col("verified_at").max()), on="verified_at", how="semi")
    names_parts = (NamesPart(*row) for row in parts.select(NamesPart._fields).iter_rows())
    points = points.select("events", "head")
    return Record(NO_RECORD.checkpoints | set(points.iter_rows()), frozenset(names_parts))


def record_verification(results: str, scan_id: str, found: Record) -> None:
    """Put a verification on record, unless the newest says the same.

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

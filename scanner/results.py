"""The tables of results: files that workers write, commits that happen exactly once, and the queries that people ask.

A worker writes Parquet files under unique names and commits nothing; the driver commits. Every shard's rows enter a
table together with an application transaction of the shard's id. Delta does not refuse an id that was committed before,
so the id is looked up on a snapshot of the table and the commit made through that same snapshot, without retries: when
anyone committed in between, Delta refuses it, and the look-up is done again. Quarantine is committed first and verdicts
last, as the mark that a shard is done.
"""

import json
import math
import os
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from scanner.delta import read
from scanner.errors import Refused, ScanFailed
from scanner.files import filesystem_of
from schemas.tables import AUDITS, QUARANTINE, SCANS, SECOND_SCORES, VERDICTS

TABLES: Mapping[str, pa.Schema] = {"quarantine": QUARANTINE, "verdicts": VERDICTS, "scans": SCANS}
SCHEMAS: Mapping[str, pa.Schema] = {**TABLES, "second_scores": SECOND_SCORES, "audits": AUDITS}
"""Of every table that there may be; those of TABLES are made by a scan."""

COMMIT_ATTEMPTS = 50
ORPHANS_AFTER_HOURS = 24
"""When a file that is no part of its table is certainly no running scan's, which would have committed it."""

_WITH_BOUNDS = ("path", "row", "log10_p_global")


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that lies in a table's folder and is not part of the table yet. `stats` is Delta's JSON."""

    name: str
    size: int
    rows: int
    stats: str


class Entry(NamedTuple):
    """What enters a table at once or not at all: an application transaction and its files, possibly none."""

    transaction: str
    files: tuple[DataFile, ...]


def table_uri(results: str, name: str) -> str:
    """Where a table lies: a folder of its own in the folder of results."""
    return f"{results.rstrip('/')}/{name}"


def open_tables(results: str, names: Iterable[str] = tuple(TABLES)) -> None:
    """Make the tables that are not there yet; those of every scan, unless others are named.

    Raises:
        Refused: they cannot be made, or a table with other columns is there.
    """
    for name in names:
        uri, schema = table_uri(results, name), SCHEMAS[name]
        try:
            if "://" not in uri:
                Path(uri).mkdir(parents=True, exist_ok=True)
            if not DeltaTable.is_deltatable(uri):
                DeltaTable.create(uri, schema, mode="ignore", configuration=_statistics(schema))
            found = DeltaTable(uri).schema()
        except (DeltaError, OSError, ValueError) as error:
            raise Refused(
                f"results: table {uri} cannot be opened or made: {error}; give a folder that can be written"
            ) from None
        if found != deltalake.Schema.from_arrow(schema):
            raise Refused(f"results: table {uri} has other columns than this version writes; give another folder")


def _statistics(schema: pa.Schema) -> dict[str, str]:
    """Keep names out of Delta's log, where an erasure could not reach them: statistics on these columns alone."""
    return {
        "delta.dataSkippingStatsColumns": ",".join(name for name in _WITH_BOUNDS if name in schema.names) or "scan_id"
    }


def write_file(results: str, name: str, batches: Sequence[pa.RecordBatch]) -> DataFile | None:
    """Write rows of a table to a new file in its folder, on the disk when this returns; None when there are none.

    Raises:
        ScanFailed: the file cannot be written.
    """
    rows = pa.Table.from_batches(batches, SCHEMAS[name])
    if not len(rows):
        return None
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    data = sink.getvalue()
    file = DataFile(f"part-{uuid.uuid4().hex}.parquet", len(data), len(rows), _stats(rows))
    filesystem, folder = filesystem_of(table_uri(results, name))
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            _write_durably(Path(folder), file.name, data)
        else:
            with filesystem.open_output_stream(f"{folder}/{file.name}") as stream:
                stream.write(data)
    except OSError as error:
        raise ScanFailed(f"results: {folder}/{file.name} cannot be written: {error}") from None
    return file


def _write_durably(folder: Path, name: str, data: pa.Buffer) -> None:
    with (folder / name).open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stats(rows: pa.Table) -> str:
    """Delta's statistics of a file, which let a reader pass over it: number of rows; least and largest values."""
    bounds = {column: pc.min_max(rows[column]).as_py() for column in _WITH_BOUNDS if column in rows.column_names}
    return json.dumps(
        {
            "numRecords": len(rows),
            "minValues": {column: pair["min"] for column, pair in bounds.items() if pair["min"] is not None},
            "maxValues": {column: pair["max"] for column, pair in bounds.items() if pair["max"] is not None},
            "nullCount": {column: rows[column].null_count for column in bounds},
        }
    )


def committed(results: str, name: str, transactions: Iterable[str]) -> set[str]:
    """Those transactions that a table has."""
    table = DeltaTable(table_uri(results, name))
    return {transaction for transaction in transactions if table.transaction_version(transaction) is not None}


def commit(results: str, name: str, entries: Sequence[Entry], replacing: Collection[str] = ()) -> set[str]:
    """Commit entries to a table, leaving out those that it has, whoever else commits at the same time.

    Those named in `replacing`, which are shards, enter in place of what the table has of them.

    Returns:
        The transactions that this call committed.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be written.
    """
    uri = table_uri(results, name)
    for attempt in range(COMMIT_ATTEMPTS):
        table = DeltaTable(uri)
        missing = [e for e in entries if e.transaction in replacing or table.transaction_version(e.transaction) is None]
        if not missing:
            return set()
        files = [file for entry in missing for file in entry.files]
        actions = _replacement(table, results, name, replacing, files) if replacing else _additions(files)
        properties = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(entry.transaction, 1) for entry in missing]
        )
        try:
            table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
        except CommitFailedError:
            time.sleep(0.01 * attempt)
        except (DeltaError, OSError) as error:
            raise ScanFailed(f"results: table {uri} cannot be written: {error}") from None
        else:
            return {entry.transaction for entry in missing}
    raise ScanFailed(
        f"results: {COMMIT_ATTEMPTS} commits to {uri} failed, since others committed first; run again later"
    )


def _additions(files: Iterable[DataFile]) -> list[AddAction | RemoveAction]:
    now = int(time.time() * 1000)
    return [AddAction(file.name, file.size, {}, now, True, file.stats) for file in files]


def _replacement(
    table: DeltaTable, results: str, name: str, shards: Collection[str], files: list[DataFile]
) -> list[AddAction | RemoveAction]:
    """Files enter, and those that hold other rows of the shards go; whatever else is in these is written anew."""
    of_shards, entering, schema = pc.field("shard_id").isin(list(shards)), {file.name for file in files}, TABLES[name]
    fragments = [part for part in table.to_pyarrow_dataset().get_fragments() if part.path not in entering]
    old = [part for part in fragments if part.count_rows(filter=of_shards)]
    others = [batch for part in old for batch in part.to_table(schema, filter=~of_shards).to_batches()]
    kept = write_file(results, name, others)
    removals = [RemoveAction(part.path, True, int(time.time() * 1000)) for part in old]
    return [*removals, *_additions([*files, kept] if kept else files)]


def append_scan(results: str, row: Mapping[str, object]) -> None:
    """Append a row to `scans`, once whatever happens.

    Raises:
        ScanFailed: the table cannot be written.
    """
    file = write_file(results, "scans", [pa.RecordBatch.from_pylist([row], SCANS)])
    commit(results, "scans", [Entry(str(row["scan_id"]), (file,) if file else ())])


def append_audits(results: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows of one audit to `audits`, all at once; the table is made when it is not there.

    Raises:
        ScanFailed: the table cannot be written.
    """
    uri = table_uri(results, "audits")
    try:
        deltalake.write_deltalake(uri, pa.Table.from_pylist(list(rows), AUDITS), mode="append")
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"results: table {uri} cannot be written: {error}") from None


def erase_user(results: str, user_ids: Sequence[str]) -> int:
    """Erase names from the verdicts: the rows stay, name no one and read `removed`. Returns how many were changed.

    The rows are addressed by key and message, since Delta's log keeps a change's predicate; the files that held the
    names are deleted, and so is what failed attempts left a day ago or earlier. What is younger may be a running scan's
    and is left for scanner.upkeep.vacuum.

    Raises:
        Refused: there are no results.
        ScanFailed: a scan kept committing first.
    """
    uri = table_uri(results, "verdicts")
    changed = 0
    for attempt in range(COMMIT_ATTEMPTS):
        table = _open(uri)
        named = read(table).filter(pl.col("user_id").is_in(list(user_ids)))
        messages = named.select("key_id", "message").unique().group_by("key_id").agg("message").collect()
        if messages.is_empty() and attempt == 0:
            return 0
        predicate = " OR ".join(
            f"(key_id = '{key_id}' AND message IN ({', '.join(map(str, numbers))}))"
            for key_id, numbers in messages.iter_rows()
        )
        try:
            if not messages.is_empty():
                condition = f"user_id IS NOT NULL AND ({predicate})"
                once = CommitProperties(max_commit_retries=0)  # who merged these files meanwhile wrote the names anew
                done = table.update(
                    {"user_id": "NULL", "naming": "'removed'"}, predicate=condition, commit_properties=once
                )
                changed += int(done["num_updated_rows"])
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
            table.vacuum(ORPHANS_AFTER_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        except CommitFailedError:
            time.sleep(0.01 * attempt)
        else:
            return changed
    raise ScanFailed(f"results: names in {uri} cannot be erased while others commit; run again later")


def _open(uri: str) -> DeltaTable:
    try:
        return DeltaTable(uri)
    except (TableNotFoundError, OSError):
        raise Refused(f"results: there is no table {uri} yet; run `brickscan scan` first") from None


def exist(results: str) -> bool:
    """Whether there are results: a scan made the tables."""
    return DeltaTable.is_deltatable(table_uri(results, "verdicts"))


def verdicts(results: str) -> pl.LazyFrame:
    """Verdicts on all documents, the newest per (path, row). Columns as in schemas.tables.VERDICTS.

    Raises:
        Refused: there are no results.
    """
    by_age = read(_open(table_uri(results, "verdicts"))).sort("scanned_at", "scan_id")
    return by_age.unique(["path", "row"], keep="last", maintain_order=True)


def flagged(results: str, false_positive_rate: float = 1.0) -> pl.LazyFrame:
    """Verdicts on flagged documents, newest first. Raises as `verdicts` does.

    The column `flagged` went by the rate of the scan that wrote it; a rate that is stricter than that leaves out the
    rows that would not have been flagged under it.
    """
    strict = pl.col("log10_p_global") <= math.log10(false_positive_rate)
    return verdicts(results).filter("flagged", strict).reverse()


def flagged_in(results: str, shards: Iterable[str], keys: Iterable[str]) -> pl.DataFrame:
    """Verdicts on flagged documents of these shards under these keys. Raises as `verdicts` does."""
    of_keys = read(_open(table_uri(results, "verdicts"))).filter("flagged", pl.col("key_id").is_in(list(keys)))
    return of_keys.collect().filter(pl.col("shard_id").is_in(list(shards))).sort("shard_id", "row")


def second_scores(results: str) -> pl.LazyFrame:
    """Second scores of flagged documents, no independent evidence, as in schemas.tables.SECOND_SCORES.

    Raises:
        Refused: no scan with `second_score` has run.
    """
    return read(_open(table_uri(results, "second_scores")))


def quarantine(results: str) -> pl.LazyFrame:
    """What could not be scored, and why, as in schemas.tables.QUARANTINE. Raises as `verdicts` does."""
    return read(_open(table_uri(results, "quarantine")))


def scans(results: str) -> pl.LazyFrame:
    """All scans, oldest first, as in schemas.tables.SCANS. Raises as `verdicts` does."""
    return read(_open(table_uri(results, "scans"))).sort("started_at")


def audits(results: str) -> pl.LazyFrame:
    """Audits of the false-positive rate, as in schemas.tables.AUDITS. Raises as `verdicts` does."""
    return read(_open(table_uri(results, "audits")))

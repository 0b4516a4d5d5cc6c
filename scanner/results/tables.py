"""The tables of results: files that workers write, and commits that happen exactly once.

A worker writes Parquet files under unique names and commits nothing; the driver commits. Every shard's rows enter a
table together with an application transaction of the shard's id. Delta does not refuse an id that was committed before,
so the id is looked up on a snapshot of the table and the commit made through that same snapshot, without retries: when
anyone committed in between, Delta refuses it, and the look-up is done again. The tables beside verdicts are committed
first (scanner.results.settlement) and verdicts last, as the mark that a shard is done.
"""

import json
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
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.storage.delta import attempts, make_table, open_table, read, table_uri
from scanner.storage.kept import KeptTable
from scanner.storage.locations import filesystem_of
from scanner.storage.permissions import make_private
from schemas.audit_tables import AUDIT_COUNTS, AUDITS
from schemas.evidence_tables import ACCOUNT_POSTS, ACCOUNTS, DECISIONS, FLAG_TEXTS, SPANS
from schemas.filter_tables import FILTER_SKETCHES, FILTERS
from schemas.tables import FLAGS, QUARANTINE, SCANS, SECOND_SCORES, SENT, SHARDS, VERDICTS

TABLES: Mapping[str, pa.Schema] = {
    "quarantine": QUARANTINE,
    "audit_counts": AUDIT_COUNTS,
    "flags": FLAGS,
    "spans": SPANS,
    "shards": SHARDS,
    "verdicts": VERDICTS,
    "scans": SCANS,
    "audits": AUDITS,
}
SCHEMAS: Mapping[str, pa.Schema] = {
    **TABLES,
    "second_scores": SECOND_SCORES,
    "flag_texts": FLAG_TEXTS,
    "decisions": DECISIONS,
    "sent": SENT,
    "account_posts": ACCOUNT_POSTS,
    "accounts": ACCOUNTS,
    "filter_sketches": FILTER_SKETCHES,
    "filters": FILTERS,
}
"""Schemas of all tables that may exist; a scan makes those of TABLES."""
ORPHANS_AFTER_HOURS = 24
"""Hours after which a file that is no part of its table cannot be a running scan's, which would have committed it."""

OF_NO_RUN = 1
"""Version of a transaction that names no run, as versions of brickscan wrote them before runs had names."""

_WITH_BOUNDS = ("path", "row", "log10_p_global", "scan_id")
_DISTINCT = (
    "row",
    "doc_id",
    "text_sha256",
    "score",
    "log10_p",
    "log10_p_global",
    "runner_up_log10_p",
    "runner_up_log10_p_global",
    "text_id",
    "sketch",
    "text",
    "cells",
    "common",
)
"""Columns with few repeated values, for which a dictionary is of no use."""

_ROWS_A_GROUP = {"account_posts": 2048}
"""Rows of a row group, for tables of which parts of a file are read."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file that lies in a table's folder and is not part of the table yet. `stats` is Delta's JSON."""

    name: str
    size: int
    rows: int
    stats: str


class Entry(NamedTuple):
    """An entry that a table gets whole or not at all: an application transaction and its files, possibly none.

    others: further transactions whose rows are in the same files; each is the shard_id of its rows.
    """

    transaction: str
    files: tuple[DataFile, ...]
    others: tuple[str, ...] = ()

    @property
    def transactions(self) -> tuple[str, ...]:
        """All transactions of the entry."""
        return (self.transaction, *self.others)


def open_tables(results: str, names: Iterable[str] = tuple(TABLES)) -> None:
    """Make the tables that do not exist yet: those of every scan, unless others are named.

    A table that an older version made gains the columns that came since; its rows have null there. A column that may
    be null since then may be so in it too.

    Raises:
        Refused: they cannot be made, or a table with other columns is there.
        ScanFailed: others kept changing a table's columns first.
    """
    for name in names:
        uri, schema = table_uri(results, name), SCHEMAS[name]
        try:
            make_private(results)
            make_private(uri)
            if not DeltaTable.is_deltatable(uri):
                make_table(uri, schema, _statistics(schema))
            _bring_up_to_date(uri, deltalake.Schema.from_arrow(schema))
            found = DeltaTable(uri).schema()
        except (DeltaError, OSError, ValueError) as error:
            raise Refused(
                f"results: table {uri} cannot be opened or made: {in_a_line(error)}; give a folder that can be written"
            ) from None
        wanted = deltalake.Schema.from_arrow(schema)
        if found.fields[: len(wanted.fields)] == wanted.fields != found.fields:
            raise Refused(f"results: table {uri} has columns of a newer version of brickscan; install that version")
        if found != wanted:
            raise Refused(f"results: table {uri} has other columns than this version writes; give another folder")


def _bring_up_to_date(uri: str, wanted: deltalake.Schema) -> None:
    """Add to a table the last of the wanted columns, and allow null where they do; not if it has others, or lacks one.

    Raises:
        ScanFailed: others kept changing its columns first.
    """
    for _ in attempts(f"commits to {uri}"):
        table = DeltaTable(uri)
        there = table.schema().fields
        known = wanted.fields[: len(there)]
        loosened = [new for old, new in zip(there, known, strict=False) if old != new]
        if len(known) < len(there) or any(not allows_null(old, new) for old, new in zip(there, known, strict=True)):
            return
        changes = [*loosened, *wanted.fields[len(there) :]]
        if not changes:
            return
        try:
            table.alter.add_columns(changes)  # for an existing column: it may be null from now on
        except CommitFailedError:
            continue
        return


def allows_null(old: deltalake.Field, new: deltalake.Field) -> bool:
    """Whether a column is the same as before, or may be null since."""
    return old == new or (new.nullable and (old.name, old.type) == (new.name, new.type))


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
    dictionaries = [c for c in rows.column_names if c not in _DISTINCT]
    pq.write_table(rows, sink, _ROWS_A_GROUP.get(name), compression="zstd", use_dictionary=dictionaries)
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
        raise ScanFailed(f"results: {folder}/{file.name} cannot be written: {in_a_line(error)}") from None
    return file


def _write_durably(folder: Path, name: str, data: pa.Buffer) -> None:
    try:
        with (folder / name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        (folder / name).unlink(missing_ok=True)  # a part of a file is of no use, and a full disk needs its room
        raise
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


class Tables:
    """The tables of a folder of results, for callers who commit to them again and again: each is opened once.

    Args:
        results: folder or URI.
    """

    def __init__(self, results: str) -> None:
        self.results = results
        self._kept: dict[str, KeptTable] = {}

    def now(self, name: str) -> tuple[DeltaTable, KeptTable]:
        """A table as it is now, and its transactions.

        Raises:
            ScanFailed: it cannot be read.
        """
        kept = self._kept.setdefault(name, KeptTable(table_uri(self.results, name)))
        return kept.now(), kept

    def has(self, name: str) -> bool:
        """Whether such a table exists, which not every scan makes."""
        return name in self._kept or DeltaTable.is_deltatable(table_uri(self.results, name))


def kept_tables(results: str | Tables) -> Tables:
    """Tables that are open, or are opened for one call."""
    return results if isinstance(results, Tables) else Tables(results)


def committed(results: str | Tables, name: str, transactions: Iterable[str]) -> set[str]:
    """The given transactions that a table has."""
    return set(kept_tables(results).now(name)[1].versions(transactions))


def table_now(results: str, name: str) -> DeltaTable:
    """A table as it is now, opened anew.

    Raises:
        ScanFailed: it cannot be read.
    """
    return KeptTable(table_uri(results, name)).now()


def commit(results: str | Tables, name: str, entries: Sequence[Entry], run: int | None = None) -> set[str]:
    """Commit entries to a table, without those that it has, whoever else commits at the same time.

    Returns:
        The transactions that this call committed, and those that an earlier call for `run`, their version, committed
        without an answer.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be written.
    """
    tables, ours = kept_tables(results), set[str]()
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept = tables.now(name)
        there = kept.versions(transaction for entry in entries for transaction in entry.transactions)
        ours = {transaction for transaction, by in there.items() if by == run}
        missing = [
            _less(tables.results, name, entry, there) for entry in entries if set(entry.transactions) - set(there)
        ]
        if not missing:
            break
        names = [transaction for entry in missing for transaction in entry.transactions]
        actions = additions(file for entry in missing for file in entry.files)
        if try_to_commit(table, name, actions, [Transaction(transaction, run or OF_NO_RUN) for transaction in names]):
            ours |= set(names)
            break
    return ours


def _less(results: str, name: str, entry: Entry, there: Collection[str]) -> Entry:
    """An entry without the transactions that the table has, the rest of its rows written anew where it has some."""
    first, *others = (transaction for transaction in entry.transactions if transaction not in there)
    if len(others) == len(entry.others):
        return entry
    filesystem, folder = filesystem_of(table_uri(results, name))
    kept: list[pa.RecordBatch] = []
    for file in entry.files:
        try:
            rows = pq.read_table(f"{folder}/{file.name}", schema=SCHEMAS[name], filesystem=filesystem)
        except (OSError, pa.ArrowException) as error:
            raise ScanFailed(f"results: {folder}/{file.name} cannot be read: {in_a_line(error)}") from None
        kept += rows.filter(pc.is_in(rows["shard_id"], pa.array([first, *others]))).to_batches()
    written = write_file(results, name, kept)
    return Entry(first, (written,) if written else (), tuple(others))


def try_to_commit(
    table: DeltaTable, name: str, actions: list[AddAction | RemoveAction], transactions: list[Transaction]
) -> bool:
    """Commit to a table through the snapshot that was looked at. False: another commit came since.

    Raises:
        ScanFailed: the table cannot be written.
    """
    properties = CommitProperties(max_commit_retries=0, app_transactions=transactions)
    try:
        table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
    except CommitFailedError:
        return False
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"results: table {table.table_uri} cannot be written: {in_a_line(error)}") from None
    return True


def additions(files: Iterable[DataFile], *, changes: bool = True) -> list[AddAction | RemoveAction]:
    """Delta's actions that add files; changes: their rows are new, and not those of the files that they replace."""
    now = int(time.time() * 1000)
    return [AddAction(file.name, file.size, {}, now, changes, file.stats) for file in files]


def read_whole(results: str, name: str, paths: pl.Series | None = None) -> pl.LazyFrame:
    """A table with all of its columns; null in those that came after the version that made it.

    Args:
        results: folder or URI.
        name: the table's name.
        paths: files of the table that hold no row of these paths are left out; the files that are read may have other
            rows too.

    Raises:
        Refused: there is no such table.
    """
    rows, wanted = read(open_table(table_uri(results, name)), paths), pl.Schema(SCHEMAS[name])
    there = rows.collect_schema()
    return rows.with_columns(pl.lit(None, kind).alias(column) for column, kind in wanted.items() if column not in there)


def append_scan(results: str, row: Mapping[str, object]) -> None:
    """Append a row to `scans`, once whatever happens.

    Raises:
        ScanFailed: the table cannot be written.
    """
    file = write_file(results, "scans", [pa.RecordBatch.from_pylist([row], SCANS)])
    commit(results, "scans", [Entry(str(row["scan_id"]), (file,) if file else ())])


def append_audits(results: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows of one audit to `audits`, all at once; the table is made, or given its new columns, where it must be.

    Raises:
        ScanFailed: the table cannot be written.
    """
    uri = table_uri(results, "audits")
    try:
        make_private(results)
        make_private(uri)
        deltalake.write_deltalake(uri, pa.Table.from_pylist(list(rows), AUDITS), mode="append", schema_mode="merge")
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"results: table {uri} cannot be written: {in_a_line(error)}") from None

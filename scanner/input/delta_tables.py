"""Delta tables of the input: the data files that a log names at one version, and what it says of each of them.

A data file is never written again: its path, size and entry in the log identify it, its deletion vector says which of
its rows are gone, and no filesystem is asked for its times. A commit that removes files and adds others may have
rewritten rows. So each file knows the files that went into it, as far back as the log still reaches (Delta protocol,
"Actions").
"""

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast
from urllib.parse import unquote

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.input.tables import (
    LOG_OF_DELTA,
    Commit,
    LogEntry,
    Origin,
    Snapshot,
    TableFile,
    TableReading,
    origins_of,
    pack_rows,
)
from scanner.printable import printable
from scanner.storage.delta import TABLE_VERSION
from scanner.storage.locations import REQUESTS_AT_ONCE, filesystem_of

_COMMIT = re.compile(r"([0-9]{20})\.json")
_MILLISECOND = 10**6  # nanoseconds
_READER_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of the Delta protocol that readers must know, and that are read here."""


def read_delta(location: str, reading: TableReading) -> list[TableFile]:
    """The data files of a Delta table at one version.

    Args:
        location: its folder or URI.
        reading: which version, and which partitions.

    Raises:
        Refused: it is a table of results, needs what is not read (such as column mapping), has no such version, or
            `where` is no SQL of columns of its partitions.
        ScanFailed: its log cannot be read.
    """
    filesystem, inner = filesystem_of(location)

    def named(path: str) -> str:
        """A path in the log as results show it."""
        return f"{location.rstrip('/')}/{unquote(path)}"

    try:
        table = _open(location, reading)
        names = [name.removeprefix("partition.") for name in pa.table(table.get_add_actions(flatten=True)).column_names]
        actions = pa.table(table.get_add_actions(flatten=True)).rename_columns(names)
        deleted, created = _deletions(table), (table.metadata().created_time or 0) * _MILLISECOND
        origins = origins_of(_commits(filesystem, posixpath.join(inner, LOG_OF_DELTA), table.version(), named), created)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise ScanFailed(f"input.paths: Delta table {location!r} cannot be read: {in_a_line(error)}") from None
    partitions = table.metadata().partition_columns
    snapshot, files = Snapshot(location, "Delta", table.version()), []
    for row in _wanted(location, actions, partitions, reading.where).to_pylist():
        path = row["path"]
        if "://" in path or path.startswith("/"):
            raise Refused(
                f"input.paths: Delta table {location!r} names files of another folder, as a shallow clone does, such "
                f"as {printable(path)!r}; name the table that it was cloned from"
            )
        values = tuple((name, None if row[name] is None else str(row[name])) for name in partitions)
        modified = row["modification_time"] * _MILLISECOND
        origin = origins.get(named(path), Origin(frozenset(), created))
        entry = LogEntry(snapshot, values, deleted.get(path, b""), origin.parents, min(origin.since, modified))
        files.append(TableFile(named(path), row["size_bytes"], modified, entry))
    return files


def _open(location: str, reading: TableReading) -> DeltaTable:
    """The table as it is to be read. Raises as `read_delta`."""
    at = reading.timestamp if reading.version is None else reading.version
    try:
        table = DeltaTable(location)
        if at is not None:
            table.load_as_version(at)
    except DeltaError as error:
        which = "" if at is None else f" at {at}"
        raise Refused(f"input.paths: Delta table {location!r} cannot be read{which}: {in_a_line(error)}") from None
    properties = table.metadata().configuration
    if TABLE_VERSION in properties:
        raise Refused(f"input.paths: {location!r} is a table of results; name the folder of the texts")
    needed = {*(table.protocol().reader_features or ())} - _READER_FEATURES
    if properties.get("delta.columnMapping.mode", "none") != "none":
        needed.add("columnMapping")
    if needed:
        raise Refused(
            f"input.paths: Delta table {location!r} needs {', '.join(sorted(needed))}, which is not read; write the "
            "rows that stand into Parquet files in a folder of their own, and name that"
        )
    return table


def _deletions(table: DeltaTable) -> dict[str, bytes]:
    """Rows that are gone of files, by their paths in the log."""
    found = {}
    for batch in table.deletion_vectors():
        rows = pa.record_batch(batch)
        for uri, kept in zip(rows["filepath"].to_pylist(), rows["selection_vector"], strict=True):
            found[uri.removeprefix(table.table_uri)] = pack_rows(~np.asarray(kept.values, np.bool_))
    return found


def _wanted(location: str, actions: pa.Table, partitions: Sequence[str], where: str | None) -> pa.Table:
    """The actions of files in wanted partitions. Raises Refused: `where` is no SQL of columns of partitions."""
    if where is None:
        return actions
    rows = cast(pl.DataFrame, pl.from_arrow(actions.select(["path", *partitions])))
    try:
        wanted = pl.sql_expr(where)
        others = set(wanted.meta.root_names()) - {*partitions}
        kept = rows.select(wanted.cast(pl.Boolean).fill_null(value=False)).to_series()
    except pl.exceptions.PolarsError as error:
        names = ", ".join(partitions) or "none"
        raise Refused(
            f"input.where: {where!r} cannot be applied to Delta table {location!r}: {in_a_line(error)}; give SQL of "
            f"columns of its partitions, such as \"date = '{{date}}'\"; its partitions are by: {names}"
        ) from None
    if others:
        names = ", ".join(partitions) or "none"
        raise Refused(
            f"input.where: Delta table {location!r} is not partitioned by {', '.join(sorted(others))}, and rows are "
            f"chosen by partitions alone; its partitions are by: {names}"
        )
    return actions.filter(kept.to_arrow() if len(kept) == len(actions) else pa.array([kept[0]] * len(actions)))


def _commits(filesystem: fs.FileSystem, log: str, version: int, named: Callable[[str], str]) -> Iterator[Commit]:
    """The commits of a log up to a version, in their order, many read at a time."""
    items = filesystem.get_file_info(fs.FileSelector(log))
    numbers = {int(found[1]): item.path for item in items if (found := _COMMIT.fullmatch(item.base_name))}
    paths = [numbers[number] for number in sorted(numbers) if number <= version]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        yield from threads.map(lambda path: _commit(filesystem, path, named), paths)


def _commit(filesystem: fs.FileSystem, path: str, named: Callable[[str], str]) -> Commit:
    commit = Commit({}, [])
    with filesystem.open_input_stream(path, compression=None) as file:
        for line in file.read().splitlines():
            action = json.loads(line)
            if "add" in action:
                commit.adds[named(action["add"]["path"])] = action["add"]["modificationTime"] * _MILLISECOND
            elif "remove" in action:
                commit.removes.append(named(action["remove"]["path"]))
    return commit

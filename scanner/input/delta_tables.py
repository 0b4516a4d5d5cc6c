"""Delta tables of the input: the data files that a log names at one version, and what it says of each of them.

A data file is never written again: its path, size and entry in the log identify it, its deletion vector says which of
its rows are gone, and no filesystem is asked for its times. A commit that removes files and adds others may have
rewritten rows. So each file knows the files that went into it, as far back as the log still reaches (Delta protocol,
"Actions").
"""

import datetime
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.input.deletion_vectors import read_deletion_vectors
from scanner.input.tables import (
    LOG_OF_DELTA,
    Commit,
    FileOrigin,
    LogEntry,
    Snapshot,
    TableFile,
    TableReading,
    origins_of,
)
from scanner.printable import printable
from scanner.storage.delta import TABLE_VERSION
from scanner.storage.locations import REQUESTS_AT_ONCE, filesystem_of

_COMMIT, _VECTOR = re.compile(r"([0-9]{20})\.json"), re.compile(rb'"deletionVector"\s*:\s*\{')
_MILLISECOND, _LAST_MOMENT = 10**6, 2**63 - 1  # nanoseconds, and since 1970
_OF_FORMS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors that a log raises which is no log: deltalake reads it by other means, and may find nothing wrong."""
_READER_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of the Delta protocol that readers must know, and that are read here."""


class _Version(NamedTuple):
    """What a log says of a table at one version.

    number: the version; uri: of the table, as deltalake writes it; partitions: columns that it is partitioned by;
    actions: path, bytes, time and values of partitions of each file; vectors: whether files may have deletion vectors;
    log: its commits; created: nanoseconds since 1970 by which the table can have been made.
    """

    number: int
    uri: str
    partitions: list[str]
    actions: pa.Table
    vectors: bool
    log: "_CommitLog"
    created: int


def read_delta(location: str, reading: TableReading) -> Iterator[TableFile]:
    """The data files of a Delta table at one version, one after the other, since there may be a million.

    Args:
        location: its folder or URI.
        reading: which version, and which partitions.

    Raises:
        Refused: it is a table of results, needs what is not read (such as column mapping), has no such version, or
            `where` is no SQL of columns of its partitions.
        ScanFailed: its log cannot be read.
    """

    def named(path: str) -> str:
        """A path in the log as results show it, whatever characters its writer escaped."""
        return f"{location.rstrip('/')}/{posixpath.normpath(unquote(path))}"

    _refuse_special_files(location)
    try:
        version = _read_version(location, reading, named)
        commits = version.log.commits()
        origins = origins_of(commits, version.created)
        deleted = _deleted(location, version, named) if version.vectors or version.log.names_vectors else {}
    except (DeltaError, OSError, pa.ArrowException, *_OF_FORMS) as error:
        raise ScanFailed(f"input.paths: Delta table {location!r} cannot be read: {in_a_line(error)}") from None
    snapshot = Snapshot(location, "Delta", version.number)
    unknown = FileOrigin(frozenset(), 0 if version.log.whole else version.created)
    removed = _removed(commits[version.log.last_gap :])
    entries: dict[LogEntry, LogEntry] = {}  # files share theirs
    for path, size, modified, *of_partitions in _rows(_wanted(location, version.actions, reading.where)):
        if "://" in path or path.startswith("/") or ".." in unquote(path).split("/"):
            raise Refused(
                f"input.paths: Delta table {location!r} names files of another folder, as a shallow clone does, such "
                f"as {printable(path)!r}; name the table that it was cloned from"
            )
        name = named(path)
        if name in removed:
            continue
        values = (None if value is None else str(value) for value in of_partitions)
        parents, since = origins.get(name, unknown)
        partitions = tuple(zip(version.partitions, values, strict=True))
        entry = LogEntry(snapshot, partitions, deleted.get(name, b""), parents, since)
        if not parents and not entry.deleted and since == unknown.since:
            entry = entries.setdefault(entry, entry)
        yield TableFile(name, size, _moment(modified), entry)


def _refuse_special_files(location: str) -> None:
    """Raise Refused for a FIFO, socket or device in the log of a table of this machine: which a reader waits for."""
    if "://" in location:
        return
    for folder, _, names in os.walk(os.path.join(location, LOG_OF_DELTA)):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.exists(path) and not os.path.isfile(path):
                raise Refused(
                    f"input.paths: Delta table {location!r}: {printable(path)!r} is a FIFO, socket or device, and a "
                    "log has regular files alone; delete it"
                )


def _read_version(location: str, reading: TableReading, named: Callable[[str], str]) -> _Version:
    """The version of a table that is to be read; what deltalake keeps of it goes with this call. Raises as it does."""
    filesystem, inner = filesystem_of(location)
    table = _open(location, reading)
    partitions, created = table.metadata().partition_columns, (table.metadata().created_time or 0) * _MILLISECOND
    columns = ["path", "size_bytes", "modification_time", *(f"partition.{name}" for name in partitions)]
    added = pa.table(table.get_add_actions(flatten=True)).select(columns)
    vectors = "deletionVectors" in (table.protocol().reader_features or ())
    log = _CommitLog(filesystem, posixpath.join(inner, LOG_OF_DELTA), table.version(), named)
    return _Version(table.version(), table.table_uri, partitions, added, vectors, log, created)


def _deleted(location: str, version: _Version, named: Callable[[str], str]) -> dict[str, bytes]:
    """Rows that are gone of files, by path as results show it. Raises ScanFailed: nobody knows of which files."""
    vectors = read_deletion_vectors(location, version.number)
    deleted = {named(uri.removeprefix(version.uri)): rows for uri, rows in vectors.items()}
    if deleted and deleted.keys() - {named(path) for path in version.actions["path"].to_pylist()}:
        raise ScanFailed(
            f"input.paths: Delta table {location!r} has deletion vectors of files that its log names in another way; "
            "rewrite these files at the source (REORG TABLE … APPLY (PURGE)), so that no deleted row is read"
        )
    return deleted


def _removed(commits: Iterable[Commit]) -> set[str]:
    """Files that commits removed, and that none added again.

    deltalake lists such a file if the commit that removed it escaped other characters of its path than the one that
    added it, as its own commits do in tables of other engines.
    """
    removed = set[str]()
    for commit in commits:
        removed.update(commit.removes)
        removed.difference_update(commit.adds)
    return removed


def _moment(milliseconds: int) -> int:
    """A time of a log in nanoseconds since 1970, within what a time can be."""
    return min(max(milliseconds * _MILLISECOND, 0), _LAST_MOMENT)


def _rows(actions: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in actions.to_batches(max_chunksize=10_000):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


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
    if reading.timestamp is not None:
        _refuse_later(location, table.version(), reading.timestamp)
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


def _refuse_later(location: str, version: int, at: datetime.datetime) -> None:
    """Raise Refused for a version that was committed after a time: deltalake reads the oldest where there was none."""
    filesystem, inner = filesystem_of(location)
    file = filesystem.get_file_info(posixpath.join(inner, LOG_OF_DELTA, f"{version:020d}.json"))
    if file.type != fs.FileType.File:  # the log has a checkpoint of it alone
        return
    with filesystem.open_input_stream(file.path, compression=None) as opened:
        infos = [json.loads(line).get("commitInfo") or {} for line in opened.read().splitlines()]
    times = [file.mtime_ns // _MILLISECOND, *(info["timestamp"] for info in infos if "timestamp" in info)]
    if min(times) > at.timestamp() * 1000:
        raise Refused(
            f"input.paths: Delta table {location!r} had no version at {at}: the oldest that it has is younger"
        )


def _wanted(location: str, actions: pa.Table, where: str | None) -> pa.Table:
    """The actions of files in wanted partitions. Raises Refused: `where` is no SQL of columns of partitions."""
    if where is None:
        return actions
    rows = cast(pl.DataFrame, pl.from_arrow(actions.select(actions.column_names[3:])))
    rows = rows.rename({name: name.removeprefix("partition.") for name in rows.columns})
    rows = rows.with_columns(pl.selectors.date().cast(pl.String))  # as {date} is written
    there = f"the table is partitioned by: {', '.join(rows.columns) or 'nothing'}"
    try:
        wanted = pl.sql_expr(where)
        others = set(wanted.meta.root_names()) - {*rows.columns}
        kept = rows.select(wanted.cast(pl.Boolean).fill_null(value=False)).to_series()
    except pl.exceptions.PolarsError as error:
        raise Refused(
            f"input.where: {where!r} cannot be applied to Delta table {location!r}: {in_a_line(error)}; give SQL of "
            f"columns of its partitions, such as \"date = '{{date}}'\"; {there}"
        ) from None
    if others or len(kept) != len(actions):
        raise Refused(
            f"input.where: {where!r} does not choose partitions of Delta table {location!r}, and rows are chosen by "
            f"partitions alone; {there}; without `where` a scan reads what no scan has read yet"
        )
    return actions.filter(kept.to_arrow())


class _CommitLog:
    """The commits of a table up to a version, as far back as they are there.

    whole: each from the first one on; last_gap: how many of these come before the last one that lacks; names_vectors:
    whether a commit that was read names a deletion vector, which a log can do that says of itself that it has none.

    Args:
        filesystem: where it lies.
        folder: of the log.
        version: the last commit.
        named: function that gives a path in the log as results show it.
    """

    def __init__(self, filesystem: fs.FileSystem, folder: str, version: int, named: Callable[[str], str]) -> None:
        self._filesystem, self._named, self.names_vectors = filesystem, named, False
        items = filesystem.get_file_info(fs.FileSelector(folder))
        plain = (item for item in items if item.type == fs.FileType.File)  # a FIFO would wait for its writer
        numbers = {int(found[1]): item.path for item in plain if (found := _COMMIT.fullmatch(item.base_name))}
        there = [number for number in sorted(numbers) if number <= version]
        self._paths = [numbers[number] for number in there]
        self.whole = len(there) == version + 1
        self.last_gap = max((i for i, number in enumerate(there) if number - 1 not in numbers), default=0)

    def commits(self) -> list[Commit]:
        """The commits in their order, without files that no other one replaced, if the log is whole."""
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            changes = dict(zip(self._paths, threads.map(self._changes, self._paths), strict=True))
            gone = {path for commit in changes.values() for path in commit.removes}
            appends = [path for path, commit in changes.items() if not commit.removes and (gone or not self.whole)]
            adds = zip(appends, threads.map(self._read, appends), strict=True)
            for path, commit in adds:
                kept = {name: at for name, at in commit.adds.items() if name in gone or not self.whole}
                changes[path] = Commit(kept, [])
        return [*changes.values()]

    def _changes(self, path: str) -> Commit:
        """A commit that removes files, or an empty one."""
        with self._filesystem.open_input_stream(path, compression=None) as file:
            data = file.read()
        self.names_vectors = self.names_vectors or _VECTOR.search(data) is not None
        return self._parsed(data) if b'"remove"' in data else Commit({}, [])

    def _read(self, path: str) -> Commit:
        with self._filesystem.open_input_stream(path, compression=None) as file:
            return self._parsed(file.read())

    def _parsed(self, data: bytes) -> Commit:
        commit = Commit({}, [])
        for line in data.splitlines():
            action = json.loads(line)
            if "add" in action:
                commit.adds[self._named(action["add"]["path"])] = _moment(action["add"]["modificationTime"])
            elif "remove" in action:
                commit.removes.append(self._named(action["remove"]["path"]))
        return commit

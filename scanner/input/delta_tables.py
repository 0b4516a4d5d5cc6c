"""Read Delta tables of the input: the data files in a log at one version, and the log's record of each.

A data file is never written again. Its path, size and entry in the log identify it, and its deletion vector says which
of its rows are deleted. No filesystem is asked for its times. A commit that removes files and adds others may have
rewritten rows, so for each file we find the files that went into it, as far back as the log reaches (Delta protocol,
"Actions").
"""

import contextlib
import datetime
import io
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.input.deletion_vectors import CHECKPOINT, VectorRows, read_deletion_vectors
from scanner.input.delta_log import COMMIT, CommitLog, actions_of, all_to_nanoseconds
from scanner.input.tables import (
    LOG_OF_DELTA,
    Commit,
    FileColumns,
    FileOrigin,
    LogEntry,
    Snapshot,
    TableColumn,
    TableFiles,
    TableReading,
    origins_of,
)
from scanner.printable import printable
from scanner.storage.delta import TABLE_VERSION
from scanner.storage.locations import filesystem_of, is_uri, parse_json

_MAPPING = "delta.columnMapping."  # beginning of a log's properties on columns and their names in files
_MAPS_COLUMNS = 2  # version of readers that know column mapping; in later versions it is a feature
_MILLISECOND = 10**6  # nanoseconds
_FORM_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors for a log with a wrong form. deltalake reads it by other means, and may find nothing wrong."""
_READER_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Features of the Delta protocol for readers that are supported here."""
_WRITE_ROWS = "write the current rows into Parquet files in a separate folder, and name that folder"
_ADVICE = {
    ("nsupported", "not supported"): f"; {_WRITE_ROWS}",
    ("Json error", "Arrow error", "Checkpoint"): "; restore the files of its _delta_log from a backup",
}
"""Advice, by words of deltalake's errors."""
_UNUSUAL = r"%|:/|//|(^|/)\.|^/|/$|^$"
"""Paths that may be another spelling, or may lead out of a folder. All other paths can be taken as they are."""
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/|.*://", re.DOTALL)
"""Paths and URIs of another folder. Spark also writes file:/tmp."""
_TOGETHER = 10_000  # files that are read together


class _Version(NamedTuple):
    """A log's description of a table at one version.

    number: the version.
    uri: URI of the table, as deltalake writes it.
    columns: columns of its schema.
    partitions: the columns that it is partitioned by.
    actions: path, bytes, time and values of partitions of each file.
    vectors: whether files may have deletion vectors.
    log: its commits.
    created: latest time at which the table can have been made, in nanoseconds since 1970.
    """

    number: int
    uri: str
    columns: dict[str, TableColumn]
    partitions: list[str]
    actions: pa.Table
    vectors: bool
    log: CommitLog
    created: int


def read_delta(location: str, reading: TableReading) -> TableFiles:
    """Return the data files of a Delta table at one version.

    Raises:
        Refused: it is a table of results, needs an unsupported feature, or has no such version. Or `where` is no SQL on
            columns of its partitions.
        ScanFailed: its log cannot be read.
    """
    return TableFiles(_read(location, reading))


def _read(location: str, reading: TableReading) -> Iterator[FileColumns]:
    """Yield the files of `read_delta`, some at a time, because there may be a million."""
    folder = location.rstrip("/")

    def named(path: str) -> str:
        """Return a path in the log as results show it, with any escapes of its writer undone."""
        return f"{folder}/{posixpath.normpath(_decoded(path) if '%' in path else path)}"

    _refuse_special_files(location)
    try:
        with _opened_folder(location) as opened:
            version = _read_version(location, opened, reading, named)
            commits = version.log.commits()
            origins = origins_of(commits, version.created)
            removed = _removed(commits[version.log.last_gap :])
            with_vectors = version.vectors or version.log.names_vectors
            deleted = _deleted(location, opened, version, commits, removed, named) if with_vectors else {}
    except (DeltaError, OSError, pa.ArrowException, *_FORM_ERRORS) as error:
        raise ScanFailed(f"input.paths: Delta table {location!r} cannot be read: {_in_words(error)}") from None
    unknown = FileOrigin(frozenset(), 0 if version.log.whole else version.created)
    entry = LogEntry(Snapshot(location, "Delta", version.number), (), b"", *unknown, version.columns)
    for rows in _files_where(location, version.actions, reading.where).to_batches(max_chunksize=_TOGETHER):
        names = _names(location, rows["path"], named)
        if removed:
            current = pa.array([name not in removed for name in names.to_pylist()], pa.bool_())
            rows, names = rows.filter(current), names.filter(current)
        entries = [entry] * len(rows)
        if version.partitions or origins or deleted:
            entries = [*_entries(version.partitions, rows, names, entry, origins, deleted)]
        times = all_to_nanoseconds(rows["modification_time"].to_numpy())
        yield FileColumns(names, rows["size_bytes"].to_numpy(), times, entries)


def _names(location: str, paths: pa.Array, named: Callable[[str], str]) -> pa.LargeStringArray:
    """Return paths in a log in the form that `named` returns.

    Raises:
        Refused: a path leads out of the table's folder.
    """
    paths = paths.cast(pa.large_string())
    if not pc.any(pc.match_substring_regex(paths, _UNUSUAL)).as_py():
        folder, slash = (pa.scalar(text, pa.large_string()) for text in (location.rstrip("/"), "/"))
        return pc.binary_join_element_wise(folder, paths, slash)
    for path in paths.to_pylist():
        if _ABSOLUTE.match(path) or ".." in _decoded(path).split("/"):
            raise Refused(
                f"input.paths: Delta table {location!r} refers to files in another folder, as a shallow clone does, "
                f"for example {printable(path)!r}; name the table that it was cloned from"
            )
        if _decoded(path) != unquote(path):
            raise Refused(
                f"input.paths: Delta table {location!r} refers to a file whose name is not valid UTF-8, "
                f"{printable(path)!r}; write the file again under another name at the source"
            )
    return pa.array(map(named, paths.to_pylist()), pa.large_string())


def _decoded(path: str) -> str:
    """Return a path without its escapes. Bytes that are no UTF-8 stay distinct, so two files do not become one."""
    return unquote(path, errors="backslashreplace")


def _entries(
    partitions: Sequence[str],
    rows: pa.RecordBatch,
    names: pa.LargeStringArray,
    entry: LogEntry,
    origins: Mapping[str, FileOrigin],
    deleted: Mapping[str, bytes],
) -> Iterator[LogEntry]:
    """Yield the entries of rows of actions.

    entry: entry of a file without all of these, with an unknown origin.
    """
    unknown = FileOrigin(entry.parents, entry.since)
    columns = [names, *rows.columns[3:]]
    for name, *partition_values in zip(*(column.to_pylist() for column in columns), strict=True):
        values = tuple(None if value is None else str(value) for value in partition_values)
        origin = origins.get(name, unknown)
        fields = (tuple(zip(partitions, values, strict=True)), deleted.get(name, b""), *origin)
        if fields != (entry.values, entry.deleted, entry.parents, entry.since):  # equal for most files in a row
            entry = LogEntry(entry.snapshot, *fields, entry.columns)
        yield entry


def _refuse_special_files(location: str) -> None:
    """Raise Refused if a table's log on this machine has a link out of the table, a FIFO or a device."""
    if "://" in location:
        return
    table = os.path.realpath(location).rstrip("/")
    for folder, folders, names in os.walk(os.path.join(location, LOG_OF_DELTA)):
        for path in (folder, *(os.path.join(folder, name) for name in (*folders, *names))):
            if not os.path.realpath(path).startswith(f"{table}/"):
                raise Refused(
                    f"input.paths: Delta table {location!r}: {printable(path)!r} is a link out of the table's folder, "
                    "which is not followed; replace it with the file itself"
                )
        for path in (os.path.join(folder, name) for name in names):
            if os.path.exists(path) and not os.path.isfile(path):
                raise Refused(
                    f"input.paths: Delta table {location!r}: {printable(path)!r} is a FIFO, socket or device, but a "
                    "log has only regular files; delete it"
                )


@contextlib.contextmanager
def _opened_folder(location: str) -> Iterator[str]:
    """Yield the folder under a name that deltalake reads unchanged.

    For a local folder `a%20b`, deltalake would read `a b`.
    """
    real = os.path.realpath(location)
    if is_uri(location) or not re.search(r"[%\\\x00-\x1f\x7f]", real):
        yield location
        return
    with tempfile.TemporaryDirectory(prefix="bricks") as folder:
        for name in os.listdir(real):
            os.symlink(os.path.join(real, name), os.path.join(folder, name))
        yield folder


def _read_version(location: str, opened: str, reading: TableReading, named: Callable[[str], str]) -> _Version:
    """Read the requested version of a table. Raises as deltalake does.

    deltalake's own copy of the table is freed when this returns.
    """
    filesystem, inner = filesystem_of(location)
    table = _open(location, opened, reading)
    partitions, created = table.metadata().partition_columns, (table.metadata().created_time or 0) * _MILLISECOND
    columns = ["path", "size_bytes", "modification_time", *(f"partition.{name}" for name in partitions)]
    added = pa.table(table.get_add_actions(flatten=True)).select(columns)
    vectors = "deletionVectors" in (table.protocol().reader_features or ())
    log = CommitLog(filesystem, posixpath.join(inner, LOG_OF_DELTA), table.version(), named)
    return _Version(table.version(), table.table_uri, _columns(table), partitions, added, vectors, log, created)


def _columns(table: DeltaTable) -> dict[str, TableColumn]:
    """Return columns of a table as its files have them.

    Files have them by names, or by names and ids of their own ("Column Mapping").
    """
    protocol, columns = table.protocol(), dict[str, TableColumn]()
    can_map = protocol.min_reader_version == _MAPS_COLUMNS or "columnMapping" in (protocol.reader_features or ())
    mode = table.metadata().configuration.get(f"{_MAPPING}mode", "none") if can_map else "none"
    partitions, schema = set(table.metadata().partition_columns), table.schema()
    for field, kind in zip(schema.fields, pa.schema(schema.to_arrow()).types, strict=True):
        column = TableColumn.named(field.name, kind)
        if mode != "none":
            physical, number = (field.metadata.get(f"{_MAPPING}{name}") for name in ("physicalName", "id"))
            if physical is None or number is None:
                raise ValueError(f"column {field.name!r} has no physical name or id, which column mapping requires")
            column = column._replace(names=(str(physical),))
            if mode == "id":  # files without ids have the physical name, which no other column ever had
                column = column._replace(field_id=int(number))
        if field.name in partitions:  # the log has its values, and they count even if a file has others
            column = column._replace(names=(), field_id=None)
        columns[field.name] = column
    return columns


def _deleted(
    location: str,
    opened: str,
    version: _Version,
    commits: Sequence[Commit],
    removed: Collection[str],
    named: Callable[[str], str],
) -> dict[str, bytes]:
    """Return the deleted rows of files, by path as results show it.

    Raises:
        ScanFailed: the rows are unknown, or log and vector differ.
    """
    read_vectors = read_deletion_vectors(location, opened, version.number, checkpoint=not version.log.whole)
    stated = version.log.stated_rows(commits, read_vectors.checkpoint, read_vectors.stated)
    vectors: dict[str, VectorRows] = {}
    for uri, rows in read_vectors.rows.items():
        name = named(uri.removeprefix(version.uri))
        if name not in vectors or rows.number == stated.get(name):  # an older vector, under another spelling, has fewer
            vectors[name] = rows
    unmatched = set(vectors)
    for path in chain.from_iterable(_rows(version.actions.select(["path"]))):
        name = named(path)
        unmatched.discard(name)
        number = vectors[name].number if name in vectors else 0
        if name not in removed and number != stated.get(name, 0):
            raise ScanFailed(
                f"input.paths: Delta table {location!r}: the deletion vector of {printable(name)!r} removes "
                f"{number:,} rows, but the log states {stated.get(name, 0):,}; restore the vector's file, or restore "
                "the table to an earlier version (RESTORE TABLE) and delete these rows again"
            )
    if unmatched:
        raise ScanFailed(
            f"input.paths: Delta table {location!r} has deletion vectors for files that its log names differently; "
            "rewrite these files at the source (REORG TABLE … APPLY (PURGE)) so that no deleted row is read"
        )
    return {name: rows.packed for name, rows in vectors.items()}


def _removed(commits: Iterable[Commit]) -> set[str]:
    """Return the files that commits removed, and that none added again."""
    # deltalake lists such a file if the commit that removed it escaped other characters of its path than the commit
    # that added it. deltalake's own commits do so in tables of other engines.
    removed = set[str]()
    for commit in commits:
        removed.update(commit.removes)
        removed.difference_update(commit.adds)
    return removed


def _rows(actions: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in actions.to_batches(max_chunksize=_TOGETHER):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _open(location: str, opened: str, reading: TableReading) -> DeltaTable:
    """Open the table at the requested version. Raises as `read_delta`."""
    moment = reading.timestamp if reading.version is None else reading.version
    try:
        table = DeltaTable(opened, version=reading.version)  # an older version needs no newer commits
        if reading.timestamp is not None:
            table.load_as_version(reading.timestamp)
    except DeltaError as error:
        which = "" if moment is None else f" at {moment}"
        why = _why_not_opened(location, reading.version, _in_words(error))
        raise Refused(f"input.paths: Delta table {location!r} cannot be read{which}: {why}") from None
    if reading.timestamp is not None:
        _refuse_later(location, table.version(), reading.timestamp)
    properties = table.metadata().configuration
    if TABLE_VERSION in properties:
        raise Refused(f"input.paths: {location!r} is a table of results; name the folder of the texts")
    needed = {*(table.protocol().reader_features or ())} - _READER_FEATURES
    if needed:
        raise Refused(
            f"input.paths: Delta table {location!r} needs {', '.join(sorted(needed))}, which brickscan does not "
            f"support; {_WRITE_ROWS}"
        )
    return table


def _why_not_opened(location: str, version: int | None, said: str) -> str:
    """Return why a table cannot be opened, and what to do. `said` is deltalake's message."""
    if "catalog-managed" in said:
        return f"its newest commits are in a catalog (catalogManaged), not in its folder; {_WRITE_ROWS}"
    filesystem, inner = filesystem_of(location)
    files = filesystem.get_file_info(fs.FileSelector(posixpath.join(inner, LOG_OF_DELTA), allow_not_found=True))
    commits = {int(match[1]): file.path for file in files if (match := COMMIT.fullmatch(file.base_name))}
    checkpoints = {int(match[1]) for file in files if (match := CHECKPOINT.fullmatch(file.base_name))}
    newest = max({*commits, *checkpoints}, default=-1)
    if version is not None and version > newest:
        return f"its newest version is {newest}; name that version, or leave `version` out"
    last = newest if version is None else version
    begin = max((number + 1 for number in checkpoints if number <= last), default=0)
    for number in range(begin, last + 1):
        lacks = number not in commits
        if lacks or ("Json error" in said and not _is_json(filesystem, commits[number])):
            fault = (
                f"its log lacks the commit {number:020d}.json" if lacks else f"its commit {number:020d}.json is damaged"
            )
            alternative = f", or read a version before it: version = {number - 1}" if number else ""
            return f"{fault}; restore this file from a backup{alternative}"
    return said + next((advice for words, advice in _ADVICE.items() if any(word in said for word in words)), "")


def _in_words(error: Exception) -> str:
    """Return the words of deltalake's message. Its code prints its own values after a brace."""
    return in_a_line(error).partition(" {")[0]


def _is_json(filesystem: fs.FileSystem, path: str) -> bool:
    """Return whether every line of a commit is a JSON object."""
    try:
        with filesystem.open_input_file(path) as opened:
            lines = (line for line in io.BufferedReader(opened) if line.strip())
            return all(isinstance(parse_json(line), dict) for line in lines)
    except ValueError:
        return False


def _refuse_later(location: str, version: int, time: datetime.datetime) -> None:
    """Raise Refused for a version that was committed after a time. deltalake reads the oldest version in that case."""
    filesystem, inner = filesystem_of(location)
    file = filesystem.get_file_info(posixpath.join(inner, LOG_OF_DELTA, f"{version:020d}.json"))
    if file.type != fs.FileType.File:  # the log has only a checkpoint of it
        return
    with filesystem.open_input_file(file.path) as opened:
        infos = [action.get("commitInfo", {}) for action in actions_of(io.BufferedReader(opened), b"commitInfo")]
    times = [file.mtime_ns // _MILLISECOND, *(int(info["timestamp"]) for info in infos if "timestamp" in info)]
    if min(times) > time.timestamp() * 1000:
        raise Refused(f"input.paths: Delta table {location!r} had no version at {time}: its oldest version is newer")


def _files_where(location: str, actions: pa.Table, where: str | None) -> pa.Table:
    """Return the actions of files in partitions that `where` selects.

    Raises:
        Refused: `where` is no SQL on their columns.
    """
    if where is None:
        return actions
    rows = cast(pl.DataFrame, pl.from_arrow(actions.select(actions.column_names[3:])))
    rows = rows.rename({name: name.removeprefix("partition.") for name in rows.columns})
    rows = rows.with_columns(pl.selectors.date().cast(pl.String))  # in the form of {date}
    columns = f"the table is partitioned by: {', '.join(rows.columns) or 'nothing'}"
    try:
        condition = pl.sql_expr(where)
        others = set(condition.meta.root_names()) - {*rows.columns}
        mask = rows.select(condition.cast(pl.Boolean).fill_null(value=False)).to_series()
    except pl.exceptions.PolarsError as error:
        raise Refused(
            f"input.where: {where!r} cannot be applied to Delta table {location!r}: {in_a_line(error)}; give SQL on "
            f"its partition columns, such as \"date = '{{date}}'\"; {columns}"
        ) from None
    if others or len(mask) != len(actions):
        raise Refused(
            f"input.where: {where!r} does not select partitions of Delta table {location!r}, and only whole "
            f"partitions can be selected; {columns}; without `where` a scan reads every file that has not been "
            "scanned yet"
        )
    return actions.filter(mask.to_arrow())

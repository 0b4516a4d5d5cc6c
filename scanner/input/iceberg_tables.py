"""Iceberg tables of the input: the data files of one snapshot, by pyiceberg and its own configuration of catalogs.

A data file is never written again: its path, size and place in the table's sequence identify it, and delete files say
which of its rows are gone. A snapshot that removes files and adds others may have rewritten rows. So each file knows
the files that went into it, as far back as the table has its snapshots (Iceberg's specification, "Scan Planning").
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.input.shards import MAX_ROWS, MOST_SHARDS
from scanner.input.tables import (
    ICEBERG_PREFIX,
    Commit,
    FileOrigin,
    LogEntry,
    Snapshot,
    TableFile,
    TableFiles,
    TableReading,
    columns_of,
    origins_of,
    pack_rows,
)
from scanner.printable import printable

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot as TableSnapshot

_MILLISECOND = 10**6  # nanoseconds
_UNKNOWN = 1  # a time before all others, of files whose snapshot the table has no more
_SECRET = re.compile("token|secret|credential|password|key", re.IGNORECASE)
_SHORTEST_SECRET = 4  # characters of a part of a URI; shorter ones are words of errors
_INSTALL = "install brickscan[iceberg] to read Iceberg tables"


def read_iceberg(named: str, reading: TableReading) -> TableFiles:
    """The data files of an Iceberg table at one snapshot.

    named: `iceberg:` and the table's name, whose first part is the catalog's, such as `iceberg:lake.forum.posts`.

    Raises:
        Refused: there is no such catalog, table or snapshot; pyiceberg is not installed; the table has equality
            deletes, or files other than Parquet; `where` is no expression of partitions.
        ScanFailed: it cannot be read.
    """
    try:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
        from pyiceberg.expressions import AlwaysTrue
    except ImportError:
        raise Refused(f"input.paths: {named!r}: {_INSTALL}") from None
    try:
        table = _open(named)
        _refuse_used_names(named, table)
        snapshot = _snapshot(named, table, reading)
        if snapshot is None:
            return TableFiles([])
        scan = table.scan(row_filter=_rows(reading.where), snapshot_id=snapshot.snapshot_id)
        tasks = list(scan.plan_files())
        origins = origins_of(_commits(table, snapshot), _UNKNOWN)
        deleted = _deletions(table, tasks)
    except (NoSuchTableError, NoSuchNamespaceError, NotInstalledError, NotImplementedError, ValueError) as error:
        raise Refused(f"input.paths: Iceberg table {named!r} cannot be read: {_in_a_line(error, named)}") from None
    except Refused:
        raise
    except Exception as error:  # catalogs raise what their services do
        raise ScanFailed(f"input.paths: Iceberg table {named!r} cannot be read: {_in_a_line(error, named)}") from None
    read = Snapshot(named, "Iceberg", snapshot.snapshot_id)
    files = []
    for task in tasks:
        path, named_path = task.file.file_path, _path(task.file.file_path)
        if str(task.residual) != str(AlwaysTrue()):
            raise Refused(
                f"input.where: {reading.where!r} chooses among rows of one file, such as {printable(path)}, and rows "
                "are chosen by partitions alone; name columns that the table is partitioned by, unchanged (identity); "
                "without `where` a scan reads what no scan has read yet"
            )
        if task.file.file_format.name != "PARQUET":
            raise Refused(f"input.paths: {named!r} has {printable(path)}, and only Parquet is read")
        origin = origins.get(named_path, FileOrigin(frozenset(), _UNKNOWN))
        parents = origin.parents | {named_path} if path in deleted else origin.parents
        entry = LogEntry(read, _values(table, task.file), deleted.get(path, b""), parents, origin.since)
        files.append(TableFile(named_path, task.file.file_size_in_bytes, 0, entry))
    return TableFiles(columns_of(files))


def _in_a_line(error: Exception, named: str) -> str:
    """The message of an error without what the configuration of the table's catalog keeps secret."""
    line = in_a_line(error)
    for secret in sorted(_secrets(_catalog_of(named)), key=len, reverse=True):
        line = line.replace(secret, "…").replace(quote(secret, safe=""), "…")
    return line


def _secrets(catalog: str) -> Iterator[str]:
    """Parts of a catalog's properties that may be secret: some by their names, and of URIs all but scheme and host."""
    from pyiceberg.utils.config import Config

    for name, value in (Config().get_catalog_config(catalog) or {}).items():
        text = str(value)
        if _SECRET.search(name):
            yield from (part for part in (text, *text.split(":")) if part)  # an id and its secret
        elif "://" in text:
            uri = urlsplit(text)
            parts = [uri.username or "", uri.password or "", *uri.path.split("/"), *re.split("[&=]", uri.query)]
            yield from (unquote(part) for part in parts if len(part) >= _SHORTEST_SECRET)


def _catalog_of(named: str) -> str:
    return named.removeprefix(ICEBERG_PREFIX).partition(".")[0]


def _path(uri: str) -> str:
    """A file's URI as tables of results show it: a plain path where it is on this machine."""
    return uri.removeprefix("file:").replace("///", "/", 1) if uri.startswith("file:") else uri


def _rows(where: str | None) -> "BooleanExpression":
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.expressions.parser import parse

    if where is None:
        return AlwaysTrue()
    try:
        return parse(where)
    except Exception:  # the parser's own, whose text lists its grammar
        raise Refused(
            f"input.where: {where!r} is no condition that Iceberg reads, such as \"day = '{{date}}'\""
        ) from None


def _open(named: str) -> "Table":
    from pyiceberg.catalog import load_catalog

    from scanner.input.iceberg_files import RegularFiles, properties_of

    catalog, _, name = named.removeprefix(ICEBERG_PREFIX).partition(".")
    if not name:
        raise Refused(f"input.paths: {named!r}: write iceberg:CATALOG.NAMESPACE.TABLE")
    table = load_catalog(catalog, **properties_of(catalog)).load_table(name)
    table.io = RegularFiles(table.io.properties)  # the table's own properties may name another
    return table


def _refuse_used_names(named: str, table: "Table") -> None:
    """Refuse a column whose name another one had: files are read by names, and old ones hold the other's values."""
    before = {(field.name, field.field_id) for schema in table.schemas().values() for field in schema.fields}
    for field in table.schema().fields:
        if any(name == field.name and of != field.field_id for name, of in before):
            raise Refused(
                f"input.paths: Iceberg table {named!r}: column {printable(field.name)!r} has the name of a column that "
                "was dropped or renamed, whose values old files still hold under it; rename the new column"
            )


def _snapshot(named: str, table: "Table", reading: TableReading) -> "TableSnapshot | None":
    """The snapshot that is read; None: the table has none yet."""
    if reading.timestamp is not None:
        found = table.snapshot_as_of_timestamp(int(reading.timestamp.timestamp() * 1000))
    elif reading.version is not None:
        found = table.snapshot_by_id(reading.version)
    else:
        return table.current_snapshot()
    if found is None:
        at = reading.timestamp if reading.version is None else reading.version
        raise Refused(f"input.paths: Iceberg table {named!r} has no snapshot of {at}")
    return found


def _values(table: "Table", file: "DataFile") -> tuple[tuple[str, str | None], ...]:
    from pyiceberg.transforms import IdentityTransform

    values = []
    for i, field in enumerate(table.specs()[file.spec_id].fields):
        name = table.schema().find_column_name(field.source_id)
        if name is not None and isinstance(field.transform, IdentityTransform):
            values.append((name, None if file.partition[i] is None else str(file.partition[i])))
    return tuple(values)


def _commits(table: "Table", last: "TableSnapshot") -> Iterator[Commit]:
    """What led to a snapshot, as far back as the table has it, the oldest first; those of one transaction are one."""
    # A transaction writes metadata with the time of its last snapshot. pyiceberg overwrites by two: one removes files,
    # and one adds others (Iceberg's specification, "Table Metadata Fields": metadata-log, last-updated-ms).
    line: dict[int, TableSnapshot] = {}
    found: TableSnapshot | None = last
    while found is not None:
        line[found.snapshot_id] = found
        parent = found.parent_snapshot_id
        if parent in line:
            raise ValueError(f"snapshot {parent} is a parent of its own parents")
        found = None if parent is None else table.snapshot_by_id(parent)
    ends = {table.metadata.last_updated_ms, *(entry.timestamp_ms for entry in table.metadata.metadata_log)}
    adds, removes = dict[str, int](), list[str]()
    times = [snapshot.timestamp_ms for snapshot in line.values()]
    for snapshot, after in zip(reversed(line.values()), [*times[-2::-1], None], strict=True):
        added, removed = _changes(table, snapshot)
        adds |= dict.fromkeys(added, snapshot.timestamp_ms * _MILLISECOND)
        removes += removed
        ended = snapshot.timestamp_ms in ends or snapshot.timestamp_ms < min(ends)  # older metadata is forgotten
        if after is None or (ended and after != snapshot.timestamp_ms):
            yield Commit(adds, [path for path in removes if path not in adds])
            adds, removes = {}, []


def _changes(table: "Table", snapshot: "TableSnapshot") -> tuple[list[str], list[str]]:
    """Paths of data files that a snapshot added, and of those that it removed."""
    from pyiceberg.manifest import DataFileContent, ManifestEntryStatus

    changed: dict[Any, list[str]] = {ManifestEntryStatus.ADDED: [], ManifestEntryStatus.DELETED: []}
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            of_snapshot = entry.snapshot_id in (None, snapshot.snapshot_id)
            if of_snapshot and entry.data_file.content == DataFileContent.DATA and entry.status in changed:
                changed[entry.status].append(_path(entry.data_file.file_path))
    return changed[ManifestEntryStatus.ADDED], changed[ManifestEntryStatus.DELETED]


def _deletions(table: "Table", tasks: Sequence["FileScanTask"]) -> dict[str, bytes]:
    """Rows of files that delete files take away, by the files' paths. Raises Refused: nobody knows of which files."""
    read: dict[str, list[tuple[str, NDArray[np.int64]]]] = {}
    found = {}
    unmatched = {deletes.file_path for task in tasks for deletes in task.delete_files if _is_vector(deletes)}
    for task in tasks:
        if not task.delete_files:
            continue
        if task.file.record_count > MOST_SHARDS * MAX_ROWS:
            raise ValueError(f"{task.file.file_path} is said to have {task.file.record_count:,} rows")
        gone = np.zeros(task.file.record_count, np.bool_)
        for deletes in task.delete_files:
            if deletes.file_path not in read:
                read[deletes.file_path] = list(_positions(table.io, deletes))
            for path, rows in read[deletes.file_path]:
                if _path(path) == _path(task.file.file_path):  # engines write file:/ and file:///
                    if _is_vector(deletes):
                        _refuse_other_number(deletes, len(rows), deletes.record_count)
                    if rows.min(initial=0) < 0:
                        raise ValueError(f"{deletes.file_path} deletes row {rows.min()} of {path}")
                    gone[rows] = True
                    unmatched.discard(deletes.file_path)
        if gone.any():
            found[task.file.file_path] = pack_rows(gone)
    if unmatched:
        raise Refused(
            f"input.paths: deletion vectors of {printable(min(unmatched))} are of no file of the table; rewrite its "
            "files at the source (rewrite_data_files), so that no deleted row is read"
        )
    return found


def _rows_of_vector(blob: bytes) -> NDArray[np.int64]:
    """Rows of a deletion vector (Puffin's "deletion-vector-v1"). Raises ValueError: damaged, or too many rows."""
    # Behind a length and a magic number, 4 bytes each, stand the number of bitmaps and, for each, the upper half of
    # its rows and a Roaring bitmap; a checksum of 4 bytes ends it. 40 bytes can claim more than memory holds.
    from pyroaring import BitMap

    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("a deletion vector is damaged: its checksum is that of other bytes")
    bitmaps, upper = int.from_bytes(blob[8:16], "little"), int.from_bytes(blob[16:20], "little")
    if not bitmaps:
        return np.empty(0, np.int64)
    rows = BitMap.deserialize(blob[20:-4]) if (bitmaps, upper) == (1, 0) else None
    if rows is None or (rows and rows.max() >= MOST_SHARDS * MAX_ROWS):
        raise ValueError(
            f"a deletion vector takes rows away beyond the {MOST_SHARDS * MAX_ROWS:,} that a file may have"
        )
    return np.asarray(rows.to_array(), np.int64)


def _is_vector(deletes: "DataFile") -> bool:
    return deletes.file_format.name == "PUFFIN"


def _positions(io: "FileIO", deletes: "DataFile") -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Files that a delete file is about, each with rows that are gone. Raises ValueError: damaged; Refused: unread."""
    from pyiceberg.table.puffin import PuffinFile

    with io.new_input(deletes.file_path).open() as file:
        payload = file.read()
    if _is_vector(deletes):
        puffin = PuffinFile(payload)
        for blob in puffin.footer.blobs:
            gone, count = _rows_of_vector(puffin.get_blob_payload(blob)), int(blob.properties["cardinality"])
            _refuse_other_number(deletes, len(gone), count)
            yield blob.properties["referenced-data-file"], gone
    elif deletes.file_format.name == "PARQUET":
        rows = pq.read_table(pa.BufferReader(payload), columns=["file_path", "pos"])
        _refuse_other_number(deletes, len(rows), deletes.record_count)
        for path in pc.unique(rows["file_path"]).to_pylist():
            yield path, rows.filter(pc.equal(rows["file_path"], path))["pos"].to_numpy()
    else:
        raise Refused(f"input.paths: delete file {printable(deletes.file_path)} is no Parquet and no Puffin")


def _refuse_other_number(deletes: "DataFile", taken_away: int, stated: int) -> None:
    """Raise ValueError for a delete file that lacks rows: they would be read although they were deleted."""
    if taken_away != stated:
        raise ValueError(f"{deletes.file_path} takes {taken_away:,} rows away, where the table says {stated:,}")

"""Read Iceberg tables of the input: the data files of one snapshot, by pyiceberg and its own configuration of catalogs.

A data file is never written again. Its path, size and place in the table's sequence identify it. Delete files say which
of its rows are deleted. A snapshot that removes files and adds others may have rewritten rows, so for each file we find
the files that went into it, as far back as the table has snapshots (Iceberg's specification, "Scan Planning").
"""

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scanner.errors import Refused, ScanFailed, in_a_line, install_of
from scanner.input.shards import MAX_ROWS, MOST_SHARDS
from scanner.input.tables import (
    ICEBERG_PREFIX,
    Commit,
    FileOrigin,
    LogEntry,
    Snapshot,
    TableColumn,
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
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot as TableSnapshot

_MILLISECOND = 10**6  # nanoseconds
_UNKNOWN = 1  # a time before all others, for files whose snapshot the table has forgotten
_PATH = 2147483546  # id of the column of paths in delete files
_SECRET = re.compile("token|secret|credential|password|key", re.IGNORECASE)
_SHORTEST_SECRET = 4  # characters of a part of a URI; shorter parts could be words of an error


def read_iceberg(named: str, reading: TableReading) -> TableFiles:
    """Return the data files of an Iceberg table at one snapshot.

    Args:
        named: `iceberg:` and the table's name. Its first part is the catalog's name: `iceberg:lake.forum.posts`.
        reading: the version, time and partitions to read.

    Raises:
        Refused: one of these:
            there is no such catalog, table or snapshot;
            pyiceberg is not installed;
            the table has equality deletes, or files other than Parquet;
            `where` is no expression on partitions.
        ScanFailed: the table cannot be read.
    """
    try:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError
        from pyiceberg.expressions import AlwaysTrue
    except ImportError:
        raise Refused(f"input.paths: {named!r}: Iceberg tables need {install_of('iceberg')}") from None
    try:
        table = _open(named)
        snapshot = _snapshot(named, table, reading)
        if snapshot is None:
            return TableFiles([])
        older = None if (reading.timestamp, reading.version) == (None, None) else snapshot.snapshot_id
        scan = table.scan(row_filter=_rows(reading.where), snapshot_id=older)
        tasks, schema = list(scan.plan_files()), scan.projection()
        columns = _columns(table, schema)
        origins = origins_of(_commits(table, snapshot), _UNKNOWN)
        deleted = _deletions(table, snapshot, tasks, chosen=reading.where is not None)
    except (NoSuchTableError, NoSuchNamespaceError, NotInstalledError, NotImplementedError, ValueError) as error:
        raise Refused(f"input.paths: Iceberg table {named!r} cannot be read: {_in_a_line(error, named)}") from None
    except Refused:
        raise
    except Exception as error:  # catalogs raise the errors of their services
        raise ScanFailed(f"input.paths: Iceberg table {named!r} cannot be read: {_in_a_line(error, named)}") from None
    read = Snapshot(named, "Iceberg", snapshot.snapshot_id)
    files = []
    for task in tasks:
        path, named_path = task.file.file_path, _path(task.file.file_path)
        if str(task.residual) != str(AlwaysTrue()):
            raise Refused(
                f"input.where: {reading.where!r} selects single rows of one file, for example {printable(path)}, but "
                "only whole partitions can be selected; name columns that the table is partitioned by, unchanged "
                "(identity); without `where` a scan reads every file that has not been scanned yet"
            )
        if task.file.file_format.name != "PARQUET":
            raise Refused(f"input.paths: {named!r} has {printable(path)}, but only Parquet is read")
        origin = origins.get(named_path, FileOrigin(frozenset(), _UNKNOWN))
        parents = origin.parents | {named_path} if named_path in deleted else origin.parents
        values = _values(table, schema, task.file)
        entry = LogEntry(read, values, deleted.get(named_path, b""), parents, origin.since, columns)
        files.append(TableFile(named_path, task.file.file_size_in_bytes, 0, entry))
    return TableFiles(columns_of(files))


def _in_a_line(error: Exception, named: str) -> str:
    """Return the message of an error without the secrets in the configuration of the table's catalog."""
    line = in_a_line(error)
    for secret in sorted(_secrets(_catalog_of(named)), key=len, reverse=True):
        line = line.replace(secret, "…").replace(quote(secret, safe=""), "…")
    return line


def _secrets(catalog: str) -> Iterator[str]:
    """Yield parts of a catalog's properties that may be secret.

    These are the values of some properties, and the user and query of each URI. The path in a service's address may
    contain a token. The path of a warehouse or of a database's file is no secret.
    """
    from pyiceberg.utils.config import Config

    for name, value in (Config().get_catalog_config(catalog) or {}).items():
        text = str(value)
        if _SECRET.search(name):
            yield from (part for part in (text, *text.split(":")) if part)  # an id and its secret
        elif "://" in text:
            uri = urlsplit(text)
            segments = uri.path.split("/") if uri.scheme in ("http", "https") else []
            parts = [uri.username or "", uri.password or "", *segments, *re.split("[&=]", uri.query)]
            yield from (unquote(part) for part in parts if len(part) >= _SHORTEST_SECRET)


def _catalog_of(named: str) -> str:
    return named.removeprefix(ICEBERG_PREFIX).partition(".")[0]


def _path(uri: str) -> str:
    """Return a file's URI as in tables of results: a plain path if it is on this machine."""
    return uri.removeprefix("file:").replace("///", "/", 1) if uri.startswith("file:") else uri


def _place(uri: str) -> str:
    """Return a file's path in its store.

    Writers use several schemes for the same file: s3://bucket/a and s3a://bucket/a.
    """
    return urlsplit(uri).path if "://" in uri else _path(uri)


def _rows(where: str | None) -> "BooleanExpression":
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.expressions.parser import parse

    if where is None:
        return AlwaysTrue()
    try:
        return parse(where)
    except Exception:  # the parser's own error, whose text lists its grammar
        raise Refused(
            f"input.where: {where!r} is not a condition in Iceberg's syntax, such as \"day = '{{date}}'\""
        ) from None


def _open(named: str) -> "Table":
    from pyiceberg.catalog import load_catalog

    from scanner.input.iceberg_files import RegularFiles, properties_of

    catalog, _, name = named.removeprefix(ICEBERG_PREFIX).partition(".")
    if not name:
        raise Refused(f"input.paths: {named!r}: write iceberg:CATALOG.NAMESPACE.TABLE")
    table = load_catalog(catalog, **properties_of(catalog)).load_table(name)
    table.io = RegularFiles(table.io.properties)  # the table's own properties may name another implementation
    return table


def _columns(table: "Table", schema: "Schema") -> dict[str, TableColumn]:
    """Return columns of a schema as files have them: by ids, and by the names that the table maps to the ids.

    The names are for files without ids. A column that was added later has its initial default in older rows (Iceberg's
    specification, "Column Projection").
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    mapping = table.name_mapping()
    names = {} if mapping is None else {field.field_id: tuple(field.names) for field in mapping.root}
    columns = {}
    for field in schema.fields:
        kind = schema_to_pyarrow(field.field_type)
        column = TableColumn.named(field.name, kind)
        if field.initial_default is not None:
            column = column._replace(default=pa.scalar(field.initial_default, kind))
        columns[field.name] = column._replace(names=names.get(field.field_id, ()), field_id=field.field_id)
    return columns


def _snapshot(named: str, table: "Table", reading: TableReading) -> "TableSnapshot | None":
    """Return the snapshot that is read. None: the table has none yet."""
    if reading.timestamp is not None:
        snapshot = table.snapshot_as_of_timestamp(int(reading.timestamp.timestamp() * 1000))
    elif reading.version is not None:
        snapshot = table.snapshot_by_id(reading.version)
    else:
        return table.current_snapshot()
    if snapshot is None:
        requested = reading.timestamp if reading.version is None else reading.version
        raise Refused(f"input.paths: Iceberg table {named!r} has no snapshot for {requested}")
    return snapshot


def _values(table: "Table", schema: "Schema", file: "DataFile") -> tuple[tuple[str, str | None], ...]:
    """Return the values of the columns of a file's partition, by their names in a schema."""
    from pyiceberg.transforms import IdentityTransform

    values = []
    for i, field in enumerate(table.specs()[file.spec_id].fields):
        name, value = schema.find_column_name(field.source_id), file.partition[i]
        if name is not None and isinstance(field.transform, IdentityTransform):
            kind = schema.find_type(field.source_id)  # the manifest has a date as a number
            values.append((name, None if value is None else field.transform.to_human_string(kind, value)))
    return tuple(values)


def _commits(table: "Table", last: "TableSnapshot") -> Iterator[Commit]:
    """Yield the commits that led to a snapshot, the oldest first, as far as the table has them.

    A transaction is one commit.
    """
    # A transaction writes metadata with the time of its last snapshot. pyiceberg overwrites by two snapshots: one
    # removes files, and one adds others (Iceberg's specification, "Table Metadata Fields": metadata-log,
    # last-updated-ms).
    ends = {table.metadata.last_updated_ms, *(entry.timestamp_ms for entry in table.metadata.metadata_log)}
    adds, removes = dict[str, int](), list[str]()
    steps = _steps(table, last)
    for (snapshot, undone), (next_snapshot, next_undone) in zip(steps, [*steps[1:], (last, None)], strict=True):
        (added, removed), time_ms = _changes(table, snapshot), snapshot.timestamp_ms
        adds |= dict.fromkeys(removed if undone else added, time_ms * _MILLISECOND)
        removes += removed
        if undone:  # files that came back may contain rows of the files that had replaced them
            removes += added
        ended = time_ms in ends or time_ms < min(ends)  # the table has forgotten older metadata
        if next_undone is not undone or (not undone and ended and next_snapshot.timestamp_ms != time_ms):
            yield Commit(adds, removes if undone else [path for path in removes if path not in adds])
            adds, removes = {}, []


def _steps(table: "Table", last: "TableSnapshot") -> list[tuple["TableSnapshot", bool]]:
    """Return the snapshots that led to one, in order, each with whether a rollback has undone it.

    Raises:
        ValueError: a snapshot is a parent of its own parents.
    """
    log = [entry.snapshot_id for entry in table.metadata.snapshot_log]
    heads = log[: len(log) - log[::-1].index(last.snapshot_id)] if last.snapshot_id in log else [last.snapshot_id]
    line: dict[int, TableSnapshot] = {}
    steps: list[tuple[TableSnapshot, bool]] = []
    for head in heads:
        newer: dict[int, TableSnapshot] = {}
        snapshot_id: int | None = head
        while (
            snapshot_id is not None
            and snapshot_id not in line
            and (snapshot := table.snapshot_by_id(snapshot_id)) is not None
        ):
            newer[snapshot_id], snapshot_id = snapshot, snapshot.parent_snapshot_id
            if snapshot_id in newer:
                raise ValueError(f"snapshot {snapshot_id} is its own ancestor")
        while snapshot_id in line and next(reversed(line)) != snapshot_id:
            steps.append((line.popitem()[1], True))
        if snapshot_id not in line:  # the table has forgotten the snapshots between the two
            line.clear()
        line.update(reversed(newer.items()))
        steps += [(snapshot, False) for snapshot in reversed(newer.values())]
    return steps


def _changes(table: "Table", snapshot: "TableSnapshot") -> tuple[list[str], list[str]]:
    """Return the paths of data files that a snapshot added, and of those that it removed."""
    from pyiceberg.manifest import DataFileContent, ManifestEntryStatus

    changed: dict[Any, list[str]] = {ManifestEntryStatus.ADDED: [], ManifestEntryStatus.DELETED: []}
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            is_new = entry.snapshot_id in (None, snapshot.snapshot_id)
            if is_new and entry.data_file.content == DataFileContent.DATA and entry.status in changed:
                changed[entry.status].append(_path(entry.data_file.file_path))
    return changed[ManifestEntryStatus.ADDED], changed[ManifestEntryStatus.DELETED]


class _Vector(NamedTuple):
    """A manifest's entry of a deletion vector, one of those in a Puffin file.

    data_file: the file whose rows it deletes. None: only the Puffin file tells.
    offset: its first byte in the Puffin file. None: only the Puffin file tells.
    number: number of rows that it deletes.
    """

    path: str
    data_file: str | None
    offset: int | None
    number: int


def _deletions(
    table: "Table", snapshot: "TableSnapshot", tasks: Sequence["FileScanTask"], *, chosen: bool
) -> dict[str, bytes]:
    """Return the rows that delete files delete, by the data files' paths.

    chosen: whether the tasks are only some of the table's files, chosen by `where`.

    Raises:
        Refused: it is unknown which files they belong to.
        ValueError: a delete file has other rows than the table says.
    """
    gone: dict[str, NDArray[np.bool_]] = {}
    size_of = {_path(task.file.file_path): task.file.record_count for task in tasks}

    def take_away(deletes: str, path: str, rows: NDArray[np.int64]) -> None:
        size = size_of[path]
        if size > MOST_SHARDS * MAX_ROWS:
            raise ValueError(f"the table states that {path} has {size:,} rows")
        if rows.min(initial=0) < 0:
            raise ValueError(f"{deletes} deletes row {rows.min()} of {path}")
        gone.setdefault(path, np.zeros(size, np.bool_))[rows] = True

    positions: dict[str, dict[str, NDArray[np.int64]]] = {}
    for task in tasks:
        for deletes in task.delete_files:
            path = _path(task.file.file_path)
            if deletes.file_format.name != "PUFFIN":  # a vector has a manifest entry of its own
                if deletes.file_path not in positions:
                    positions[deletes.file_path] = _positions(table.io, deletes)
                if path in positions[deletes.file_path]:
                    take_away(deletes.file_path, path, positions[deletes.file_path][path])
    partitions = {(task.file.spec_id, task.file.partition) for task in tasks} if chosen else None
    planned = {deletes.file_path for task in tasks for deletes in task.delete_files}
    # an entry that does not name its file counts where pyiceberg plans it, by its partition and age
    vectors = [
        vector
        for vector in _vectors(table, snapshot, partitions)
        if vector.data_file is not None or vector.path in planned
    ]
    by_place: dict[str, list[str]] = defaultdict(list)
    for path in size_of:
        by_place[_place(path)].append(path)

    def data_file(uri: str) -> str | None:
        """Return the data file that a vector names. None: it was removed."""
        named = [_path(uri)] if _path(uri) in size_of else by_place.get(_place(uri), [])
        if len(named) > 1:
            raise ValueError(f"{uri} is the name of several files in different stores")
        return named[0] if named else None

    for puffin in dict.fromkeys(vector.path for vector in vectors):
        file_vectors = [vector for vector in vectors if vector.path == puffin]
        for path, rows in _rows_of_vectors(table.io, puffin, file_vectors, data_file):
            take_away(puffin, path, rows)
    return {path: pack_rows(rows) for path, rows in gone.items() if rows.any()}


def _vectors(table: "Table", snapshot: "TableSnapshot", partitions: Collection[object] | None) -> list[_Vector]:
    """Return the deletion vectors of data files in partitions, each by a spec's id and its values.

    None: of all files.
    """
    # pyiceberg plans by the second version of the format, in which no entry has a place in a Puffin file. It takes two
    # entries of one Puffin file for the same entry.
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        DATA_FILE_TYPE,
        MANIFEST_ENTRY_SCHEMAS,
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
    )

    place = {field.name: i for i, field in enumerate(DATA_FILE_TYPE[3].fields)}
    types: dict[int, Any] = {-1: ManifestEntry, 2: DataFile}
    enums: dict[int, Any] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    vectors = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content != ManifestContent.DELETES:
            continue
        opened = table.io.new_input(manifest.manifest_path)
        with AvroFile[ManifestEntry](opened, MANIFEST_ENTRY_SCHEMAS[3], types, enums) as entries:
            for entry in entries:
                file, live = entry.data_file, entry.status != ManifestEntryStatus.DELETED
                is_wanted = partitions is None or (manifest.partition_spec_id, file.partition) in partitions
                if not live or not is_wanted or file.file_format != FileFormat.PUFFIN:
                    continue
                lower, upper = ((bounds or {}).get(_PATH) for bounds in (file.lower_bounds, file.upper_bounds))
                bound = lower.decode() if lower and lower == upper else None
                data_file, offset = file[place["referenced_data_file"]] or bound, file[place["content_offset"]]
                vectors.append(_Vector(file.file_path, data_file, offset, file.record_count))
    return vectors


def _rows_of_vectors(
    io: "FileIO", path: str, vectors: Sequence[_Vector], data_file: Callable[[str], str | None]
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the data files of a Puffin file's vectors, each with its deleted rows.

    The file may contain more vectors than the table has: those of files with a newer vector elsewhere. A newer vector
    deletes the same rows and more, so an old one does no harm if nothing tells them apart. A vector of a data file that
    was removed does none either. Some writers leave such vectors in the table.

    data_file: returns the data file of a URI. None: the table does not have it any more.

    Raises:
        Refused: it is unknown which data file a vector belongs to.
        ValueError: the file is damaged, or lacks one of the vectors.
    """
    from pyiceberg.table.puffin import PuffinFile

    with io.new_input(path).open() as file:
        puffin = PuffinFile(file.read())
    blobs = [blob for blob in puffin.footer.blobs if blob.type == "deletion-vector-v1"]
    uris = [blob.properties["referenced-data-file"] for blob in blobs]
    rows_of = [_rows_of_vector(puffin.get_blob_payload(blob)) for blob in blobs]
    for blob, rows in zip(blobs, rows_of, strict=True):
        _refuse_other_number(path, len(rows), int(blob.properties["cardinality"]))
    unnamed, matching = Counter(vector.number for vector in vectors if vector.data_file is None), list[int]()
    for vector in vectors:
        if vector.data_file is None:
            continue
        same = [i for i, uri in enumerate(uris) if uri == vector.data_file]
        same = same or [i for i, uri in enumerate(uris) if _place(uri) == _place(vector.data_file)]
        matches = [i for i in same if vector.offset in (None, blobs[i].offset)]
        if not matches:
            raise ValueError(f"{path} lacks the deletion vector of {vector.data_file}, which the table lists")
        _refuse_other_number(path, len(rows_of[matches[0]]), vector.number)
        matching.append(matches[0])
    if unnamed:  # their entries have the number of deleted rows, but not the data file
        others = [i for i in range(len(blobs)) if i not in matching]
        numbers = Counter(len(rows_of[i]) for i in others)
        if unnamed - numbers:
            _refuse_other_number(path, sum(numbers.elements()), sum(unnamed.elements()))
            raise ValueError(f"{path} lacks a deletion vector that the table lists")
        candidates = [i for i in others if len(rows_of[i]) in unnamed]
        if sum(data_file(uris[i]) is not None for i in candidates) < unnamed.total():
            raise Refused(
                f"input.paths: deletion vectors of {printable(path)} do not belong to any file of the table; rewrite "
                "its files at the source (rewrite_data_files) so that no deleted row is read"
            )
        matching += candidates
    for i in matching:
        if (found_file := data_file(uris[i])) is not None:
            yield found_file, rows_of[i]


def _rows_of_vector(blob: bytes) -> NDArray[np.int64]:
    """Read the rows of a deletion vector (Puffin's "deletion-vector-v1").

    Raises:
        ValueError: it is damaged, or has too many rows.
    """
    # After a length and a magic number, 4 bytes each, come the number of bitmaps and, for each, the upper half of
    # its rows and a Roaring bitmap. A checksum of 4 bytes ends it. 40 bytes can claim more rows than fit into memory.
    from pyroaring import BitMap

    if zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("a deletion vector is damaged: its checksum does not match")
    bitmaps, upper = int.from_bytes(blob[8:16], "little"), int.from_bytes(blob[16:20], "little")
    if not bitmaps:
        return np.empty(0, np.int64)
    rows = BitMap.deserialize(blob[20:-4]) if (bitmaps, upper) == (1, 0) else None
    if rows is None or (rows and rows.max() >= MOST_SHARDS * MAX_ROWS):
        raise ValueError(f"a deletion vector removes rows beyond the {MOST_SHARDS * MAX_ROWS:,} that a file may have")
    return np.asarray(rows.to_array(), np.int64)


def _positions(io: "FileIO", deletes: "DataFile") -> dict[str, NDArray[np.int64]]:
    """Return the rows that a delete file deletes, by data files.

    Raises:
        Refused: it is of a kind that is not supported.
        ValueError: it is damaged.
    """
    if deletes.file_format.name != "PARQUET":
        raise Refused(f"input.paths: delete file {printable(deletes.file_path)} is neither Parquet nor Puffin")
    with io.new_input(deletes.file_path).open() as file:
        rows = pq.read_table(pa.BufferReader(file.read()), columns=["file_path", "pos"])
    _refuse_other_number(deletes.file_path, len(rows), deletes.record_count)
    rows_of: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    for path in pc.unique(rows["file_path"]).to_pylist():  # may be one file: engines write file:/ and file:///
        rows_of[_path(path)].append(rows.filter(pc.equal(rows["file_path"], path))["pos"].to_numpy())
    return {path: np.concatenate(parts) for path, parts in rows_of.items()}


def _refuse_other_number(path: str, taken_away: int, stated: int) -> None:
    """Raise ValueError for a delete file that lacks rows.

    Otherwise these rows would be read although they are deleted.
    """
    if taken_away != stated:
        raise ValueError(f"{path} removes {taken_away:,} rows, but the table says {stated:,}")

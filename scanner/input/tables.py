"""Define tables of the input: folders that are tables, how they are read, and the entries of a log on data files.

A table's log lists the files that count. If its files were read as loose files, deleted rows would come back, and rows
would come twice. So a path of the input is a table, or is outside of any table. The data files of a table are kept as
columns: a million of them take a fifth of the memory of as many objects.
"""

import contextlib
import datetime
import hashlib
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import PurePosixPath
from typing import NamedTuple, overload
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import fs

from scanner.errors import Refused
from scanner.printable import printable

HIDDEN_BEGINNINGS = ("_", ".")
"""First characters of names that are skipped."""


def is_hidden_folder(name: str) -> bool:
    """Return whether a folder of this name is skipped. `_day=2026-11-26` is not: it is a partition by a column."""
    return name.startswith(HIDDEN_BEGINNINGS) and "=" not in name


DELTA_PREFIX = "delta:"
"""Beginning of a path that must be the folder of a Delta table."""

ICEBERG_PREFIX = "iceberg:"
"""Beginning of the name of an Iceberg table: its catalog, namespace and name, with dots between them."""

LOG_OF_DELTA = "_delta_log"
"""Folder of the log in a Delta table."""

_LOGS = {LOG_OF_DELTA: "Delta", ".hoodie": "Hudi"}  # folders in the folder of a table
_ICEBERG_FOLDER, _ICEBERG_FILES = "metadata", (".metadata.json", ".metadata.json.gz")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class TableColumn(NamedTuple):
    """A column of a table, and how its data files have it.

    names: names that it may have in files.
    field_id: its id in files whose columns have ids. None: it is found by its names.
    type: type of its values in the table, which may be wider than in an older file.
    default: its value in rows of files that are older than the column.
    """

    names: tuple[str, ...]
    field_id: int | None
    type: pa.DataType
    default: pa.Scalar

    @classmethod
    def named(cls, name: str, kind: pa.DataType) -> "TableColumn":
        """Make a column that has one name in all files, and no value in older rows."""
        return cls((name,), None, kind, pa.scalar(None, pa.string()))


Values = tuple[tuple[str, str | None], ...]
"""Values of columns that are not in a file but beside it: names, and values as text."""


class TableReading(NamedTuple):
    """How tables are read: at a version or a time, by default the newest version.

    version: the version. None: it is not chosen by version.
    timestamp: the time. None: it is not chosen by time.
    where: SQL on columns of partitions. None: all partitions.
    """

    version: int | None = None
    timestamp: datetime.datetime | None = None
    where: str | None = None


NEWEST_TABLES = TableReading()
"""Reading of whole tables as they are now."""


class Snapshot(NamedTuple):
    """A table as it is read: its folder, its kind, and the version or snapshot id."""

    table: str
    kind: str
    version: int


@dataclass(frozen=True)
class LogEntry:
    """The entry of a table's log on one of its data files.

    snapshot: the table and its version.
    values: values of partition columns.
    deleted: deleted rows, as `pack_rows` returns them. Empty: none.
    parents: paths, as results show them, of the files whose rows it may hold, from all commits that the log still has.
    since: earliest time at which any of its rows can have been in the table, in nanoseconds since 1970. 0: that of the
        file.
    columns: columns of the table as it is read, by their names.
    """

    snapshot: Snapshot = field(compare=False)
    values: Values
    deleted: bytes = b""
    parents: frozenset[str] = field(default=frozenset(), compare=False)
    since: int = field(default=0, compare=False)
    columns: Mapping[str, TableColumn] = field(default_factory=dict, compare=False)


class TableFile(NamedTuple):
    """A data file of a table: its path as results show it, its bytes, its time and its entry.

    The time is in nanoseconds since 1970. 0: it is unknown.
    """

    path: str
    size: int
    modified: int
    entry: LogEntry


class FileOrigin(NamedTuple):
    """The origin of a file's rows: `parents` and `since` as in LogEntry."""

    parents: frozenset[str]
    since: int


class Commit(NamedTuple):
    """Files that a commit adds, each with its time, and files that it removes."""

    adds: dict[str, int]
    removes: list[str]


def origins_of(commits: Iterable[Commit], created: int) -> dict[str, FileOrigin]:
    """Return the origins of the rows of files, by the files' paths, as far back as commits are known.

    All files of a commit share one set of parents, which includes the parents of these. A file whose commit is gone may
    hold rows as old as the table.

    Args:
        commits: the commits, the oldest first.
        created: earliest time at which the table can have been made, in nanoseconds since 1970.
    """
    origins: dict[str, FileOrigin] = {}
    for adds, removes in commits:
        replaced = [origins.get(path, FileOrigin(frozenset(), created)) for path in removes]
        parents = frozenset(removes).union(*(origin.parents for origin in replaced)) if adds else frozenset()
        since = [origin.since for origin in replaced]
        origins |= {path: FileOrigin(parents, min([time, *since])) for path, time in adds.items()}
    return origins


def pack_rows(rows: NDArray[np.bool_]) -> bytes:
    """Pack a set of rows of a file into few bytes. An empty set has no bytes.

    Args:
        rows: bool[n], whether each is in the set.
    """
    return zlib.compress(np.packbits(rows).tobytes().rstrip(b"\0")) if rows.any() else b""


def rows_sha256(packed: bytes) -> str:
    """Compute the digest of a set of rows that `pack_rows` made, as hex text. It depends only on the rows."""
    return hashlib.sha256(zlib.decompress(packed) if packed else b"").hexdigest()


def unpack_rows(packed: bytes, start: int, stop: int) -> NDArray[np.bool_]:
    """Return whether each of the rows start … stop−1 is in a set that `pack_rows` made: bool[stop−start]."""
    bits = np.frombuffer(zlib.decompress(packed), np.uint8) if packed else np.empty(0, np.uint8)
    flags = np.unpackbits(bits[start // 8 : -(-stop // 8)])[start % 8 :][: stop - start].astype(np.bool_)
    return np.pad(flags, (0, stop - start - len(flags)))


def values_of_path(path: str) -> Values:
    """Read values of columns from the names of folders, such as `account=a%20b/date=2026-08-31` (Hive's convention).

    If two folders give different values for a column, it has none.
    """
    if "=" not in path:
        return ()
    values_of: dict[str, set[str | None]] = {}
    for part in path.split("/")[:-1]:
        name, is_, value = part.partition("=")
        if is_:
            values_of.setdefault(_unescaped(name), set()).add(None if value == _NO_VALUE else _unescaped(value))
    return tuple((name, value) for name, values in values_of.items() if len(values) == 1 for value in values)


def _unescaped(text: str) -> str:
    """Return a name or value without its escapes. If these are no UTF-8, they stay: two accounts could become one."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


class TableFolder(NamedTuple):
    """The folder of a table, and its kind: Delta, Hudi or Iceberg."""

    folder: str
    kind: str


class TableFolders:
    """Refuses tables above and below one path of the input. Each folder above is checked once.

    location: the path, as it is configured.
    """

    def __init__(self, location: str, filesystem: fs.FileSystem) -> None:
        self._location = location.partition("?")[0] if "://" in location else location
        self._filesystem = filesystem
        self._kinds: dict[str, str | None] = {}  # kinds of the folders above

    def refuse_by(self, folder: str, below: Sequence[str]) -> None:
        """Refuse a table that shows itself by a file below the location.

        Args:
            folder: the location.
            below: names of the folders from there to the file, and of the file. Files in a hidden folder are skipped,
                because they are not read.

        Raises:
            Refused: the file belongs to a table's log.
        """
        for depth, name in enumerate(below[:-1]):
            if name in _LOGS:
                self._refuse(TableFolder("/".join([folder, *below[:depth]]), _LOGS[name]))
            if is_hidden_folder(name):
                return
        if below[-2:-1] == [_ICEBERG_FOLDER] and below[-1].endswith(_ICEBERG_FILES):
            self._refuse(TableFolder("/".join([folder, *below[:-2]]), "Iceberg"))

    def is_delta(self, inner: str) -> bool:
        """Return whether a path is the folder of a Delta table."""
        return self._kind_of(inner) == "Delta"

    def refuse_above(self, inner: str) -> None:
        """Refuse a path if it, or a folder above it, is a table. This takes some requests for each folder above.

        Raises:
            Refused: there is such a table.
        """
        for folder in map(str, (PurePosixPath(inner), *PurePosixPath(inner).parents)):
            kind = self._kind_of(folder)
            if kind is not None:
                self._refuse(TableFolder(folder, kind))

    def _kind_of(self, folder: str) -> str | None:
        if folder not in self._kinds:
            self._kinds[folder] = self._kind(folder)
        return self._kinds[folder]

    def _kind(self, folder: str) -> str | None:
        for log, kind in _LOGS.items():
            if self._is_folder(posixpath.join(folder, log)):
                return kind
        metadata = posixpath.join(folder, _ICEBERG_FOLDER)
        if self._is_folder(metadata):
            with contextlib.suppress(OSError, UnicodeError):
                inside = self._filesystem.get_file_info(fs.FileSelector(metadata))
                return "Iceberg" if any(item.base_name.endswith(_ICEBERG_FILES) for item in inside) else None
        return None

    def _is_folder(self, path: str) -> bool:
        """Return whether a path is a folder.

        It returns False too if access is denied, because a store may let a reader see only the input.
        """
        try:
            return bool(self._filesystem.get_file_info(path).type == fs.FileType.Directory)
        except (OSError, UnicodeError):
            return False

    def _refuse(self, table: TableFolder) -> None:
        advice = (
            "name that folder"
            if table.kind == "Delta"
            else "write the current rows into Parquet files in a separate folder, and name that folder"
        )
        article = "an" if table.kind[0] in "AEIOU" else "a"
        raise Refused(
            f"input.paths: {self._location!r}: {printable(table.folder)!r} is the folder of {article} {table.kind} "
            f"table, whose files may contain rows that were deleted or rewritten; {advice}"
        )


_TOGETHER = 1_000  # files that are objects at a time


class FileColumns(NamedTuple):
    """Some data files of a table: the fields of TableFile as columns.

    paths: n large strings.
    sizes: int64[n].
    times: int64[n].
    entries: n entries.
    """

    paths: pa.LargeStringArray
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    entries: Sequence[LogEntry]


def columns_of(files: Iterable[TableFile]) -> Iterator[FileColumns]:
    """Yield the columns of files, some files at a time. Sizes and times are below 2^63."""
    source = iter(files)
    while chunk := [*islice(source, _TOGETHER)]:
        paths, sizes, times, entries = zip(*chunk, strict=True)
        numbers = np.array(sizes, np.int64), np.array(times, np.int64)
        yield FileColumns(pa.array(paths, pa.large_string()), *numbers, entries)


class TableFiles(Sequence[TableFile]):
    """Data files by their paths, each path once. Objects are made when the files are read.

    Entries that are equal in every field are one object.

    parts: the files, some at a time. If several have one path, the first counts.
    """

    def __init__(self, parts: Iterable[FileColumns]) -> None:
        entries: dict[tuple[Values, bytes, frozenset[str], int], tuple[int, LogEntry]] = {}

        def index_of(entry: LogEntry) -> int:
            fields = (entry.values, entry.deleted, entry.parents, entry.since)
            return entries.setdefault(fields, (len(entries), entry))[0]

        paths, numbers = list[pa.Array](), list[NDArray[np.int64]]()
        for part in parts:
            indices = list[int]()
            for _, run in groupby(part.entries, id):  # most files in a row have one
                equal = [*run]
                indices += [index_of(equal[0])] * len(equal)
            paths.append(part.paths)
            numbers.append(np.stack([part.sizes, part.times, np.array(indices, np.int64)], axis=1))
        named = pa.chunked_array(paths, pa.large_string())
        order = np.asarray(pc.sort_indices(named)).view(np.int64)  # stable
        named = named.take(pa.array(order)).combine_chunks()
        first = np.ones(len(order), np.bool_)
        if len(order):
            first[1:] = np.asarray(pc.not_equal(named[1:], named[:-1]).to_numpy(zero_copy_only=False))
        self._paths: pa.LargeStringArray = named if first.all() else named.filter(pa.array(first))
        self._numbers = np.concatenate([*numbers, np.empty((0, 3), np.int64)])[order[first]]
        self._entries = [entry for _, entry in entries.values()]

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> TableFile: ...
    @overload
    def __getitem__(self, index: slice) -> list[TableFile]: ...
    def __getitem__(self, index: int | slice) -> TableFile | list[TableFile]:
        if isinstance(index, int):
            (file,) = self._files([range(len(self))[index]])
            return file
        return self._files(range(len(self))[index])

    def __iter__(self) -> Iterator[TableFile]:
        for begin in range(0, len(self), _TOGETHER):
            yield from self[begin : begin + _TOGETHER]

    def paths(self) -> Iterator[str]:
        """Yield the files' paths without making objects."""
        for begin in range(0, len(self), _TOGETHER):
            yield from self._paths[begin : begin + _TOGETHER].to_pylist()

    def _files(self, indices: Sequence[int]) -> list[TableFile]:
        paths = self._paths.take(pa.array(indices, pa.int64())).to_pylist()
        sizes, times, entries = self._numbers[np.array(indices, np.int64)].T.tolist()
        return [*map(TableFile, paths, sizes, times, map(self._entries.__getitem__, entries))]

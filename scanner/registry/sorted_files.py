"""Read and write sorted Arrow files of any size. Their rows are found through a memory map.

A long sequence consists of parts of some 2^18 rows. A change of one row therefore writes only a few megabytes.
"""

import hashlib
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scanner.errors import ScanFailed
from scanner.storage.locations import filesystem_of, is_uri, make_private, write_whole

PART_ROWS = 2**18
"""Most rows of a part."""

BELOW_ALL_VALUES, LARGEST_VALUE = -1, 2**63 - 1
"""A value below all sorted values, and the largest value."""

_KEPT_HERE, _KEPT_FROM_FAR = 4096, 16
"""Number of parts that are held open: maps of local files, which take no memory of their own, or copies of remote
files.
"""

_READ = 2**20  # bytes that are hashed at a time

Ints = NDArray[np.int64]


class SortedFile(NamedTuple):
    """A file of rows in the order of their first column, which goes from `first` to `last`."""

    file: str
    rows: int
    first: int
    last: int


class OpenedFile(NamedTuple):
    """The rows of a part, and the column that they are sorted by."""

    rows: pa.Table
    sorted_by: Ints


class PartsFolder:
    """The folder of an index. It opens parts, and writes new ones. No part is ever changed.

    Args:
        location: folder or URI. It is made when something is written.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._opened: dict[str, OpenedFile] = {}

    def open(self, part: SortedFile) -> OpenedFile:
        """Return a part's rows.

        Raises:
            FileNotFoundError: the part is gone, because its rows were merged or erased.
            ScanFailed: it is not as it was written.
        """
        if part.file not in self._opened:
            file = file_in_memory(self._read(part))
            ends = [int(file.sorted_by[end]) for end in (0, -1)] if len(file.rows) else []
            if (len(file.rows), *ends) != part[1:]:
                fault = f"{self.location}/{part.file} is not as it was written"
                raise ScanFailed(f"users table: {fault}; delete the folder {self.location}; it will be rebuilt")
            if len(self._opened) >= (_KEPT_FROM_FAR if is_uri(self.location) else _KEPT_HERE):
                self._opened.pop(next(iter(self._opened)))
            self._opened[part.file] = file
        return self._opened[part.file]

    def _read(self, part: SortedFile) -> pa.Table:
        path = f"{self.location}/{part.file}"
        if not is_uri(self.location):
            return pa.ipc.open_file(pa.memory_map(path)).read_all()
        filesystem, inner = filesystem_of(path)
        with filesystem.open_input_file(inner) as source:
            return pa.ipc.open_file(pa.BufferReader(source.read_buffer())).read_all()

    def sha256(self, part: SortedFile) -> str:
        """Return the SHA-256 of a part's file, as hex text, even if the part is open. Raises FileNotFoundError."""
        filesystem, inner = filesystem_of(f"{self.location}/{part.file}")
        digest = hashlib.sha256()
        with filesystem.open_input_stream(inner) as source:
            while data := source.read(_READ):
                digest.update(data)
        return digest.hexdigest()

    def write(self, rows: pa.Table) -> SortedFile:
        """Write sorted rows as a new part."""
        name = f"{uuid.uuid4().hex}.arrow"
        sink = pa.BufferOutputStream()
        # Copy: of a slice, Arrow writes up to 63 bytes beyond its own. These may contain a neighbour's name, which may
        # be erased later.
        copy = rows.take(pa.array(np.arange(len(rows)))).combine_chunks()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(copy, max_chunksize=len(rows))
        self.put(name, sink.getvalue())
        sorted_by = file_in_memory(rows).sorted_by
        return SortedFile(name, len(rows), int(sorted_by[0]), int(sorted_by[-1]))

    def put(self, name: str, data: pa.Buffer) -> None:
        """Write a file, completely or not at all."""
        make_private(self.location)
        if not is_uri(self.location):
            write_whole(Path(self.location) / name, lambda file: file.write(data))
            return
        filesystem, inner = filesystem_of(f"{self.location}/{name}")
        with filesystem.open_output_stream(inner) as out:
            out.write(data)


def file_in_memory(rows: pa.Table) -> OpenedFile:
    """Return rows in memory in the form of an opened part."""
    table = rows.combine_chunks()
    column = table.column(0)
    array = column.chunk(0).to_numpy() if column.num_chunks else np.zeros(0, np.int64)
    return OpenedFile(table, array)


class SortedRows:
    """Rows in the order of their first column, in parts that do not overlap."""

    def __init__(self, parts: Sequence[SortedFile], open_part: Callable[[SortedFile], OpenedFile]) -> None:
        self.parts = tuple(parts)
        self._open = open_part
        self._lasts = [part.last for part in parts]

    @classmethod
    def in_memory(cls, rows: pa.Table) -> "SortedRows":
        """Return the sequence of sorted rows in memory."""
        file = file_in_memory(rows)
        if not len(rows):
            return cls((), lambda part: file)
        return cls([SortedFile("", len(rows), int(file.sorted_by[0]), int(file.sorted_by[-1]))], lambda part: file)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(part.rows for part in self.parts)

    def find_value(self, value: int) -> tuple[pa.Table, int] | None:
        """Return the row of a value: the rows of its part, and its index among them. None: no row has the value."""
        i = bisect_left(self._lasts, value)
        if i == len(self.parts) or self.parts[i].first > value:
            return None
        rows, sorted_by = self._open(self.parts[i])
        row = int(np.searchsorted(sorted_by, value))
        return (rows, row) if sorted_by[row] == value else None

    def find(self, values: Ints) -> tuple[Ints, list[pa.Table]]:
        """Find all rows of V values.

        Returns:
            Indices of values, each repeated for every row of the value.
            The rows, in tables.
        """
        order = np.argsort(values, kind="stable")
        positions: list[Ints] = [np.zeros(0, np.int64)]
        tables: list[pa.Table] = []
        for number, begin, end in self._parts_of(values[order]):
            rows, sorted_by = self._open(self.parts[number])
            part_values = values[order[begin:end]]
            low, high = (np.searchsorted(sorted_by, part_values, side) for side in ("left", "right"))
            counts = high - low
            positions.append(np.repeat(order[begin:end], counts))
            indices = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            tables.append(rows.take(pa.array(indices)))
        return np.concatenate(positions), tables

    def up_to(self, values: Ints) -> Ints:
        """Count the rows with at most each of V values."""
        order = np.argsort(values, kind="stable")
        first_rows = np.cumsum([0, *(part.rows for part in self.parts)])
        counts = np.empty(len(values), np.int64)
        counts[order] = first_rows[np.searchsorted(np.array(self._lasts, np.int64), values[order], "right")]
        for number, begin, end in self._parts_of(values[order]):
            inside = order[begin:end]
            _, sorted_by = self._open(self.parts[number])
            counts[inside] = first_rows[number] + np.searchsorted(sorted_by, values[inside], "right")
        return counts

    def between(self, low: int, high: int) -> list[pa.Table]:
        """Return the rows with values above `low` and at most `high`, in order, as slices of parts."""
        slices = []
        for part in self.parts:
            if part.last > low and part.first <= high:
                rows, sorted_by = self._open(part)
                begin, end = (int(n) for n in np.searchsorted(sorted_by, [low, high], "right"))
                slices.append(rows.slice(begin, end - begin))
        return slices

    def all(self, schema: pa.Schema) -> pa.Table:
        """Return all rows, in order. Their schema is `schema`."""
        return pa.concat_tables([schema.empty_table(), *(self._open(part).rows for part in self.parts)])

    def values(self) -> Ints:
        """Return the values of the sorted column, in order."""
        return np.concatenate([np.zeros(0, np.int64), *(self._open(part).sorted_by for part in self.parts)])

    def _parts_of(self, ordered: Ints) -> Iterator[tuple[int, int, int]]:
        """Yield the numbers of the parts that may contain ordered values, each with the range of these values."""
        first = np.searchsorted(ordered, np.array([part.first for part in self.parts], np.int64), "left")
        last = np.searchsorted(ordered, np.array(self._lasts, np.int64), "right")
        for number in np.flatnonzero(first < last).tolist():
            yield number, int(first[number]), int(last[number])


def in_order(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Merge rows of several sorted tables into one."""
    rows = pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()
    order = np.argsort(file_in_memory(rows).sorted_by, kind="stable")
    return rows.take(pa.array(order))


def merge_sequences(sequences: Sequence[SortedRows], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of several sequences as one, in order, in tables of at most PART_ROWS rows, read bit by bit."""
    longest = max(sequences, key=lambda sequence: sequence.rows)
    low = BELOW_ALL_VALUES
    for high in (*(part.last for part in longest.parts[:-1]), LARGEST_VALUE):
        rows = in_order([table for sequence in sequences for table in sequence.between(low, high)], schema)
        slices = -(-len(rows) // PART_ROWS)
        for number in range(slices):
            begin, end = len(rows) * number // slices, len(rows) * (number + 1) // slices
            yield rows.slice(begin, end - begin)
        low = high

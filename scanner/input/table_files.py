"""The data files of a table as columns: a million of them take a fifth of the memory that as many objects take."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.input.tables import LogEntry, TableFile, Values

_TOGETHER = 1_000  # files that are objects at a time


class FileColumns(NamedTuple):
    """Some data files of a table: fields of TableFile as columns.

    paths: n large strings; sizes, times: int64[n]; entries: n of them.
    """

    paths: pa.LargeStringArray
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    entries: Sequence[LogEntry]


def columns_of(files: Iterable[TableFile]) -> Iterator[FileColumns]:
    """Columns of some files after the other. Sizes and times are below 2^63."""
    source = iter(files)
    while some := [*islice(source, _TOGETHER)]:
        paths, sizes, times, entries = zip(*some, strict=True)
        numbers = np.array(sizes, np.int64), np.array(times, np.int64)
        yield FileColumns(pa.array(paths, pa.large_string()), *numbers, entries)


class TableFiles(Sequence[TableFile]):
    """Data files by their paths, each path once, made into objects when they are read.

    Entries that are equal in every field are one object.
    parts: the files, some after the other. The first of several with one path counts.
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
        """The files' paths, without making objects of the files."""
        for begin in range(0, len(self), _TOGETHER):
            yield from self._paths[begin : begin + _TOGETHER].to_pylist()

    def _files(self, indices: Sequence[int]) -> list[TableFile]:
        paths = self._paths.take(pa.array(indices, pa.int64())).to_pylist()
        sizes, times, entries = self._numbers[np.array(indices, np.int64)].T.tolist()
        return [*map(TableFile, paths, sizes, times, map(self._entries.__getitem__, entries))]

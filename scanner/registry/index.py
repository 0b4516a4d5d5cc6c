"""Read and write the index of a users table: sorted files that find messages and users without reading all events.

The index holds the events up to some number, as runs. Newer events are read from the table, from only those files that
contain their numbers. Each new run holds the newest events. Runs of similar size are merged, so there are few. For each
key, a run has sorted rows of three kinds: the messages that were given, the messages that were removed, and for each
user a digest of the name with the message.

An index is a file that names its parts. The users table names its index by the application transaction `users-index`,
whose version is the index's number. A commit of it fails if another process was faster. Nobody therefore ever reads an
index that does not belong to the table, and an erased name leaves table and index in one step. Files that the index no
longer uses are deleted after the commit. If the process dies first, the next change deletes them.
"""

import contextlib
import functools
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import unquote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, TooLate, in_a_line
from scanner.registry.keys_file import USERS_FOLDER
from scanner.registry.record import FIRST_HEAD
from scanner.registry.sorted_files import (
    LARGEST_VALUE,
    Ints,
    PartsFolder,
    SortedFile,
    SortedRows,
    in_order,
    merge_sequences,
)
from scanner.storage.delta import load_table, make_table, read, version_of
from scanner.storage.locations import filesystem_of, is_uri, make_private
from schemas.tables import USERS

STATISTICS = {"delta.dataSkippingStatsColumns": "key_id,message,seq"}
"""Properties of the table. Statistics go to the log, so none are made of columns with names."""

_ENDS = {"first": "min.seq", "last": "max.seq"}


def open_table(folder: Path | str) -> DeltaTable | None:
    """Open the users table of a registry as it is now. None: there is none yet.

    Raises:
        Refused: it was made before 0.1.0, or its version is newer than this brickscan.
        ScanFailed: its log cannot be read.
    """
    location = f"{folder}/{USERS_FOLDER}"
    try:
        if not DeltaTable.is_deltatable(location):
            return None
        table = load_table(location)
    except DeltaError as error:
        raise ScanFailed(
            f"users table {location}: its log cannot be read: {in_a_line(error)[:300]}; restore it from a backup"
        ) from None
    version_of(table)
    return table


def create(folder: Path | str) -> None:
    """Make the users table of a registry, unless another process made it first."""
    make_private(f"{folder}/{USERS_FOLDER}")
    make_table(f"{folder}/{USERS_FOLDER}", USERS, STATISTICS)


def all_events(table: DeltaTable | None) -> pl.DataFrame:
    """Return all events of a table, or no rows if there is no table."""
    if table is None:
        return pl.DataFrame(schema=pl.Schema(USERS))
    with reading(table):
        return read(table).collect()


def since(table: DeltaTable, first: int, last: int = LARGEST_VALUE) -> pl.DataFrame:
    """Return the events from one number to another, and all events without a number."""
    condition = pl.col("seq").is_null() | pl.col("seq").is_between(first, last)
    inside = pl.col("first").is_null() | ((pl.col("last") >= first) & (pl.col("first") <= last))
    return _read(table, inside, condition)


def events_by_number(table: DeltaTable, numbers: pl.Series) -> pl.DataFrame:
    """Return the events with these numbers, which must be in order."""
    files = files_of(table)
    begin, end = numbers.search_sorted(files["first"], "left"), numbers.search_sorted(files["last"], "right")
    inside = pl.col("path").is_in(files["path"].filter(begin < end).implode())
    return _read(table, inside, pl.col("seq").is_in(numbers.implode()))


def with_heads(table: DeltaTable, heads: Sequence[bytes]) -> pl.DataFrame:
    """Return the events after which the hash chain had one of these heads."""
    return _read(table, pl.lit(value=True), pl.col("head").is_in(list(heads)))


def _read(table: DeltaTable, inside: pl.Expr, condition: pl.Expr) -> pl.DataFrame:
    """Return the events that meet `condition`, from the files whose rows of `files_of` meet `inside`."""
    if is_uri(table.table_uri.removeprefix("file://")):
        return pl.scan_delta(table).filter(condition).select(USERS.names).collect()
    file_names = set(files_of(table).filter(inside)["path"])
    names = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    files = [name for name in names if name.rpartition("/")[2] in file_names]
    if not files:
        return pl.DataFrame(schema=pl.Schema(USERS))
    rows = pl.scan_parquet(files, glob=False, schema=pl.Schema(USERS))
    return rows.filter(condition).collect(engine="streaming")


def files_of(table: DeltaTable) -> pl.DataFrame:
    """Return the files of a table: path, rows, first and last number of an event, null if an event has no number."""
    actions = cast(pl.DataFrame, pl.from_arrow(pa.table(table.get_add_actions(flatten=True))))
    bounds = {"min.seq", "max.seq", "null_count.seq"} <= set(actions.columns)
    whole = pl.col("null_count.seq").fill_null(1) == 0 if bounds else pl.lit(value=False)
    ends = [pl.when(whole).then(name if bounds else None).alias(to) for to, name in _ENDS.items()]
    return actions.select("path", pl.col("num_records").alias("rows"), *ends)


@contextlib.contextmanager
def reading(table: DeltaTable | None) -> Iterator[None]:
    """Guard reads of a snapshot's files and of its index: tell a lost file from one that another change deleted.

    Raises:
        TooLate: a file is missing, and the table has changed since the snapshot.
        ScanFailed: a file is missing, and the table has not changed.
    """
    try:
        yield
    except FileNotFoundError as error:
        if table is not None:
            raise_if_outdated(table)
        raise missing(error) from None


def missing(error: FileNotFoundError) -> ScanFailed:
    """Return the error for a missing file. Only files of the index can be made anew."""
    in_index = f"/{INDEX_FOLDER}/" in str(error)
    help_ = f"delete the folder {INDEX_FOLDER}; it will be rebuilt" if in_index else "restore it from a backup"
    return ScanFailed(f"users table: a file is missing ({error}); {help_}")


def raise_if_outdated(table: DeltaTable) -> None:
    """Raise TooLate if a snapshot is not the newest.

    When a name is erased, files of older snapshots are deleted. Files of the newest one always exist.
    """
    if load_table(table.table_uri).version() != table.version():
        raise TooLate


INDEX_FOLDER = "_index"
"""Folder of the index, in the users table's folder. Delta ignores it because of the underscore."""

GIVEN, REMOVED, NAMES = "given", "removed", "names"
RUN_SCHEMAS = {
    GIVEN: pa.schema([("message", pa.int64()), ("at", pa.int64()), ("seq", pa.int64()), ("user_id", pa.string())]),
    REMOVED: pa.schema([("message", pa.int64()), ("at", pa.int64()), ("seq", pa.int64())]),
    NAMES: pa.schema([("digest", pa.int64()), ("message", pa.int64())]),
}
"""Columns of a run's rows, which are sorted by the first column.

at: microseconds since 1970.
seq: number of the event.
"""

ALLOCATED = "allocated"
REMOVED_EVENT = "removed"

_LIKE = 4
"""An older run is merged with newer ones if it is at most so many times as large as they are together."""

_QUICK = 2**19
"""Number of rows that any change may merge, a second of work. Only a change of many users merges more."""

_ORPHANS_AFTER = 3600  # seconds after which a change has certainly ended


class Index(NamedTuple):
    """The content of an index file.

    number: number of the index.
    parent: number of the index that it replaced. None: there was none.
    seq: the index holds the events below this number.
    head: the hash chain's head after these events.
    runs: newest first, parts by (key, kind).
    """

    number: int
    parent: int | None
    seq: int
    head: bytes
    runs: tuple[Mapping[tuple[str, str], tuple[SortedFile, ...]], ...]

    @property
    def files(self) -> set[str]:
        """Return the names of the parts' files."""
        return {part.file for run in self.runs for parts in run.values() for part in parts}


EMPTY_INDEX = Index(0, None, 0, FIRST_HEAD, ())
"""Index of a table that has none."""


class EventRun:
    """Rows of some events, by key and kind.

    Args:
        rows: sorted rows, by (key, kind).
        names: whether there are rows of the kind NAMES. If not, names themselves are compared.
    """

    def __init__(self, rows: Mapping[tuple[str, str], SortedRows], *, names: bool) -> None:
        self._rows, self._names = dict(rows), names

    @property
    def keys(self) -> set[str]:
        """Return the ids of the keys with rows in this run."""
        return {key_id for key_id, _ in self._rows}

    def rows(self, key_id: str, kind: str) -> SortedRows:
        """Return the rows of a key and kind."""
        return self._rows.get((key_id, kind)) or _empty(kind)

    def messages_of(self, key_id: str, user_ids: pl.Series, hashed: Ints) -> Ints:
        """Return the messages that users were given under a key in this run.

        A run with digests may add messages of other users with the same digest.

        Args:
            key_id: id of the key.
            user_ids: names of the users.
            hashed: the distinct `digests` of the names.
        """
        if self._names:
            _, tables = self.rows(key_id, NAMES).find(hashed)
            return np.concatenate([np.zeros(0, np.int64), *(table["message"].to_numpy() for table in tables)])
        event_rows = pl.DataFrame(pl.from_arrow(self.rows(key_id, GIVEN).all(RUN_SCHEMAS[GIVEN])))
        user_rows = event_rows.join(user_ids.to_frame("user_id"), on="user_id", how="semi")
        return np.asarray(user_rows["message"].to_numpy(), np.int64)


@functools.cache
def _empty(kind: str) -> SortedRows:
    """Return an empty table.

    It is made only when needed: Arrow's first allocation maps a GiB, which counts as this process's memory.
    """
    return SortedRows.in_memory(RUN_SCHEMAS[kind].empty_table())


def digests(user_ids: Iterable[str | None]) -> Ints:
    """Return 63 bits of a digest of each name, for looking it up."""
    hashed = (blake2b((name or "").encode(), digest_size=8).digest() for name in user_ids)
    return np.frombuffer(b"".join(hashed), ">u8").astype(np.uint64).__rshift__(np.uint64(1)).astype(np.int64)


def run_of(events: pl.DataFrame) -> EventRun:
    """Return events as a run in memory that compares the names themselves.

    Raises:
        Refused: a message is given or removed twice.
    """
    rows: dict[tuple[str, str], SortedRows] = {}
    for (key_id, event), part in events.group_by("key_id", "event"):
        kind = {ALLOCATED: GIVEN, REMOVED_EVENT: REMOVED}.get(str(event))
        if kind is not None:
            columns = part.with_columns(pl.col("at").dt.epoch("us")).sort("message").select(RUN_SCHEMAS[kind].names)
            rows[str(key_id), kind] = SortedRows.in_memory(columns.to_arrow().cast(RUN_SCHEMAS[kind]))
            refuse_twice(str(key_id), columns["message"].to_numpy())
    return EventRun(rows, names=False)


def refuse_twice(key_id: str, ordered: Ints) -> None:
    """Raise Refused if ordered messages contain one twice."""
    duplicates = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(duplicates):
        fault = f"message {duplicates[0]} of key {key_id!r} was given or removed twice"
        raise Refused(f"users table: {fault}; restore the table")


class IndexFolder:
    """The index of one users table.

    Args:
        table: folder or URI of the table.
    """

    def __init__(self, table: str) -> None:
        self._folder = PartsFolder(f"{table}/{INDEX_FOLDER}")

    def read(self, number: int | None) -> Index | None:
        """Read the index with a number. None: there is none. Raises ScanFailed: its file holds something else."""
        if number is None:
            return None
        path = f"{self._folder.location}/{_name(number)}"
        filesystem, inner = filesystem_of(path)
        try:
            with filesystem.open_input_file(inner) as file:
                return _parsed(number, json.loads(file.read()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise ScanFailed(
                f"users table: {path} is not an index; delete it, and the next change rebuilds it"
            ) from None

    def runs(self, index: Index) -> list[EventRun]:
        """Return the runs of an index, newest first."""
        return [
            EventRun(
                {key_and_kind: SortedRows(parts, self._folder.open) for key_and_kind, parts in run.items()}, names=True
            )
            for run in index.runs
        ]

    def sha256(self, part: SortedFile) -> str:
        """Return the SHA-256 of a part's file as it is now, as hex text."""
        return self._folder.sha256(part)

    def first_event(self, part: SortedFile) -> int:
        """Return the smallest number of an event in a part of the kinds GIVEN and REMOVED."""
        return int(pc.min(self._folder.open(part).rows["seq"]).as_py())

    def added(self, index: Index, events: pl.DataFrame) -> Index:
        """Write the table's next index, with these events added up to the last event with a head.

        Raises:
            Refused: a message is given or removed twice.
        """
        new = run_of(events)
        runs, sizes = self.runs(index), [_rows(run) for run in index.runs]
        size, merging = events.height, 0
        while merging < len(runs) and sizes[merging] <= _LIKE * size:
            if size + sizes[merging] > max(_QUICK, 2 * _LIKE * events.height):
                break
            size += sizes[merging]
            merging += 1
        self._refuse_given_again(new, runs)
        parts = self._write([_with_names(new), *runs[:merging]])
        seq, head = int(events["seq"][-1]) + 1, bytes(events["head"][-1])
        return self._put(Index(_number(), index.number or None, seq, head, (parts, *index.runs[merging:])))

    def without_names(self, index: Index, erased: pl.DataFrame) -> Index:
        """Write the index without the names of some messages. If it has none of them, return it unchanged.

        Args:
            index: the index.
            erased: rows of key_id, message and user_id.
        """
        runs = tuple(dict(run) for run in index.runs)
        for (key_id,), rows in erased.group_by("key_id"):
            messages = np.asarray(rows["message"].to_numpy(), np.int64)
            pairs = dict.fromkeys(zip(digests(rows["user_id"]).tolist(), messages.tolist(), strict=True))
            for run in runs:
                given, names = (str(key_id), GIVEN), (str(key_id), NAMES)
                for key_and_kind, values in ((given, messages), (names, digests(rows["user_id"]))):
                    run[key_and_kind] = tuple(
                        self._rewritten(part, key_and_kind[1], values, pairs) for part in run.get(key_and_kind, ())
                    )
                    run[key_and_kind] = tuple(part for part in run[key_and_kind] if part.rows)
        if runs == index.runs:
            return index
        return self._put(Index(_number(), index.number or None, index.seq, index.head, runs))

    def _rewritten(
        self, part: SortedFile, kind: str, values: Ints, pairs: Mapping[tuple[int, int], None]
    ) -> SortedFile:
        inside = values[(values >= part.first) & (values <= part.last)]
        if not len(inside):
            return part
        rows = self._folder.open(part).rows
        frame = pl.DataFrame(pl.from_arrow(rows))
        if kind == GIVEN:
            is_erased = pl.col("message").is_in(inside)
            if not frame.filter(is_erased & pl.col("user_id").is_not_null()).height:
                return part
            names = frame.select(pl.when(~is_erased).then("user_id")).to_series().to_list()
            # a new array: one that shares buffers with the old may still contain the name under its null
            return self._folder.write(rows.set_column(3, "user_id", pa.array(names, pa.string())))
        near = frame.with_row_index("row").filter(pl.col("digest").is_in(inside))
        gone_rows = [row for row, *pair in near.iter_rows() if tuple(pair) in pairs]
        if not gone_rows:
            return part
        if len(gone_rows) == part.rows:
            return part._replace(rows=0)
        return self._folder.write(rows.take(pa.array(np.delete(np.arange(part.rows), gone_rows))))

    def discard(self, index: Index, of: Index) -> None:
        """Delete a new index that could not replace `of`."""
        if index.number != of.number:
            self._delete({*(index.files - of.files), _name(index.number)})

    def clean(self, index: Index) -> None:
        """Delete the files that an index replaced, and leftovers of changes that failed at least an hour ago."""
        if not index.number:
            return
        file_names, old = set[str](), self.read(index.parent)
        while old is not None:
            file_names |= {*old.files, _name(old.number)}
            old = self.read(old.parent)
        self._delete((file_names | set(self._orphans())) - index.files - {_name(index.number)})

    def _orphans(self) -> Iterator[str]:
        filesystem, inner = filesystem_of(self._folder.location)
        for info in filesystem.get_file_info(fs.FileSelector(inner, allow_not_found=True)):
            if info.is_file and info.mtime_ns is not None and info.mtime_ns < (time.time() - _ORPHANS_AFTER) * 1e9:
                yield info.base_name

    def _delete(self, names: Iterable[str]) -> None:
        filesystem, inner = filesystem_of(self._folder.location)
        for name in sorted(names):  # an index file sorts after its parts, and names them
            with contextlib.suppress(FileNotFoundError):
                filesystem.delete_file(f"{inner}/{name}")

    def _write(self, runs: Sequence[EventRun]) -> dict[tuple[str, str], tuple[SortedFile, ...]]:
        written: dict[tuple[str, str], tuple[SortedFile, ...]] = {}
        for key_id in sorted(set[str]().union(*(run.keys for run in runs))):
            for kind, schema in RUN_SCHEMAS.items():
                rows = [run.rows(key_id, kind) for run in runs]
                parts = tuple(self._folder.write(table) for table in merge_sequences(rows, schema))
                if parts:
                    written[key_id, kind] = parts
        return written

    def _refuse_given_again(self, new: EventRun, runs: Sequence[EventRun]) -> None:
        for key_id in new.keys:
            for kind in (GIVEN, REMOVED):
                messages = new.rows(key_id, kind).values()
                for run in runs:
                    positions, _ = run.rows(key_id, kind).find(messages)
                    refuse_twice(key_id, np.repeat(messages[positions[:1]], 2))

    def _put(self, index: Index) -> Index:
        self._folder.put(_name(index.number), pa.py_buffer(json.dumps(_document(index)).encode()))
        return index


def _with_names(run: EventRun) -> EventRun:
    """Return a run in memory with its rows of the kind NAMES added."""
    rows = {(key_id, kind): run.rows(key_id, kind) for key_id in run.keys for kind in (GIVEN, REMOVED)}
    for key_id in run.keys:
        event_rows = pl.DataFrame(pl.from_arrow(run.rows(key_id, GIVEN).all(RUN_SCHEMAS[GIVEN]))).drop_nulls("user_id")
        names = pa.table([digests(event_rows["user_id"]), event_rows["message"].to_arrow()], schema=RUN_SCHEMAS[NAMES])
        rows[key_id, NAMES] = SortedRows.in_memory(in_order([names], RUN_SCHEMAS[NAMES]))
    return EventRun(rows, names=True)


def _rows(run: Mapping[tuple[str, str], Sequence[SortedFile]]) -> int:
    return sum(part.rows for (_, kind), parts in run.items() for part in parts if kind != NAMES)


def _number() -> int:
    return 1 + secrets.randbelow(2**63 - 1)


def _name(number: int) -> str:
    return f"index-{number:016x}.json"


def _document(index: Index) -> dict[str, object]:
    runs = [
        [[*key_and_kind, [list(part) for part in parts]] for key_and_kind, parts in run.items()] for run in index.runs
    ]
    return {"parent": index.parent, "seq": index.seq, "head": index.head.hex(), "runs": runs}


def _parsed(number: int, read: dict[str, object]) -> Index:
    runs = tuple(
        {(key_id, kind): tuple(SortedFile(*part) for part in parts) for key_id, kind, parts in run}
        for run in read["runs"]  # type: ignore[attr-defined]
    )
    return Index(number, read["parent"], read["seq"], bytes.fromhex(str(read["head"])), runs)  # type: ignore[arg-type]

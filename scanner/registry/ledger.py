"""The users table of a registry: events in a Delta table, and the one way to change it that loses no race.

Delta lets two appends made from the same snapshot both succeed. Here every change carries the application transaction
`users`, one higher than in the snapshot it was decided on, and is written through that very snapshot without retries:
one of two changes decided on the same state fails, and is decided anew on the state that the other left. An index
(scanner.registry.index) is put in its place in the same way. A snapshot asks the index and the newest events.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from numpy.typing import NDArray

from scanner.errors import ScanFailed, TooLate
from scanner.registry import index
from scanner.registry.chain import chain_events, seals_of
from scanner.registry.index import (
    EMPTY_INDEX,
    GIVEN,
    REMOVED,
    RUN_SCHEMAS,
    EventRun,
    Index,
    IndexFolder,
    all_events,
    create,
    events_by_number,
    files_of,
    open_table,
    raise_if_outdated,
    reading,
    refuse_twice,
    run_of,
    since,
    with_heads,
)
from scanner.registry.keys_file import USERS_FOLDER
from scanner.registry.record import FIRST_HEAD
from scanner.registry.sorted_files import BELOW_ALL_VALUES, LARGEST_VALUE, Ints
from schemas.tables import USERS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = pl.Datetime("us", "UTC")
_NO_EVENTS = pl.DataFrame(schema=pl.Schema(USERS))

_COLUMNS = pl.Schema(
    [
        ("user_id", pl.String()),
        ("key_id", pl.String()),
        ("message", pl.Int64()),
        ("allocated_at", _TIME),
        ("removed_at", _TIME),
        ("seq", pl.Int64()),
        ("removed_seq", pl.Int64()),
    ]
)


class GivenMessage(NamedTuple):
    """Who was given a message and when; removed: whether it was withdrawn since."""

    user_id: str | None
    allocated_at: datetime
    removed: bool


class UsersSnapshot:
    """The content of a users table when it was opened.

    tail: the events that no run holds, columns of schemas.tables.USERS. head: the chain's head after these; None: the
    last of them has none. last_at: time of the last event; None: there is none.

    Rows are data frames: user_id (null once erased), key_id, message, allocated_at, removed_at (null while it is held),
    seq and removed_seq (numbers of these events), each message once.
    """

    def __init__(
        self,
        runs: Sequence[EventRun],
        tail: pl.DataFrame,
        events: int,
        head: bytes | None,
        last_at: datetime | None = None,
    ) -> None:
        self.tail, self.events, self.head, self.last_at = tail, events, head, last_at
        self._runs = [run_of(tail), *runs] if tail.height else list(runs)

    @classmethod
    def empty(cls, head: bytes) -> "UsersSnapshot":
        """The snapshot of a registry that has no users table yet."""
        return cls((), _NO_EVENTS, 0, head)

    @property
    def key_ids(self) -> list[str]:
        """Keys whose messages were given, in order."""
        return sorted(set[str]().union(*(run.keys for run in self._runs)))

    def find_message(self, key_id: str, message: int) -> GivenMessage | None:
        """Who was given a message; None: nobody ever was. Raises Refused: it was given twice."""
        hits = [hit for run in self._runs if (hit := run.rows(key_id, GIVEN).find_value(message)) is not None]
        if not hits:
            return None
        refuse_twice(key_id, np.full(len(hits), message))
        rows, row = hits[0]
        removed = any(run.rows(key_id, REMOVED).find_value(message) is not None for run in self._runs)
        allocated_at = _EPOCH + rows["at"][row].as_py() * _MICROSECOND
        return GivenMessage(rows["user_id"][row].as_py(), allocated_at, removed)

    def rows_of_messages(self, key_id: str, messages: Ints) -> pl.DataFrame:
        """Rows of the messages that were given, among these, in order.

        Raises:
            Refused: one was given or removed twice.
        """
        distinct = np.unique(messages)
        return self._rows(key_id, *(self._tables(key_id, kind, distinct) for kind in (GIVEN, REMOVED)))

    def rows_of_users(self, user_ids: Sequence[str] | pl.Series, key_ids: Sequence[str] | None = None) -> pl.DataFrame:
        """Rows of all messages that users were ever given, under some keys or all."""
        names = pl.Series("user_id", user_ids, pl.String).unique()
        hashed = np.unique(index.digests(names))
        frames = [pl.DataFrame(schema=_COLUMNS)]
        for key_id in self.key_ids if key_ids is None else key_ids:
            messages = [np.zeros(0, np.int64), *(run.messages_of(key_id, names, hashed) for run in self._runs)]
            rows = self.rows_of_messages(key_id, np.concatenate(messages))
            frames.append(rows.join(names.to_frame(), on="user_id", how="semi", maintain_order="left"))
        return pl.concat(frames)

    def between(self, key_id: str, low: int = BELOW_ALL_VALUES, high: int = LARGEST_VALUE) -> pl.DataFrame:
        """Rows of the messages above `low` and at most `high`, in order. Raises Refused as `rows_of_messages` does."""
        tables = (
            [t for run in self._runs for t in run.rows(key_id, kind).between(low, high)] for kind in (GIVEN, REMOVED)
        )
        return self._rows(key_id, *tables)

    def given_up_to(self, key_id: str, messages: Ints) -> Ints:
        """How many given messages are at most each of these."""
        counts = np.zeros(len(messages), np.int64)
        for run in self._runs:
            counts += run.rows(key_id, GIVEN).up_to(messages)
        return counts

    def is_given(self, key_id: str, messages: Ints) -> NDArray[np.bool_]:
        """Whether each of some messages was ever given."""
        return self.given_up_to(key_id, messages) > self.given_up_to(key_id, messages - 1)

    def count(self, key_id: str) -> tuple[int, int]:
        """How many messages of a key were given, and how many of these were removed."""
        given, removed = (sum(run.rows(key_id, kind).rows for run in self._runs) for kind in (GIVEN, REMOVED))
        return given, removed

    def page_end(self, key_id: str, after: int) -> int:
        """A message above `after`, with some hundred thousand rows between; LARGEST_VALUE: no more rows follow."""
        parts = max((run.rows(key_id, GIVEN).parts for run in self._runs), key=len, default=())
        return next((part.last for part in parts[:-1] if part.last > after), LARGEST_VALUE)

    def _tables(self, key_id: str, kind: str, messages: Ints) -> list[pa.Table]:
        return [table for run in self._runs for table in run.rows(key_id, kind).find(messages)[1]]

    def _rows(self, key_id: str, given: Sequence[pa.Table], removed: Sequence[pa.Table]) -> pl.DataFrame:
        both = [
            pl.DataFrame(pl.from_arrow(pa.concat_tables([RUN_SCHEMAS[kind].empty_table(), *tables]))).sort("message")
            for kind, tables in ((GIVEN, given), (REMOVED, removed))
        ]
        for rows in both:
            refuse_twice(key_id, rows["message"].to_numpy())
        ends = both[1].rename({"at": "removed_at", "seq": "removed_seq"})
        rows = both[0].join(ends, on="message", how="left", maintain_order="left")
        return rows.with_columns(
            pl.col("at").cast(_TIME).alias("allocated_at"), pl.col("removed_at").cast(_TIME), key_id=pl.lit(key_id)
        ).select(_COLUMNS.names())


_APP, _INDEX_APP = "users", "users-index"
_TRIES = 50
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 1.0  # seconds
_MOST_NEW_FILES = 100  # files that the index may lack, one for each change; then they enter it
_MOST_NEW_EVENTS = 50_000  # events that the index may lack
_MERGED_ROWS = 2**20  # rows that are written as one file, at most
_LIKE = 4  # a file is merged with later files if it has at most so many times their rows
_ORPHANS_AFTER = 1  # hours in which a running change has certainly ended
_WRITER = WriterProperties(max_row_group_size=65_536)  # so that few rows are read without the rest

Result = TypeVar("Result")


def open_users(folder: Path | str) -> UsersSnapshot:
    """The users table of a registry as it is now. A later read may miss files that were erased meanwhile: see `ask`."""
    return _retry(lambda: _snapshot(folder, open_table(folder))[0])


def ask(folder: Path | str, question: Callable[[UsersSnapshot], Result]) -> Result:
    """The answer of a registry's users table now. It is asked again if index files go meanwhile, merged or erased.

    Raises:
        ScanFailed: a file is missing.
    """
    return ask_users_table(folder, lambda users_table: question(users_table.users_snapshot))


def numbers_of_heads(folder: Path | str, heads: Sequence[bytes]) -> dict[str, int]:
    """Number of the event that has each of these heads, as hex text; a head that no event has is left out."""

    def attempt() -> dict[str, int]:
        table = open_table(folder)
        if table is None:
            return {}
        with reading(table):
            events = with_heads(table, heads)
        return {head.hex(): seq for head, seq in events.select("head", "seq").iter_rows()}

    return _retry(attempt)


class UsersTable(NamedTuple):
    """A users table as it was at one moment: its content, its index with the folder of that, and its chained events.

    windows: gives events in order of their numbers, from one number on, so many at a time.
    """

    users_snapshot: UsersSnapshot
    indexed: Index
    files: IndexFolder
    windows: Callable[[int, int], Iterator[pl.DataFrame]]


def ask_users_table(folder: Path | str, question: Callable[[UsersTable], Result]) -> Result:
    """The result of a question about all of a registry's users table, asked again if files go meanwhile.

    Raises:
        ScanFailed: a file is missing.
    """

    def attempt() -> Result:
        table = open_table(folder)
        users_snapshot, index = _snapshot(folder, table)
        with reading(table):
            return question(UsersTable(users_snapshot, index, _index_folder(folder), partial(_windows, table)))

    return _retry(attempt)


def _windows(table: DeltaTable | None, first: int, rows: int) -> Iterator[pl.DataFrame]:
    if table is None:
        return
    last = max((n for n in files_of(table)["last"].to_list() if n is not None), default=-1)
    for begin in range(first, last + 1, rows):
        with reading(table):
            events = since(table, begin, begin + rows - 1)
        yield events.drop_nulls("seq").sort("seq")


def append(folder: Path | str, decide: Callable[[UsersSnapshot], tuple[pl.DataFrame, Result]]) -> Result:
    """Append what `decide` makes of the state so far, events of schemas.tables.USER_EVENTS; return its result.

    `decide` is called again when another process was faster. Nothing is written when it returns no event or raises.

    Raises:
        ScanFailed: other processes were faster every time.
    """

    def attempt() -> tuple[Result, bool]:
        table = open_table(folder)
        users_snapshot, index = _snapshot(folder, table)
        with reading(table):
            new, result = decide(users_snapshot)
        if new.is_empty():
            return result, False
        if table is None:
            create(folder)
            raise TooLate  # another process may have made it, and written to it
        events = chain_events(new, users_snapshot.events, _head(users_snapshot)).to_arrow().cast(USERS)
        write_deltalake(table, events, mode="append", commit_properties=_next(table), writer_properties=_WRITER)
        files = files_of(table).filter(pl.col("last").fill_null(index.seq) >= index.seq).height
        return result, files >= _MOST_NEW_FILES or users_snapshot.events + len(events) - index.seq > _MOST_NEW_EVENTS

    result, full = _retry(attempt)
    if full:
        _fold(folder)
    return result


def erase_names(folder: Path | str, choose: Callable[[UsersSnapshot], pl.DataFrame]) -> int:
    """Take the names out of all events of the rows that `choose` picks out of a snapshot; returns events changed.

    The files that drop out of the index and the table are deleted. The Delta log holds no names: none stand in
    statistics or predicates.

    Raises:
        ScanFailed: other processes were faster every time.
    """

    def attempt() -> int:
        table = open_table(folder)
        users_snapshot, index = _snapshot(folder, table)
        with reading(table):
            chosen = choose(users_snapshot)
            if table is None or chosen.is_empty():
                return 0
            _head(users_snapshot)
            return _erase(folder, table, index, chosen)

    rows = _retry(attempt)
    _retry(lambda: _vacuum(folder, full=False, hours=0))  # files that the update replaced
    _retry(lambda: _vacuum(folder, full=True, hours=_ORPHANS_AFTER))  # what crashed or lost, not what is being written
    _clean(folder)
    return rows


def _erase(folder: Path | str, table: DeltaTable, index: Index, chosen: pl.DataFrame) -> int:
    numbers = pl.concat([chosen["seq"], chosen["removed_seq"]]).drop_nulls().sort()
    events = events_by_number(table, numbers)
    seals = zip(events["seq"], seals_of(events), strict=True)
    cases = " ".join(f"WHEN {seq} THEN X'{seal.hex()}'" for seq, seal in seals)
    folder_of_index = _index_folder(folder)
    new = folder_of_index.without_names(index, chosen)
    try:
        done = table.update(
            updates={"user_id": "NULL", "salt": "NULL", "seal": f"CASE seq {cases} END"},
            predicate=f"seq IN ({', '.join(map(str, numbers))})",
            commit_properties=_next(table, new if new is not index else None),
            writer_properties=_WRITER,
        )
    except CommitFailedError:
        folder_of_index.discard(new, index)
        raise
    except DeltaError:
        folder_of_index.discard(new, index)
        raise_if_outdated(table)  # a missing file shows as an error of any kind
        raise
    return int(done["num_updated_rows"])


def _fold(folder: Path | str) -> None:
    """Bring the newest events into the index, and merge small files; nothing happens where others change the table."""
    table = open_table(folder)
    if table is None:
        return
    index_folder = _index_folder(folder)
    try:
        users_snapshot, index = _snapshot(folder, table)
        if users_snapshot.head is None or not users_snapshot.tail.height:
            return
        new = index_folder.added(index, users_snapshot.tail)
    except (TooLate, FileNotFoundError):
        return
    try:
        with reading(table):
            _put_in_place(table, new)
    except (CommitFailedError, TooLate):  # the next change does it
        index_folder.discard(new, index)
        return
    except DeltaError:
        index_folder.discard(new, index)
        with contextlib.suppress(TooLate):
            raise_if_outdated(table)  # a missing file shows as an error of any kind
            raise
        return
    with contextlib.suppress(DeltaError):  # the next change deletes what is left
        _vacuum(folder, full=False, hours=0)
        _clean(folder)


def _put_in_place(table: DeltaTable, index: Index) -> None:
    """Commit an index and, with it, the table's small files merged into one."""
    begin = _first_to_merge(files_of(table))
    if begin is None:
        table.create_write_transaction([], "append", USERS, commit_properties=_next(table, index))
        return
    rows = since(table, begin).sort("seq").to_arrow().cast(USERS)
    predicate, properties = f"seq >= {begin}", _next(table, index)
    write_deltalake(
        table, rows, mode="overwrite", predicate=predicate, commit_properties=properties, writer_properties=_WRITER
    )


def _first_to_merge(files: pl.DataFrame) -> int | None:
    """The number from which on events are merged into one file; None: there is nothing to merge."""
    rows, count, begin = 0, 0, None
    for first, _, size in files.sort("last", descending=True).select("first", "last", "rows").iter_rows():
        if rows + size > _MERGED_ROWS or (rows and size > _LIKE * rows):
            break
        rows, count, begin = rows + size, count + 1, first if begin is None else min(begin, first)
    return begin if count > 1 else None


def _index_folder(folder: Path | str) -> IndexFolder:
    return IndexFolder(f"{folder}/{USERS_FOLDER}")


def _snapshot(folder: Path | str, table: DeltaTable | None) -> tuple[UsersSnapshot, Index]:
    if table is None:
        return UsersSnapshot.empty(FIRST_HEAD), EMPTY_INDEX
    index_folder = _index_folder(folder)
    number = table.transaction_version(_INDEX_APP)
    index = index_folder.read(number) or EMPTY_INDEX
    with reading(table):
        events = since(table, index.seq - 1)
        if index.seq and events.filter(pl.col("seq") == index.seq - 1)["head"].to_list() != [index.head]:
            # the index may be of another state, as a backup may leave it
            index, events = EMPTY_INDEX, all_events(table)
    if number is not None and index is EMPTY_INDEX:
        raise_if_outdated(table)
    if events["seq"].null_count():
        raise _edited("an event has no number")
    tail = events.filter(pl.col("seq") >= index.seq).sort("seq")
    head = bytes(tail["head"][-1] or b"") if tail.height else index.head
    whole = len(head) == len(FIRST_HEAD)
    last_at = events.sort("seq")["at"][-1] if events.height else None
    runs, count = index_folder.runs(index), index.seq + tail.height
    return UsersSnapshot(runs, tail, count, head if whole else None, last_at), index


def _head(users_snapshot: UsersSnapshot) -> bytes:
    """The head that the next event goes on from. Raises ScanFailed: the last event has none."""
    if users_snapshot.head is None:
        raise _edited("its last event has no head")
    return users_snapshot.head


def _edited(fault: str) -> ScanFailed:
    return ScanFailed(
        f"users table: {fault}, so it was changed by something else than brickscan; see `brickscan users verify`, and "
        "restore it from a backup"
    )


def _next(table: DeltaTable, index: Index | None = None) -> CommitProperties:
    transactions = [Transaction(_APP, (table.transaction_version(_APP) or 0) + 1)]
    if index is not None:
        transactions.append(Transaction(_INDEX_APP, index.number))
    return CommitProperties(max_commit_retries=0, app_transactions=transactions)


def _vacuum(folder: Path | str, *, full: bool, hours: int) -> None:
    table = open_table(folder)
    if table is not None:
        table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=full)


def _clean(folder: Path | str) -> None:
    table, index_folder = open_table(folder), _index_folder(folder)
    if table is not None:
        index_folder.clean(index_folder.read(table.transaction_version(_INDEX_APP)) or EMPTY_INDEX)


def _retry(attempt: Callable[[], Result]) -> Result:
    """Try until no other process was faster, with growing random waits."""
    jitter = secrets.SystemRandom()
    for n in range(_TRIES):
        try:
            return attempt()
        except (CommitFailedError, TooLate):
            time.sleep(jitter.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**n)))
    raise ScanFailed(f"users table: other processes changed it first {_TRIES} times; nothing was written, try again")

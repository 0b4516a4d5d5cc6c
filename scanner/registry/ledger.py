"""Keep the users table of a registry: events in a Delta table, and one way to change it that is safe against races.

Delta lets two appends succeed that were made from the same snapshot. So every change here carries the application
transaction `users`, one higher than in the snapshot that it is based on, and is written through that snapshot without
retries. Of two changes that are based on the same state, one fails. It is then decided again on the state that the
other left. A new index (scanner.registry.index) is committed in the same way.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import ScanFailed, TooLate, in_a_line
from scanner.registry.chain import chain_events, seals_of
from scanner.registry.index import (
    EMPTY_INDEX,
    Index,
    IndexFolder,
    all_events,
    create,
    events_by_number,
    files_of,
    open_table,
    raise_if_outdated,
    reading,
    since,
    with_heads,
)
from scanner.registry.keys_file import USERS_FOLDER
from scanner.registry.record import FIRST_HEAD
from scanner.registry.users_snapshot import UsersSnapshot
from scanner.storage.delta import load_table, place_of, sync_commit
from scanner.storage.locations import is_uri, sync_to_disk
from schemas.tables import USERS

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


class UsersTable(NamedTuple):
    """A users table as it was at one moment."""

    users_snapshot: UsersSnapshot
    indexed: Index
    files: IndexFolder
    windows: Callable[[int, int], Iterator[pl.DataFrame]]
    """Function that yields the chained events in order of their numbers, from a number on, so many at a time."""


def open_users(folder: Path | str) -> UsersSnapshot:
    """Open the users table of a registry. A later read may miss files that were erased meanwhile (see `ask`)."""
    return _retry(lambda: _snapshot(folder, open_table(folder))[0])


def ask(folder: Path | str, question: Callable[[UsersSnapshot], Result]) -> Result:
    """Ask a registry's users. Ask once more if index files disappear meanwhile, because of a merge or an erasure.

    Raises:
        ScanFailed: a file is missing.
    """
    return ask_users_table(folder, lambda users_table: question(users_table.users_snapshot))


def ask_users_table(folder: Path | str, question: Callable[[UsersTable], Result]) -> Result:
    """Ask users, index and events together, as `ask` does.

    Raises:
        ScanFailed: a file is missing.
    """

    def attempt() -> Result:
        table = open_table(folder)
        users_snapshot, index = _snapshot(folder, table)
        with reading(table):
            return question(UsersTable(users_snapshot, index, _index_folder(folder), partial(_windows, table)))

    return _retry(attempt)


def numbers_of_heads(folder: Path | str, heads: Sequence[bytes]) -> dict[str, int]:
    """Return the number of the event that has each of these heads, as hex text. Heads of no event are left out."""

    def attempt() -> dict[str, int]:
        table = open_table(folder)
        if table is None:
            return {}
        with reading(table):
            events = with_heads(table, heads)
        return {head.hex(): seq for head, seq in events.select("head", "seq").iter_rows()}

    return _retry(attempt)


def append(folder: Path | str, decide: Callable[[UsersSnapshot], tuple[pl.DataFrame, Result]]) -> Result:
    """Append the events that `decide` makes from the present state, and return its result.

    If another process was faster, `decide` is called again. If it returns no event or raises, nothing is written.

    Args:
        folder: the registry's folder, or a URI.
        decide: returns events of schemas.tables.USER_EVENTS, and a result.

    Raises:
        ScanFailed: other processes were faster every time.
    """

    def attempt() -> tuple[Result, bool]:
        # 1. decide on the state as it is now
        table = open_table(folder)
        users_snapshot, index = _snapshot(folder, table)
        with reading(table):
            new, result = decide(users_snapshot)
        if new.is_empty():
            return result, False
        if table is None:
            create(folder)
            raise TooLate  # another process may have made it, and written to it
        # 2. chain the events to the last one, and write them through this snapshot, which fails if another was faster
        events = chain_events(new, users_snapshot.events, _head(users_snapshot)).to_arrow().cast(USERS)
        with _synced(table):
            write_deltalake(table, events, mode="append", commit_properties=_next(table), writer_properties=_WRITER)
        # 3. tell whether the index lacks so much that it should get the newest events
        files = files_of(table).filter(pl.col("last").fill_null(index.seq) >= index.seq).height
        new_events = users_snapshot.events + len(events) - index.seq
        return result, files >= _MOST_NEW_FILES or new_events > _MOST_NEW_EVENTS

    result, full = _retry(attempt)
    if full:
        _compact(folder)
    return result


def _compact(folder: Path | str) -> None:
    """Bring the newest events into the index, and merge small files. If others change the table, do nothing."""
    # 1. write the next index
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
    # 2. commit it and, with it, the table's small files merged into one
    try:
        with _synced(table), reading(table):
            begin = _first_to_merge(files_of(table))
            if begin is None:
                table.create_write_transaction([], "append", USERS, commit_properties=_next(table, new))
            else:
                write_deltalake(
                    table,
                    since(table, begin).sort("seq").to_arrow().cast(USERS),
                    mode="overwrite",
                    predicate=f"seq >= {begin}",
                    commit_properties=_next(table, new),
                    writer_properties=_WRITER,
                )
    except (CommitFailedError, TooLate):  # the next change does it
        index_folder.discard(new, index)
        return
    except DeltaError:
        index_folder.discard(new, index)
        with contextlib.suppress(TooLate):
            raise_if_outdated(table)  # a missing file shows as an error of any kind
            raise
        return
    # 3. delete the files that dropped out
    with contextlib.suppress(DeltaError):  # the next change deletes what is left
        _vacuum(folder, full=False, hours=0)
        _clean(folder)


def _first_to_merge(files: pl.DataFrame) -> int | None:
    """Return the number from which on events are merged into one file. None: there is nothing to merge."""
    rows, count, begin = 0, 0, None
    for first, _, size in files.sort("last", descending=True).select("first", "last", "rows").iter_rows():
        if rows + size > _MERGED_ROWS or (rows and size > _LIKE * rows):
            break
        rows, count, begin = rows + size, count + 1, first if begin is None else min(begin, first)
    return begin if count > 1 else None


def erase_names(folder: Path | str, choose: Callable[[UsersSnapshot], pl.DataFrame]) -> int:
    """Erase the names from all events of the rows that `choose` picks from a snapshot. Return how many events changed.

    Files that are no longer in the index or the table are deleted. The Delta log contains no names, because neither
    statistics nor predicates contain any.

    Raises:
        ScanFailed: other processes were faster every time.
    """

    def attempt() -> int:
        # 1. choose the rows
        table = open_table(folder)
        users_snapshot, index = _snapshot(folder, table)
        with reading(table):
            rows = choose(users_snapshot)
            if table is None or rows.is_empty():
                return 0
            _head(users_snapshot)  # refuses a table that was edited
            # 2. make what takes their place: a seal in each event, with which the chain still holds, and another index
            numbers = pl.concat([rows["seq"], rows["removed_seq"]]).drop_nulls().sort()
            events = events_by_number(table, numbers)
            seals = zip(events["seq"], seals_of(events), strict=True)
            cases = " ".join(f"WHEN {seq} THEN X'{seal.hex()}'" for seq, seal in seals)
            index_folder = _index_folder(folder)
            new = index_folder.without_names(index, rows)
            # 3. commit both at once
            try:
                with _synced(table):
                    metrics = table.update(
                        updates={"user_id": "NULL", "salt": "NULL", "seal": f"CASE seq {cases} END"},
                        predicate=f"seq IN ({', '.join(map(str, numbers))})",
                        commit_properties=_next(table, new if new is not index else None),
                        writer_properties=_WRITER,
                    )
            except CommitFailedError:
                index_folder.discard(new, index)
                raise
            except DeltaError:
                index_folder.discard(new, index)
                raise_if_outdated(table)  # a missing file shows as an error of any kind
                raise
            return int(metrics["num_updated_rows"])

    row_count = _retry(attempt)
    # 4. delete the files that still hold the names
    _retry(lambda: _vacuum(folder, full=False, hours=0))  # files that the update replaced
    _retry(lambda: _vacuum(folder, full=True, hours=_ORPHANS_AFTER))  # what crashed or lost, not what is being written
    _clean(folder)
    return row_count


def _snapshot(folder: Path | str, table: DeltaTable | None) -> tuple[UsersSnapshot, Index]:
    """Read the users from a table, and the table's index.

    Raises:
        ScanFailed: another program than brickscan changed the table.
        TooLate: the table has changed since it was opened.
    """
    if table is None:
        return UsersSnapshot.empty(FIRST_HEAD), EMPTY_INDEX
    # 1. the index that the table names, and the events after it with the last one before
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
    # 2. what the events add
    tail = events.filter(pl.col("seq") >= index.seq).sort("seq")
    head = bytes(tail["head"][-1] or b"") if tail.height else index.head
    is_whole = len(head) == len(FIRST_HEAD)
    last_at = events.sort("seq")["at"][-1] if events.height else None
    runs, count = index_folder.runs(index), index.seq + tail.height
    return UsersSnapshot(runs, tail, count, head if is_whole else None, last_at), index


def _windows(table: DeltaTable | None, first: int, rows: int) -> Iterator[pl.DataFrame]:
    if table is None:
        return
    last = max((n for n in files_of(table)["last"].to_list() if n is not None), default=-1)
    for begin in range(first, last + 1, rows):
        with reading(table):
            events = since(table, begin, begin + rows - 1)
        yield events.drop_nulls("seq").sort("seq")


def _head(users_snapshot: UsersSnapshot) -> bytes:
    """Return the head that the next event continues. Raises ScanFailed: the last event has none."""
    if users_snapshot.head is None:
        raise _edited("its last event has no head")
    return users_snapshot.head


def _edited(fault: str) -> ScanFailed:
    return ScanFailed(
        f"users table: {fault}, so something other than brickscan changed it; see `brickscan users verify`, and "
        "restore it from a backup"
    )


def _next(table: DeltaTable, index: Index | None = None) -> CommitProperties:
    """Return the transactions of a change after this snapshot, and of its new index."""
    transactions = [Transaction(_APP, (table.transaction_version(_APP) or 0) + 1)]
    if index is not None:
        transactions.append(Transaction(_INDEX_APP, index.number))
    return CommitProperties(max_commit_retries=0, app_transactions=transactions)


@contextlib.contextmanager
def _synced(table: DeltaTable) -> Iterator[None]:
    """Write commits that are made inside, and the files of the table, to the disk at the end.

    No message is given, and no file is deleted, before this. Otherwise a machine that loses its power could forget who
    had a message, and give it to somebody else.

    Raises:
        ScanFailed: they cannot be synced.
    """
    first = table.version() + 1
    yield
    if is_uri(place := place_of(table)):
        return
    newest = load_table(table.table_uri)
    try:
        for name in files_of(newest)["path"]:
            with contextlib.suppress(FileNotFoundError):  # another process merged it meanwhile
                sync_to_disk(Path(place) / name)
        sync_to_disk(Path(place))
        for version in range(first, newest.version() + 1):
            sync_commit(newest, version)
    except OSError as error:
        raise ScanFailed(f"users table {place}: cannot be written to disk: {in_a_line(error)}") from None


def _index_folder(folder: Path | str) -> IndexFolder:
    return IndexFolder(f"{folder}/{USERS_FOLDER}")


def _vacuum(folder: Path | str, *, full: bool, hours: int) -> None:
    table = open_table(folder)
    if table is not None:
        with _synced(table):  # it commits what it does
            table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=full)


def _clean(folder: Path | str) -> None:
    table, index_folder = open_table(folder), _index_folder(folder)
    if table is not None:
        index_folder.clean(index_folder.read(table.transaction_version(_INDEX_APP)) or EMPTY_INDEX)


def _retry(attempt: Callable[[], Result]) -> Result:
    """Try until no other process is faster, with growing random waits."""
    jitter = secrets.SystemRandom()
    for n in range(_TRIES):
        try:
            return attempt()
        except (CommitFailedError, TooLate):
            time.sleep(jitter.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**n)))
    raise ScanFailed(
        f"users table: other processes changed it first, {_TRIES} times in a row; nothing was written, try again"
    )

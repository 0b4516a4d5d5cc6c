"""The users table of a registry: events in a Delta table, and the one way to change it that loses no race.

Delta lets two appends made from the same snapshot both succeed. Here every change carries the application transaction
`users`, one higher than in the snapshot it was decided on, and is written through that very snapshot without retries:
of two changes decided on the same state one fails, and is decided anew on the state that the other left.
"""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import ScanFailed, TooLate
from scanner.registry.locked_files import USERS_FOLDER
from scanner.storage.delta import read
from scanner.storage.permissions import make_private
from schemas.tables import USERS

ALLOCATED, REMOVED = "allocated", "removed"

_APP = "users"
_TRIES = 50
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 1.0  # seconds
_MOST_FILES = 200  # every change is a file, and reading slows down with them: then all are written as one
_ORPHANS_AFTER = 1  # hours in which a running change has certainly ended

Result = TypeVar("Result")


def read_events(folder: Path | str) -> pl.DataFrame:
    """All events of a registry's users, columns of schemas.tables.USERS; no rows when it has no users table yet."""
    return _retry(lambda: _events(_open(folder)))


def append(folder: Path | str, decide: Callable[[pl.DataFrame], tuple[pl.DataFrame, Result]]) -> Result:
    """Append the events that `decide` makes of the events so far, and return its result.

    Called again from the start when another process was faster; nothing is written when it returns no event or raises.

    Raises:
        ScanFailed: other processes were faster every time.
    """

    def attempt() -> Result:
        table = _open(folder)
        old = _events(table)
        new, result = decide(old)
        if new.is_empty():
            return result
        if table is None:
            _create(folder)
            raise TooLate  # another process may have made it, and written to it
        if len(table.file_uris()) < _MOST_FILES:
            write_deltalake(table, new.to_arrow().cast(USERS), mode="append", commit_properties=_next(table))
        else:  # not optimize.compact: two at once both succeed, and every row stands twice (deltalake 1.6.6)
            everything = pl.concat([old, new]).to_arrow().cast(USERS)
            write_deltalake(table, everything, mode="overwrite", commit_properties=_next(table))
        return result

    return _retry(attempt)


def erase_names(folder: Path | str, choose: Callable[[pl.DataFrame], pl.DataFrame]) -> int:
    """Put null for user_id in all events of the messages (key_id, message) that `choose` picks; returns rows changed.

    The files that held the names are deleted. The Delta log holds no names: none stand in statistics or predicates.

    Raises:
        ScanFailed: other processes were faster every time.
    """

    def attempt() -> int:
        table = _open(folder)
        chosen = choose(_events(table))
        if table is None or chosen.is_empty():
            return 0
        by_key = chosen.group_by("key_id").agg("message")
        predicate = " OR ".join(
            f"(key_id = '{key_id}' AND message IN ({', '.join(map(str, messages))}))"
            for key_id, messages in by_key.iter_rows()
        )
        try:
            changed = table.update(updates={"user_id": "NULL"}, predicate=predicate, commit_properties=_next(table))
        except DeltaError:
            _raise_if_outdated(table)  # a missing file shows as an error of any kind
            raise
        return int(changed["num_updated_rows"])

    rows = _retry(attempt)
    _retry(lambda: _vacuum(folder, full=False, hours=0))  # what the update replaced
    _retry(lambda: _vacuum(folder, full=True, hours=_ORPHANS_AFTER))  # what crashed or lost, not what is being written
    return rows


def _open(folder: Path | str) -> DeltaTable | None:
    place = f"{folder}/{USERS_FOLDER}"
    return DeltaTable(place) if DeltaTable.is_deltatable(place) else None


def _create(folder: Path | str) -> None:
    make_private(f"{folder}/{USERS_FOLDER}")
    DeltaTable.create(
        f"{folder}/{USERS_FOLDER}",
        USERS,
        mode="ignore",
        configuration={"delta.dataSkippingStatsColumns": "key_id,message"},  # statistics go to the log: no names there
        commit_properties=CommitProperties(max_commit_retries=0),
    )


def _events(table: DeltaTable | None) -> pl.DataFrame:
    if table is None:
        return pl.DataFrame(schema=pl.Schema(USERS))
    try:
        return read(table).collect()
    except FileNotFoundError as error:
        _raise_if_outdated(table)
        raise ScanFailed(f"users table: a file is missing ({error}); restore it from a backup") from None


def _raise_if_outdated(table: DeltaTable) -> None:
    """Files of an outdated snapshot may be gone, when a name was erased; files of the newest one never are."""
    if DeltaTable(table.table_uri).version() != table.version():
        raise TooLate


def _next(table: DeltaTable) -> CommitProperties:
    version = (table.transaction_version(_APP) or 0) + 1
    return CommitProperties(max_commit_retries=0, app_transactions=[Transaction(_APP, version)])


def _vacuum(folder: Path | str, *, full: bool, hours: int) -> None:
    table = _open(folder)
    if table is not None:
        table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=full)


def _retry(attempt: Callable[[], Result]) -> Result:
    """Try until no other process was faster, with growing random waits."""
    jitter = secrets.SystemRandom()
    for n in range(_TRIES):
        try:
            return attempt()
        except (CommitFailedError, TooLate):
            time.sleep(jitter.uniform(0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**n)))
    raise ScanFailed(f"users table: other processes changed it first {_TRIES} times; nothing was written, try again")

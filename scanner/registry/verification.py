"""Verify that a users table is as it was written. Anybody who can write it can accuse anybody, but not unnoticed.

The events form a hash chain (scanner.registry.chain), and every scan writes the chain's head into `scans`. Changing an
event breaks the chain. Making the whole chain again gives other heads than those that scans recorded. Users are named
from the index (scanner.registry.index), so it is compared with the events too.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from scanner.errors import Refused
from scanner.registry import ledger
from scanner.registry.chain import follow
from scanner.registry.clock import KnownTimes, SeenHead, wrong_times_of_keys
from scanner.registry.holders import numbers_of_heads
from scanner.registry.index import ALLOCATED, NAMES, REMOVED_EVENT
from scanner.registry.keys_file import load_registry
from scanner.registry.record import NamesPart, Record
from scanner.registry.sorted_files import Ints, SortedFile
from scanner.registry.users_snapshot import GivenMessage, UsersSnapshot
from schemas.tables import USER_LIST

_WINDOW = 2**20  # events that are read together
_MOST_FAULTS = 100
_READERS = 4  # files that are read at the same time
_GIVEN = ["message", "user_id", "allocated_at", "seq"]
_REMOVED = ["message", "removed_at", "removed_seq"]


class Verification(NamedTuple):
    """Result of a verification.

    events: number of events of the chain.
    head: the chain's head, as hex text. None: it has no events.
    faults: faults for people, the first 100.
    lost: the requested heads that the chain never had.
    clocks: impossible times, for people, the first 100. The clock of a machine was wrong.
    """

    events: int
    head: str | None
    faults: tuple[str, ...]
    lost: tuple[str, ...]
    clocks: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether there is no fault."""
        return not self.faults and not self.lost


def verify_users(folder: Path | str, heads: Collection[str] = (), seen: Collection[SeenHead] = ()) -> Verification:
    """Follow the chain of a registry's users table from its start, and compare the index with its events.

    Args:
        folder: the registry's folder, or a URI.
        heads: earlier heads of the chain, as hex text (column users_head of schemas.tables.SCANS).
        seen: times at which scans saw heads. The times of events are compared with them.

    Raises:
        Refused: there is no such registry, or the table gives a message twice.
        ScanFailed: names were erased at every attempt, or a file is missing.
    """
    registry, scan_heads = load_registry(folder), {scan.head for scan in seen}
    times = KnownTimes(seen, numbers_of_heads(folder, scan_heads))
    verification = ledger.ask_users_table(
        folder, lambda now: _verified(now.users_snapshot, now.windows(0, _WINDOW), {*heads, *scan_heads}, times)
    )
    clocks = () if registry.trial else (*wrong_times_of_keys(registry), *verification.clocks)  # a trial is dated back
    return verification._replace(clocks=clocks[:_MOST_FAULTS])


def _verified(
    users_snapshot: UsersSnapshot, windows: Iterator[pl.DataFrame], missing_heads: set[str], times: KnownTimes
) -> Verification:
    events, head, faults, counts = 0, None, list[str](), Counter[tuple[str, str]]()
    clocks = list[str]()

    def counted() -> Iterator[pl.DataFrame]:
        for window in windows:
            faults.extend(_unlike(users_snapshot, window))
            for key_id, event, rows in window.group_by("key_id", "event").len().iter_rows():
                counts[key_id, event] += rows
            clocks.extend(times.wrong(window))
            yield window

    for block in follow(counted()):
        events = block.last + 1
        head = block.head.hex() if block.head else head
        missing_heads.discard(head or "")
        if block.fault:
            faults.append(f"events {block.first} to {block.last}: {block.fault}")
    faults += _too_many(users_snapshot, counts)
    return Verification(events, head, tuple(faults[:_MOST_FAULTS]), tuple(sorted(missing_heads)), tuple(clocks))


def _unlike(users_snapshot: UsersSnapshot, events: pl.DataFrame) -> Iterator[str]:
    for (key_id, event), part in events.group_by("key_id", "event", maintain_order=True):
        rows = users_snapshot.rows_of_messages(str(key_id), part["message"].to_numpy())
        if event == ALLOCATED:
            event_rows, index_rows = part.rename({"at": "allocated_at"}).select(_GIVEN), rows.select(_GIVEN)
            named = part.drop_nulls("user_id")
            by_name = users_snapshot.rows_of_users(named["user_id"], [str(key_id)])
            unknown = named.join(by_name, on=["user_id", "message"], how="anti").select("message")
        elif event == REMOVED_EVENT:
            event_rows, index_rows = part.select("message", removed_at="at", removed_seq="seq"), rows.select(_REMOVED)
            unknown = event_rows.clear().select("message")
        else:
            continue
        differences = event_rows.join(index_rows, on=event_rows.columns, how="anti", nulls_equal=True).select("message")
        for message in pl.concat([differences, unknown])["message"].unique().sort().head(_MOST_FAULTS):
            yield f"key {key_id}, message {message}: the index differs from the events"


def _too_many(users_snapshot: UsersSnapshot, counts: Counter[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each key with more or fewer messages in the index than in the events."""
    for key_id in sorted({*users_snapshot.key_ids, *(key_id for key_id, _ in counts)}):
        for event, indexed in zip((ALLOCATED, REMOVED_EVENT), users_snapshot.count(key_id), strict=True):
            if indexed != counts[key_id, event]:
                difference = f"{indexed:,} messages are {event}, but {counts[key_id, event]:,} according to the events"
                yield f"key {key_id}: according to the index {difference}"


def verify_since(folder: Path | str, record: Record, messages: pl.DataFrame | None = None) -> Record:
    """Compare the files that names are read from with an earlier verification. Return the record of this verification.

    A file of the earlier verification must still have its digest. Newer events are verified by the chain, and newer
    files by these events. If a newer file contains older events too, as after a merge or an erasure, the chain is
    followed from the last checkpoint before the oldest of them. The cost is therefore that of reading the files, and
    the events that are new or were written again.

    Args:
        folder: the registry's folder, or a URI.
        record: record of the earlier verification.
        messages: rows of key_id and message. Only files with these messages are verified, a few MB each. None: all
            files.

    Raises:
        Refused: something was changed, or the chain is not the earlier one.
        ScanFailed: a file is missing.
    """
    messages_by_key = None if messages is None else _messages_by_key(messages)
    return ledger.ask_users_table(folder, lambda now: _since(str(folder), now, record, messages_by_key))


def _messages_by_key(rows: pl.DataFrame) -> dict[str, Ints]:
    return {str(key_id): np.unique(part["message"].to_numpy()) for (key_id,), part in rows.group_by("key_id")}


def verified_users(folder: Path | str, record: Record) -> UsersSnapshot:
    """Return all users of a registry, verified as `verify_since` does, with its errors."""

    def verified(now: ledger.UsersTable) -> UsersSnapshot:
        _since(str(folder), now, record, None)
        return now.users_snapshot

    return ledger.ask_users_table(folder, verified)


def verified_rows(folder: Path | str, record: Record, find: Callable[[UsersSnapshot], pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of `list_users` that `find` selects, from files and events verified as by `verify_since`.

    It raises the same errors. An edited table may still hide a row. Then no user is named.
    """

    def answer(now: ledger.UsersTable) -> pl.DataFrame:
        rows = find(now.users_snapshot).select(USER_LIST.names)
        _since(str(folder), now, record, _messages_by_key(rows))
        return rows

    return ledger.ask_users_table(folder, answer)


def find_verified(folder: Path | str, record: Record, key_id: str, message: int) -> tuple[GivenMessage | None, Record]:
    """Return the user who was given a message, and the new record. None: the message was never given.

    The answer is read from files and events that are verified as by `verify_since`.

    Raises:
        Refused: something was changed, or the chain is not the earlier one.
        ScanFailed: a file is missing.
    """

    def answer(now: ledger.UsersTable) -> tuple[GivenMessage | None, Record]:
        verified = _since(str(folder), now, record, {key_id: np.array([message], np.int64)})
        return now.users_snapshot.find_message(key_id, message), verified

    return ledger.ask_users_table(folder, answer)


def _since(folder: str, now: ledger.UsersTable, record: Record, messages_by_key: Mapping[str, Ints] | None) -> Record:
    parts = _names_parts(now, record, messages_by_key)
    earlier_parts = {part.file: part for part in record.parts}
    edited = [part.file for part in parts if part != earlier_parts.get(part.file, part)]
    if edited:
        raise _changed(folder, f"the file {edited[0]} of its index has changed since it was last verified")
    moved = {*parts} - record.parts if messages_by_key is not None else {*parts} ^ record.parts
    oldest = min([now.indexed.seq, now.users_snapshot.events, *(part.first_event for part in moved)])
    begin, head = max(point for point in record.checkpoints if point[0] <= oldest)
    heads, faults = {begin: head}, list[str]()

    def unlike() -> Iterator[pl.DataFrame]:
        for window in now.windows(begin, _WINDOW):
            faults.extend(_unlike(now.users_snapshot, window))
            yield window

    for block in follow(unlike(), bytes.fromhex(head)):
        heads[block.last + 1] = block.head.hex() if block.head else ""
        if block.fault:
            faults.append(f"events {block.first} to {block.last}: {block.fault}")
    if messages_by_key is None and sum(part.rows for part in parts) != now.indexed.seq:
        faults.append("its index has more or fewer messages than the events give")
    faults += [
        f"its history does not have the head {head} after {events:,} events"
        for events, head in sorted(record.checkpoints)
        if events >= begin and heads.get(events) != head
    ]
    if faults:
        raise _changed(folder, faults[0])
    ends = {(events, heads[events]) for events in (now.indexed.seq, now.users_snapshot.events)}
    return Record(record.checkpoints | ends, frozenset(parts))


def _names_parts(now: ledger.UsersTable, record: Record, messages_by_key: Mapping[str, Ints] | None) -> list[NamesPart]:
    """Return the files that names are read from, as they are now: all files, or those of some messages.

    Several files are read at once.
    """
    first_events = {part.file: part.first_event for part in record.parts}
    parts = [
        (key, part)
        for run in now.indexed.runs
        for key in run
        if key[1] != NAMES
        for part in run[key]
        if messages_by_key is None or _holds_any(part, messages_by_key.get(key[0]))
    ]
    with ThreadPoolExecutor(_READERS) as pool:
        digests = list(pool.map(lambda item: now.files.sha256(item[1]), parts))
    names_parts = []
    for (key, part), digest in zip(parts, digests, strict=True):
        first_event = first_events[part.file] if part.file in first_events else now.files.first_event(part)
        names_parts.append(NamesPart(*key, part.file, part.rows, part.first, part.last, digest, first_event))
    return names_parts


def _holds_any(part: SortedFile, messages: Ints | None) -> bool:
    if messages is None:
        return False
    i = int(np.searchsorted(messages, part.first))
    return i < len(messages) and int(messages[i]) <= part.last


def _changed(folder: str, fault: str) -> Refused:
    help_ = "`brickscan users verify` says more; keep the folder for the investigation, and restore a backup"
    return Refused(f"registry {folder}: something other than brickscan changed its users: {fault}; {help_}")

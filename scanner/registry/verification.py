"""Whether a users table is as it was written: whoever can write it can accuse anybody, but not unnoticed.

The events form a hash chain (scanner.registry.chain), and every scan writes the chain's head into `scans`. Who changes
an event breaks the chain; who makes the whole chain anew gets other heads than the scans recorded. Users are named from
the index (scanner.registry.index), so it is held against the events too.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl

from scanner.errors import ScanFailed, TooLate
from scanner.registry import ledger
from scanner.registry.book import Book
from scanner.registry.chain import follow
from scanner.registry.index import ALLOCATED, REMOVED_EVENT
from scanner.registry.keys_file import load_registry

_WINDOW = 2**20  # events at a time
_MOST_FAULTS = 100
_GIVEN = ["message", "user_id", "allocated_at", "seq"]
_REMOVED = ["message", "removed_at", "removed_seq"]


class Verified(NamedTuple):
    """Result of a verification.

    events: how many the chain has; head: the chain's head, as hex text, None where it has no events; outside: events
    that are in no chain, since an earlier version wrote them; faults: what is wrong, for people, the first 100; lost:
    the heads asked for that the chain never had.
    """

    events: int
    head: str | None
    outside: int
    faults: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults and not self.lost


def verify_users(folder: Path | str, heads: Collection[str] = ()) -> Verified:
    """Follow the chain of a registry's users table from its start, and hold the index against its events.

    Args:
        folder: the registry's folder.
        heads: earlier heads of the chain, as hex text (column users_head of schemas.tables.SCANS).

    Raises:
        Refused: there is no such registry, or the table gives a message twice.
        ScanFailed: names were erased meanwhile, or a file is missing.
    """
    load_registry(folder)
    try:
        book, windows = ledger.whole(folder, _WINDOW)
        return _verified(book, windows, set(heads))
    except TooLate:
        raise ScanFailed("users table: it was changed while it was read; run this again") from None


def _verified(book: Book, windows: Iterator[pl.DataFrame], wanted: set[str]) -> Verified:
    events, head, faults, counts = 0, None, list[str](), Counter[tuple[str, str]]()

    def counted() -> Iterator[pl.DataFrame]:
        for window in windows:
            faults.extend(_unlike(book, window))
            for key_id, event, rows in window.group_by("key_id", "event").len().iter_rows():
                counts[key_id, event] += rows
            yield window

    for block in follow(counted()):
        events = block.last + 1
        head = block.head.hex() if block.head else head
        wanted.discard(head or "")
        if block.fault:
            faults.append(f"events {block.first} to {block.last}: {block.fault}")
    outside = book.tail["seq"].null_count()
    faults += _too_many(book, counts)
    return Verified(events, head, outside, tuple(faults[:_MOST_FAULTS]), tuple(sorted(wanted)))


def _unlike(book: Book, events: pl.DataFrame) -> Iterator[str]:
    """Differences between the index and the events."""
    for (key_id, event), part in events.group_by("key_id", "event", maintain_order=True):
        rows = book.given(str(key_id), part["message"].to_numpy())
        if event == ALLOCATED:
            of_events, of_index = part.rename({"at": "allocated_at"}).select(_GIVEN), rows.select(_GIVEN)
            named = part.drop_nulls("user_id")
            by_name = book.of_users(named["user_id"], [str(key_id)])
            unknown = named.join(by_name, on=["user_id", "message"], how="anti").select("message")
        elif event == REMOVED_EVENT:
            of_events, of_index = part.select("message", removed_at="at", removed_seq="seq"), rows.select(_REMOVED)
            unknown = of_events.clear().select("message")
        else:
            continue
        unlike = of_events.join(of_index, on=of_events.columns, how="anti", nulls_equal=True).select("message")
        for message in pl.concat([unlike, unknown])["message"].unique().sort().head(_MOST_FAULTS):
            yield f"key {key_id}, message {message}: the index says something else than the events"


def _too_many(book: Book, counts: Counter[tuple[str, str]]) -> Iterator[str]:
    """Keys for which the index has more or fewer messages than the events give."""
    outside = book.tail.filter(pl.col("seq").is_null()).group_by("key_id", "event").len()
    for key_id, event, rows in outside.iter_rows():
        counts[key_id, event] += rows
    for key_id in sorted({*book.key_ids, *(key_id for key_id, _ in counts)}):
        for event, indexed in zip((ALLOCATED, REMOVED_EVENT), book.count(key_id), strict=True):
            if indexed != counts[key_id, event]:
                what = f"{indexed:,} messages are {event}, by the events {counts[key_id, event]:,}"
                yield f"key {key_id}: by the index {what}"

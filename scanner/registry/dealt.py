"""Publish that messages were given, without the users: a tree for each key, whose roots show no user (SPEC_3 §5).

A head of the users' chain (scanner.registry.chain) binds a whole block of records. To check one record against it, you
would need the records of all other users in the block. `keys publish` therefore lists, for each key, the number of its
events and the root of the Merkle tree of RFC 9162 over their records, in the order of the chain:

    leaf i = SHA-256(0x00 · record of the key's event i)        node = SHA-256(0x01 · left · right)

A record is checked against a root by a path of hashes. The hash of a neighbour covers the seal of its user's name, with
16 random bytes, so it reveals neither message nor time. An erasure changes no leaf.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import polars as pl

from scanner.errors import Refused
from scanner.registry import ledger
from scanner.registry.chain import records_of
from scanner.registry.index import ALLOCATED

_WINDOW = 2**20  # events that are read together
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class Dealt(NamedTuple):
    """The state of a key's messages: how many events there are, and a root over them.

    events: number of events.
    root: root of the tree over their records, as hex.
    """

    events: int
    root: str

    def __str__(self) -> str:
        return f"{self.events}:{self.root}"

    @classmethod
    def of(cls, words: str) -> "Dealt":
        """Read a list's entry for a key."""
        events, root = words.split(":")
        return cls(int(events), root)


class DealtRecord(NamedTuple):
    """The record in the users' chain that a message was given to a user.

    user_id: the user.
    salt: 16 bytes. With them, the seal can be checked against the name.
    seq: number of the event in the chain.
    at: time in microseconds since 1970 (UTC).
    place: number of the event among those of its key, from 0.
    events: number of events of the tree that the path leads through. None: no list has a tree with this event.
    path: hashes of 32 bytes to its root, the leaf's neighbour first.
    """

    user_id: str
    salt: bytes
    seq: int
    at: int
    place: int
    events: int | None
    path: tuple[bytes, ...]


class _Tree:
    """A tree of RFC 9162 to which leaves are added, and the path from one leaf, given by its number, to its root."""

    def __init__(self, followed: int = -1) -> None:
        self.size, self._followed = 0, followed
        self._whole: list[tuple[int, int, bytes]] = []  # first leaf, number of leaves, root: falling powers of two
        self._path: list[bytes] = []

    def add(self, record: bytes) -> None:
        node = self.size, 1, sha256(b"\0" + record).digest()
        self.size += 1
        while self._whole and self._whole[-1][1] == node[1]:
            node = self._joined(self._whole.pop(), node)
        self._whole.append(node)

    def _joined(self, left: tuple[int, int, bytes], right: tuple[int, int, bytes]) -> tuple[int, int, bytes]:
        if left[0] <= self._followed < right[0] + right[1]:
            self._path.append(right[2] if self._followed < right[0] else left[2])
        return left[0], left[1] + right[1], sha256(b"\1" + left[2] + right[2]).digest()

    def finish(self) -> tuple[Dealt, tuple[bytes, ...]]:
        """Return the tree of all leaves, at least one, and the path."""
        *others, node = self._whole
        for left in reversed(others):
            node = self._joined(left, node)
        return Dealt(self.size, node[2].hex()), tuple(self._path)


def dealt_now(folder: Path | str, published: Mapping[str, Collection[Dealt]] = {}) -> dict[str, Dealt]:
    """Return the state of the messages of each key with events, by its id.

    This reads all events of the registry, and hashes a million of them in two seconds.

    Args:
        folder: the registry's folder, or a URI.
        published: entries of lists for keys, by their ids. The registry's users are compared with them.

    Raises:
        Refused: the registry's users give another root than a list has. An older registry, or another one, was put
            there.
        ScanFailed: names were erased at every attempt.
    """

    def grown(now: ledger.UsersTable) -> dict[str, Dealt]:
        trees, awaited = defaultdict[str, _Tree](_Tree), _by_place(published)
        for window in now.windows(0, _WINDOW):
            for key_id, record in zip(window["key_id"], _bytes_of(window), strict=True):
                tree = trees[key_id]
                tree.add(record)
                for listed in awaited.pop((key_id, tree.size), ()):
                    if tree.finish()[0] != listed:
                        raise _other_users(key_id, listed)
        for (key_id, _), (listed, *_) in awaited.items():
            raise _other_users(key_id, listed)
        return {key_id: tree.finish()[0] for key_id, tree in trees.items()}

    return ledger.ask_users_table(folder, grown)


def _by_place(published: Mapping[str, Collection[Dealt]]) -> dict[tuple[str, int], set[Dealt]]:
    """Return the entries of lists, by key and number of events."""
    found = defaultdict[tuple[str, int], set[Dealt]](set)
    for key_id, of_key in published.items():
        for listed in of_key:
            found[key_id, listed.events].add(listed)
    return dict(found)


def find_record(folder: Path | str, key_id: str, message: int, published: Sequence[Dealt]) -> DealtRecord | None:
    """Return the record that a message was given. None: it never was, or the user's name was erased.

    Args:
        folder: the registry's folder, or a URI.
        key_id: id of the key.
        message: the message.
        published: entries of lists for the key. The path leads to the first of them that has the record.

    Raises:
        Refused: the registry's users give another root than the list has. They are not the published ones.
        ScanFailed: names were erased at every attempt.
    """

    def found(now: ledger.UsersTable) -> DealtRecord | None:
        place = 0
        for window in _events(now, key_id):
            hits = window.with_row_index("place", place).filter(message=message, event=ALLOCATED).to_dicts()
            if hits:
                (hit,) = hits
                break
            place += window.height
        else:
            return None
        if hit["user_id"] is None:
            return None
        at = microseconds_of(hit["at"])
        own = hit["user_id"], hit["salt"], hit["seq"], at, hit["place"]
        first = min((dealt for dealt in published if dealt.events > hit["place"]), default=None)
        if first is None:
            return DealtRecord(*own, None, ())
        return DealtRecord(*own, first.events, _path(now, key_id, hit["place"], first))

    return ledger.ask_users_table(folder, found)


def microseconds_of(time: datetime) -> int:
    """Return a time with a zone in microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def _path(now: ledger.UsersTable, key_id: str, place: int, published: Dealt) -> tuple[bytes, ...]:
    tree = _Tree(place)
    for window in _events(now, key_id):
        for record in _bytes_of(window.head(published.events - tree.size)):
            tree.add(record)
        if tree.size == published.events:
            break
    dealt, path = tree.finish()
    if dealt != published:
        raise _other_users(key_id, published)
    return path


def _other_users(key_id: str, published: Dealt) -> Refused:
    return Refused(
        f"key {key_id!r}: its first {published.events:,} events have a different root from the one on the list, so "
        "the registry's users are not the published ones: restore them (`brickscan users verify` says more)"
    )


def _events(now: ledger.UsersTable, key_id: str) -> Iterator[pl.DataFrame]:
    return (window.filter(key_id=key_id) for window in now.windows(0, _WINDOW))


def _bytes_of(rows: pl.DataFrame) -> list[bytes]:
    records = records_of(rows)
    held, size = records.tobytes(), records.itemsize
    return [held[i : i + size] for i in range(0, len(held), size)]

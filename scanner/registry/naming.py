"""Whom a message names, as a worker asks it: libraries of tables are loaded only where there are users."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scanner.registry.keys_file import USERS_FOLDER
from scanner.storage.locations import is_uri
from schemas.registry import is_reserved
from schemas.words import Naming

if TYPE_CHECKING:
    from scanner.registry.ledger import UsersSnapshot

Answer = TypeVar("Answer")

_TRIES = 5


class NamedUser(NamedTuple):
    """The user that a message names. naming: why, or why not; held_since: when the message was given, if it was."""

    naming: Naming
    user_id: str | None
    held_since: datetime | None


class Holders:
    """Names users by key and message, as they were when it was loaded.

    Once names are erased or index files merged, it may go on with the newer table.
    """

    def __init__(self, folder: Path | str, key_ids: Sequence[str], users_snapshot: "UsersSnapshot | None") -> None:
        # None: there is no table of users
        self._folder, self._key_ids, self._snapshot = folder, frozenset(key_ids), users_snapshot

    @classmethod
    def load(cls, folder: Path | str, key_ids: Sequence[str]) -> "Holders":
        """Open the users table of a registry; without one, no message is held.

        Raises:
            Refused: the table gives a message to two users, in the part that was read.
        """
        there = is_uri(folder) or Path(folder, USERS_FOLDER).exists()
        return cls(folder, key_ids, _open_users(folder) if there else None)

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """Whom a message names, for a document that existed at `at`, a time with a zone.

        message: 0 to M − 1; at: a time at which the document existed, as far as is known.

        Returns:
            `named` with the user; `reserved` for a message that is never given; `unallocated` when it never was;
            `held_later` when its user got it after `at`, since removed or not; `removed` when its user was removed.

        Raises:
            Refused: the table gives the message to two users.
            ScanFailed: a file of the index is missing.
        """
        if is_reserved(message):
            return NamedUser(Naming.RESERVED, None, None)
        if key_id not in self._key_ids:
            raise KeyError(key_id)
        given = None if self._snapshot is None else self._ask(lambda snapshot: snapshot.find_message(key_id, message))
        if given is None:
            return NamedUser(Naming.UNALLOCATED, None, None)
        since = given.allocated_at
        if since > at:
            return NamedUser(Naming.HELD_LATER, None, since)
        if given.removed:
            return NamedUser(Naming.REMOVED, None, since)
        return NamedUser(Naming.NAMED, given.user_id, since)

    def count(self, key_id: str) -> int:
        """How many messages of a key were ever given."""
        return 0 if self._snapshot is None else self._snapshot.count(key_id)[0]

    def some(self, key_id: str, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Messages that were given, removed since or not: one for each number, uniform where the numbers are.

        Raises:
            ScanFailed: a file of the index is missing.
        """

        def chosen(users_snapshot: "UsersSnapshot") -> NDArray[np.int64]:
            return users_snapshot.nth(key_id, (numbers % np.uint64(users_snapshot.count(key_id)[0])).astype(np.int64))

        return self._ask(chosen)

    def _ask(self, question: "Callable[[UsersSnapshot], Answer]") -> Answer:
        snapshot = self._snapshot or _open_users(self._folder)
        for _ in range(_TRIES):
            try:
                return question(snapshot)
            except FileNotFoundError as error:
                lost = error
                self._snapshot = snapshot = _open_users(self._folder)
        from scanner.registry.index import missing

        raise missing(lost)


def _open_users(folder: Path | str) -> "UsersSnapshot":
    from scanner.registry.ledger import open_users  # late: libraries of tables take 39 MiB of each worker

    return open_users(folder)

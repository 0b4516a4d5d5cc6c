"""Find the user that a message names, from tables that are verified against the users' hash chain.

Without the chain, anybody who can write a registry could exchange two names in it. A scan verifies the chain before and
after its work, so its workers can use `Holders`. All other code uses `VerifiedHolders`.
"""

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from scanner.registry.keys_file import USERS_FOLDER
from scanner.registry.record import NO_RECORD, Record
from scanner.storage.locations import is_uri
from schemas.registry import is_reserved
from schemas.words import Naming

if TYPE_CHECKING:
    from scanner.registry.users_snapshot import GivenMessage, UsersSnapshot

Answer = TypeVar("Answer")

_TRIES = 5


class NamedUser(NamedTuple):
    """The user that a message names.

    naming: the reason why a user is named, or is not.
    user_id: None: no user is named.
    held_since: time at which the message was given. None: it was not given.
    """

    naming: Naming
    user_id: str | None
    held_since: datetime | None


class VerifiedHolders:
    """Names users by key and message as they are now. Every file and event is verified against the users' chain.

    Args:
        folder: the registry's folder, or a URI.
        key_ids: ids of the registry's keys.
        record: record of an earlier verification, from the results of scans. Without it, the chain is followed from its
            start, once, when the first user is to be named.

    Raises:
        Refused: the users table cannot be read.
    """

    def __init__(self, folder: Path | str, key_ids: Sequence[str], record: Record = NO_RECORD) -> None:
        self._folder, self._key_ids, self._record = folder, frozenset(key_ids), record
        if has_users(folder):
            _open_users(folder)

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """Return the user that a message names. See `Holders.naming`.

        Raises:
            Refused: another program than brickscan changed the users, or they are not the users on record.
            ScanFailed: a file of the index is missing.
        """

        def given() -> "GivenMessage | None":
            from scanner.registry.verification import find_verified  # late, as the ledger

            holder, verified = find_verified(self._folder, self._record, key_id, message)
            self._record = Record(verified.checkpoints, self._record.parts | verified.parts)
            return holder

        return _named_user(self._key_ids, key_id, message, at, given)


class Holders:
    """Names users by key and message as they were when it was loaded. It is for workers of a scan that verifies users.

    After names are erased or files of the index are merged, it may continue with the newer table.
    """

    def __init__(
        self,
        folder: Path | str,
        key_ids: Sequence[str],
        users_snapshot: "UsersSnapshot | None",
        reopen: "Callable[[], UsersSnapshot] | None" = None,
    ) -> None:
        # users_snapshot: None: there is no table of users. reopen: opens the newer table, unverified by default
        self._folder, self._key_ids, self._snapshot = folder, frozenset(key_ids), users_snapshot
        self._reopen = reopen or functools.partial(_open_users, folder)

    @classmethod
    def load(cls, folder: Path | str, key_ids: Sequence[str]) -> "Holders":
        """Open the users table of a registry. Without a table, no message is held.

        Raises:
            Refused: the table gives a message to two users, in the part that was read.
        """
        return cls(folder, key_ids, _open_users(folder) if has_users(folder) else None)

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """Return the user that a message names, for a document that existed at a time.

        Args:
            key_id: id of the key.
            message: 0 to M − 1.
            at: a time, with a zone, at which the document existed as far as is known.

        Returns:
            One of these:
            `named`, with the user;
            `reserved`: the message is never given;
            `unallocated`: the message was never given;
            `held_later`: its user got it after `at`, and may have been removed since;
            `removed`: its user was removed.

        Raises:
            Refused: the table gives the message to two users.
            ScanFailed: a file of the index is missing.
            KeyError: the key is none of `key_ids`.
        """

        def given() -> "GivenMessage | None":
            return None if self._snapshot is None else self._ask(lambda users: users.find_message(key_id, message))

        return _named_user(self._key_ids, key_id, message, at, given)

    def _ask(self, question: "Callable[[UsersSnapshot], Answer]") -> Answer:
        snapshot = self._snapshot or self._reopen()
        for _ in range(_TRIES):
            try:
                return question(snapshot)
            except FileNotFoundError as error:
                fault = error
                self._snapshot = snapshot = self._reopen()
        from scanner.registry.index import missing

        raise missing(fault)


def has_users(folder: Path | str) -> bool:
    """Return whether a registry may have a table of users."""
    return is_uri(folder) or Path(folder, USERS_FOLDER).exists()


def _named_user(
    key_ids: frozenset[str], key_id: str, message: int, text_time: datetime, given: "Callable[[], GivenMessage | None]"
) -> NamedUser:
    if is_reserved(message):
        return NamedUser(Naming.RESERVED, None, None)
    if key_id not in key_ids:
        raise KeyError(key_id)
    holder = given()
    if holder is None:
        return NamedUser(Naming.UNALLOCATED, None, None)
    since = holder.allocated_at
    if since > text_time:
        return NamedUser(Naming.HELD_LATER, None, since)
    if holder.removed:
        return NamedUser(Naming.REMOVED, None, since)
    return NamedUser(Naming.NAMED, holder.user_id, since)


def _open_users(folder: Path | str) -> "UsersSnapshot":
    from scanner.registry.ledger import open_users  # late: libraries of tables take 39 MiB of each worker

    return open_users(folder)

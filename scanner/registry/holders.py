"""Who holds a message: workers name users by it. It reads only the answers, whatever the number of users."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scanner.registry.events import missing
from scanner.registry.ledger import open_book
from scanner.registry.snapshot import Book, Given
from schemas.registry import is_reserved
from schemas.words import Naming

Answer = TypeVar("Answer")

_TRIES = 5


class Named(NamedTuple):
    """The user that a message names. naming: why, or why not; held_since: when the message was given, if it was."""

    naming: Naming
    user_id: str | None
    held_since: datetime | None


class Holders:
    """Names users by key and message, as they were when it was loaded.

    Once names are erased or index files merged, it may go on with the newer table.
    """

    def __init__(self, folder: Path | str, key_ids: Sequence[str], book: Book) -> None:
        self._folder, self._key_ids, self._book = folder, frozenset(key_ids), book

    @classmethod
    def load(cls, folder: Path | str, key_ids: Sequence[str]) -> "Holders":
        """Open the users table of a registry; without one, no message is held.

        Raises:
            Refused: the table gives a message to two users, in the part that was read.
        """
        return cls(folder, key_ids, open_book(folder))

    def naming(self, key_id: str, message: int, at: datetime) -> Named:
        """Whom a message names, for a document that existed at `at`, a time with a zone.

        Args:
            key_id: one of the keys that were loaded (KeyError otherwise).
            message: 0 to M − 1.
            at: a time at which the document existed, as far as is known.

        Returns:
            `named` with the user; `reserved` for a message that is never given; `unallocated` when it never was;
            `held_later` when its user got it after `at`, since removed or not; `removed` when its user was removed.

        Raises:
            Refused: the table gives the message to two users.
            ScanFailed: a file of the index is missing.
        """
        if is_reserved(message):
            return Named(Naming.RESERVED, None, None)
        if key_id not in self._key_ids:
            raise KeyError(key_id)
        given = self._given(key_id, message)
        if given is None:
            return Named(Naming.UNALLOCATED, None, None)
        since = given.allocated_at
        if since > at:
            return Named(Naming.HELD_LATER, None, since)
        if given.removed:
            return Named(Naming.REMOVED, None, since)
        return Named(Naming.NAMED, given.user_id, since)

    def count(self, key_id: str) -> int:
        """How many messages of a key were ever given."""
        return self._book.count(key_id)[0]

    def some(self, key_id: str, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Messages that were given, removed since or not: one for each number, uniform where the numbers are.

        Raises:
            ScanFailed: a file of the index is missing.
        """

        def chosen(book: Book) -> NDArray[np.int64]:
            return book.nth(key_id, (numbers % np.uint64(book.count(key_id)[0])).astype(np.int64))

        return self._ask(chosen)

    def _given(self, key_id: str, message: int) -> Given | None:
        return self._ask(lambda book: book.one(key_id, message))

    def _ask(self, question: Callable[[Book], Answer]) -> Answer:
        for _ in range(_TRIES):
            try:
                return question(self._book)
            except FileNotFoundError as error:
                lost = error
                self._book = open_book(self._folder)
        raise missing(lost)

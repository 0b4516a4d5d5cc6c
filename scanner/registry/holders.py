"""Who holds a message: what a worker keeps in memory to name users, some 50 bytes a user."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.registry import ledger
from scanner.registry.users import given_messages
from schemas.registry import is_reserved
from schemas.words import Naming

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class _OfKey(NamedTuple):
    """The U messages of one key that were ever given, ascending; `allocated` is in microseconds since 1970."""

    message: NDArray[np.int64]
    allocated: NDArray[np.int64]
    removed: NDArray[np.bool_]
    user_id: pl.Series


class Named(NamedTuple):
    """Whom a message names. naming: why, or why not; held_since: when the message was given, if it was."""

    naming: Naming
    user_id: str | None
    held_since: datetime | None


class Holders:
    """Names users by key and message, as they were when it was loaded."""

    def __init__(self, of_key: dict[str, _OfKey]) -> None:
        self._of_key = of_key

    @classmethod
    def load(cls, folder: Path | str, key_ids: Sequence[str]) -> "Holders":
        """Read the users table of a registry; without one, no message is held.

        Raises:
            Refused: the table gives a message to two users.
        """
        events = ledger.read_events(folder).filter(pl.col("key_id").is_in(list(key_ids)))
        rows = given_messages(events)
        return cls({key_id: _of_key(rows.filter(pl.col("key_id") == key_id)) for key_id in key_ids})

    def naming(self, key_id: str, message: int, at: datetime) -> Named:
        """Whom a message names, for a document that existed at `at`, a time with a zone.

        Args:
            key_id: one of the keys that were loaded (KeyError otherwise).
            message: 0 to M − 1.
            at: when the document existed, by all that is known.

        Returns:
            `named` with the user; `reserved` for a message that is never given; `unallocated` when it never was;
            `held_later` when its user got it after `at`, since removed or not; `removed` when its user was removed.
        """
        if is_reserved(message):
            return Named(Naming.RESERVED, None, None)
        given = self._of_key[key_id]
        i = int(np.searchsorted(given.message, message))
        if i == len(given.message) or given.message[i] != message:
            return Named(Naming.UNALLOCATED, None, None)
        since = _EPOCH + int(given.allocated[i]) * _MICROSECOND
        if since > at:
            return Named(Naming.HELD_LATER, None, since)
        if given.removed[i]:
            return Named(Naming.REMOVED, None, since)
        return Named(Naming.NAMED, given.user_id[i], since)


def _of_key(rows: pl.DataFrame) -> _OfKey:
    return _OfKey(
        rows["message"].to_numpy(),
        rows["allocated_at"].to_physical().to_numpy(),
        rows["removed_at"].is_not_null().to_numpy(),
        rows["user_id"].rechunk(),
    )

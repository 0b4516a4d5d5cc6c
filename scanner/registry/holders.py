"""Answer questions to a users table, such as who holds a message, and read only as much as the answer needs."""

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from scanner.registry import ledger
from scanner.registry.keys_file import find_key, load_registry
from scanner.registry.sorted_files import BELOW_ALL_VALUES, LARGEST_VALUE
from scanner.registry.users_snapshot import UsersSnapshot
from schemas.tables import USER_LIST

_LISTED = USER_LIST.names
_HEAD = re.compile("[0-9a-f]{64}")
_GIVEN_AT = ["key_id", "message", "allocated_at"]


def _nobody() -> pl.DataFrame:
    """Return an empty table.

    It is made only when needed: Arrow's first allocation maps a GiB, which counts as this process's memory.
    """
    return pl.DataFrame(schema=pl.Schema(USER_LIST))


class WantedUsers(NamedTuple):
    """A filter for messages that were given. A field that is None excludes nothing.

    key_ids: ids of keys.
    after: only rows after this key and message.
    removed: True: removed messages. False: held ones.
    begins: beginning of the user ids.
    since: earliest allocated_at.
    until: allocated_at is before this time.
    """

    key_ids: Sequence[str] | None = None
    after: tuple[str, int] | None = None
    removed: bool | None = None
    begins: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def condition(self) -> pl.Expr:
        """Return the condition on rows of `list_users`, except for keys and place."""
        conditions = [pl.lit(value=True)]
        if self.removed is not None:
            conditions.append(pl.col("removed_at").is_not_null() == self.removed)
        if self.begins is not None:
            conditions.append(pl.col("user_id").str.starts_with(self.begins).fill_null(value=False))
        if self.since is not None:
            conditions.append(pl.col("allocated_at") >= self.since)
        if self.until is not None:
            conditions.append(pl.col("allocated_at") < self.until)
        return pl.all_horizontal(conditions)


def list_users(folder: Path | str, key_ids: Sequence[str] | None = None) -> pl.DataFrame:
    """Return one row per message that was ever given, in order of key and message. Each takes some 100 bytes of memory.

    Columns: schemas.tables.USER_LIST.

    Raises:
        Refused: there is no such registry or key, or the table gives a message twice.
    """
    _refuse_unknown(folder, key_ids)

    def listed(users_snapshot: UsersSnapshot) -> pl.DataFrame:
        ids = users_snapshot.key_ids if key_ids is None else sorted(set(key_ids))
        return pl.concat([_nobody(), *(users_snapshot.between(key_id).select(_LISTED) for key_id in ids)])

    return ledger.ask(folder, listed)


def pages(folder: Path | str, query: WantedUsers) -> Iterator[pl.DataFrame]:
    """Yield the rows of `list_users` that fit a query, in the same order, from some 100,000 rows at a time.

    Users who are added at the same time may be among them.

    Raises:
        Refused: there is no such registry or key, or the table gives a message twice.
    """
    _refuse_unknown(folder, query.key_ids)
    for key_id in (
        ledger.ask(folder, lambda users_snapshot: users_snapshot.key_ids)
        if query.key_ids is None
        else sorted(query.key_ids)
    ):
        if query.after is not None and key_id < query.after[0]:
            continue
        low = query.after[1] if query.after is not None and key_id == query.after[0] else BELOW_ALL_VALUES
        while low < LARGEST_VALUE:
            rows, low = _page(folder, key_id, low)
            yield rows.select(_LISTED).filter(query.condition())


def _page(folder: Path | str, key_id: str, low: int) -> tuple[pl.DataFrame, int]:
    """Return rows of messages above `low`, and the last message that was read."""

    def rows_above(users_snapshot: UsersSnapshot) -> tuple[pl.DataFrame, int]:
        high = users_snapshot.page_end(key_id, low)
        return users_snapshot.between(key_id, low, high), high

    return ledger.ask(folder, rows_above)


def users_of(folder: Path | str, user_ids: Sequence[str]) -> pl.DataFrame:
    """Return the rows of `list_users` for these users, without reading the others. Erased users are left out."""
    _refuse_unknown(folder)
    return ledger.ask(folder, lambda users_snapshot: users_snapshot.rows_of_users(user_ids)).select(_LISTED)


def unknown_users(folder: Path | str, user_ids: Sequence[str]) -> list[str]:
    """Return the users whom the registry never knew, or whose name was erased."""
    recorded_users = set(users_of(folder, user_ids)["user_id"])
    return [user_id for user_id in user_ids if user_id not in recorded_users]


def messages_held(folder: Path | str, key_id: str, user_ids: Sequence[str]) -> dict[str, int]:
    """Return the message of a key that each of these users holds. Users without one are left out."""
    _refuse_unknown(folder, [key_id])
    rows = ledger.ask(folder, lambda users_snapshot: users_snapshot.rows_of_users(user_ids, [key_id])).filter(
        pl.col("removed_at").is_null()
    )
    return dict(rows.select("user_id", "message").iter_rows())


def given_at(folder: Path | str, messages: pl.DataFrame) -> pl.DataFrame:
    """Return when messages were given. Messages that were never given are left out.

    Args:
        folder: the registry's folder, or a URI.
        messages: distinct rows of key_id and message.
    """
    return given_rows(folder, messages).select(_GIVEN_AT)


def given_rows(folder: Path | str, messages: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `list_users` for distinct rows of key_id and message, with the numbers of their events.

    Columns: as there, and seq and removed_seq, int64. They are null if there is no event or no chain.

    Raises:
        Refused: the table gives a message twice.
    """

    def rows(users_snapshot: UsersSnapshot) -> pl.DataFrame:
        parts = messages.group_by("key_id")
        given = (users_snapshot.rows_of_messages(str(key_id), part["message"].to_numpy()) for (key_id,), part in parts)
        return pl.concat([users_snapshot.rows_of_messages("", np.zeros(0, np.int64)), *given])

    return ledger.ask(folder, rows)


def numbers_of_heads(folder: Path | str, heads: Collection[str]) -> dict[str, int]:
    """Return the number of the event after which the chain had each of these heads, as hex text.

    Heads that it never had are left out. This reads one column of the events, which is null except for one event of
    each block.
    """
    digests = [bytes.fromhex(head) for head in heads if _HEAD.fullmatch(head)]
    return ledger.numbers_of_heads(folder, digests) if digests else {}


def head_of(folder: Path | str) -> str | None:
    """Return the head of the users table's hash chain, as hex text.

    None: no user was ever added, or there is no chain.
    """
    users_snapshot = ledger.open_users(folder)
    return users_snapshot.head.hex() if users_snapshot.head is not None and users_snapshot.events else None


def _refuse_unknown(folder: Path | str, key_ids: Sequence[str] | None = None) -> None:
    registry = load_registry(folder)
    for key_id in key_ids or ():
        find_key(registry, key_id)

"""Users and their messages: given at random, never twice, never changed; withdrawn without being given again."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.normalise import skeleton
from scanner.registry import ledger
from scanner.registry.keys import find_key, load_registry
from scanner.registry.ledger import ALLOCATED, REMOVED
from schemas.registry import RESERVED_EVERY, MasterKey, is_reserved, reserved_count
from schemas.tables import USERS

MAX_ID = 256
"""Characters of a user's id: they stand in every verdict that names the user."""

COMPARED = 1_000_000
"""Users of a registry up to which new ones are compared with all of them."""


class Allocation(NamedTuple):
    """What adding users did under one key: how many got a message, how many had one, how many messages are left."""

    key_id: str
    added: int
    kept: int
    left: int


def list_users(folder: Path | str, key_ids: Sequence[str] | None = None) -> pl.DataFrame:
    """One row per message that was ever given, in order of key and message.

    Columns: user_id (null once erased), key_id, message, allocated_at, removed_at (null while it is held).

    Raises:
        Refused: there is no such registry or key.
    """
    registry = load_registry(folder)
    for key_id in key_ids or ():
        find_key(registry, key_id)
    rows = given_messages(ledger.read_events(folder))
    return rows if key_ids is None else rows.filter(pl.col("key_id").is_in(list(key_ids)))


def given_messages(events: pl.DataFrame) -> pl.DataFrame:
    """The events as rows of `list_users`: each (key_id, message) once.

    Raises:
        Refused: a message was given twice, which no command of brickscan does; nobody may be named from such a table.
    """
    message = ["key_id", "message"]
    removed = events.filter(pl.col("event") == REMOVED).select(*message, removed_at="at")
    rows = events.filter(pl.col("event") == ALLOCATED).select("user_id", *message, allocated_at="at")
    rows = rows.join(removed, on=message, how="left").sort(message)
    twice = rows.filter(rows.select(message).is_duplicated())
    if twice.height:
        key_id, number = twice.select(message).row(0)
        raise Refused(f"users table: message {number} of key {key_id!r} was given or removed twice; restore the table")
    return rows


def add_users(
    folder: Path | str,
    key_ids: Sequence[str] | None,
    user_ids: Sequence[str | None] | pl.Series,
    at: datetime | None = None,
) -> list[Allocation]:
    """Give each user a random free message under each key; one that holds a message already keeps it.

    Args:
        folder: of the registry.
        key_ids: keys to give messages of; None for every key of several messages that is not retired, those to come
            included.
        user_ids: names; one that stands twice counts once.
        at: time of the allocation, with a time zone; now by default.

    Raises:
        Refused: an empty name, one of more than MAX_ID characters, a key that is unknown or retired or has one message,
            or too few free messages; nothing was written then.
    """
    keys = _marking_keys(folder, key_ids)
    users = _checked_users(user_ids)
    time = at or datetime.now(UTC)

    def decide(events: pl.DataFrame) -> tuple[pl.DataFrame, list[Allocation]]:
        rows = given_messages(events)
        parts = [_allocate(key, rows.filter(pl.col("key_id") == key.key_id), users) for key in keys]
        new = pl.concat(part for part, _ in parts)
        return _as_events(new, ALLOCATED, time), [done for _, done in parts]

    return ledger.append(folder, decide)


def look_alikes(folder: Path | str, user_ids: Sequence[str | None] | pl.Series) -> list[tuple[str, str]]:
    """Users to be added, each with another one, known or among them, that looks the same (scanner.normalise.skeleton).

    Where more than COMPARED are known, with those to be added alone. Raises Refused as `add_users` does.
    """
    users = set(_checked_users(user_ids)["user_id"])
    known = set(list_users(folder)["user_id"].drop_nulls())
    new = users - known
    others = new | known if len(known) <= COMPARED else new
    looks = {skeleton(name) for name in new}
    by_look: dict[str, list[str]] = {}
    for name in sorted(others):
        look = skeleton(name)
        if look in looks:
            by_look.setdefault(look, []).append(name)
    alike = (names for names in by_look.values() if len(names) > 1)
    return [(name, next(other for other in names if other != name)) for names in alike for name in names if name in new]


def remove_users(folder: Path | str, user_ids: Sequence[str], at: datetime | None = None) -> int:
    """Withdraw every message that the users hold; returns how many. The messages are never given again.

    Raises:
        Refused: a user whom the registry never knew or whose name was erased; nothing was written then.
    """
    load_registry(folder)
    time = at or datetime.now(UTC)

    def decide(events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        rows = given_messages(events)
        unknown = _unknown(rows, user_ids)
        if unknown:
            raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
        held = rows.filter(pl.col("user_id").is_in(list(user_ids)), pl.col("removed_at").is_null())
        return _as_events(held, REMOVED, time), held.height

    return ledger.append(folder, decide)


def unknown_users(folder: Path | str, user_ids: Sequence[str]) -> list[str]:
    """Those of the users whom the registry never knew, or whose name was erased."""
    return _unknown(list_users(folder), user_ids)


def erase_users(folder: Path | str, user_ids: Sequence[str]) -> int:
    """Take the users' names out of the registry for good; returns rows changed. Their messages stay removed.

    Raises:
        Refused: a user still holds a message: remove the user first.
    """

    def choose(events: pl.DataFrame) -> pl.DataFrame:
        rows = given_messages(events).filter(pl.col("user_id").is_in(list(user_ids)))
        held = rows.filter(pl.col("removed_at").is_null())
        if held.height:
            raise Refused(f"user {held['user_id'][0]!r} still holds a message; remove the user before erasing the name")
        return rows.select("key_id", "message")

    load_registry(folder)
    return ledger.erase_names(folder, choose)


def restore_users(folder: Path | str, events: pa.Table) -> None:
    """Lay events of schemas.tables.USERS, kept from another copy of the registry, into this one as they are.

    Raises:
        Refused: they are not such events, or name a key or message that this registry does not have or has given.
    """
    if not events.schema.equals(USERS):
        raise Refused(f"users to restore: columns are {events.schema.names}; those of schemas.tables.USERS are needed")
    new = pl.DataFrame(pl.from_arrow(events))
    registry = load_registry(folder)
    for (key_id,), part in new.group_by("key_id"):
        limit = find_key(registry, str(key_id)).messages
        wrong = part.filter(is_reserved(pl.col("message")) | ~pl.col("message").is_between(0, limit - 1))["message"]
        if len(wrong):
            raise Refused(f"users to restore: message {wrong[0]} of key {key_id!r} is reserved or not below {limit}")

    def decide(old: pl.DataFrame) -> tuple[pl.DataFrame, None]:
        rows = given_messages(pl.concat([old, new]))
        held = rows.filter(pl.col("removed_at").is_null()).select("key_id", "user_id")
        if rows.height * 2 - rows["removed_at"].null_count() != old.height + new.height or held.is_duplicated().any():
            raise Refused("users to restore: a message is removed that was never given, or a user would hold two")
        return new, None

    ledger.append(folder, decide)


def _allocate(key: MasterKey, rows: pl.DataFrame, users: pl.DataFrame) -> tuple[pl.DataFrame, Allocation]:
    new = users.join(rows.filter(pl.col("removed_at").is_null()), on="user_id", how="anti", maintain_order="left")
    taken = rows.filter(pl.col("message") < key.messages)["message"].to_numpy()
    free = key.messages - reserved_count(key.messages) - len(taken)
    if new.height > free:
        raise Refused(
            f"key {key.key_id!r} has {free} free messages left of {key.messages}, and {new.height} users need one; "
            "nobody was added. Name other keys with --key, or make a key with more messages"
        )
    rng = np.random.default_rng()  # seeded by the operating system
    given = new.with_columns(key_id=pl.lit(key.key_id), message=_draw(taken, free, new.height, rng))
    return given, Allocation(key.key_id, new.height, users.height - new.height, free - new.height)


def _draw(taken: NDArray[np.int64], free: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` of the `free` messages in random order, all equally likely; `taken` (sorted, int64) are not free.

    Messages that are not reserved are numbered through: n is message n + n div 19 (for RESERVED_EVERY = 20).
    """
    numbers = taken - reserved_count(taken)
    free_before = numbers - np.arange(len(numbers))
    ranks = rng.choice(free, size=count, replace=False)
    drawn = ranks + np.searchsorted(free_before, ranks, side="right")
    messages: NDArray[np.int64] = drawn + drawn // (RESERVED_EVERY - 1)
    return messages


def _as_events(rows: pl.DataFrame, event: str, time: datetime) -> pl.DataFrame:
    return rows.select("key_id", "message", "user_id", event=pl.lit(event), at=pl.lit(time.astimezone(UTC)))


def _marking_keys(folder: Path | str, key_ids: Sequence[str] | None) -> list[MasterKey]:
    registry, now = load_registry(folder), datetime.now(UTC)
    if key_ids is None:
        keys = [key for key in registry.keys if not key.has_ended(now) and key.messages > 1]
        if not keys:
            what = "no key that is not retired and has messages for users"
            raise Refused(f"registry {folder}: has {what}; make one with `brickscan keys new`")
        return keys
    keys = [find_key(registry, key_id) for key_id in dict.fromkeys(key_ids)]
    for key in keys:
        if key.has_ended(now):
            raise Refused(f"key {key.key_id!r} is retired: it gives no message any more; name a key that is not")
        if key.messages == 1:
            what = "marks for everybody alike, and whoever held its one message would be named for all of it"
            raise Refused(f"key {key.key_id!r} {what}; name a key of several messages")
    return keys


def _checked_users(user_ids: Sequence[str | None] | pl.Series) -> pl.DataFrame:
    try:
        users = pl.DataFrame({"user_id": user_ids}, schema={"user_id": pl.String})
    except UnicodeEncodeError:
        raise Refused("users: a user id is not valid UTF-8 text") from None
    blank = users["user_id"].fill_null("").str.strip_chars() == ""
    if blank.any():
        raise Refused(f"users: row {int(blank.arg_max() or 0) + 1} has no user id (it is empty); nobody was added")
    long = users["user_id"].str.len_chars() > MAX_ID
    if long.any():
        row = int(long.arg_max() or 0)
        raise Refused(
            f"users: row {row + 1}, {users['user_id'][row][:20]!r}…, has {users['user_id'].str.len_chars()[row]:,} "
            f"characters; {MAX_ID} are allowed; nobody was added"
        )
    return users.unique(maintain_order=True)


def _unknown(rows: pl.DataFrame, user_ids: Sequence[str]) -> list[str]:
    known = set(rows.filter(pl.col("user_id").is_in(list(user_ids)))["user_id"])
    return [user_id for user_id in user_ids if user_id not in known]

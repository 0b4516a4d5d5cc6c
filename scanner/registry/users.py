"""Give messages to users: at random, each message once, and never again after it was withdrawn. Canaries get some too.

Free messages are drawn without reading the taken ones. Canaries are made-up users with messages of their own. The
serving side marks texts for them every night.
"""

import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.printable import skeleton
from scanner.registry import ledger
from scanner.registry.clock import now_for
from scanner.registry.holders import messages_held
from scanner.registry.index import ALLOCATED, REMOVED_EVENT
from scanner.registry.keys import TRIAL_BEGAN, refuse_real_name
from scanner.registry.keys_file import change_registry, find_key, load_registry
from scanner.registry.sorted_files import Ints
from scanner.registry.users_snapshot import UsersSnapshot
from schemas.registry import (
    CANARY_ID,
    MAX_MESSAGES,
    RESERVED_EVERY,
    Canaries,
    Canary,
    CanaryStrength,
    MasterKey,
    Registry,
    is_reserved,
    reserved_count,
)
from schemas.tables import USER_EVENTS, USERS


def draw(users_snapshot: UsersSnapshot, key: MasterKey, free: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` of a key's `free` messages, in random order. All choices and orders are equally likely."""
    if 2 * free >= key.messages and 2 * count <= free:  # at least every fourth draw succeeds
        return _drawn_by_trial(
            lambda messages: ~users_snapshot.is_given(key.key_id, messages), key.messages, count, rng
        )
    return _drawn_by_rank(lambda messages: users_snapshot.given_up_to(key.key_id, messages), free, count, rng)


def _drawn_by_trial(
    is_free: Callable[[Ints], NDArray[np.bool_]], messages: int, count: int, rng: np.random.Generator
) -> Ints:
    """Draw from all messages that are not reserved until enough are free. Taken and repeated ones are drawn again."""
    drawn = np.zeros(0, np.int64)
    while len(drawn) < count:
        # only twice as many as needed: each candidate may open one more part of every run
        candidates = _message(rng.integers(0, messages - reserved_count(messages), size=2 * (count - len(drawn))))
        candidates = candidates[is_free(candidates)]
        messages_in_order = np.concatenate([drawn, candidates])
        drawn = messages_in_order[np.sort(np.unique(messages_in_order, return_index=True)[1])]
    return drawn[:count]


def _drawn_by_rank(taken_up_to: Callable[[Ints], Ints], free: int, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` ranks among `free` messages.

    Find each message by bisection over the number of taken messages below it.
    """
    ranks = rng.choice(free, size=count, replace=False)
    # bisect over message numbers for the first one with more than `rank` free messages up to it; that one is free
    low, high = ranks, ranks + int(taken_up_to(np.array([MAX_MESSAGES]))[0])
    while (low < high).any():
        middle = (low + high) // 2
        enough = middle + 1 - taken_up_to(_message(middle)) > ranks
        low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
    return _message(low)


def _message(number: Ints) -> Ints:
    """Return the n-th messages that are not reserved, for numbers n: message n + n div 19 (for RESERVED_EVERY = 20)."""
    messages: Ints = number + number // (RESERVED_EVERY - 1)
    return messages


MAX_ID = 256
"""Most characters of a user's id. Every verdict that names the user contains the id."""

MOST_USERS_COMPARED = 1_000_000
"""Largest number of users of a registry with whom new users are compared."""


class Allocation(NamedTuple):
    """The result of adding users under one key."""

    key_id: str
    added: int
    """Number of users who got a message."""
    kept: int
    """Number of users who already had a message, and keep it."""
    left: int
    """Number of free messages that are left."""


def add_users(
    folder: Path | str,
    key_ids: Sequence[str] | None,
    user_ids: Sequence[str | None] | pl.Series,
    at: datetime | None = None,
) -> list[Allocation]:
    """Give each user a random free message under each key. Users who hold a message already keep it.

    Args:
        folder: the registry's folder.
        key_ids: keys whose messages are given. None: every key of several messages that is not retired, including
            keys that are not active yet.
        user_ids: names. A repeated name counts once.
        at: time of the allocation, with a time zone. None: now. In a trial it is always TRIAL_BEGAN.

    Raises:
        Refused: a name is empty, longer than MAX_ID characters or like a canary's. Or a key is unknown or retired,
            or has one message or too few free messages. Or the clock is before the registry's last event. Nothing
            was written.
    """
    users = _checked_users(user_ids)
    _refuse_canaries(users)
    return give_messages(folder, key_ids, users["user_id"], at)


def _refuse_canaries(users: pl.DataFrame) -> None:
    """Raise Refused for a user who would be mistaken for a canary, because lists of flags leave canaries out."""
    like = users["user_id"].str.strip_chars().str.to_lowercase().str.contains(CANARY_ID)
    if like.any():
        name = users["user_id"][int(like.arg_max() or 0)]
        raise Refused(
            f"users: {name!r} looks like a canary's id (canary- and 16 digits), so people would take its flags for "
            "tests; no user was added. Give another id; `brickscan canaries` makes canaries"
        )


def give_messages(
    folder: Path | str,
    key_ids: Sequence[str] | None,
    user_ids: Sequence[str | None] | pl.Series,
    at: datetime | None = None,
) -> list[Allocation]:
    """Give messages to users as `add_users` does, and also to canaries, whose ids are not allowed for users."""
    keys = _marking_keys(folder, key_ids)
    users = _checked_users(user_ids)
    registry = load_registry(folder)
    if registry.trial:
        at = TRIAL_BEGAN
        for name in users["user_id"]:
            refuse_real_name("user", name)

    def decide(users_snapshot: UsersSnapshot) -> tuple[pl.DataFrame, list[Allocation]]:
        parts = [_allocate(key, users_snapshot, users) for key in keys]
        new = pl.concat(part for part, _ in parts)
        time = at or now_for(registry, users_snapshot.last_at)
        return _as_events(new, ALLOCATED, time), [allocation for _, allocation in parts]

    return ledger.append(folder, decide)


def look_alikes(folder: Path | str, user_ids: Sequence[str | None] | pl.Series) -> list[tuple[str, str]]:
    """Return new users that look the same as another user, known or new (scanner.printable.skeleton).

    If more than MOST_USERS_COMPARED users are known, the new users are only compared with each other. Raises Refused as
    `add_users` does.

    Returns:
        Pairs: a new user, and the first other user that looks the same.
    """
    users = _checked_users(user_ids)["user_id"]
    load_registry(folder)
    new, names_compared = ledger.ask(folder, lambda users_snapshot: _compared(users_snapshot, users))
    skeletons = {skeleton(name) for name in new}
    by_skeleton: dict[str, list[str]] = {}
    for name in sorted(_candidates(names_compared, skeletons)):
        shape = skeleton(name)
        if shape in skeletons:
            by_skeleton.setdefault(shape, []).append(name)
    groups = (names for names in by_skeleton.values() if len(names) > 1)
    return [
        (name, next(other for other in names if other != name)) for names in groups for name in names if name in new
    ]


def _compared(users_snapshot: UsersSnapshot, users: pl.Series) -> tuple[set[str], pl.Series]:
    """Return the new users, and all users that they are compared with."""
    if any(users_snapshot.count(key_id)[0] > MOST_USERS_COMPARED for key_id in users_snapshot.key_ids):
        new = set(users) - set(users_snapshot.rows_of_users(users)["user_id"])
        return new, pl.Series(sorted(new), dtype=pl.String)
    names = [users_snapshot.between(key_id)["user_id"].drop_nulls() for key_id in users_snapshot.key_ids]
    recorded_users = pl.concat([users.clear(), *names]).unique()
    new = set(users.filter(~users.is_in(recorded_users.implode())))
    return new, pl.concat([recorded_users, pl.Series(sorted(new), dtype=pl.String)])


def _candidates(names: pl.Series, skeletons: Collection[str]) -> pl.Series:
    """Return the names that may look like one of `skeletons`. Most names are ASCII, and ruled out quickly."""
    plain = names.str.contains(r"^[ -~]*$")
    shape = names.str.to_lowercase().str.replace_all(" +", " ").str.strip_chars(" ")
    return names.filter(~plain | shape.is_in(pl.Series(list(skeletons), dtype=pl.String).implode()))


def remove_users(folder: Path | str, user_ids: Sequence[str], at: datetime | None = None) -> int:
    """Withdraw every message that the users hold, and return their number. These messages are never given again.

    Raises:
        Refused: the registry never knew a user, or the user's name was erased. Nothing was written.
    """
    registry = load_registry(folder)

    def decide(users_snapshot: UsersSnapshot) -> tuple[pl.DataFrame, int]:
        time = at or now_for(registry, users_snapshot.last_at)
        rows = users_snapshot.rows_of_users(user_ids)
        unknown = _unknown(rows, user_ids)
        if unknown:
            raise Refused(f"user {unknown[0]!r} holds no message in this registry; see `brickscan users list`")
        held = rows.filter(pl.col("removed_at").is_null())
        return _as_events(held, REMOVED_EVENT, time), held.height

    return ledger.append(folder, decide)


def erase_users(folder: Path | str, user_ids: Sequence[str]) -> int:
    """Erase the users' names from the registry for good, and return the number of changed rows.

    Their messages stay removed.

    Raises:
        Refused: a user still holds a message. Remove the user first.
    """

    def choose(users_snapshot: UsersSnapshot) -> pl.DataFrame:
        rows = users_snapshot.rows_of_users(user_ids)
        held = rows.filter(pl.col("removed_at").is_null())
        if held.height:
            raise Refused(f"user {held['user_id'][0]!r} still holds a message; remove the user before erasing the name")
        return rows

    load_registry(folder)
    return ledger.erase_names(folder, choose)


def restore_users(folder: Path | str, events: pa.Table) -> None:
    """Append events of schemas.tables.USER_EVENTS from another copy of the registry, unchanged.

    Other columns of USERS are left out, because the events get a new place in this registry's own hash chain.

    Raises:
        Refused: they are no such events. Or they name a key or message that this registry does not have, or a message
            that it has already given.
    """
    if not events.schema.equals(USER_EVENTS) and not events.schema.equals(USERS):
        fault = f"columns are {events.schema.names}; the columns of schemas.tables.USER_EVENTS are needed"
        raise Refused(f"users to restore: {fault}")
    new = pl.DataFrame(pl.from_arrow(events.select(USER_EVENTS.names)))
    registry = load_registry(folder)
    for (key_id,), part in new.group_by("key_id"):
        limit = find_key(registry, str(key_id)).messages
        wrong = part.filter(is_reserved(pl.col("message")) | ~pl.col("message").is_between(0, limit - 1))["message"]
        if len(wrong):
            raise Refused(f"users to restore: message {wrong[0]} of key {key_id!r} is reserved or not below {limit}")

    def decide(users_snapshot: UsersSnapshot) -> tuple[pl.DataFrame, None]:
        _refuse_unfitting(users_snapshot, new)
        return new, None

    ledger.append(folder, decide)


def _refuse_unfitting(users_snapshot: UsersSnapshot, new: pl.DataFrame) -> None:
    """Raise Refused unless existing and new events, of the same messages and users, make sense together."""
    frames = [users_snapshot.rows_of_users(new["user_id"].drop_nulls().unique())]
    for (key_id,), part in new.group_by("key_id"):
        frames.append(users_snapshot.rows_of_messages(str(key_id), part["message"].to_numpy()))
    rows = pl.concat(frames).unique()
    removals = rows.filter(pl.col("removed_at").is_not_null())
    old = [_as_events(rows, ALLOCATED), _as_events(removals, REMOVED_EVENT)]
    messages = given_messages(pl.concat([*old, new]))
    held = messages.filter(pl.col("removed_at").is_null()).select("key_id", "user_id")
    events = rows.height + removals.height + new.height
    if messages.height * 2 - messages["removed_at"].null_count() != events or held.is_duplicated().any():
        raise Refused("users to restore: a message is removed that was never given, or a user would have two")


def given_messages(events: pl.DataFrame) -> pl.DataFrame:
    """Return events as rows of `list_users`, each (key_id, message) once.

    Raises:
        Refused: a message was given or removed twice. No command of brickscan does this, so the table may name no user.
    """
    message = ["key_id", "message"]
    removals = events.filter(pl.col("event") == REMOVED_EVENT).select(*message, removed_at="at")
    rows = events.filter(pl.col("event") == ALLOCATED).select("user_id", *message, allocated_at="at")
    rows = rows.join(removals, on=message, how="left").sort(message)
    duplicates = rows.filter(rows.select(message).is_duplicated())
    if duplicates.height:
        key_id, number = duplicates.select(message).row(0)
        raise Refused(f"users table: message {number} of key {key_id!r} was given or removed twice; restore the table")
    return rows


def _allocate(key: MasterKey, users_snapshot: UsersSnapshot, users: pl.DataFrame) -> tuple[pl.DataFrame, Allocation]:
    held = users_snapshot.rows_of_users(users["user_id"], [key.key_id]).filter(pl.col("removed_at").is_null())
    new = users.join(held, on="user_id", how="anti", maintain_order="left")
    given_before = int(users_snapshot.given_up_to(key.key_id, np.array([key.messages - 1]))[0])
    free = key.messages - reserved_count(key.messages) - given_before
    if new.height > free:
        raise Refused(
            f"key {key.key_id!r} has {free} free messages left of {key.messages}, and {new.height} users need one; no "
            "user was added. Name other keys with --key, or make a key with more messages"
        )
    rng = np.random.default_rng()  # seeded by the operating system
    given = new.with_columns(key_id=pl.lit(key.key_id), message=draw(users_snapshot, key, free, new.height, rng))
    return given, Allocation(key.key_id, new.height, users.height - new.height, free - new.height)


def _as_events(rows: pl.DataFrame, event: str, time: datetime | None = None) -> pl.DataFrame:
    """Return rows as events, all at one time. None: each at the time in its row."""
    times = pl.lit(time.astimezone(UTC)) if time else pl.col("allocated_at" if event == ALLOCATED else "removed_at")
    return rows.select("key_id", "message", "user_id", event=pl.lit(event), at=times.cast(pl.Datetime("us", "UTC")))


def _marking_keys(folder: Path | str, key_ids: Sequence[str] | None) -> list[MasterKey]:
    registry, now = load_registry(folder), datetime.now(UTC)
    if key_ids is None:
        of_users = [key for key in registry.keys if key.messages > 1 and not key.has_ended(now)]
        keys = [key for key in of_users if not key.waits_for_beacon]
        if of_users and not keys:
            _refuse_waiting(of_users[0])
        if not keys:
            fault = "has no key that is not retired and has messages for users"
            raise Refused(f"registry {folder}: {fault}; make one with `brickscan keys new`")
        return keys
    keys = [find_key(registry, key_id) for key_id in dict.fromkeys(key_ids)]
    for key in keys:
        if key.has_ended(now):
            raise Refused(f"key {key.key_id!r} is retired and gives no more messages; name a key that is not retired")
        _refuse_waiting(key)
        if key.messages == 1:
            fault = (
                "marks for everybody alike, and the one user with its only message would be named for all marked text"
            )
            raise Refused(f"key {key.key_id!r} {fault}; name a key with several messages")
    return keys


def _refuse_waiting(key: MasterKey) -> None:
    """Refuse a key without its beacon's value. Claims are accepted only if it was set before the name was given."""
    if key.waits_for_beacon:
        raise Refused(
            f"key {key.key_id!r} waits for the beacon that its record names, and can give messages once `brickscan "
            "keys beacon` has set its value"
        )


def _checked_users(user_ids: Sequence[str | None] | pl.Series) -> pl.DataFrame:
    try:
        users = pl.DataFrame({"user_id": user_ids}, schema={"user_id": pl.String})
    except UnicodeEncodeError:
        raise Refused("users: a user id is not valid UTF-8 text") from None
    blank = users["user_id"].fill_null("").str.strip_chars() == ""
    if blank.any():
        raise Refused(f"users: row {int(blank.arg_max() or 0) + 1} has no user id (it is empty); no user was added")
    long = users["user_id"].str.len_chars() > MAX_ID
    if long.any():
        row = int(long.arg_max() or 0)
        raise Refused(
            f"users: row {row + 1}, {users['user_id'][row][:20]!r}…, has {users['user_id'].str.len_chars()[row]:,} "
            f"characters; {MAX_ID} are allowed; no user was added"
        )
    return users.unique(maintain_order=True)


def _unknown(rows: pl.DataFrame, user_ids: Sequence[str]) -> list[str]:
    recorded_users = set(rows.filter(pl.col("user_id").is_in(list(user_ids)))["user_id"])
    return [user_id for user_id in user_ids if user_id not in recorded_users]


def make_canaries(
    folder: Path | str,
    key_ids: Sequence[str] | None,
    count: int,
    power: float,
    at: datetime | None = None,
    measured: Sequence[CanaryStrength] = (),
) -> Canaries:
    """Make canaries until there are `count`, and give each a message under each key, as to any user.

    Canaries that have a message keep it. Earlier canaries stay on record even when they get no more messages.

    Args:
        folder: the registry's folder.
        key_ids: the keys. None: every key that is not retired.
        count: the wanted number of canaries.
        power: planned share of their texts that are found.
        at: a time with a zone. None: now.
        measured: texts like theirs, from which each scan plans for itself. Empty: scans plan with the power.

    Returns:
        All canaries of the registry.

    Raises:
        Refused: a key is unknown or retired, or has too few free messages.
    """
    registry, now = load_registry(folder), datetime.now(UTC)
    earlier = registry.canaries.made if registry.canaries else ()
    if key_ids is None:
        keys = [key for key in registry.keys if not key.has_ended(now) and not key.waits_for_beacon]
    else:
        keys = [find_key(registry, key_id) for key_id in dict.fromkeys(key_ids)]
    for key in keys:
        if key.has_ended(now):
            raise Refused(f"key {key.key_id!r} is retired: nothing is marked with it; name a key that is not retired")
        _refuse_waiting(key)
    ids = list(dict.fromkeys(canary.account_id for canary in earlier))[:count]
    ids += [f"canary-{secrets.token_hex(8)}" for _ in range(count - len(ids))]
    user_keys = [key.key_id for key in keys if key.messages > 1]
    if user_keys:
        give_messages(folder, user_keys, ids, at)
    canaries = []
    for key in keys:
        held = messages_held(folder, key.key_id, ids) if key.messages > 1 else dict.fromkeys(ids, 0)
        canaries += [
            Canary(account_id=name, key_id=key.key_id, message=held[name], names=key.messages > 1)
            for name in ids
            if name in held
        ]
    return set_canaries(folder, Canaries(power=power, made=tuple(canaries), measured=tuple(measured)))


def set_canaries(folder: Path | str, canaries: Canaries) -> Canaries:
    """Record canaries besides the earlier ones, which stay, and return all. Power and measured texts are the new ones.

    Raises:
        Refused: there is no registry.
    """

    def recorded(registry: Registry) -> Registry:
        earlier = registry.canaries.made if registry.canaries else ()
        made = tuple(dict.fromkeys((*earlier, *canaries.made)))
        return registry.model_copy(update={"canaries": canaries.model_copy(update={"made": made})})

    return change_registry(folder, recorded).canaries or canaries

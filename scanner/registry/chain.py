"""Chain the events of a users table by hashes. Anybody who knows a head can see that no earlier event was changed.

Each event has a number, and a seal of its name: SHA-256 of 16 random bytes and the name. Events are chained in blocks:

    head of a block = SHA-256("brickscan users 1" · head of the block before · its records)
    record = number · message · microseconds since 1970 (8 bytes each, big-endian) · digest of key and event · seal

Erasing a name deletes the name and its random bytes, and keeps the seal. The seal alone says nothing about the name.
The chain can still be followed, and still binds the message, its key and its time.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scanner.registry.record import FIRST_HEAD
from schemas.tables import USERS

EVENTS_A_BLOCK = 65_536
"""Most events that share a head. Events that are written together get their own blocks."""

_SALT_BYTES = 16
_RECORD = np.dtype([("seq", ">i8"), ("message", ">i8"), ("at", ">i8"), ("what", "V32"), ("seal", "V32")])


class Block(NamedTuple):
    """Events of a chain that share a head.

    first: number of the first event.
    last: number of the last event.
    head: head after the last event. None: it was removed.
    fault: fault of the events, for people. None: no fault.
    """

    first: int
    last: int
    head: bytes | None
    fault: str | None


def chain_events(events: pl.DataFrame, seq: int, head: bytes) -> pl.DataFrame:
    """Return events of schemas.tables.USER_EVENTS as rows of USERS, numbered from `seq`, chained to a head."""
    salts = _salts(events.height)
    erased = events["user_id"].is_null().to_list()
    rows = events.with_columns(
        seq=pl.int_range(seq, seq + events.height, dtype=pl.Int64),
        salt=pl.Series([None if gone else salt for salt, gone in zip(salts, erased, strict=True)], dtype=pl.Binary),
        # the seal of a name that was erased before there was a chain is random, because there is nothing to seal
        seal=pl.Series([os.urandom(32) if gone else None for gone in erased], dtype=pl.Binary),
    )
    records = records_of(rows)
    heads: list[bytes | None] = [None] * rows.height
    for begin in range(0, rows.height, EVENTS_A_BLOCK):
        head = _next_head(head, records[begin : begin + EVENTS_A_BLOCK])
        heads[min(begin + EVENTS_A_BLOCK, rows.height) - 1] = head
    return rows.with_columns(head=pl.Series(heads, dtype=pl.Binary)).select(USERS.names)


def _next_head(head: bytes, records: NDArray[np.void]) -> bytes:
    return sha256(b"brickscan users 1" + head + records.tobytes()).digest()


def records_of(rows: pl.DataFrame) -> NDArray[np.void]:
    """Return the records of rows of USERS, 88 bytes each, as the chain binds them."""
    records = np.zeros(rows.height, _RECORD)
    records["seq"] = rows["seq"].to_numpy()
    records["message"] = rows["message"].to_numpy()
    records["at"] = rows["at"].to_physical().to_numpy()
    records["what"] = _event_digests(rows)
    records["seal"] = np.array(seals_of(rows), dtype="V32")
    return records


def seals_of(rows: pl.DataFrame) -> list[bytes]:
    """Return the seal of each event's name: the kept one if the name was erased, or the digest of salt and name."""
    columns = (rows[name].to_list() for name in ("user_id", "salt", "seal"))
    return [_seal(salt, name) if seal is None else seal for name, salt, seal in zip(*columns, strict=True)]


def follow(windows: Iterable[pl.DataFrame], head: bytes = FIRST_HEAD) -> Iterator[Block]:
    """Follow a chain, block by block.

    After a fault, it continues from the head on record, so later faults are found as well.

    Args:
        windows: rows of USERS in the order of their numbers, in parts of any length.
        head: the head before the first row.
    """
    tail = pl.DataFrame(schema=pl.Schema(USERS))
    for window in windows:
        rows = pl.concat([tail, window])
        records, numbers, heads = records_of(rows), rows["seq"].to_list(), rows["head"].to_list()
        named, salt = rows["user_id"].is_not_null(), rows["salt"].bin.size().fill_null(0)
        forged = (named & rows["seal"].is_not_null()).to_numpy()
        # a seal covers salt and name together: with a longer salt, the same seal would fit only the end of the name
        moved = (named & (salt != _SALT_BYTES)).to_numpy()
        begin = 0
        for end in np.flatnonzero(rows["head"].is_not_null().to_numpy()).tolist():
            inside = slice(begin, end + 1)
            fault = "there is a name where one was erased" if forged[inside].any() else None
            if moved[inside].any() or _next_head(head, records[inside]) != heads[end]:
                fault = "one of these events was changed, added or removed"
            yield Block(numbers[begin], numbers[end], heads[end], fault)
            head, begin = heads[end], end + 1
        tail = rows.slice(begin)
        if tail.height >= EVENTS_A_BLOCK:
            yield Block(numbers[begin], numbers[-1], None, "the head after these was removed")
            tail = tail.clear()
    if tail.height:
        yield Block(int(tail["seq"][0]), int(tail["seq"][-1]), None, "the head after these was removed")


def _seal(salt: bytes | None, name: str | None) -> bytes:
    return sha256((salt or b"") + b"\1" + name.encode() if name is not None else b"").digest()


def _salts(count: int) -> Sequence[bytes]:
    everything = os.urandom(_SALT_BYTES * count)
    return [everything[n * _SALT_BYTES : (n + 1) * _SALT_BYTES] for n in range(count)]


def _event_digests(block: pl.DataFrame) -> NDArray[np.void]:
    """Return a digest of key and event for each row. Only a few of them differ."""
    labels = block.select(pl.format("{}:{}{}", pl.col("key_id").str.len_bytes(), "key_id", "event")).to_series()
    kinds = labels.unique(maintain_order=True)
    digests = np.array([sha256(label.encode()).digest() for label in kinds], dtype="V32")
    number = pl.DataFrame({"label": labels}).join(
        pl.DataFrame({"label": kinds, "number": np.arange(len(kinds))}), on="label", how="left", maintain_order="left"
    )
    row_digests: NDArray[np.void] = digests[number["number"].to_numpy()]
    return row_digests

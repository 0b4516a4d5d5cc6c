"""Read the state of a users table at one moment: who was given which message, and who had it taken away.

The index holds the events up to some number (scanner.registry.index), and a snapshot the newer ones. Queries use both.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from scanner.registry.index import GIVEN, REMOVED, RUN_SCHEMAS, EventRun, digests, refuse_twice, run_of
from scanner.registry.sorted_files import BELOW_ALL_VALUES, LARGEST_VALUE, Ints
from schemas.tables import USERS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = pl.Datetime("us", "UTC")
_NO_EVENTS = pl.DataFrame(schema=pl.Schema(USERS))

_COLUMNS = pl.Schema(
    [
        ("user_id", pl.String()),
        ("key_id", pl.String()),
        ("message", pl.Int64()),
        ("allocated_at", _TIME),
        ("removed_at", _TIME),
        ("seq", pl.Int64()),
        ("removed_seq", pl.Int64()),
    ]
)

_KINDS = GIVEN, REMOVED


class GivenMessage(NamedTuple):
    """The user who was given a message."""

    user_id: str | None
    """None: the name was erased."""
    allocated_at: datetime
    removed: bool
    """Whether the message was withdrawn later."""


class UsersSnapshot:
    """The content of a users table when it was opened.

    Rows are data frames: user_id (null once erased), key_id, message, allocated_at, removed_at (null while it is held),
    seq and removed_seq (numbers of these events), each message once.

    Args:
        runs: runs of the index, newest first.
        tail: the events that no run holds, columns of schemas.tables.USERS.
        events: number of events.
        head: the chain's head after the last event. None: that event has none.
        last_at: time of the last event. None: there is no event.
    """

    def __init__(
        self,
        runs: Sequence[EventRun],
        tail: pl.DataFrame,
        events: int,
        head: bytes | None,
        last_at: datetime | None = None,
    ) -> None:
        self.tail, self.events, self.head, self.last_at = tail, events, head, last_at
        self._runs = [run_of(tail), *runs] if tail.height else list(runs)

    @classmethod
    def empty(cls, head: bytes) -> "UsersSnapshot":
        """Return the snapshot of a registry that has no users table yet."""
        return cls((), _NO_EVENTS, 0, head)

    @property
    def key_ids(self) -> list[str]:
        """Return the ids of the keys whose messages were given, in order."""
        return sorted(set[str]().union(*(run.keys for run in self._runs)))

    def find_message(self, key_id: str, message: int) -> GivenMessage | None:
        """Return who was given a message. None: nobody. Raises Refused: it was given twice."""
        hits = [hit for run in self._runs if (hit := run.rows(key_id, GIVEN).find_value(message)) is not None]
        if not hits:
            return None
        refuse_twice(key_id, np.full(len(hits), message))
        rows, row = hits[0]
        removed = any(run.rows(key_id, REMOVED).find_value(message) is not None for run in self._runs)
        allocated_at = _EPOCH + rows["at"][row].as_py() * _MICROSECOND
        return GivenMessage(rows["user_id"][row].as_py(), allocated_at, removed)

    def rows_of_messages(self, key_id: str, messages: Ints) -> pl.DataFrame:
        """Return the rows of the given ones among these messages, in order.

        Raises:
            Refused: a message was given or removed twice.
        """
        distinct = np.unique(messages)
        tables = ([t for run in self._runs for t in run.rows(key_id, kind).find(distinct)[1]] for kind in _KINDS)
        return self._rows(key_id, *tables)

    def rows_of_users(self, user_ids: Sequence[str] | pl.Series, key_ids: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the rows of all messages that these users were ever given, under some keys or all."""
        names = pl.Series("user_id", user_ids, pl.String).unique()
        hashed = np.unique(digests(names))
        frames = [pl.DataFrame(schema=_COLUMNS)]
        for key_id in self.key_ids if key_ids is None else key_ids:
            messages = [np.zeros(0, np.int64), *(run.messages_of(key_id, names, hashed) for run in self._runs)]
            rows = self.rows_of_messages(key_id, np.concatenate(messages))
            frames.append(rows.join(names.to_frame(), on="user_id", how="semi", maintain_order="left"))
        return pl.concat(frames)

    def between(self, key_id: str, low: int = BELOW_ALL_VALUES, high: int = LARGEST_VALUE) -> pl.DataFrame:
        """Return the rows of the messages in (low, high], in order. Raises Refused as `rows_of_messages` does."""
        tables = ([t for run in self._runs for t in run.rows(key_id, kind).between(low, high)] for kind in _KINDS)
        return self._rows(key_id, *tables)

    def given_up_to(self, key_id: str, messages: Ints) -> Ints:
        """Count, for each of these messages, the given messages up to it."""
        counts = np.zeros(len(messages), np.int64)
        for run in self._runs:
            counts += run.rows(key_id, GIVEN).up_to(messages)
        return counts

    def is_given(self, key_id: str, messages: Ints) -> NDArray[np.bool_]:
        """Return whether each of these messages was ever given: bool[len]."""
        return self.given_up_to(key_id, messages) > self.given_up_to(key_id, messages - 1)

    def count(self, key_id: str) -> tuple[int, int]:
        """Return the number of messages of a key that were given, and the number of these that were removed."""
        given, removed = (sum(run.rows(key_id, kind).rows for run in self._runs) for kind in _KINDS)
        return given, removed

    def page_end(self, key_id: str, after: int) -> int:
        """Return a message above `after`, some hundred thousand rows later. LARGEST_VALUE: these are the last rows."""
        parts = max((run.rows(key_id, GIVEN).parts for run in self._runs), key=len, default=())
        return next((part.last for part in parts[:-1] if part.last > after), LARGEST_VALUE)

    def _rows(self, key_id: str, given: Sequence[pa.Table], removed: Sequence[pa.Table]) -> pl.DataFrame:
        begins, ends = (
            pl.DataFrame(pl.from_arrow(pa.concat_tables([RUN_SCHEMAS[kind].empty_table(), *tables]))).sort("message")
            for kind, tables in ((GIVEN, given), (REMOVED, removed))
        )
        for rows in (begins, ends):
            refuse_twice(key_id, rows["message"].to_numpy())
        ends = ends.rename({"at": "removed_at", "seq": "removed_seq"})
        rows = begins.join(ends, on="message", how="left", maintain_order="left")
        return rows.with_columns(
            pl.col("at").cast(_TIME).alias("allocated_at"), pl.col("removed_at").cast(_TIME), key_id=pl.lit(key_id)
        ).select(_COLUMNS.names())

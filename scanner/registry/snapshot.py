"""The users table as it was at one moment: who was given which message, by its index and its newest events."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from scanner.registry import index
from scanner.registry.index import GIVEN, KINDS, REMOVED, EventRun, refuse_twice, run_of
from scanner.registry.sorted_files import BELOW, MOST, Ints
from schemas.registry import MAX_MESSAGES
from schemas.tables import USERS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME = pl.Datetime("us", "UTC")

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


class Given(NamedTuple):
    """Who was given a message and when; removed: whether it was withdrawn since."""

    user_id: str | None
    allocated_at: datetime
    removed: bool


class UsersSnapshot:
    """The content of a users table when it was opened.

    Args:
        runs: the runs of its index.
        tail: the events that no run holds, columns of schemas.tables.USERS.
        events: how many events are in its chain.
        head: the chain's head after these; None: the last of them has none.

    Rows are data frames: user_id (null once erased), key_id, message, allocated_at, removed_at (null while it is held),
    seq and removed_seq (numbers of these events), each message once.
    """

    def __init__(self, runs: Sequence[EventRun], tail: pl.DataFrame, events: int, head: bytes | None) -> None:
        self.tail, self.events, self.head = tail, events, head
        self._runs = [run_of(tail), *runs] if tail.height else list(runs)

    @classmethod
    def empty(cls, head: bytes) -> "UsersSnapshot":
        """The snapshot of a registry that has no users table yet."""
        return cls((), pl.DataFrame(schema=pl.Schema(USERS)), 0, head)

    @property
    def key_ids(self) -> list[str]:
        """Keys whose messages were given, in order."""
        return sorted(set[str]().union(*(run.keys for run in self._runs)))

    def one(self, key_id: str, message: int) -> Given | None:
        """Who was given a message; None: nobody ever was.

        Raises:
            Refused: it was given twice.
        """
        found = [hit for run in self._runs if (hit := run.rows(key_id, GIVEN).one(message)) is not None]
        if not found:
            return None
        refuse_twice(key_id, np.full(len(found), message))
        rows, row = found[0]
        removed = any(run.rows(key_id, REMOVED).one(message) is not None for run in self._runs)
        at = _EPOCH + rows["at"][row].as_py() * _MICROSECOND
        return Given(rows["user_id"][row].as_py(), at, removed)

    def given(self, key_id: str, messages: Ints) -> pl.DataFrame:
        """Rows of the messages that were given, among these, in order.

        Raises:
            Refused: one was given or removed twice.
        """
        wanted = np.unique(messages)
        return self._rows(key_id, *(self._found(key_id, kind, wanted) for kind in (GIVEN, REMOVED)))

    def of_users(self, user_ids: Sequence[str] | pl.Series, key_ids: Sequence[str] | None = None) -> pl.DataFrame:
        """Rows of all messages that users were ever given, under some keys or all."""
        names = pl.Series("user_id", user_ids, pl.String).unique()
        hashed = np.unique(index.digests(names))
        found = [pl.DataFrame(schema=_COLUMNS)]
        for key_id in self.key_ids if key_ids is None else key_ids:
            messages = [np.zeros(0, np.int64), *(run.messages_of(key_id, names, hashed) for run in self._runs)]
            rows = self.given(key_id, np.concatenate(messages))
            found.append(rows.join(names.to_frame(), on="user_id", how="semi", maintain_order="left"))
        return pl.concat(found)

    def between(self, key_id: str, low: int = BELOW, high: int = MOST) -> pl.DataFrame:
        """Rows of the messages above `low` and at most `high`, in order. Raises Refused as `given` does."""
        found = (
            [t for run in self._runs for t in run.rows(key_id, kind).between(low, high)] for kind in (GIVEN, REMOVED)
        )
        return self._rows(key_id, *found)

    def given_up_to(self, key_id: str, messages: Ints) -> Ints:
        """How many given messages are at most each of these."""
        counts = np.zeros(len(messages), np.int64)
        for run in self._runs:
            counts += run.rows(key_id, GIVEN).up_to(messages)
        return counts

    def nth(self, key_id: str, numbers: Ints) -> Ints:
        """Given messages, by their places in order: from 0 on, and below their number."""
        low, high = np.full(len(numbers), BELOW), np.full(len(numbers), MAX_MESSAGES, np.int64)
        while (high - low > 1).any():
            middle = (low + high) // 2
            enough = self.given_up_to(key_id, middle) > numbers
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return high

    def is_given(self, key_id: str, messages: Ints) -> NDArray[np.bool_]:
        """Whether each of some messages was ever given."""
        return self.given_up_to(key_id, messages) > self.given_up_to(key_id, messages - 1)

    def count(self, key_id: str) -> tuple[int, int]:
        """How many messages of a key were given, and how many of these were removed."""
        given, removed = (sum(run.rows(key_id, kind).rows for run in self._runs) for kind in (GIVEN, REMOVED))
        return given, removed

    def page_end(self, key_id: str, after: int) -> int:
        """A message above `after`, with some hundred thousand rows between; MOST: no more rows follow."""
        parts = max((run.rows(key_id, GIVEN).parts for run in self._runs), key=len, default=())
        return next((part.last for part in parts[:-1] if part.last > after), MOST)

    def _found(self, key_id: str, kind: str, messages: Ints) -> list[pa.Table]:
        return [table for run in self._runs for table in run.rows(key_id, kind).find(messages)[1]]

    def _rows(self, key_id: str, given: Sequence[pa.Table], removed: Sequence[pa.Table]) -> pl.DataFrame:
        both = [
            pl.DataFrame(pl.from_arrow(pa.concat_tables([KINDS[kind].empty_table(), *tables]))).sort("message")
            for kind, tables in ((GIVEN, given), (REMOVED, removed))
        ]
        for rows in both:
            refuse_twice(key_id, rows["message"].to_numpy())
        ends = both[1].rename({"at": "removed_at", "seq": "removed_seq"})
        rows = both[0].join(ends, on="message", how="left", maintain_order="left")
        return rows.with_columns(
            pl.col("at").cast(_TIME).alias("allocated_at"), pl.col("removed_at").cast(_TIME), key_id=pl.lit(key_id)
        ).select(_COLUMNS.names())

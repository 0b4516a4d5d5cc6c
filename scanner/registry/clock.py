"""Compare the clock of a machine that writes to a registry with the times on record.

No other check finds a wrong clock.

A user who was given a message "in 2020" is named for texts of 2021. A user who was given it "in 2035" is named for
none.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl

from scanner.errors import Refused
from schemas.registry import Registry

CLOCKS_DIFFER = timedelta(minutes=5)
"""Largest allowed difference between clocks of machines that write to one registry."""

_TIME = pl.Datetime("us", "UTC")

FAR = timedelta(days=366)
"""Time after the newest scan from which on a clock counts as wrong. Up to it, scans may just be late."""


def now_for(registry: Registry, last_event: datetime | None) -> datetime:
    """Return this machine's time, for the next write to a registry.

    Args:
        registry: the registry.
        last_event: time of the newest event of its users. None: there is none.

    Raises:
        Refused: the time is earlier than times on record there.
    """
    now = datetime.now(UTC)
    if registry.trial:  # its events are dated back on purpose
        return now
    times = [time for key in registry.keys for time in (key.created_at, key.retired_at) if time is not None]
    newest = max([*times, *([] if last_event is None else [last_event])], default=now)
    if now < newest - CLOCKS_DIFFER:
        raise Refused(
            f"this machine's clock: it says {_words(now)}, and the registry was last changed at {_words(newest)}; "
            "nothing was written. Set the clock; if it is right, another machine's was wrong: restore a backup of the "
            "registry from before that time"
        )
    return now


def refuse_clock_before(newest_scan: datetime, results: str) -> None:
    """Raise Refused if this machine's clock is before the newest scan of results."""
    now = datetime.now(UTC)
    if now < newest_scan - CLOCKS_DIFFER:
        raise Refused(
            f"this machine's clock: it says {_words(now)}, and the newest scan in {results} ran at "
            f"{_words(newest_scan)}; nothing was written. Set the clock; if it is right, another machine's was wrong: "
            "name another folder in `results`"
        )


def refuse_clock_far_from(newest_scan: datetime, results: str) -> None:
    """Raise Refused if this machine's clock is before the newest scan of results, or far after it."""
    refuse_clock_before(newest_scan, results)
    now = datetime.now(UTC)
    if now > newest_scan + FAR:
        raise Refused(
            f"this machine's clock: it says {_words(now)}, and the newest scan in {results} ran at "
            f"{_words(newest_scan)}; nothing was written. Set the clock; if it is right, scan first"
        )


class SeenHead(NamedTuple):
    """The head of a registry's chain of users, as a scan read it."""

    head: str
    began: datetime
    """Time when the scan began. It read the head after this."""
    ended: datetime
    """Time when the scan ended. It read the head before this."""


class KnownTimes:
    """Limits on the times of users' events, from what scans knew.

    An event that a scan knew happened before the scan ended. An event that it did not know happened after the scan
    began.

    Args:
        seen: heads that scans read.
        numbers: number of the last event before each head.
    """

    def __init__(self, seen: Iterable[SeenHead], numbers: Mapping[str, int]) -> None:
        scans = sorted((numbers[scan.head], scan.began, scan.ended) for scan in seen if scan.head in numbers)
        self._last = np.array([last for last, _, _ in scans], np.int64)
        began = [began.astimezone(UTC) for _, began, _ in scans]
        ended = [ended.astimezone(UTC) for _, _, ended in scans]
        self._not_yet = pl.Series([None, *itertools.accumulate(began, max)], dtype=_TIME)
        self._there = pl.Series([*reversed([*itertools.accumulate(reversed(ended), min)]), None], dtype=_TIME)

    def wrong(self, events: pl.DataFrame) -> Iterator[str]:
        """Yield a sentence for each time that some events cannot have. Events are rows of schemas.tables.USERS."""
        intervals = np.searchsorted(self._last, events["seq"].to_numpy())
        times = events.select(
            "seq",
            "at",
            there=self._there.gather(intervals).fill_null(datetime.now(UTC)),
            not_yet=self._not_yet.gather(intervals),
        )
        late, early = pl.col("at") > pl.col("there") + CLOCKS_DIFFER, pl.col("at") < pl.col("not_yet") - CLOCKS_DIFFER
        wrong = times.with_columns(late=late, early=early.fill_null(value=False)).filter(
            pl.col("late") | pl.col("early")
        )
        groups = wrong.group_by("at", "late").agg(
            pl.col("seq").min().alias("first"), pl.len(), pl.col("there").min(), pl.col("not_yet").max()
        )
        for row in groups.sort("first").to_dicts():
            subject = f"event {row['first']}" + (f" and {row['len'] - 1:,} more" if row["len"] > 1 else "")
            evidence = (
                f"already existed at {_words(row['there'])}" if row["late"] else f"came after {_words(row['not_yet'])}"
            )
            yield f"{subject}: is dated {_words(row['at'])}, but {evidence}"


def wrong_times_of_keys(registry: Registry) -> Iterator[str]:
    """Yield a sentence for each key whose time is before that of the previous key, or in the future."""
    now = datetime.now(UTC)
    for previous, key in zip((None, *registry.keys), registry.keys, strict=False):
        if key.created_at > now + CLOCKS_DIFFER:
            yield f"key {key.key_id}: is dated {_words(key.created_at)}, but it is {_words(now)} now"
        elif previous is not None and key.created_at < previous.created_at - CLOCKS_DIFFER:
            yield (
                f"key {key.key_id}: is dated {_words(key.created_at)}, but was made after key {previous.key_id} of "
                f"{_words(previous.created_at)}"
            )


def _words(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"

"""Times as files hold them: timestamps with a zone or without one, dates, ISO 8601 as text, seconds since 1970.

They are read into UTC. A time that cannot be read is null, and costs its document nothing.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.tables import DOCUMENTS

_YEAR_1, _YEAR_10000 = -62135596800, 253402300800  # seconds; what Python's datetime can hold
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTC = DOCUMENTS.field("created_at").type
_DAY = timedelta(days=1)
_LAST = _DAY - timedelta(microseconds=1)  # the last moment of a day
_LONGEST_TIME = 64  # bytes; a poster's text may be long
_SECONDS, _MILLISECONDS, _MICROSECONDS, _NANOSECONDS = 1e11, 1e14, 1e17, 2.0**63
"""Sizes of numbers, whatever their sign, below which they are seconds, milliseconds, microseconds or nanoseconds: so
each unit holds its times from 1973 to 5138.
"""


class Times(NamedTuple):
    """When each value was, and the latest moment that it can mean: a date's last moment. Both timestamp[us, UTC].

    unread: bool[n], values that are there and cannot be read as times; they are null in both.
    """

    at: pa.Array
    latest: pa.Array
    unread: NDArray[np.bool_]


def times(array: pa.Array, zone: str) -> Times:
    """Read times to the microsecond. Times outside of years 1 to 9999 become the nearest moment within.

    Args:
        array: a file's values: timestamps, dates, nulls, text or bytes of ISO 8601 (a blank one is null), or numbers,
            which are seconds, milliseconds, microseconds or nanoseconds since 1970 by their size.
        zone: IANA name of the zone in which dates are, and times that have no zone. A time that a clock shows twice is
            the earlier of the two, so that nobody is named for an hour's doubt; one that it skips is as if the clock
            had not been put forward yet.
    """
    all_read = np.zeros(len(array), np.bool_)
    if pa.types.is_null(array.type):
        return Times(array.cast(_UTC), array.cast(_UTC), all_read)
    if pa.types.is_date(array.type):
        first = _within_years(array.cast(pa.timestamp("s" if pa.types.is_date32(array.type) else "ms")))
        last = _within_years(pc.add(first, pa.scalar(_LAST)))
        return Times(_in_utc(first, zone, "earliest"), _in_utc(last, zone, "latest"), all_read)
    if pa.types.is_timestamp(array.type):
        at = _in_utc(_within_years(array), "UTC" if array.type.tz is not None else zone, "earliest")
        return Times(at, at, all_read)
    return _of_texts(array, zone) if _is_bytes(array.type) else _of_numbers(array)


def _is_bytes(kind: pa.DataType) -> bool:
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _of_numbers(array: pa.Array) -> Times:
    """Time since 1970, in the unit that a number's size tells."""
    valid = np.asarray(array.is_valid(), np.bool_)
    whole = pa.types.is_integer(array.type)
    value = np.asarray((array if whole else array.cast(pa.float64())).fill_null(0))
    size = np.abs(value.astype(np.float64))
    read = valid & (size < _NANOSECONDS)  # NaN is not below
    known = np.where(read, value, 0).astype(np.int64 if whole else np.float64)
    units = [size < _SECONDS, size < _MILLISECONDS, size < _MICROSECONDS]
    ticks = np.select(units, [known * 10**6, known * 10**3, known], known // 10**3)
    ticks = ticks if whole else np.rint(ticks).astype(np.int64)
    at = _within_years(pa.array(ticks, pa.timestamp("us"), mask=~read)).cast(_UTC)
    return Times(at, at, valid & ~read)


def _of_texts(array: pa.Array, zone: str) -> Times:
    """ISO 8601, also with ` UTC` behind it as some databases write it."""
    count = len(array)
    known: list[datetime | None] = [None] * count  # those with a zone of their own
    shown, last = known.copy(), known.copy()  # as the zone's clocks show them; last moment of a date
    unread = np.zeros(count, np.bool_)
    for i, raw in enumerate(array.cast(pa.large_binary()).to_pylist()):
        text = (raw or b"").strip()
        found = _parsed(text)
        if found is None:
            unread[i] = bool(text)
        elif found.tzinfo is not None:
            known[i] = found
        else:
            shown[i] = found
            last[i] = found + _LAST if _is_day(text) else None
    clock = pa.timestamp("us")
    at = pc.coalesce(pa.array(known, _UTC), _in_utc(pa.array(shown, clock), zone, "earliest"))
    return Times(at, pc.coalesce(_in_utc(pa.array(last, clock), zone, "latest"), at), unread)


def _parsed(text: bytes) -> datetime | None:
    """A time by a zone's clocks or in UTC; None: it is no ISO 8601."""
    try:
        moment = datetime.fromisoformat(text[:_LONGEST_TIME].decode("ascii").replace(" UTC", "Z"))
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # UnicodeDecodeError is a ValueError
        return None


def _is_day(text: bytes) -> bool:
    """Whether a text that was read is a date alone."""
    try:
        date.fromisoformat(text.decode("ascii"))
    except ValueError:
        return False
    return True


def _within_years(array: pa.TimestampArray) -> pa.TimestampArray:
    """Times on a clock, timestamp[us] without a zone, within the years 1 to 9999."""
    unit, limits = array.type.unit, np.iinfo(np.int64)
    lowest = max(_YEAR_1 * _PER_SECOND[unit], limits.min)
    highest = min(_YEAR_10000 * _PER_SECOND[unit] - 1, limits.max)
    ticks = pc.max_element_wise(array.cast(pa.int64()), lowest, skip_nulls=False)
    ticks = pc.min_element_wise(ticks, highest, skip_nulls=False)
    return ticks.cast(pa.timestamp(unit)).cast(pa.timestamp("us"), safe=False)


def _in_utc(shown: pa.TimestampArray, zone: str, ambiguous: Literal["earliest", "latest"]) -> pa.Array:
    """When the clocks of a zone showed these times.

    By polars, which brings its own time-zone database: a machine need not have one, and all have the same.
    """
    if zone == "UTC":
        return shown.cast(_UTC)
    import polars as pl  # half a second, which those that only look into footers need not spend

    local = pl.Series(shown)

    def moments(local: pl.Series) -> pl.Series:
        known = local.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")
        return known.dt.convert_time_zone("UTC")

    found = moments(local)
    if found.null_count() > local.null_count():  # skipped; no clock skips more than a day
        found = found.zip_with(found.is_not_null(), moments(local - _DAY) + _DAY)
    return _within_years(found.to_arrow()).cast(_UTC)

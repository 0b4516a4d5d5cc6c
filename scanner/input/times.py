"""Times as files hold them, with a zone or without one, or dates: when each was, in UTC."""

from datetime import timedelta
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.tables import DOCUMENTS

_YEAR_1, _YEAR_10000 = -62135596800, 253402300800  # seconds; what Python's datetime can hold
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTC = DOCUMENTS.field("created_at").type
_DAY = timedelta(days=1)


class Times(NamedTuple):
    """When each value was, and the latest moment that it can mean: of a date, its last. Both timestamp[us, UTC]."""

    at: pa.Array
    latest: pa.Array


def times(array: pa.Array, zone: str) -> Times:
    """Read timestamps, dates or nulls, to the microsecond; outside of years 1 to 9999: the nearest moment of these.

    Args:
        array: what a file holds.
        zone: IANA name of the zone in which dates are, and times that have no zone. A time that a clock shows twice is
            the earlier of the two, so that nobody is named for an hour's doubt; one that it skips is as if the clock
            had not been put forward yet.
    """
    if pa.types.is_null(array.type):
        return Times(array.cast(_UTC), array.cast(_UTC))
    if pa.types.is_date(array.type):
        first = _within_years(array.cast(pa.timestamp("s" if pa.types.is_date32(array.type) else "ms")))
        last = _within_years(pc.add(first, pa.scalar(_DAY - timedelta(microseconds=1))))
        return Times(_in_utc(first, zone, "earliest"), _in_utc(last, zone, "latest"))
    at = _in_utc(_within_years(array), "UTC" if array.type.tz is not None else zone, "earliest")
    return Times(at, at)


def _within_years(array: pa.TimestampArray) -> pa.TimestampArray:
    """What a clock shows, timestamp[us] without a zone."""
    unit, limits = array.type.unit, np.iinfo(np.int64)
    lowest = max(_YEAR_1 * _PER_SECOND[unit], limits.min)
    highest = min(_YEAR_10000 * _PER_SECOND[unit] - 1, limits.max)
    ticks = pc.max_element_wise(array.cast(pa.int64()), lowest, skip_nulls=False)
    ticks = pc.min_element_wise(ticks, highest, skip_nulls=False)
    return ticks.cast(pa.timestamp(unit)).cast(pa.timestamp("us"), safe=False)


def _in_utc(shown: pa.TimestampArray, zone: str, ambiguous: Literal["earliest", "latest"]) -> pa.Array:
    """When the clocks of a zone showed this.

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

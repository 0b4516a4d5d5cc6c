"""Read the columns of a file that are scanned, and the times in them.

A file has times as timestamps with or without a zone, as dates, as ISO 8601 text, or as seconds since 1970, also as
text. They are converted to UTC. A time that cannot be read becomes null, without harm to its document.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.errors import FileFault
from schemas.config import InputConfig
from schemas.tables import DOCUMENTS

_YEAR_1, _YEAR_10000 = -62135596800, 253402300800  # seconds; limits of Python's datetime
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTC = DOCUMENTS.field("created_at").type
_DAY = timedelta(days=1)
_LAST = _DAY - timedelta(microseconds=1)  # the last moment of a day
_LONGEST_TIME = 64  # bytes; a poster's text may be long
_SECONDS, _MILLISECONDS, _MICROSECONDS, _NANOSECONDS = 1e11, 1e14, 1e17, 2.0**63
"""Absolute values below which numbers are seconds, milliseconds, microseconds or nanoseconds.

Each unit then covers times from 1973 to 5138.
"""


_SINCE_1970 = re.compile(rb"1(\d{9}|\d{12}|\d{15}|\d{18})(\.\d{1,9})?")
"""Numbers as text: times from 2001 to 2033 in seconds, milliseconds, microseconds or nanoseconds.

Other digits may be a calendar time: 2026083112 is an hour.
"""


class Times(NamedTuple):
    """The moments that each value can mean. For a date, these are its first and its last."""

    earliest: pa.Array
    """timestamp[us, UTC]"""
    latest: pa.Array
    """timestamp[us, UTC]"""
    unread: NDArray[np.bool_]
    """bool[n]: values that exist but cannot be read as times. They are null in both arrays."""


def times(array: pa.Array, zone: str) -> Times:
    """Read times to the microsecond. Times outside of years 1 to 9999 become the nearest moment within.

    Args:
        array: a file's values. They are timestamps, dates, nulls, numbers, or text or bytes. Numbers are seconds,
            milliseconds, microseconds or nanoseconds since 1970, by their size. Text is ISO 8601 or such a number.
            Blank text is null.
        zone: IANA name of the zone of dates, and of times that have no zone. A time that a clock shows twice is the
            earlier of the two, so that nobody is named for an hour's doubt. A time that a clock skips is read as if the
            clock had not been put forward yet.
    """
    all_read = np.zeros(len(array), np.bool_)
    if pa.types.is_null(array.type):
        return Times(array.cast(_UTC), array.cast(_UTC), all_read)
    if pa.types.is_date(array.type):
        first = _within_years(array.cast(pa.timestamp("s" if pa.types.is_date32(array.type) else "ms")))
        last = _within_years(pc.add(first, pa.scalar(_LAST)))
        return Times(_in_utc(first, zone, "earliest"), _in_utc(last, zone, "latest"), all_read)
    if pa.types.is_timestamp(array.type):
        moments = _in_utc(_within_years(array), "UTC" if array.type.tz is not None else zone, "earliest")
        return Times(moments, moments, all_read)
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _times_of_numbers(array)
    return _times_of_texts(array, zone)


def _times_of_numbers(array: pa.Array) -> Times:
    """Read times since 1970, in the unit that the size of a number shows."""
    valid = np.asarray(array.is_valid(), np.bool_)
    whole = pa.types.is_integer(array.type)
    value = np.asarray((array if whole else array.cast(pa.float64())).fill_null(0))
    size = np.abs(value.astype(np.float64))
    read = valid & (size < _NANOSECONDS)  # NaN is not below
    numbers = np.where(read, value, 0).astype(np.int64 if whole else np.float64)
    units = [size < _SECONDS, size < _MILLISECONDS, size < _MICROSECONDS]
    ticks = np.select(units, [numbers * 10**6, numbers * 10**3, numbers], numbers // 10**3)
    ticks = ticks if whole else np.rint(ticks).astype(np.int64)
    moments = _within_years(pa.array(ticks, pa.timestamp("us"), mask=~read)).cast(_UTC)
    return Times(moments, moments, valid & ~read)


def _times_of_texts(array: pa.Array, zone: str) -> Times:
    """Read ISO 8601, also followed by ` UTC` as some databases write it. Each distinct value is read once."""
    encoded = array.cast(pa.large_binary()).dictionary_encode()
    distinct = _times_of_values(encoded.dictionary, zone)
    rows = np.asarray(encoded.indices.fill_null(len(distinct.unread)))
    unread = np.append(distinct.unread, False)[rows]
    return Times(distinct.earliest.take(encoded.indices), distinct.latest.take(encoded.indices), unread)


def _times_of_values(texts: pa.LargeBinaryArray, zone: str) -> Times:
    count = len(texts)
    zoned: list[datetime | None] = [None] * count  # those with a zone of their own
    local, last = zoned.copy(), zoned.copy()  # as the zone's clocks show them; last moment of a date
    unread = np.zeros(count, np.bool_)
    for i, raw in enumerate(texts.to_pylist()):
        text = raw.strip()
        time = _parsed(text)
        if time is None:
            unread[i] = bool(text)
        elif time.tzinfo is not None:
            zoned[i] = time
        else:
            local[i] = time
            last[i] = time + _LAST if _is_day(text) else None
    clock = pa.timestamp("us")
    earliest = pc.coalesce(pa.array(zoned, _UTC), _in_utc(pa.array(local, clock), zone, "earliest"))
    return Times(earliest, pc.coalesce(_in_utc(pa.array(last, clock), zone, "latest"), earliest), unread)


def _parsed(text: bytes) -> datetime | None:
    """Read a time by a zone's clocks or in UTC.

    Returns:
        None for text that is neither ISO 8601 nor a number that must be a time.
    """
    if number := _SINCE_1970.fullmatch(text):
        since = Decimal(text.decode()).scaleb(6 - (len(number[1]) - 9))  # in microseconds
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(since))
    if text.isdigit() and len(text) != len("20260831"):  # Python takes any digit for the T, and 1712010112345 for 1712
        return None
    try:
        moment = datetime.fromisoformat(text[:_LONGEST_TIME].decode("ascii").replace(" UTC", "Z"))
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # UnicodeDecodeError is a ValueError
        return None


def _is_day(text: bytes) -> bool:
    """Return whether a text that was read as a time is a date without a time of day."""
    try:
        date.fromisoformat(text.decode("ascii"))
    except ValueError:
        return False
    return True


def _within_years(array: pa.TimestampArray) -> pa.TimestampArray:
    """Limit times on a clock, timestamp[us] without a zone, to the years 1 to 9999."""
    unit, limits = array.type.unit, np.iinfo(np.int64)
    lowest = max(_YEAR_1 * _PER_SECOND[unit], limits.min)
    highest = min(_YEAR_10000 * _PER_SECOND[unit] - 1, limits.max)
    ticks = pc.max_element_wise(array.cast(pa.int64()), lowest, skip_nulls=False)
    ticks = pc.min_element_wise(ticks, highest, skip_nulls=False)
    return ticks.cast(pa.timestamp(unit)).cast(pa.timestamp("us"), safe=False)


def _in_utc(clock_times: pa.TimestampArray, zone: str, ambiguous: Literal["earliest", "latest"]) -> pa.Array:
    """Return when the clocks of a zone showed these times."""
    # polars brings its own time-zone database, so it is the same on all machines, and a machine need not have one.
    if zone == "UTC":
        return clock_times.cast(_UTC)
    import polars as pl  # half a second, which those that only look into footers need not spend

    local = pl.Series(clock_times)

    def moments(local: pl.Series) -> pl.Series:
        zoned = local.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")
        return zoned.dt.convert_time_zone("UTC")

    in_utc = moments(local)
    if in_utc.null_count() > local.null_count():  # skipped; no clock skips more than a day
        in_utc = in_utc.zip_with(in_utc.is_not_null(), moments(local - _DAY) + _DAY)
    return _within_years(in_utc.to_arrow()).cast(_UTC)


MAX_ID_BYTES = 4096
"""Most bytes of an id. A longer id is null.

Every table contains the id, and a file of some kB may have an id of 16 MB for each of its rows.
"""


class Columns(NamedTuple):
    """Names of the columns that are read. None: there is no such column.

    text: None only if just ids are requested.
    time_zone: the zone of times without one.
    """

    text: str | None
    id: str | None
    account: str | None
    time: str | None
    time_zone: str = "UTC"

    @classmethod
    def of(cls, config: InputConfig) -> "Columns":
        """Take the names from a configuration."""
        return cls(config.text, config.id, config.account, config.time, config.time_zone)

    @property
    def names(self) -> dict[str, str | None]:
        """Return only the names, by the columns' roles."""
        return {"text": self.text, "id": self.id, "account": self.account, "time": self.time}


NO_COLUMNS = Columns(None, None, None, None)
"""None of a file's columns."""


class ColumnSource(NamedTuple):
    """Where the rows of one file have a column.

    Example: a file of an Iceberg table has the column `body` by its id 1, under its earlier name `text`.

    names: names that the file may have for it. The first that exists counts.
    field_id: its id in a file whose columns have ids. None: only names count.
    has_value: whether a table or the names of folders give its value if the file lacks it. If not, such a file is at
        fault.
    value: that value. Null: rows have none.
    """

    names: Sequence[str]
    field_id: int | None = None
    has_value: bool = False
    value: pa.Scalar | None = None

    def indices(self, schema: pa.Schema) -> list[int]:
        """Return the places of the column in a file's schema.

        Raises:
            FileFault: neither a name nor an id in the file shows them.
        """
        if self.field_id is not None:
            ids = [_field_id(field) for field in schema]
            if any(ids):
                return [i for i, field_id in enumerate(ids) if field_id == self.field_id]
            if not self.names:
                raise FileFault(
                    "missing_column",
                    "the file's columns have no field ids, which its table identifies them by; write its rows again "
                    "at the source, or set the property schema.name-mapping.default of the Iceberg table",
                )
        return next((places for name in self.names if (places := schema.get_all_field_indices(name))), [])


def _field_id(field: pa.Field) -> int:
    """Return the id of a column in a Parquet file. 0: it has none."""
    return int((field.metadata or {}).get(b"PARQUET:field_id", 0))


Sources = Mapping[str, ColumnSource]
"""Where a file has the requested columns, by their roles: text, id, account, time."""


def check_columns(schema: pa.Schema, columns: Columns, sources: Sources) -> None:
    """Check that the columns exist, and that the text column has a type that can be scanned.

    Raises:
        FileFault: missing_column or wrong_type.
    """
    for role, source in sources.items():
        name, indices = columns.names[role], source.indices(schema)
        if not indices and not source.has_value:
            names = ", ".join(schema.names)[:200]
            raise FileFault("missing_column", f"column {name!r} ({role}) is missing; there are: {names}")
        if role != "text" or not indices:
            continue
        if (times_there := _times_there(schema, indices)) > 1:
            raise FileFault("wrong_type", f"column {name!r} ({role}) occurs {times_there} times in the file")
        found_type = schema.field(indices[0]).type
        if not is_text(plain_type(found_type)):
            raise FileFault("wrong_type", f"column {name!r} ({role}) is {found_type}; allowed: string or binary")


def readable(schema: pa.Schema, columns: Columns, sources: Sources) -> Columns:
    """Return the columns under the names that the file has for them.

    A name is None if the file lacks the column, or if it is not read. Ids, accounts and times are not read if they have
    no plain text form, or if the file has their name twice.
    """

    def read(role: str) -> str | None:
        indices = sources[role].indices(schema) if role in sources else []
        if not indices or _times_there(schema, indices) > 1:
            return None
        field = schema.field(indices[0])
        return str(field.name) if is_allowed(role, field.type) else None

    return Columns(read("text"), read("id"), read("account"), read("time"), columns.time_zone)


def _times_there(schema: pa.Schema, indices: Sequence[int]) -> int:
    """Count the columns with an id and those with its name. Return the larger number."""
    return max(len(indices), len(schema.get_all_field_indices(schema.field(indices[0]).name)))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that `_plain` gives to a column."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type can hold texts."""
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_null,
        )
    )


def _is_name(kind: pa.DataType) -> bool:
    return (
        is_text(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))
    )


def _is_time(kind: pa.DataType) -> bool:
    tests = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return is_text(kind) or any(test(kind) for test in tests)


def is_allowed(role: str, kind: pa.DataType) -> bool:
    """Return whether a column of this type can have a role: texts, ids, accounts or times."""
    return {"text": is_text, "id": _is_name, "account": _is_name, "time": _is_time}[role](plain_type(kind))


def lengths(array: pa.Array) -> NDArray[np.int64]:
    """Compute the decoded size of each value in bytes, int64[len].

    Dictionaries are measured without decoding them.
    """
    if pa.types.is_dictionary(array.type):
        value_lengths = np.append(lengths(array.dictionary), 0)
        return np.take(value_lengths, np.asarray(array.indices.fill_null(len(array.dictionary)), np.int64))
    if not is_text(plain_type(array.type)) or pa.types.is_null(array.type):
        return np.full(len(array), array.nbytes // max(len(array), 1), np.int64)
    sizes = pc.binary_length(_plain(array).cast(pa.large_binary()))
    return np.asarray(sizes.fill_null(0) if sizes.null_count else sizes, np.int64)


def documents_of(
    batch: pa.RecordBatch,
    columns: Columns,
    first: int,
    *,
    all_read: bool,
    beside: Mapping[str, pa.Scalar],
    types: Mapping[str, pa.DataType],
) -> pa.RecordBatch:
    """Convert rows of a file to rows of DOCUMENTS.

    Args:
        batch: the rows of the file.
        columns: the columns that are read, by the file's names.
        first: number of the first row.
        all_read: whether every configured column is read.
        beside: values of columns that the file lacks, by their roles.
        types: types that a table gives to columns, even if an older file has others.
    """
    values = {}
    for role, name in columns.names.items():
        if name is not None:
            values[role] = _widened(_plain(batch.column(name)), types.get(role))
        elif role in beside:
            values[role] = _plain(pa.repeat(beside[role], len(batch)))
        else:
            values[role] = pa.nulls(len(batch), pa.string())
    created = times(values["time"], columns.time_zone)
    ids, accounts = _names(values["id"]), _names(values["account"])
    unread = created.unread | ids.unread | accounts.unread | (not all_read)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(first, first + len(batch), dtype=np.int64)),
            ids.names,
            values["text"].cast(pa.large_binary()),
            accounts.names,
            created.earliest,
            created.latest,
            pa.array(unread),
        ],
        schema=DOCUMENTS,
    )


def _widened(array: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Return numbers in the type that a table gives to all of them. An id then has the same text in old files."""
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if kind is None or not all(any(test(type_) for test in numbers) for type_ in (array.type, kind)):
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException:  # the file has values outside of this type
        return array


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        if len(array) == 1 and array.null_count == 0:  # without a copy, because it may be very long
            return array.dictionary.slice(array.indices[0].as_py(), 1)
        return array.dictionary_decode()
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


class _Names(NamedTuple):
    """Ids as text.

    names: string[n].
    unread: bool[n], ids that exist but have no text form. They are null.
    """

    names: pa.Array
    unread: NDArray[np.bool_]


def _names(array: pa.Array) -> _Names:
    """Return ids as string. If the column as a whole cannot be converted, convert each id by itself."""
    try:
        written = _written(array)
    except pa.ArrowException:
        written = pa.array([_written_singly(array.slice(i, 1)) for i in range(len(array))], pa.string())
    short = pc.less_equal(pc.binary_length(written), MAX_ID_BYTES)
    if not pc.all(short, min_count=0).as_py():
        written = pc.if_else(short, written, None)
    return _Names(written, np.asarray(pc.and_(array.is_valid(), written.is_null()), np.bool_))


def _written_singly(value: pa.Array) -> str | None:
    try:
        name: str | None = _written(value)[0].as_py()
    except (pa.ArrowException, ValueError):
        return None
    return name


def _written(array: pa.Array) -> pa.Array:
    """Write ids as string.

    Binary of fixed size, such as a UUID, is written in hex. In other bytes, those that are no UTF-8 are escaped.
    """
    # A time with a zone is written in UTC, because a file may name a zone that this machine does not know.
    if pa.types.is_fixed_size_binary(array.type):
        return pa.array([None if value is None else value.hex() for value in array.to_pylist()], pa.string())
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    if not is_text(array.type) or pa.types.is_null(array.type):
        return array.cast(pa.string())
    raw = array.cast(pa.large_binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if value is None else value.decode(errors="backslashreplace") for value in raw.to_pylist()]
        return pa.array(decoded, pa.string())

"""Documents out of Parquet files, a few at a time: for every row a document, or a reason why there is none.

Read with pyarrow, since texts may be invalid UTF-8. Batches are small, because a text of 10 MB may stand in any row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scanner.files import FileFault, InputFile
from schemas.config import InputConfig
from schemas.tables import DOCUMENTS

MAX_ROWS_AT_A_TIME = 64
BATCH_TEXT_BYTES = 2 * 2**20
_BUFFER_BYTES = 4 * 2**20
_MAGIC = b"PAR1"
_YEAR_1, _YEAR_10000 = -62135596800, 253402300800  # seconds; what Python's datetime can hold
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Columns(NamedTuple):
    """Names of the columns that are read; None: there is no such column."""

    text: str
    id: str | None
    account: str | None
    time: str | None

    @classmethod
    def of(cls, config: InputConfig) -> "Columns":
        """Take the names out of a configuration."""
        return cls(config.text, config.id, config.account, config.time)


class RowGroup(NamedTuple):
    """What the metadata of a Parquet row group says: its rows, and the bytes of its text before compression."""

    rows: int
    text_bytes: int


class Unreadable(NamedTuple):
    """Rows start … stop−1 of a file, whose bytes are there but cannot be decoded, and why."""

    start: int
    stop: int
    detail: str


def inspect(file: InputFile, columns: Columns) -> list[RowGroup]:
    """Read a file's metadata, and check that its columns are there and of types that can be scanned.

    Raises:
        FileFault: the file cannot be scanned.
    """
    file.check_unchanged()
    _check_magic(file)
    with file.open() as source:
        try:
            parquet = pq.ParquetFile(source)
            schema, metadata = parquet.schema_arrow, parquet.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        except Exception as error:  # a broken footer makes the reader raise many things
            file.check_unchanged()
            raise FileFault("unreadable", f"the footer cannot be read: {_first_line(error)}") from None
    _check_columns(schema, columns)
    return [RowGroup(group.num_rows, _text_bytes(group, columns.text)) for group in groups]


def _text_bytes(group: pq.RowGroupMetaData, name: str) -> int:
    chunks = (group.column(i) for i in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == name)


def _check_magic(file: InputFile) -> None:
    try:
        with file.open() as source:
            size = source.size()
            head = source.read(len(_MAGIC))
            source.seek(max(size - len(_MAGIC), 0))
            tail = source.read(len(_MAGIC))
    except OSError as error:
        raise FileFault("io_error", f"the file cannot be read: {error}") from None
    if head != _MAGIC:
        raise FileFault("not_parquet", f"a Parquet file begins with {_MAGIC!r}, this one of {size} bytes does not")
    if tail != _MAGIC or size < 3 * len(_MAGIC):
        raise FileFault("truncated", f"a Parquet file ends with {_MAGIC!r}, this one of {size} bytes does not")


def _check_columns(schema: pa.Schema, columns: Columns) -> None:
    for role, name in columns._asdict().items():
        if name is None:
            continue
        found = schema.get_all_field_indices(name)
        if not found:
            there = ", ".join(schema.names)[:200]
            raise FileFault("missing_column", f"column {name!r} ({role}) is missing; there are: {there}")
        if len(found) > 1:
            raise FileFault("wrong_type", f"column {name!r} ({role}) stands {len(found)} times in the file")
        found_type = schema.field(found[0]).type
        if not _ALLOWED[role](_plain_type(found_type)):
            raise FileFault("wrong_type", f"column {name!r} ({role}) is {found_type}; allowed: {_WORDS[role]}")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Type of what `_plain` makes of a column."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _is_text(kind: pa.DataType) -> bool:
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
        _is_text(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
    )


def _is_time(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_timestamp, pa.types.is_date, pa.types.is_null))


_ALLOWED = {"text": _is_text, "id": _is_name, "account": _is_name, "time": _is_time}
_WORDS = {
    "text": "string or binary",
    "id": "string, binary, number or time",
    "account": "string, binary, number or time",
    "time": "timestamp or date",
}


def read(file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
    """Read rows start … stop−1, in order: batches of DOCUMENTS, each of about BATCH_TEXT_BYTES of text.

    Raises:
        FileFault: the file is gone, is another one than was listed, or its bytes cannot be read.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for part in _read_small(file, columns, start, stop):
        if isinstance(part, Unreadable):
            yield part
            continue
        for batch in _split(part):
            held.append(batch)
            size += _text_size(batch)
            if size >= BATCH_TEXT_BYTES:
                yield pa.concat_batches(held)
                held, size = [], 0
    if held:
        yield pa.concat_batches(held)
    file.check_unchanged()


def _text_size(batch: pa.RecordBatch) -> int:
    return int(batch.column("text").nbytes)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if len(batch) == 1 or _text_size(batch) <= BATCH_TEXT_BYTES:
        yield batch
    else:
        half = len(batch) // 2
        yield from _split(batch.slice(0, half))
        yield from _split(batch.slice(half))


def _read_small(file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
    file.check_unchanged()
    with file.open() as source:
        try:
            parquet = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except Exception as error:  # it was readable when the shard was cut
            file.check_unchanged()
            raise FileFault("io_error", f"the footer cannot be read any more: {_first_line(error)}") from None
        first = 0
        for group in range(parquet.metadata.num_row_groups):
            end = first + parquet.metadata.row_group(group).num_rows
            if max(start, first) < min(stop, end):
                yield from _read_group(file, parquet, columns, group, first, max(start, first), min(stop, end))
            first = end


def _read_group(
    file: InputFile, parquet: pq.ParquetFile, columns: Columns, group: int, first: int, start: int, stop: int
) -> Iterator[pa.RecordBatch | Unreadable]:
    """Rows start … stop−1 of the file, out of a row group that begins at row `first` and holds them all."""
    names = [name for name in dict.fromkeys(columns) if name is not None]
    metadata = parquet.metadata.row_group(group)
    rows = BATCH_TEXT_BYTES * metadata.num_rows // max(_text_bytes(metadata, columns.text), 1)
    rows = max(min(rows, MAX_ROWS_AT_A_TIME), 1)
    batches = parquet.iter_batches(rows, row_groups=[group], columns=names, use_threads=False)
    here = first
    while here < stop:
        try:
            batch = next(batches)
        except Exception as error:  # a corrupt page makes the reader raise many things; StopIteration: rows are missing
            _check_bytes(file, metadata)
            yield Unreadable(max(start, here), stop, f"row group {group} is corrupt: {_first_line(error)}")
            return
        begin, end = max(start - here, 0), min(stop - here, len(batch))
        if begin < end:
            yield _documents(batch.slice(begin, end - begin), columns, here + begin)
        here += len(batch)


def _check_bytes(file: InputFile, group: pq.RowGroupMetaData) -> None:
    """Raise FileFault when the file changed, or bytes of a row group cannot be read; else its content is at fault."""
    file.check_unchanged()
    chunks = [group.column(i) for i in range(group.num_columns)]
    begins = [c.dictionary_page_offset if c.has_dictionary_page else c.data_page_offset for c in chunks]
    begin, end = max(min(begins), 0), max(b + c.total_compressed_size for b, c in zip(begins, chunks, strict=True))
    try:
        with file.open() as source:
            for at in range(begin, min(end, file.size), _BUFFER_BYTES):
                source.seek(at)
                source.read(_BUFFER_BYTES)
    except OSError as error:
        raise FileFault("io_error", f"the file cannot be read: {error}") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__} {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:300].strip()


def _documents(batch: pa.RecordBatch, columns: Columns, first: int) -> pa.RecordBatch:
    def named(name: str | None) -> pa.Array:
        return pa.nulls(len(batch)) if name is None else _plain(batch.column(name))

    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(first, first + len(batch), dtype=np.int64)),
            _names(named(columns.id)),
            named(columns.text).cast(pa.large_binary()),
            _names(named(columns.account)),
            _times(named(columns.time)),
        ],
        schema=DOCUMENTS,
    )


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _names(array: pa.Array) -> pa.Array:
    """Ids as string: binary of a fixed size, such as a UUID, in hex; other bytes that are no UTF-8 as escapes."""
    if pa.types.is_fixed_size_binary(array.type):
        return pa.array([None if value is None else value.hex() for value in array.to_pylist()], pa.string())
    if not _is_text(array.type) or pa.types.is_null(array.type):
        return array.cast(pa.string())
    raw = array.cast(pa.large_binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if value is None else value.decode(errors="backslashreplace") for value in raw.to_pylist()]
        return pa.array(decoded, pa.string())


def _times(array: pa.Array) -> pa.Array:
    """Times in UTC, to the microsecond; a time without a zone is UTC; null outside the years 1 to 9999."""
    wanted = DOCUMENTS.field("created_at").type
    if pa.types.is_null(array.type):
        return array.cast(wanted)
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("s" if pa.types.is_date32(array.type) else "ms"))
    per_second = _PER_SECOND[array.type.unit]
    limits = np.iinfo(np.int64)
    lowest, highest = max(_YEAR_1 * per_second, limits.min), min(_YEAR_10000 * per_second - 1, limits.max)
    ticks = array.cast(pa.int64())
    known = pc.and_(pc.greater_equal(ticks, lowest), pc.less_equal(ticks, highest))
    return pc.if_else(known, array, pa.scalar(None, array.type)).cast(wanted, safe=False)

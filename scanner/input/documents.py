"""Documents out of Parquet files, a few at a time: for every row a document, or a reason why there is none.

Read with pyarrow, since texts may be invalid UTF-8. Batches are small, because a text of 10 MB may stand in any row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scanner.input.columns import Columns, check_columns, documents_of, is_text, lengths, plain_type
from scanner.input.files import FileFault, InputFile

__all__ = ["Columns", "RowGroup", "Unreadable", "inspect", "read", "read_text"]

MAX_TEXT_BYTES = 16 * 2**20
"""Of a text, as UTF-8, so many are scored at most: one that is worst for the tokenizer needs 220 times its size in
memory."""

MAX_ROWS_AT_A_TIME = 64
MANY_ROWS_AT_A_TIME = 4096
"""In row groups of no more than LARGEST_READ bytes."""
LARGEST_READ = 2**28
"""Bytes that rows which are decoded together may take, when there are several."""
BATCH_TEXT_BYTES = 4 * 2**20
_BUFFER_BYTES = 4 * 2**20
_SPARE_BYTES = 64 * 2**20
"""More than a decompressor takes for its own use."""

_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # how long the footer is, and the magic bytes


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
    footer = _read_footer(file)
    try:
        parquet = pq.ParquetFile(pa.BufferReader(footer))
        schema, metadata = parquet.schema_arrow, parquet.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    except MemoryError:  # no fault of the file
        raise
    except Exception as error:  # a broken footer makes the reader raise many things
        file.check_unchanged()
        raise FileFault("unreadable", f"the footer cannot be read: {_first_line(error)}") from None
    check_columns(schema, columns)
    return [RowGroup(group.num_rows, _text_bytes(group, columns.text)) for group in groups]


def _text_bytes(group: pq.RowGroupMetaData, name: str) -> int:
    chunks = (group.column(i) for i in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == name)


def _read_footer(file: InputFile) -> pa.Buffer:
    """The end of a file, from its metadata on. What fails here is storage, and what fails after it is the content."""
    try:
        with file.open() as source:
            size = source.size()
            if source.read(len(_MAGIC)) != _MAGIC:  # with what it begins is not shown: it may be a secret
                what = f"a Parquet file begins with {_MAGIC!r}, this one of {size} bytes does not"
                raise FileFault("not_parquet", what)
            source.seek(max(size - _TAIL_BYTES, 0))
            tail = source.read()
            if tail[-len(_MAGIC) :] != _MAGIC or size < len(_MAGIC) + _TAIL_BYTES:
                what = f"a Parquet file ends with {_MAGIC!r}, this one of {size} bytes does not"
                raise FileFault("truncated", what)
            source.seek(max(size - _TAIL_BYTES - int.from_bytes(tail[:4], "little"), 0))
            return source.read_buffer()
    except OSError as error:
        raise FileFault("io_error", f"the file cannot be read: {error}") from None


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
        if held and size + part.nbytes > BATCH_TEXT_BYTES:
            yield _together(held)
            held, size = [], 0
        if part.nbytes >= BATCH_TEXT_BYTES:
            yield part  # without a copy, since it may be very long
        else:
            held.append(part)
            size += part.nbytes
    if held:
        yield _together(held)
    file.check_unchanged()


def _together(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several, and one as it is: it need not be copied."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _read_small(file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
    file.check_unchanged()
    names = [name for name in dict.fromkeys(columns.names.values()) if name is not None]
    with file.open() as source:
        try:
            parquet = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            metadata = parquet.metadata
            once = pq.ParquetFile(
                source, metadata=metadata, read_dictionary=names, buffer_size=_BUFFER_BYTES, pre_buffer=False
            )
        except MemoryError:  # no fault of the file
            raise
        except Exception as error:  # it was readable when the shard was cut
            file.check_unchanged()
            raise FileFault("io_error", f"the footer cannot be read any more: {_first_line(error)}") from None
        first = 0
        for group in range(metadata.num_row_groups):
            end = first + metadata.row_group(group).num_rows
            if max(start, first) < min(stop, end):
                rows = range(max(start, first), min(stop, end))
                reader, at_a_time = _reader(parquet, once, names, group, len(rows))
                batches = reader.iter_batches(at_a_time, row_groups=[group], columns=names, use_threads=False)
                for part in _read_group(file, metadata.row_group(group), batches, first, rows):
                    if isinstance(part, Unreadable):
                        yield part._replace(detail=f"row group {group} is corrupt: {part.detail}")
                    else:
                        yield from (documents_of(few, columns, row) for row, few in _split(*part, names))
            first = end


def _reader(
    parquet: pq.ParquetFile, once: pq.ParquetFile, names: list[str], group: int, asked: int
) -> tuple[pq.ParquetFile, int]:
    """Which of two readers is for a row group, and how many rows at a time, so that these fit LARGEST_READ.

    No value is longer than all bytes of its column, but one that is stored once may stand in every row. `once` holds it
    once in memory too; but it gathers what it read of a row group, which costs time where there is much of it.
    """
    metadata = parquet.metadata.row_group(group)
    size = max(sum(_text_bytes(metadata, name) for name in names), 1)
    most = MANY_ROWS_AT_A_TIME if size <= LARGEST_READ else MAX_ROWS_AT_A_TIME
    rows = max(min(BATCH_TEXT_BYTES * metadata.num_rows // size, most), 1)
    longest = _longest_in_dictionary(once, names, group) if rows * size > LARGEST_READ else 0
    if longest is None:
        rows = max(min(rows, LARGEST_READ // size), 1)
    elif rows * longest > LARGEST_READ:
        return once, most
    return parquet, min(rows, asked)


def _longest_in_dictionary(once: pq.ParquetFile, names: list[str], group: int) -> int | None:
    """Bytes of the longest row that a row group's dictionaries can make; None: it cannot be told."""
    try:
        row = next(once.iter_batches(1, row_groups=[group], columns=names, use_threads=False))
    except MemoryError:
        raise
    except Exception:  # an encoding that is not read in this way, or a corrupt page, which will be met again
        return None
    longest = 0
    for column in map(row.column, names):
        if pa.types.is_dictionary(column.type):
            longest += int(lengths(column.dictionary).max(initial=0))
        elif is_text(plain_type(column.type)) and not pa.types.is_null(column.type):
            return None
        else:
            longest += column.nbytes
    return longest


def _split(first: int, batch: pa.RecordBatch, names: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut rows, the first of which is row `first`, so that a part takes BATCH_TEXT_BYTES when decoded, or is a row."""
    ends = np.cumsum(sum(lengths(batch.column(name)) for name in names))
    begin = done = 0
    while begin < len(batch):
        end = max(int(np.searchsorted(ends, done + BATCH_TEXT_BYTES, side="right")), begin + 1)
        yield first + begin, batch.slice(begin, end - begin)
        begin, done = end, int(ends[end - 1])


def _read_group(
    file: InputFile, group: pq.RowGroupMetaData, batches: Iterator[pa.RecordBatch], first: int, rows: range
) -> Iterator[tuple[int, pa.RecordBatch] | Unreadable]:
    """The rows asked for, out of the batches of a row group that begins at row `first`, each with its first row."""
    here = first
    while here < rows.stop:
        try:
            batch = next(batches)
        except MemoryError:  # this process may take no more: the rows are sound
            raise
        except Exception as error:  # a corrupt page makes the reader raise many things; StopIteration: rows are missing
            np.empty(_SPARE_BYTES, np.uint8)  # a decompressor that gets no memory calls its data corrupt
            _check_bytes(file, group)
            yield Unreadable(max(rows.start, here), rows.stop, _first_line(error))
            return
        begin, end = max(rows.start - here, 0), min(rows.stop - here, len(batch))
        if begin < end:
            yield here + begin, batch.slice(begin, end - begin)
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
    """What a library says, up to the first colon: behind it there may be bytes of the file."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__} {lines[0].partition(':')[0]}"[:300].strip()


def read_text(raw: bytes | None) -> tuple[str | None, str, str]:
    """Decode a stored text as far as it can be scored.

    Of a long one the first MAX_TEXT_BYTES are taken, and bytes that are no UTF-8, those of surrogates among them, are
    replaced by U+FFFD as Unicode recommends (3.9, "U+FFFD Substitution of Maximal Subparts"). What is taken follows
    from the stored bytes alone, so p-values hold for it as for any text (SPEC §3).

    Returns:
        (text, "", ""); (what is scored, reason, detail) by schemas.tables.PART_REASONS; (None, "null_text", detail).
    """
    if raw is None:
        return None, "null_text", "there is no text"
    taken = _first_bytes(raw)
    cut = f"the text has {len(raw)} bytes; the first {len(taken)} are scored" if len(taken) < len(raw) else ""
    try:
        text, reason, detail = taken.decode(), "", ""
    except UnicodeDecodeError as error:
        # a replacement may be longer than what it replaces
        text = _first_bytes(taken.decode(errors="replace").encode()).decode()
        reason, detail = _invalid(taken, error)
    return (text, "too_long", cut) if cut else (text, reason, detail)


def _first_bytes(raw: bytes) -> bytes:
    """At most MAX_TEXT_BYTES of a text, without a part of a character at the end."""
    end = MAX_TEXT_BYTES
    if len(raw) <= end:
        return raw
    while end > MAX_TEXT_BYTES - 3 and raw[end] & 0xC0 == 0x80:  # what comes next continues a character
        end -= 1
    return raw[:end]


def _invalid(raw: bytes, error: UnicodeDecodeError) -> tuple[str, str]:
    try:
        raw.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return "invalid_utf8", f"byte {error.start} of the text: {error.reason}"
    return "surrogates", f"byte {error.start} of the text begins a surrogate, which is no character"

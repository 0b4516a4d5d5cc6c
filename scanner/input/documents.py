"""Documents out of Parquet files, a few at a time: for every row a document, or a reason why there is none.

Read with pyarrow, since texts may be invalid UTF-8. Batches are small, because a text of 10 MB may stand in any row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import FileFault
from scanner.input.columns import Columns, documents_of, is_text, lengths, plain_type, readable
from scanner.input.files import InputFile
from scanner.input.footers import bytes_of, footer_of, leaves, open_footer, range_of, said

__all__ = ["Columns", "Unreadable", "read", "read_text"]

MAX_TEXT_BYTES = 16 * 2**20
"""Of a text, as UTF-8, so many are scored at most."""
MEMORY_A_BYTE = 220
"""Bytes of memory for each byte of a text, where it is the worst for the slower tokenizer; the faster takes 50."""

MAX_ROWS_AT_A_TIME = 64
MANY_ROWS_AT_A_TIME = 4096
"""In row groups of no more than LARGEST_READ bytes."""
LARGEST_READ = 2**28
"""Bytes that rows which are decoded together may take, when there are several."""
BATCH_TEXT_BYTES = 4 * 2**20
_BUFFER_BYTES = 4 * 2**20
_SPARE_BYTES = 64 * 2**20
"""More than a decompressor takes for its own use."""
_SHIFTED = "columns do not have the same size"
"""Arrow's words when a column's pages hold fewer values than the others': its rows may be shifted before that."""


class Unreadable(NamedTuple):
    """Rows start … stop−1 of a file, whose bytes are there but cannot be decoded, and why.

    What was given of these rows before is void.
    """

    start: int
    stop: int
    detail: str


class _Source(NamedTuple):
    """A file that is read: by `decoded` as values, by `once` as dictionaries.

    readable: of the columns those that are read; all_read: these are all; names, numbers: theirs.
    """

    file: InputFile
    decoded: pq.ParquetFile
    once: pq.ParquetFile
    readable: Columns
    all_read: bool
    names: list[str]
    numbers: list[int]


def read(file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
    """Read rows start … stop−1, in order: batches of DOCUMENTS, each of about BATCH_TEXT_BYTES of text.

    Raises:
        FileFault: the file is gone, is another one than was listed, has not these rows, or its bytes cannot be read.
    """
    held: list[pa.RecordBatch] = []
    size, reached = 0, start
    for part in _read_small(file, columns, start, stop):
        if held and (isinstance(part, Unreadable) or size + part.nbytes > BATCH_TEXT_BYTES):
            yield _together(held)
            held, size = [], 0
        if isinstance(part, Unreadable):
            reached = part.stop
            yield part
            continue
        reached += len(part)
        if part.nbytes >= BATCH_TEXT_BYTES:
            yield part  # without a copy, since it may be very long
        else:
            held.append(part)
            size += part.nbytes
    if held:
        yield _together(held)
    file.check_unchanged()
    if reached != stop:
        raise FileFault("unreadable", f"rows {start} to {stop - 1} were promised, and it ends before row {reached}")


def _together(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several, and one as it is: it need not be copied."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _read_small(file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
    file.check_unchanged()
    with file.open() as opened:
        source = _open(file, opened, columns)
        metadata = source.decoded.metadata
        first = 0
        for group in range(metadata.num_row_groups):
            end = first + metadata.row_group(group).num_rows
            if max(start, first) < min(stop, end):
                for part in _read_group(source, group, first, range(max(start, first), min(stop, end))):
                    if isinstance(part, Unreadable):
                        yield part._replace(detail=f"row group {group} is corrupt: {part.detail}")
                    else:
                        for row, few in _split(*part, source.names):
                            yield documents_of(few, source.readable, row, all_read=source.all_read)
            first = end


def _open(file: InputFile, opened: pa.NativeFile, columns: Columns) -> _Source:
    footer = footer_of(opened)
    try:
        plain = open_footer(footer)
        metadata, found = plain.metadata, readable(plain.schema_arrow, columns)
        names = [name for name in dict.fromkeys(found.names.values()) if name is not None]
        options = {"metadata": metadata, "buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        options["page_checksum_verification"] = True  # of pages that have one
        decoded = pq.ParquetFile(opened, **options)
        once = pq.ParquetFile(opened, read_dictionary=names, **options)
        return _Source(file, decoded, once, found, found == columns, names, leaves(metadata.schema, names))
    except MemoryError:  # no fault of the file
        raise
    except Exception as error:  # it was readable when the shard was cut
        file.check_unchanged()
        raise FileFault("io_error", f"the footer cannot be read any more: {said(error)}") from None


def _reader(source: _Source, group: int, asked: int) -> tuple[pq.ParquetFile, int]:
    """Which of two readers is for a row group, and how many rows at a time, so that these fit LARGEST_READ.

    No value is longer than all bytes of its column, but one that is stored once may stand in every row. `once` holds it
    once in memory too; but it gathers what it read of a row group, which costs time where there is much of it.
    """
    metadata = source.decoded.metadata.row_group(group)
    size = max(bytes_of(metadata, source.numbers), 1)
    most = MANY_ROWS_AT_A_TIME if size <= LARGEST_READ else MAX_ROWS_AT_A_TIME
    rows = max(min(BATCH_TEXT_BYTES * metadata.num_rows // size, most), 1)
    longest = _longest_in_dictionary(source, group) if rows * size > LARGEST_READ else 0
    if longest is None:
        rows = max(min(rows, LARGEST_READ // size), 1)
    elif rows * longest > LARGEST_READ:
        return source.once, most
    return source.decoded, min(rows, asked)


def _longest_in_dictionary(source: _Source, group: int) -> int | None:
    """Bytes of the longest row that a row group's dictionaries can make; None: it cannot be told."""
    try:
        row = next(source.once.iter_batches(1, row_groups=[group], columns=source.names, use_threads=False))
    except MemoryError:
        raise
    except Exception:  # an encoding that is not read in this way, or a corrupt page, which will be met again
        return None
    longest = 0
    for column in map(row.column, source.names):
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
    source: _Source, group: int, first: int, rows: range
) -> Iterator[tuple[int, pa.RecordBatch] | Unreadable]:
    """The rows asked for, out of the batches of a row group that begins at row `first`, each with its first row.

    Raises:
        FileFault: the file changed, its bytes cannot be read, or the row group ends before these rows.
    """
    reader, at_a_time = _reader(source, group, len(rows))
    batches = reader.iter_batches(at_a_time, row_groups=[group], columns=source.names, use_threads=False)
    here = first
    while here < rows.stop:
        try:
            batch = next(batches, None)
        except MemoryError:  # this process may take no more: the rows are sound
            raise
        except Exception as error:  # a corrupt page makes the reader raise many things
            np.empty(_SPARE_BYTES, np.uint8)  # a decompressor that gets no memory calls its data corrupt
            _check_bytes(source, group)
            shifted = _SHIFTED in str(error)
            yield Unreadable(rows.start if shifted else max(rows.start, here), rows.stop, said(error))
            return
        if batch is None:
            _check_bytes(source, group)
            what = f"it has {here - first} rows, the footer {reader.metadata.row_group(group).num_rows}"
            if here <= rows.start:
                raise FileFault("unreadable", f"row group {group} is too short: {what}")
            yield Unreadable(rows.start, rows.stop, what)  # nobody knows which rows are missing
            return
        begin, end = max(rows.start - here, 0), min(rows.stop - here, len(batch))
        if begin < end:
            yield here + begin, batch.slice(begin, end - begin)
        here += len(batch)


def _check_bytes(source: _Source, group: int) -> None:
    """Raise FileFault when the file changed, or bytes of a row group cannot be read; else its content is at fault."""
    source.file.check_unchanged()
    ranges = [range_of(source.decoded.metadata.row_group(group).column(i)) for i in source.numbers]
    try:
        with source.file.open() as opened:
            for begin, end in ranges:
                for at in range(begin, end, _BUFFER_BYTES):
                    opened.read_at(min(_BUFFER_BYTES, end - at), at)
    except OSError as error:
        raise FileFault("io_error", f"the file cannot be read: {error}") from None


def read_text(raw: bytes | None) -> tuple[str | None, str, str]:
    """Decode a stored text as far as it can be scored.

    Of a long one the first MAX_TEXT_BYTES are taken, and bytes that are no UTF-8, those of surrogates among them, are
    replaced by U+FFFD as Unicode recommends (3.9, "U+FFFD Substitution of Maximal Subparts"). What is taken follows
    from the stored bytes alone, so p-values hold for it as for any text (SPEC §3).

    Returns:
        (text, "", ""); (what is scored, reason, detail) by schemas.words.PART_REASONS; (None, "null_text", detail).
    """
    if raw is None:
        return None, "null_text", "there is no text"
    if len(raw) <= MAX_TEXT_BYTES:  # nearly all
        try:
            return raw.decode(), "", ""
        except UnicodeDecodeError:
            pass
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

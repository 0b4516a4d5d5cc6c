"""Documents out of open Parquet files, and whose a document is that could not be scored.

Read with pyarrow, since texts may be invalid UTF-8. Batches are small, because a text of 10 MB may stand in any row.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import FileFault
from scanner.input.columns import NO_COLUMNS, Columns, documents_of, is_allowed, is_text, lengths, plain_type
from scanner.input.files import InputFile
from scanner.input.footers import INT96_UNIT, bytes_of, footer_of, in_words, leaves, open_footer, range_of, readable_in
from scanner.printable import without_manifests

_BUFFER_BYTES = 4 * 2**20


class FileSource(NamedTuple):
    """A file that is read: by `as_values` and by `as_dictionaries`.

    columns: the columns asked for.
    readable: the columns that are read, as the file names them.
    names: their names.
    numbers: their numbers.
    beside: values of columns that the file lacks, by what the column holds.
    types: types that its table gives to columns.
    all_read: whether all columns that were asked for are read, or have a value beside the file.
    """

    file: InputFile
    columns: Columns
    opened: pa.NativeFile
    as_values: pq.ParquetFile
    as_dictionaries: pq.ParquetFile
    readable: Columns
    names: list[str]
    numbers: list[int]
    beside: Mapping[str, pa.Scalar]
    types: Mapping[str, pa.DataType]
    all_read: bool

    def check_bytes(self, group: int) -> None:
        """Raise FileFault when the file changed, or its bytes cannot be read.

        If neither is so, the content is at fault.
        """
        self.file.check_unchanged()
        metadata = self.as_values.metadata.row_group(group)
        ranges = [range_of(metadata.column(number)) for number in self.numbers]
        try:
            with self.file.open() as opened:
                for begin, end in ranges:
                    for offset in range(begin, end, _BUFFER_BYTES):
                        opened.read_at(min(_BUFFER_BYTES, end - offset), offset)
        except OSError as error:
            raise FileFault("io_error", f"the file cannot be read: {error}") from None


def open_source(file: InputFile, columns: Columns) -> FileSource:
    """Open a file that was inspected.

    Raises:
        FileFault: it is gone, is another one than was listed, or its bytes cannot be read.
    """
    with contextlib.ExitStack() as closing:
        opened = closing.enter_context(file.open())
        footer, sources = footer_of(opened), file.sources(columns)
        try:
            plain = open_footer(footer)
            metadata, readable = plain.metadata, readable_in(plain, footer, file.size, columns, sources)
            read = readable.names
            beside = {
                role: source.value
                for role, source in sources.items()
                if source.value is not None
                and is_allowed(role, source.value.type)
                and not source.indices(plain.schema_arrow)
            }
            names = [name for name in dict.fromkeys(read.values()) if name is not None]
            options = {"metadata": metadata, "buffer_size": _BUFFER_BYTES, "pre_buffer": False}
            options["page_checksum_verification"] = True  # for pages that have a checksum
            options["coerce_int96_timestamp_unit"] = INT96_UNIT
            as_values = pq.ParquetFile(opened, **options)
            as_dictionaries = pq.ParquetFile(opened, read_dictionary=names, **options)
            numbers = leaves(metadata.schema, names)
        except MemoryError:  # no fault of the file
            raise
        except Exception as error:  # it was readable when the shard was cut
            file.check_unchanged()
            raise FileFault("io_error", f"the footer cannot be read any more: {in_words(error)}") from None
        all_read = all(read[role] is not None or role in beside for role in sources)
        types = file.types(columns)
        closing.pop_all()  # the caller closes it
    return FileSource(
        file, columns, opened, as_values, as_dictionaries, readable, names, numbers, beside, types, all_read
    )


MAX_TEXT_BYTES = 16 * 2**20
"""Most bytes of a text, as UTF-8, that are scored."""
MEMORY_A_BYTE = 220
"""Bytes of memory for each byte of the worst text for the slower tokenizer; the faster one takes 50."""

MAX_ROWS_AT_A_TIME = 64
"""Most rows that are decoded together in row groups of more than LARGEST_READ bytes."""
MANY_ROWS_AT_A_TIME = 4096
"""Most rows that are decoded together in other row groups."""
LARGEST_READ = 2**28
"""Most bytes that several rows may take when they are decoded together."""
BATCH_TEXT_BYTES = 4 * 2**20
_SPARE_BYTES = 64 * 2**20
"""Bytes, more than a decompressor takes for its own use."""
_SHIFTED = "columns do not have the same size"
"""Message of Arrow when a column's pages hold fewer values than the others': earlier rows may be shifted too."""


class Unreadable(NamedTuple):
    """Rows start … stop−1 of a file, whose bytes are there but cannot be decoded, and why.

    Documents that were given of these rows before are void.
    """

    start: int
    stop: int
    detail: str


def read(file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
    """Read rows start … stop−1 of one file, once: as `Reader.read` does, and with its errors."""
    reader = Reader()
    try:
        yield from reader.read(file, columns, start, stop)
    finally:
        reader.close()


class Reader:
    """Reads ranges of rows. A range that lies behind the previous one in its row group goes on where that ended.

    A row group can be decoded from its first row alone, so each range of a large one would decode all rows before it.
    The rows read are the same either way. It keeps one file open, and a batch of it, while a row group is not at its
    end.
    """

    def __init__(self) -> None:
        self._group: _Group | None = None

    def close(self) -> None:
        """Close the file, if one is open."""
        group, self._group = self._group, None
        if group is not None:
            group.source.opened.close()

    def read(self, file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
        """Read rows start … stop−1, in order: batches of DOCUMENTS, each of about BATCH_TEXT_BYTES of text.

        Rows that the file leaves out (InputFile.rows_not_read) are in no batch.

        Raises:
            FileFault: the file is gone, is another one than was listed, lacks these rows, or its bytes cannot be read.
        """
        held: list[pa.RecordBatch] = []
        size, reached = 0, start
        not_read = file.rows_not_read(start, stop)
        if not_read.all():
            return
        file.check_unchanged()
        for part in itertools.chain(self._read_small(file, columns, start, stop), (None,)):
            if held and (part is None or isinstance(part, Unreadable) or size + part.nbytes > BATCH_TEXT_BYTES):
                yield held[0] if len(held) == 1 else pa.concat_batches(held)  # a single one is not copied
                held, size = [], 0
            if part is None:
                break
            if isinstance(part, Unreadable):
                reached = part.stop
                yield part
                continue
            first, reached = reached - start, reached + len(part)
            if not_read[first : reached - start].any():
                part = part.filter(pa.array(~not_read[first : reached - start]))
            if part.nbytes >= BATCH_TEXT_BYTES:
                yield part  # without a copy, since it may be very long
            else:
                held.append(part)
                size += part.nbytes
        file.check_unchanged()
        if reached != stop:
            raise FileFault("unreadable", f"rows {start} to {stop - 1} were promised, and it ends before row {reached}")

    def _read_small(
        self, file: InputFile, columns: Columns, start: int, stop: int
    ) -> Iterator[pa.RecordBatch | Unreadable]:
        if self._group is not None and (self._group.source.file, self._group.source.columns) != (file, columns):
            self.close()
        group, self._group = self._group, None  # set again when all went well
        source = open_source(file, columns) if group is None else group.source
        try:
            for number, first, rows in _ranges(source.as_values.metadata, start, stop):
                if group is None or not group.goes_on(number, rows):
                    group = _Group(source, number, first, len(rows))
                for part in group.read(rows):
                    if isinstance(part, Unreadable):
                        yield part._replace(detail=f"row group {number} is corrupt: {part.detail}")
                    else:
                        for row, rows_part in _split(*part, source):
                            yield documents_of(
                                rows_part,
                                source.readable,
                                row,
                                all_read=source.all_read,
                                beside=source.beside,
                                types=source.types,
                            )
            if group is not None and group.stop > stop:
                self._group = group
        finally:
            if self._group is not group or group is None:
                source.opened.close()


def _ranges(metadata: pq.FileMetaData, start: int, stop: int) -> Iterator[tuple[int, int, range]]:
    """Yield the row groups that hold some of the rows start … stop−1.

    Each has its number, its first row, and which of these rows it holds.
    """
    first = 0
    for number in range(metadata.num_row_groups):
        end = first + metadata.row_group(number).num_rows
        if max(start, first) < min(stop, end):
            yield number, first, range(max(start, first), min(stop, end))
        first = end


def _reader(source: FileSource, group: int) -> tuple[pq.ParquetFile, int]:
    """Return which of two readers a row group needs, and the most rows at a time, so that they fit LARGEST_READ."""
    # No value is longer than all bytes of its column, but one that is stored once may stand in every row. The reader
    # `as_dictionaries` holds it once in memory too; but it collects all values that it read of a row group, which takes
    # time in a large one.
    metadata = source.as_values.metadata.row_group(group)
    size = max(bytes_of(metadata, source.numbers), 1)
    max_rows = MANY_ROWS_AT_A_TIME if size <= LARGEST_READ else MAX_ROWS_AT_A_TIME
    rows = max(min(BATCH_TEXT_BYTES * metadata.num_rows // size, max_rows), 1)
    longest = _longest_in_dictionary(source, group) if rows * size > LARGEST_READ else 0
    if longest is None:
        rows = max(min(rows, LARGEST_READ // size), 1)
    elif rows * longest > LARGEST_READ:
        return source.as_dictionaries, max_rows
    return source.as_values, rows


def _longest_in_dictionary(source: FileSource, group: int) -> int | None:
    """Compute the bytes of the longest row that a row group's dictionaries can make; None: unknown."""
    try:
        row = next(source.as_dictionaries.iter_batches(1, row_groups=[group], columns=source.names, use_threads=False))
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


def _split(first: int, batch: pa.RecordBatch, source: FileSource) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut rows, the first of which is row `first`, so that a part takes BATCH_TEXT_BYTES when decoded, or is a row."""
    beside = sum(value.as_buffer().size for value in source.beside.values() if is_text(value.type) and value.is_valid)
    sizes = np.full(len(batch), beside, np.int64)
    ends = np.cumsum(sum((lengths(batch.column(name)) for name in source.names), sizes))
    begin = done = 0
    while begin < len(batch):
        end = max(int(np.searchsorted(ends, done + BATCH_TEXT_BYTES, side="right")), begin + 1)
        yield first + begin, batch.slice(begin, end - begin)
        begin, done = end, int(ends[end - 1])


class _Group:
    """A row group decoded from its first row on, in batches of one size, wherever the ranges asked for begin."""

    # stop: the first row behind it, as its footer says; batch_rows: how many of its rows are asked for at first

    def __init__(self, source: FileSource, number: int, first: int, batch_rows: int) -> None:
        self.source, self._number, self._first = source, number, first
        self.stop = first + source.as_values.metadata.row_group(number).num_rows
        self._reader, self._max_rows = _reader(source, number)
        self._at_a_time = self._rows_at_a_time(batch_rows)
        self._batches = self._reader.iter_batches(
            self._at_a_time, row_groups=[number], columns=source.names, use_threads=False
        )
        self._batch: pa.RecordBatch | None = None  # the last one that was decoded, whose first row is _begin
        self._begin = self._next = first
        self._corrupt = ""  # what was wrong with row _next

    def goes_on(self, number: int, rows: range) -> bool:
        """Return whether these rows are still to come, and a read from the beginning would give the same batches."""
        same = number == self._number and self._at_a_time == self._rows_at_a_time(len(rows))
        return same and rows.start >= self._begin

    def _rows_at_a_time(self, batch_rows: int) -> int:
        return min(self._max_rows, batch_rows) if self._reader is self.source.as_values else self._max_rows

    def read(self, rows: range) -> Iterator[tuple[int, pa.RecordBatch] | Unreadable]:
        """Yield the rows asked for, each batch with its first row.

        Raises:
            FileFault: the file changed or is corrupt.
        """
        while True:
            begin, end = max(rows.start, self._begin), min(rows.stop, self._next)
            if self._batch is not None and begin < end:
                yield begin, self._batch.slice(begin - self._begin, end - begin)
            if self._next >= rows.stop:
                return
            if not self._decode():
                shifted = _SHIFTED in self._corrupt
                yield Unreadable(rows.start if shifted else max(rows.start, self._next), rows.stop, self._corrupt)
                return
            if self._batch is None:
                self.source.check_bytes(self._number)
                mismatch = f"it has {self._next - self._first} rows, the footer {self.stop - self._first}"
                if self._next <= rows.start:
                    raise FileFault("unreadable", f"row group {self._number} is too short: {mismatch}")
                yield Unreadable(rows.start, rows.stop, mismatch)  # nobody knows which rows are missing
                return

    def _decode(self) -> bool:
        """Take the next batch, None at the end. False where a page is corrupt, and at every later call."""
        if self._corrupt:
            return False
        self._batch, self._begin = None, self._next
        try:
            self._batch = next(self._batches, None)
        except MemoryError:  # this process may take no more: the rows are sound
            raise
        except Exception as error:  # a corrupt page makes the reader raise many things
            np.empty(_SPARE_BYTES, np.uint8)  # a decompressor that gets no memory calls its data corrupt
            self.source.check_bytes(self._number)
            self._corrupt = in_words(error)
            return False
        self._next += len(self._batch or ())
        return True


def read_text(raw: bytes | None) -> tuple[str | None, str, str]:
    """Return a stored text as it is scored: as `decode_text` reads it, without C2PA manifests."""
    text, reason, detail = decode_text(raw)
    return None if text is None else without_manifests(text), reason, detail


def decode_text(raw: bytes | None) -> tuple[str | None, str, str]:
    """Decode a stored text as far as it can be scored.

    A long text is cut to its first MAX_TEXT_BYTES. Bytes that are no UTF-8, such as surrogates, are replaced by U+FFFD
    as Unicode recommends (3.9, "U+FFFD Substitution of Maximal Subparts"). The result follows from the stored bytes
    alone, so p-values hold for it as for any text (SPEC §3).

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
    scored = _first_bytes(raw)
    cut = f"the text has {len(raw)} bytes; the first {len(scored)} are scored" if len(scored) < len(raw) else ""
    try:
        text, reason, detail = scored.decode(), "", ""
    except UnicodeDecodeError as error:
        # a replacement may be longer than what it replaces
        text = _first_bytes(scored.decode(errors="replace").encode()).decode()
        reason, detail = _invalid(scored, error)
    return (text, "too_long", cut) if cut else (text, reason, detail)


def _first_bytes(raw: bytes) -> bytes:
    """Return at most MAX_TEXT_BYTES of a text, without part of a character at the end."""
    end = MAX_TEXT_BYTES
    if len(raw) <= end:
        return raw
    while end > MAX_TEXT_BYTES - 3 and raw[end] & 0xC0 == 0x80:  # the next byte continues a character
        end -= 1
    return raw[:end]


def _invalid(raw: bytes, error: UnicodeDecodeError) -> tuple[str, str]:
    try:
        raw.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return "invalid_utf8", f"byte {error.start} of the text: {error.reason}"
    return "surrogates", f"byte {error.start} of the text begins a surrogate, which is no character"


class Identity(NamedTuple):
    """Fields that identify a document, null where they cannot be read.

    text_sha256: digest of the text as it is stored.
    """

    doc_id: str | None = None
    account_id: str | None = None
    text_sha256: bytes | None = None


UNKNOWN_IDENTITY = Identity()


def identities(file: InputFile, columns: Columns, start: int, stop: int) -> list[Identity]:
    """Read ids and accounts, but no text, of rows start … stop−1.

    Each column is read by itself, since others may be corrupt.
    """
    ids = _strings(file, NO_COLUMNS._replace(id=columns.id), "doc_id", start, stop)
    accounts = _strings(file, NO_COLUMNS._replace(account=columns.account), "account_id", start, stop)
    return [Identity(*both) for both in zip(ids, accounts, strict=True)]


def identify(file: InputFile, columns: Columns, row: int) -> Identity:
    """Read ids and account of one row, with its text's digest. It may cost this process as much as reading the text."""
    (identity,) = identities(file, columns, row, row + 1)
    try:
        for part in read(file, Columns(columns.text, None, None, None), row, row + 1):
            if not isinstance(part, Unreadable) and part["text"][0].is_valid:
                identity = identity._replace(text_sha256=hashlib.sha256(part["text"][0].as_buffer()).digest())
    except (FileFault, MemoryError):
        pass
    return identity


def _strings(file: InputFile, columns: Columns, field: str, start: int, stop: int) -> list[str | None]:
    strings: list[str | None] = [None] * (stop - start)
    if not any(columns.names.values()):
        return strings
    try:
        for part in read(file, columns, start, stop):
            if isinstance(part, Unreadable):
                strings[part.start - start : part.stop - start] = [None] * (part.stop - part.start)
            else:
                for row, value in zip(part["row"].to_pylist(), part[field].to_pylist(), strict=True):
                    strings[row - start] = value
    except (FileFault, MemoryError, pa.ArrowException):
        pass
    return strings

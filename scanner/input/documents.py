"""Read documents from open Parquet files, and the ids and accounts of documents that could not be scored.

pyarrow reads them, because texts may be invalid UTF-8. Batches are small, because any row may have a text of 10 MB.
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
    """A file that is read, by `as_values` or by `as_dictionaries`.

    columns: the requested columns.
    readable: the columns that are read, as the file names them.
    names: their names.
    numbers: their numbers.
    beside: values of columns that the file lacks, by their role.
    types: types that its table gives to columns.
    all_read: whether all requested columns are read, or have a value beside the file.
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
        """Raise FileFault if the file changed, or if its bytes cannot be read.

        If it does not raise, the content is at fault.
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
        FileFault: it is gone, is not the file that was listed, or its bytes cannot be read.
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
            options["page_checksum_verification"] = True  # has an effect on pages that have a checksum
            options["coerce_int96_timestamp_unit"] = INT96_UNIT
            as_values = pq.ParquetFile(opened, **options)
            as_dictionaries = pq.ParquetFile(opened, read_dictionary=names, **options)
            numbers = leaves(metadata.schema, names)
        except MemoryError:  # not a fault of the file
            raise
        except Exception as error:  # it was readable when the shard was cut
            file.check_unchanged()
            raise FileFault("io_error", f"the footer can no longer be read: {in_words(error)}") from None
        all_read = all(read[role] is not None or role in beside for role in sources)
        types = file.types(columns)
        closing.pop_all()  # the caller closes it
    return FileSource(
        file, columns, opened, as_values, as_dictionaries, readable, names, numbers, beside, types, all_read
    )


MAX_TEXT_BYTES = 16 * 2**20
"""Most bytes of a text, as UTF-8, that are scored."""
MEMORY_A_BYTE = 220
"""Bytes of memory per byte of the worst text, with the slower tokenizer. The faster one takes 50."""

MAX_ROWS_AT_A_TIME = 64
"""Most rows that are decoded together in row groups of more than LARGEST_READ bytes."""
MANY_ROWS_AT_A_TIME = 4096
"""Most rows that are decoded together in other row groups."""
LARGEST_READ = 2**28
"""Most bytes that several rows may take when they are decoded together."""
BATCH_TEXT_BYTES = 4 * 2**20
_SPARE_BYTES = 64 * 2**20
"""Spare bytes of memory. They are more than a decompressor needs for itself."""
_SHIFTED = "columns do not have the same size"
"""Message of Arrow if a column's pages have fewer values than the others'. Earlier rows may then be shifted too."""


class Unreadable(NamedTuple):
    """Rows start … stop−1 of a file, whose bytes exist but cannot be decoded, and the reason.

    Documents of these rows that were yielded before are void.
    """

    start: int
    stop: int
    detail: str


def read(file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
    """Read rows start … stop−1 of one file, once, as `Reader.read` does and with its errors."""
    reader = Reader()
    try:
        yield from reader.read(file, columns, start, stop)
    finally:
        reader.close()


class Reader:
    """Reads ranges of rows. A range that follows the previous one in its row group continues from there.

    A row group can only be decoded from its first row on. Otherwise, each range of a large group would decode all rows
    before it. The rows are the same either way. Within a row group, one file and one batch of it stay open.
    """

    def __init__(self) -> None:
        self._group: _Group | None = None

    def close(self) -> None:
        """Close the file, if one is open."""
        group, self._group = self._group, None
        if group is not None:
            group.source.opened.close()

    def read(self, file: InputFile, columns: Columns, start: int, stop: int) -> Iterator[pa.RecordBatch | Unreadable]:
        """Read rows start … stop−1, in order, in batches of DOCUMENTS, each of about BATCH_TEXT_BYTES of text.

        Rows that the file leaves out (InputFile.rows_not_read) are in no batch.

        Raises:
            FileFault: the file is gone, is not the file that was listed, lacks these rows, or its bytes cannot be read.
        """
        held: list[pa.RecordBatch] = []
        size, reached = 0, start
        not_read = file.rows_not_read(start, stop)
        if not_read.all():
            return
        file.check_unchanged()
        for part in itertools.chain(self._read_small(file, columns, start, stop), (None,)):
            if held and (part is None or isinstance(part, Unreadable) or size + part.nbytes > BATCH_TEXT_BYTES):
                yield held[0] if len(held) == 1 else pa.concat_batches(held)  # do not copy a single batch
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
                yield part  # without a copy, because it may be very long
            else:
                held.append(part)
                size += part.nbytes
        file.check_unchanged()
        if reached != stop:
            raise FileFault("unreadable", f"rows {start} to {stop - 1} were expected, but it ends before row {reached}")

    def _read_small(
        self, file: InputFile, columns: Columns, start: int, stop: int
    ) -> Iterator[pa.RecordBatch | Unreadable]:
        if self._group is not None and (self._group.source.file, self._group.source.columns) != (file, columns):
            self.close()
        group, self._group = self._group, None  # set again only if everything went well
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
    """Yield the row groups that contain some of the rows start … stop−1.

    Each has its number, its first row, and the range of these rows in it.
    """
    first = 0
    for number in range(metadata.num_row_groups):
        end = first + metadata.row_group(number).num_rows
        if max(start, first) < min(stop, end):
            yield number, first, range(max(start, first), min(stop, end))
        first = end


def _reader(source: FileSource, group: int) -> tuple[pq.ParquetFile, int]:
    """Return the reader that a row group needs, and the most rows at a time so that they fit LARGEST_READ."""
    # No value is longer than all bytes of its column, but a value that is stored once may be in every row. The reader
    # `as_dictionaries` keeps it once in memory too, but collects all values that it has read of a row group. In a large
    # group that takes time.
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
    """Compute the bytes of the longest row that a row group's dictionaries can make. None: unknown."""
    try:
        row = next(source.as_dictionaries.iter_batches(1, row_groups=[group], columns=source.names, use_threads=False))
    except MemoryError:
        raise
    except Exception:  # an encoding that is not read in this way, or a corrupt page, which the reader will find too
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
    """Cut rows, beginning with row `first`, into parts of BATCH_TEXT_BYTES when decoded.

    A longer row is a part itself.
    """
    beside = sum(value.as_buffer().size for value in source.beside.values() if is_text(value.type) and value.is_valid)
    sizes = np.full(len(batch), beside, np.int64)
    ends = np.cumsum(sum((lengths(batch.column(name)) for name in source.names), sizes))
    begin = done = 0
    while begin < len(batch):
        end = max(int(np.searchsorted(ends, done + BATCH_TEXT_BYTES, side="right")), begin + 1)
        yield first + begin, batch.slice(begin, end - begin)
        begin, done = end, int(ends[end - 1])


class _Group:
    """A row group that is decoded from its first row on, in batches of one size, for ranges that begin anywhere."""

    # stop: the first row after it, by its footer; batch_rows: number of its rows that are read at first

    def __init__(self, source: FileSource, number: int, first: int, batch_rows: int) -> None:
        self.source, self._number, self._first = source, number, first
        self.stop = first + source.as_values.metadata.row_group(number).num_rows
        self._reader, self._max_rows = _reader(source, number)
        self._at_a_time = self._rows_at_a_time(batch_rows)
        self._batches = self._reader.iter_batches(
            self._at_a_time, row_groups=[number], columns=source.names, use_threads=False
        )
        self._batch: pa.RecordBatch | None = None  # the last decoded batch, whose first row is _begin
        self._begin = self._next = first
        self._corrupt = ""  # the fault of row _next

    def goes_on(self, number: int, rows: range) -> bool:
        """Return whether these rows still come, and a read from the beginning would give the same batches."""
        same = number == self._number and self._at_a_time == self._rows_at_a_time(len(rows))
        return same and rows.start >= self._begin

    def _rows_at_a_time(self, batch_rows: int) -> int:
        return min(self._max_rows, batch_rows) if self._reader is self.source.as_values else self._max_rows

    def read(self, rows: range) -> Iterator[tuple[int, pa.RecordBatch] | Unreadable]:
        """Yield the requested rows, each batch with its first row.

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
                yield Unreadable(rows.start, rows.stop, mismatch)  # all of them, because the missing rows are unknown
                return

    def _decode(self) -> bool:
        """Take the next batch, None at the end. Return False if a page is corrupt, and at every later call."""
        if self._corrupt:
            return False
        self._batch, self._begin = None, self._next
        try:
            self._batch = next(self._batches, None)
        except MemoryError:  # this process may take no more memory: the rows are sound
            raise
        except Exception as error:  # for a corrupt page, the reader raises many kinds of errors
            np.empty(_SPARE_BYTES, np.uint8)  # a decompressor without memory calls its data corrupt
            self.source.check_bytes(self._number)
            self._corrupt = in_words(error)
            return False
        self._next += len(self._batch or ())
        return True


def read_text(raw: bytes | None) -> tuple[str | None, str, str]:
    """Return a stored text in the form that is scored: as `decode_text` reads it, without C2PA manifests."""
    text, reason, detail = decode_text(raw)
    return None if text is None else without_manifests(text), reason, detail


def decode_text(raw: bytes | None) -> tuple[str | None, str, str]:
    """Decode a stored text as far as it can be scored.

    A long text is cut to its first MAX_TEXT_BYTES. Bytes that are no UTF-8, such as surrogates, are replaced by U+FFFD
    as Unicode recommends (3.9, "U+FFFD Substitution of Maximal Subparts"). The result depends only on the stored bytes,
    so p-values hold for it as for any text (SPEC §3).

    Returns:
        One of these:
        (text, "", "");
        (scored part, reason, detail), with a reason of schemas.words.PART_REASONS;
        (None, "null_text", detail).
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
        # a replacement may be longer than the bytes that it replaces
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
    return "surrogates", f"byte {error.start} of the text begins a surrogate, which is not a character"


class Identity(NamedTuple):
    """Fields that identify a document. Null: they cannot be read.

    text_sha256: digest of the text as it is stored.
    """

    doc_id: str | None = None
    account_id: str | None = None
    text_sha256: bytes | None = None


UNKNOWN_IDENTITY = Identity()


def identities(file: InputFile, columns: Columns, start: int, stop: int) -> list[Identity]:
    """Read ids and accounts, but no text, of rows start … stop−1.

    Each column is read by itself, because others may be corrupt.
    """
    ids = _strings(file, NO_COLUMNS._replace(id=columns.id), "doc_id", start, stop)
    accounts = _strings(file, NO_COLUMNS._replace(account=columns.account), "account_id", start, stop)
    return [Identity(*both) for both in zip(ids, accounts, strict=True)]


def identify(file: InputFile, columns: Columns, row: int) -> Identity:
    """Read ids and account of one row, with its text's digest. Like reading the text, it may end this process."""
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

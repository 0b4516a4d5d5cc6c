"""Read the footers of untrusted Parquet files, with the metadata of row groups and columns.

A process that asks pyarrow about a column of an untrusted footer (`ColumnChunkMetaData`) may crash, because Python
cannot catch the exceptions that C++ throws there. So only the processes of scanner.input.inspector call `row_groups`,
and readers ask only about columns that were asked about there.
"""

import io
import os
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import FileFault
from scanner.input.columns import Columns, Sources, check_columns, readable
from scanner.input.files import InputFile

MAX_FOOTER_BYTES = 64 * 2**20
"""Largest number of bytes of a footer. A footer of 100,000 column chunks with statistics takes some 20 MB."""


_MAGIC, _MAGIC_OF_ENCRYPTED = b"PAR1", b"PARE"


_TAIL_BYTES = 8  # length of the footer, and the magic bytes


_READ_AT_ONCE = 64 * 2**10


_SIGNATURE_BYTES = 28  # nonce and tag behind the metadata, where columns are encrypted and the footer is not


_ARROW_SCHEMA = b"\x0cARROW:schema"  # length and name of the key, as Thrift writes them


INT96_UNIT = "us"
"""Unit in which int96 times are read. It covers 290,000 years before and after 1970.

Arrow's default, nanoseconds, wraps before 1677 and after 2262.
"""


class RowGroup(NamedTuple):
    """The metadata of a Parquet row group: its rows, and the bytes of its text before compression."""

    rows: int
    text_bytes: int


def read_footer(file: InputFile) -> pa.Buffer:
    """Read the end of a file, from its metadata on. An error here comes from the storage, a later one from the content.

    Raises:
        FileFault: it cannot be read, or it is no complete Parquet file.
    """
    with file.open() as opened:
        if opened.size() != file.size:
            file.check_unchanged()
        end = _end_of(opened)
        head = end[: len(_MAGIC)] if len(end) == opened.size() else _bytes(opened, 0, len(_MAGIC))
        if head == _MAGIC_OF_ENCRYPTED:
            raise FileFault("encrypted", "its footer is encrypted, so the file cannot be read without a key")
        if head != _MAGIC:  # the first bytes are not shown: they may be a secret
            detail = f"a Parquet file begins with {_MAGIC!r}, but this one of {opened.size()} bytes does not"
            raise FileFault("not_parquet", detail)
        return footer_of(opened, end)


def _end_of(opened: pa.NativeFile) -> bytes:
    """Read a file's last bytes. A small file is read whole, so its beginning needs no further request."""
    size = min(opened.size(), _READ_AT_ONCE)
    return _bytes(opened, opened.size() - size, size)


def _bytes(opened: pa.NativeFile, begin: int, size: int) -> bytes:
    try:
        return bytes(opened.read_at(size, begin))
    except OSError as error:
        raise FileFault("io_error", f"the file cannot be read: {error}") from None


def footer_of(opened: pa.NativeFile, end: bytes = b"") -> pa.Buffer:
    """Read the footer of an open file that begins like a Parquet file.

    Args:
        opened: the file.
        end: its last bytes, if they were read already.

    Raises:
        FileFault: it cannot be read, or is no Parquet file.
    """
    size, end = opened.size(), end or _end_of(opened)
    if end[-len(_MAGIC) :] != _MAGIC or size < len(_MAGIC) + _TAIL_BYTES:
        detail = f"a Parquet file ends with {_MAGIC!r}, but this one of {size} bytes does not"
        raise FileFault("truncated", detail)
    length = int.from_bytes(end[-_TAIL_BYTES : -len(_MAGIC)], "little") + _TAIL_BYTES
    if length > min(size - len(_MAGIC), MAX_FOOTER_BYTES):
        detail = f"it has {size} bytes, but a footer may have at most {MAX_FOOTER_BYTES}"
        raise FileFault("unreadable", f"the file states too long a footer: {detail}")
    return pa.py_buffer(end[-length:] if length <= len(end) else _bytes(opened, size - length, length))


def open_footer(footer: pa.Buffer) -> pq.ParquetFile:
    """Open a Parquet file without its data. Any error of a reader may be raised.

    A file may also contain an Arrow schema with types that this Arrow does not know, such as polars' Int128. The Arrow
    schema is then ignored.
    """
    try:
        return pq.ParquetFile(pa.BufferReader(footer), coerce_int96_timestamp_unit=INT96_UNIT)
    except MemoryError:
        raise
    except Exception:
        plain = footer.to_pybytes()
        if _ARROW_SCHEMA not in plain:
            raise
    plain = plain.replace(_ARROW_SCHEMA, _ARROW_SCHEMA.lower())
    return pq.ParquetFile(pa.BufferReader(plain), coerce_int96_timestamp_unit=INT96_UNIT)


class _NoData(io.RawIOBase):
    """A file that has a size, and returns no bytes."""

    def __init__(self, size: int) -> None:
        self._size, self._position = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, _size: int = -1) -> bytes:
        raise OSError("there is no data")


def encrypted_columns(parquet: pq.ParquetFile, footer: pa.Buffer, size: int, names: Iterable[str | None]) -> set[str]:
    """Return which of some columns, none of them nested, are encrypted in a file of `size` bytes.

    A process that asks for the metadata of such a column crashes. So the column is read from a file without data: the
    error is then about keys, or about data.
    """
    metadata = parquet.metadata
    if not metadata.num_row_groups or not has_encrypted_columns(metadata, footer):
        return set()
    options = {"metadata": metadata, "pre_buffer": False, "buffer_size": 2**12}  # keys are asked for before data
    empty = pq.ParquetFile(pa.PythonFile(_NoData(size), "r"), **options)
    encrypted = set()
    for number in leaves(metadata.schema, names):
        name = metadata.schema.column(number).path
        try:
            next(empty.iter_batches(1, row_groups=[0], columns=[name], use_threads=False))
        except OSError as error:
            if "crypt" in str(error):
                encrypted.add(name)
    return encrypted


def has_encrypted_columns(metadata: pq.FileMetaData, footer: pa.Buffer) -> bool:
    """Return whether a readable footer belongs to a file with encrypted columns."""
    return bool(footer.size - _TAIL_BYTES - metadata.serialized_size == _SIGNATURE_BYTES)


def readable_in(parquet: pq.ParquetFile, footer: pa.Buffer, size: int, columns: Columns, sources: Sources) -> Columns:
    """Return the columns as `readable` does, but also without encrypted ids, accounts and times."""
    plain = readable(parquet.schema_arrow, columns, sources)
    encrypted = encrypted_columns(parquet, footer, size, plain.names.values())
    identity, account, time = (None if name in encrypted else name for name in (plain.id, plain.account, plain.time))
    return plain._replace(id=identity, account=account, time=time)


def leaves(schema: pq.ParquetSchema, names: Iterable[str | None]) -> list[int]:
    """Return the numbers of the columns of these names. A nested column may have the same name."""
    paths = set(names)
    return [i for i in range(len(schema)) if schema.column(i).path in paths]


def bytes_of(group: pq.RowGroupMetaData, columns: Iterable[int]) -> int:
    """Compute the bytes of columns of a row group before compression."""
    return sum(group.column(i).total_uncompressed_size for i in columns)


def row_groups(footer: pa.Buffer, size: int, columns: Columns, sources: Sources) -> list[RowGroup]:
    """Read the footer of a file of `size` bytes, and check that it can be scanned. This may crash the process.

    Args:
        footer: the footer.
        size: bytes of the file.
        columns: the columns to read.
        sources: where the file has the columns.

    Raises:
        FileFault: the footer cannot be read, contradicts itself, or lacks the columns to read.
    """
    try:
        return _row_groups(footer, size, columns, sources)
    except (FileFault, MemoryError):
        raise
    except UnicodeDecodeError:
        raise FileFault("unreadable", "the footer cannot be read: the name of a column is not valid UTF-8") from None
    except Exception as error:  # a broken footer makes the reader raise many things
        raise FileFault("unreadable", f"the footer cannot be read: {in_words(error)}") from None


def _row_groups(footer: pa.Buffer, size: int, columns: Columns, sources: Sources) -> list[RowGroup]:
    parquet = open_footer(footer)
    metadata, schema = parquet.metadata, parquet.metadata.schema
    check_columns(parquet.schema_arrow, columns, sources)
    names = readable(parquet.schema_arrow, columns, sources).names
    texts = leaves(schema, [names["text"]])
    begin_of_footer = size - footer.size
    if has_encrypted_columns(metadata, footer):  # which cannot be asked for, whatever they hold
        encrypted = encrypted_columns(parquet, footer, size, names.values())
        if names["text"] in encrypted:
            detail = f"column {columns.text!r} (text) is encrypted and cannot be read without its key"
            raise FileFault("encrypted", detail)
        read = [i for i in leaves(schema, names.values()) if schema.column(i).path not in encrypted]
    else:
        read = [*range(len(schema))]
    flat = {i for i in read if schema.column(i).max_repetition_level == 0}
    groups, ranges = [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        where = f"row group {number}"
        if group.num_columns != len(schema):
            raise _contradiction(f"{where} has {group.num_columns} columns, but the schema has {len(schema)}")
        if group.num_rows < 0:
            raise _contradiction(f"{where} has {group.num_rows} rows")
        for i in read:
            chunk = group.column(i)
            if i in flat and chunk.num_values != group.num_rows:
                raise _contradiction(
                    f"{where} has {group.num_rows} rows, but its column {i} has {chunk.num_values} values"
                )
            if chunk.file_path:
                raise _contradiction(f"column {i} of {where} lies in another file")
            if chunk.num_values:
                begin, end = range_of(chunk)
                if not len(_MAGIC) <= begin <= chunk.data_page_offset < end <= begin_of_footer:
                    raise _contradiction(f"column {i} of {where} lies outside the file's data")
                ranges.append((begin, end))
        groups.append(RowGroup(group.num_rows, bytes_of(group, texts)))
        if groups[-1].text_bytes < 0:
            raise _contradiction(f"{where} has {groups[-1].text_bytes} bytes of text")
    _check_ranges(ranges)
    rows = sum(group.rows for group in groups)
    if rows != metadata.num_rows:
        raise _contradiction(f"the file has {metadata.num_rows} rows, but its row groups have {rows}")
    return groups


def range_of(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the first byte of a column chunk, and the byte behind its last."""
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    return begin, begin + chunk.total_compressed_size


def _check_ranges(ranges: list[tuple[int, int]]) -> None:
    """Raise FileFault if a byte belongs to two column chunks, for example because a row group is listed twice."""
    ranges.sort()
    for (_, end), (begin, _) in pairwise(ranges):
        if begin < end:
            raise _contradiction(f"two columns overlap at byte {begin}")


def _contradiction(fault: str) -> FileFault:
    return FileFault("unreadable", f"the footer contradicts itself: {fault}")


def in_words(error: Exception) -> str:
    """Return a library's message up to the first colon. Bytes of the file may follow the colon."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__} {lines[0].partition(':')[0]}"[:300].strip()

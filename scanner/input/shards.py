"""From a Parquet file's footer to its shards: row ranges, and the id that hashes all that a shard's verdicts depend on.

A process that asks pyarrow about a column of an untrusted footer (`ColumnChunkMetaData`) may end: Python cannot catch
the exceptions that C++ throws there. So `row_groups` is called in the processes of scanner.input.inspector alone, and
readers ask only about columns that were asked about there.

Cutting is a function of a file's Parquet metadata alone, so that a rerun, with whatever configuration and on whatever
cluster, meets the same shards and can leave out those that are committed. Where several drivers share a night, a hash
of a file's path says whose it is.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.errors import FileFault
from scanner.input.columns import Columns, Sources, check_columns, readable
from scanner.input.files import InputFile
from scanner.input.tables import rows_sha256
from schemas.registry import MasterKey

MAX_FOOTER_BYTES = 64 * 2**20
"""Most bytes of a footer that is read. A footer of 100,000 column chunks with statistics takes some 20 MB."""

_MAGIC, _MAGIC_OF_ENCRYPTED = b"PAR1", b"PARE"
_TAIL_BYTES = 8  # length of the footer, and the magic bytes
_READ_AT_ONCE = 64 * 2**10
_SIGNATURE_BYTES = 28  # nonce and tag behind the metadata, where columns are encrypted and the footer is not
_ARROW_SCHEMA = b"\x0cARROW:schema"  # length and name of the key, as Thrift writes them


INT96_UNIT = "us"
"""Unit in which int96 times are read: 290,000 years to each side, where the nanoseconds that Arrow reads them in wrap
beyond 1677 and 2262.
"""


class RowGroup(NamedTuple):
    """The metadata of a Parquet row group: its rows, and the bytes of its text before compression."""

    rows: int
    text_bytes: int


def read_footer(file: InputFile) -> pa.Buffer:
    """The end of a file, from its metadata on. An error here is the storage's fault, a later error the content's.

    Raises:
        FileFault: it cannot be read, or it is no whole Parquet file.
    """
    with file.open() as opened:
        if opened.size() != file.size:
            file.check_unchanged()
        end = _end_of(opened)
        head = end[: len(_MAGIC)] if len(end) == opened.size() else _bytes(opened, 0, len(_MAGIC))
        if head == _MAGIC_OF_ENCRYPTED:
            raise FileFault("encrypted", "its footer is encrypted, and so nothing of it can be read without a key")
        if head != _MAGIC:  # the first bytes are not shown: they may be a secret
            what = f"a Parquet file begins with {_MAGIC!r}, this one of {opened.size()} bytes does not"
            raise FileFault("not_parquet", what)
        return footer_of(opened, end)


def _end_of(opened: pa.NativeFile) -> bytes:
    """A file's last bytes. A small file is read whole, so that its beginning needs no request of its own."""
    size = min(opened.size(), _READ_AT_ONCE)
    return _bytes(opened, opened.size() - size, size)


def _bytes(opened: pa.NativeFile, begin: int, size: int) -> bytes:
    try:
        return bytes(opened.read_at(size, begin))
    except OSError as error:
        raise FileFault("io_error", f"the file cannot be read: {error}") from None


def footer_of(opened: pa.NativeFile, end: bytes = b"") -> pa.Buffer:
    """The footer of a file that is open, and that begins as a Parquet file does; end: its last bytes, if they are read.

    Raises:
        FileFault: it cannot be read, or is none.
    """
    size, end = opened.size(), end or _end_of(opened)
    if end[-len(_MAGIC) :] != _MAGIC or size < len(_MAGIC) + _TAIL_BYTES:
        what = f"a Parquet file ends with {_MAGIC!r}, this one of {size} bytes does not"
        raise FileFault("truncated", what)
    wanted = int.from_bytes(end[-_TAIL_BYTES : -len(_MAGIC)], "little") + _TAIL_BYTES
    if wanted > min(size - len(_MAGIC), MAX_FOOTER_BYTES):
        what = f"it has {size} bytes, and at most {MAX_FOOTER_BYTES} of a footer are read"
        raise FileFault("unreadable", f"the end of the file announces too long a footer: {what}")
    return pa.py_buffer(end[-wanted:] if wanted <= len(end) else _bytes(opened, size - wanted, wanted))


def open_footer(footer: pa.Buffer) -> pq.ParquetFile:
    """A Parquet file without its data; raises whatever a reader raises.

    Beside Parquet's schema there may be an Arrow schema with types that this Arrow does not know, such as polars'
    Int128. Then the Arrow schema is left out.
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
    """A file of a size that gives no bytes."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, _size: int = -1) -> bytes:
        raise OSError("there are no data")


def encrypted_columns(parquet: pq.ParquetFile, footer: pa.Buffer, size: int, names: Iterable[str | None]) -> set[str]:
    """Those of some columns, none of them nested, that are encrypted in a file of `size` bytes.

    A process that asks for the metadata of such a column ends. So it is read from a file without data: what comes back
    is an error about keys, or about data.
    """
    metadata = parquet.metadata
    if not metadata.num_row_groups or not has_encrypted_columns(metadata, footer):
        return set()
    options = {"metadata": metadata, "pre_buffer": False, "buffer_size": 2**12}  # keys are asked for before data
    empty = pq.ParquetFile(pa.PythonFile(_NoData(size), "r"), **options)
    found = set()
    for number in leaves(metadata.schema, names):
        name = metadata.schema.column(number).path
        try:
            next(empty.iter_batches(1, row_groups=[0], columns=[name], use_threads=False))
        except OSError as error:
            if "crypt" in str(error):
                found.add(name)
    return found


def has_encrypted_columns(metadata: pq.FileMetaData, footer: pa.Buffer) -> bool:
    """Whether a footer that can be read is of a file with encrypted columns."""
    return bool(footer.size - _TAIL_BYTES - metadata.serialized_size == _SIGNATURE_BYTES)


def readable_in(parquet: pq.ParquetFile, footer: pa.Buffer, size: int, columns: Columns, sources: Sources) -> Columns:
    """As `readable`, also without ids, accounts and times that are encrypted in a file."""
    found = readable(parquet.schema_arrow, columns, sources)
    encrypted = encrypted_columns(parquet, footer, size, found.names.values())
    identity, account, time = (None if name in encrypted else name for name in (found.id, found.account, found.time))
    return found._replace(id=identity, account=account, time=time)


def leaves(schema: pq.ParquetSchema, names: Iterable[str | None]) -> list[int]:
    """Numbers of the columns of these names. A nested column may have the same name."""
    wanted = set(names)
    return [i for i in range(len(schema)) if schema.column(i).path in wanted]


def bytes_of(group: pq.RowGroupMetaData, columns: Iterable[int]) -> int:
    """Bytes of columns of a row group before compression."""
    return sum(group.column(i).total_uncompressed_size for i in columns)


def row_groups(footer: pa.Buffer, size: int, columns: Columns, sources: Sources) -> list[RowGroup]:
    """Read the footer of a file of `size` bytes, and check that it can be scanned. May end this process.

    sources: where the file has the columns.

    Raises:
        FileFault: the footer cannot be read, contradicts itself, or lacks the columns that are to be read.
    """
    try:
        return _row_groups(footer, size, columns, sources)
    except (FileFault, MemoryError):
        raise
    except UnicodeDecodeError:
        raise FileFault("unreadable", "the footer cannot be read: the name of a column is no UTF-8") from None
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
            what = f"column {columns.text!r} (text) is encrypted, and cannot be read without its key"
            raise FileFault("encrypted", what)
        read = [i for i in leaves(schema, names.values()) if schema.column(i).path not in encrypted]
    else:
        read = [*range(len(schema))]
    flat = {i for i in read if schema.column(i).max_repetition_level == 0}
    groups, ranges = [], []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        where = f"row group {number}"
        if group.num_columns != len(schema):
            raise _contradiction(f"{where} has {group.num_columns} columns, the schema {len(schema)}")
        if group.num_rows < 0:
            raise _contradiction(f"{where} has {group.num_rows} rows")
        for i in read:
            chunk = group.column(i)
            if i in flat and chunk.num_values != group.num_rows:
                raise _contradiction(f"{where} has {group.num_rows} rows, its column {i} {chunk.num_values} values")
            if chunk.file_path:
                raise _contradiction(f"column {i} of {where} lies in another file")
            if chunk.num_values:
                begin, end = range_of(chunk)
                if not len(_MAGIC) <= begin <= chunk.data_page_offset < end <= begin_of_footer:
                    raise _contradiction(f"column {i} of {where} lies outside of the file's data")
                ranges.append((begin, end))
        groups.append(RowGroup(group.num_rows, bytes_of(group, texts)))
        if groups[-1].text_bytes < 0:
            raise _contradiction(f"{where} has {groups[-1].text_bytes} bytes of text")
    _check_ranges(ranges)
    rows = sum(group.rows for group in groups)
    if rows != metadata.num_rows:
        raise _contradiction(f"the file has {metadata.num_rows} rows, its row groups {rows}")
    return groups


def range_of(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """First byte of a column chunk, and the byte behind its last."""
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    return begin, begin + chunk.total_compressed_size


def _check_ranges(ranges: list[tuple[int, int]]) -> None:
    """Raise FileFault when a byte belongs to two column chunks, as when a row group is listed twice."""
    ranges.sort()
    for (_, end), (begin, _) in pairwise(ranges):
        if begin < end:
            raise _contradiction(f"two columns have byte {begin}")


def _contradiction(fault: str) -> FileFault:
    return FileFault("unreadable", f"the footer contradicts itself: {fault}")


def in_words(error: Exception) -> str:
    """A library's message up to the first colon: bytes of the file may stand behind it."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__} {lines[0].partition(':')[0]}"[:300].strip()


MAX_ROWS = 20_000
MAX_TEXT_BYTES = 16 * 2**20
MOST_SHARDS = 2**14
"""Most shards of a file: 3·10^8 rows, or 256 GiB of text. A footer of a few bytes may claim any number of rows."""
RESULTS_VERSION = 3
"""Version of the verdicts. It is raised when the same text under the same keys gets another verdict than before; every
night that was ever scanned is then scanned again. 2: a text's form decides its weights. 3: the normal form of three
rules, and long runs of unseen characters are cut off.

A text that was in quarantine and is scored now raises nothing: no verdict changes.
"""


class Range(NamedTuple):
    """Rows start … stop−1 of a file, and about how many bytes of text they hold."""

    start: int
    stop: int
    text_bytes: int

    @property
    def documents(self) -> int:
        """How many rows."""
        return self.stop - self.start


@dataclass(frozen=True)
class Shard:
    """The unit of commitment: a row range of one file under a set of tests.

    shard_id: 64 hex digits; first_scanned: when an earlier scan, under other tests, had the same file; keys: ids of
    the keys that look at it, where these are not all that are under test.
    """

    shard_id: str
    file: InputFile
    rows: Range
    first_scanned: datetime | None = None
    keys: tuple[str, ...] = ()


def cut(groups: Sequence[RowGroup]) -> list[Range]:
    """Cut a file into ranges of at most MAX_ROWS rows and MAX_TEXT_BYTES of text.

    Whole row groups are packed while they fit. A row group that exceeds the limits alone is cut evenly by rows; a
    single row is never cut, however long. Rows come in order, each exactly once; row groups without rows vanish.

    Raises:
        FileFault: the file would have far more ranges than MOST_SHARDS.
    """
    rows, text_bytes = sum(group.rows for group in groups), sum(group.text_bytes for group in groups)
    if rows // MAX_ROWS + text_bytes // MAX_TEXT_BYTES > MOST_SHARDS:
        what = f"{rows} rows with {text_bytes} bytes of text"
        raise FileFault("unreadable", f"the footer claims {what}, more than {MOST_SHARDS} shards; split the file")
    ranges: list[Range] = []
    packed = Range(0, 0, 0)
    for group in groups:
        if not _fits(packed.stop - packed.start + group.rows, packed.text_bytes + group.text_bytes):
            ranges.append(packed)
            packed = Range(packed.stop, packed.stop, 0)
            if not _fits(group.rows, group.text_bytes):
                ranges += _evenly(group, packed.stop)
                packed = Range(packed.stop + group.rows, packed.stop + group.rows, 0)
                continue
        packed = Range(packed.start, packed.stop + group.rows, packed.text_bytes + group.text_bytes)
    return [rows for rows in [*ranges, packed] if rows.stop > rows.start]


def _fits(rows: int, text_bytes: int) -> bool:
    return rows <= MAX_ROWS and text_bytes <= MAX_TEXT_BYTES


def _evenly(group: RowGroup, first: int) -> list[Range]:
    most = min(MAX_ROWS, max(MAX_TEXT_BYTES * group.rows // max(group.text_bytes, 1), 1))
    parts = -(-group.rows // most)
    bounds = [group.rows * i // parts for i in range(parts + 1)] if parts else []
    return [Range(first + a, first + b, group.text_bytes * (b - a) // group.rows) for a, b in pairwise(bounds)]


def verdict_settings(
    keys: Sequence[MasterKey],
    keys_tested: int,
    dedup: str,
    min_scored: int,
    columns: Columns,
    variants: Sequence[str] = (),
    weights: Mapping[str, float] = MappingProxyType({}),
    filter_sha256: str | None = None,
) -> str:
    """Canonical JSON of everything but the file that decides verdicts: keys in order, K, rules, columns, version.

    keys_tested: how many keys share equally; weights: the weights of units and variants, left out where they are equal;
    filter_sha256: digest of the n-grams that are left out of scoring, None: none are.
    """
    from scanner.watermark.formats import (
        format_of,  # late: numba takes two seconds, and those who read results need none
    )

    return _canonical(
        {
            "results_version": RESULTS_VERSION,
            "keys": [
                {
                    "key_id": key.key_id,
                    **format_of(key).digest_fields(),
                    "messages": key.messages,
                    "commitment": key.commitment,
                    "tokenizer": key.tokenizer.sha256,
                    **({} if key.one_of is None else {"one_of": key.one_of}),
                }
                for key in keys
            ],
            # A later key changes nothing for keys with weights, and ids are older than the weights of variants, when
            # each variant counted as so many keys more.
            "keys_tested": None if all(key.one_of is not None for key in keys) else keys_tested * (1 + len(variants)),
            "dedup": dedup,
            "min_scored": min_scored,
            "columns": columns.names,
            # ids are older than these fields
            **({} if columns.time_zone == "UTC" else {"time_zone": columns.time_zone}),
            **({"variants": list(variants)} if variants else {}),
            **({"weights": dict(weights)} if weights else {}),
            **({"filter": filter_sha256} if filter_sha256 else {}),
        }
    )


def key_set(key_ids: Iterable[str]) -> str:
    """Digest of the ids of keys that were tested together, in whatever order; 64 hex digits."""
    return _digest(sorted(key_ids))


def shard_id(file: InputFile, rows: Range | None, settings: str) -> str:
    """SHA-256, in hex, of everything that decides a shard's rows.

    `rows` None: the file as a whole, which could not be read. Where it is a table's, its values of partitions and its
    deleted rows count too, but not the table's version: a commit that leaves a file as it is changes none of its ids.
    """
    span = None if rows is None else [rows.start, rows.stop]
    of_file = {"path": file.path, "size": file.size, "modified": file.modified, "rows": span, "decides": settings}
    if file.entry is not None:
        of_file["entry"] = [file.entry.values, rows_sha256(file.entry.deleted)]
        if rows is None:  # a column that lacked may be in the table later, whose files stay as they are
            of_file["columns"] = sorted(file.entry.columns)
    return _digest(of_file)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


class DriverShare(NamedTuple):
    """A driver's share of the input, one of several parts, written `number/of`; numbers begin at 1.

    A file's path alone decides its part. So parts are disjoint and together hold all files, also where drivers list the
    input at different times. Parts of many files hold about equal bytes.
    """

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> "DriverShare":
        """A part as people write it, such as `1/3`. Raises ValueError: the text names no part."""
        if not re.fullmatch("[0-9]{1,6}/[0-9]{1,6}", text):
            raise ValueError(f"{text!r} names no part; write its number and how many parts there are, as in 1/3")
        number, of = map(int, text.split("/"))
        if not 1 <= number <= of:
            raise ValueError(f"{text!r} names no part; the number is 1 to {of}, as in 1/{max(of, 1)}")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, file: InputFile) -> bool:
        """Whether a file belongs to this part."""
        hashed = int.from_bytes(hashlib.sha256(file.path.encode()).digest()[:8])
        return hashed % self.of == self.number - 1

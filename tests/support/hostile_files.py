"""Parquet files made to crash a reader, to lose rows or to double them."""

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

from tests.support import footers
from tests.support.footers import File
from tests.support.thrift import BINARY, STRUCT, Field

ROWS, IN_A_GROUP = 12, 6
TEXT, DOC_ID, OTHER = 0, 1, 2  # columns by number


def table(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "text": [f"text {i} " * 5 for i in range(rows)],
            "doc_id": [str(i) for i in range(rows)],
            "other": list(range(rows)),
        }
    )


def written(path: Path, content: pa.Table | None = None, **options) -> Path:
    pq.write_table(table() if content is None else content, path, **{"row_group_size": IN_A_GROUP, **options})
    return path


def set_value(group: int, column: int, number: int, value: int) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.chunk(group, column)[number].value = value

    return change


def drop_group(file: File) -> None:
    file.groups.pop()


def list_twice(file: File) -> None:
    file.list_twice(0)


def list_twice_silently(file: File) -> None:
    file.list_twice(0)
    file.footer[footers.FILE_ROWS].value = ROWS


def without_columns(file: File) -> None:
    for group in file.groups:
        group[footers.CHUNKS].value.items.clear()


def with_fewer_columns(file: File) -> None:
    file.groups[1][footers.CHUNKS].value.items.pop()


def text_from(group: int, column: int) -> Callable[[File], None]:
    """Points the texts of the first row group at the bytes of other values."""

    def change(file: File) -> None:
        other = file.chunk(group, column)
        for number in (footers.DATA_PAGE, footers.DICTIONARY_PAGE, footers.COMPRESSED):
            file.chunk(0, TEXT)[number].value = other[number].value

    return change


def in_another_file(file: File) -> None:
    chunk = file.groups[0][footers.CHUNKS].value.items[TEXT]
    file.groups[0][footers.CHUNKS].value.items[TEXT] = {footers.FILE_PATH: Field(BINARY, b"b.parquet"), **chunk}


def file_rows(rows: int) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.footer[footers.FILE_ROWS].value = rows

    return change


def rows_alone(rows: int) -> Callable[[File], None]:
    return lambda file: file.claim_rows(0, rows)


def rows_of_group_and_file(rows: int) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.claim_rows(0, rows)
        file.footer[footers.FILE_ROWS].value = rows + IN_A_GROUP

    return change


CONTRADICTIONS = {
    **{f"a row group with {rows} rows": rows_alone(rows) for rows in (3, 5, 0, -1, 7, 2**40)},
    **{f"a row group and the file with {rows} rows": rows_of_group_and_file(rows) for rows in (3, 0, -1, 7, 2**40)},
    **{f"a file with {rows} rows": file_rows(rows) for rows in (0, -1, 6, 13)},
    "a row group missing": drop_group,
    "a row group listed twice": list_twice,
    "a row group listed twice, and not counted": list_twice_silently,
    "row groups without columns": without_columns,
    "a row group with fewer columns": with_fewer_columns,
    "the texts of the other row group": text_from(1, TEXT),
    "ids for texts": text_from(0, DOC_ID),
    "values of a column that is not read, for texts": text_from(0, OTHER),
    "fewer texts than rows": set_value(0, TEXT, footers.VALUES, 5),
    "no texts": set_value(0, TEXT, footers.VALUES, 0),
    "more values than rows, in a column that is not read": set_value(1, OTHER, footers.VALUES, 7),
    "texts before the file": set_value(0, TEXT, footers.DATA_PAGE, -1),
    "texts in the head": set_value(0, TEXT, footers.DICTIONARY_PAGE, 3),
    "texts behind the file": set_value(0, TEXT, footers.DATA_PAGE, 2**50),
    "texts that reach into the footer": set_value(1, OTHER, footers.COMPRESSED, 1000),
    "texts of no bytes": set_value(0, TEXT, footers.COMPRESSED, 0),
    "texts of less than no bytes": set_value(0, TEXT, footers.COMPRESSED, -1),
    "texts of less than no bytes when unpacked": set_value(0, TEXT, footers.UNCOMPRESSED, -1),
    "texts in another file": in_another_file,
}


class Kms(pe.KmsClient):
    """A key service that wraps keys in base64 alone."""

    def wrap_key(self, key_bytes: bytes, _master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)


def encrypted(path: Path, column: str, *, footer: bool = False) -> Path:
    """A file with one encrypted column, and a footer that anybody can read unless it is encrypted too."""
    factory = pe.CryptoFactory(lambda _: Kms())
    how = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": [column]}, plaintext_footer=not footer)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, table().schema, encryption_properties=properties) as writer:
        writer.write_table(table(), row_group_size=IN_A_GROUP)
    return path


def with_footer_key(path: Path, column: str, number: int) -> Path:
    """A file with one column that is encrypted by the key of its footer, which anybody can read."""
    file = File(encrypted(path, column))
    for group in file.groups:
        group[footers.CHUNKS].value.items[number][footers.CRYPTO].value = {1: Field(STRUCT, {})}
    return file.write(path)


def histogram(column: int) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        file = File(written(path))
        footers.with_longer_histogram(file.chunk(0, column))
        return file.write(path)

    return make


FATAL = {
    "a histogram of the texts": histogram(TEXT),
    "a histogram of a column that is not read": histogram(OTHER),
}


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def with_short_page(path: Path) -> Path:
    """The first of ten pages of texts says that it holds ten values fewer than it does."""
    plain = {"compression": "none", "data_page_size": 2000, "max_rows_per_page": 100, "write_statistics": False}
    file = File(written(path, table(2000), row_group_size=1000, use_dictionary=False, **plain))
    header, begin, end = file.page_header(0, TEXT)
    assert header[footers.V1].value[footers.PAGE_VALUES].value == 100
    header[footers.V1].value[footers.PAGE_VALUES].value = 90
    packed = footers.write_struct(header)
    assert len(packed) == end - begin
    file.data = file.data[:begin] + packed + file.data[end:]
    return file.write(path)


def with_wrong_text(path: Path, **options) -> Path:
    """One letter of a text is changed after the file was written."""
    written(path, use_dictionary=False, compression="none", **options)
    path.write_bytes(path.read_bytes().replace(b"text 7 text", b"tent 7 text", 1))
    return path

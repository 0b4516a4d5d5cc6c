"""Footers that contradict themselves, that end the process which reads them, and sound ones that look odd."""

import base64
import os
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from scanner.input.columns import Columns
from scanner.input.documents import Unreadable, read
from scanner.input.files import FileFault, InputFile, list_files
from scanner.input.shards import MAX_ROWS, MOST_SHARDS, cut
from tests.support import footers
from tests.support.footers import File
from tests.support.inspection import inspect
from tests.support.thrift import BINARY, Field

COLUMNS = Columns("text", "doc_id", None, None)
ROWS, IN_A_GROUP = 12, 6
TEXT, DOC_ID, OTHER = 0, 1, 2  # numbers of the columns


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


def listed(path: Path) -> InputFile:
    return list_files([str(path)])[0]


def fault_of(path: Path, columns: Columns = COLUMNS) -> FileFault:
    with pytest.raises(FileFault) as fault:
        cut(inspect(listed(path), columns))
    return fault.value


def texts(path: Path, columns: Columns = COLUMNS) -> list[str | None]:
    """All texts of a file, read as a scan reads them."""
    file = listed(path)
    rows = sum(group.rows for group in inspect(file, columns))
    return [
        None if raw is None else raw.decode()
        for part in read(file, columns, 0, rows)
        for raw in part["text"].to_pylist()
    ]


def test_a_footer_is_put_together_as_it_was(tmp_path):
    path = written(tmp_path / "a.parquet")
    assert File(path).write(tmp_path / "b.parquet").read_bytes() == path.read_bytes()


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
    """The texts of the first row group are read where other values lie."""

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


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_footer_that_contradicts_itself_is_unreadable(tmp_path, change):
    file = File(written(tmp_path / "a.parquet"))
    change(file)
    fault = fault_of(file.write(tmp_path / "b.parquet"))
    assert (fault.reason, fault.lasting) == ("unreadable", True)
    assert "contradicts itself" in fault.detail


@pytest.mark.parametrize(("rows", "found"), [(MAX_ROWS * MOST_SHARDS * 2, "claims"), (2**40, "claims")])
def test_what_a_footer_may_claim_is_bounded(tmp_path, rows, found):
    file = File(written(tmp_path / "a.parquet"))
    file.claim_rows(1, rows, everywhere=True)
    assert found in fault_of(file.write(tmp_path / "b.parquet")).detail
    file = File(written(tmp_path / "a.parquet"))
    file.chunk(1, TEXT)[footers.UNCOMPRESSED].value = 2**62
    assert found in fault_of(file.write(tmp_path / "c.parquet")).detail


def test_a_name_of_a_column_that_is_no_utf8(tmp_path):
    for column in (TEXT, OTHER):
        file = File(written(tmp_path / "a.parquet"))
        file.footer[footers.SCHEMA].value.items[1 + column][footers.NAME].value = b"\xff\xfe"
        fault = fault_of(file.write(tmp_path / "b.parquet"))
        assert (fault.reason, fault.lasting) == ("unreadable", True)
        assert "no UTF-8" in fault.detail


class Kms(pe.KmsClient):
    """Wraps keys in nothing."""

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


def histogram(column: int) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        file = File(written(path))
        footers.with_longer_histogram(file.chunk(0, column))
        return file.write(path)

    return make


FATAL = {
    "an encrypted text": lambda path: encrypted(path, "text"),
    "an encrypted id": lambda path: encrypted(path, "doc_id"),
    "a histogram of the texts": histogram(TEXT),
    "a histogram of a column that is not read": histogram(OTHER),
}


@pytest.mark.parametrize("make", FATAL.values(), ids=FATAL)
def test_a_footer_that_ends_the_process_that_reads_it_is_unreadable(tmp_path, make):
    fault = fault_of(make(tmp_path / "a.parquet"))
    assert (fault.reason, fault.lasting) == ("unreadable", True)
    assert fault.detail == "the footer ends the process that reads it, by SIGABRT"


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def test_an_encrypted_footer(tmp_path):
    assert fault_of(encrypted(tmp_path / "a.parquet", "other", footer=True)).reason == "not_parquet"


def test_an_encrypted_column_beside_the_text_does_not_cost_the_file(tmp_path):
    assert texts(encrypted(tmp_path / "a.parquet", "other")) == table()["text"].to_pylist()


def test_where_a_column_is_encrypted_those_that_are_read_are_still_checked(tmp_path):
    for change in (list_twice, text_from(0, DOC_ID), rows_alone(5)):
        file = File(encrypted(tmp_path / "a.parquet", "other"))
        change(file)
        assert "contradicts itself" in fault_of(file.write(tmp_path / "b.parquet")).detail


@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128])
def test_a_type_beside_the_text_that_arrow_does_not_know(tmp_path, kind):
    frame = pl.DataFrame({"text": ["a", None, "ü"], "big": pl.Series([1, 2**100, None], dtype=kind)})
    frame.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(pa.ArrowNotImplementedError):
        pq.read_schema(tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", Columns("text", None, None, None)) == ["a", None, "ü"]


def nested(rows: int) -> pa.Table:
    """Lists, maps and structs beside the text, with nulls and empty ones."""
    lists = pa.array([None if i % 5 == 0 else [None] * (i % 3) for i in range(rows)], pa.list_(pa.int64()))
    maps = pa.array([[("k", i)] * (i % 2) for i in range(rows)], pa.map_(pa.string(), pa.int64()))
    structs = pa.array([None if i % 4 == 0 else {"a": i, "b": [str(i)]} for i in range(rows)])
    return table(rows).add_column(0, "lists", lists).append_column("maps", maps).append_column("structs", structs)


SOUND = {
    "version 1": {"version": "1.0"},
    "pages of version 2": {"data_page_version": "2.0"},
    "no dictionary": {"use_dictionary": False},
    "small pages": {"data_page_size": 100, "use_dictionary": False},
    "a dictionary that overflows": {"dictionary_pagesize_limit": 1000},
    "checksums": {"write_page_checksum": True},
    "an index of pages": {"write_page_index": True},
    "no statistics": {"write_statistics": False},
    "no Arrow schema": {"store_schema": False},
    "one row a group": {"row_group_size": 1},
    **{f"packed by {name}": {"compression": name} for name in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")},
    **{
        f"texts as {name}": {"column_encoding": {"text": name}, "use_dictionary": False}
        for name in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
    },
    "split bytes beside it": {"use_byte_stream_split": ["other"], "use_dictionary": False},
    "sorted": {"sorting_columns": [pq.SortingColumn(3)]},
}


@pytest.mark.parametrize("make", [table, nested], ids=["flat", "nested"])
@pytest.mark.parametrize("options", SOUND.values(), ids=SOUND)
def test_what_pyarrow_writes_is_sound(tmp_path, options, make):
    content = make(200)
    path = written(tmp_path / "a.parquet", content, **{"row_group_size": 90, **options})
    assert texts(path) == content["text"].to_pylist()


def test_row_groups_without_rows_are_sound(tmp_path):
    content = table()
    with pq.ParquetWriter(tmp_path / "a.parquet", content.schema) as writer:
        for part in (content[:0], content[:5], content[:0], content[5:], content[:0]):
            writer.write_table(part)
    assert texts(tmp_path / "a.parquet") == content["text"].to_pylist()
    assert texts(written(tmp_path / "b.parquet", content[:0])) == []


@pytest.mark.parametrize("options", [{}, {"use_pyarrow": True}, {"row_group_size": 7}, {"statistics": "full"}], ids=str)
@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "zstd"])
def test_what_polars_writes_is_sound(tmp_path, options, compression):
    frame = pl.from_arrow(nested(200).drop_columns("maps"))
    frame.write_parquet(tmp_path / "a.parquet", compression=compression, **options)
    assert texts(tmp_path / "a.parquet") == frame["text"].to_list()
    frame.clear().write_parquet(tmp_path / "b.parquet", compression=compression, **options)
    assert texts(tmp_path / "b.parquet") == []


def parts(path: Path, rows: int, columns: Columns = COLUMNS, start: int = 0) -> tuple[list[int], list[Unreadable]]:
    """Rows that stand in the end, and what is unreadable, of which each takes back rows that were given before."""
    standing: list[int] = []
    lost = []
    for part in read(listed(path), columns, start, rows):
        if isinstance(part, Unreadable):
            lost.append(part)
            standing = [row for row in standing if not part.start <= row < part.stop]
        else:
            standing += part["row"].to_pylist()
    return standing, lost


def test_rows_that_a_footer_promises_and_no_page_holds(tmp_path):
    """All numbers of the footer agree, and are wrong."""
    file = File(written(tmp_path / "a.parquet"))
    file.claim_rows(0, 1000, everywhere=True)
    path = file.write(tmp_path / "b.parquet")
    assert [group.rows for group in inspect(listed(path), COLUMNS)] == [1000, IN_A_GROUP]
    standing, (lost,) = parts(path, 1000 + IN_A_GROUP)
    assert standing == list(range(1000, 1000 + IN_A_GROUP))
    assert (lost.start, lost.stop) == (0, 1000)
    assert "it has 6 rows, the footer 1000" in lost.detail
    with pytest.raises(FileFault, match="row group 0 is too short") as fault:
        parts(path, 900, start=500)
    assert fault.value.reason == "unreadable"


def test_rows_that_were_promised_and_are_beyond_the_file(tmp_path):
    for start in (0, 11, 12, 100):
        with pytest.raises(FileFault, match=f"rows {start} to 199 were promised") as fault:
            parts(written(tmp_path / "a.parquet"), 200, start=start)
        assert (fault.value.reason, fault.value.lasting) == ("unreadable", True)


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


@pytest.mark.parametrize("columns", [COLUMNS, Columns("text", None, None, None)], ids=["text and id", "text"])
def test_texts_that_are_shifted_against_their_rows_are_taken_back(tmp_path, columns, monkeypatch):
    monkeypatch.setattr("scanner.input.documents.BATCH_TEXT_BYTES", 10_000)  # so that many were given before
    path = with_short_page(tmp_path / "a.parquet")
    standing, (lost,) = parts(path, 2000, columns)
    assert standing == list(range(1000, 2000))
    assert (lost.start, lost.stop) == (0, 1000)


def with_wrong_text(path: Path, **options) -> Path:
    """One letter of a text is another one than was written."""
    written(path, use_dictionary=False, compression="none", **options)
    path.write_bytes(path.read_bytes().replace(b"text 7 text", b"tent 7 text", 1))
    return path


def test_pages_are_checked_where_they_have_checksums(tmp_path):
    assert "tent" in texts(with_wrong_text(tmp_path / "a.parquet"))[7]
    standing, (lost,) = parts(with_wrong_text(tmp_path / "b.parquet", write_page_checksum=True), ROWS)
    assert standing == list(range(6))
    assert (lost.start, lost.stop) == (6, ROWS)
    assert re.search("CRC|checksum", lost.detail)

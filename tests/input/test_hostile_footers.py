"""Footers that contradict themselves, that end the process which reads them, and sound ones that look odd."""

import re
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.errors import FileFault
from scanner.input.columns import Columns
from scanner.input.documents import Unreadable, identify, read
from scanner.input.files import InputFile, list_files
from scanner.input.named_files import describe
from scanner.input.shards import MAX_ROWS, MOST_SHARDS, cut
from tests.support import footers
from tests.support.footers import File
from tests.support.hostile_files import (
    CONTRADICTIONS,
    DOC_ID,
    FATAL,
    IN_A_GROUP,
    OTHER,
    ROWS,
    TEXT,
    encrypted,
    list_twice,
    rows_alone,
    table,
    text_from,
    with_footer_key,
    with_short_page,
    with_wrong_text,
    written,
)
from tests.support.inspection import inspect

COLUMNS = Columns("text", "doc_id", None, None)


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
        assert "not valid UTF-8" in fault.detail


@pytest.mark.parametrize("make", FATAL.values(), ids=FATAL)
def test_a_footer_that_ends_the_process_that_reads_it_is_unreadable(tmp_path, make):
    fault = fault_of(make(tmp_path / "a.parquet"))
    assert (fault.reason, fault.lasting) == ("unreadable", True)
    assert fault.detail == "the process that read the footer was killed by SIGABRT"


def test_an_encrypted_footer(tmp_path):
    fault = fault_of(encrypted(tmp_path / "a.parquet", "other", footer=True))
    assert (fault.reason, fault.lasting) == ("encrypted", True)


ENCRYPTIONS = {
    "by a key of its own": lambda path, column, _: encrypted(path, column),
    "by the footer's key": with_footer_key,
}


@pytest.mark.parametrize("make", ENCRYPTIONS.values(), ids=ENCRYPTIONS)
class TestEncryptedColumns:
    """Columns that are encrypted, where the footer is not."""

    def test_beside_the_text(self, tmp_path, make):
        assert texts(make(tmp_path / "a.parquet", "other", OTHER)) == table()["text"].to_pylist()

    def test_of_the_text(self, tmp_path, make):
        fault = fault_of(make(tmp_path / "a.parquet", "text", TEXT))
        assert (fault.reason, fault.lasting) == ("encrypted", True)
        assert fault.detail.startswith("column 'text' (text) is encrypted")

    @pytest.mark.parametrize("role", ["id", "account", "time"])
    def test_of_all_else(self, tmp_path, make, role):
        """It is null and counted as unread, and the text is scanned."""
        file = listed(make(tmp_path / "a.parquet", "doc_id", DOC_ID))
        columns = Columns("text", None, None, None)._replace(**{role: "doc_id"})
        assert sum(group.rows for group in inspect(file, columns)) == ROWS
        (batch,) = read(file, columns, 0, ROWS)
        assert batch["text"].to_pylist() == table()["text"].cast(pa.binary()).to_pylist()
        assert batch["unread"].to_pylist() == [True] * ROWS
        assert all(batch[name].null_count == ROWS for name in ("doc_id", "account_id", "created_at"))
        assert identify(file, columns, 0).doc_id is None
        assert describe(file, columns)[1] == (role, "doc_id", "encrypted", False)


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
    """A table with lists, maps and structs beside the text, some of them null or empty."""
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
    """Rows that stand in the end, and unreadable ranges; a range takes back rows that were given before."""
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
        with pytest.raises(FileFault, match=f"rows {start} to 199 were expected") as fault:
            parts(written(tmp_path / "a.parquet"), 200, start=start)
        assert (fault.value.reason, fault.value.lasting) == ("unreadable", True)


@pytest.mark.parametrize("columns", [COLUMNS, Columns("text", None, None, None)], ids=["text and id", "text"])
def test_texts_that_are_shifted_against_their_rows_are_taken_back(tmp_path, columns, monkeypatch):
    monkeypatch.setattr("scanner.input.documents.BATCH_TEXT_BYTES", 10_000)  # many rows come before the fault
    path = with_short_page(tmp_path / "a.parquet")
    standing, (lost,) = parts(path, 2000, columns)
    assert standing == list(range(1000, 2000))
    assert (lost.start, lost.stop) == (0, 1000)


def test_pages_are_checked_where_they_have_checksums(tmp_path):
    assert "tent" in texts(with_wrong_text(tmp_path / "a.parquet"))[7]
    standing, (lost,) = parts(with_wrong_text(tmp_path / "b.parquet", write_page_checksum=True), ROWS)
    assert standing == list(range(6))
    assert (lost.start, lost.stop) == (6, ROWS)
    assert re.search("CRC|checksum", lost.detail)

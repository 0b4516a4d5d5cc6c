"""Tables of an older version are read as they are, and a scan adds the columns that are new since then."""

from datetime import UTC, datetime

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError

from scanner import results
from scanner.errors import Refused, ScanFailed
from scanner.results.data_files import SCHEMAS, write_file
from scanner.results.erasure import erase_user
from scanner.results.tables import append_audits, open_tables
from scanner.results.transactions import Entry, commit
from scanner.results.upkeep import compact
from scanner.storage import delta
from scanner.storage.delta import table_uri
from schemas.audit_tables import AUDITS
from schemas.tables import SCANS, VERDICTS
from tests.support.rows import filled, verdict

SINCE = [pa.field("first", pa.timestamp("us", "UTC")), pa.field("names", pa.list_(pa.string()))]
FIRST = datetime(2026, 8, 1, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> str:
    """Results whose verdicts lack two columns of today. A blank in the folder's name needs another way of reading."""
    folder = str(tmp_path / "the results")
    open_tables(folder)
    for n in (1, 2):
        rows = pa.Table.from_pylist([verdict(n, user="alice", log10_p_global=-9.0)], VERDICTS)
        write_deltalake(table_uri(folder, "verdicts"), rows, mode="append")
    write_deltalake(table_uri(folder, "scans"), pa.Table.from_pylist([filled(SCANS)], SCANS), mode="append")
    monkeypatch.setitem(SCHEMAS, "verdicts", pa.schema([*VERDICTS, *SINCE]))
    return folder


def add(folder: str, row: int) -> None:
    new = verdict(row, user="alice", log10_p_global=-9.0, first=FIRST, names=["alice"])
    file = write_file(folder, "verdicts", [pa.RecordBatch.from_pylist([new], SCHEMAS["verdicts"])])
    assert commit(folder, "verdicts", [Entry(f"shard {row}", (file,))])


def told(folder: str) -> list[tuple]:
    return results.flagged(folder).sort("row").select("row", "user_id", "first", "names").collect().rows()


OLD = [(1, "alice", None, None), (2, "alice", None, None)]


def test_they_are_read_before_any_scan_of_this_version(folder):
    assert told(folder) == OLD
    assert results.verdicts(folder).collect_schema() == pl.Schema(SCHEMAS["verdicts"])
    assert len(DeltaTable(table_uri(folder, "verdicts")).schema().fields) == len(VERDICTS)


def test_a_scan_goes_on_in_them(folder):
    open_tables(folder)
    assert told(folder) == OLD
    add(folder, 3)
    assert told(folder) == [*OLD, (3, "alice", FIRST, ["alice"])]
    version = DeltaTable(table_uri(folder, "verdicts")).version()
    open_tables(folder)
    assert DeltaTable(table_uri(folder, "verdicts")).version() == version


def test_older_rows_and_newer_ones_are_merged(folder):
    compact(folder)
    add(folder, 3)
    compact(folder)
    assert len(DeltaTable(table_uri(folder, "verdicts")).file_uris()) == 1
    assert told(folder) == [*OLD, (3, "alice", FIRST, ["alice"])]


def test_names_are_erased_from_older_rows_and_newer_ones(folder):
    assert erase_user(folder, ["alice"]) == 2
    open_tables(folder)
    add(folder, 3)
    assert erase_user(folder, ["alice"]) == 1
    assert [row[1] for row in told(folder)] == [None, None, None]


def test_a_scan_that_finds_another_adding_them_goes_on(folder, monkeypatch):
    alter, met = DeltaTable.alter.fget, []

    def when_another_was_faster(table: DeltaTable):
        if not met:
            met.append(table)
            open_tables(folder)
        return alter(table)

    monkeypatch.setattr(DeltaTable, "alter", property(when_another_was_faster))
    open_tables(folder)
    names = [field.name for field in DeltaTable(table_uri(folder, "verdicts")).schema().fields]
    assert names == SCHEMAS["verdicts"].names
    assert met


def test_a_scan_that_never_gets_to_add_them_fails(folder, monkeypatch):
    def too_late(table: DeltaTable):
        raise CommitFailedError("others were first")

    monkeypatch.setattr(DeltaTable, "alter", property(too_late))
    monkeypatch.setattr(delta, "COMMIT_ATTEMPTS", 3)
    with pytest.raises(ScanFailed, match="others committed first"):
        open_tables(folder)


def test_what_may_be_null_since_may_be_so_in_older_tables(tmp_path):
    """Two columns of p-values could not be null before."""
    folder = str(tmp_path)
    columns = ("log10_p", "log10_p_global")
    before = pa.schema([field.with_nullable(field.nullable and field.name not in columns) for field in VERDICTS][:-2])
    rows = pa.Table.from_pylist([verdict(1, log10_p_global=-9.0)], before)
    write_deltalake(table_uri(folder, "verdicts"), rows, mode="append")
    open_tables(folder)
    assert DeltaTable(table_uri(folder, "verdicts")).schema() == Schema.from_arrow(VERDICTS)
    new = verdict(2, log10_p=None, log10_p_global=None)
    file = write_file(folder, "verdicts", [pa.RecordBatch.from_pylist([new], VERDICTS)])
    assert commit(folder, "verdicts", [Entry("shard 2", (file,))])
    for _ in range(2):
        kept = pl.read_delta(table_uri(folder, "verdicts")).sort("row")
        assert kept["log10_p_global"].to_list() == [-9.0, None]
        compact(folder)
    assert len(DeltaTable(table_uri(folder, "verdicts")).file_uris()) == 1


def test_a_table_whose_column_is_of_another_kind_is_refused(tmp_path):
    other = pa.schema([pa.field(f.name, pa.string() if f.name == "log10_p" else f.type, f.nullable) for f in VERDICTS])
    DeltaTable.create(table_uri(str(tmp_path), "verdicts"), other)
    with pytest.raises(Refused, match="other columns"):
        open_tables(str(tmp_path))


def test_an_audit_is_appended_to_an_older_table(tmp_path):
    """A calibration writes at its end alone, after minutes or hours."""
    rows, folder = [filled(AUDITS, kind="key")], str(tmp_path / "audit")
    since = ["stratum", "filter_sha256", "filter_texts", "filter_learnt"]
    older = pa.Table.from_pylist(rows, AUDITS).drop_columns(since)
    write_deltalake(table_uri(folder, "audits"), older)
    append_audits(folder, [rows[0] | {"filter_sha256": "a", "filter_texts": 16, "filter_learnt": 9}])
    found = results.audits(folder).select("kind", "filter_texts").collect()
    assert sorted(found.rows(), key=str) == [("key", 16), ("key", None)]

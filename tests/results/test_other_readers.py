"""DuckDB and polars read the tables as they are; docs/guides/results.md runs."""

import re
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from scanner import results
from scanner.results.transactions import append_scan, open_tables, read_whole
from scanner.storage.data_files import TABLES
from scanner.storage.locations import table_uri
from schemas.tables import SCANS
from tests.support.rows import add_scanned, filled, verdict

PAGE = Path(__file__).parents[2] / "docs/guides/results.md"


@pytest.fixture
def folder(tmp_path) -> str:
    """Results of two scans, one of them ended."""
    made = str(tmp_path / "demo/results")
    open_tables(made)
    add_scanned(made, "first", [verdict(row, user="alice", p_rank=0.5) for row in range(3)])
    add_scanned(made, "second", [verdict(row, "/in/b", user=user) for row, user in enumerate(["bob", None])])
    append_scan(made, filled(SCANS, scan_id="scan"))
    return made


def test_the_page_shows_what_the_tables_hold(folder, monkeypatch):
    (example,) = re.findall(r"```python\n(import duckdb\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(Path(folder).parents[1])
    found: dict = {}
    exec(compile(example, PAGE.name, "exec"), found)
    expected = results.nights(folder).select("night", "documents", "flagged", "canaries").collect()
    assert found["nights"].fetchall() == expected.rows()
    assert expected["flagged"].sum() > 0
    users = results.flagged(folder).filter(pl.col("naming") == "named").group_by("user_id").len()
    assert found["named"].rows() == users.sort("len", "user_id").collect().rows()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_others_read_every_row_and_column_of_a_table(folder, name):
    expected = read_whole(folder, name).collect()
    rows = DeltaTable(table_uri(folder, name)).to_pyarrow_dataset()
    by_duckdb = duckdb.sql("FROM rows").arrow().read_all()
    assert rows.schema.names == by_duckdb.column_names
    by_polars = pl.scan_delta(table_uri(folder, name)).collect()
    ordered = [column for column, kind in expected.schema.items() if not kind.is_nested()]
    told = expected.sort(ordered).to_dicts()
    assert by_polars.select(expected.columns).sort(ordered).to_dicts() == told
    times = [
        pl.col(column).dt.convert_time_zone("UTC") for column, kind in expected.schema.items() if kind == pl.Datetime
    ]
    assert pl.DataFrame(by_duckdb).with_columns(times).select(expected.columns).sort(ordered).to_dicts() == told

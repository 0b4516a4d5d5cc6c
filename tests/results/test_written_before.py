"""Results of an earlier version: its tables get the new columns, and the next night scans nothing again.

`written_before.zip` holds two nights that version 0.1 scanned (commit 3f2fd0a, with the registry of two_keys.py): the
input, listed as /data/in with modification times of 10^18 ns, and the tables as it wrote them.
"""

import dataclasses
import os
import zipfile
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from scanner import results
from scanner.cluster import Outcome, run_scan
from scanner.cluster import scan as scan_module
from scanner.input.files import InputFile
from scanner.results.data_files import TABLES
from scanner.results.erasure import erase_user
from scanner.results.tables import open_tables
from scanner.results.upkeep import compact
from scanner.storage.delta import table_uri
from schemas.tables import QUARANTINE, SCANS, VERDICTS
from tests.support.command_line import call

ZIP = Path(__file__).parent / "written_before.zip"
NEW = {
    "verdicts": [
        *("reason", "basis", "p_rank", "first_seen_at", "held_since", "proof", "variant", "runner_up_log10_p_global"),
        *("named", "named_again", "text_id", "p_class", "sketch", "tests", "unit"),
    ],
    "quarantine": ["account_id", "text_sha256"],
    "scans": [
        *("scored_in_part", "values_not_read", "labels", "users_head", "misnaming_rate"),
        *("text_bytes", "core_seconds", "documents_a_core_hour", "bytes_a_core_hour"),
        *("slowest_shard", "slowest_path", "slowest_row", "slowest_seconds", "skew", "part", "filter_sha256", "night"),
    ],
}
MODIFIED = 10**18


@pytest.fixture
def before(night) -> str:
    """Results of a night that version 0.1 scanned."""
    with zipfile.ZipFile(ZIP) as files:
        files.extractall(night.folder)
    night.configure(columns='account = "account"')
    return night.results


def columns(folder: str, name: str) -> list[str]:
    return pa.schema(DeltaTable(table_uri(folder, name)).schema()).names


def scan_as_listed(night, monkeypatch) -> Outcome:
    """Scan the night as if its input still lay in /data/in."""

    def listed(_locations, **_told):
        for path in night.input.iterdir():
            os.utime(path, ns=(MODIFIED, MODIFIED))
        return [
            InputFile(f"/data/in/{path.name}", str(night.input), str(path), path.stat().st_size, MODIFIED)
            for path in sorted(night.input.iterdir())
        ]

    monkeypatch.setattr(scan_module, "list_files", listed)
    plan = dataclasses.replace(night.plan(), locations=("/data/in",))
    return run_scan(plan, lambda *_: None)


def test_they_lack_columns_of_today(before):
    for name, new in NEW.items():
        assert set(TABLES[name].names) - set(columns(before, name)) >= set(new)


def test_queries_of_tables_that_no_scan_has_opened_yet(night, before):
    """Queries show the new columns as null, and write nothing."""
    verdicts, quarantine = results.verdicts(before).collect(), results.quarantine(before).collect()
    assert (verdicts.columns, quarantine.columns) == (VERDICTS.names, QUARANTINE.names)
    assert (verdicts.height, quarantine.height) == (4, 4)
    assert verdicts["reason"].null_count() == 4
    assert results.flagged(before).collect()["user_id"].to_list() == ["alice", "alice"]
    assert results.scans(before).collect().columns == SCANS.names
    code, out, _ = call("flagged", night.config)
    assert (code, out.count("alice")) == (0, 2)
    assert "reason" not in columns(before, "verdicts")


@pytest.mark.usefixtures("without_ray")
def test_the_next_night_goes_on_and_scans_nothing_again(night, before, plain, monkeypatch):
    old = {name: pl.read_delta(table_uri(before, name)) for name in NEW}
    again = scan_as_listed(night, monkeypatch)
    assert (again.exit_code, again.work.shards, again.work.skipped) == (4, 3, 3)  # a file of it cannot be read
    assert night.verdicts().drop(NEW["verdicts"]).equals(old["verdicts"].sort("path", "row"))

    night.write("d", [plain(40, 9), b"\xff" + plain(40, 8).encode(), None], account=["x", "y", "z"])
    outcome = scan_as_listed(night, monkeypatch)
    assert (outcome.work.skipped, outcome.totals.counts.documents) == (3, 3)
    verdicts, quarantine = night.verdicts(), night.quarantine()
    assert (
        verdicts.filter(pl.col("path") != "/data/in/d.parquet")
        .drop(NEW["verdicts"])
        .equals(old["verdicts"].sort("path", "row"))
    )
    assert verdicts["reason"].to_list() == [None] * 5 + ["invalid_utf8"]
    assert quarantine["account_id"].to_list() == [None] * 4 + ["z"]
    assert results.scans(before).collect()["scored_in_part"].to_list() == [None, None, 0, 1]
    for name in NEW:
        assert sorted(columns(before, name)) == sorted(TABLES[name].names)


def test_upkeep(before):
    rows = {name: getattr(results, name)(before).collect() for name in NEW}
    assert {done.table for done in compact(before) if done.made} >= set(NEW)
    for name, same in rows.items():
        after = getattr(results, name)(before).collect()
        assert after.sort(after.columns[:4]).equals(same.sort(same.columns[:4]))
        assert sorted(columns(before, name)) == sorted(TABLES[name].names)


@pytest.mark.parametrize("first", [lambda _: None, open_tables, compact])
def test_erasure(before, first):
    first(before)
    assert erase_user(before, ["alice"]) == 2
    verdicts = results.verdicts(before).collect()
    assert (verdicts.columns, verdicts.height) == (VERDICTS.names, 4)
    assert verdicts["user_id"].null_count() == 4

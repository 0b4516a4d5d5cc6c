"""Nights that are older than a limit: their rows go, all of them and no others, and what was scanned stays scanned."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from scanner import results
from scanner.errors import ScanFailed
from scanner.results import retention
from scanner.results.newest import bring_up_to_date
from scanner.results.retention import OF_A_NIGHT, cutoff, expired, retain
from scanner.results.tables import SCHEMAS, Entry, append_scan, commit, committed, open_tables, table_uri, write_file
from scanner.results.upkeep import compact
from schemas.tables import SCANS
from tests.support.command_line import call
from tests.support.rows import filled, verdict

TODAY = datetime.now(UTC)
NIGHTS = 4


def scan_of(night: int) -> str:
    return f"{TODAY - timedelta(days=night):%Y%m%dT%H%M%SZ}-0000000{night}"


@pytest.fixture
def year(tmp_path) -> str:
    """Nights that ended 0, 1, 2 and 3 days ago, of three documents each, the first of them flagged."""
    folder = str(tmp_path / "results")
    open_tables(folder, SCHEMAS)
    bring_up_to_date(folder)
    for night in range(NIGHTS):
        at = TODAY - timedelta(days=night)
        about = {"scan_id": scan_of(night), "shard_id": f"shard {night}", "path": f"/in/{night}", "scanned_at": at}
        rows = [verdict(i, user="alice" if i == 0 else None, **about) for i in range(3)]
        span = {"first_row": 0, "rows": 3, "documents": 3, "flagged": 1, "night": f"{at:%Y-%m-%d}", "file": "1:1"}
        tables = {
            "verdicts": rows,
            "flags": [rows[0] | {"keys": "set"}],
            "shards": [filled(SCHEMAS["shards"], keys="set", **span, **about)],
        }
        for name in OF_A_NIGHT:
            told = {column: value for column, value in about.items() if column in SCHEMAS[name].names}
            of_table = tables.get(name, [filled(SCHEMAS[name], **told)])
            file = write_file(folder, name, [pa.RecordBatch.from_pylist(of_table, SCHEMAS[name])])
            commit(folder, name, [Entry(f"shard {night}", (file,) if file else ())])
        append_scan(folder, filled(SCANS, scan_id=scan_of(night)))
    return folder


def scans_in(folder: str, name: str) -> set[str]:
    return set(pl.read_delta(table_uri(folder, name))["scan_id"])


def nights(numbers: range) -> set[str]:
    return {scan_of(night) for night in numbers}


@pytest.mark.parametrize("merged", [False, True])  # files of one night each, or one file of all
@pytest.mark.parametrize("keep_flags", [False, True])
def test_old_nights_go_whole_and_others_stay(year, merged, keep_flags):
    if merged:
        compact(year)
    before = pl.read_delta(table_uri(year, "verdicts"))
    old = expired(year, cutoff(1))
    assert (len(old.nights), set(old.scans), old.documents, old.flagged) == (2, nights(range(2, 4)), 6, 2)
    rows = retain(year, old.scans, keep_flags=keep_flags)
    assert rows == 2 * (3 + 4 + (not keep_flags))
    for name in OF_A_NIGHT:
        stays = range(NIGHTS if name == "flags" and keep_flags else 2)
        assert scans_in(year, name) == nights(stays), name
    assert scans_in(year, "scans") == nights(range(NIGHTS))
    kept = before.filter(pl.col("scan_id").is_in(nights(range(2)))).sort("scan_id", "row")
    assert pl.read_delta(table_uri(year, "verdicts")).sort("scan_id", "row").equals(kept)
    assert results.flagged(year).collect().height == (4 if keep_flags else 2)
    assert committed(year, "verdicts", [f"shard {night}" for night in range(NIGHTS)]) == {
        f"shard {night}" for night in range(NIGHTS)
    }
    assert expired(year, cutoff(1)).nights == ()
    assert retain(year, old.scans, keep_flags=keep_flags) == 0


def test_who_is_interrupted_is_finished_by_the_next_call(year, monkeypatch):
    old = expired(year, cutoff(1))
    seen = []

    def stops(results, name, scans, real=retention._without):
        seen.append(name)
        if name == "verdicts":
            raise KeyboardInterrupt
        return real(results, name, scans)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "_without", stops)
        with pytest.raises(KeyboardInterrupt):
            retain(year, old.scans, keep_flags=False)
    assert seen == list(OF_A_NIGHT[: OF_A_NIGHT.index("verdicts") + 1])
    assert expired(year, cutoff(1)) == old
    retain(year, old.scans, keep_flags=False)
    assert all(scans_in(year, name) == nights(range(2)) for name in OF_A_NIGHT)


def test_a_commit_meanwhile_is_not_lost(year, monkeypatch):
    """Between the look at the table and the commit somebody merges its files, and somebody adds rows."""
    met = []

    def meanwhile(table, name, actions, transactions, real=retention.try_to_commit):
        if not met:
            met.append(name)
            compact(year)
            row = verdict(9, scan_id=scan_of(0), shard_id="late")
            file = write_file(year, "verdicts", [pa.RecordBatch.from_pylist([row], SCHEMAS["verdicts"])])
            commit(year, "verdicts", [Entry("late", (file,) if file else ())])
        return real(table, name, actions, transactions)

    monkeypatch.setattr(retention, "try_to_commit", meanwhile)
    retain(year, expired(year, cutoff(1)).scans, keep_flags=False)
    assert met
    assert scans_in(year, "verdicts") == nights(range(2))
    assert 9 in pl.read_delta(table_uri(year, "verdicts"))["row"].to_list()


def test_a_table_whose_file_is_gone_is_told(year):
    next(Path(table_uri(year, "verdicts")).glob("*.parquet")).unlink()
    with pytest.raises(ScanFailed, match="cannot be read"):
        retain(year, expired(year, date(2999, 1, 1)).scans, keep_flags=False)


def test_the_command_asks_says_and_does(year):
    code, out, err = call("retain", year, "--keep", 1)
    assert code == 2
    assert "give --yes" in err
    code, out, _ = call("retain", year, "--keep", 1, "--dry-run")
    assert (code, "drops 2 nights" in out, "6 documents, of which 2 are flagged" in out) == (0, True, True)
    assert scans_in(year, "verdicts") == nights(range(NIGHTS))
    code, out, _ = call("retain", year, "--keep", 1, "--keep-flags", "--yes")
    assert (code, out) == (0, "14 rows dropped\n")
    assert call("retain", year, "--keep", 1, "--yes") == (0, "no night is older than 1 days\n", "")

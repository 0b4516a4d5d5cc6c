"""`retain` in scan.toml: a scan drops old nights when it ends, and does not scan files that are as old."""

import os
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from scanner import results
from scanner.cluster import scan
from scanner.errors import Refused
from scanner.input.files import list_files
from scanner.results import retention
from scanner.results.transactions import open_tables
from scanner.storage.data_files import SCHEMAS
from tests.support.command_line import call
from tests.support.nights import Today, add_night, scan_of

pytestmark = pytest.mark.usefixtures("without_ray")

DAY = 86_400


@pytest.fixture(autouse=True)
def _no_midnight(monkeypatch):
    for module in (retention, scan):
        monkeypatch.setattr(module, "datetime", Today)


def made_old(path: Path, days: int) -> Path:
    then = path.stat().st_mtime - days * DAY
    os.utime(path, (then, then))
    return path


def scans_in(folder: str, name: str) -> set[str]:
    return set(pl.read_delta(results.table_uri(folder, name))["scan_id"])


@pytest.mark.costly
@pytest.mark.parametrize("keep_flags", [False, True])
def test_a_scan_ends_by_dropping_old_nights_once_a_day(night, plain, keep_flags):
    night.write("a", [plain(40, 1)])
    first = night.scan()
    assert first.dropped == 0
    open_tables(night.results, SCHEMAS)
    for days in (1, 2, 3, 4):
        add_night(night.results, days, f"/in/{days}", flagged=1)
    before = results.nights(night.results).collect()
    night.configure(more=f'retain = "2d"\nretain_flags = {str(keep_flags).lower()}')
    night.write("b", [plain(40, 2)])
    second = night.scan()
    # of each night three verdicts and a row of each of six tables: counts of texts and of audits, posts, accounts,
    # shards, quarantine; and five rows of a flag: the flag, its text and its reading, a span, a decision
    assert second.dropped == 2 * (3 + 6 + 5 * (not keep_flags))
    left = results.nights(night.results).collect()["night"]  # one more if midnight passed between the scans
    assert left.filter(left.is_in(before["night"].implode())).to_list() == before["night"].to_list()[:3]
    young = {first.scan_id, second.scan_id, scan_of(1), scan_of(2)}
    assert scans_in(night.results, "verdicts") == young
    assert scans_in(night.results, "flags") == {scan_of(days) for days in ((1, 2, 3, 4) if keep_flags else (1, 2))}
    add_night(night.results, 5, "/in/5", flagged=1)
    assert night.scan().dropped == 0, "a scan of today looked"
    night.configure(more='retain = "1d"')
    assert night.scan().dropped > 0


@pytest.mark.costly
def test_a_file_that_is_older_than_results_are_kept_is_refused_unless_it_is_done(night, plain):
    made_old(night.write("done", [plain(40, 1)]), 5)
    night.scan()
    night.configure(more='retain = "2d"')
    made_old(night.write("young", [plain(40, 2)]), 1)
    assert night.scan().work.skipped == 1
    old = made_old(night.write("old", [plain(40, 3)]), 4)
    (night.input / "broken.parquet").write_bytes(b"no Parquet")
    made_old(night.input / "broken.parquet", 4)
    rows = night.verdicts()
    day = f"{datetime.fromtimestamp(old.stat().st_mtime, UTC):%Y-%m-%d}"
    said = (
        rf"old.parquet \(and 1 more\) has not been scanned and was last changed on {day}, before the period that retain"
    )
    with pytest.raises(Refused, match=said):
        night.scan()
    code, _, err = call("scan", night.config, "--check")
    assert (code, "before the period that retain = '2d' covers" in err) == (2, True)
    assert night.verdicts().equals(rows)
    assert night.quarantine().is_empty()


def test_one_that_lands_among_others_is_left_out(night, plain, caplog):
    night.configure(more='retain = "2d"')
    made_old(night.write("old", [plain(40, 1)]), 4)
    night.write("young", [plain(40, 2)])
    outcome = night.scan(files=list_files([str(night.input)]))
    assert outcome.exit_code == 0
    assert [Path(path).name for path in night.verdicts()["path"]] == ["young.parquet"]
    assert "old.parquet has not been scanned" in caplog.text

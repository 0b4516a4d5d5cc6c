"""Nights older than a limit: all their rows go and no others, and their documents stay scanned."""

from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from scanner import results
from scanner.errors import ScanFailed
from scanner.results import retention, upkeep
from scanner.results.earlier_scans import _files, _requested_files
from scanner.results.retention import IN_ORDER, cutoff, drop_older, expired_rows, retain
from scanner.results.scan_list import NOTHING_READ, whole_input
from scanner.results.transactions import append_scan, find_committed, open_tables
from scanner.results.upkeep import compact
from scanner.storage import delta
from scanner.storage.data_files import OF_USERS, SCHEMAS
from scanner.storage.locations import table_uri
from schemas.tables import SCANS
from tests.support.command_line import call
from tests.support.nights import TODAY, Today, add_night, enter, scan_of
from tests.support.rows import filled, verdict
from tests.support.signed_results import NOT_CHECKED

NIGHTS = 4


@pytest.fixture(autouse=True)
def _no_midnight(monkeypatch):
    monkeypatch.setattr(retention, "datetime", Today)


@pytest.fixture
def year(tmp_path) -> str:
    """Results of nights that ended 0, 1, 2 and 3 days ago, with three documents each, the first one flagged."""
    folder = str(tmp_path / "results")
    open_tables(folder, SCHEMAS)
    for night in range(NIGHTS):
        add_night(folder, night, f"/in/{night}", flagged=1)
    return folder


def scans_in(folder: str, name: str) -> set[str]:
    """Ids of scans with rows in a table; dropped rows of `shards` do not count."""
    rows = pl.read_delta(table_uri(folder, name))
    return set((rows.filter(pl.col("dropped_at").is_null()) if name == "shards" else rows)["scan_id"])


def nights(numbers: range) -> set[str]:
    return {scan_of(night) for night in numbers}


OF_FLAG = ("flags", "flag_texts", "flag_levels", "spans", "decisions")


@pytest.mark.costly
@pytest.mark.parametrize("merged", [False, True])  # files of one night each, or one file of all
@pytest.mark.parametrize("keep_flags", [False, True])
def test_old_nights_go_whole_and_others_stay(year, merged, keep_flags):
    if merged:
        compact(year)
    before = pl.read_delta(table_uri(year, "verdicts"))
    old = expired_rows(year, cutoff(1))
    assert (len(old.nights), set(old.scans), old.documents, old.flagged) == (2, nights(range(2, 4)), 6, 2)
    rows = retain(year, old.scans, keep_flags=keep_flags)
    assert rows == 2 * (4 + 5 + 5 * (not keep_flags))  # five rows of a flag: flag, text, reading, span, decision
    for name in IN_ORDER:
        stays = range(NIGHTS if name in OF_FLAG and keep_flags else 2)
        assert scans_in(year, name) == nights(stays), name
    assert scans_in(year, "scans") == nights(range(NIGHTS))
    assert set(pl.read_delta(table_uri(year, "shards"))["scan_id"]) == nights(range(NIGHTS))  # the work that was done
    kept = before.filter(pl.col("scan_id").is_in(nights(range(2)))).sort("scan_id", "row")
    assert pl.read_delta(table_uri(year, "verdicts")).sort("scan_id", "row").equals(kept)
    assert results.flagged(year).collect().height == (4 if keep_flags else 2)
    assert find_committed(year, "verdicts", [f"shard {night}" for night in range(NIGHTS)]) == {
        f"shard {night}" for night in range(NIGHTS)
    }
    assert expired_rows(year, cutoff(1), keep_flags=keep_flags).nights == ()
    assert retain(year, old.scans, keep_flags=keep_flags) == 0


def test_what_was_scanned_in_a_night_that_went_is_known_for_ever(year):
    """Its files count as seen then, which protects users who got a message since. A rerun finds that they were read."""
    path = f"/in/{NIGHTS - 1}"
    wanted = _requested_files([(path, None, TODAY)], all_scans=True)
    first_scans = _files(year, wanted).sort("path").rows()
    assert path in {row[0] for row in first_scans}
    retain(year, expired_rows(year, cutoff(1)).scans, keep_flags=False)
    assert scans_in(year, "shards") == nights(range(2))
    assert _files(year, wanted).sort("path").rows() == first_scans
    assert whole_input(year, [f"shard {NIGHTS - 1}"]).documents > 0
    assert whole_input(year, ["shard of nobody"]) == NOTHING_READ


def test_who_is_interrupted_is_finished_by_the_next_call(year, monkeypatch):
    old = expired_rows(year, cutoff(1))
    seen = []

    def stops(folder, name, *how, real=retention.rewrite):
        seen.append(name)
        if name == "verdicts":
            raise KeyboardInterrupt
        return real(folder, name, *how)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "rewrite", stops)
        with pytest.raises(KeyboardInterrupt):
            retain(year, old.scans, keep_flags=False)
    assert seen == list(IN_ORDER[: IN_ORDER.index("verdicts") + 1])
    assert expired_rows(year, cutoff(1)) == old._replace(flagged=0)
    retain(year, old.scans, keep_flags=False)
    assert all(scans_in(year, name) == nights(range(2)) for name in IN_ORDER)


@pytest.mark.costly
def test_a_commit_meanwhile_is_not_lost(year, monkeypatch):
    """Between the look at the table and the commit, another process merges files and adds rows."""
    met = []

    def meanwhile(results, table, name, actions, transactions, real=upkeep.try_to_commit):
        if not met:
            met.append(name)
            compact(year)
            enter(year, "verdicts", "late", [verdict(9, scan_id=scan_of(0), shard_id="late")])
        return real(results, table, name, actions, transactions)

    monkeypatch.setattr(upkeep, "try_to_commit", meanwhile)
    retain(year, expired_rows(year, cutoff(1)).scans, keep_flags=False)
    assert met
    assert scans_in(year, "verdicts") == nights(range(2))
    assert 9 in pl.read_delta(table_uri(year, "verdicts"))["row"].to_list()


def files_in(folder: str, name: str) -> set[str]:
    return {path.name for path in Path(table_uri(folder, name)).glob("*.parquet")}


@pytest.mark.costly
def test_it_gets_its_turn_while_others_commit_and_leaves_no_file_behind(year, monkeypatch):
    """No file is read twice, however often others commit first; otherwise a large table would never be done."""
    compact(year)
    read, there = [], files_in(year, "verdicts")

    def busy(results, table, name, actions, transactions, real=upkeep.try_to_commit):
        if name == "verdicts" and len(others) < 5:
            others.append(f"late {len(others)}")
            enter(year, name, others[-1], [verdict(9 + len(others), scan_id=scan_of(0), shard_id=others[-1])])
        return real(results, table, name, actions, transactions)

    def opened(source, real=pq.ParquetFile):
        read.append(source)
        return real(source)

    others: list[str] = []
    monkeypatch.setattr(upkeep, "try_to_commit", busy)
    monkeypatch.setattr(upkeep.pq, "ParquetFile", opened)
    retain(year, expired_rows(year, cutoff(1)).scans, keep_flags=False)
    assert len(others) == 5
    assert len(read) == len(IN_ORDER)  # statistics show that the others' files hold later scans alone
    assert len(files_in(year, "verdicts") - there) == len(others) + 1
    assert pl.read_delta(table_uri(year, "verdicts"))["row"].sort().to_list() == [0, 0, 1, 1, 2, 2, *range(10, 15)]


@pytest.mark.costly
def test_one_who_gives_up_leaves_no_file_behind(year, monkeypatch):
    compact(year)
    there = files_in(year, "verdicts")
    monkeypatch.setattr(delta, "COMMIT_ATTEMPTS", 2)
    monkeypatch.setattr(upkeep, "try_to_commit", lambda _results, _table, name, *_: name != "verdicts")
    with pytest.raises(ScanFailed, match="other processes committed first"):
        retain(year, expired_rows(year, cutoff(1)).scans, keep_flags=False)
    assert files_in(year, "verdicts") == there


def test_a_scan_that_read_no_document_goes_with_its_night(year):
    """Such a scan has rows in quarantine alone, for faulty files."""
    scan_id = scan_of(5)
    enter(year, "quarantine", "fault", [filled(SCHEMAS["quarantine"], scan_id=scan_id, row=None)])
    old = expired_rows(year, cutoff(4))
    assert (old.nights, old.scans, old.documents) == ((f"{TODAY - timedelta(days=5):%Y-%m-%d}",), (scan_id,), 0)
    assert retain(year, old.scans, keep_flags=False) == 1
    assert scans_in(year, "quarantine") == nights(range(NIGHTS))


def flags_of(folder: str) -> list[tuple[str, int, str]]:
    return sorted(results.flagged(folder).select("path", "row", "scan_id").collect().rows())


@pytest.mark.costly
def test_flags_that_are_kept_are_those_that_stood(tmp_path):
    """A file has two flags, and one after a rescan. The flag taken back stays away when the rescan's night goes."""
    folder = str(tmp_path / "results")
    open_tables(folder, SCHEMAS)
    add_night(folder, 3, "/in/a", flagged=2)
    add_night(folder, 2, "/in/a", flagged=1)
    before = flags_of(folder)
    assert before == [("/in/a", 0, scan_of(2))]
    for days in (2, 1):
        retain(folder, expired_rows(folder, cutoff(days), keep_flags=True).scans, keep_flags=True)
        assert flags_of(folder) == before
    add_night(folder, 0, "/in/a", flagged=1)  # the new flag stands, once
    assert flags_of(folder) == [("/in/a", 0, scan_of(0))]


@pytest.fixture
def empty(tmp_path) -> str:
    folder = str(tmp_path / "results")
    open_tables(folder, SCHEMAS)
    return folder


def drop(folder: str, days: int) -> None:
    retain(folder, expired_rows(folder, cutoff(days), keep_flags=True).scans, keep_flags=True)


@pytest.mark.costly
def test_a_kept_flag_that_was_taken_back_does_not_come_back_when_that_night_goes_too(empty):
    add_night(empty, 3, "/in/a", flagged=1)
    add_night(empty, 4, "/in/b", flagged=1)
    drop(empty, 2)
    kept = flags_of(empty)
    assert kept == [("/in/a", 0, scan_of(3)), ("/in/b", 0, scan_of(4))]
    add_night(empty, 2, "/in/a", flagged=0)
    assert flags_of(empty) == kept[1:]
    drop(empty, 1)
    assert flags_of(empty) == kept[1:]


@pytest.mark.costly
def test_a_flag_is_kept_that_a_better_one_under_other_keys_only_stands_before(empty):
    add_night(empty, 3, "/in/a", flagged=1, keys="old", log10_p=-8.0)
    add_night(empty, 2, "/in/a", flagged=1, keys="new", log10_p=-9.0)
    assert flags_of(empty) == [("/in/a", 0, scan_of(2))]
    drop(empty, 1)
    assert flags_of(empty) == [("/in/a", 0, scan_of(2))]
    add_night(empty, 0, "/in/a", flagged=0, keys="new")
    assert flags_of(empty) == [("/in/a", 0, scan_of(3))]


@pytest.mark.costly
def test_a_kept_flag_is_not_hidden_by_a_row_in_quarantine(tmp_path, monkeypatch):
    """The flag stands at each moment while the later night goes, also if the call is interrupted at any table."""
    folder = str(tmp_path / "results")
    open_tables(folder, SCHEMAS)
    add_night(folder, 3, "/in/a", flagged=1)
    at = TODAY - timedelta(days=2)
    about = {"scan_id": scan_of(2), "shard_id": "shard 2", "path": "/in/a", "scanned_at": at}
    span = {"first_row": 0, "rows": 1, "keys": "set", "file": "1:1", "dropped_at": None}
    enter(folder, "quarantine", "shard 2", [filled(SCHEMAS["quarantine"], row=0, **about)])
    enter(folder, "shards", "shard 2", [filled(SCHEMAS["shards"], night=f"{at:%Y-%m-%d}", **span, **about)])
    enter(folder, "verdicts", "shard 2", [])
    left = list(IN_ORDER)

    def stops(folder, name, *how, real=retention.rewrite):
        rows = real(folder, name, *how)
        if name in left:
            left.remove(name)
            raise KeyboardInterrupt
        return rows

    monkeypatch.setattr(retention, "rewrite", stops)
    while left:
        with pytest.raises(KeyboardInterrupt):
            retain(folder, expired_rows(folder, cutoff(1), keep_flags=True).scans, keep_flags=True)
        assert flags_of(folder) == [("/in/a", 0, scan_of(3))], left
    assert expired_rows(folder, cutoff(1), keep_flags=True).scans == ()


def test_a_table_whose_file_is_gone_is_told(year):
    next(Path(table_uri(year, "verdicts")).glob("*.parquet")).unlink()
    with pytest.raises(ScanFailed, match="cannot be read"):
        retain(year, expired_rows(year, date(2999, 1, 1)).scans, keep_flags=False)


def test_the_command_asks_and_says_what_it_would_drop(year):
    code, out, err = call("retain", year, "--keep", 1)
    assert code == 2
    assert "give --yes" in err
    code, out, _ = call("retain", year, "--keep", 1, "--dry-run")
    assert (code, "drops 2 nights" in out, "6 documents and 2 flags" in out) == (0, True, True)
    assert scans_in(year, "verdicts") == nights(range(NIGHTS))


@pytest.mark.costly
def test_the_command_drops(year):
    code, out, _ = call("retain", year, "--keep", 1, "--keep-flags", "--yes")
    assert (code, out) == (0, "18 rows dropped\n")
    again = ("retain", year, "--keep", 1, "--yes")
    none_left = "no night is older than 1 day"
    code, out, err = call(*again, "--keep-flags")
    assert (code, none_left in out, err) == (0, True, f"{NOT_CHECKED}\n")
    code, out, _ = call(*again)
    assert (code, out) == (0, "10 rows dropped\n")
    code, out, err = call(*again)
    assert (code, none_left in out, err) == (0, True, f"{NOT_CHECKED}\n")
    assert call("retain", year, "--keep", 10**6, "--yes")[0] == 2


@pytest.mark.costly
@pytest.mark.parametrize(("code", "drops"), [(0, False), (3, False), (4, False), (5, False), (1, True), (130, True)])
def test_a_scan_that_came_to_its_end_today_is_the_one_that_drops(year, code, drops):
    """Also one that lost canaries: what each later scan of the day would look for is gone already."""
    did = filled(SCANS, scan_id="today", exit_code=code, config_sha256="c", started_at=TODAY, part=None)
    append_scan(year, did)
    assert (drop_older(year, 1, keep_flags=False, config_sha256="c") > 0) == drops
    assert (drop_older(year, 1, keep_flags=False, config_sha256="of another input") > 0) == (not drops)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_table_leaves_and_forgets_by_its_columns(name):
    """A table that shows a night's users is never left behind, whichever capability it belongs to."""
    columns = {*SCHEMAS[name].names}
    assert (name in IN_ORDER) == ("shard_id" in columns)
    assert (name in OF_USERS) == bool(columns & {"user_id", "user_ids", "named"})

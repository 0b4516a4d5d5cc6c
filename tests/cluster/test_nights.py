"""Nights: a date of the data is what every command means by night, and a night that lost files is not green."""

from datetime import UTC, date, datetime, timedelta

import pytest

from jobs.summary import summary
from scanner import results
from scanner.cluster.commits import ScanTotals
from scanner.cluster.pieces import DocumentCounts
from scanner.cluster.scan import ScanOutcome, run_scan
from scanner.cluster.unread_input import _too_much
from scanner.cluster.work import ScanWork
from scanner.night_report import night_of
from scanner.results.retention import expired_rows
from scanner.scan_plan import make_plan
from tests.support.command_line import call
from tests.support.night import Night

pytestmark = pytest.mark.usefixtures("without_ray")

WEEK = [date(2026, 3, day) for day in (2, 3, 4)]


def scan(night: Night, day: date | None = None) -> ScanOutcome:
    return run_scan(make_plan(night.config, day), lambda work, totals: None)


@pytest.fixture
def backfilled(night, plain) -> Night:
    """Files of three dates of spring, scanned today."""
    night.configure(paths=["in/{date}"])
    for day in WEEK:
        (night.input / f"{day}").mkdir()
        night.write(f"{day}/a", [plain(40, day.day + i) for i in range(day.day)])
        assert scan(night, day).exit_code == 0
    return night


@pytest.mark.costly
def test_a_night_is_the_date_of_its_data(backfilled):
    folder = backfilled.results
    found = results.nights(folder).sort("night").collect()
    assert found["night"].to_list() == [f"{day}" for day in WEEK]
    assert found["documents"].to_list() == [2, 3, 4]
    assert night_of(folder, 1e-6, WEEK[0]).documents == 2
    assert night_of(folder, 1e-6, None).day == WEEK[-1]  # of the newest scan
    assert [f" {day} " in call("status", backfilled.config)[1] for day in WEEK] == [True] * 3


@pytest.mark.costly
def test_a_backfilled_night_ages_from_its_scan(backfilled):
    today = datetime.now(UTC).date()
    assert expired_rows(backfilled.results, today - timedelta(days=1)).nights == ()
    assert set(expired_rows(backfilled.results, today + timedelta(days=1)).nights) == {f"{today}"}


def test_a_scan_without_a_date_is_of_the_day_on_which_it_began(night, plain):
    night.write("a", [plain(40, 1)])
    outcome = scan(night)
    assert night.last_scan()["night"] == f"{datetime.strptime(outcome.scan_id[:8], '%Y%m%d'):%Y-%m-%d}"


@pytest.mark.costly
def test_a_date_that_was_stated_wrong_is_corrected_and_stays_on_record(backfilled, tmp_path):
    scan_id = backfilled.last_scan()["scan_id"]
    for _ in range(2):  # a second call changes nothing
        code, out, err = call("redate", backfilled.config, scan_id, "--date", "2026-03-05")
        assert (code, err) == (0, "")
    assert out == f"scan {scan_id}: its night is 2026-03-05; it was 2026-03-05\n"
    assert results.nights(backfilled.results).collect()["night"].sort().to_list()[-1] == "2026-03-05"
    assert (backfilled.last_scan()["night"], backfilled.last_scan()["night_stated"]) == ("2026-03-05", "2026-03-04")
    assert "2026-03-05 (stated 2026-03-04)" in call("status", backfilled.config)[1]
    code, _, err = call("report", backfilled.config, "--date", "2026-03-05", "--out", tmp_path / "pages")
    assert (code, "stated another date (2026-03-04)" in (tmp_path / "pages" / "index.html").read_text()) == (0, True), (
        err
    )
    assert scan(backfilled, WEEK[2]).work.left == ()  # its files stay scanned
    code, _, err = call("redate", backfilled.config, "nothing", "--date", "2026-03-05")
    assert (code, "no finished scan has that id" in err) == (2, True)


@pytest.mark.costly
def test_a_night_that_lost_a_file_is_not_green_until_it_is_allowed(night, plain):
    night.write("a", [plain(40, 1)])
    path = night.write("b", [plain(40, seed) for seed in range(8)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    for _ in range(2):  # a rerun reads nothing and says it again
        code, out, _ = call("scan", night.config)
        assert code == 4
        said = " ".join(out.split())
        assert f"- 1 of the input's files cannot be read, and max_lost_files allows 0: {path}. `brickscan quar" in said
        assert "--group-by document` says why; write these files again" in said
    assert night_of(night.results, 1e-6, None).light == "amber"
    night.configure(more="max_lost_files = 1")
    assert call("scan", night.config)[0] == 0
    night.configure()
    path.write_bytes(whole)
    assert call("scan", night.config)[0] == 0
    assert night_of(night.results, 1e-6, None).documents == 9


def test_rows_that_footers_promise_count_in_the_share_of_quarantine(night):
    plan = make_plan(night.configure(more="max_quarantined_share = 0.1\nmax_lost_files = 5"))
    work = ScanWork(20, 0, (), (), ())

    def beyond(lost: int) -> int:
        totals = ScanTotals(counts=DocumentCounts(documents=90), rows_lost=lost)
        return len([*_too_much(plan, work, totals, 1)])

    assert (beyond(9), beyond(10), beyond(11)) == (0, 0, 1)


def test_a_night_that_was_interrupted_and_gone_on_with_is_green(night, plain):
    night.write("a", [plain(40, 1)])
    night.write("b", [plain(40, 2)])

    commits = []

    def interrupt(_work, totals):
        if totals.shards and not commits:
            commits.append(totals)
            raise KeyboardInterrupt

    assert run_scan(make_plan(night.config), interrupt).exit_code == 130
    assert night_of(night.results, 1e-6, None).light == "amber"
    assert scan(night).exit_code == 0
    found = night_of(night.results, 1e-6, None)
    assert (found.light, found.why) == ("green", [])


def test_a_scan_that_was_interrupted_says_why_documents_are_in_quarantine(night, plain):
    for name in "ab":
        night.write(name, [plain(40, 1), None])
    commits = []

    def interrupt(_work, totals):
        if totals.shards and not commits:
            commits.append(totals)
            raise KeyboardInterrupt

    outcome = run_scan(make_plan(night.config), interrupt)
    assert outcome.exit_code == 130
    assert [reason.reason for reason in outcome.unread.reasons] == ["null_text"]
    assert "(null_text " in summary(outcome, night.results, 1e-6)

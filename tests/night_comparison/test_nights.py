"""Nights from scans to sentences: what tables count of a night, and true scans whose last night is amber."""

import json
from datetime import UTC, date, datetime, timedelta

import pytest

from scanner.cluster.scan import run_scan
from scanner.comparing import compare_nights
from scanner.night_comparison.compared import ComparedNight, Move
from scanner.night_comparison.figures import NightCounts, TextCounts, series_of
from scanner.night_comparison.judge import LEAST_NIGHTS
from scanner.night_comparison.recorded_nights import finished_nights, read_counts
from scanner.results.retention import redate, retain
from scanner.results.transactions import append_scan, open_tables, read_whole
from scanner.scan_plan import make_plan
from schemas.tables import SCANS
from tests.support.command_line import call
from tests.support.rows import filled

FIRST = date(2026, 9, 1)


def put_night(night, day, texts, name="a", **columns):
    folder = night.folder / "in" / f"{day}"
    folder.mkdir(exist_ok=True)
    night.write(name, texts, **columns).rename(folder / f"{name}.parquet")


def scan(night, day, **options):
    return run_scan(make_plan(night.config, day), lambda work, totals: None, **options)


def counts_of(night, day):
    (counts,) = read_counts(night.results, {day: finished_nights(night.results, {})[day]})
    return counts


@pytest.mark.long
@pytest.mark.usefixtures("without_ray")
def test_a_night_of_empty_texts_is_amber(night, plain, tmp_path):
    """Cudf 22299: a writer's fault. Of the last of thirty nights 35 % of the texts are empty."""
    night.configure(paths=["in/{date}"], columns='account = "account"')
    texts = [plain(20, seed) for seed in range(100)]
    days = [FIRST + timedelta(days=day) for day in range(LEAST_NIGHTS + 2)]
    for day in days[:-1]:
        put_night(night, day, texts, account=[f"u{i % 40}" for i in range(100)])
        outcome = scan(night, day)
    (last,) = outcome.compared
    assert (last.night, last.moved, last.waiting) == (days[-2], None, None)
    code, out, _ = call("status", night.config)
    assert (code, "nothing needs your attention" in out) == (0, True), out

    put_night(night, days[-1], [*texts[:65], *[""] * 20, *[" \n"] * 15], account=[f"u{i % 40}" for i in range(100)])
    code, out, _ = call("scan", night.config, "--date", days[-1], "--summary", "json")
    assert code == 0
    (compared,) = json.loads(out)["compared_nights"]
    (empty,) = compared["moved"]
    assert empty == {"figure": "empty", "subject": None, "value": 0.35, "usual": 0.0, "since": f"{days[-1]}"}
    said = (
        f"night {days[-1]}: 35 % of texts are empty (0 % on the 28 nights before), since {days[-1]}: "
        "look at what writes these files"
    )
    code, out, _ = call("status", night.config)
    assert (code, f"- amber: {said}\n" in out + "\n") == (0, True), out
    answer = json.loads(call("status", night.config, "--format", "json")[1])
    assert answer["needs_attention"] == [f"amber: {said}"]
    assert answer["compared_nights"][0] == compared
    code, out, _ = call("report", night.config, "--out", tmp_path / "report")
    assert (code, f"night of {days[-1]}: amber" in out, f"- {said}" in out) == (0, True, True), out
    assert "35 % of texts are empty" in (tmp_path / "report" / "index.html").read_text()
    record = json.loads((tmp_path / "report" / "index.json").read_text())
    assert (record["light"], record["compared"]) == ("amber", compared)
    code, out, _ = call("report", night.config, "--date", days[-2], "--out", tmp_path / "before")
    assert f"night of {days[-2]}: green" in out


@pytest.mark.usefixtures("without_ray")
def test_a_document_counts_once_a_night(night, marked, plain):
    """A night that is scanned again under another key, and a file of it that is written again."""
    night.configure(paths=["in/{date}"], more='keys = ["green"]')
    put_night(night, FIRST, [marked(1, 100, 1), "", plain(40, 1)], "a")
    put_night(night, FIRST, [plain(40, 2), None], "b")
    scan(night, FIRST)
    first = counts_of(night, FIRST)
    assert (first.documents, first.quarantined, first.too_short, first.keys) == (5, 1, 1, {"green"})
    assert (first.texts.blank, first.texts.missing, first.texts.without_account) == (1, 1, 5)
    assert first.texts.flags == {"green": 1}

    night.configure(paths=["in/{date}"])
    put_night(night, FIRST, [plain(40, 3)], "b")
    scan(night, FIRST)
    second = counts_of(night, FIRST)
    assert (second.documents, second.quarantined, second.keys) == (4, 0, {"green", "gum"})
    assert (second.texts.missing, second.texts.blank, second.texts.flags) == (0, 1, {"green": 1})
    assert len(read_whole(night.results, "shards").collect()) == 4


@pytest.mark.usefixtures("without_ray")
def test_counts_leave_with_their_night(night, plain):
    night.configure(paths=["in/{date}"])
    put_night(night, FIRST, [plain(40, 1)])
    outcome = scan(night, FIRST)
    redate(night.results, outcome.scan_id, FIRST + timedelta(days=1))
    assert [*finished_nights(night.results, {})] == [FIRST + timedelta(days=1)]
    assert counts_of(night, FIRST + timedelta(days=1)).texts is not None
    retain(night.results, [outcome.scan_id], keep_flags=False)
    assert read_whole(night.results, "text_counts").collect().is_empty()
    dropped = counts_of(night, FIRST + timedelta(days=1))
    assert (dropped.documents, dropped.texts) == (1, None)


@pytest.mark.usefixtures("without_ray")
def test_first_nights_have_nothing_to_be_held_against(night, plain):
    night.write("a", [plain(40, 1)])
    (compared,) = night.scan().compared
    assert compared.waiting == f"night {compared.night} has too little to be compared with: 0 earlier nights, of 28"
    assert compared.moved is None
    assert compared.waiting in call("status", night.config)[1]


def ended(folder, day, exit_code=0, documents=10, part=None):
    began = datetime.combine(day, datetime.min.time(), UTC)
    about = {"exit_code": exit_code, "documents": documents, "part": part, "keys": [], "night": f"{day}"}
    append_scan(folder, filled(SCANS, scan_id=f"{day} {exit_code} {documents} {part}", started_at=began, **about))


def test_nights_that_may_still_grow_are_left_out(tmp_path):
    """Of a night that is scanned as its files land, what is there at noon is no night."""
    open_tables(folder := str(tmp_path / "results"))
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in range(5)]
    for day in days:
        ended(folder, day)
    ended(folder, days[1] - timedelta(days=9), exit_code=130)
    ended(folder, days[1] - timedelta(days=8), part="1/2")
    assert set(finished_nights(folder, {})) == {*days}
    for day in days:
        ended(folder, day, documents=20)
    assert set(finished_nights(folder, {})) == {*days[1:]}
    assert set(finished_nights(folder, {today: {"green"}})) == {*days}
    assert compare_nights(folder, [today]) == []


def test_words_of_many_figures():
    nights = [NightCounts(FIRST, 1, 0, 0, 1, frozenset({"green"}), TextCounts(scripts={"Latin": 1}))]
    figures = [*dict.fromkeys(series.figure for series in series_of(nights))]
    moves = [Move(figure, "green", 0.00021, 0.4, 28, FIRST, share=True) for figure in figures]
    night = ComparedNight(FIRST, 60, tuple(moves))
    assert night.moved is not None
    assert night.moved.startswith(f"night {FIRST}: 0.021 % of texts are empty (40 % on the 28 nights before), since")
    assert night.moved.endswith(
        "garbled texts, hidden characters, no account, quarantine, documents, accounts, "
        "texts without a letter, scripts, tokens a text, short texts, flags"
    )
    assert night.figures == figures
    assert Move("flags", "green", 0.25, 0.1, 28, FIRST, share=True).in_words() == (
        "25 % of documents are flagged under key green (10 % on the 28 nights before)"
    )
    documents = Move("documents", "", 1_234_567.0, 0.0, 28, FIRST, share=False)
    assert documents.in_words() == "1,234,567 documents (0 on the 28 nights before)"

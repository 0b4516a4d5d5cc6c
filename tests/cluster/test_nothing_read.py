"""A scan that read nothing is not green and says what it found instead, for each kind of bad day of an operator."""

from contextlib import nullcontext
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.cluster import follow as following
from scanner.cluster.follow import ArrivedFiles, follow
from scanner.cluster.unread_input import other_names
from scanner.input import files
from scanner.input.files import list_files
from scanner.input.tables import NEWEST_TABLES
from scanner.results.scan_list import Reason, in_words
from tests.support.columns import COLUMNS
from tests.support.command_line import call
from tests.support.slow_store import SlowStore


def empty_folder(night, plain):
    pass


def a_csv(night, plain):
    (night.input / "a.csv").write_text("doc_id,text\n1,hello\n")


def endings_that_are_not_read(night, plain):
    path = night.write("a", [plain(40, 1)])
    for name in ("a.PARQUET", "b.parq", "c.parquet.gz", "d"):
        (night.input / name).write_bytes(path.read_bytes())
    path.unlink()
    (night.input / "e.jsonl").write_text("{}")


def a_csv_called_parquet(night, plain):
    (night.input / "a.parquet").write_text("doc_id,text\n1,hello\n")


def files_without_rows(night, plain):
    night.write("a", [])
    night.write("b", [])


def texts_that_are_null(night, plain):
    night.write("a", [None] * 3)
    night.write("b", [None])


def texts_of_another_type(night, plain):
    pq.write_table(pa.table({"text": [1, 2], "doc_id": ["a", "b"]}), night.input / "a.parquet")


def some_of_each(night, plain):
    a_csv(night, plain)
    a_csv_called_parquet(night, plain)
    night.write("b", [None] * 3)
    files_without = night.write("c", [])
    assert files_without.exists()


QUIET = " Set allow_empty = true if a night may be empty."
QUARANTINE = "Nothing was read: the whole input is in quarantine ({}): see `brickscan quarantine`."
DAYS = {
    empty_folder: "Nothing was read: no Parquet file is in {folder}." + QUIET,
    a_csv: "Nothing was read: no Parquet file is in {folder}.",
    endings_that_are_not_read: "Nothing was read: no Parquet file is in {folder}.",
    a_csv_called_parquet: QUARANTINE.format("not_parquet 1 file"),
    files_without_rows: "Nothing was read: the input's Parquet files (2) contain no documents." + QUIET,
    texts_that_are_null: QUARANTINE.format("null_text 4 documents"),
    texts_of_another_type: QUARANTINE.format("wrong_type 1 file"),
    some_of_each: QUARANTINE.format("null_text 3 documents, not_parquet 1 file"),
}
OVER = {
    a_csv: "1 file skipped, not ending in .parquet (.csv 1)",
    some_of_each: "1 file skipped, not ending in .parquet (.csv 1)",
    endings_that_are_not_read: "5 files skipped, not ending in .parquet (",
}


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.__name__)
def test_a_night_that_read_nothing_is_not_green(night, plain, day):
    day(night, plain)
    for _ in range(2):  # lasting faults are in quarantine since the first scan
        code, out, err = call("scan", night.config)
        assert code == 4, out + err
        assert night.last_scan()["exit_code"] == 4
        hands = " ".join(out[out.index("needs your attention:") :].split())
        assert f"- {DAYS[day].format(folder=night.input)}" in hands
        assert OVER.get(day, "") in hands
        assert ("skipped" in out) == (day in OVER)
        code, out, _ = call("flagged", night.config)
        counts = DAYS[day].partition("(")[2].partition(")")[0]
        told = f" In quarantine: {counts}." if "quarantine" in DAYS[day] else ""
        assert (code, out) == (0, f"No document is flagged, of 0 that were read.{told}\n")

    night.configure(more="allow_empty = true")
    allowed = DAYS[day].endswith(QUIET)  # a night with unreadable input is not a quiet night
    code, out, _ = call("scan", night.config)
    assert code == night.last_scan()["exit_code"] == (0 if allowed else 4)
    said = DAYS[day].removesuffix(QUIET).format(folder=night.input)
    assert (f"careful {said} With allow_empty" in " ".join(out.split())) == allowed
    assert ("needs your attention:" not in out) == allowed


@pytest.mark.usefixtures("without_ray")
def test_a_missing_folder_is_no_quiet_night(night, monkeypatch):
    """`allow_empty` or not, it is refused by its path; of a store, which has no empty folders, it counts as empty."""
    night.input.rmdir()
    for more in ("", "allow_empty = true"):
        night.configure(more=more)
        for check in ((), ("--check",)):
            code, _, err = call("scan", night.config, *check)
            assert (code, f"{str(night.input)!r} does not exist" in err) == (2, True)
    monkeypatch.setattr(files, "filesystem_of", SlowStore(0).filesystem_of)
    paths = [f"s3:/{night.input}"]
    night.configure(paths=paths)
    assert call("scan", night.config)[0] == 2
    night.configure(more="allow_empty = true", paths=paths)
    for check in ("--check", "--verbose"):
        code, out, err = call("scan", night.config, check)
        assert (code, paths[0] in out) == (0, True), err


@pytest.mark.usefixtures("without_ray")
def test_a_night_that_is_finished_is_green_when_it_is_resumed(night, plain):
    some_of_each(night, plain)
    night.write("sound", [plain(40, 5)])
    night.configure(more="max_lost_files = 1")
    code, out, _ = call("scan", night.config)
    assert code == 0
    assert "Nothing was read" not in out
    assert call("scan", night.config)[0] == 0  # all is done, and an earlier scan read documents


@pytest.mark.usefixtures("without_ray")
def test_one_document_that_is_read_is_enough_and_the_first_reasons_are_told(night, plain):
    night.write("a", [None, None, "short"])
    (night.input / "b.parquet").write_text("not Parquet")
    night.configure(more="max_lost_files = 1")
    told = "quarantined  2 documents, 1 file (null_text 2 documents, not_parquet 1 file)\n"
    code, out, _ = call("scan", night.config)
    assert code == 0
    assert told in out
    assert call("flagged", night.config)[1] == (
        "No document is flagged, of 1 that were read. In quarantine: null_text 2 documents, not_parquet 1 file.\n"
    )
    again = call("scan", night.config)[1]
    assert told in again  # the counts are of the input, whichever scan read it


@pytest.mark.usefixtures("without_ray")
def test_hidden_files_need_a_hand(night, plain):
    """A scan that passes a hidden Parquet file over says so, and does not end with `nothing needs your attention`."""
    path = night.write("a", [plain(40, 1)])
    assert call("scan", night.config)[1].endswith("nothing needs your attention\n")
    (night.input / "_old").mkdir()
    (night.input / "_old" / "b.parquet").write_bytes(path.read_bytes())
    code, out, _ = call("scan", night.config)
    assert code == 0
    assert "1 Parquet file skipped because the name begins with _ or . as unfinished" in " ".join(out.split())


@pytest.mark.usefixtures("without_ray")
def test_files_that_vanish_are_not_read(night, plain, monkeypatch):
    path = night.write("a", [plain(40, 1)])
    listed = list_files([str(night.input)])
    path.unlink()
    monkeypatch.setattr("scanner.cluster.scan.list_files", lambda *_, **__: listed)
    code, out, _ = call("scan", night.config)
    assert code == 4
    assert f"- {QUARANTINE.format('vanished 1 file')}" in " ".join(out.split())


@pytest.mark.usefixtures("without_ray")
def test_a_scan_that_follows_only_logs_it(night, plain, monkeypatch, caplog):
    night.write("a", [None])
    outcomes, scan = [], following.run_scan

    def once(*args, **options):
        outcomes.append(scan(*args, **options))
        return outcomes[-1]

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "run_scan", once)
    monkeypatch.setattr(following, "cluster", lambda _: nullcontext())
    monkeypatch.setattr(following.time, "sleep", stop)
    monkeypatch.setattr(ArrivedFiles, "ready", lambda self, files, columns: files)
    troubles = []
    assert follow(night.plan, lambda *_: None, troubles.append) == 0
    (outcome,) = outcomes
    assert (outcome.exit_code, night.last_scan()["exit_code"], troubles) == (0, 0, [])
    assert caplog.messages.count(f"scan {outcome.scan_id}: {QUARANTINE.format('null_text 1 document')}") == 1


def test_a_scan_that_follows_tells_what_it_passes_over_and_that_there_is_nothing(tmp_path, monkeypatch, caplog):
    for name in ("a.csv", "b.csv", "c.PARQUET", "_d.csv", ".e.csv", "_f.parquet", ".g.parquet"):
        (tmp_path / name).write_text("x")
    looks = []

    def sleep(_):
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    plan = SimpleNamespace(
        locations=[str(tmp_path)],
        columns=COLUMNS,
        verdict_settings="",
        config=SimpleNamespace(cluster=None),
        table_reading=NEWEST_TABLES,
    )
    monkeypatch.setattr(following, "cluster", lambda _: nullcontext())
    monkeypatch.setattr(following.time, "sleep", sleep)
    assert follow(lambda: plan, lambda *_: None, lambda _: None) == 0
    hidden, csv, upper, nothing = sorted(caplog.messages)
    assert hidden.endswith(".parquet' is skipped, like all files with hidden names: they may be unfinished")
    assert csv.endswith(".csv' is skipped, like all files that end in '.csv': only .parquet is read")
    assert upper.startswith(f"'{tmp_path}/c.PARQUET' is skipped, like all files that end in '.PARQUET'")
    assert nothing == "the input has no Parquet file; it will be looked at again"


@pytest.mark.parametrize(
    "name", ["a.PARQUET", "a.parq", "a.csv", "a.jsonl", "a.parquet.tmp", "a", "parquet", "é.Parquet"]
)
def test_whatever_is_not_read_in_a_folder_is_told(tmp_path, name):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / name).write_text("x")
    (tmp_path / "in" / "deep" / f"_{name}").write_text("x")
    (tmp_path / "in" / ".hidden").mkdir()
    (tmp_path / "in" / ".hidden" / name).write_text("x")
    told = []
    assert list_files([str(tmp_path / "in")], passed_over=told.append) == []
    assert told == [str(tmp_path / "in" / "deep" / name)]
    told.clear()
    assert len(list_files([str(tmp_path / "in" / "deep" / name)], passed_over=told.append)) == 1  # named, so read
    assert told == []


def test_endings_in_words():
    assert other_names([]) == ""
    assert other_names(["/in/a.csv", "/in.x/b", "/in/c.csv", "/in/d.tar.gz"]) == ".csv 2, no ending 1, .gz 1"
    assert other_names(f"/in/a.{i}" for i in range(9)) == ".0 1, .1 1, .2 1, .3 1, .4 1, …"


def test_reasons_in_words():
    assert in_words([]) == ""
    counted = [Reason("failed", 1200, 0), Reason("unreadable", 1, 2), Reason("null_text", 1, 0)]
    assert in_words(counted) == "failed 1,200 documents, unreadable 1 document, unreadable 2 files, …"

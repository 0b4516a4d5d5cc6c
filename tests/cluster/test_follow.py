"""A scan that follows its input: new files are scanned soon, unfinished files are waited for, a stop loses nothing."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.text import StatusLine
from scanner import results
from scanner.cluster import follow as follow_module
from scanner.cluster.commits import ScanTotals
from scanner.cluster.follow import LOOK_SECONDS, RETRY_SECONDS, UNFINISHED_SECONDS, ArrivedFiles, follow
from scanner.cluster.pieces import DocumentCounts
from scanner.cluster.scan import ScanOutcome
from scanner.input.files import list_files
from scanner.input.tables import NEWEST_TABLES
from scanner.results.transactions import read_whole
from tests.support.columns import COLUMNS
from tests.support.encodings import found
from tests.support.found_work import work
from tests.support.inspection import INSPECTOR
from tests.support.submitted import files_of, secrets_of, wait_for
from tests.support.two_keys import message_of


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watch:
    """A folder, and the arrived files that are given its files at each look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.arrived = ArrivedFiles(INSPECTOR, self.clock)

    def look(self, after: float = LOOK_SECONDS) -> list[str]:
        self.clock.now += after
        self.found = self.arrived.ready(list_files([str(self.folder)]), COLUMNS)
        return [Path(file.path).name for file in self.found]

    def write(self, name: str = "a.parquet") -> Path:
        pq.write_table(pa.table({"text": ["one", "two"]}), self.folder / name)
        return self.folder / name


@pytest.fixture
def watch(tmp_path) -> Watch:
    return Watch(tmp_path)


def test_a_file_is_ready_when_it_was_the_same_at_two_looks(watch):
    watch.write()
    assert watch.look() == []
    assert watch.look(LOOK_SECONDS / 2) == []
    assert watch.look(LOOK_SECONDS / 2) == ["a.parquet"]
    assert watch.look() == ["a.parquet"]  # `done` was not called yet
    watch.arrived.done(watch.found, to_retry=())
    assert watch.look() == watch.look(1e6) == []


def test_a_file_that_changes_is_another_one(watch):
    path = watch.write()
    watch.look()
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert watch.look() == []
    assert watch.look() == ["a.parquet"]
    watch.arrived.done(watch.found, to_retry=())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert watch.look() == []
    assert watch.look() == ["a.parquet"]


@pytest.mark.parametrize("head", [b"", b"PA", b"PAR1", b"PAR1" + bytes(100)])
def test_a_file_without_a_footer_is_waited_for_but_not_for_ever(watch, head):
    (watch.folder / "a.parquet").write_bytes(head)
    assert watch.look() == watch.look() == watch.look() == []
    assert watch.look(UNFINISHED_SECONDS - 2 * LOOK_SECONDS - 1) == []
    assert watch.look(1) == ["a.parquet"]
    watch.arrived.done(watch.found, to_retry=())
    watch.write()
    assert watch.look() == []
    assert watch.look() == ["a.parquet"]


def test_a_file_of_other_columns_is_not_waited_for(watch):
    pq.write_table(pa.table({"words": ["one"]}), watch.folder / "a.parquet")
    watch.look()
    assert watch.look() == ["a.parquet"]


def test_what_could_not_be_read_comes_back(watch):
    watch.write("a.parquet")
    watch.write("b.parquet")
    watch.look()
    assert watch.look() == ["a.parquet", "b.parquet"]
    watch.arrived.done(watch.found, to_retry=watch.found[1:])
    assert watch.look(RETRY_SECONDS - 1) == []
    assert watch.look(1) == ["b.parquet"]
    watch.arrived.forget()
    assert watch.look() == ["a.parquet", "b.parquet"]


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """Folder of Ray's logs; its path is short, since socket names must be short."""
    with tempfile.TemporaryDirectory(prefix="bs-", ignore_cleanup_errors=True) as folder:
        yield folder


@contextmanager
def following(night, ray_folder: str) -> Iterator["subprocess.Popen[str]"]:
    """A scan with --follow in a process of its own, which is ended when the block ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "jobs.scan", "--follow", "--config", str(night.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "HOME": str(night.folder), "RAY_TMPDIR": ray_folder},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def seen(night, rows: int) -> bool:
    return results.exist(night.results) and night.verdicts().height >= rows


def spans_of(night) -> list[tuple[str, int, str]]:
    """File, row and user of each span; a scan that lost or doubled some has others."""
    spans = read_whole(night.results, "spans").select("path", "row", "user_id").collect().sort("path")
    return [(Path(path).name, row, user) for path, row, user in spans.rows()]


@pytest.mark.costly
def test_files_are_scanned_as_they_land_and_a_stop_is_clean_and_shows_no_key(night, plain, marked, ray_folder):
    night.configure(more="spans = { windows = true }")
    alice = message_of(night.registry, "green", "alice")
    half = night.write(
        "half", [plain(500, 1) + marked(alice, 80, 2) + plain(300, 3), *(plain(60, i) for i in range(9))]
    )
    whole = half.read_bytes()
    half.write_bytes(whole[: len(whole) // 2])
    night.write("early", [plain(60, 100 + i) for i in range(10)])
    with following(night, ray_folder) as process:
        wait_for(lambda: seen(night, 10), process)
        landed = time.monotonic()
        night.write("late", [*(plain(60, 200 + i) for i in range(9)), plain(400, 4) + marked(alice, 80, 5)])
        half.write_bytes(whole)
        wait_for(lambda: seen(night, 30), process)
        assert time.monotonic() - landed < 2 * LOOK_SECONDS + 60  # 60 s more for a busy machine
        assert night.quarantine().height == 0

        for i in range(8):
            night.write(f"much{i}", [plain(60, 1000 * i + j) for j in range(60)])
        wait_for(lambda: seen(night, 31), process)
        # the folder of an embedded Ray goes with its scan
        (logs,) = map(files_of, Path(tempfile.gettempdir()).glob(f"bricks*/ray/session_2*_{process.pid}/logs"))
        stopped = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
        assert time.monotonic() - stopped < 30
        assert process.returncode == 0, err
    assert night.verdicts().height >= 31
    assert spans_of(night) == [("half.parquet", 0, "alice"), ("late.parquet", 9, "alice")]
    scans = results.scans(night.results).collect()
    assert scans["documents"].sum() == night.verdicts().height
    assert scans["exit_code"].to_list()[-1] in (0, 143)
    assert f"{night.verdicts().height} documents" in out.replace(",", "")
    assert err.splitlines()[-1].startswith("event=follow scans=")

    assert any(name.startswith("worker-") and name.endswith(".err") for name in logs)
    shown = {"output": out.encode(), "errors": err.encode()} | logs | files_of(Path(night.results))
    assert found(secrets_of(night.registry), shown) == set()


def plan_of(folder: Path) -> SimpleNamespace:
    """As much of a plan as `follow` itself reads."""
    config = SimpleNamespace(cluster=None)
    return SimpleNamespace(
        locations=[str(folder)],
        columns=COLUMNS,
        verdict_settings="",
        config=config,
        unsupported_keys=(),
        table_reading=NEWEST_TABLES,
    )


def test_an_alarm_is_told_at_once_and_is_the_exit_code_at_the_stop(monkeypatch, tmp_path):
    """Only the exit codes of scans are made up here; real scans are tested elsewhere."""
    plan = SimpleNamespace(
        locations=[str(tmp_path)],
        columns=COLUMNS,
        verdict_settings="",
        config=SimpleNamespace(cluster=None),
        unsupported_keys=(),
        table_reading=NEWEST_TABLES,
    )
    codes = iter([0, 4, 3, 4, 143])

    def scan(*_, files):
        return ScanOutcome("s", next(codes), work(1), ScanTotals(), 1.0, None, None, to_retry=frozenset(files))

    monkeypatch.setattr(follow_module, "run_scan", scan)
    monkeypatch.setattr(follow_module, "cluster", lambda _: nullcontext())
    monkeypatch.setattr(follow_module.time, "sleep", lambda _: None)
    monkeypatch.setattr(ArrivedFiles, "ready", lambda self, files, columns: files)
    Watch(tmp_path).write()
    told = []
    assert follow(lambda: plan, lambda *_: None, told.append) == 3
    assert [outcome.exit_code for outcome in told] == [4, 3, 4]


@pytest.mark.parametrize(("code", "late"), [(143, False), (3, True)])
def test_a_stop_right_after_an_alarm_is_still_an_alarm(monkeypatch, tmp_path, code, late):
    stopped = ScanOutcome(
        "s", code, work(1), ScanTotals(), 1.0, None, SimpleNamespace(state="alarm", warnings=list), stopped=late
    )
    monkeypatch.setattr(follow_module, "run_scan", lambda *_, files: stopped)
    monkeypatch.setattr(follow_module, "cluster", lambda _: nullcontext())
    monkeypatch.setattr(ArrivedFiles, "ready", lambda self, files, columns: files)
    Watch(tmp_path).write()
    plan = SimpleNamespace(
        locations=[str(tmp_path)],
        columns=COLUMNS,
        verdict_settings="",
        config=SimpleNamespace(cluster=None),
        unsupported_keys=(),
        table_reading=NEWEST_TABLES,
    )
    assert follow(lambda: plan, lambda *_: None, lambda _: None) == 3


def test_possible_framing_is_told_and_no_trouble(monkeypatch, tmp_path, caplog):
    audit = SimpleNamespace(state="possible framing", warnings=lambda: ["key k: so and so"])
    ended = ScanOutcome("s", 0, work(1), ScanTotals(), 1.0, None, audit, stopped=True)
    monkeypatch.setattr(follow_module, "run_scan", lambda *_, files: ended)
    monkeypatch.setattr(follow_module, "cluster", lambda _: nullcontext())
    monkeypatch.setattr(ArrivedFiles, "ready", lambda self, files, columns: files)
    Watch(tmp_path).write()
    plan = SimpleNamespace(
        locations=[str(tmp_path)],
        columns=COLUMNS,
        verdict_settings="",
        config=SimpleNamespace(cluster=None),
        unsupported_keys=(),
        table_reading=NEWEST_TABLES,
    )
    told = []
    assert follow(lambda: plan, lambda *_: None, told.append) == 0
    assert told == []
    assert "scan s: possible framing: key k: so and so" in caplog.text


def test_a_folder_that_is_not_there_yet_is_waited_for(monkeypatch, tmp_path, caplog):
    folder, looks = tmp_path / "2026-11-20", []
    plan = SimpleNamespace(
        locations=[str(folder)],
        columns=COLUMNS,
        verdict_settings="",
        config=SimpleNamespace(cluster=None),
        unsupported_keys=(),
        table_reading=NEWEST_TABLES,
    )

    def sleep(_):
        looks.append(folder.exists())
        if len(looks) == 2:
            folder.mkdir()
            Watch(folder).write()

    def scan(*_, files):
        return ScanOutcome("s", 143, work(len(files)), ScanTotals(), 1.0, None, None)

    monkeypatch.setattr(follow_module, "run_scan", scan)
    monkeypatch.setattr(follow_module, "cluster", lambda _: nullcontext())
    monkeypatch.setattr(follow_module.time, "sleep", sleep)
    monkeypatch.setattr(ArrivedFiles, "ready", lambda self, files, columns: files)
    assert follow(lambda: plan, lambda *_: None, lambda _: None) == 0
    assert looks == [False, False]
    assert caplog.text.count(f"'{folder}' does not exist") == 1


def test_a_status_line_at_every_interval(capsys):
    err, began = io.StringIO(), time.monotonic()
    with redirect_stderr(err):
        status = StatusLine(interval=0.1)
        first, second = work(10), work(20)
        status(first, ScanTotals())
        status(first, replace(ScanTotals(), shards=1, counts=DocumentCounts(documents=7, flagged=2)))
        status(first, replace(ScanTotals(), shards=2, counts=DocumentCounts(documents=10, flagged=2)))
        status(
            second,
            replace(ScanTotals(), shards=1, counts=DocumentCounts(documents=5, quarantined=1), files_quarantined=3),
        )
        while err.getvalue().count("\n") < 4:
            time.sleep(0.01)
        status.close()
    seconds = time.monotonic() - began
    lines = [dict(pair.split("=") for pair in line.split()) for line in err.getvalue().splitlines()]
    assert 5 <= len(lines) <= seconds / 0.1 + 1
    assert lines[-1].pop("scored") == "5/20"
    last = {name: int(value) for name, value in lines[-1].items() if name != "event"}
    assert last.pop("seconds") <= seconds + 1
    assert last == {
        "scans": 2,
        "files": 2,
        "shards": 3,
        "documents": 15,
        "flagged": 2,
        "quarantined": 1,
        "files_quarantined": 3,
        "in_future": 0,
        "older_than_key": 0,
    }

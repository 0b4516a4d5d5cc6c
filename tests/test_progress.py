"""Progress lines of a working command: how much is done, also within a shard, and how long the rest will take."""

import io
import sys
import time
from contextlib import redirect_stderr
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import text
from jobs.text import Progress, ProgressPace, StatusLine, StepProgress
from scanner.cluster.commits import ScanTotals
from scanner.cluster.pieces import DocumentCounts
from scanner.watermark import kernel
from tests.support.found_work import work


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines_of(err: io.StringIO) -> list[dict[str, str]]:
    return [dict(pair.split("=") for pair in line.split()) for line in err.getvalue().splitlines()]


@pytest.mark.parametrize("seed", range(10))
def test_what_is_left_takes_as_long_as_what_was_done(seed):
    generator = np.random.default_rng(seed)
    start, rate, of = float(generator.uniform(0, 99)), float(generator.uniform(0.1, 50)), 10_000
    clock = Clock()
    pace = ProgressPace(clock)
    assert pace.left(0, of) is None  # as long as Ray starts
    clock.now += start
    first = int(generator.integers(1, 100))
    assert pace.left(first, of) is None
    clock.now += 60
    done = first + int(60 * rate)
    assert pace.left(done, of) == pytest.approx((of - done) / (int(60 * rate) / 60))
    assert pace.left(of, of) == 0


def test_a_pace_that_stands_still_or_goes_back_says_nothing():
    clock = Clock()
    pace = ProgressPace(clock)
    pace.left(10, 100)
    clock.now += 5
    assert pace.left(10, 100) is None
    assert pace.left(3, 100) is None  # a worker died, and what it had done within a shard is lost


def test_lines_show_what_is_scored_within_a_shard(monkeypatch):
    err = io.StringIO()
    with redirect_stderr(err):
        shown, found = Progress(), work(100)
        shown(found, ScanTotals())
        shown(found, ScanTotals(under_way=10))  # too soon for another line
        monkeypatch.setattr(text, "_SIGN_SECONDS", 0.0)
        time.sleep(0.1)
        shown(found, ScanTotals(under_way=60))
        monkeypatch.setattr(text, "_SIGN_SECONDS", 1e9)
        shown(found, replace(ScanTotals(), counts=DocumentCounts(documents=50, flagged=2), under_way=20))  # a commit
        shown(found, replace(ScanTotals(), counts=DocumentCounts(documents=50, flagged=2), under_way=30))
        shown.close()
    told = [(line["documents"], line["scored"], line["flagged"]) for line in lines_of(err)]
    assert told == [("0/100", "0", "0"), ("0/100", "60", "0"), ("50/100", "70", "2")]
    assert ["eta_s" in line for line in lines_of(err)] == [False, True, True]


def test_a_bar_counts_what_is_scored_and_stays_where_a_worker_dies(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    shown = Progress()
    found = work(10)
    for under_way in (0, 7, 4):
        shown(found, ScanTotals(under_way=under_way))
    shown.close()
    assert ["7.00/10.0" in sys.stderr.getvalue(), "4.00/10.0" in sys.stderr.getvalue()] == [True, False]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=9))
def test_what_is_scored_never_runs_backwards(steps):
    """A commit knows nothing of shards that are under way, and a worker that dies takes its documents with it."""
    err, found = io.StringIO(), work(200)
    with redirect_stderr(err):
        shown = Progress()
        for documents, under_way in steps:
            shown(found, replace(ScanTotals(), counts=DocumentCounts(documents=documents), under_way=under_way))
        shown.close()
    scored = [int(line["scored"]) for line in lines_of(err)]
    assert scored == sorted(scored)


def test_a_status_line_tells_how_far_the_scan_is_that_runs():
    err = io.StringIO()
    with redirect_stderr(err):
        status = StatusLine(interval=1e6)
        first, second = work(10), work(1000)
        status(first, replace(ScanTotals(), counts=DocumentCounts(documents=10)))
        status(second, ScanTotals(under_way=200))
        time.sleep(0.1)
        status(second, ScanTotals(under_way=300))
        status.close()
    (line,) = lines_of(err)
    assert (line["documents"], line["scored"]) == ("10", "300/1000")
    assert 0 <= float(line["eta_s"]) < 60


def test_steps_tell_of_progress_of_standing_still_and_of_ends():
    clock, err, checked = Clock(), io.StringIO(), []
    with redirect_stderr(err):
        steps = StepProgress("calibrate", lambda: checked.append(1), clock)
        for second in range(70):  # after second 20 nothing happens
            clock.now += 1
            steps("law", min(second, 20), 40)
        for done in (39, 40, 40):
            clock.now += 0.1
            steps("law", done, 40)
        steps("tokenised", 1, 1)
        steps("tokenised", 0, 2)
        steps("tokenised", 2, 2)
    assert len(checked) == 76
    told = [(line["step"], line["done"], float(line["seconds"])) for line in lines_of(err)]
    law = [seconds for step, done, seconds in told if step == "'law'" and done != "40/40"]
    assert law == [5, 10, 15, 20, 25, 55, 70.1]
    assert [done for step, done, _ in told if step != "'law'"] == ["1/1", "2/2"]
    assert sum(done == "40/40" for _, done, _ in told) == 1
    etas = {line["seconds"]: line["eta_s"] for line in lines_of(err) if "eta_s" in line}
    assert etas["15.0"] == "26"  # 14 of 40 are done; the last 13 took 13 seconds


def test_count_kernels_until_a_document_is_scored(monkeypatch):
    """While kernels are compiled, for a minute on a new machine, a bar of kernels moves."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    counts = iter((3, 40, 41))
    monkeypatch.setattr(kernel, "compiled_count", lambda: next(counts))
    err = Terminal()
    with redirect_stderr(err):
        shown = Progress()
        shown.compiling()
        shown(work(100), ScanTotals())
        shown(work(100), ScanTotals())
        assert "40 kernels" in err.getvalue()
        assert "documents" not in err.getvalue()
        shown(work(100), ScanTotals(under_way=10))
        assert "documents" in err.getvalue()
        shown.close()

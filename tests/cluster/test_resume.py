"""A driver in a process of its own is killed, interrupted or raced: its commits stay, and nothing doubles."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

from scanner import results
from tests.support.night import Night
from tests.support.rows import same
from tests.support.signed_tables import delete_results
from tests.support.without_ray import put_in_the_place_of_ray

SHARDS, ROWS = 24, 80


class FullNight(NamedTuple):
    """A night of many shards, and its verdicts when nothing goes wrong."""

    night: Night
    expected: pl.DataFrame


pytestmark = pytest.mark.usefixtures("without_ray", "opened_once")  # drivers start a real Ray all the same


@pytest.fixture(scope="module")
def full(tmp_path_factory, registry, plain) -> FullNight:
    night = Night(tmp_path_factory.mktemp("full"), registry)
    night.configure(workers=2)
    for i in range(SHARDS):
        night.write(f"f{i:02}", [plain(60, 1000 * i + j) for j in range(ROWS)])
    with pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        night.scan()
    return FullNight(night, night.verdicts())


@pytest.fixture
def night(full) -> Night:
    """The full night without results."""
    delete_results(full.night.results, full.night.registry)
    return full.night


def command(night: Night) -> list[str]:
    return [sys.executable, "-m", "jobs.scan", "--config", str(night.config)]


def start(night: Night) -> "subprocess.Popen[str]":
    """Start a driver in its own process group, as in its own terminal, and with its own home folder."""
    return subprocess.Popen(
        command(night),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "HOME": str(night.folder)},
    )


def wait_for_a_commit(night: Night, process: "subprocess.Popen[str]") -> None:
    first = (
        Path(night.results) / "verdicts" / "_delta_log" / f"{2:020}.json"
    )  # versions 0 and 1 make and sign the table
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if first.exists():
            return
        time.sleep(0.02)
    pytest.fail(f"no commit was seen: {process.communicate()}")


@pytest.mark.costly
def test_a_killed_driver_loses_nothing_and_doubles_nothing(night, full):
    process = start(night)
    wait_for_a_commit(night, process)
    process.kill()
    process.communicate()
    assert 0 < night.verdicts().height < SHARDS * ROWS
    assert night.scan().exit_code == 0
    assert same(night.verdicts(), full.expected)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("signalled", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 143)]
)
def test_an_interrupted_driver_says_that_it_can_go_on(night, full, signalled, code):
    process = start(night)
    wait_for_a_commit(night, process)
    if signalled == signal.SIGINT:
        os.killpg(process.pid, signalled)  # Ctrl-C reaches every process of a terminal
    else:
        process.send_signal(signalled)
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    assert "Interrupted by " in out
    assert "Run the same command again" in out
    assert night.last_scan()["exit_code"] == code
    assert 0 < night.verdicts().height < SHARDS * ROWS
    assert night.quarantine().height == 0
    assert not (night.folder / ".ray").exists()  # a token in it would change how clusters start
    night.scan()
    assert same(night.verdicts(), full.expected)


@pytest.mark.costly
def test_sigterm_while_ray_starts(night):
    process = start(night)
    threads, deadline = Path(f"/proc/{process.pid}/task"), time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError):  # a thread has ended
            children = "".join(path.read_text() for path in threads.glob("*/children"))  # a thread starts Ray
            if children and results.exist(night.results):
                break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 143, (out, err)
    assert re.search("Interrupted by [^:]+: 0 of", out)
    assert night.last_scan()["exit_code"] == 143
    assert night.verdicts().height == 0


SLOW_LISTING = """
import sys, time
from jobs.cli import run
from jobs.scan import module
from scanner.input import inspector
def slow(*arguments, real=inspector.read_footer):
    print("listing\\n", end="", flush=True, file=sys.__stdout__)  # at once: several threads list
    time.sleep(3)
    return real(*arguments)
inspector.read_footer = slow
sys.exit(run(module, ["--config", sys.argv[1]]))
"""


@pytest.mark.costly
def test_sigterm_while_the_input_is_listed(night):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_LISTING, str(night.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "listing\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 143, (out, err)
    assert re.search("Interrupted by [^:]+: 0 of", out)
    assert "Nothing was read" not in out
    assert night.last_scan()["exit_code"] == 143
    assert night.verdicts().height == 0


@pytest.mark.costly
def test_two_drivers_of_the_same_night(night, full):
    other = start(night)
    night.scan()
    out, err = other.communicate(timeout=120)
    assert other.returncode == 0, (out, err)
    assert same(night.verdicts(), full.expected)
    scans = results.scans(night.results).collect()
    assert scans["documents"].sum() == SHARDS * ROWS  # the driver that commits a document counts it
    assert scans.select("exit_code", "shards").rows() == [(0, SHARDS)] * 2


@pytest.mark.costly
def test_a_cluster_that_is_not_there_is_told_at_once(night):
    config = night.folder / "elsewhere.toml"
    config.write_text(night.config.read_text() + 'address = "127.0.0.1:1"\n')
    process = subprocess.run(
        [sys.executable, "-m", "jobs.scan", "--config", str(config)], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 1
    assert "error: Ray: the cluster at '127.0.0.1:1' cannot be reached" in process.stderr
    assert night.last_scan()["exit_code"] == 1

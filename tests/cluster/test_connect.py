"""The start of an embedded Ray on a machine whose CPUs others use: tried again, then an end with advice."""

import gc
import subprocess
import sys

import pytest
import ray

from scanner.cluster.machines import cluster
from scanner.errors import ScanFailed
from schemas.config import ClusterConfig

SLOW = Exception("The current node timed out during startup. This could happen because some of the raylet failed.")


def late_starts(monkeypatch, failures: int) -> list[subprocess.Popen[bytes]]:
    """Have Ray start a process and then be too late, so many times. Returns what was started."""
    started: list[subprocess.Popen[bytes]] = []

    def init(**_options):
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        if len(started) <= failures:
            raise SLOW

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", init)
    return started


def test_a_ray_that_starts_too_late_is_started_again_and_nothing_of_it_stays(monkeypatch):
    started = late_starts(monkeypatch, 2)
    with cluster(ClusterConfig(workers=3)) as workers:
        assert workers == 3
        assert [process.wait(60) for process in started[:2]] == [-9, -9]
        assert started[2].poll() is None
    started[2].kill()
    started[2].wait()


def test_a_ray_that_starts_too_late_leaves_no_handles_that_warn_later(monkeypatch):
    """Ray's objects warn of processes that go on: those of its frames, and a circle that the collector finds later."""
    started = late_starts(monkeypatch, 0)
    warned: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", warned.append)

    class Circle:
        def __init__(self) -> None:
            self.circle, self.process = self, subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def late(**_options):
        monkeypatch.setattr(ray, "init", soon)
        Circle()
        forgotten = Circle()
        forgotten.circle = None
        raise SLOW

    soon = ray.init
    monkeypatch.setattr(ray, "init", late)
    with cluster(ClusterConfig(workers=3)):
        gc.collect()
    assert not warned
    started[0].kill()
    started[0].wait()


def test_a_ray_that_never_starts_ends_with_advice(monkeypatch):
    started = late_starts(monkeypatch, 99)
    advice = r"did not start, tried 3 times.*run it again.*ray start --head.*address"
    with pytest.raises(ScanFailed, match=advice), cluster(ClusterConfig(workers=3)):
        pass
    assert [process.wait(60) for process in started] == [-9, -9, -9]

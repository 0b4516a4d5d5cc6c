"""What all tests need of the process that runs them, and which of them `make check` runs."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# the same examples in every run, however little time the machine has for them
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

NOT_QUICK = re.compile(
    r"ray_cluster|\bimport ray\b|subprocess|multiprocessing|inspect\(|audited_scan|torch|\bnight\b|\btiny\b|\.png"
)
"""What files speak of that need Ray, a process (drawing asks one for fonts) or seconds for an import."""


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out files whose tests need Ray, a process or minutes")


def pytest_ignore_collect(collection_path: Path, config):
    """With --quick: files that speak of Ray, processes or torch are not even imported, which takes seconds each."""
    if config.getoption("--quick") and collection_path.name.startswith("test_"):
        return True if NOT_QUICK.search(collection_path.read_text(encoding="utf-8")) else None
    return None


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_interrupts():
    """In the background of a script Ctrl-C is ignored, and would be by every process that a test starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_process(request, monkeypatch):
    """With --quick a test that starts a process, as Ray would, fails: it belongs into the whole suite."""
    if not request.config.getoption("--quick"):
        return

    def refuse(*_args, **_options):
        raise AssertionError("a test of `make check` starts no process; see tests/conftest.py")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
        monkeypatch.setattr(os, name, refuse)

"""Four faults of the chaos suite, in short: `make chaos` injects more than a hundred."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import ray

from scanner.cluster.scan import run_scan
from scanner.scan_plan import make_plan
from tests.chaos.driver import MOMENTS
from tests.chaos.processes import output_of
from tests.chaos.worker import REASONS, FaultyWorker

pytestmark = pytest.mark.long


def scan(night) -> None:
    assert run_scan(make_plan(night.config), lambda *_: None, worker=FaultyWorker).exit_code == 0


def test_a_worker_that_is_killed(new_night, undisturbed, chance):
    night = new_night()
    night.plan_faults(seconds=0.1)

    killed: list[int] = []

    def kill() -> None:
        while not night.worker_pids():
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1))
        killed.append(chance.choice(night.worker_pids()))
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()  # a daemon, so that a failing scan ends the test
    scan(night)
    assert killed
    assert night.compare(undisturbed) == (0, 0, 0)


def test_a_document_that_eats_memory(new_night, undisturbed, chance):
    night = new_night()
    name = chance.choice(undisturbed.verdicts()["name"].to_list())
    night.plan_faults(documents={name: "memory"})
    scan(night)
    assert night.compare(undisturbed, bad={name: REASONS["memory"]}) == (0, 0, 0)


def test_a_driver_that_dies_over_a_commit(new_night, undisturbed, chance):
    night = new_night()
    night.configure(more=f'address = "{ray.get_runtime_context().gcs_address}"')  # its own would take seconds
    died = night.run(at=chance.choice(MOMENTS[:2]), commit=chance.randint(1, 4), delay=0)
    assert died.returncode == -signal.SIGKILL, died.stdout
    assert not night.done()
    scan(night)
    assert night.compare(undisturbed) == (0, 0, 0)


HANGS = """
import faulthandler, signal, subprocess, time
faulthandler.register(signal.SIGUSR1)
subprocess.Popen(["sleep", "1000"])
print("begun", flush=True)
def forever():
    time.sleep(1000)
forever()
"""


def test_a_driver_that_hangs_is_ended_and_told():
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with pytest.raises(AssertionError, match=r"(?s)did not end within 1 s\nbegun\n.*in forever\n.*sleep 1000"):
        output_of(process, 1)
    assert process.returncode == -signal.SIGKILL

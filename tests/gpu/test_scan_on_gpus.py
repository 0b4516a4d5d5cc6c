"""A scan whose workers hold shares of a logical GPU, against the same scan on CPUs, on real Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.logical", str(tmp_path_factory.mktemp("logical"))],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_verdicts_and_audit_are_the_same_row_by_row(found):
    assert found["gpu"]["exit_code"] == found["cpu"]["exit_code"] == 0
    assert len(found["gpu"]["rows"]) == 6
    assert found["gpu"]["rows"] == found["cpu"]["rows"]
    assert {row["status"] for row in found["gpu"]["rows"]} == {"scored", "too_short"}
    assert found["gpu"]["audited"] == found["cpu"]["audited"]
    assert found["gpu"]["audited"]


def test_as_many_workers_start_as_the_gpu_has_shares(found):
    """Four are configured and three have work, but there are only two halves."""
    held = found["gpu"]["held"]
    assert 1 <= len(held) <= 2
    assert all(gpus == [0] and warning == "" for gpus, _, warning in held)
    # the interpreter runs on the CPU; keys of version 1, the first two, are searched without a device
    assert all(["on cpu" in mark for mark in marks] == [False, False, True] for _, marks, _ in held)
    assert found["fit"] == [[2, 0.5], [3, 0.3], [8, 0.1], [1, 1.0]]


def test_workers_without_gpus_score_on_the_cpu(found):
    held = found["cpu"]["held"]
    assert len(held) == 1
    assert all(gpus == [] and not any(" on " in mark for mark in marks) for gpus, marks, _ in held)


def test_a_worker_that_cannot_use_its_gpu_says_so_or_refuses(found):
    device, warning = found["cannot use"]
    assert device == "None"
    assert "torch finds no CUDA device; this worker uses the CPU" in warning
    assert found["required"].startswith(
        "a worker cannot begin: a worker was given a GPU that it cannot use: torch finds no CUDA device"
    )
    assert found["refused scans"] == [[2, 0]]

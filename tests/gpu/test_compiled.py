"""The kernels compiled for a Hopper GPU (sm_90), which needs none: they spill nothing and cost what we say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict]:
    """What tests.gpu.cost finds, by kernel; in a process of its own, in which Triton does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.cost", "--json"],
        cwd=ROOT,
        env=environment | {"TRITON_DEFAULT_FP_FUSION": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_nothing_spills(compiled):
    assert {name: found["stack"] for name, found in compiled.items()} == dict.fromkeys(compiled, 0)


def test_as_many_programs_fit_as_are_started(compiled):
    """384 threads a multiprocessor of 65,536 registers, for the kernels that are sized so."""
    for name in ("greenlist 1/4", "gumbel"):
        assert compiled[name]["registers"] <= 65536 // 384


def test_blocks_are_shared_and_little_is_added_to_them(compiled):
    """Operations of the pipe that all kernels wait for, for one block: the cipher alone, and all that a score needs."""
    core = compiled["core"]["alu"]
    assert 220 <= core <= 260  # 384 of the rounds, less the additions, which another pipe takes, less what is constant
    for name in ("greenlist 1/4", "gumbel", "greenlist 1/4, version 2", "gumbel, version 2"):
        assert compiled[name]["alu"] < 1.5 * core
        assert compiled[name]["barriers"] <= 1

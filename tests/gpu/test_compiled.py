"""The kernels compiled for a Hopper GPU (sm_90), on any machine: they spill nothing and keep to their stated cost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict]:
    """Costs from tests.gpu.cost, by kernel, found in a process of its own in which Triton does not interpret."""
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


def test_blocks_are_shared_and_little_is_added_to_them(compiled):
    """On the pipe that all kernels wait for, a score takes less than 1.5 times the operations of the cipher alone."""
    core = compiled["core"]["alu"]
    assert 220 <= core <= 260  # the rounds have 384; additions go to another pipe, constants are folded
    assert compiled["rough scores"]["alu"] < 1.5 * core
    assert compiled["rough scores"]["barriers"] == 0

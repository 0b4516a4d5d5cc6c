"""The kernels on Triton's interpreter: tests of the folder `interpreted`, in a process that chose it from the start."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
ROOT = Path(__file__).parents[2]


def interpreted() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", str(FOLDER), "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.costly
def test_the_kernels_compute_what_the_cpu_does():
    done = interpreted()
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 20
    assert "skipped" not in done.stdout

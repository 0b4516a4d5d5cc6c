"""The device benchmark runs from end to end, on Triton's interpreter, and without anything of ours but scanner.gpu."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.costly

ROOT = Path(__file__).parents[2]
RUN = """
import runpy, sys
sys.argv[1:] = ["--tiny", "--json", {json!r}]
try:
    runpy.run_module("tests.bench.device", run_name="__main__")
except SystemExit as end:
    print("exit", end.code)
print("imported", *sorted({{"numba", "scanner.watermark", "ray", "pydantic", "pyarrow"}} & set(sys.modules)))
"""


def test_it_checks_and_measures_everything(tmp_path):
    file = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(json=str(file))],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-2:] == ["exit 0", "imported"], done.stdout[-2000:]
    found = json.loads(file.read_text())
    assert len(found["checks"]) == 6
    assert all(check["wrong"] == 0 and check["documents"] >= 3 for check in found["checks"])
    assert [figure["what"].split(",")[0] for figure in found["figures"]] == [
        "ceiling: ChaCha8 alone", "ceiling: copy", "gumbel", "green vectors", "draw vectors",
        "Gumbel's choice", "green of version 3", "choice of version 3", "model's forward pass",
    ]  # fmt: skip
    assert all(figure["rate"] > 0 for figure in found["figures"])


def test_it_says_when_there_is_no_device():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.device", "--tiny"],
        cwd=ROOT,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no device: torch finds no CUDA device" in done.stderr

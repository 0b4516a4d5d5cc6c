"""What a command imports: the seconds of numba, scipy, Arrow, polars and Ray are for those that need them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("deltalake", "numba", "polars", "pyarrow", "pydantic", "ray", "scipy", "tokenizers", "torch", "transformers")
KEYS = {"pydantic"}  # formats check the parameters of keys; a kernel imports numba when it is called
TABLES = {"deltalake", "polars", "pyarrow"}

LOADED = f"""\
import sys
from jobs.cli import brickscan, run
code = run(brickscan, sys.argv[1:])
print(code, *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("--help", set()),
        ("--version", set()),
        ("schema scan", {"pydantic"}),
        ("keys --help", {"pydantic"}),
        ("keys list --registry REGISTRY", KEYS),
        ("formats", KEYS),
        ("users list --registry REGISTRY", KEYS | TABLES),
        ("users show alice --registry REGISTRY", KEYS | TABLES),
        ("users who green 1 --registry REGISTRY", KEYS | TABLES),
        ("status RESULTS", KEYS | TABLES),
        ("flagged RESULTS", KEYS | TABLES),
        ("accounts RESULTS", KEYS | TABLES | {"scipy", "tokenizers"}),  # it scores posts again, where there are any
        ("quarantine RESULTS", KEYS | TABLES),
    ],
)
def test_a_command_imports_no_more_than_it_needs(line, allowed, night):
    from scanner.results.transactions import open_tables

    open_tables(night.results)
    arguments = line.replace("REGISTRY", str(night.registry)).replace("RESULTS", night.results).split()
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    code, *loaded = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    assert set(loaded) <= allowed


def test_results_are_read_without_kernels():
    code = f"import sys, scanner.results; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= TABLES | {"pydantic"}


def test_every_command_has_a_whole_line_of_help():
    from click.testing import CliRunner

    from jobs.cli import brickscan

    shown = CliRunner().invoke(brickscan, ["--help"], terminal_width=80).output.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in shown] == brickscan.list_commands(None)
    assert all(line.startswith("  ") and line.endswith(".") and len(line) <= 80 for line in shown)


def test_a_worker_imports_nothing_of_the_driver():
    names = ("scanner.results", "scanner.cluster.scan", "scanner.audit.statistics.judgement", "scipy.special")
    code = f"import sys, scanner.cluster.worker; print(*(name for name in {names} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

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
for line in sys.argv[1:]:
    code = run(brickscan, line.split("\\t"))
    print(code, *(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        (["--help", "--version"], set()),
        (["schema scan", "keys --help", "keys list --registry REGISTRY", "formats"], KEYS),
        (
            [
                *("users list --registry REGISTRY", "users show alice --registry REGISTRY"),
                *("users who green 1 --registry REGISTRY", "status RESULTS", "flagged RESULTS", "quarantine RESULTS"),
            ],
            KEYS | TABLES,
        ),
        (["accounts RESULTS"], KEYS | TABLES | {"scipy", "tokenizers"}),  # it scores posts again, where there are any
    ],
    ids=lambda part: " ".join(line.split()[0] for line in part) if isinstance(part, list) else "",
)
def test_commands_import_no_more_than_they_need(lines, allowed, night):
    """Commands that may import the same run in one process."""
    from scanner.results.transactions import open_tables

    open_tables(night.results)
    arguments = [line.replace("REGISTRY", str(night.registry)).replace("RESULTS", night.results) for line in lines]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *("\t".join(line.split()) for line in arguments)],
        cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    answers = done.stderr.splitlines()
    assert len(answers) == len(lines), done.stderr
    for answer in answers:
        code, *loaded = answer.split()
        assert code == "0", done.stderr
        assert set(loaded) <= allowed


def test_results_are_read_without_kernels():
    code = f"import sys, scanner.results; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= TABLES | {"pydantic"}


def test_every_command_has_a_whole_line_of_help():
    from click.testing import CliRunner

    from jobs.cli import brickscan

    sections = CliRunner().invoke(brickscan, ["--help"], terminal_width=80).output.partition("\nStart:\n")[2]
    shown = [line for line in sections.splitlines() if line.startswith("  ")]
    assert [line.split()[0] for line in shown] == brickscan.list_commands(None)
    assert all(line.endswith(".") and len(line) <= 80 for line in shown)


def test_a_worker_imports_nothing_of_the_driver():
    names = (
        "scanner.results",
        "scanner.cluster.scan",
        "scanner.audit.statistics.judgement",
        "scipy",
        "polars",
        "deltalake",
    )
    code = f"import sys, scanner.cluster.worker; print(*(name for name in {names} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

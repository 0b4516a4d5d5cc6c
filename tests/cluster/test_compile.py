"""Kernels are compiled before the first document: on a busy machine, compiling takes longer than a document may."""

import subprocess
import sys

import pytest

SCAN_HERE = """
import sys
from pathlib import Path

from scanner.results import transactions
from scanner import results
from scanner.cluster.pieces import Piece
from scanner.cluster.worker import Worker
from scanner.input.inspector import Inspector
from scanner.input.files import list_files
from scanner.scan_plan import make_plan
from scanner.input.shards import Shard, cut
from scanner.watermark.kernel import Kernel


def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("scanner.")]
    found = {id(f): f for module in modules for f in vars(module).values() if isinstance(f, Kernel)}
    return {(f.__module__, f.__name__, str(types)) for f in found.values() for types in f.compiled.signatures}


plan = make_plan(Path(sys.argv[1]))
transactions.open_tables(plan.results)
worker = Worker(plan, "scan")
worker.prepare()
before = compiled()
(file,) = list_files(plan.locations)
with Inspector() as inspector:
    (rows,) = cut(inspector.inspect(file, plan.columns))
*_, report = worker.scan(Piece(Shard("shard", file, rows), rows.start, rows.stop))
assert report.counts.documents == 8 and report.files["audit_counts"], report
print(len(before), sorted(compiled() - before))
"""


@pytest.mark.costly
def test_no_document_waits_for_a_kernel_to_be_compiled(night, plain, marked):
    looks = "variants = { normalised = true }\nspans = { windows = true, segments = true }"
    night.configure(more=looks, audit="share = 1.0\nall_messages_share = 1.0")
    night.write("a", [marked(1, 60, 1), *(plain(60, i) for i in range(5)), f"A Name {plain(60, 5)}", "short"])
    command = [sys.executable, "-c", SCAN_HERE, str(night.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, _, added = done.stdout.partition(" ")
    assert int(before) >= 10
    assert added.strip() == "[]"

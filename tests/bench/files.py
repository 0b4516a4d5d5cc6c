"""`make scale`: the driver's cost of many small input files: `python -m tests.bench.files --files 1e3 1e4 1e5`.

Files have ten rows, a thousand files a folder. They are on this disk, or in a store whose every request takes 30 ms.
Measured are listing, one more look of `--follow` at files that are done, and inspecting. CPU seconds are the driver's,
without the processes that read footers; beside them stand seconds by the clock. The same files are then named by a
Delta table's log, and read as a table. `--log 1e6` measures the memory that listing a table of so many files takes,
over that of opening it by deltalake alone; the files themselves are not there. `--pairs 31` plans the files of a table
and of its folder in turn, so many times each, and prints the median of the pairs' ratios with its interval.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from scanner.cluster.follow import LOOK_SECONDS, ArrivedFiles
from scanner.input import files as files_module
from scanner.input.columns import Columns
from scanner.input.files import InputFile, list_files
from scanner.input.inspector import Inspector
from tests.support.slow_store import SlowStore

A_FOLDER = 1000
REQUEST_SECONDS = 0.03
RESAMPLES = 10_000
TABLE, LOOSE = range(2)
COLUMNS = Columns("text", None, None, None)

Answer = TypeVar("Answer")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.files", description=__doc__)
    parser.add_argument("--files", type=float, nargs="+", default=[1e3, 1e4, 1e5])
    parser.add_argument("--log", type=float, nargs="+", default=[])
    parser.add_argument("--pairs", type=int, default=0)
    options = parser.parse_args()
    for count in map(int, options.log):
        with tempfile.TemporaryDirectory() as folder:
            peaks = memory_of_listing(Path(folder), count)
        shown = ", ".join(f"{name} {peak:.2f} GiB" for name, peak in peaks.items())
        ratio = peaks["brickscan"] / peaks["deltalake"]
        print(f"{count:8,} files of a table: {shown}, ratio {ratio:.2f}", flush=True)
    if options.pairs:
        for count in map(int, options.files):
            with tempfile.TemporaryDirectory() as folder:
                compare(Path(folder), count, options.pairs)
        return
    print(f"{'files':>8} {'where':6} {'what':28} {'CPU s':>7} {'s':>7}")
    for count in map(int, options.files):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), count)
            measure(count, "disk", folder)
            log(Path(folder), count, (Path(folder) / "_one").stat().st_size)
            measure(count, "table", folder)
            (Path(folder) / "_delta_log").rename(Path(folder) / "_log")
            store, real = SlowStore(REQUEST_SECONDS), files_module.filesystem_of
            files_module.filesystem_of = store.filesystem_of
            try:
                measure(count, "store", f"s3:/{folder}")
            finally:
                files_module.filesystem_of = real
            print(f"{count:8,} store  requests: {sum(store.requests.values()):,}; at once: {store.together}")


def write(folder: Path, count: int) -> None:
    table = pa.table({"text": [f"document {row}, a few words" for row in range(10)]})
    pq.write_table(table, folder / "_one")
    data = (folder / "_one").read_bytes()
    for number in range(count):
        inside = folder / f"{number // A_FOLDER:03}"
        if not number % A_FOLDER:
            inside.mkdir()
        (inside / f"part-{number:06}.parquet").write_bytes(data)


def log(folder: Path, count: int, size: int) -> None:
    """Make the folder a table of the files that `write` writes."""
    schema = Schema.from_arrow(pa.schema([pa.field("text", pa.string())]))
    names = (f"{number // A_FOLDER:03}/part-{number:06}.parquet" for number in range(count))
    adds = [AddAction(name, size, {}, 1, True, "{}") for name in names]
    create_table_with_add_actions(str(folder), schema, adds)


_LISTING = {
    "deltalake": "from deltalake import DeltaTable; table = DeltaTable(folder)",
    "brickscan": "from scanner.input.files import list_files; files = list_files([folder])",
}

_MEASURED = """
import re, sys, polars, deltalake
from scanner.input import delta_tables
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
folder, before = sys.argv[1], peak()
{act}
print(peak() - before)
"""


def memory_of_listing(folder: Path, count: int) -> dict[str, float]:
    """Peak GiB of a process that opens a table, and of one that lists its files, both less their imports'."""
    log(folder, count, 1000)
    DeltaTable(folder).create_checkpoint()
    peaks = {}
    for name, act in _LISTING.items():
        code = _MEASURED.format(act=act)
        found = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
        peaks[name] = int(found.stdout) / 2**20
    return peaks


def measure(count: int, where: str, folder: str) -> None:
    def timed(what: str, question: Callable[[], Answer]) -> Answer:
        began, cpu = time.monotonic(), time.process_time()
        answer = question()
        seconds = time.monotonic() - began
        print(f"{count:8,} {where:6} {what:28} {time.process_time() - cpu:7.2f} {seconds:7.2f}", flush=True)
        return answer

    files = timed("listing", lambda: list_files([folder]))
    assert len(files) == count
    with Inspector() as inspector:
        answers = timed("inspecting", lambda: list(inspector.inspect_all(files, COLUMNS)))
        assert all(isinstance(answer, list) for _, answer in answers)
        look(files, folder, inspector, timed)


def compare(folder: Path, count: int, pairs: int) -> None:
    """Plan a table and the same files in a folder in turn: medians of the driver's CPU seconds, and of their ratio."""
    write(folder, count)
    log(folder, count, (folder / "_one").stat().st_size)
    names = {TABLE: folder / "_delta_log", LOOSE: folder / "_log"}
    name = names[TABLE]
    seconds = np.empty((pairs, 2))
    with Inspector() as inspector:
        for pair in range(-1, pairs):  # the first one, which imports, does not count
            for way in (TABLE, LOOSE) if pair % 2 else (LOOSE, TABLE):
                name = name.rename(names[way])
                seconds[pair, way] = planning(folder, count, inspector)
    ratios = seconds[:, TABLE] / seconds[:, LOOSE]
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, pairs))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    table, loose = np.median(seconds, axis=0)
    shown = f"table {table:.3f} CPU s, folder {loose:.3f}, ratio {np.median(ratios):.3f}"
    print(f"{count:8,} files planned, n {pairs} pairs: {shown} (95 % interval {low:.3f} to {high:.3f})")


def planning(folder: Path, count: int, inspector: Inspector) -> float:
    """CPU seconds of this process that listing and inspecting take."""
    began = time.process_time()
    answers = [*inspector.inspect_all(list_files([str(folder)]), COLUMNS)]
    seconds = time.process_time() - began
    assert len(answers) == count
    assert all(isinstance(answer, list) for _, answer in answers)
    return seconds


def look(files: list[InputFile], folder: str, inspector: Inspector, timed: Callable[..., object]) -> None:
    """One more look at files that were scanned."""
    now = 0.0
    arrived = ArrivedFiles(inspector, lambda: now)
    arrived.ready(files, COLUMNS)
    arrived.done(files, ())
    now = LOOK_SECONDS
    again = timed("a look of --follow", lambda: arrived.ready(list_files([folder], before=files), COLUMNS))
    assert again == []


if __name__ == "__main__":
    main()

"""Row 6 through a real embedded Ray, in wall-clock seconds: throughput, memory, the cost of a shard, the first commit.

What many users cost a whole scan is measured in CPU seconds of all processes.

The corpus is cut to `megabytes`, and scanned as ten files: hard links, which make ten documents of each.
"""

import os
import re
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.cluster.machines import cluster
from scanner.cluster.scan import ScanOutcome, run_scan
from scanner.input.columns import Columns
from scanner.input.documents import read
from scanner.input.files import list_files
from scanner.scan_plan import make_plan
from scanner.text import load_tokenizer, sha256_file
from schemas.config import ClusterConfig
from tests.bench.configured import ASKED, FOR_USERS, GROUPS, NO_AUDIT, ONE_MESSAGE, VERSION_1, VERSION_3, make_scan
from tests.bench.measure import Comparison, Family
from tests.support.inspection import inspect

SHARDS, ROWS_OF_A_SMALL_ONE = 60, 4
_FIRST = re.compile(r"first after ([0-9.]+) s")


def on_ray(tokenizer: Path, options: Namespace) -> Iterator[Comparison]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        once = _part(options.corpus, options.megabytes, folder / "once.parquet")
        ten = [folder / f"copy-{number}.parquet" for number in range(10)]
        for copy in ten:
            os.link(once, copy)
        yield from _first_commits(folder, tokenizer, once)
        for workers in (1, 2):
            with cluster(ClusterConfig(workers=workers)):
                yield from _throughput(folder, tokenizer, workers, once, ten, options.repeats)
                if workers == 1:
                    yield _per_shard(folder, tokenizer, options)
                    for name in VERSION_3:
                        yield from _for_users(folder, tokenizer, name, once, options.repeats)


def _part(corpus: Path, megabytes: float, out: Path) -> Path:
    """The first row groups of a corpus, as many as hold so much text."""
    file, room = pq.ParquetFile(corpus), megabytes * 1e6
    with pq.ParquetWriter(out, file.schema_arrow, compression="zstd") as writer:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            writer.write_table(group)
            room -= group["text"].nbytes
            if room <= 0:
                break
    return out


def _scan(
    folder: Path, tokenizer: Path, workers: int, paths: list[Path], form: dict[str, Any] = VERSION_1
) -> ScanOutcome:
    """Scan files under a new key of some form, as of `make_scan`."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        plan = make_plan(make_scan(Path(name), tokenizer, 1, workers, paths, NO_AUDIT, **form))
        return run_scan(plan, lambda work, totals: None)


def _alone(tokenizer: Path, path: Path) -> tuple[float, float]:
    """Wall seconds of reading a file, and of tokenising it, in a process of its own."""
    pa.set_cpu_count(1)
    (file,) = list_files((str(path),))
    columns = Columns("text", None, None, None)
    rows = sum(group.rows for group in inspect(file, columns))
    begin = perf_counter()
    batches = list(read(file, columns, 0, rows))
    reading = perf_counter() - begin
    backend = load_tokenizer(tokenizer, sha256_file(tokenizer))
    backend.encode([" "])
    texts = [[(raw or b"").decode(errors="replace") for raw in part["text"].to_pylist()] for part in batches]
    begin = perf_counter()
    for batch in texts:
        backend.encode(batch)
    return reading, perf_counter() - begin


def _throughput(
    folder: Path, tokenizer: Path, workers: int, once: Path, ten: list[Path], repeats: int
) -> Iterator[Comparison]:
    """The actors start with a new tokenizer each time, as the processes of the baseline do."""
    size = sum(len(text.as_py() or "") for text in pq.read_table(once, columns=["text"])["text"].cast("binary")) / 1e6
    runs = []
    _scan(folder, tokenizer, workers, [once])  # the first of a cluster is slower
    with ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1) as processes:
        for _ in range(repeats):
            alone = list(processes.map(_alone, [tokenizer] * workers, [once] * workers))
            runs.append((alone, _scan(folder, tokenizer, workers, [once]), _scan(folder, tokenizer, workers, ten)))
    for copies, place in ((1, 1), (10, 2)):
        amount = size * copies
        seconds = [run[place].seconds for run in runs]
        peak = max(run[place].totals.peak_memory for run in runs) / 2**20
        documents = runs[0][place].totals.counts.documents
        what = f"scan on Ray, {tokenizer.stem}, {workers} worker{'s' * (workers > 1)}, {copies} x {size:.0f} MB"
        note = f"{documents / median(seconds):.0f} documents/s, peak of a worker {peak:.0f} MiB; actors' start included"
        for baseline, number in (("reading alone", 0), ("tokenising alone", 1)):
            rates = [workers * size / max(one[number] for one in run[0]) for run in runs]
            ratios = [amount / s / rate for s, rate in zip(seconds, rates, strict=True)]
            spread = (max(seconds) - min(seconds)) / median(seconds)
            name = f"{baseline}, in {workers} process{'es' * (workers > 1)}"
            yield Comparison(
                6, what, "MB/s", amount / median(seconds), name, median(rates), median(ratios), spread, repeats, note
            )


def _for_users(folder: Path, tokenizer: Path, name: str, once: Path, repeats: int) -> Iterator[Comparison]:
    """Keys for 1,000 and 100,000 users beside a key of one message: CPU seconds of all processes, in turns.

    A scan of one document, which takes as long as the actor's imports, is measured too, and told apart.
    """
    short = folder / "short.parquet"
    pq.write_table(pq.ParquetFile(once).read_row_group(0).slice(0, 1), short)
    forms = (ONE_MESSAGE, {"messages": 1000}, FOR_USERS)

    clock = Family()

    def spent(paths: list[Path], form: dict[str, Any]) -> float:
        before = clock.seconds()
        _scan(folder, tokenizer, 1, paths, VERSION_3[name] | form)
        return clock.seconds() - before

    for form in forms:
        spent([short], form)  # compiles
    runs = [[(spent([once], form), spent([short], form)) for form in forms] for _ in range(repeats)]
    size = pq.read_table(once, columns=["text"])["text"].nbytes / 1e6
    ones = [run[0] for run in runs]
    for place, users in ((1, "1,000 messages"), (2, f"{GROUPS} groups, 100,000 users")):
        own = [run[place] for run in runs]
        ratios = [one[0] / many[0] for one, many in zip(ones, own, strict=True)]
        texts = [(one[0] - one[1]) / (many[0] - many[1]) for one, many in zip(ones, own, strict=True)]
        yield Comparison(
            6, f"scan on Ray, {tokenizer.stem}, {name}, {users}", "MB/s", size / median(many for many, _ in own),
            "one message", size / median(one for one, _ in ones), median(ratios),
            (max(ratios) - min(ratios)) / median(ratios), repeats,
            f"{ASKED}; without the start {median(texts):.2f} ({min(texts):.2f} to {max(texts):.2f})",
        )  # fmt: skip


def _per_shard(folder: Path, tokenizer: Path, options: Namespace) -> Comparison:
    """Cost of a shard apart from its documents: many small files against one file of all their rows."""
    small = pq.ParquetFile(options.corpus).read_row_group(0).slice(0, SHARDS * ROWS_OF_A_SMALL_ONE)
    whole = folder / "whole.parquet"
    pq.write_table(small, whole)
    parts = [folder / f"part-{number}.parquet" for number in range(SHARDS)]
    for number, part in enumerate(parts):
        pq.write_table(small.slice(number * ROWS_OF_A_SMALL_ONE, ROWS_OF_A_SMALL_ONE), part)
    _scan(folder, tokenizer, 1, [whole])  # the first of a cluster is slower
    pairs = [[_scan(folder, tokenizer, 1, paths).seconds for paths in ([whole], parts)] for _ in range(options.repeats)]
    each = [(many - one) / (SHARDS - 1) for one, many in pairs]
    alone = median(one for one, _ in pairs)
    return Comparison(
        6, f"shards on Ray, {SHARDS} small files", "shards/s", 1 / median(each), "scans of one shard", 1 / alone,
        alone / median(each), (max(each) - min(each)) / median(each), options.repeats,
        f"{1e3 * median(each):.3g} ms a shard, wall clock",
    )  # fmt: skip


def _first_commits(folder: Path, tokenizer: Path, once: Path) -> Iterator[Comparison]:
    """`python -m jobs.scan` in a new process with a Ray of its own: kernels to be compiled, then on disk."""
    found = []
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        for number in range(2):
            own = folder / f"first-{number}"
            own.mkdir()
            config = make_scan(own, tokenizer, 1, 1, [once], NO_AUDIT, **VERSION_1)
            begin = perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "jobs.scan", "--verbose", "--config", str(config)],
                env={**os.environ, "NUMBA_CACHE_DIR": cache}, capture_output=True, text=True, check=True,
            )  # fmt: skip
            said = _FIRST.search(done.stdout)
            found.append((float(said.group(1)) if said else float("nan"), perf_counter() - begin, done.stderr))
    (cold, cold_whole, said_cold), (warm, warm_whole, said_warm) = found
    told = "compile_kernels" in said_cold and "compile_kernels" not in said_warm
    note = f"cold {cold:.1f} s, warm {warm:.1f} s (commands {cold_whole:.1f}, {warm_whole:.1f}); says so once: {told}"
    yield Comparison(
        6, "first commits, warm, Ray's start included", "1/s", 1 / warm, "cold", 1 / cold, cold / warm, 0.0, 1, note
    )

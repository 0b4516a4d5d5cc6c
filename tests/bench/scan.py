"""Row 6: the whole scan of a file, against tokenising alone with the same backend and against reading alone.

In one process first, as a worker does it, in CPU seconds; then through Ray, in wall-clock seconds. Tokenizers remember
words, so each repeat starts with a new one.
"""

import os
import resource
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa

from scanner.cluster.worker import Piece, Worker
from scanner.documents import Unreadable, inspect, read
from scanner.files import list_files
from scanner.plan import Plan, make_plan
from scanner.registry import new_key
from scanner.results import open_tables
from scanner.shards import Shard, cut, shard_id
from scanner.tokens import load_tokenizer, sha256_file
from tests.bench.measure import Figure
from tests.bench.tokenising import tokenizer_files

CONFIG = """\
registry = "registry"
results = "results"
false_positive_rate = 1e-6
[input]
paths = ["{corpus}"]
text = "text"
{id}
[cluster]
workers = {workers}
"""


def whole(options: Namespace) -> Iterator[Figure]:
    pa.set_cpu_count(1)
    for path in tokenizer_files(options.tokenizers):
        for keys, messages in ((1, 1), (4, 1), (1, 10_000)):
            yield from _in_process(path, keys, messages, options)
    if options.ray:
        for workers in (1, 2):
            yield from _on_ray(tokenizer_files(options.tokenizers)[0], workers, options)


def _plan(folder: Path, tokenizer: Path, keys: int, messages: int, workers: int, corpus: Path) -> Plan:
    for number in range(keys):
        new_key(
            folder / "registry", f"k{number}", method="greenlist", window=4, gamma="1/4", messages=messages,
            tokenizer=tokenizer,
        )  # fmt: skip
    config = folder / "scan.toml"
    config.write_text(CONFIG.format(corpus=corpus.resolve(), id='id = "doc_id"', workers=workers))
    return make_plan(config)


def _shards(plan: Plan, megabytes: float) -> list[Shard]:
    (file,) = list_files(plan.locations)
    shards: list[Shard] = []
    room = megabytes * 2**20
    for rows in cut(inspect(file, plan.columns)):
        shards.append(Shard(shard_id(file, rows, plan.decides), file, rows))
        room -= rows.text_bytes
        if room <= 0:
            break
    return shards


def _in_process(tokenizer: Path, keys: int, messages: int, options: Namespace) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        plan = _plan(Path(name), tokenizer, keys, messages, 1, options.corpus)
        open_tables(plan.results)
        shards = _shards(plan, options.megabytes if messages == 1 else min(options.megabytes, 4))
        batches = [[(t or b"").decode(errors="replace") for t in part] for part in _texts(plan, shards)]
        size = sum(len(text.encode()) for batch in batches for text in batch) / 1e6
        documents = sum(map(len, batches))

        def tokenise() -> float:
            backend = load_tokenizer(tokenizer, sha256_file(tokenizer))
            backend.encode([" "])  # the look at the first texts
            return _seconds(lambda: [backend.encode(batch) for batch in batches])

        def scan() -> float:
            worker = Worker(plan, "bench")
            worker.prepare()
            worker._detector._score([" "])
            return _seconds(lambda: [[*worker.scan(Piece(s, s.rows.start, s.rows.stop))] for s in shards])

        def only_read() -> float:
            return _seconds(lambda: [len(part) for part in _texts(plan, shards, decode=False)])

        backend = type(load_tokenizer(tokenizer, sha256_file(tokenizer))).__name__
        scan()  # compiles
        runs = [(tokenise(), only_read(), scan()) for _ in range(min(options.repeats, 3))]
    spread = (max(r[2] for r in runs) - min(r[2] for r in runs)) / median(r[2] for r in runs)
    what = f"scan, {tokenizer.stem}, {keys} key{'s' * (keys > 1)}, M = {messages}"
    rate = size / median(r[2] for r in runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    note = f"{documents / size * rate:.0f} documents/s, {len(shards)} shards, peak of this process {peak:.0f} MiB"
    for baseline, place in ((f"tokenising alone, {backend}", 0), ("reading alone", 1)):
        alone = size / median(r[place] for r in runs)
        ratio = median(r[place] / r[2] for r in runs)
        yield Figure(6, what, "MB/s", rate, baseline, alone, ratio, spread, len(runs), note)


def _on_ray(tokenizer: Path, workers: int, options: Namespace) -> Iterator[Figure]:
    from scanner.cluster import run_scan

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    backend = load_tokenizer(tokenizer, sha256_file(tokenizer))
    with tempfile.TemporaryDirectory() as name:
        plan = _plan(Path(name), tokenizer, 1, 1, workers, options.corpus)
        shards = _shards(plan, float("inf"))
        batches = [[(t or b"").decode(errors="replace") for t in part] for part in _texts(plan, shards)]
        begin = perf_counter()
        for batch in batches:
            backend.encode(batch)
        alone = perf_counter() - begin
        size = sum(len(text.encode()) for batch in batches for text in batch) / 1e6
        outcome = run_scan(plan, lambda work, totals: None)
    first = f"first commit after {outcome.first_commit or 0:.1f} s; wall clock, Ray's start included"
    what = f"scan on Ray, {tokenizer.stem}, {workers} worker{'s' * (workers > 1)}"
    name = "tokenising alone in one process"
    ratio = alone / outcome.seconds
    yield Figure(6, what, "MB/s", size / outcome.seconds, name, size / alone, ratio, 0.0, 1, first)


def _texts(plan: Plan, shards: list[Shard], decode: bool = True) -> Iterator[Any]:
    for shard in shards:
        for part in read(shard.file, plan.columns, shard.rows.start, shard.rows.stop):
            if not isinstance(part, Unreadable):
                yield part.column("text").to_pylist() if decode else part


def _seconds(call: Callable[[], Any]) -> float:
    begin = process_time()
    call()
    return process_time() - begin

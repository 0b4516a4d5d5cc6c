"""What a filter of common n-grams costs in CPU: `python -m tests.bench.filter_cost CORPUS`.

Texts by people, cut to 256 tokens, teach a filter as the pass after a scan does. Then one worker scans other texts with
the filter and without, in turn, under a key of window 2. Printed: CPU seconds of each of these, and the ratio of each
pair of scans.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.demo import TOKENIZER
from scanner.cluster.pieces import Piece
from scanner.cluster.work import inspect_input
from scanner.cluster.worker import Worker
from scanner.detection.open_plan import open_keys, open_text_ids
from scanner.input.files import list_files
from scanner.input.shards import Shard
from scanner.ngram_filter.common_ngrams import MOST_NGRAMS
from scanner.ngram_filter.learner import Learner
from scanner.ngram_filter.night_filter import with_filter
from scanner.ngram_filter.sketches import SKETCHES_TABLE, write_sketches
from scanner.registry import new_key, suggested_parameters
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.scan_plan import Plan, make_plan
from scanner.text import load_tokenizer, sha256_file
from scanner.watermark.native.format import groups_for

NIGHT = date(2026, 11, 22)
LONGEST = 256
CONFIG = """\
version = 2
registry = "registry"
results = "results"
false_positive_rate = 1e-6
filter = {}
[input]
paths = ["in/{date}"]
"""


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def sample(corpus: Path, count: int) -> list[str]:
    tokenizer = load_tokenizer(TOKENIZER, sha256_file(TOKENIZER)).reference
    texts = pl.read_parquet(corpus, columns=["text"])["text"].sample(count, shuffle=True, seed=1).to_list()
    return [text[: 6 * LONGEST] for text in texts if len(tokenizer.encode([text[: 6 * LONGEST]]).ids) >= 16]


def made(folder: Path, users: float, texts: list[str]) -> Plan:
    """A plan with a key of so many users, and the texts of its night."""
    groups = groups_for(users)
    parameters = suggested_parameters("greenlist-v3") | {"groups": groups, "window": 2, "seeds": 8}
    new_key(
        folder / "registry",
        "key",
        format="greenlist-v3",
        messages=groups**2,
        tokenizer=TOKENIZER,
        **parameters,
    )
    (folder / "in" / str(NIGHT)).mkdir(parents=True)
    pq.write_table(pa.table({"text": texts}), folder / "in" / str(NIGHT) / "a.parquet")
    (folder / "scan.toml").write_text(CONFIG)
    plan = make_plan(folder / "scan.toml", NIGHT)
    open_tables(plan.results)
    open_tables(plan.results, [SKETCHES_TABLE])
    return plan


def learn(plan: Plan, texts: list[str]) -> None:
    """Learn from texts, as the pass after a scan of the night before does."""
    learner = Learner(open_keys(plan.registry, plan.keys), open_text_ids(plan), 1.0, MOST_NGRAMS, 16, by_account=False)
    learner.learn(pa.array([text.encode() for text in texts], pa.large_binary()), pa.nulls(len(texts), pa.string()))
    before = (NIGHT - timedelta(days=1)).isoformat()
    about = {"scan_id": "s", "sample": "u", "night": before, "ngrams": learner.ngrams}
    file = write_sketches(plan.results, learner.sketches, learner.texts, learner.key, **about)
    commit(plan.results, SKETCHES_TABLE, [TableEntry("u", (file,) if file else ())])


def pair(workers: list[Worker], shard: Shard) -> list[float]:
    """CPU seconds of each worker for a shard."""
    return [seconds(lambda one=worker: list(one.scan(Piece(shard, 0, shard.rows.stop)))) for worker in workers]


def measured(folder: Path, users: float, texts: list[str], pairs: int) -> Iterator[str]:
    """Lines on a key of so many users: half of the texts teach, half are scanned."""
    earlier, tonight = texts[::2], texts[1::2]
    plan = made(folder, users, tonight)
    learnt, making = seconds(lambda: learn(plan, earlier)), seconds(lambda: with_filter(plan, "bench"))
    yield f"{users:g} users: {learnt:.1f} s to learn from {len(earlier):,} texts, {making:.1f} s to make the filter"
    shard = inspect_input(plan, list_files(plan.locations)).shards[0]
    workers = [Worker(each, "bench") for each in (with_filter(plan, None), plan)]
    for worker in workers:
        worker.prepare()
    spent = [pair(workers[:: 1 if i % 2 else -1], shard)[:: 1 if i % 2 else -1] for i in range(pairs)]
    ratios = ", ".join(f"{filtered / plain:.3f}" for filtered, plain in spent)
    usual = np.median([plain for _, plain in spent]) / shard.rows.stop * 1e6
    yield f"  {shard.rows.stop:,} texts, {usual:.0f} µs each without the filter; with it times {ratios}"


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--texts", type=int, default=40_000, help="half of them teach, half are scanned")
    parser.add_argument("--users", type=float, nargs="+", default=[1, 1e9])
    parser.add_argument("--pairs", type=int, default=6)
    asked = parser.parse_args()
    texts = sample(asked.corpus, asked.texts)
    for users in asked.users:
        with tempfile.TemporaryDirectory() as folder:
            for line in measured(Path(folder), users, texts, asked.pairs):
                print(line, flush=True)


if __name__ == "__main__":
    main()

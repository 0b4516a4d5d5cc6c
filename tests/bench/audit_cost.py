"""What the audit costs a scan in CPU: `python -m tests.bench.audit_cost CORPUS`.

One worker scans shards of texts by people with the default shares, as a part of a night of so many documents (on which
the share under decoys of one message depends). Each part of the audit is timed where it is called, by the CPU time of
the process, and a part within a part counts as itself alone. Printed for each configuration: the CPU time of a text
without the audit, and the share of it that each part of the audit comes to, a ratio of sums over shards, with limits
(95 %, by Student's t over shards). The first shard, in which caches fill up, counts where it is asked for alone.
"""

import argparse
import dataclasses
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from jobs.demo import TOKENIZER
from scanner.cluster import text_scoring
from scanner.cluster.pieces import Piece
from scanner.cluster.worker import Worker
from scanner.controls.decoys.text_observer import DecoyObserver
from scanner.controls.decoys.whole_texts import WholeTextObserver
from scanner.input.shards import MAX_ROWS
from scanner.results.transactions import open_tables
from scanner.scan_plan import make_plan
from scanner.watermark.hidden_value import HiddenValue
from tests.bench.configured import AUDIT, FOR_USERS, ONE_MESSAGE, VERSION_3, make_scan
from tests.bench.scan import shards_of

GREEN, GUMBEL = VERSION_3.values()
SYNTHID: dict[str, Any] = {
    "format": "synthid-table",
    "known": HiddenValue(np.random.default_rng(1).integers(1, 2**62, 30).astype(">i8").tobytes()),
}
LOOKS = "[variants]\nnormalised = true\n[spans]\nwindows = true\nsegments = true\n"
CASES: dict[str, tuple[int, dict[str, Any], str]] = {
    "a green list for 100,000 users": (1, GREEN | FOR_USERS, ""),
    "two green lists for 100,000 users": (2, GREEN | FOR_USERS, ""),
    "two green lists for 100,000 users, all looks": (2, GREEN | FOR_USERS, LOOKS),
    "a Gumbel key for 100,000 users": (1, GUMBEL | FOR_USERS, ""),
    "a green list of one message": (1, GREEN | ONE_MESSAGE, ""),
    "SynthID's table": (1, ONE_MESSAGE | SYNTHID, ""),
}
PARTS: tuple[tuple[Any, str, str], ...] = (
    (DecoyObserver, "observe", "drawing"),
    (DecoyObserver, "_score_one", "one message"),
    (DecoyObserver, "_score_all", "all messages"),
    (WholeTextObserver, "_decide", "whole decisions"),
    (WholeTextObserver, "observe", "drawing"),
    (DecoyObserver, "rows", "rows"),
    (DecoyObserver, "_count_parts", "counts and strata"),
    (text_scoring, "count_verdicts", "reserved messages"),
)
"""Functions that make up the audit: where they are looked up, by what name, and what they do."""


class Stopwatch:
    """CPU seconds of this process within each part, without those of parts within it."""

    def __init__(self) -> None:
        self.seconds, self._inner = defaultdict[str, float](float), [0.0]

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        @wraps(work)
        def of_part(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            self._inner.append(0.0)
            try:
                return work(*args, **kwargs)
            finally:
                spent = time.process_time() - began
                self.seconds[part] += spent - self._inner.pop()
                self._inner[-1] += spent

        return of_part

    @contextmanager
    def running(self) -> Iterator[None]:
        """Times all of PARTS."""
        patches = [patch.object(where, name, self.timed(part, getattr(where, name))) for where, name, part in PARTS]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()


def spent(
    folder: Path, texts: pl.DataFrame, case: tuple[int, dict[str, Any], str], asked: argparse.Namespace
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Texts of each shard, int64[S]; its CPU seconds outside the audit and in each of PARTS: float64[S, 1 + N]."""
    keys, form, more = case
    texts.write_parquet(folder / "in.parquet", row_group_size=MAX_ROWS // 10)
    config = make_scan(folder, TOKENIZER, keys, 1, [folder / "in.parquet"], AUDIT, **form)
    config.write_text(config.read_text() + more)
    plan = make_plan(config)
    open_tables(plan.results)
    worker = Worker(dataclasses.replace(plan, documents=int(asked.night)), "bench")
    worker.prepare()
    of_shards = []
    for shard in shards_of(plan, 1e9):
        watch = Stopwatch()
        with watch.running():
            watch.timed("", lambda one=shard: list(worker.scan(Piece(one, one.rows.start, one.rows.stop))))()
        of_shards.append([watch.seconds[part] for part in ("", *(part for _, _, part in PARTS))])
    sizes = np.array([shard.rows.stop - shard.rows.start for shard in shards_of(plan, 1e9)])
    kept = slice(min(1, len(sizes) - 1), None)
    return sizes[kept], np.array(of_shards)[kept]


def share(of: NDArray[np.float64], whole: NDArray[np.float64]) -> str:
    """Ratio of two sums over S shards, float64[S] each, in per cent, with limits where there are several."""
    ratio, number = of.sum() / whole.sum(), len(of)
    if number == 1:
        return f"{100 * ratio:.2f} %"
    error = np.std(of - ratio * whole, ddof=1) / np.sqrt(number) / whole.mean()
    half = float(stats.t.isf(0.025, number - 1) * error)
    return f"{100 * ratio:.2f} % ({100 * (ratio - half):.2f} to {100 * (ratio + half):.2f})"


def main() -> None:
    """Print lines for each configuration."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit_cost", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cases", default="", help="those whose names hold this")
    parser.add_argument("--texts", type=int, default=10 * MAX_ROWS, help="in shards of 20,000 or 16 MiB")
    parser.add_argument("--night", type=float, default=2e7, help="documents of the whole night")
    asked = parser.parse_args()
    texts = pl.read_parquet(asked.corpus, columns=["text"]).sample(fraction=1, shuffle=True, seed=1).head(asked.texts)
    for name, case in CASES.items():
        if asked.cases in name:
            with tempfile.TemporaryDirectory() as folder:
                sizes, seconds = spent(Path(folder), texts, case, asked)
            scan = seconds[:, 0]
            print(
                f"{name}, of {asked.night:g} texts: {sizes.sum():,} texts in {len(sizes)} shards, "
                f"{scan.sum() / sizes.sum() * 1e6:.0f} µs a text without the audit; all of it "
                f"{share(seconds[:, 1:].sum(axis=1), scan)}",
                flush=True,
            )
            for number, (_, _, part) in enumerate(PARTS, 1):
                if seconds[:, number].any():
                    print(f"  {part:>20} {share(seconds[:, number], scan)}", flush=True)


if __name__ == "__main__":
    main()

"""What the audit costs a scan in CPU: `python -m tests.bench.audit_cost CORPUS`.

One worker scans the same texts by people, a shard of them, with no audit, with the default shares but for whole
decisions, and with all of these, in turn, as a part of a night of so many documents (on which the share under decoys
of one message depends). Printed for each configuration: the geometric mean of the ratios of CPU seconds within a
round, with limits (95 %, by Student's t over rounds).
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy import stats

from jobs.demo.demo_keys import TOKENIZER
from scanner.cluster.worker import Worker
from scanner.detection.scan_plan import make_plan
from scanner.input.shards import MAX_ROWS
from scanner.results.tables import open_tables
from tests.bench.configured import AUDIT, FOR_USERS, NO_AUDIT, ONE_MESSAGE, VERSION_2, make_scan
from tests.bench.filter_cost import pair
from tests.bench.scan import shards_of

GREEN, GUMBEL = VERSION_2.values()
LOOKS = "[variants]\nnormalised = true\n[spans]\nwindows = true\nsegments = true\n"
CASES: dict[str, tuple[int, dict[str, Any], str]] = {
    "a green list for 100,000 users": (1, GREEN | FOR_USERS, ""),
    "two green lists for 100,000 users": (2, GREEN | FOR_USERS, ""),
    "two green lists for 100,000 users, all looks": (2, GREEN | FOR_USERS, LOOKS),
    "a Gumbel key for 100,000 users": (1, GUMBEL | FOR_USERS, ""),
    "a green list of one message": (1, GREEN | ONE_MESSAGE, ""),
}
SHARES = {"no audit": NO_AUDIT, "all but whole decisions": (*AUDIT[:2], 0.0), "all": AUDIT}


def measured(
    folder: Path, texts: pl.DataFrame, case: tuple[int, dict[str, Any], str], asked: argparse.Namespace
) -> str:
    """A line on a configuration."""
    keys, form, more = case
    workers = []
    for number, shares in enumerate(SHARES.values()):
        at = folder / str(number)
        at.mkdir()
        texts.write_parquet(at / "in.parquet")
        config = make_scan(at, TOKENIZER, keys, 1, [at / "in.parquet"], shares, **form)
        config.write_text(config.read_text() + more)
        plan = make_plan(config)
        open_tables(plan.results)
        shard = shards_of(plan, 1e-9)[0]
        workers.append(Worker(dataclasses.replace(plan, documents=int(asked.night)), "bench"))
        workers[-1].prepare()
    pair(workers, shard)  # compiles
    spent = np.array([np.roll(pair(workers[i % 3 :] + workers[: i % 3], shard), i % 3) for i in range(asked.rounds)])
    cells = [
        f"{shard.rows.stop:,} texts, {np.median(spent[:, 0]) / shard.rows.stop * 1e6:.0f} µs a text without an audit"
    ]
    for what, over, under in (("all of it", 2, 0), ("all but whole decisions", 1, 0), ("whole decisions", 2, 1)):
        ratio = np.log(spent[:, over] / spent[:, under])
        middle, half = ratio.mean(), stats.t.isf(0.025, len(ratio) - 1) * stats.sem(ratio)
        mean, low, high = (100 * np.expm1(each) for each in (middle, middle - half, middle + half))
        cells.append(f"{what} {mean:+.1f} % ({low:+.1f} to {high:+.1f})")
    return "; ".join(cells)


def main() -> None:
    """Print a line for each configuration."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.audit_cost", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--cases", default="", help="those whose names hold this")
    parser.add_argument("--texts", type=int, default=MAX_ROWS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--night", type=float, default=2e7, help="documents of the whole night")
    asked = parser.parse_args()
    texts = pl.read_parquet(asked.corpus, columns=["text"]).sample(asked.texts, shuffle=True, seed=1)
    for name, case in CASES.items():
        if asked.cases in name:
            with tempfile.TemporaryDirectory() as folder:
                line = measured(Path(folder), texts, case, asked)
            print(f"{name}, of {asked.night:g} texts, {asked.rounds} rounds: {line}", flush=True)


if __name__ == "__main__":
    main()

"""Whole scans whose workers share a GPU, beside the same scans on the cores alone: `python -m tests.bench.gpu_scans`.

Each worker has a core, and a share of the GPU where it has one. Posts are cut from the corpus as in row 6. Both scans
read one file of them first, which compiles, and their verdicts are compared. Then both read copies of that file (of
hard links a scan reads one), by the clock. A rate counts the start of the workers, so take text for a minute or more:
an hour's scan is faster. --json writes the figures after each comparison.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import ray

from scanner.cluster.machines import cluster
from scanner.cluster.scan import run_scan
from scanner.results import current_rows
from scanner.results.transactions import read_whole
from scanner.scan_plan import Plan, make_plan
from scanner.watermark.native.format import groups_for
from schemas.config import ClusterConfig
from tests.bench.as_init import LENGTH, write_posts
from tests.bench.configured import AUDIT, LOOKS_OF_INIT, NO_AUDIT, VERSION_3, add_looks, make_scan

CONFIGURED: Mapping[str, tuple[tuple[float, ...], Mapping[str, Mapping[str, bool]]]] = {
    "bare": (NO_AUDIT, {}),
    "what init writes": (AUDIT, LOOKS_OF_INIT),
}
"""Shares that decoys score, and looks."""

VARIES = ("scan_id", "scanned_at", "text_sha256", "text_id")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_scans", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with a column text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--megabytes", type=float, default=0.5, help="text of a file")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: a worker a core")
    parser.add_argument("--users", type=float, nargs="+", default=[1e5, 1e9])
    parser.add_argument("--formats", nargs="+", choices=VERSION_3, default=list(VERSION_3))
    parser.add_argument("--configured", nargs="+", choices=CONFIGURED, default=list(CONFIGURED))
    parser.add_argument("--copies", type=int, default=128, help="of the file, which are scanned by the clock")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory() as name, cluster(ClusterConfig(workers=options.workers)):
        print(f"{options.workers} workers, {ray.cluster_resources().get('GPU', 0):g} GPUs", flush=True)
        folder = Path(name)
        (folder / "posts").mkdir()
        first = write_posts(folder / "posts" / "0.parquet", LENGTH, options)
        for number in range(1, options.copies):
            shutil.copy(first, first.with_name(f"{number}.parquet"))
        figures = []
        for configured in options.configured:
            for form in options.formats:
                for users in options.users:
                    scans = folder / f"{configured}-{form}-{users:g}"
                    figures.append(_compare(scans, first, configured, form, users, options))
                    if options.json:
                        options.json.write_text(json.dumps(figures, indent=1))


def _compare(
    folder: Path, posts: Path, configured: str, form: str, users: float, options: argparse.Namespace
) -> dict[str, Any]:
    audit, looks = CONFIGURED[configured]
    groups = groups_for(users)
    key: dict[str, Any] = VERSION_3[form] | {"messages": groups**2, "groups": groups}
    folder.mkdir()
    written = add_looks(make_scan(folder, options.tokenizer, 1, options.workers, [posts], audit, **key), looks)
    text, rates, rows = written.read_text(), {}, {}
    for where, share in (("cores", 0.0), ("GPU", 1 / options.workers)):
        config = folder / f"{where}.toml"
        gpus = f"\ngpus_per_worker = {share}\nrequire_gpus = true" if share else ""
        config.write_text(
            text.replace('results = "results"', f'results = "{where}"').replace(
                f"workers = {options.workers}", f"workers = {options.workers}{gpus}"
            )
        )
        rows[where] = _verdicts(make_plan(config))
        config.write_text(
            config.read_text().replace(f'results = "{where}"', f'results = "{where} timed"')
            .replace("/0.parquet", "")
        )  # fmt: skip
        began = time.monotonic()
        assert run_scan(make_plan(config), lambda work, totals: None).exit_code == 0
        rates[where] = options.megabytes * options.copies / (time.monotonic() - began)
    same = "same" if rows["cores"].equals(rows["GPU"]) else "DIFFERENT"
    print(
        f"{form}, {users:g} users, {configured}: {rates['cores']:.1f} MB/s on the cores, {rates['GPU']:.1f} with the"
        f" GPU, {rates['GPU'] / rates['cores']:.2f} times; {same} verdicts on {rows['GPU'].height} texts",
        flush=True,
    )
    return {
        "format": form, "users": users, "configured": configured, "workers": options.workers,
        "megabytes": options.megabytes * options.copies, "megabytes a second": rates, "same verdicts": same == "same",
        "texts compared": rows["GPU"].height,
    }  # fmt: skip


def _verdicts(plan: Plan) -> pl.DataFrame:
    """Scan all, and give the verdicts row by row."""
    outcome = run_scan(plan, lambda work, totals: None)
    assert outcome.exit_code == 0, outcome
    exact = current_rows.exact(plan.results, read_whole(plan.results, "verdicts")).collect()
    return exact.drop(VARIES, strict=False).sort("path", "row")


if __name__ == "__main__":
    main()

"""Whole scans whose workers share a GPU, beside the same scans on the cores alone: `python -m tests.bench.gpu_scans`.

Each worker has a core, and a share of the GPU where it has one. Posts are cut from the corpus as in row 6. Both scans
read one file of them first, which compiles, and their verdicts are compared. Then both read links to that file: a
rate is that of the time in which all workers had work.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import ray

from scanner.cluster.machines import cluster
from scanner.cluster.pieces import Busy, Piece, Report
from scanner.cluster.scan import run_scan
from scanner.cluster.worker import Worker
from scanner.results import current_rows
from scanner.results.transactions import read_whole
from scanner.scan_plan import Plan, make_plan
from scanner.watermark.native.format import groups_for
from schemas.config import ClusterConfig
from tests.bench.as_init import LENGTH, write_posts
from tests.bench.configured import AUDIT, LOOKS_OF_INIT, NO_AUDIT, VERSION_2, add_looks, make_scan

CONFIGURED: Mapping[str, tuple[tuple[float, ...], Mapping[str, Mapping[str, bool]]]] = {
    "bare": (NO_AUDIT, {}),
    "what init writes": (AUDIT, LOOKS_OF_INIT),
}
"""Shares that decoys score, and looks."""

VARIES = ("scan_id", "scanned_at", "text_sha256", "text_id")


class TimedPiece(NamedTuple):
    """A piece that a worker scanned, by the clock, and its bytes of text."""

    begin: float
    end: float
    size: float


class TimedWorker(Worker):
    """A worker that writes down when it scanned how much."""

    def scan(self, piece: Piece) -> Iterator[Busy | Report]:
        """As Worker."""
        file = _times(self._plan) / str(os.getpid())
        begin = time.time()
        file.touch()
        yield from super().scan(piece)
        rows = piece.shard.rows
        size = rows.text_bytes * (piece.stop - piece.start) / rows.documents
        with file.open("a") as lines:
            lines.write(json.dumps((begin, time.time(), size)) + "\n")


def _times(plan: Plan) -> Path:
    folder = Path(f"{plan.results}-times")
    folder.mkdir(exist_ok=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_scans", description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="Parquet file with a column text")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--megabytes", type=float, default=10.0, help="text of the file")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="default: a worker a core")
    parser.add_argument("--users", type=float, nargs="+", default=[1e5, 1e9])
    parser.add_argument("--formats", nargs="+", choices=VERSION_2, default=list(VERSION_2))
    parser.add_argument("--configured", nargs="+", choices=CONFIGURED, default=list(CONFIGURED))
    parser.add_argument("--links", type=int, default=100, help="to the file, which are scanned by the clock")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory() as name, cluster(ClusterConfig(workers=options.workers)):
        print(f"{options.workers} workers, {ray.cluster_resources().get('GPU', 0):g} GPUs", flush=True)
        folder = Path(name)
        (folder / "posts").mkdir()
        first = write_posts(folder / "posts" / "0.parquet", LENGTH, options)
        for number in range(1, options.links):
            os.link(first, first.with_name(f"{number}.parquet"))
        for configured in options.configured:
            for form in options.formats:
                for users in options.users:
                    _compare(folder / f"{configured}-{form}-{users:g}", first, configured, form, users, options)


def _compare(folder: Path, posts: Path, configured: str, form: str, users: float, options: argparse.Namespace) -> None:
    audit, looks = CONFIGURED[configured]
    groups = groups_for(users)
    key: dict[str, Any] = VERSION_2[form] | {"messages": groups**2, "groups": groups}
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
        rates[where] = _rate(make_plan(config))
    same = "same" if rows["cores"].equals(rows["GPU"]) else "DIFFERENT"
    print(
        f"{form}, {users:g} users, {configured}: {rates['cores']:.1f} MB/s on the cores, {rates['GPU']:.1f} with the"
        f" GPU, {rates['GPU'] / rates['cores']:.2f} times; {same} verdicts on {rows['GPU'].height} texts",
        flush=True,
    )


def _verdicts(plan: Plan) -> pl.DataFrame:
    """Scan all, and give the verdicts row by row."""
    outcome = run_scan(plan, lambda work, totals: None)
    assert outcome.exit_code == 0, outcome
    exact = current_rows.exact(plan.results, read_whole(plan.results, "verdicts")).collect()
    return exact.drop(VARIES, strict=False).sort("path", "row")


def _rate(plan: Plan) -> float:
    """Megabytes of text a second while all workers have work."""
    run_scan(plan, lambda work, totals: None, worker=TimedWorker)
    pieces = [
        [TimedPiece(*json.loads(line)) for line in file.read_text().splitlines()] for file in _times(plan).iterdir()
    ]
    begin, end = max(some[0].begin for some in pieces), min(some[-1].end for some in pieces)
    size = sum(
        piece.size * max(min(piece.end, end) - max(piece.begin, begin), 0) / (piece.end - piece.begin)
        for some in pieces
        for piece in some
    )
    print(f"  {Path(plan.results).name}: {len(pieces)} workers, {size / 1e6:.0f} MB in {end - begin:.1f} s", flush=True)
    return size / 1e6 / (end - begin)


if __name__ == "__main__":
    main()

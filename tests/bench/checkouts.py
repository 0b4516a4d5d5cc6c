"""One scan by this checkout and by another one, in turns: `python -m tests.bench.checkouts ANOTHER`.

ANOTHER is a folder with another version, such as `git worktree add ../before main` makes. Each version has a process of
its own, which compiles first and then scans the same posts whenever it is its turn, so that a busy machine slows both.
A ratio is that of two scans one after the other. Several values of an option are measured in turns too: CPU ms a MB by
version, the median of the ratios, and what a value takes beside the first one. Scores under keys are told by themselves
as well, without reading, tokenising and tables: each batch is scored SCORED_TIMES, and the median counts.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

HERE = Path(__file__).parents[2]
DEMO = HERE / "jobs" / "demo"


SCORED_TIMES = 5


class Point(NamedTuple):
    """A scan that is measured: what `brickscan init` writes, but for these.

    format: of all keys.
    keys: how many.
    users: of each key; 1: one message.
    tokens: of a post, about.
    audit: `init`: decoys score the share of a large night; `all`: each text; `none`: no text.
    looks: `init`, or `none`: whole texts as they are written.
    """

    format: str
    keys: int
    users: float
    tokens: int
    audit: str
    looks: str


class Version:
    """A process that scans with the code of a checkout whenever it is asked."""

    def __init__(self, checkout: Path, points: Sequence[Point], arguments: Sequence[str]) -> None:
        paths = [checkout, checkout / "scanner" / "api"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [sys.executable, "-P", __file__, "--scan", json.dumps(points), *arguments]
        self._process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def scan(self, point: int) -> dict[str, Any]:
        """Scan the posts of a point. Returns what `scan_when_asked` writes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{point}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Let the process end."""
        self._process.communicate()


def scan_when_asked(points: Sequence[Point], options: argparse.Namespace) -> None:
    """Scan the posts of a point for each number that is read, and write a line: CPU seconds, and megabytes."""
    # imported here: this file's other half runs in this checkout, and this one in another
    import pyarrow as pa

    from tests.bench.as_init import write_posts
    from tests.bench.scan import seconds_of_scan, shards_of

    pa.set_cpu_count(1)
    spent = count_scoring()
    with tempfile.TemporaryDirectory() as name:
        scans: dict[int, Any] = {}
        for line in sys.stdin:
            number = int(line)
            if number not in scans:
                folder = Path(name) / str(number)
                folder.mkdir()
                posts = write_posts(folder / "posts.parquet", points[number].tokens, options)
                scans[number] = _plan(folder, posts, points[number], options, shards_of)
                seconds_of_scan(*scans[number])  # compiles
            plan, pieces = scans[number]
            size = sum(piece.shard.rows.text_bytes for piece in pieces) / 1e6
            spent[:] = [0.0, 0.0]
            seconds = seconds_of_scan(plan, pieces)
            seconds += spent[0] - spent[1]
            print(json.dumps({"all": seconds, "scores": spent[0], "megabytes": size}), flush=True)


def count_scoring() -> list[float]:
    """Count from now on the CPU seconds of scores under keys: once, and as often as they are computed."""
    from scanner.detection.detector import Detector

    spent, score = [0.0, 0.0], Detector._score

    def timed(*arguments: Any) -> Any:
        times = [time.process_time()]
        for _ in range(SCORED_TIMES):
            result = score(*arguments)
            times.append(time.process_time())
        spent[0] += median(end - begin for begin, end in itertools.pairwise(times))
        spent[1] += times[-1] - times[0]
        return result

    Detector._score = timed
    return spent


def _plan(folder: Path, posts: Path, point: Point, options: argparse.Namespace, shards_of: Any) -> tuple[Any, list]:
    from scanner.cluster.pieces import Piece
    from scanner.results.transactions import open_tables
    from scanner.scan_plan import make_plan
    from scanner.watermark.native.format import groups_for
    from tests.bench.configured import AUDIT, LOOKS_OF_INIT, NO_AUDIT, ONE_MESSAGE, VERSION_3, add_looks, make_scan
    from tests.fixed import fix_secrets

    fix_secrets(folder / "registry", *(f"k{number}" for number in range(point.keys)))  # the same keys in both
    groups = groups_for(point.users)
    messages = ONE_MESSAGE if point.users == 1 else {"messages": groups**2, "groups": groups}
    audit = {"init": AUDIT, "all": (1.0, AUDIT[1], AUDIT[2]), "none": NO_AUDIT}[point.audit]
    form = VERSION_3[point.format] | messages
    config = make_scan(folder, options.tokenizer, point.keys, 1, [posts], audit, **form)
    plan = make_plan(add_looks(config, LOOKS_OF_INIT if point.looks == "init" else {}))
    open_tables(plan.results)
    return plan, [Piece(shard, shard.rows.start, shard.rows.stop) for shard in shards_of(plan, options.megabytes)]


def lines(points: Sequence[Point], before: Version, after: Version, repeats: int) -> Iterator[str]:
    """A line for each point."""
    for version, point in itertools.product((before, after), range(len(points))):
        version.scan(point)
    rounds = [[(before.scan(point), after.scan(point)) for point in range(len(points))] for _ in range(repeats)]
    for number, point in enumerate(points):
        yield ", ".join(f"{field} {value}" for field, value in point._asdict().items())
        size = rounds[0][number][0]["megabytes"]
        for part in ("all", "scores"):
            pairs = [(old[part], new[part]) for old, new in (each[number] for each in rounds)]
            old, new = (1e3 * median(seconds) / size for seconds in zip(*pairs, strict=True))
            ratios = sorted(new / old for old, new in pairs)
            beside_first = (median(each[number][v][part] / each[0][v][part] for each in rounds) for v in (0, 1))
            beside = ", {:.2f} and {:.2f} times the first".format(*beside_first) if number else ""
            yield (
                f"  {part}: {old:.0f} → {new:.0f} CPU ms a MB, {median(ratios):.3f} times"
                f" ({ratios[0]:.3f} to {ratios[-1]:.3f}){beside}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.checkouts", description=__doc__)
    parser.add_argument("another", type=Path, nargs="?", help="folder of the other version")
    parser.add_argument("--scan", help=argparse.SUPPRESS)
    parser.add_argument("--formats", nargs="+", default=["greenlist-v3"])
    parser.add_argument("--keys", type=int, nargs="+", default=[1])
    parser.add_argument("--users", type=float, nargs="+", default=[1e5])
    parser.add_argument("--tokens", type=int, nargs="+", default=[170])
    parser.add_argument("--audit", choices=["init", "all", "none"], nargs="+", default=["init"])
    parser.add_argument("--looks", choices=["init", "none"], nargs="+", default=["init"])
    parser.add_argument("--corpus", type=Path, default=DEMO / "sample-1.parquet")
    parser.add_argument("--tokenizer", type=Path, default=next(DEMO.glob("*.json")))
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    if options.scan:
        scan_when_asked([Point(*point) for point in json.loads(options.scan)], options)
        return
    axes = options.formats, options.keys, options.users, options.tokens, options.audit, options.looks
    points = [Point(*values) for values in itertools.product(*axes)]
    arguments = [
        *("--corpus", str(options.corpus.resolve()), "--tokenizer", str(options.tokenizer.resolve())),
        *("--megabytes", str(options.megabytes)),
    ]
    versions = [Version(folder, points, arguments) for folder in (options.another.resolve(), HERE)]
    print(f"load {os.getloadavg()[0]:.1f}")
    for line in lines(points, *versions, options.repeats):
        print(line, flush=True)
    for version in versions:
        version.end()


if __name__ == "__main__":
    main()

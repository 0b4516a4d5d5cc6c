"""How long a fresh machine takes to begin, by this checkout and by another.

`python -m tests.bench.cold_start ANOTHER`, a folder as of tests.bench.checkouts.

Each version checks a text in a process of its own, in turns, with an empty cache of kernels and then once more with a
full one: CPU seconds of the process, and how many kernels lie in the cache. With `--workers`, so many workers of a
scan, as `brickscan init` writes it, begin at the same time instead: seconds until all of them are ready.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).parents[2]
MAKE_KEY = """
import sys
from pathlib import Path
from scanner.registry import new_key
from tests.bench.configured import FOR_USERS, VERSION_3
form = VERSION_3[sys.argv[2]] | FOR_USERS
new_key(Path(sys.argv[1]) / "registry", "key", tokenizer=Path("jobs/demo/tokenizer.json"), **form)
"""
CHECK = """
import sys
from pathlib import Path
from scanner.detection.one_text import TextCheck, check_text
registry = Path(sys.argv[1]) / "registry"
check_text(TextCheck.of_registry(registry, (), 1e-6), Path("README.md").read_bytes()[:700])
"""
CONFIGURE = """
import sys
from pathlib import Path
from tests.bench.configured import AUDIT, FOR_USERS, LOOKS_OF_INIT, VERSION_3, add_looks, make_scan
demo, form = Path("jobs/demo"), VERSION_3[sys.argv[2]] | FOR_USERS
paths = [demo / "sample-1.parquet"]
add_looks(make_scan(Path(sys.argv[1]), demo / "tokenizer.json", 1, 1, paths, AUDIT, **form), LOOKS_OF_INIT)
"""
PREPARE = """
import sys
from pathlib import Path
from scanner.cluster.worker import Worker
from scanner.scan_plan import make_plan
Worker(make_plan(Path(sys.argv[1]) / "scan.toml"), "bench").prepare()
"""


def begin(code: str, checkout: Path, folder: Path, method: str) -> subprocess.Popen[bytes]:
    """Begin a process that runs code of a checkout, with its cache of kernels in the folder."""
    paths = os.pathsep.join(map(str, (checkout, checkout / "scanner" / "api")))
    environment = os.environ | {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder / "cache")}
    return subprocess.Popen([sys.executable, "-c", code, str(folder), method], cwd=checkout, env=environment)


def end(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait for processes. Returns their CPU seconds together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for process in processes:
        if process.wait():
            raise SystemExit("a process failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def check_twice(checkout: Path, folder: Path, method: str) -> tuple[float, ...]:
    """CPU seconds of a process that checks a text under a key for 100,000 users, and of a second one; kernels."""
    end([begin(MAKE_KEY, checkout, folder, method)])
    shutil.rmtree(folder / "cache")
    first, second = (end([begin(CHECK, checkout, folder, method)]) for _ in range(2))
    return first, second, sum(1 for _ in folder.rglob("*.nbc"))


def prepare_workers(checkout: Path, folder: Path, method: str, workers: int) -> tuple[float, ...]:
    """Seconds until workers that begin together are ready, their CPU seconds, and kernels."""
    end([begin(CONFIGURE, checkout, folder, method)])
    began = time.perf_counter()
    spent = end([begin(PREPARE, checkout, folder, method) for _ in range(workers)])
    return time.perf_counter() - began, spent, sum(1 for _ in folder.rglob("*.nbc"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cold_start", description=__doc__)
    parser.add_argument("another", type=Path, help="folder of the other version")
    parser.add_argument("--method", default="greenlist-v3")
    parser.add_argument("--workers", type=int, default=0, help="workers of a scan that begin together; 0: check a text")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    runs = []
    for _ in range(options.repeats):
        for checkout in (options.another.resolve(), HERE):
            with tempfile.TemporaryDirectory() as name:
                arguments = checkout, Path(name), options.method
                runs.append(
                    prepare_workers(*arguments, options.workers) if options.workers else check_twice(*arguments)
                )
    words = ("seconds until ready", "CPU seconds") if options.workers else ("empty cache, CPU seconds", "full cache")
    print(f"load {os.getloadavg()[0]:.1f}")
    for place, what in enumerate((*words, "kernels in the cache")):
        old, new = ([run[place] for run in runs[version::2]] for version in (0, 1))
        line = f"{what}: {median(old):.4g} → {median(new):.4g}"
        if all(old):  # a text needs no kernels
            ratios = sorted(b / a for a, b in zip(old, new, strict=True))
            line += f", {median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(line)


if __name__ == "__main__":
    main()

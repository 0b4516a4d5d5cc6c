"""Measures CPU seconds of this process and its children: medians over repeats, baseline and subject in turns.

The machine may be shared, so wall-clock time says little. A ratio is the median of the ratios of two runs one after the
other: a machine that is slow for a while slows both.
"""

import contextlib
import os
import platform
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

SHORTEST = 0.05  # seconds of CPU time that a repeat takes at least
PACKAGES = (
    "numba",
    "llvmlite",
    "numpy",
    "pyarrow",
    "tokenizers",
    "fastokens",
    "ray",
    "deltalake",
    "transformers",
    "torch",
)
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS", "TOKENIZERS_PARALLELISM",
)  # fmt: skip


class Work(NamedTuple):
    """A function to be timed: `amount` units of work a call."""

    name: str
    amount: float
    call: Callable[[], Any]


class Comparison(NamedTuple):
    """One line of the table. rate and baseline_rate: units per CPU second; spread: (max − min)/median of the rate."""

    row: int
    what: str
    unit: str
    rate: float
    baseline: str
    baseline_rate: float
    ratio: float
    spread: float
    repeats: int
    note: str = ""


def cpu_seconds() -> float:
    """CPU seconds of all threads of this process, and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system if _children else time.process_time()


class Family:
    """Clock of the CPU seconds of this process and of all that descend from it, such as Ray's workers.

    It looks every `INTERVAL` seconds, and keeps what a process had taken before it ended.
    """

    INTERVAL = 0.2

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, int], int] = {}
        threading.Thread(target=self._look_for_ever, daemon=True).start()

    def seconds(self) -> float:
        """CPU seconds so far."""
        self._look()
        return sum(list(self._ticks.values())) / os.sysconf("SC_CLK_TCK")

    def _look_for_ever(self) -> None:
        while True:
            self._look()
            time.sleep(self.INTERVAL)

    def _look(self) -> None:
        parent, ticks = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = path.read_text().rpartition(")")[2].split()  # proc(5), from the state on
                process = int(path.parent.name)
                parent[process], ticks[process] = int(fields[1]), (int(fields[19]), int(fields[11]) + int(fields[12]))
        family, found = set(), {os.getpid()}
        while found:
            family |= found
            found = {process for process, above in parent.items() if above in found}
        for process in family:
            began, spent = ticks[process]
            self._ticks[process, began] = spent


_children = False


def count_children() -> None:
    """From now on children count; their clock ticks in hundredths of a second."""
    global _children
    _children = True


def rate(work: Work, calls: int) -> float:
    """Units per CPU second over so many calls."""
    begin = cpu_seconds()
    for _ in range(calls):
        work.call()
    return work.amount * calls / max(cpu_seconds() - begin, 1e-9)


def in_a_process(question: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of a call, and MiB by which it makes a new process grow that has only imported it."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_called, (question,))


def _called(question: Callable[[], object]) -> tuple[float, float]:
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the memory held now (proc(5))
    memory, began = _peak(), time.process_time()
    question()
    return time.process_time() - began, _peak() - memory


def _peak() -> float:
    """MiB that this process held at most."""
    held = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert held
    return int(held[1]) / 1024


def calls_for(work: Work) -> int:
    """Number of calls that take SHORTEST seconds together; the first call, which may compile, does not count."""
    work.call()
    calls = 1
    while True:
        begin = cpu_seconds()
        for _ in range(calls):
            work.call()
        spent = cpu_seconds() - begin
        if spent >= SHORTEST:
            return calls
        calls = max(2 * calls, int(calls * SHORTEST / max(spent, 1e-4)))


def compare(row: int, unit: str, work: Work, baseline: Work, repeats: int, note: str = "") -> Comparison:
    """Time both in turns; both amounts are in the same unit."""
    calls = [calls_for(baseline), calls_for(work)]
    pairs = [(rate(baseline, calls[0]), rate(work, calls[1])) for _ in range(repeats)]
    rates = [fast for _, fast in pairs]
    return Comparison(
        row,
        work.name,
        unit,
        statistics.median(rates),
        baseline.name,
        statistics.median(slow for slow, _ in pairs),
        statistics.median(fast / slow for slow, fast in pairs),
        (max(rates) - min(rates)) / statistics.median(rates),
        repeats,
        note,
    )


def circumstances() -> dict[str, Any]:
    """Machine, versions and thread counts, which belong beside every comparison."""
    return {
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "load": os.getloadavg(), "system": platform.platform()},
        "python": sys.version.split()[0],
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "threads": {name: os.environ.get(name) for name in THREAD_VARIABLES},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
    except OSError:
        return platform.processor()
    found = {key.strip(): value.strip() for key, value in fields.items()}
    return f"{found.get('model name', '?')} (family {found.get('cpu family', '?')}, model {found.get('model', '?')})"

"""The driver's cost of a shard, by the number of workers: `python -m tests.bench.driver --workers 10 1000`.

The pool and the commits are the real ones; workers and Ray are simulated. The simulated clock also moves by the
driver's own CPU time, so that workers wait where the driver is too slow. A call of Ray takes as long as on real actors;
`--ray` measures that again, on eight actors. A wait costs more the more references it waits for.
"""

import argparse
import heapq
import math
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from scanner.cluster import commits, pool
from scanner.cluster.pieces import Busy, DocumentCounts, Piece, Report, Seconds
from scanner.cluster.todo import PiecePace
from scanner.error_shares import ErrorShares
from scanner.input.files import InputFile
from scanner.input.shards import MAX_TEXT_BYTES, Range, Shard
from scanner.results.transactions import open_tables
from scanner.watermark.native.format import SECONDS_A_MESSAGE
from tests.bench import recording
from tests.bench.log import a_file, shard_id

SECONDS_A_SHARD = 1.25
"""Seconds of a shard under a key of one message."""

ROWS = 20_000
BATCHES = 5
"""Batches of a shard of 20 MB; before each, a worker gives a sign of life if one is due."""

WAIT, WAIT_A_REFERENCE, ASK, TAKE = 4e-5, 1.3e-6, 4.1e-4, 2.2e-5
"""CPU seconds that Ray takes in the driver: to wait, for each reference more, to ask an actor (its threads' part in
what comes back included), and to take a result. Measured on Ray 2.60 with two actors by `--ray`."""


class Clock:
    """Seconds of the simulation: what the driver spent, and what it waited."""

    def __init__(self) -> None:
        self.skipped = self.ray = 0.0
        self._hidden = 0.0  # CPU seconds of the simulation itself
        self._began = time.process_time()

    @property
    def own(self) -> float:
        """CPU seconds of the driver, less Ray's."""
        return time.process_time() - self._began - self._hidden

    def monotonic(self) -> float:
        return self.own + self.ray + self.skipped

    def hide(self, since: float) -> None:
        """Leave out the CPU time since then, which the simulation took."""
        self._hidden += time.process_time() - since


class Stream:
    """An actor's answers: values, and the time at which each is there."""

    def __init__(self, answers: list[tuple[float, Any]]) -> None:
        self._answers = iter(answers)
        self.at, self.value = next(self._answers)

    def __next__(self) -> Any:
        value = self.value
        self.at, self.value = next(self._answers, (float("inf"), None))
        return lambda: value


class Actor:
    """A simulated actor, which answers one call after the other."""

    def __init__(self, ray: "FakeRay") -> None:
        self._ray, self._free = ray, 0.0
        self.scan = self.prepare = self.__ray_call__ = self

    def options(self, **_: Any) -> "Actor":
        return self

    def remote(self, piece: Any = None) -> Stream:
        began = time.process_time()
        stream = Stream(self._answers(piece)) if isinstance(piece, Piece) else Stream([(0.0, None)])
        self._ray.clock.hide(began)
        self._ray.count(asked=1)
        return stream

    def _answers(self, piece: Any) -> list[tuple[float, Any]]:
        start = max(self._free, self._ray.clock.monotonic())
        rows = piece.stop - piece.start
        self._ray.pieces.append(piece)
        # no two shards take the same time, or all workers would come at once
        seconds = self._ray.seconds * rows / ROWS * (0.8 + 0.4 * (hash(piece.shard.shard_id) % 1000) / 1000)
        self._ray.took.append(seconds)
        self._free = start + seconds
        self._ray.busy += seconds
        signs = [(start + seconds * k / BATCHES, Busy(300.0)) for k in self._ray.signs]
        number = int(piece.shard.shard_id, 16)
        spent = Seconds(score=seconds)
        report = Report(
            {"verdicts": (a_file(number),), "audit_counts": (a_file(number),)},
            counts=DocumentCounts(documents=rows),
            seconds=spent,
        )
        return [*signs, (self._free, report)]


class FakeRay:
    """Simulates the calls of Ray that the pool makes; a shard takes so many seconds."""

    def __init__(self, clock: Clock, signs: list[int], seconds: float) -> None:
        self.clock, self.signs, self.seconds, self.busy = clock, signs, seconds, 0.0
        self.pieces: list[Piece] = []
        self.took: list[float] = []
        self.calls: dict[str, int] = {}

    def count(self, *, seconds: float = 0.0, **calls: int) -> None:
        for name, number in calls.items():
            self.calls[name] = self.calls.get(name, 0) + number
            seconds += {"asked": ASK, "taken": TAKE, "waited": WAIT}[name] * number
        self.clock.ray += seconds

    def wait(
        self, refs: list[Stream], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Stream], list[Stream]]:
        began = time.process_time()
        first = heapq.nsmallest(num_returns, refs, key=lambda ref: ref.at)
        now = self.clock.monotonic()
        self.clock.skipped += min(max(first[-1].at - now, 0.0), timeout if timeout is not None else float("inf"))
        now = self.clock.monotonic()
        done = [ref for ref in first if ref.at <= now]
        self.clock.hide(began)
        self.count(waited=1, seconds=WAIT_A_REFERENCE * len(refs))
        return done, []

    def get(self, ref: Any) -> Any:
        self.count(taken=1)
        return ref() if callable(ref) else ref.value

    def kill(self, actor: Actor) -> None:
        pass


def shards(count: int, driver: int = 0) -> Iterator[Shard]:
    for number in range(driver * count, (driver + 1) * count):
        file = InputFile(*(f"/in/{number // 50}.parquet",) * 3, 10**9, 1)
        yield Shard(shard_id(number), file, Range(number % 50 * ROWS, (number % 50 + 1) * ROWS, MAX_TEXT_BYTES))


def simulated(
    workers: int,
    count: int,
    signs: list[int],
    folder: str,
    driver: int = 0,
    seconds: float = SECONDS_A_SHARD,
    messages: int = 1,
) -> dict[str, float]:
    """Figures of a driver with so many workers and shards, of so many seconds under a key of so many messages."""
    clock = Clock()
    ray = FakeRay(clock, signs, seconds)
    for module in (pool, commits):
        module.time = clock  # type: ignore[attr-defined]
    pool.ray = ray  # type: ignore[attr-defined]
    open_tables(folder)
    config = SimpleNamespace(dedup="ngram", min_scored=16)
    of_tests = {"decides": "", "key_set": "keys", "tests_sha256": "tests", "weights": ErrorShares()}
    plan: Any = SimpleNamespace(results=folder, date=None, shown=(), config=config, **of_tests)
    committer = commits.Committer(plan, f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{driver:08x}")
    pace = PiecePace(messages * SECONDS_A_MESSAGE)
    used, committing, flushes = pool.Pool(lambda: Actor(ray), workers, 300.0, pace=pace), 0.0, 0
    began, first = clock.monotonic(), math.inf
    for finished in used.run(shards(count, driver)):
        if first == math.inf and (finished is not None or used.under_way):
            first = clock.monotonic() - began
        if finished is not None:
            committer.add(finished)
        if committer.due():
            before = clock.own
            committer.flush()
            committing, flushes = committing + clock.own - before, flushes + 1
    committer.flush()
    passed = clock.monotonic() - began
    return {
        "shards a second": count / passed,
        "busy": ray.busy / passed / workers,
        "own ms a shard": 1e3 * (clock.own - committing) / count,
        "commits": 1e3 * committing / count,
        "Ray": 1e3 * clock.ray / count,
        "shards a commit": count / max(flushes, 1),
        "waits a shard": ray.calls["waited"] / count,
        "pieces a shard": len(ray.pieces) / count,
        "longest piece s": max(ray.took),
        "first progress s": first,
    }


def together(drivers: int, workers: int, count: int, signs: list[int], folder: str) -> dict[str, float]:
    """Figures of several drivers that share tables at the same time, each with its own workers and shards.

    Shards a second are those of all drivers, other figures the mean of one driver.
    """
    with multiprocessing.get_context("spawn").Pool(drivers) as processes:
        found = processes.starmap(simulated, [(workers, count, signs, folder, driver) for driver in range(drivers)])
    means = {name: sum(one[name] for one in found) / drivers for name in found[0]}
    return means | {"shards a second": means["shards a second"] * drivers}


class RealActor:
    """Answers at once, as a worker does."""

    def scan(self, number: int) -> Iterator[Busy | Report]:
        yield Busy(300.0)
        yield Report(
            {"verdicts": (a_file(number),), "audit_counts": (a_file(number),)}, counts=DocumentCounts(documents=ROWS)
        )


def cost_of_ray(pieces: int = 600, waits: int = 20) -> dict[str, float]:
    """CPU seconds of this process for calls of Ray, with two real actors; `asked` holds what its threads take later."""
    import ray

    from scanner.cluster.machines import cluster
    from schemas.config import ClusterConfig

    with cluster(ClusterConfig(workers=2)):
        made: Any = ray.remote(num_cpus=0)(RealActor)
        actors = [made.remote() for _ in range(2)]
        for number in (60, pieces):  # the first round starts the processes
            began = time.process_time()
            asks = [actor.scan.options(num_returns="streaming") for actor in actors]
            streams = [asks[n % 2].remote(n) for n in range(number)]
            ray.wait(streams, num_returns=len(streams), timeout=120)
            time.sleep(5)
            asked = (time.process_time() - began) / len(streams)
            began = time.process_time()
            for stream in streams:
                ray.get(next(stream))
            taken = (time.process_time() - began) / len(streams)
        began = time.process_time()
        for _ in range(waits):
            ray.wait(streams, num_returns=pieces // 16, timeout=0)
        return {"asked": asked, "taken": taken, "waited, a reference": (time.process_time() - began) / waits / pieces}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.driver", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1_000, 4_000])
    parser.add_argument("--signs", type=int, nargs="*", default=[], help="batches of a shard before which a sign comes")
    parser.add_argument("--drivers", type=int, default=1, help="drivers that share a night, each with so many workers")
    parser.add_argument("--ray", action="store_true", help="measure what Ray's calls take, and nothing else")
    recording.add_option(parser)
    options = parser.parse_args()
    rows: list[tuple[int | float, ...]] = []
    heads: list[str] = []
    if options.ray:
        for name, seconds in cost_of_ray().items():
            print(f"{name:24} {1e6 * seconds:8.2f} µs")
        return
    for row, workers in enumerate(options.workers):
        with tempfile.TemporaryDirectory() as folder:
            found = together(options.drivers, workers, max(1_000, 10 * workers), options.signs, folder)
        if not row:
            heads = list(found)
            print(f"{'workers':>8} " + " ".join(f"{name:>16}" for name in heads))
        print(f"{workers:8,} " + " ".join(f"{value:16.3f}" for value in found.values()), flush=True)
        rows.append((workers, *found.values()))
    recording.record(
        options,
        parser.prog,
        group="Speed",
        title="How many workers one driver feeds",
        sample=f"simulated workers, the real driver; {options.drivers} drivers at a time",
        columns=("workers", *heads),
        rows=rows,
        mark="none",
    )


if __name__ == "__main__":
    main()

"""Scans, calibrations and evaluations without Ray: in this process, one call after the other.

A worker takes the place of the pool of actors. All else of a scan is real: listing, footers, shards and packs, the
worker, commits, the audit, the row in `scans`. Arguments and results are pickled as for an actor. Starting an actor
takes seconds of CPU, nearly all of them for imports. A piece that fails raises here; retries are the pool's.
"""

import contextlib
import functools
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from scanner.cluster import calibrate, machines, scan, scan_check, second_pass
from scanner.cluster.pieces import FinishedPack, FinishedShard, Pack, PackReport, Piece, Report
from scanner.cluster.pool import Call
from scanner.cluster.rewritten import leave_out_rewritten, read_documents
from scanner.cluster.todo import PiecePace
from scanner.cluster.worker import Worker
from scanner.errors import Refused
from scanner.input.shards import Shard
from scanner.research import runs
from scanner.scan_plan import Plan


def through_a_pipe(value: Any) -> Any:
    """The value as a process at the other end of a pipe gets it."""
    return pickle.loads(pickle.dumps(value))


class PoolOfOne:
    """A pool with the interface of `Pool` whose only worker is an object of this process."""

    under_way, waited = 0, 0.0

    def __init__(
        self,
        start: Callable[[], Worker],
        _workers: int,
        _stall_seconds: float = math.inf,
        *,
        on_devices: bool = False,
        room: Callable[[], int] | None = None,
        pace: PiecePace | None = None,
    ) -> None:
        assert not on_devices, "devices are given to actors"
        self._worker = start()

    def run(self, units: Iterable[Shard | Pack]) -> Iterator[FinishedShard | FinishedPack | None]:
        """Work through shards and packs, one after the other; shards that a pack leaves out follow by themselves."""
        try:
            self._worker.prepare()
        except Refused as refused:
            raise Refused(f"a worker cannot begin: {refused}") from None
        for unit in units:
            if isinstance(unit, Pack):
                *_, report = self._worker.scan_pack(through_a_pipe(unit.shards))
                yield from _of_pack(unit, through_a_pipe(report))
                alone = [shard for shard, counts in zip(unit.shards, report.counts, strict=True) if counts is None]
            else:
                alone = [unit]
            for shard in alone:
                yield self._finished(shard)
            yield None

    def close(self) -> None:
        """Do nothing: no actor has to end."""

    def _finished(self, shard: Shard) -> FinishedShard:
        report = self._report(Piece(shard, shard.rows.start, shard.rows.stop))
        rest = [self._report(Piece(shard, row, row + 1)) for row in report.set_aside]
        return FinishedShard(shard, [report, *rest] if report.fault is None else [], fault=report.fault)

    def _report(self, piece: Piece) -> Report:
        *_, report = self._worker.scan(through_a_pipe(piece))
        return through_a_pipe(report)


def _of_pack(pack: Pack, report: PackReport) -> Iterator[FinishedPack]:
    done = {shard: counts for shard, counts in zip(pack.shards, report.counts, strict=True) if counts is not None}
    if done:
        yield FinishedPack(done, report)


class _Actor:
    """In place of `ray.remote(…)(Worker)`: `.remote(…)` gives an object of this process."""

    def __init__(self, worker: type) -> None:
        self._worker = worker

    def remote(self, *arguments: Any) -> Any:
        """A worker."""
        return self._worker(*map(through_a_pipe, arguments))


def put_in_the_place_of_ray(patch: pytest.MonkeyPatch) -> None:
    """Have this process do all scans, calibrations and evaluations itself, whatever cluster the configuration names."""

    @contextlib.contextmanager
    def cluster(config: Any, _connect: Any = None) -> Iterator[int]:
        yield config.workers or 1

    for module in (machines, scan_check, scan, calibrate):  # modules imported later would keep the patched function
        patch.setattr(module, "cluster", cluster)
    patch.setattr(scan, "ray_begun", lambda _config: contextlib.nullcontext())
    for module in (calibrate, runs):
        patch.setattr(module, "spread", _spread)
    for module in (scan, runs):
        patch.setattr(module, "on_actors", _on_actors)
    patch.setattr(scan, "leave_out_rewritten", functools.partial(leave_out_rewritten, read_all=read_here))
    asked = SimpleNamespace(
        remote=lambda **_options: _Actor, put=lambda value: value, get_gpu_ids=list, is_initialized=lambda: False
    )
    for module in (scan, second_pass):
        patch.setattr(module, "Pool", PoolOfOne)
        patch.setattr(module, "ray", asked)
        patch.setattr(module, "worker_memory", lambda _config: None)  # a limit would bind the tests' process
    patch.setattr(pa, "set_cpu_count", lambda _count: None)  # meant for a worker's process


def read_here(plan: Plan, shards: Sequence[Shard]) -> list[pl.DataFrame]:
    """In place of `read_on_ray`: one shard after the other."""
    return [read_documents(plan, shard) for shard in shards]


def _spread(calls: Iterable[Call], _workers: int, _meanwhile: Any = None) -> Iterator[tuple[Any, Any]]:
    """In place of `pool.spread`: one call after the other."""
    for call in calls:
        yield call.name, through_a_pipe(call.function(*through_a_pipe(call.arguments)))


def _on_actors(
    kind: type, arguments: tuple[Any, ...], items: Iterable[Any], workers: int, meanwhile: Any = None, gpus: float = 0.0
) -> Iterator[tuple[Any, Any]]:
    """In place of `pool.on_actors`: one actor, if there is anything to do."""
    todo = list(items)
    actor = kind(*through_a_pipe(arguments)) if todo else None
    for item in todo:
        yield item, through_a_pipe(actor.do(through_a_pipe(item)))

"""The pass in which a model reads texts after all were scored, and tokens count by how much they surprised it.

Each shard is worked through once more, under another id, which hashes the model too. It goes through the same pool and
the same commits as before: rows of flags, texts, readings and decoys beside, and the shard's transaction in `verdicts`
last, without a row. So a pass that was killed goes on with the shards that are left, and of two drivers one stands.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import ray

from scanner.cluster.commits import Committer
from scanner.cluster.machines import fit_gpus, worker_memory
from scanner.cluster.pieces import FinishedShard
from scanner.cluster.pool import Pool
from scanner.cluster.todo import PiecePace, seconds_a_byte
from scanner.cluster.work import pack_shards
from scanner.cluster.worker import Worker
from scanner.input.shards import Shard, shard_id
from scanner.input.tables import pack_rows
from scanner.looks.levels.model_scoring import FlaggedRows, ModelScoring
from scanner.looks.levels.token_levels import reader_config
from scanner.results.current_rows import flags
from scanner.results.earlier_scans import read_earlier_scans
from scanner.results.queries import ask
from scanner.results.retention import done_in_frozen_nights
from scanner.results.transactions import Tables, find_committed, open_tables, read_whole
from scanner.scan_plan import Plan
from schemas.words import Naming

_log = logging.getLogger(__name__)


class ModelPassResult(NamedTuple):
    """Result of a pass of a model, by the digest of its files, None: none is configured.

    texts: that were read; flagged: documents that are flagged by weights and were not before; canaries: of canaries,
    beside these; unproved: flags that a slow path computed differently; left: shards that were not read; given_up:
    documents that ended each worker that read them, and keep the verdict that they have.
    """

    reader_sha256: str | None = None
    texts: int = 0
    flagged: int = 0
    canaries: int = 0
    unproved: int = 0
    left: int = 0
    given_up: int = 0

    def columns(self) -> dict[str, object]:
        """Columns of schemas.tables.SCANS."""
        counts = {"weighed": self.texts, "flagged_weighed": self.flagged, "weighing_left": self.left}
        known = self.reader_sha256 is not None
        return {"reader_sha256": self.reader_sha256, **{name: n if known else None for name, n in counts.items()}}


NO_MODEL_PASS = ModelPassResult()


def shards_of_pass(plan: Plan, shards: Sequence[Shard]) -> list[Shard]:
    """The shards of a pass, for those of a scan, under whichever keys these were scanned."""
    ranges = {(shard.file.path, shard.rows): shard for shard in shards}.values()
    return [
        replace(shard, shard_id=shard_id(shard.file, shard.rows, plan.verdict_settings), keys=()) for shard in ranges
    ]


def shards_not_read(plan: Plan, shards: Sequence[Shard], scanned: Sequence[Shard]) -> list[Shard]:
    """The shards of a pass that no scan has committed, those of tables without rows that a commit moved.

    The verdicts on such rows stand where they were, and so does what a model found there. All that the shards of the
    scan have verdicts on was not moved (scanner.cluster.rewritten).
    """
    tables = Tables(plan.results)
    done = find_committed(tables, "verdicts", [shard.shard_id for shard in shards]) | done_in_frozen_nights(
        tables, shards
    )
    left = [shard for shard in shards if shard.shard_id not in done]
    paths = {shard.file.path for shard in left if shard.file.entry is not None and shard.file.entry.parents}
    if not paths:
        return left
    ids = [shard.shard_id for shard in scanned if shard.file.path in paths]
    verdicts = read_whole(plan.results, "verdicts", pl.Series(sorted(paths))).filter(pl.col("shard_id").is_in(ids))
    rows_of = dict(verdicts.group_by("path").agg("row").collect().iter_rows())

    def without_moved(shard: Shard) -> Shard:
        moved, rows = np.ones(shard.rows.stop, np.bool_), np.array(rows_of.get(shard.file.path, []), np.int64)
        moved[rows[rows < shard.rows.stop]] = False
        return replace(shard, file=replace(shard.file, rewritten=pack_rows(moved)))

    return [without_moved(shard) if shard.file.path in paths else shard for shard in left]


def run_model_pass(
    plan: Plan,
    scan_id: str,
    began: datetime,
    left: Sequence[Shard],
    shards: Sequence[Shard],
    workers: int,
    meanwhile: Callable[[], None],
) -> ModelPassResult:
    """Have a model read the texts of the shards that are left, on a cluster that is connected, and commit its flags.

    A shard whose file cannot be read now is left for a later run.
    began: what the pass saw itself is no earlier sight of a file; shards: those of the scan, whose flags stand. What
    `meanwhile`, called about every second, raises ends the pass, with what is finished committed.

    Raises:
        Refused: a worker cannot begin.
        ScanFailed: results cannot be written.
    """
    tables = ["flag_readings", *["flag_texts"] * plan.config.evidence.keep_text]
    open_tables(plan.results, tables)
    committer = Committer(plan, scan_id, second_pass=True)
    earlier_scans = read_earlier_scans(plan, {shard.file for shard in left}, began, under_way=True)
    known = [replace(shard, first_scanned=earlier_scans.files.get(shard.file.path)) for shard in left]
    flagged, gpus = _flagged_rows(plan, shards), reader_config(plan).gpus
    pace = PiecePace(seconds_a_byte(plan) + ModelScoring(plan, flagged, on_gpu=False).reading_seconds)
    workers = min(workers, pace.pieces_of(known))
    fit, missing = fit_gpus(gpus, workers, "weights_by.gpus")
    if not fit:
        _log.warning("%s; the model reads on CPUs", missing)
        gpus = 0.0
    actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(Worker)
    shared, earlier = ray.put(plan), ray.put(earlier_scans._replace(files={}))
    scoring = ray.put(ModelScoring(plan, flagged, on_gpu=gpus > 0))
    pool = Pool(
        lambda: actor.remote(shared, scan_id, worker_memory(plan.config.cluster), earlier, scoring),
        fit or workers,
        plan.config.cluster.stall_seconds,
        on_devices=gpus > 0,
        pace=pace,
    )
    faulty = 0
    try:
        for finished in pool.run(pack_shards(known, fit or workers)):
            meanwhile()
            if isinstance(finished, FinishedShard) and finished.fault is not None:
                faulty += 1
            elif finished is not None:
                committer.add(finished)
            if committer.due():
                committer.flush()
    finally:
        pool.close()
        committer.flush()
    counts = committer.totals.counts
    read = counts.documents - counts.quarantined
    found = counts.flagged, counts.canaries, counts.unproved
    return ModelPassResult(plan.reader_sha256, read, *found, faulty, counts.quarantined)


def _flagged_rows(plan: Plan, shards: Sequence[Shard]) -> dict[str, FlaggedRows]:
    """Rows of each path that are flagged without weights."""
    of_shards = pl.col("shard_id").is_in([shard.shard_id for shard in shards])
    rows = ask(plan.results, lambda: flags(plan.results).filter(of_shards).select("path", "row", "naming").collect())
    found: dict[str, tuple[set[int], set[int]]] = {}
    for path, row, naming in rows.iter_rows():
        found.setdefault(path, (set(), set()))[naming == Naming.UNDECIDED].add(row)
    return {path: FlaggedRows(*map(frozenset, rows)) for path, rows in found.items()}

"""Run the second pass of a look: workers read shards once more, under other ids, and score them in another way."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray

from scanner.cluster.commits import Committer
from scanner.cluster.machines import fit_gpus, worker_memory
from scanner.cluster.packs import pack_shards
from scanner.cluster.pieces import FinishedShard
from scanner.cluster.pool import Pool
from scanner.cluster.todo import PiecePace, seconds_a_byte
from scanner.cluster.worker import Worker
from scanner.follow_up import CommittedScan
from scanner.looks.look import SecondPass, SecondPassTotals
from scanner.results.earlier_scans import read_earlier_scans
from scanner.results.transactions import open_tables

_log = logging.getLogger(__name__)


def read_again(scan: CommittedScan, again: SecondPass, workers: int, meanwhile: Callable[[], None]) -> SecondPassTotals:
    """Have workers read shards once more, on a connected cluster, and commit their findings.

    meanwhile: called about every second. If it raises an error, finished work is committed, and the pass ends.

    Raises:
        Refused: a worker cannot begin.
        ScanFailed: results cannot be written.
    """
    plan = again.plan
    open_tables(plan.results, again.tables)
    committer = Committer(plan, scan.scan_id, second_pass=True)
    # what the pass saw itself is no earlier sight of a file
    earlier = read_earlier_scans(plan, {shard.file for shard in again.shards}, scan.began, under_way=True)
    shards = [replace(shard, first_scanned=earlier.files.get(shard.file.path)) for shard in again.shards]
    pace = PiecePace(seconds_a_byte(plan) + again.reading_seconds)
    workers, gpus = min(workers, pace.pieces_of(shards)), again.gpus
    fit, missing = fit_gpus(gpus, workers, again.gpus_field)
    if not fit:
        _log.warning("%s; texts are read on the CPU", missing)
        gpus = 0.0
    actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(Worker)
    shared, earlier_scans = ray.put(plan), ray.put(earlier._replace(files={}))
    scoring = ray.put(again.scoring(gpus > 0))
    pool = Pool(
        lambda: actor.remote(shared, scan.scan_id, worker_memory(plan.config.cluster), earlier_scans, scoring),
        fit or workers,
        plan.config.cluster.stall_seconds,
        on_devices=gpus > 0,
        pace=pace,
    )
    faulty = 0
    try:
        for finished in pool.run(pack_shards(shards, fit or workers)):
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
    return SecondPassTotals(
        texts=counts.documents - counts.quarantined,
        flagged=counts.flagged,
        canaries=counts.canaries,
        unproved=counts.unproved,
        left=faulty,
        given_up=counts.quarantined,
    )

"""A night's work: list, cut, leave out what is committed, work through the rest, commit, and record how it ended."""

import contextlib
import importlib.metadata
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import ray

from scanner.audit.live import LiveAudit, audit_scan
from scanner.cluster.commits import Committer, Totals
from scanner.cluster.connect import cluster, worker_memory
from scanner.cluster.gpus import share_gpus
from scanner.cluster.metrics import Metrics
from scanner.cluster.pool import Pool
from scanner.cluster.second import flagged_without, second_pass
from scanner.cluster.unread import ALL_READ, Unread, what_was_not_read
from scanner.cluster.worker import Worker
from scanner.detection.existence import Sightings
from scanner.detection.scan_plan import Plan, check_plan
from scanner.detection.second_score import check_second
from scanner.errors import Refused, ScanFailed
from scanner.input.files import FileFault, InputFile, list_files
from scanner.input.footers import RowGroup
from scanner.input.inspector import Inspector
from scanner.input.shards import Shard, cut, shard_id
from scanner.interrupts import Terminated, interrupts_held, sigterm_interrupts, sigterm_noted
from scanner.results.first_seen import first_seen
from scanner.results.settlement import settle
from scanner.results.tables import append_audits, append_scan, committed, open_tables

DONE, FAILED, REFUSED, ALARM, TOO_LITTLE_READ, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143


@dataclass(frozen=True)
class Work:
    """What a scan found to do: all shards (files at fault count as one), those done before, what is left, all ids."""

    shards: int
    skipped: int
    left: tuple[Shard, ...]
    found: tuple[Shard, ...]  # those done before included, but no files at fault
    faults: tuple[tuple[InputFile, FileFault], ...]
    at_fault: tuple[str, ...] = ()  # ids of all files at fault, those done before included

    @property
    def documents(self) -> int:
        """Documents that are left."""
        return sum(shard.rows.stop - shard.rows.start for shard in self.left)

    @property
    def files(self) -> int:
        """Files that hold what is left, those at fault included."""
        return len({shard.file.path for shard in self.left} | {file.path for file, _ in self.faults})


@dataclass(frozen=True)
class Outcome:
    """How a scan ended.

    first_commit: seconds from its start, None when there was none; audit: None when interrupted; second_scores: rows;
    again: files at fault for now, to be tried again; unread: what it did not read, unless it was interrupted; stopped:
    SIGTERM or Ctrl-C came when its row was about to be written, which changes nothing of the scan any more.
    """

    scan_id: str
    exit_code: int
    work: Work
    totals: Totals
    seconds: float
    first_commit: float | None
    audit: LiveAudit | None
    second_scores: int = 0
    again: frozenset[InputFile] = frozenset()
    unread: Unread = ALL_READ
    stopped: bool = False


def run_scan(
    plan: Plan,
    watch: Callable[[Work, Totals], None],
    worker: type = Worker,
    files: Sequence[InputFile] | None = None,
) -> Outcome:
    """Scan what is not committed yet, on Ray. Ctrl-C and SIGTERM end it early, with what is finished committed.

    Args:
        plan: what to do.
        watch: is called before the work and after every commit.
        worker: class of the actors.
        files: of the input, those that are scanned, by someone who waits for more; None for all, which must not be
            nothing.

    Raises:
        Refused: something cannot be right; no document was scanned.
        ScanFailed: the work had to stop; what was committed stays.
    """
    with sigterm_noted() as end_if_told, sigterm_interrupts():
        return _run(plan, watch, worker, files, end_if_told)


def _run(
    plan: Plan,
    watch: Callable[[Work, Totals], None],
    worker: type,
    files: Sequence[InputFile] | None,
    end_if_told: Callable[[], None],
) -> Outcome:
    began, started_at = time.monotonic(), datetime.now(UTC)
    scan_id = f"{started_at:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
    committer, work = Committer(plan, scan_id), Work(0, 0, (), (), ())
    first_commit: float | None = None
    second_scores = 0
    metrics = Metrics()
    audit: LiveAudit | None = None
    recorded = stopped = False
    unread, passed_over, waiting = ALL_READ, list[str](), files is not None

    def commit_and_go_on() -> None:
        end_if_told()
        if committer.due():
            commit_and_tell()

    def commit_and_tell() -> None:
        nonlocal first_commit
        committer.flush()
        if first_commit is None and committer.totals.shards:
            first_commit = time.monotonic() - began
        tell_metrics()
        watch(work, committer.totals)

    def tell_metrics() -> None:
        metrics.tell(work.shards - work.skipped, committer.totals, audit=audit.state if audit else "not judged")

    def judge() -> None:
        nonlocal audit
        audit = audit_scan(plan, scan_id, [shard.shard_id for shard in work.found])
        append_audits(plan.results, audit.rows)
        tell_metrics()

    def record() -> None:
        nonlocal recorded, stopped
        try:
            with interrupts_held():
                append_scan(plan.results, _record(plan, scan_id, started_at, work, committer.totals, audit, exit_code))
                recorded = True
        except KeyboardInterrupt:
            stopped = True
            if not recorded:
                raise

    try:
        check_plan(plan)
        check_second(plan)
        files = list_files(plan.locations, passed_over=passed_over.append) if files is None else files
        if plan.config.cluster.require_gpus:  # before anything is written
            with sigterm_interrupts(), cluster(plan.config.cluster) as workers, sigterm_interrupts():
                share_gpus(plan.config.cluster, workers)
        inspected = _inspect(plan, files)
        if not waiting:  # what lands alone may be the exception
            _refuse_wrong_columns(inspected)
        open_tables(plan.results)
        work = _find_work(plan, inspected)
        watch(work, committer.totals)
        for file, fault in work.faults:
            committer.add_fault(file, fault)
        if work.left:
            # around Ray's start, and again after it: Ray replaces the handler
            with sigterm_interrupts(), cluster(plan.config.cluster) as workers, sigterm_interrupts():
                tell_metrics()
                earlier = first_seen(plan, {shard.file for shard in work.left}, started_at)
                workers = min(workers, len(work.left))
                _work_through(plan, scan_id, work, earlier, workers, worker, committer, commit_and_go_on)
                commit_and_tell()  # while the metrics of Ray can still take it
                judge()
        else:
            commit_and_tell()
            judge()
        second_scores = _score_again(plan, scan_id, work)
        unread = what_was_not_read(plan, scan_id, work, committer.totals, len(files), passed_over)
        empty = bool(unread.nothing) and not unread.allowed and not waiting
        exit_code = ALARM if audit and audit.state == "alarm" else _judge(plan, work, committer.totals, empty)
        record()
    except KeyboardInterrupt as interrupt:
        open_tables(plan.results)  # it may have come while the input was listed
        commit_and_tell()
        exit_code = TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
        record()
    except BaseException as error:
        if isinstance(error, Refused) and not work.shards:
            raise  # nothing was done
        exit_code, audit = REFUSED if isinstance(error, Refused) else FAILED, None
        with contextlib.suppress(Exception):  # the error itself is what must be seen
            record()
        raise
    seconds, again = time.monotonic() - began, frozenset(committer.again)
    totals = committer.totals
    return Outcome(
        scan_id, exit_code, work, totals, seconds, first_commit, audit, second_scores, again, unread, stopped
    )


def _work_through(
    plan: Plan,
    scan_id: str,
    work: Work,
    earlier: Sightings,
    workers: int,
    worker: type,
    committer: Committer,
    go_on: Callable[[], None],
) -> None:
    workers, gpus = share_gpus(plan.config.cluster, workers)
    actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(worker)
    shared, known = ray.put(plan), ray.put(earlier._replace(files={}))  # files come with their shards
    memory = worker_memory(plan.config.cluster)
    stall_seconds = plan.config.cluster.stall_seconds
    pool = Pool(lambda: actor.remote(shared, scan_id, memory, known), workers, stall_seconds, on_devices=gpus > 0)
    try:
        for finished in pool.run(replace(shard, seen=earlier.files.get(shard.file.path)) for shard in work.left):
            if finished is not None:
                committer.add(finished)
            go_on()
    finally:
        pool.close()


def _score_again(plan: Plan, scan_id: str, work: Work) -> int:
    """Second scores of flagged documents that have none, if they are configured. Returns how many were committed."""
    try:
        flagged = flagged_without(plan, work.found) if plan.second is not None else {}
        if not flagged:
            return 0
        with sigterm_interrupts(), cluster(plan.config.cluster), sigterm_interrupts():
            return second_pass(plan, scan_id, work.found, flagged)
    except Refused as refused:
        raise ScanFailed(str(refused)) from None  # verdicts are committed


class _Inspected(NamedTuple):
    """What the footers say: the shards of sound files, how many these files are, and the others by their whole ids."""

    shards: list[Shard]
    sound: int
    faults: dict[str, tuple[InputFile, FileFault]]


def _inspect(plan: Plan, files: Sequence[InputFile]) -> _Inspected:
    shards: list[Shard] = []
    faults: dict[str, tuple[InputFile, FileFault]] = {}
    with Inspector() as inspector:
        for file, found in inspector.inspect_all(files, plan.columns):
            try:
                shards += _shards_of(file, found, plan.decides)
            except FileFault as fault:
                faults[shard_id(file, None, plan.decides)] = (file, fault)
    return _Inspected(shards, len(files) - len(faults), faults)


def _refuse_wrong_columns(inspected: _Inspected) -> None:
    """Refuse input of which every file lacks a configured column, but for those of which nothing is known."""
    faults = inspected.faults.values()
    lacking = [(file, fault) for file, fault in faults if fault.reason == "missing_column"]
    if inspected.sound or not lacking or any(fault.reason == "wrong_type" for _, fault in faults):
        return
    file, fault = lacking[0]
    raise Refused(
        f"[input]: no file has all of the configured columns; of {file.path}: {fault.detail}; name columns that are "
        "there, or leave out those of ids, accounts and times"
    )


def _find_work(plan: Plan, inspected: _Inspected) -> Work:
    shards, _, faults = inspected
    done = committed(plan.results, "verdicts", [*(shard.shard_id for shard in shards), *faults])
    settle(plan.results, done)  # what a driver left that died over these
    return Work(
        shards=len(shards) + len(faults),
        skipped=len(done),
        left=tuple(shard for shard in shards if shard.shard_id not in done),
        found=tuple(shards),
        faults=tuple(fault for whole, fault in faults.items() if whole not in done),
        at_fault=tuple(faults),
    )


def _shards_of(file: InputFile, found: list[RowGroup] | FileFault, decides: str) -> list[Shard]:
    """Raises FileFault when that was found, or when the file is too large to be cut."""
    if isinstance(found, FileFault):
        raise found
    return [Shard(shard_id(file, rows, decides), file, rows) for rows in cut(found)]


def _judge(plan: Plan, work: Work, totals: Totals, empty: bool) -> int:
    """Exit code: was nothing read, or is more in quarantine than may be, of the documents or of the files looked at?"""
    most = plan.config.max_quarantined_share
    of_documents = totals.counts.quarantined / max(totals.counts.documents, 1)
    of_files = totals.files_quarantined / max(work.files, 1)
    too_much = most is not None and max(of_documents, of_files) > most
    return TOO_LITTLE_READ if empty or too_much else DONE


def _record(
    plan: Plan,
    scan_id: str,
    started_at: datetime,
    work: Work,
    totals: Totals,
    audit: LiveAudit | None,
    exit_code: int,
) -> dict[str, object]:
    return {
        "scan_id": scan_id,
        "started_at": started_at,
        "finished_at": datetime.now(UTC),
        "version": importlib.metadata.version("brickscan"),
        "config_sha256": plan.config_sha256,
        "registry_sha256": plan.registry_sha256,
        "keys": plan.keys_on_record,
        "labels": plan.labels_on_record,
        "dedup": plan.config.dedup,
        "min_scored": plan.config.min_scored,
        "false_positive_rate": plan.config.false_positive_rate,
        "shards": work.shards,
        "shards_skipped": work.skipped,
        "documents": totals.counts.documents,
        "too_short": totals.counts.too_short,
        "quarantined": totals.counts.quarantined,
        "files_quarantined": totals.files_quarantined,
        "flagged": totals.counts.flagged,
        "audit": audit.state if audit else "not judged",
        "audited_scans": audit.traffic.scans if audit else [scan_id],
        "exit_code": exit_code,
        "scored_in_part": totals.counts.scored_in_part,
        "values_not_read": totals.counts.values_not_read,
    }

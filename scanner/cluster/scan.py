"""Drive a scan: list the input, find the work, have it done, commit, judge, and record how the scan ended.

One table defines the endings: cause, exit code, and whether `scans` gets a row.
"""

import contextlib
import importlib.metadata
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, NamedTuple

import ray

from scanner.cluster.commits import Committer, Metrics, ScanTotals, costs
from scanner.cluster.machines import cluster, fit_gpus, ray_begun, share_gpus, worker_count, worker_memory
from scanner.cluster.packs import pack_shards
from scanner.cluster.pool import Pool, on_actors
from scanner.cluster.rewritten import leave_out_rewritten
from scanner.cluster.second_pass import read_again
from scanner.cluster.todo import PiecePace, seconds_a_byte
from scanner.cluster.unread_input import ALL_READ, UnreadInput, find_unread, reasons_of
from scanner.cluster.work import ScanWork, find_work, inspect_input, refuse_wrong_columns, without_expired
from scanner.cluster.worker import Worker
from scanner.comparing import ComparedNight, compare_nights
from scanner.controls.scan_audit import ScanAudit, audit_scan
from scanner.detection.attribution import EarlierScans
from scanner.detection.open_plan import check_plan
from scanner.errors import BrickscanError, Refused, ScanFailed, TableError
from scanner.filtering import FILTERS, fix_filter
from scanner.follow_up import Actor, CommittedScan, Part, Result
from scanner.input.files import InputFile, empty_in_a_store, list_files
from scanner.input.shards import DriverShare, Shard
from scanner.input.tables import Snapshot
from scanner.interrupts import Terminated, interrupts_held, interrupts_noted, original_interrupt, sigterm_interrupts
from scanner.key_support import UnsupportedKey
from scanner.looks.look import NO_RESULT, LookResult, LookRun, SecondPass, SecondPassTotals
from scanner.looks.looks import LOOKS, check_looks
from scanner.registry import NO_RECORD, head_of
from scanner.registry.leases import SCAN, HeldLease, NoLease, leased
from scanner.registry.shown_seeds import shown_now
from scanner.results.earlier_scans import read_earlier_scans
from scanner.results.registry_record import (
    record_verification,
    refuse_changed_since,
    refuse_lost_events,
    verify_registry,
)
from scanner.results.retention import drop_older, freeze
from scanner.results.scan_list import refuse_early_clock
from scanner.results.transactions import append_audits, append_scan, open_tables, refuse_changed_tables
from scanner.results.upkeep import merge_bookkeeping
from scanner.scan_plan import Plan
from scanner.signing import keep_signatures, sign_with
from schemas.words import AuditState

_log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Exit codes of every job."""

    DONE = 0  # documents in quarantine included
    FAILED = 1  # everything committed stays, and a second run continues from there
    REFUSED = 2  # nothing was done; the sentence names file, field and value
    ALARM = 3  # an audit says that p-values are too small, or the proof of a flag differs
    TOO_LITTLE_READ = 4  # no document was read, or a larger share than configured is in quarantine
    CANARIES_LOST = 5  # texts that are known to be marked were not found as planned
    INTERRUPTED = 130  # by Ctrl-C, after finished work was committed
    TERMINATED = 143  # by SIGTERM, likewise


class Ending(NamedTuple):
    """An ending of a scan.

    commits: finished work is committed first, and the scan ends without an error.
    """

    exit_code: ExitCode
    recorded: bool
    commits: bool = False


_RAISED: tuple[tuple[type[BaseException], Ending], ...] = (
    (Terminated, Ending(ExitCode.TERMINATED, recorded=True, commits=True)),
    (KeyboardInterrupt, Ending(ExitCode.INTERRUPTED, recorded=True, commits=True)),
    (TableError, Ending(ExitCode.REFUSED, recorded=False)),
    (Refused, Ending(ExitCode.REFUSED, recorded=False)),  # recorded if work had been found
    (BaseException, Ending(ExitCode.FAILED, recorded=True)),
)


def ending_of(error: BaseException, *, work_was_found: bool) -> Ending:
    """Return the ending that an exception causes: the first row of the table that fits."""
    ending = next(ending for kind, ending in _RAISED if isinstance(error, kind))
    return ending._replace(recorded=ending.recorded or work_was_found)


WORST_FIRST = (ExitCode.ALARM, ExitCode.CANARIES_LOST, ExitCode.TOO_LITTLE_READ, ExitCode.DONE)
"""Exit codes of scans that ran to their end, worst first."""


def exit_code_of(audit: AuditState | None, *, too_little_read: bool) -> ExitCode:
    """Return the exit code of a scan that ran to its end, which always has a row."""
    of_state = {AuditState.ALARM: ExitCode.ALARM, AuditState.CANARIES_LOST: ExitCode.CANARIES_LOST}
    read = ExitCode.TOO_LITTLE_READ if too_little_read else ExitCode.DONE
    return read if audit is None else worse_of(of_state.get(audit, ExitCode.DONE), read)


def worse_of(one: ExitCode, other: ExitCode) -> ExitCode:
    """Return the worse ending of two scans that ran to their end."""
    return min(one, other, key=WORST_FIRST.index)


class ScanStart(NamedTuple):
    """A scan at its beginning.

    users_head: head of the users' hash chain.
    share: this driver's share of the input. None: all of it.
    """

    scan_id: str
    started_at: datetime
    users_head: str | None
    share: DriverShare | None


def snapshots_of(work: ScanWork) -> list[Snapshot]:
    """Return the tables of an input as they were read, each at its newest version if the input was listed twice."""
    entries = {shard.file.entry.snapshot for shard in work.shards if shard.file.entry is not None}
    newest = {snapshot.table: snapshot for snapshot in sorted(entries)}
    return [*newest.values()]


def scan_row(
    plan: Plan,
    begun: ScanStart,
    work: ScanWork,
    totals: ScanTotals,
    looks: Iterable[LookResult],
    audit: ScanAudit | None,
    *,
    registry_changed: bool = False,
) -> dict[str, object]:
    """Return the row of schemas.tables.SCANS, without `finished_at` and `exit_code`.

    audit: None: the scan was not judged.
    registry_changed: whether another registry may have named the users of its flags.
    """
    return {
        "scan_id": begun.scan_id,
        "started_at": begun.started_at,
        "version": importlib.metadata.version("brickscan"),
        "config_sha256": plan.config_sha256,
        "registry_sha256": plan.registry_sha256,
        "keys": [key | _positions_of(totals, str(key["key_id"])) for key in plan.keys_on_record],
        "keys_tested": plan.keys_tested,
        "dedup": plan.config.dedup,
        "min_scored": plan.config.min_scored,
        "false_positive_rate": plan.config.false_positive_rate,
        "misnaming_rate": plan.config.misnaming_rate,
        "shards": work.shard_count,
        "shards_skipped": work.skipped,
        "documents": totals.counts.documents,
        "too_short": totals.counts.too_short,
        "quarantined": totals.counts.quarantined,
        "files_quarantined": totals.files_quarantined,
        "flagged": totals.counts.flagged,
        "audit": AuditState.ALARM if registry_changed else audit.state if audit else AuditState.NOT_JUDGED,
        "audited_scans": audit.traffic.scans if audit else [begun.scan_id],
        "scored_in_part": totals.counts.scored_in_part,
        "values_not_read": totals.counts.values_not_read,
        "filter_sha256": plan.filter_sha256,
        "night": (plan.date or begun.started_at.date()).isoformat(),
        "trial": plan.trial,
        "keys_left_out": [key.key_id for key in plan.unsupported_keys],
        "night_stated": None,
        "filtered": totals.counts.filtered,
        "users_head": begun.users_head,
        "part": None if begun.share is None else str(begun.share),
        "snapshots": [table._asdict() for table in snapshots_of(work)],
        **costs(totals),
        **{name: value for look in looks for name, value in look.columns.items()},
    }


def _positions_of(totals: ScanTotals, key_id: str) -> dict[str, object]:
    """Return the fields of `keys` of SCANS with a key's scored and shown positions. Null: none were shown."""
    of_keys = totals.counts.of_keys
    columns = {"positions": "scored", "positions_shown": "shown"}
    return {name: of_keys.get((key_id, kind)) for name, kind in columns.items()}


@dataclass(frozen=True)
class ScanOutcome:
    """Result of a scan.

    first_commit: seconds from its start. None: there was none.
    audit: None if the scan was interrupted.
    to_retry: files that could not be read for now, to be tried again.
    unread: the part of the input that was not read. If the scan was interrupted, only the reasons.
    stopped: SIGTERM or Ctrl-C came just before the row was written, so it changed nothing any more.
    dropped: number of rows dropped because their nights were older than `retain`.
    share: its share of the input. None: all of it.
    unsupported_keys: keys under which no text was scored.
    trial: whether the registry was made for a trial.
    looks: the result of each look after all documents were committed, by its name.
    compared: comparison of its night with earlier nights. Empty: there was none.
    """

    scan_id: str
    exit_code: ExitCode
    work: ScanWork
    totals: ScanTotals
    seconds: float
    first_commit: float | None
    audit: ScanAudit | None
    to_retry: frozenset[InputFile] = frozenset()
    unread: UnreadInput = ALL_READ
    stopped: bool = False
    dropped: int = 0
    share: DriverShare | None = None
    unsupported_keys: tuple[UnsupportedKey, ...] = ()
    trial: bool = False
    looks: Mapping[str, LookResult] = field(default_factory=lambda: {look.name: NO_RESULT for look in LOOKS})
    compared: Sequence[ComparedNight] = ()


def run_scan(
    plan: Plan,
    watch: Callable[[ScanWork, ScanTotals], None],
    worker: type = Worker,
    files: Sequence[InputFile] | None = None,
    share: DriverShare | None = None,
    wait: Callable[[str], None] = lambda step: None,
) -> ScanOutcome:
    """Scan everything that is not committed yet, on Ray. Ctrl-C and SIGTERM end it early, and commit finished work.

    Args:
        plan: the scan's plan.
        watch: called before the work, after every commit, and about every second in between.
        worker: class of the actors.
        files: files of the input to scan, for a caller that waits for more files. None: all files, of which there must
            be some.
        share: the share of the input to scan, beside other drivers. It may be empty. Accounts, canaries that are due
            and old nights are left to the scan of all files that follows. None: all of it.
        wait: called with the name of each step before the work, as it begins.

    Raises:
        Refused: the configuration or input cannot be right, and no document was scanned.
        TableError: a table of results is not as it was signed.
        ScanFailed: the work had to stop. Everything committed stays.
    """
    with interrupts_noted() as end_on_signal, sigterm_interrupts():
        return _Scan(plan, watch, worker, end_on_signal, share, wait).run(files)


class _Scan:
    """One scan: its state and its steps.

    end_on_signal raises the interrupt that came. The other arguments are those of run_scan.
    """

    def __init__(
        self,
        plan: Plan,
        watch: Callable[[ScanWork, ScanTotals], None],
        worker: type,
        end_on_signal: Callable[[], None],
        share: DriverShare | None,
        wait: Callable[[str], None],
    ) -> None:
        self._plan, self._watch, self._worker, self._end_on_signal = plan, watch, worker, end_on_signal
        self._share, self._wait = share, wait
        self._began, self._started_at = time.monotonic(), datetime.now(UTC)
        self._scan_id = f"{self._started_at:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
        self._committer, self._metrics = Committer(plan, self._scan_id), Metrics()
        self._work = ScanWork(0, 0, (), (), ())
        self._ray_runs = contextlib.ExitStack()
        self._connect: Callable[[], None] | None = None  # connects to Ray; None: Ray does not start yet
        self._users_head: str | None = None
        self._verified = NO_RECORD
        self._first_commit: float | None = None
        self._audit: ScanAudit | None = None
        self._looks: dict[str, LookRun] = {}  # by the name of their look
        self._unread = ALL_READ
        self._compared: Sequence[ComparedNight] = ()
        self._dropped, self._recorded, self._stopped, self._registry_changed = 0, False, False, False
        self._reading = contextlib.ExitStack()
        self._lease: HeldLease | NoLease = NoLease()

    def run(self, files: Sequence[InputFile] | None) -> ScanOutcome:
        with self._reading:
            return self._run(files)

    def _run(self, files: Sequence[InputFile] | None) -> ScanOutcome:
        try:
            exit_code = self._scan(files)
            self._record(exit_code)
        except BaseException as error:
            ending = ending_of(
                original_interrupt(error, self._end_on_signal), work_was_found=bool(self._work.shard_count)
            )
            if not ending.commits:
                if ending.recorded:
                    self._audit = None
                    with contextlib.suppress(Exception):  # the original error must be shown, not this one
                        self._record(ending.exit_code)
                self._keep_signatures()  # needed even if the row could not be written, for example on a full disk
                raise
            exit_code = ending.exit_code
            open_tables(self._plan.results)  # again: another process may have made a table while the input was listed
            self._commit()
            self._record(exit_code)
            self._unread = UnreadInput(reasons=reasons_of(self._plan, self._scan_id))
        return self._outcome(exit_code)

    def _scan(self, files: Sequence[InputFile] | None) -> ExitCode:
        plan, passed_over = self._plan, list[str]()
        strict, whole = files is None, files is None and self._share is None

        # 1. List the input, or take the files that landed, or this driver's share of them.
        self._wait("listing the input")
        if files is None:
            missing = empty_in_a_store if plan.config.allow_empty else None
            files = list_files(plan.locations, missing, passed_over.append, reading=plan.table_reading)
        if self._share is not None:
            files = [file for file in files if self._share.holds(file)]

        with self._ray_runs:
            # 2. Open keys, tokenizers, users, looks and the filter, and refuse what cannot be.
            if files:  # Ray starts in the background while keys are opened and footers are read
                self._connect = self._ray_runs.enter_context(ray_begun(plan.config.cluster))
            self._wait("opening keys, tokenizers and users")
            check_plan(plan)
            sign_with(plan.results, plan.registry)
            refuse_changed_tables(plan.results)
            refuse_early_clock(plan.results)
            self._verified = verify_registry(plan.registry, plan.results)
            self._users_head = head_of(plan.registry)
            check_looks(plan.config)
            follow_ups = {look.name: look.follow_up(plan) for look in LOOKS}
            self._looks = {name: each for name, each in follow_ups.items() if each is not None}
            can_be_shown = any(key.record is not None for key in plan.keys)
            self._lease = self._reading.enter_context(leased(plan.registry, SCAN, needed=can_be_shown))
            plan = replace(plan, shown=shown_now(plan.registry, plan.keys))
            refuse_lost_events(plan.results, plan.registry, plan.keys)  # after, in case an older registry came between
            self._plan = plan = fix_filter(plan, self._scan_id)
            self._lease.read({key_id: event.number for key_id, event in plan.shown})
            self._committer = Committer(plan, self._scan_id)

            # 3. Find the shards that no earlier scan committed, score them, and commit them as they come.
            self._find_work(files, strict=strict)
            if self._work.left:
                self._wait("starting Ray and its workers, which open the keys")
                workers = self._ray_runs.enter_context(cluster(plan.config.cluster, self._connect))
                self._report_metrics()
                self._work_through(workers)
            self._commit()  # before the connection to Ray ends, so its metrics still receive it

            # 4. Run the looks that follow a scan, then judge p-values by every control.
            keep_signatures(plan.results)  # the looks' workers check the tables they read against kept signatures
            self._run_looks(whole=whole)
            self._judge(whole=whole)
            looked = any(look.result.counts for look in self._looks.values())
            if self._committer.totals.counts.flagged or looked:  # users may have been named
                try:
                    refuse_changed_since(plan.registry, plan.results, self._scan_id, self._verified)
                except ScanFailed:
                    self._registry_changed = True
                    raise
            refuse_changed_tables(plan.results)

            # 5. Compare the night with earlier ones, learn the filter for later ones, and drop nights that are too old.
            if whole:
                self._compare()
                self._learn()  # before old nights are dropped, because that asks for flags and may fail
        if self._share is None:
            self._drop_old_nights()

        # 6. Report the input that was not read, and decide how the scan ends.
        self._unread = find_unread(plan, self._scan_id, self._work, self._committer.totals, len(files), passed_over)
        if self._share is not None:
            self._unread = replace(self._unread, nothing="")  # other drivers' shares may contain documents
        empty = whole and bool(self._unread.nothing) and not self._unread.allowed
        state = self._audit.state if self._audit else None
        return exit_code_of(state, too_little_read=empty or bool(self._unread.too_much))

    def _find_work(self, files: Sequence[InputFile], *, strict: bool) -> None:
        """Find the work.

        strict: refuse it if all files lack a column, or if one is too old. If not strict, the files have just landed.
        """
        plan = self._plan
        if plan.config.cluster.require_gpus:
            with cluster(plan.config.cluster, self._connect) as workers:
                share_gpus(plan.config.cluster, workers)
        self._wait(f"reading file footers: {len(files):,}, and which shards are already done")
        inspected = inspect_input(plan, files)
        if strict:  # a file that lands by itself may be the exception
            refuse_wrong_columns(inspected)
        open_tables(plan.results)
        record_verification(plan.results, self._scan_id, self._verified)
        if plan.config.evidence.keep_text:
            open_tables(plan.results, ["flag_texts"])
        open_tables(plan.results, [table for look in LOOKS for table in look.tables(plan)])
        merge_bookkeeping(plan.results)
        freeze(plan.results, self._started_at)
        # an old file among the new ones must not keep these waiting
        self._work = without_expired(plan, find_work(plan, inspected), refuse=strict)
        self._watch(self._work, self._committer.totals)
        for file, fault in self._work.faults:
            self._committer.add_fault(file, fault)

    def _work_through(self, workers: int) -> None:
        """Have the shards scanned, and commit them as they come. Shards that all keys look at come first."""
        plan = self._plan
        earlier = read_earlier_scans(plan, {shard.file for shard in self._work.left}, self._started_at)
        live = frozenset(shard.file.path for shard in self._work.shards)
        for key_ids, shards in self._work.by_keys.items():
            under = plan.under(key_ids)
            known = [replace(shard, first_scanned=earlier.files.get(shard.file.path)) for shard in shards]
            # the files are recorded with their shards
            self._have_scanned(under, leave_out_rewritten(under, known, live), earlier._replace(files={}), workers)

    def _have_scanned(self, plan: Plan, shards: Sequence[Shard], earlier: EarlierScans, workers: int) -> None:
        pace = PiecePace(seconds_a_byte(plan))
        pieces = pace.pieces_of(shards)
        workers, gpus = share_gpus(plan.config.cluster, min(workers, pieces))
        actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(self._worker)
        documents = sum(shard.rows.documents for shard in self._work.shards)
        shared = ray.put(replace(plan, documents=documents))
        earlier_scans = ray.put(earlier)
        memory, stall_seconds = worker_memory(plan.config.cluster), plan.config.cluster.stall_seconds
        pool = Pool(
            lambda: actor.remote(shared, self._scan_id, memory, earlier_scans),
            workers,
            stall_seconds,
            on_devices=gpus > 0,
            room=lambda: min(fit_gpus(gpus, worker_count(plan.config.cluster), "")[0], pieces),
            pace=pace,
        )
        before = self._committer.totals.waited
        waiting = 0  # documents that are finished but not committed
        try:
            for finished in pool.run(pack_shards(shards, workers)):
                if finished is not None:
                    self._committer.add(finished)
                    waiting += finished.documents
                self._go_on()
                self._committer.totals = replace(self._committer.totals, waited=before + pool.waited)
                if self._committer.due():
                    self._commit()
                    waiting = 0
                elif finished is None:
                    self._watch(self._work, replace(self._committer.totals, under_way=waiting + pool.under_way))
        finally:
            pool.close()

    def _go_on(self) -> None:
        """Raise the interrupt that came, or ScanFailed if the lease on seeds that claims showed has run out."""
        self._end_on_signal()
        self._lease.confirm()

    def _commit(self) -> None:
        self._lease.confirm()
        self._committer.flush()
        if self._first_commit is None and self._committer.totals.shards:
            self._first_commit = time.monotonic() - self._began
        self._report_metrics()
        self._watch(self._work, self._committer.totals)

    def _report_metrics(self) -> None:
        state = self._audit.state if self._audit else AuditState.NOT_JUDGED
        moved = [figure for night in self._compared for figure in night.figures]
        self._metrics.report(
            self._work.shard_count - self._work.skipped, self._committer.totals, audit=state, moved=moved
        )

    def _run_looks(self, *, whole: bool) -> None:
        """Run each look's step after a scan, now that all documents are committed."""
        plan = replace(self._plan, documents=sum(shard.rows.documents for shard in self._work.shards))
        scan = CommittedScan(plan, self._scan_id, self._work.shards_under_any_key, self._started_at, whole)
        for look in self._looks.values():
            look.run(scan, self._on_actors, self._read_again)

    def _judge(self, *, whole: bool) -> None:
        """Audit the scan.

        whole: whether it covers all files of the input. Only then all canaries are in it.
        """
        ids, earlier = ([shard.shard_id for shard in shards] for shards in (self._work.shards, self._work.earlier))
        looks = [look.result for look in self._looks.values()]
        audited, unproved = [name for look in looks for name in look.audited], sum(look.unproved for look in looks)
        self._audit = audit_scan(self._plan, self._scan_id, ids, earlier, audited, unproved, whole=whole)
        append_audits(self._plan.results, self._audit.rows)
        self._report_metrics()

    def _compare(self) -> None:
        """Compare the night with earlier nights. The result never changes how the scan ends."""
        night = self._plan.date or self._started_at.date()
        keys = {key.key_id for key in self._plan.keys}
        try:
            self._compared = compare_nights(self._plan.results, [night], {night: keys})
        except BrickscanError as error:
            _log.warning("the night is not compared with earlier ones: %s", error)
        self._report_metrics()

    def _learn(self) -> None:
        """Have the filter learn from a scan of the whole input."""
        scan = CommittedScan(self._plan, self._scan_id, self._work.shards_under_any_key, self._started_at, whole=True)
        for ngram_filter in FILTERS:
            ngram_filter.learn(scan, self._on_actors)

    def _on_actors(
        self, actor: type[Actor[Part, Result]], arguments: tuple[Any, ...], parts: Iterable[Part]
    ) -> Iterator[tuple[Part, Result]]:
        """See scanner.follow_up.OnActors."""
        if left := [*parts]:  # without parts, Ray need not start
            workers = self._ray_runs.enter_context(cluster(self._plan.config.cluster, self._connect))
            with contextlib.closing(on_actors(actor, arguments, left, workers, self._go_on)) as finished:
                for item in finished:
                    self._go_on()  # with many actors, some part finishes in every second, so nothing else would check
                    yield item

    def _read_again(self, scan: CommittedScan, again: SecondPass) -> SecondPassTotals:
        """See scanner.looks.look.ReadAgain."""
        self._wait("starting workers that read texts a second time")
        workers = self._ray_runs.enter_context(cluster(self._plan.config.cluster, self._connect))
        return read_again(scan, again, workers, self._go_on)

    def _drop_old_nights(self) -> None:
        plan, days = self._plan, self._plan.config.retain_days
        if days is not None:
            keep_flags, config = plan.config.retain_flags, plan.config_sha256
            self._dropped = drop_older(plan.results, days, keep_flags=keep_flags, config_sha256=config)

    def _record(self, exit_code: ExitCode) -> None:
        """Write the scan's row, whole, once. An interrupt during the write does not change it."""
        begun = ScanStart(self._scan_id, self._started_at, self._users_head, self._share)
        looks = [look.result for look in self._looks.values()]
        about = self._plan, begun, self._work, self._committer.totals, looks, self._audit
        row = scan_row(*about, registry_changed=self._registry_changed)
        try:
            with interrupts_held():
                ended = {"finished_at": datetime.now(UTC), "exit_code": int(exit_code)}
                append_scan(self._plan.results, row | ended)
                self._recorded = True
                self._keep_signatures()
        except KeyboardInterrupt:
            self._stopped = True
            if not self._recorded:
                raise

    def _keep_signatures(self) -> None:
        if (why := keep_signatures(self._plan.results)) is not None:
            _log.warning("%s", why)

    def _outcome(self, exit_code: ExitCode) -> ScanOutcome:
        names = [look.name for look in LOOKS]
        return ScanOutcome(
            self._scan_id,
            exit_code,
            self._work,
            self._committer.totals,
            time.monotonic() - self._began,
            self._first_commit,
            self._audit,
            frozenset(self._committer.to_retry),
            self._unread,
            self._stopped,
            self._dropped,
            self._share,
            self._plan.unsupported_keys,
            self._plan.trial,
            {name: self._looks[name].result if name in self._looks else NO_RESULT for name in names},
            self._compared,
        )

"""Commit finished shards to the tables, a few at a time and verdicts last, then count them and their cost.

Only the driver reports metrics to Prometheus, through Ray's metrics, whose names begin with `ray_`. It does so after
each commit. The numbers therefore agree with the tables, and workers spend no time on them. Labels are `stage`, `state`
and `figure`, with a few values each, and Ray's own. A key, user, path or text is never a label.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import ray
from ray.util.metrics import Counter, Gauge

from scanner.cluster.pieces import NO_DOCUMENTS, NO_TIME, DocumentCounts, Files, FinishedPack, FinishedShard, Seconds
from scanner.detection.attribution import BatchOrigin
from scanner.detection.rows import quarantine_rows
from scanner.errors import FileFault
from scanner.input.documents import UNKNOWN_IDENTITY
from scanner.input.files import InputFile
from scanner.input.shards import Shard, key_set, shard_id
from scanner.results.current_rows import SIDE_TABLES, enter_side_rows, run_number, settle
from scanner.results.transactions import TableEntry, Tables, commit, find_committed
from scanner.scan_plan import Plan
from scanner.signing import keep_signatures
from scanner.storage.data_files import write_file
from scanner.storage.toml import canonical
from schemas.tables import SHARDS
from schemas.words import AuditState


class Units(NamedTuple):
    """Units of work that came back, each a shard or a pack of small shards, by their cost.

    number: number of units.
    seconds: core-seconds of all units.
    slowest: core-seconds of the slowest unit.
    shard: the slowest shard, or the first of the slowest pack. None: nothing came back.
    """

    number: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    shard: Shard | None = None

    def plus(self, shard: Shard, seconds: Seconds) -> "Units":
        """Return these units with one more."""
        took, number, total = seconds.of_workers, self.number + 1, self.seconds + seconds.of_workers
        if self.shard is not None and took <= self.slowest:
            return self._replace(number=number, seconds=total)
        return Units(number, total, took, shard)


NO_UNITS = Units()


def costs(totals: "ScanTotals") -> dict[str, object]:
    """Return the columns of schemas.tables.SCANS on the cost of a scan. Without any work, some of them are None."""
    spent, units, hours = totals.seconds, totals.units, totals.seconds.of_workers / 3600
    counts, shard = totals.counts, totals.units.shard
    return {
        "text_bytes": counts.text_bytes,
        "core_seconds": spent._asdict(),
        "documents_a_core_hour": counts.documents / hours if hours else None,
        "bytes_a_core_hour": counts.text_bytes / hours if hours else None,
        "slowest_shard": shard and shard.shard_id,
        "slowest_path": shard and shard.file.path,
        "slowest_row": shard and shard.rows.start,
        "slowest_seconds": units.slowest if shard else None,
        "skew": units.slowest * units.number / units.seconds if units.seconds else None,
    }


_log = logging.getLogger(__name__)

SHARDS_A_COMMIT = 20
SECONDS_BETWEEN_COMMITS = 5.0
LEAST_SECONDS_BETWEEN_COMMITS = 1.0
"""Least seconds between two commits. The cost of a commit grows with the log, so up to hundreds of shards share one."""


@dataclass(frozen=True)
class ScanTotals:
    """Totals of a scan's commits so far.

    Seconds, units and retries cover all work that came back, committed or not.

    peak_memory: the most memory that any worker needed, in bytes.
    under_way: number of documents that are scored but not committed.
    waited: seconds that the driver waited for workers.
    rows_lost: number of rows, by their footers, of shards whose file could not be read.
    """

    shards: int = 0
    counts: DocumentCounts = NO_DOCUMENTS
    files_quarantined: int = 0
    peak_memory: int = 0
    retries: int = 0
    seconds: Seconds = NO_TIME
    under_way: int = 0
    waited: float = 0.0
    units: Units = NO_UNITS
    rows_lost: int = 0


class Committer:
    """Collects finished work, and commits it when `due`.

    second_pass: whether an earlier pass counted these documents. Then only their flags are new, and a document that no
        worker survives keeps its verdict.
    """

    def __init__(self, plan: Plan, scan_id: str, *, second_pass: bool = False) -> None:
        self._second_pass = second_pass
        self._plan = plan
        self._scan_id = scan_id
        self._tables = Tables(plan.results)
        self._began = datetime.now(UTC)
        self._night = (plan.date or self._began.date()).isoformat()
        self._waiting = _no_entries()
        self._passing_faults: dict[str, TableEntry] = {}  # of files at fault for now; they belong to no shard
        self._rows: dict[str, dict[str, object]] = {}  # rows of `shards`, by shard_id
        self._counts: dict[str, DocumentCounts] = {}
        self._files_at_fault: set[str] = set()
        self.to_retry: set[InputFile] = set()  # files at fault for now
        self._last: float | None = None
        self.totals = ScanTotals()

    def add(self, finished: FinishedShard | FinishedPack) -> None:
        """Take a finished shard or pack. A shard with a file at fault leaves only a row for the file."""
        if isinstance(finished, FinishedPack):
            self._add_pack(finished)
            return
        peak = max([self.totals.peak_memory, *(report.peak_memory for report in finished.reports)])
        self.totals = replace(
            self.totals,
            peak_memory=peak,
            retries=self.totals.retries + finished.retries,
        )
        self._add_cost(finished.shard, *(report.seconds for report in finished.reports))
        if finished.fault is not None:
            self.totals = replace(self.totals, rows_lost=self.totals.rows_lost + finished.shard.rows.documents)
            self.add_fault(finished.shard.file, finished.fault)
            return
        lost = DocumentCounts(documents=len(finished.lost), quarantined=len(finished.lost))
        counts = sum((report.counts for report in finished.reports), start=lost)
        self._enqueue(
            [*(report.files for report in finished.reports), self._write_lost(finished)], {finished.shard: counts}
        )

    def _add_pack(self, pack: FinishedPack) -> None:
        report = pack.report
        self.totals = replace(self.totals, peak_memory=max(self.totals.peak_memory, report.peak_memory))
        if pack.shards:
            self._add_cost(next(iter(pack.shards)), report.seconds)
            self._enqueue([report.files], pack.shards)

    def _enqueue(self, files: Sequence[Files], counts: Mapping[Shard, DocumentCounts]) -> None:
        """Keep the files of shards, with one entry for each table, until they are committed."""
        if unknown := {table for tables in files for table in tables} - self._waiting.keys():
            raise ValueError(f"rows of {', '.join(sorted(unknown))} would be lost: they are not rows about shards")
        first, *others = (shard.shard_id for shard in counts)
        for shard, shard_counts in counts.items():
            self._counts[shard.shard_id] = shard_counts
            self._rows[shard.shard_id] = self._row(shard, shard_counts)
        for table in self._waiting:  # verdicts last: until they are in, any interruption leaves the shard undone
            table_files = tuple(file for tables in files for file in tables.get(table, ()))
            if table_files or table == "verdicts":
                self._waiting[table][first] = TableEntry(first, table_files, tuple(others))

    def _add_cost(self, shard: Shard, *seconds: Seconds) -> None:
        spent = functools.reduce(Seconds.plus, seconds, NO_TIME)
        units = self.totals.units.plus(shard, spent)
        self.totals = replace(self.totals, seconds=self.totals.seconds.plus(spent), units=units)

    def add_fault(self, file: InputFile, fault: FileFault) -> None:
        """Take a file that cannot be scanned, for its row in quarantine.

        A lasting fault of a footer counts as done: the next scan finds the file's id in `verdicts`. If a worker failed
        at a file, its shards are not done. The next scan tries them again, and enters no second row for the file.
        """
        if file.path in self._files_at_fault:
            return
        self._files_at_fault.add(file.path)
        whole = shard_id(file, None, self._plan.verdict_settings)
        rows = quarantine_rows(
            BatchOrigin(self._scan_id, whole, file.path), [(None, UNKNOWN_IDENTITY)], fault.reason, fault.detail
        )
        written = write_file(self._plan.results, "quarantine", [rows])
        files = (written,) if written else ()
        if fault.lasting:
            self._waiting["quarantine"][whole] = TableEntry(whole, files)
            self._waiting["verdicts"][whole] = TableEntry(whole, ())
        else:
            self.to_retry.add(file)
            fault_id = f"{whole}:{fault.reason}"
            self._passing_faults[fault_id] = TableEntry(fault_id, files)

    def due(self) -> bool:
        """Return whether enough work waits, some work has waited for long enough, or nothing was committed yet."""
        shards = len(self._waiting["verdicts"])
        if not shards and not self._passing_faults:
            return False
        if self._last is None:
            return True
        enough = shards >= SHARDS_A_COMMIT
        least = LEAST_SECONDS_BETWEEN_COMMITS if enough else SECONDS_BETWEEN_COMMITS
        return time.monotonic() - self._last >= least

    def flush(self) -> None:
        """Commit all waiting work. Raises ScanFailed: a table cannot be written."""
        began = time.monotonic()
        tables, done = self._tables, set[str]()
        if self._passing_faults:
            commit(tables, "quarantine", list(self._passing_faults.values()))
        *others, (_, verdicts) = self._waiting.items()
        shards = [shard for entry in verdicts.values() for shard in entry.transactions]
        entered_by_others = find_committed(tables, "verdicts", shards)  # by other drivers
        for table, entries in others:  # a pack enters whole or not at all; `settle` removes other drivers' shards below
            self._enter(
                table, [entry for entry in entries.values() if not entered_by_others.issuperset(entry.transactions)]
            )
        self._enter("shards", self._entries_of_shards(entered_by_others))
        if verdicts:
            # from here on, no flag can be removed unnoticed if this process is killed; the end of the scan reports
            # errors
            keep_signatures(tables.results)
            done = commit(tables, "verdicts", list(verdicts.values()), run_number(self._scan_id))
            settle(tables, shards)
        self.totals = replace(
            self.totals,
            shards=self.totals.shards + len(done),
            counts=sum((self._counts[shard] for shard in done if shard in self._counts), start=self.totals.counts),
            files_quarantined=len(self._files_at_fault),
            seconds=self.totals.seconds.plus(Seconds(commit=time.monotonic() - began)),
        )
        self._waiting = _no_entries()
        self._passing_faults.clear()
        self._rows.clear()
        self._counts.clear()
        self._last = time.monotonic()

    def _enter(self, table: str, entries: list[TableEntry]) -> None:
        if entries:
            enter_side_rows(self._tables, table, entries, self._scan_id)

    def _entries_of_shards(self, entered_by_others: set[str]) -> list[TableEntry]:
        """Write one file with the rows of all waiting shards, which are committed together."""
        rows = {shard: row for shard, row in self._rows.items() if shard not in entered_by_others}
        written = write_file(self._plan.results, "shards", [pa.RecordBatch.from_pylist([*rows.values()], SHARDS)])
        files = iter([(written,)] if written else [])
        return [TableEntry(shard, next(files, ())) for shard in rows]

    def _row(self, shard: Shard, counts: DocumentCounts) -> dict[str, object]:
        if self._second_pass:
            counts = replace(NO_DOCUMENTS, flagged=counts.flagged, canaries=counts.canaries)
        # rows that were scanned in another file of the table keep those verdicts, which a range here would hide
        moved = shard.file.rows_not_read(shard.rows.start, shard.rows.stop).all()
        return {
            "night": self._night,
            "scan_id": self._scan_id,
            "shard_id": shard.shard_id,
            "path": shard.file.path,
            "first_row": shard.rows.start,
            "rows": 0 if moved else shard.rows.documents,
            "keys": key_set(shard.keys) if shard.keys else self._plan.key_set,
            "file": shard.file.stamp,
            "began_at": self._began,
            "scanned_at": datetime.now(UTC),
            "documents": counts.documents,
            "quarantined": counts.quarantined,
            "too_short": counts.too_short,
            "filtered": counts.filtered,
            "scored_in_part": counts.scored_in_part,
            "flagged": counts.flagged,
            "canaries": counts.canaries,
            "tokens": counts.tokens,
            "tests_sha256": (self._plan.under(shard.keys) if shard.keys else self._plan).tests_sha256,
            "since": None if shard.file.entry is None else shard.file.written,
            "moved_from": shard.file.moved_from or None,
            "dedup": self._plan.config.dedup,
            "min_scored": self._plan.config.min_scored,
            "looks": canonical(self._plan.weights._asdict()),
            "events": canonical(dict(self._plan.shown)),
        }

    def _write_lost(self, finished: FinishedShard) -> Files:
        if self._second_pass:
            for lost in finished.lost:
                _log.warning(
                    "%s, row %d: it can no longer be read: %s", finished.shard.file.path, lost.row, lost.detail
                )
            return {}
        origin = BatchOrigin(self._scan_id, finished.shard.shard_id, finished.shard.file.path)
        rows = [quarantine_rows(origin, [(lost.row, lost.whose)], lost.reason, lost.detail) for lost in finished.lost]
        written = write_file(self._plan.results, "quarantine", rows)
        return {"quarantine": (written,)} if written else {}


def _no_entries() -> dict[str, dict[str, TableEntry]]:
    """Return empty entries by table, in the order of commits. Rows of `shards` are made when they are committed."""
    return {table: {} for table in (*SIDE_TABLES, "verdicts") if table != "shards"}


COUNTERS: dict[str, tuple[str, Callable[[ScanTotals], float]]] = {
    "brickscan_shards": ("Shards committed", lambda totals: totals.shards),
    "brickscan_documents": (
        "Documents committed, including those in quarantine",
        lambda totals: totals.counts.documents,
    ),
    "brickscan_tokens": ("Tokens in committed verdicts", lambda totals: totals.counts.tokens),
    "brickscan_text_bytes": ("Bytes of text committed", lambda totals: totals.counts.text_bytes),
    "brickscan_flagged": (
        "Documents flagged, without canaries",
        lambda totals: totals.counts.flagged,
    ),
    "brickscan_too_short": ("Documents too short for every key", lambda totals: totals.counts.too_short),
    "brickscan_filtered": (
        "Documents with too few n-grams left by the filter to be scored",
        lambda totals: totals.counts.filtered,
    ),
    "brickscan_quarantined": ("Documents in quarantine", lambda totals: totals.counts.quarantined),
    "brickscan_files_quarantined": ("Whole files in quarantine", lambda totals: totals.files_quarantined),
    "brickscan_retries": ("Times a shard, or a part of one, was handed out again", lambda totals: totals.retries),
}
STAGE_SECONDS = "brickscan_seconds"
SHARDS_LEFT = "brickscan_shards_left"
WORKER_MEMORY = "brickscan_worker_memory_bytes"
AUDIT_STATE = "brickscan_audit_state"
AUDIT_ALARMS = "brickscan_audit_alarms"
FIGURES_MOVED = "brickscan_figures_moved"
METRIC_NAMES = {
    *(f"{name}_total" for name in (*COUNTERS, STAGE_SECONDS, AUDIT_ALARMS, FIGURES_MOVED)),
    SHARDS_LEFT,
    WORKER_MEMORY,
    AUDIT_STATE,
}
"""Names of the metrics in Prometheus, without `ray_`."""


class Metrics:
    """The metrics of one scan. They begin at 0.

    Ray's label WorkerId tells them from those of other scans.
    """

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], float] = {}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}

    def report(self, shards: int, totals: ScanTotals, *, audit: str, moved: Iterable[str] = ()) -> None:
        """Set the metrics to these totals. Without a connection to Ray, do nothing.

        Args:
            shards: number of shards that the scan found to do.
            totals: totals of the scan's commits.
            audit: the state whose gauge is 1. All other gauges of states are 0.
            moved: figures of the night that differ from those of earlier nights.
        """
        if not ray.is_initialized():
            return
        for name, (text, read) in COUNTERS.items():
            self._count(name, text, read(totals), {})
        for stage, seconds in totals.seconds._asdict().items():
            self._count(STAGE_SECONDS, "Wall seconds by stage, summed over workers", seconds, {"stage": stage})
        self._set(SHARDS_LEFT, "Shards found by this scan and not committed yet", shards - totals.shards, {})
        self._set(WORKER_MEMORY, "Most memory a worker has needed", totals.peak_memory, {})
        for state in AuditState:
            self._set(AUDIT_STATE, "1 for what the audit says", state == audit, {"state": state})
        # A counter, because an audit comes at the end: a gauge would vanish with its driver before anybody looked.
        self._count(AUDIT_ALARMS, "Scans whose audit raised the alarm", float(audit == AuditState.ALARM), {})
        for figure in moved:
            self._count(FIGURES_MOVED, "Nights with a figure unlike earlier nights", 1.0, {"figure": figure})

    def _count(self, name: str, text: str, value: float, labels: dict[str, str]) -> None:
        if name not in self._counters:
            self._counters[name] = Counter(name, text, tuple(labels))
        series = (name, str(labels))
        more = value - self._reported.get(series, 0)
        if more > 0:  # Ray refuses to add 0
            self._counters[name].inc(more, labels)
            self._reported[series] = value

    def _set(self, name: str, text: str, value: float, labels: dict[str, str]) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, text, tuple(labels))
        self._gauges[name].set(float(value), labels)

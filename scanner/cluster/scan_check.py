"""Check everything that a scan needs before it begins, and estimate its cost. Nothing is written or kept."""

import datetime
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scanner import results
from scanner.cluster.cost_estimate import CostEstimate, estimate
from scanner.cluster.embedded import ray_folder
from scanner.cluster.machines import WORKER_MEMORY, cluster, share_gpus, worker_memory
from scanner.cluster.unread_input import passed_over_in_words
from scanner.cluster.work import (
    InspectedInput,
    ScanWork,
    inspect_input,
    leave_out_done,
    refuse_wrong_columns,
    without_expired,
    work_left,
)
from scanner.controls.observation import OpenControls
from scanner.detection.open_plan import check_secrets, check_tokenizers, check_users
from scanner.error_shares import looks_in_words, shares_in_words
from scanner.errors import FileFault, Refused, ScanFailed
from scanner.filtering import fix_filter
from scanner.input.files import empty_in_a_store, list_files
from scanner.input.named_files import describe
from scanner.input.shards import DriverShare
from scanner.looks.looks import LOOKS, check_looks
from scanner.printable import counted, in_hours
from scanner.registry import open_key
from scanner.results.registry_record import verify_registry
from scanner.results.scan_list import readiness
from scanner.results.transactions import refuse_changed_tables
from scanner.scan_plan import Plan, make_plan
from scanner.signing import sign_with, unchecked_notes
from scanner.watermark.formats import format_of, price

MIB = 2**20


class CheckFinding(NamedTuple):
    """A checked thing: its name, the finding in one or more lines, and the same as JSON values."""

    name: str
    says: tuple[str, ...]
    facts: dict[str, Any]


def check_scan(
    config_file: Path,
    date: datetime.date | None = None,
    share: DriverShare | None = None,
    wait: Callable[[str], None] = lambda step: None,
) -> Iterator[CheckFinding]:
    """Check registry, secrets, tokenizers, results, cluster, input, columns and work, and estimate the scan's cost.

    Cheap checks come first: an input without files is refused before users, tokenizers and kernels are checked.

    Args:
        config_file: the configuration.
        date: as for make_plan.
        share: the share of the input that is to be scanned. None: all of it.
        wait: called with the name of each slow step, before it.

    Raises:
        Refused: at the first thing that cannot be right. Everything before it was right.
    """
    try:
        yield from _steps(make_plan(config_file, date), share, wait)
    except ScanFailed as failed:  # refused, because a scan would fail here before any work
        raise Refused(str(failed)) from None


def _steps(plan: Plan, share: DriverShare | None, wait: Callable[[str], None]) -> Iterator[CheckFinding]:
    wait("listing the input")
    listed = _Input(plan, share)
    listed.refuse_none()
    wait("reading the users")
    check_users(plan)
    sign_with(plan.results, plan.registry)
    refuse_changed_tables(plan.results)
    verify_registry(plan.registry, plan.results)
    yield _registry(plan)
    check_secrets(plan)
    check_looks(plan.config)
    estimates = [estimate for look in LOOKS if (estimate := look.check(plan)) is not None]
    plan = fix_filter(plan, None)
    decoys = bool(OpenControls(plan))
    audit = "and the one of decoys" if decoys else "no decoys: the law itself will not be tested (see the audit)"
    yield CheckFinding("secrets", (f"of {counted(len(plan.keys), 'key')}, {audit}",), {"decoys": decoys})
    wait("opening keys and tokenizers")
    yield from _slow_keys(plan)
    check_tokenizers(plan)
    pinned = len({key.tokenizer.sha256 for key in plan.keys})
    yield CheckFinding("tokenizers", (f"{pinned:,}, as pinned",), {"pinned": pinned})
    state = readiness(plan.results)
    lines = f"{plan.results}: {state}", *unchecked_notes(plan.results)
    yield CheckFinding("results", lines, {"folder": plan.results, "tables": state})
    workers, memory, joined = _workers(plan)
    if joined:
        yield CheckFinding("cluster", (f"reached; {counted(workers, 'worker')}",), {"workers": workers})
    wait("reading file footers, and which shards are already done")
    yield listed.files(plan)
    yield listed.columns()
    yield listed.done()
    wait("scoring a sample of the documents")
    yield from _costs(plan, listed.work, workers, memory)
    for estimate in estimates:
        yield CheckFinding(*estimate(plan, listed.work.shards_under_any_key))


def _registry(plan: Plan) -> CheckFinding:
    corrected = f"p-values are corrected for {counted(plan.keys_tested, 'key')} of the registry"
    if any(key.one_of is not None for key in plan.keys):
        corrected = "each has its own weight in the false-positive rate"
    says = [f"{plan.registry}: {counted(len(plan.keys), 'key')}; {corrected}"]
    says += shares_in_words(plan.weights)
    says += looks_in_words(plan.keys, plan.weights)
    says += [f"LEFT OUT: no text will be scored under key {key.key_id}. {key.why}" for key in plan.unsupported_keys]
    facts = {
        "folder": plan.registry,
        "keys": [key.key_id for key in plan.keys],
        "keys_tested": plan.keys_tested,
        "left_out": [key._asdict() for key in plan.unsupported_keys],
    }
    return CheckFinding("registry", tuple(says), facts)


def _slow_keys(plan: Plan) -> Iterator[CheckFinding]:
    """Yield keys that cost at least a hundred times as much as our green list, each timed."""
    timed = [(key, price(format_of(key), open_key(plan.registry, key), key.messages)) for key in plan.keys]
    slow = [(key.key_id, found) for key, found in timed if found is not None]
    if slow:
        facts = [
            {"key_id": key_id, "seconds_a_token": found.seconds, "times_ours": found.times} for key_id, found in slow
        ]
        yield CheckFinding("slow keys", tuple(f"{key_id}: {found.words()}" for key_id, found in slow), {"keys": facts})


def _workers(plan: Plan) -> tuple[int, int, bool]:
    """Return the number of workers, the bytes that each may take, and whether a cluster was reached.

    Raises:
        ScanFailed: the cluster cannot be reached or started, or there is no folder to start it in.
        Refused: it has too few GPUs.
    """
    how = plan.config.cluster
    if how.address or os.environ.get("RAY_ADDRESS") or how.require_gpus:
        with cluster(how) as workers:
            return share_gpus(how, workers)[0], worker_memory(how), True
    with ray_folder():  # as a scan does
        pass
    most = WORKER_MEMORY if how.worker_memory_mb is None else how.worker_memory_mb * MIB
    return how.workers or len(os.sched_getaffinity(0)), most, False


class _Input:
    """The input of a scan, checked in steps: its files, then their columns, then how much of it is done."""

    def __init__(self, plan: Plan, share: DriverShare | None) -> None:
        self._plan, self._share = plan, share
        self._passed_over: list[str] = []
        missing = empty_in_a_store if plan.config.allow_empty else None
        listed = list_files(plan.locations, missing, self._passed_over.append, reading=plan.table_reading)
        self._listed = len(listed)
        self._files = [file for file in listed if share is None or share.holds(file)]
        self._inspected: InspectedInput
        self.work: ScanWork

    def refuse_none(self) -> None:
        """Raise Refused if no file is listed, so that a scan would read nothing."""
        if not self._files:
            self.files(self._plan)

    def files(self, plan: Plan) -> CheckFinding:
        """Report the number of files, and the files at fault.

        plan: the plan with its filter.

        Raises:
            Refused: there is nothing to read.
        """
        self._plan = plan
        self._inspected = inspect_input(plan, self._files)
        faults, size = self._inspected.faults.values(), sum(file.size for file in self._files)
        of_all = f" of {self._listed:,} (part {self._share})" if self._share else ""
        says = [f"{counted(len(self._files), 'file')}{of_all}, {size / 1e6:,.1f} MB"]
        reason_counts = Counter(fault.reason for _, fault in faults)
        if reason_counts:
            file, fault = next(iter(faults))
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in reason_counts.most_common())
            says.append(
                f"{counted(len(faults), 'file')} would be quarantined ({reasons}), for example {file.path}: "
                f"{fault.detail}"
            )
        says += passed_over_in_words(self._passed_over)
        self._refuse_nothing(says)
        if not self._files and self._share is None:
            says.append(f"no Parquet file in {', '.join(self._plan.locations)}, which allow_empty permits")
        facts = {
            "files": len(self._files),
            "bytes": size,
            "at_fault": reason_counts,
            "passed_over": len(self._passed_over),
        }
        return CheckFinding("input", tuple(says), facts)

    def _refuse_nothing(self, says: Sequence[str]) -> None:
        refuse_wrong_columns(self._inspected)
        quiet = not self._files and not self._passed_over and self._plan.config.allow_empty
        if not self._inspected.sound and not quiet and self._share is None:
            where = ", ".join(self._plan.locations)
            raise Refused(
                f"input.paths: nothing in {where} can be read ({'; '.join(says)}); name Parquet files or folders of "
                "them, or set allow_empty = true if a night may be empty"
            )

    def columns(self) -> CheckFinding:
        try:
            found = describe(self._inspected.shards[0].file, self._plan.columns) if self._inspected.shards else []
        except FileFault as fault:
            raise Refused(f"input.paths: {self._inspected.shards[0].file.path}: {fault.detail}") from None
        says = ["; ".join(f"{one.role} {one.name!r}: {one.type}" for one in found) or "no document"]
        unread = "a type that is not read: it will be null in all tables"
        says += [f"{one.role} {one.name!r} is {one.type}, {unread}" for one in found if not one.read]
        if self._plan.config.input.time is None:
            says.append(
                "no time column: each document counts as old as its file, so no user is named who got their message "
                "after the file was written; set input.time to the column of times"
            )
        return CheckFinding("columns", tuple(says), {"columns": [one._asdict() for one in found]})

    def done(self) -> CheckFinding:
        """Report how much is committed, and how much is left.

        Raises:
            Refused: a file that is left was last changed longer ago than nights are kept.
        """
        scanned = results.exist(self._plan.results)
        found = work_left(self._plan, self._inspected) if scanned else leave_out_done(self._inspected, ())
        self.work = work = without_expired(self._plan, found, refuse=True)
        says = [f"{work.skipped:,} of {counted(work.shard_count, 'shard')}; {counted(work.documents, 'document')} left"]
        by_one_key = {
            ", ".join(keys): sum(shard.rows.documents for shard in shards)
            for keys, shards in work.by_keys.items()
            if keys
        }
        for key_ids, number in by_one_key.items():
            says.append(f"{counted(number, 'document')} only under {key_ids}: the other keys are done")
        if work.looks_price > 1:
            says.append(
                f"earlier scans had other shares of looks: unmarked texts may be flagged {work.looks_price:.4g} times "
                "as often as false_positive_rate says (looks_added)"
            )
        facts = {
            "shards": work.shard_count,
            "shards_done": work.skipped,
            "documents_left": work.documents,
            "documents_left_for_some_keys": by_one_key,
            "looks_price": work.looks_price,
        }
        return CheckFinding("done", tuple(says), facts)


def _costs(plan: Plan, work: ScanWork, workers: int, memory: int) -> Iterator[CheckFinding]:
    if not work.left:
        yield CheckFinding("time", ("nothing is left to do",), {"core_hours": 0.0, "seconds": 0.0})
        return
    found = estimate(plan, work.left, workers)
    if found is None:
        yield CheckFinding("time", ("unknown: no document of the sample could be read",), {})
        return
    yield _sample(found)
    hours, low, high = (seconds / 3600 for seconds in (found.core_seconds, found.low, found.high))
    unit, per_hour = ("core-hours", 1) if hours >= 0.1 else ("core-seconds", 3600)
    with_gpus = "; less on GPUs for Gumbel keys with many users" if plan.config.cluster.gpus_per_worker else ""
    says = (
        f"about {in_hours(hours * per_hour)} {unit} ({in_hours(low * per_hour)} to {in_hours(high * per_hour)}): "
        f"{_span(found.seconds)} with {counted(found.workers, 'worker')}, plus a few seconds to start Ray{with_gpus}"
    )
    facts = {"core_hours": hours, "core_hours_low": low, "core_hours_high": high, "seconds": found.seconds}
    yield CheckFinding("time", (says, *_costs_of_looks(plan)), facts | {"workers": found.workers})
    needed, most = found.memory / MIB, memory / MIB
    says = (
        f"a worker needs about {needed:,.0f} MiB, {found.workers * needed / 1024:,.1f} GiB for {found.workers}; for "
        f"the longest texts more, at most {most:,.0f} MiB per worker"
    )
    facts = {"worker_bytes": found.memory, "worker_bytes_at_most": memory, "bytes": found.memory * found.workers}
    yield CheckFinding("memory", (says,), facts)


def _costs_of_looks(plan: Plan) -> Iterator[str]:
    each = ", ".join(f"{look} {times} times" for look, times in plan.config.costs.items())
    if each:
        yield f"each look makes a scan for 100,000 users longer (measured once): {each}"


def _sample(found: CostEstimate) -> CheckFinding:
    documents = sum(sample.documents for sample in found.samples)
    text_bytes = sum(sample.text_bytes for sample in found.samples)
    too_short = sum(sample.too_short for sample in found.samples)
    filtered = sum(sample.filtered for sample in found.samples)
    refused = sum(sample.refused for sample in found.samples)
    unread = sum(sample.unread for sample in found.samples)
    says = [f"{counted(documents, 'document')} of {text_bytes / max(documents, 1):,.0f} bytes on average"]
    for number, what in (
        (too_short, "too short to be scored"),
        (filtered, "too short to be scored without their common n-grams"),
        (refused, "for quarantine"),
        (unread, "with an id, account or time that cannot be read"),
    ):
        says += [f"{number:,} of {documents:,} {what}"] * bool(number)
    counts = {"documents": documents, "text_bytes": text_bytes, "too_short": too_short, "filtered": filtered}
    return CheckFinding("sample", tuple(says), counts | {"quarantined": refused, "values_not_read": unread})


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

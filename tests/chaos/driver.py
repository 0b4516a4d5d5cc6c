"""A scan in its own process with a fault at a chosen moment: `python -m tests.chaos.driver CONFIG FAULT`.

FAULT is JSON. {"at": one of MOMENTS or FREEZES, "commit": number, "delay": seconds} ends the scan by SIGKILL.
{"vanish": paths} and {"change": paths} change input files once they are listed. Every shard is committed by itself,
so that a scan has many moments.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from deltalake import DeltaTable

from jobs.cli import run
from jobs.summary import summary
from scanner.cluster import commits, todo
from scanner.cluster.scan import run_scan
from scanner.cluster.worker import Worker
from scanner.input.shards import DriverShare
from scanner.results import retention, upkeep
from scanner.scan_plan import make_plan
from scanner.storage.locations import is_uri
from tests.chaos.worker import FaultyWorker

MOMENTS = ("before the commit", "between the commits", "during the commit")
FREEZES = "while a night is frozen"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(moment: str, commit: int, delay: float) -> None:
    """End this process at a moment of the commit of verdicts with this number; `during` it, after a delay.

    FREEZES: earlier commits are frozen when the scan begins, and the number is that of a commit of the freeze.
    """
    seen = 0

    def last(real):
        def call(*arguments):
            nonlocal seen
            seen += arguments[1] == "verdicts"
            if seen >= commit and arguments[1] == "verdicts":
                die()
            return real(*arguments)

        return call

    if moment == "before the commit":
        real_flush = commits.Committer.flush

        def flush(self):
            nonlocal seen
            seen += bool(self._waiting["verdicts"])
            if seen >= commit:
                die()
            real_flush(self)

        commits.Committer.flush = flush
    elif moment == "between the commits":
        commits.commit = last(commits.commit)
    elif moment == FREEZES:
        freeze_at_once()
        real_freezing = retention.try_to_commit

        def freezes(*arguments):
            nonlocal seen
            seen += 1
            if seen >= commit:
                threading.Timer(delay, die).start()
            return real_freezing(*arguments)

        retention.try_to_commit = freezes
    else:
        real_write = DeltaTable.create_write_transaction

        def write(*arguments, **named):
            nonlocal seen
            seen += 1
            if seen >= commit:
                threading.Timer(delay, die).start()
            return real_write(*arguments, **named)

        DeltaTable.create_write_transaction = write


def freeze_at_once() -> None:
    """Freeze all that was committed before this scan, tonight's rows too, and forget its transactions at once."""
    retention.FREEZE_AFTER, retention.YOUNGEST_FROZEN, retention.EXPIRE_AFTER = (
        timedelta(days=-2),
        timedelta(0),
        timedelta(0),
    )


def spoil(fault: dict) -> None:
    for path in map(Path, fault.get("vanish", ())):
        path.rename(path.with_suffix(".away"))
    for path in map(Path, fault.get("change", ())):
        path.write_bytes(path.read_bytes() + b"more")


def main() -> int:
    faulthandler.register(signal.SIGUSR1)  # shows where a driver hangs
    config, fault = Path(sys.argv[1]), json.loads(sys.argv[2])
    commits.SHARDS_A_COMMIT, commits.SECONDS_BETWEEN_COMMITS, commits.LEAST_SECONDS_BETWEEN_COMMITS = 1, 0.0, 0.0
    upkeep.MANY_FILES = 4  # so that every scan merges small files
    if fault.get("pieces"):  # of four rows, as a slow key's shards of 20,000 are cut
        todo.SLOW_SHARD, todo.SECONDS_A_PIECE, todo.FIRST_DOCUMENTS, todo.LEAST_DOCUMENTS = 0.0, 0.0, 4, 4
    if "at" in fault:
        die_at(fault["at"], fault["commit"], fault["delay"])
    told = False

    def watch(work, totals) -> None:
        nonlocal told
        if not told:
            told = True
            spoil(fault)
        print(
            f"shards={totals.shards + work.skipped}/{work.shard_count} at {time.monotonic()}",
            file=sys.stderr,
            flush=True,
        )

    plan = make_plan(config)
    part = DriverShare.read(fault["part"]) if "part" in fault else None
    worker = Worker if is_uri(plan.results) else FaultyWorker  # whose plan and process ids lie on a disk
    outcome = run_scan(plan, watch, worker=worker, share=part)
    print(summary(outcome, plan.results, plan.config.false_positive_rate))
    return outcome.exit_code


class _Command:
    """A stand-in for a click command, so that errors end this process as they end `brickscan`."""

    def main(self, **_) -> int:
        return main()


if __name__ == "__main__":
    sys.exit(run(_Command()))

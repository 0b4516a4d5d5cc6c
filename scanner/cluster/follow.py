"""Follow the input: look at it every few seconds and scan files that have landed, until SIGTERM or Ctrl-C.

Each scan has fresh workers, a row in `scans`, and the keys and users at its beginning. This process keeps nothing that
is needed later. So a stop at any moment loses nothing, and the next start continues from the tables.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PurePosixPath

from scanner.cluster.commits import ScanTotals
from scanner.cluster.machines import cluster
from scanner.cluster.scan import ExitCode, ScanOutcome, exit_code_of, run_scan, worse_of
from scanner.cluster.work import ScanWork
from scanner.errors import FileFault
from scanner.input.columns import Columns
from scanner.input.files import InputFile, list_files
from scanner.input.inspector import Inspector
from scanner.interrupts import interrupts_noted
from scanner.scan_plan import Plan

LOOK_SECONDS = 5.0
"""Seconds between two looks. A file is scanned once it was the same at two looks, because it may still be written."""

UNFINISHED_SECONDS = 600.0
"""Seconds for which a file without a Parquet footer must stay the same until it counts as broken, not as unfinished."""

RETRY_SECONDS = 600.0
"""Seconds until another attempt at a file that could not be read, but may be sound."""

_log = logging.getLogger(__name__)
_UNFINISHED = ("not_parquet", "truncated", "unreadable")


class ArrivedFiles:
    """Choose which of the files that arrived are scanned now. Times are of this process's own clock."""

    def __init__(self, inspector: Inspector, clock: Callable[[], float] = time.monotonic) -> None:
        self._inspector = inspector
        self._clock = clock
        self._since: dict[InputFile, float] = {}
        self._not_before: dict[InputFile, float] = {}

    def ready(self, files: Iterable[InputFile], columns: Columns) -> list[InputFile]:
        """Return existing files that are not done and seem to be complete."""
        now = self._clock()
        self._since = {file: self._since.get(file, now) for file in files}
        self._not_before = {file: due for file, due in self._not_before.items() if file in self._since}
        quiet = [
            file
            for file, since in self._since.items()
            if now - since >= LOOK_SECONDS and now >= self._not_before.get(file, 0)
        ]
        doubtful = [file for file in quiet if now - self._since[file] < UNFINISHED_SECONDS]
        answers = self._inspector.inspect_all(doubtful, columns) if doubtful else ()
        # one that is at fault in another way is for the scan to judge
        unfinished = {
            file
            for file, inspection in answers
            if isinstance(inspection, FileFault) and inspection.reason in _UNFINISHED
        }
        return [file for file in quiet if file not in unfinished]

    def done(self, files: Iterable[InputFile], to_retry: Collection[InputFile]) -> None:
        """Note that files were scanned. Files in `to_retry` could not be read, and are ready again some time later."""
        later = self._clock() + RETRY_SECONDS
        self._not_before |= {file: later if file in to_retry else math.inf for file in files}

    def forget(self) -> None:
        """Count no file as done any more."""
        self._not_before.clear()


def follow(
    renew: Callable[[], Plan], watch: Callable[[ScanWork, ScanTotals], None], trouble: Callable[[ScanOutcome], None]
) -> int:
    """Scan files that are there and files that land, until SIGTERM or Ctrl-C.

    Args:
        renew: makes the plan. It is called again before each scan, so new keys and settings count.
        watch: called as by `run_scan`.
        trouble: called when a scan ended with another exit code than 0, for example after an audit's alarm.

    Returns:
        The worst exit code of the scans. 3: an audit alarmed. 5: canaries were lost. 4: too much is in quarantine. 0:
        none of these.

    Raises:
        Refused: something cannot be right.
        ScanFailed: the work had to stop. Everything committed stays.
    """
    plan, worst = renew(), ExitCode.DONE
    warned: set[str] = set()

    def warn_once(subject: str, message: str, *args: object) -> None:
        if subject not in warned:
            _log.warning(message, *args)
        warned.add(subject)

    def missing(location: str) -> None:
        """Note a missing location. The folder of a day, or a prefix in a bucket, may appear with its first file."""
        warn_once(location, "input.paths: %r does not exist; it will be looked for again", location)

    def passed_over(path: str) -> None:
        ending = PurePosixPath(path).suffix
        if ending == ".parquet":
            warn_once(ending, "%r is skipped, like all files with hidden names: they may be unfinished", path)
            return
        warn_once(ending, "%r is skipped, like all files that end in %r: only .parquet is read", path, ending)

    try:
        with interrupts_noted() as end_on_signal, cluster(plan.config.cluster), Inspector() as inspector:
            arrived = ArrivedFiles(inspector)
            listed: Sequence[InputFile] = ()
            while True:
                end_on_signal()
                listed = list_files(plan.locations, missing, passed_over, listed, plan.table_reading)
                if not listed:
                    warn_once("", "the input has no Parquet file; it will be looked at again")
                files = arrived.ready(listed, plan.columns)
                if files:
                    last_plan, plan = plan, renew()
                    if plan.verdict_settings != last_plan.verdict_settings:
                        arrived.forget()
                    for key in plan.unsupported_keys:
                        warn_once(key.why, "no text is scored under key %r: %s", key.key_id, key.why)
                    outcome = run_scan(plan, watch, files=files)
                    if outcome.exit_code >= ExitCode.INTERRUPTED:
                        state = outcome.audit.state if outcome.audit else None
                        return worse_of(worst, exit_code_of(state, too_little_read=False))
                    if outcome.unread.nothing:
                        _log.warning("scan %s: %s", outcome.scan_id, outcome.unread.nothing)
                    for warning in outcome.audit.warnings() if outcome.audit else ():
                        _log.warning("scan %s: possible framing: %s", outcome.scan_id, warning)
                    if outcome.exit_code != ExitCode.DONE:
                        trouble(outcome)
                        worst = worse_of(worst, outcome.exit_code)
                    if outcome.stopped:
                        return worst
                    arrived.done(files, outcome.to_retry)
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        return worst

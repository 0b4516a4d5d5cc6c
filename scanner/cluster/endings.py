"""Endings of a scan, in one table: its cause, its exit code, and whether `scans` gets a row."""

from enum import IntEnum
from typing import NamedTuple

from scanner.errors import Refused
from scanner.interrupts import Terminated
from schemas.words import AuditState


class ExitCode(IntEnum):
    """Exit codes of every job."""

    DONE = 0  # documents in quarantine included
    FAILED = 1  # what is committed stays; a second run goes on from there
    REFUSED = 2  # nothing was done: the sentence names file, field and value
    ALARM = 3  # an audit says that p-values are too small, or the proof of a flag differs
    TOO_LITTLE_READ = 4  # no document was read, or a larger share than configured is in quarantine
    CANARIES_LOST = 5  # texts that are known to be marked were not found as planned
    INTERRUPTED = 130  # by Ctrl-C, after finished work was committed
    TERMINATED = 143  # by SIGTERM, likewise


class Ending(NamedTuple):
    """An ending of a scan. commits: finished work is committed first, and the scan ends without an error."""

    exit_code: ExitCode
    recorded: bool
    commits: bool = False


_RAISED: tuple[tuple[type[BaseException], bool, Ending], ...] = (
    # the exception, whether work had been found, the ending
    (Terminated, False, Ending(ExitCode.TERMINATED, recorded=True, commits=True)),
    (Terminated, True, Ending(ExitCode.TERMINATED, recorded=True, commits=True)),
    (KeyboardInterrupt, False, Ending(ExitCode.INTERRUPTED, recorded=True, commits=True)),
    (KeyboardInterrupt, True, Ending(ExitCode.INTERRUPTED, recorded=True, commits=True)),
    (Refused, False, Ending(ExitCode.REFUSED, recorded=False)),  # nothing was done
    (Refused, True, Ending(ExitCode.REFUSED, recorded=True)),
    (BaseException, False, Ending(ExitCode.FAILED, recorded=True)),
    (BaseException, True, Ending(ExitCode.FAILED, recorded=True)),
)


def ending_of(error: BaseException, *, work_was_found: bool) -> Ending:
    """The ending that an exception causes: the first row that fits."""
    return next(ending for kind, found, ending in _RAISED if isinstance(error, kind) and found == work_was_found)


WORST_FIRST = (ExitCode.ALARM, ExitCode.CANARIES_LOST, ExitCode.TOO_LITTLE_READ, ExitCode.DONE)
"""Exit codes of scans that ran to their end, worst first."""


def exit_code_of(audit: AuditState | None, *, too_little_read: bool) -> ExitCode:
    """Exit code of a scan that ran to its end, which always has a row."""
    of_state = {AuditState.ALARM: ExitCode.ALARM, AuditState.CANARIES_LOST: ExitCode.CANARIES_LOST}
    read = ExitCode.TOO_LITTLE_READ if too_little_read else ExitCode.DONE
    return read if audit is None else worse_of(of_state.get(audit, ExitCode.DONE), read)


def worse_of(one: ExitCode, other: ExitCode) -> ExitCode:
    """The worse ending of two scans that ran to their end."""
    return min(one, other, key=WORST_FIRST.index)

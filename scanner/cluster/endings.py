"""How a scan can end: one table of what ended it, its exit code, and whether `scans` gets a row."""

from enum import IntEnum
from typing import NamedTuple

from scanner.errors import Refused
from scanner.interrupts import Terminated
from schemas.words import AuditState


class ExitCode(IntEnum):
    """Of every job."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    ALARM = 3
    TOO_LITTLE_READ = 4
    CANARIES_LOST = 5
    INTERRUPTED = 130
    TERMINATED = 143


class Ending(NamedTuple):
    """commits: what is finished is committed first, and the scan ends without an error."""

    exit_code: ExitCode
    recorded: bool
    commits: bool = False


_RAISED: tuple[tuple[type[BaseException], bool, Ending], ...] = (
    # what was raised, whether work had been found, how the scan ends
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
    """How a scan ends over what was raised: the first row that fits."""
    return next(ending for kind, found, ending in _RAISED if isinstance(error, kind) and found == work_was_found)


WORST_FIRST = (ExitCode.ALARM, ExitCode.CANARIES_LOST, ExitCode.TOO_LITTLE_READ, ExitCode.DONE)
"""Of scans that came to their end."""


def exit_code_of(audit: AuditState | None, *, too_little_read: bool) -> ExitCode:
    """Of a scan that came to its end, which always has a row."""
    of_state = {AuditState.ALARM: ExitCode.ALARM, AuditState.CANARIES_LOST: ExitCode.CANARIES_LOST}
    read = ExitCode.TOO_LITTLE_READ if too_little_read else ExitCode.DONE
    return read if audit is None else worse_of(of_state.get(audit, ExitCode.DONE), read)


def worse_of(one: ExitCode, other: ExitCode) -> ExitCode:
    """The worse of how two scans ended, which came to their end."""
    return min(one, other, key=WORST_FIRST.index)

"""`brickscan scan --check`: a scan's plan, a line for each thing as it is looked at; nothing is written."""

import contextlib
import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.scan_json import Form, say_json
from jobs.text import complain, tell
from scanner.interrupts import interrupts_noted

if TYPE_CHECKING:
    from scanner.input.part import Part


def check_and_tell(config: Path, date: datetime.datetime | None, form: Form, part: "Part | None" = None) -> int:
    """Look at everything that a scan of the input, or of a part, needs, and estimate its cost. Returns the exit code.

    Raises:
        Refused: at the first thing that cannot be right.
    """
    from jobs.progress import COMPILING

    _wait("loading numba and Ray")
    from scanner.cluster.look_ahead import look_ahead
    from scanner.watermark.kernel import compiled_before

    if not compiled_before():
        _wait(COMPILING)
    looked = {}
    steps = look_ahead(config, None if date is None else date.date(), part, _wait)
    with interrupts_noted() as check:
        while True:
            with contextlib.redirect_stdout(sys.stderr):  # Ray prints to stdout
                step = next(steps, None)
            check()
            if step is None:
                break
            looked[step.what] = step.facts
            if form == "text":
                head, *more = step.says
                tell(f"{step.what:<13}{head}", *(f"{'':<13}{line}" for line in more))
    if form == "json":
        say_json({"exit_code": 0, **looked})
    else:
        options = (f" --date {date:%Y-%m-%d}" if date else "") + (f" --part {part}" if part else "")
        tell(f"Nothing stands in the way of: brickscan scan {config}{options}")
    return 0


def _wait(what: str) -> None:
    """Show on a terminal what takes time now; a log has the lines of what was looked at."""
    if sys.stderr.isatty():
        complain(f"{what} …")

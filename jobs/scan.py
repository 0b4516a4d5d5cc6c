"""`brickscan scan CONFIG`, the same as `python -m jobs.scan --config CONFIG`: a night's files in, verdicts out."""

import contextlib
import dataclasses
import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from jobs.cli import end, run
from jobs.options import Day, NamedPath, PartOfInput
from jobs.scan_check import check_and_tell
from jobs.scan_json import Form, failures_too, of_outcome, say_json, summary_option
from jobs.summary import summary
from jobs.text import tell

if TYPE_CHECKING:
    from scanner.input.part import Part

_CONFIG = NamedPath(path_type=Path)
_date = click.option(
    "--date", type=Day(), help="Fills {date} in the configured paths: 2026-08-31, or `yesterday` (UTC)."
)
_follow = click.option(
    "--follow", is_flag=True, help="Keep running, and scan files as they land, until SIGTERM or Ctrl-C."
)
_part = click.option(
    "--part",
    type=PartOfInput(),
    help="Scan one of n parts of the files, as in 1/3, beside other drivers; scan without it when all have ended.",
)
_verbose = click.option(
    "--verbose", is_flag=True, help="Also what the audit counted, how the work went, and the query in Python."
)
_check = click.option(
    "--check", is_flag=True, help="Look at all that the scan needs, estimate its cost, and write nothing."
)


class _Asked(TypedDict):
    """A call's arguments."""

    config: Path
    date: datetime.datetime | None
    part: "Part | None"
    follow: bool
    check: bool
    form: Form
    verbose: bool


def _asked(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command its options, in the order of its help."""
    for option in (_verbose, summary_option, _check, _follow, _part, _date):
        command = option(command)
    return command


@click.command()
@click.argument("config", type=_CONFIG)
@_asked
def scan(**asked: Unpack[_Asked]) -> int:
    """Scan the files that CONFIG names, as far as they are not scanned yet, and add verdicts to its tables.

    CONFIG: a TOML file; docs/reference/configuration.md has its fields.
    Run again after an interruption, it goes on from what was
    committed. Exit codes: 0 done (documents in quarantine included), 1 failed, 2 refused before any work, 3 the audit
    raises an alarm: p-values are too small, or a flag was not proved (a sentence says which), 4 nothing was read
    (unless allow_empty is set) or more is in quarantine than the configuration allows, 5 fewer canaries were found than
    planned, 130 and 143 interrupted by Ctrl-C and SIGTERM, which are how --follow is meant to end: there it is 0 then.

    \b
    Example:
      brickscan scan scan.toml --date 2026-08-31 --check
      brickscan scan scan.toml --date 2026-08-31
    """
    return _do(asked)


@click.command(name="python -m jobs.scan")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.config.ScanConfig.")
@_asked
def module(**asked: Unpack[_Asked]) -> int:
    """Do what `brickscan scan CONFIG` does; for schedulers and `ray job submit`."""
    return _do(asked)


def _do(asked: _Asked) -> int:
    config, date, part, form = asked["config"], asked["date"], asked["part"], asked["form"]
    if asked["follow"] and asked["check"]:
        raise click.UsageError("Give --follow or --check; --check looks once at what is there.")
    if asked["follow"] and part:
        raise click.UsageError("Give --follow or --part; --follow scans all files as they land.")
    with failures_too(form):
        if asked["check"]:
            return check_and_tell(config, date, form, part)
        if asked["follow"]:
            return follow_and_tell(config, date, form)
        return scan_and_tell(config, date, form, part, verbose=asked["verbose"])


def scan_and_tell(
    config: Path,
    date: datetime.datetime | None = None,
    form: Form = "text",
    part: "Part | None" = None,
    *,
    verbose: bool = False,
) -> int:
    """Run a scan with progress on stderr and a summary on stdout, as jobs.summary has it. Returns the exit code.

    Raises:
        BrickscanError: see scanner.errors.
    """
    from jobs.progress import Progress

    progress = Progress()
    progress.waits("loading numba and Ray")
    from scanner.cluster import run_scan
    from scanner.detection.scan_plan import make_plan
    from scanner.watermark.kernel import compiled_before

    plan = make_plan(config, None if date is None else date.date())
    if not compiled_before():
        progress.compiling()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints to stdout, which is for the summary
            outcome = run_scan(plan, progress, part=part, wait=progress.waits)
    finally:
        progress.close()
    if outcome.audit is not None:
        progress.audited(outcome.audit)
    if form == "json":
        say_json(of_outcome(outcome, plan))
    else:
        tell(
            *summary(outcome, plan.results, plan.config.false_positive_rate, plan.cautions, verbose=verbose).split("\n")
        )
    return outcome.exit_code


def follow_and_tell(config: Path, date: datetime.datetime | None, form: Form = "text") -> int:
    """Scan files as they land, with a status line a minute on stderr and a summary on stdout. Returns the exit code.

    Raises:
        BrickscanError: see scanner.errors.
    """
    from jobs.progress import StatusLine
    from scanner.cluster import follow
    from scanner.detection.scan_plan import make_plan

    day = None if date is None else date.date()
    results = make_plan(config, day).results
    status = StatusLine()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            code = follow(lambda: make_plan(config, day), status, status.trouble)
    finally:
        status.close()
    done = status.sums
    if form == "json":
        say_json({"exit_code": code, "results": results, **dataclasses.asdict(done)})
        return code
    tell(
        f"{done.scans:,} scans of {done.files:,} files; {done.documents:,} documents, {done.flagged:,} flagged; "
        f"in quarantine {done.quarantined:,} documents, {done.files_quarantined:,} files; tables {results}"
    )
    return code


if __name__ == "__main__":
    end(run(module))

"""`brickscan scan CONFIG`, the same as `python -m jobs.scan --config CONFIG`: a night's files in, verdicts out."""

import contextlib
import dataclasses
import datetime
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import click

from jobs.cli import end, run
from jobs.options import Day, NamedPath, PartOfInput, visible
from jobs.summary import summary
from jobs.text import COMPILING, Progress, StatusLine, complain, tell
from scanner.errors import BrickscanError
from scanner.interrupts import interrupts_noted
from scanner.printable import counted
from scanner.scan_plan import make_plan
from scanner.text.tokenizers import advise_fast_backend
from scanner.watermark.kernel import compiled_before

if TYPE_CHECKING:
    from scanner.cluster.scan import ScanOutcome
    from scanner.controls.scan_audit import ScanAudit
    from scanner.input.shards import DriverShare
    from scanner.scan_plan import Plan

Form = Literal["text", "json"]

summary_option = click.option(
    "--summary",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output on stdout: lines for people, or one line of JSON for schedulers",
)


def say_json(values: Mapping[str, Any]) -> None:
    """Print values as a line of JSON on stdout, with all text from strangers escaped."""
    tell(visible(json.dumps(values, default=str, allow_nan=False)))


@contextlib.contextmanager
def failures_too(form: Form) -> Iterator[None]:
    """Write a command's error as JSON too, if JSON is requested: `exit_code` and `error`. The error is raised again."""
    try:
        yield
    except BrickscanError as error:
        if form == "json":
            say_json({"exit_code": error.exit_code, "error": str(error)})
        raise
    except Exception as error:
        if form == "json":
            say_json({"exit_code": 1, "error": f"{type(error).__name__}: {error}"})
        raise


def outcome_record(outcome: "ScanOutcome", plan: "Plan") -> dict[str, Any]:
    """Return the summary's values by name. Bytes and seconds are numbers. None: there is no value."""
    work, totals, counts = outcome.work, outcome.totals, outcome.totals.counts
    return {
        "exit_code": int(outcome.exit_code),
        "scan_id": outcome.scan_id,
        "part": None if outcome.share is None else str(outcome.share),
        "results": plan.results,
        "false_positive_rate": plan.config.false_positive_rate,
        "misnaming_rate": plan.config.misnaming_rate,
        "seconds": outcome.seconds,
        "first_commit_seconds": outcome.first_commit,
        "shards": work.shard_count,
        "shards_done_before": work.skipped,
        "looks_price": work.looks_price,
        "shards_left": work.shard_count - work.skipped - totals.shards,
        "documents": counts.documents,
        "flagged": counts.flagged,
        "flagged_of_canaries": counts.canaries,
        "proved": counts.proved,
        "unproved": counts.unproved,
        "proof_not_offered": counts.not_offered,
        "too_short": counts.too_short,
        "filtered": counts.filtered,
        "scored_in_part": counts.scored_in_part,
        "quarantined": counts.quarantined,
        "files_quarantined": totals.files_quarantined,
        "whole_input": outcome.unread.whole._asdict(),
        "quarantine": [reason._asdict() for reason in outcome.unread.reasons],
        "files_passed_over": len(outcome.unread.passed_over),
        "nothing_read": outcome.unread.nothing or None,
        "values_not_read": counts.values_not_read,
        "in_future": counts.in_future,
        "older_than_key": counts.older_than_key,
        "text_bytes": counts.text_bytes,
        "tokens": counts.tokens,
        "worker_bytes": totals.peak_memory,
        "retries": totals.retries,
        **{name: look.counts for name, look in sorted(outcome.looks.items())},
        "compared_nights": [night.record for night in outcome.compared],
        "rows_dropped": outcome.dropped,
        "trial": outcome.trial,
        "left_out": [key._asdict() for key in outcome.unsupported_keys],
        "audit": None if outcome.audit is None else _audit_record(outcome.audit),
    }


def _audit_record(audit: "ScanAudit") -> dict[str, Any]:
    return {
        "state": str(audit.state),
        "advice": audit.advice,
        "alarms": audit.alarms(),
        "warnings": audit.warnings(),
        "texts": audit.traffic.texts,
        "flagged": audit.traffic.flagged,
        "flagged_pieces": audit.traffic.pieces,
        "expected_false": None if audit.expected_false is None else audit.expected_false._asdict(),
        **audit.facts,
        "reserved": audit.traffic.reserved,
        "unheld": audit.traffic.unheld,
        "never_audited": list(audit.unadmitted),
    }


def check_and_tell(config: Path, date: datetime.datetime | None, form: Form, share: "DriverShare | None") -> int:
    """Check everything that a scan of the input, or of a part, needs, and estimate its cost. Return the exit code."""
    _wait("loading numba and Ray")
    from scanner.cluster.scan_check import check_scan

    if not compiled_before():
        _wait(COMPILING)
    answers = {}
    steps = check_scan(config, None if date is None else date.date(), share, _wait)
    with interrupts_noted() as check:
        while True:
            with contextlib.redirect_stdout(sys.stderr):  # Ray prints to stdout
                step = next(steps, None)
            check()
            if step is None:
                break
            answers[step.name] = step.facts
            if form == "text":
                head, *more = step.says
                tell(f"{step.name:<13}{head}", *(f"{'':<13}{line}" for line in more))
    if form == "json":
        say_json({"exit_code": 0, **answers})
    else:
        options = (f" --date {date:%Y-%m-%d}" if date else "") + (f" --part {share}" if share else "")
        if advice := advise_fast_backend():
            tell(f"{'speed':<13}{advice}")
        tell(f"Ready to run: brickscan scan {config}{options}")
    return 0


def _wait(step: str) -> None:
    """Show the current slow step on a terminal. In a log, the lines of the checks suffice."""
    if sys.stderr.isatty():
        complain(f"{step} …")


_CONFIG = NamedPath(path_type=Path)
_date = click.option("--date", type=Day(), help="Date for {date} in the paths: 2026-08-31, or `yesterday` (UTC)")
_follow = click.option(
    "--follow", is_flag=True, help="Keep running and scan files as they arrive, until SIGTERM or Ctrl-C"
)
_part = click.option(
    "--part",
    type=PartOfInput(),
    help="One of n parts of the files, for example 1/3, with other drivers scanning the rest; finally, scan once "
    "without it",
)
_verbose = click.option(
    "--verbose", is_flag=True, help="Also show counts of the audit, progress, and a query in Python"
)
_check = click.option(
    "--check", is_flag=True, help="Check everything the scan needs, estimate its cost, and write nothing"
)


class _ScanOptions(TypedDict):
    config: Path
    date: datetime.datetime | None
    part: "DriverShare | None"
    follow: bool
    check: bool
    form: Form
    verbose: bool


def _with_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in (_verbose, summary_option, _check, _follow, _part, _date):
        command = option(command)
    return command


@click.command()
@click.argument("config", type=_CONFIG)
@_with_options
def scan(**given: Unpack[_ScanOptions]) -> int:
    """Scan the files that CONFIG names, and add verdicts to its tables.

    CONFIG is a TOML file; `brickscan schema scan` lists its fields. Files that were scanned before are skipped, so you
    can run this again after any interruption.

    \b
    Exit codes:
      0    done; documents in quarantine are listed, not an error
      1    failed
      2    refused before any work
      3    the audit raised an alarm, or a flag could not be proved
      4    nothing was read, or more was unreadable than CONFIG allows
      5    fewer canaries were found than planned
      130  interrupted by Ctrl-C; 143: by SIGTERM (--follow ends with 0)

    \b
    Example:
      brickscan scan scan.toml --date 2026-08-31 --check
      brickscan scan scan.toml --date 2026-08-31
    """
    return _do(given)


@click.command(name="python -m jobs.scan")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.config.ScanConfig")
@_with_options
def module(**given: Unpack[_ScanOptions]) -> int:
    """Do what `brickscan scan CONFIG` does; for schedulers and `ray job submit`."""
    return _do(given)


def _do(given: _ScanOptions) -> int:
    config, date, share, form = given["config"], given["date"], given["part"], given["form"]
    if given["follow"] and given["check"]:
        raise click.UsageError("Give either --follow or --check; --check looks only once.")
    if given["follow"] and share:
        raise click.UsageError("Give either --follow or --part; --follow scans all files as they arrive.")
    with failures_too(form):
        if given["check"]:
            return check_and_tell(config, date, form, share)
        if given["follow"]:
            return follow_and_tell(config, date, form)
        return scan_and_tell(config, date, form, share, verbose=given["verbose"])


def scan_and_tell(
    config: Path,
    date: datetime.datetime | None = None,
    form: Form = "text",
    share: "DriverShare | None" = None,
    *,
    verbose: bool = False,
) -> int:
    """Run a scan with progress on stderr and the summary of jobs.summary on stdout. Return the exit code."""
    progress = Progress()
    progress.show_step("loading numba and Ray")
    from scanner.cluster.scan import run_scan

    plan = make_plan(config, None if date is None else date.date())
    if not compiled_before():
        progress.compiling()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints to stdout, which is for the summary
            outcome = run_scan(plan, progress, share=share, wait=progress.show_step)
    finally:
        progress.close()
    if outcome.audit is not None:
        progress.audited(outcome.audit)
    if form == "json":
        say_json(outcome_record(outcome, plan))
    else:
        advice = [sentence for sentence in (advise_fast_backend(),) if sentence]
        cautions = [*plan.cautions, *advice]
        tell(*summary(outcome, plan.results, plan.config.false_positive_rate, cautions, verbose=verbose).split("\n"))
    return outcome.exit_code


def follow_and_tell(config: Path, date: datetime.datetime | None, form: Form) -> int:
    """Scan files as they land, with a status line a minute on stderr and a summary on stdout. Return the exit code."""
    from scanner.cluster.follow import follow

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
        f"{counted(done.scans, 'scan')} of {counted(done.files, 'file')}; {counted(done.documents, 'document')}, "
        f"{done.flagged:,} flagged; in quarantine {counted(done.quarantined, 'document')}, "
        f"{counted(done.files_quarantined, 'file')}; tables {results}"
    )
    return code


if __name__ == "__main__":
    end(run(module))

"""`brickscan scan CONFIG`, the same as `python -m jobs.scan --config CONFIG`: a night's files in, verdicts out."""

import contextlib
import dataclasses
import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.cli import end, run
from jobs.scan_check import check_and_tell
from jobs.scan_json import Form, failures_too, of_outcome, say_json, summary_option
from jobs.text import printable

if TYPE_CHECKING:
    from scanner.cluster import Counts, Outcome

_CONFIG = click.Path(path_type=Path)
_date = click.option(
    "--date",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Fills {date} in the configured paths, as in 2026-08-31.",
)
_follow = click.option(
    "--follow", is_flag=True, help="Keep running, and scan files as they land, until SIGTERM or Ctrl-C."
)
_check = click.option(
    "--check", is_flag=True, help="Look at all that the scan needs, estimate its cost, and write nothing."
)


@click.command()
@click.argument("config", type=_CONFIG)
@_date
@_follow
@_check
@summary_option
def scan(config: Path, date: datetime.datetime | None, follow: bool, check: bool, form: Form) -> int:
    """Scan the files that CONFIG names, as far as they are not scanned yet, and add verdicts to its tables.

    CONFIG: a TOML file; the README shows its fields. Run again after an interruption, it goes on from what was
    committed. Exit codes: 0 done (documents in quarantine included), 1 failed, 2 refused before any work, 3 the audit
    raises an alarm: p-values are too small, or a flag was not proved (a sentence says which), 4 nothing was read
    (unless allow_empty is set) or more is in quarantine than the configuration allows, 130 and 143 interrupted by
    Ctrl-C and SIGTERM, which are how --follow is meant to end: there it is 0 then.

    \b
    Example:
      brickscan scan nightly.toml --date 2026-08-31 --check
      brickscan scan nightly.toml --date 2026-08-31
    """
    return _do(config, date, follow, check, form)


@click.command(name="python -m jobs.scan")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.config.ScanConfig.")
@_date
@_follow
@_check
@summary_option
def module(config: Path, date: datetime.datetime | None, follow: bool, check: bool, form: Form) -> int:
    """Do what `brickscan scan CONFIG` does; for schedulers and `ray job submit`."""
    return _do(config, date, follow, check, form)


def _do(config: Path, date: datetime.datetime | None, follow: bool, check: bool, form: Form) -> int:
    if follow and check:
        raise click.UsageError("Give --follow or --check; --check looks once at what is there.")
    with failures_too(form):
        if check:
            return check_and_tell(config, date, form)
        return follow_and_tell(config, date, form) if follow else scan_and_tell(config, date, form)


def scan_and_tell(config: Path, date: datetime.datetime | None = None, form: Form = "text") -> int:
    """Run a scan with progress on stderr and a summary on stdout. Returns the exit code.

    Raises:
        BrickscanError: see scanner.errors.
    """
    from jobs.progress import Progress
    from scanner.cluster import run_scan
    from scanner.detection.scan_plan import make_plan
    from scanner.watermark.kernel import compiled_before

    plan = make_plan(config, None if date is None else date.date())
    progress = Progress()
    if not compiled_before():
        progress.compiling()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints to stdout, which is for the summary
            outcome = run_scan(plan, progress)
    finally:
        progress.close()
    if outcome.audit is not None:
        progress.audited(outcome.audit)
    if form == "json":
        say_json(of_outcome(outcome, plan))
    else:
        click.echo(summary(outcome, plan.results, plan.config.false_positive_rate))
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
    click.echo(
        f"{done.scans:,} scans of {done.files:,} files; {done.documents:,} documents, {done.flagged:,} flagged; "
        f"in quarantine {done.quarantined:,} documents, {done.files_quarantined:,} files; tables {results}"
    )
    return code


def summary(outcome: "Outcome", results: str, false_positive_rate: float) -> str:
    """What a scan did, in a few lines for people, and the line that queries it."""
    from scanner.results.reasons import in_words

    work, counts, seconds = outcome.work, outcome.totals.counts, max(outcome.seconds, 1e-9)
    why = f" ({in_words(outcome.unread.reasons)})" if outcome.unread.reasons else ""
    lines = [
        f"scan {outcome.scan_id}: {counts.documents:,} documents in {seconds:.1f} s "
        f"({counts.documents / seconds:,.0f} documents/s, {counts.text_bytes / 1e6 / seconds:.2f} MB/s); "
        f"{work.skipped:,} of {work.shards:,} shards were committed before",
        f"flagged      {counts.flagged:,} documents flagged, at a false-positive rate of {false_positive_rate:g}",
        f"too short    {counts.too_short:,} documents",
        f"quarantined  {counts.quarantined:,} documents, {outcome.totals.files_quarantined:,} files{why}",
        f"tables       {results}",
        f'query        from scanner import results; results.flagged("{results}").collect()',
    ]
    if counts.scored_in_part:
        lines.insert(
            3, f"in part      {counts.scored_in_part:,} documents: invalid bytes replaced, the first 16 MiB scored"
        )
    lines[2:2] = _proved(counts)
    if outcome.first_commit is not None:
        peak = outcome.totals.peak_memory / 2**20
        lines.insert(
            -2, f"commits      first after {outcome.first_commit:.1f} s; a worker needed at most {peak:,.0f} MiB"
        )
    lines[-2:-2] = _odd_values(counts)
    if outcome.second_scores:
        lines.insert(
            -2, f"second       {outcome.second_scores:,} second scores, from the same draws: they confirm nothing"
        )
    if outcome.audit is not None:
        lines[-2:-2] = outcome.audit.lines()
    if outcome.dropped:
        lines.insert(-2, f"dropped      {outcome.dropped:,} rows of nights that are older than `retain`")
    lines[-2:-2] = _passed_over(outcome)
    if outcome.unread.nothing:
        lines.append(outcome.unread.nothing)
    if outcome.exit_code > 128:
        lines.append(
            f"Interrupted: {outcome.totals.shards + work.skipped:,} of {work.shards:,} shards are committed. "
            "Run the same command again to go on from there."
        )
    if outcome.exit_code == 4 and not outcome.unread.nothing:
        lines.append("More is in quarantine than max_quarantined_share allows: see the table `quarantine`.")
    return "\n".join(lines)


def _proved(counts: "Counts") -> list[str]:
    """How many flags were computed again, and what became of the others."""
    if not counts.flagged:
        return []
    not_drawn = counts.flagged - counts.proved - counts.unproved - counts.not_offered
    others = {
        "came out differently and name nobody": counts.unproved,
        "were not drawn, since there were too many": not_drawn,
        "are of formats that offer no proof": counts.not_offered,
    }
    said = "".join(f"; {number:,} {what}" for what, number in others.items() if number)
    return [f"proved       {counts.proved:,} flags came out the same by a slow path of their own{said}"]


def _passed_over(outcome: "Outcome") -> list[str]:
    from scanner.cluster.unread import other_names

    over = outcome.unread.passed_over
    if not over:
        return []
    return [
        f"passed over  {len(over):,} files that do not end in .parquet ({printable(other_names(over))}), "
        f"such as {printable(over[0])}"
    ]


def _odd_values(counts: "Counts") -> list[str]:
    said = []
    if counts.values_not_read:
        said.append(
            f"columns      {counts.values_not_read:,} documents have an id, account or time that cannot be read, "
            "and is null"
        )
    if counts.in_future:
        said.append(
            f"times        {counts.in_future:,} documents are of a time to come, which counts as now: is the clock "
            "right, and input.time_zone?"
        )
    if counts.older_than_key:
        said.append(
            f"times        {counts.older_than_key:,} flagged documents are older than their key, by their own time or, "
            "where they have none, their file's: chance flagged them, or these times are wrong"
        )
    return said


if __name__ == "__main__":
    end(run(module))

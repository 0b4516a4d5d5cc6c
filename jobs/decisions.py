"""Run `brickscan review`, `decide` and `export`: send flags to people who decide on them, and record the decisions."""

import contextlib
import getpass
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jobs.options import (
    NamedPath,
    Whole,
    results_argument,
    results_at,
    scanned,
    since_option,
    until_option,
    visible,
)
from jobs.text import complain, tell
from scanner.errors import Refused, install_of
from scanner.interrupts import Terminated
from scanner.printable import printable
from schemas.words import ReviewDecision

if TYPE_CHECKING:
    from scanner.evidence.explainer import Explainer
    from scanner.evidence.explanation import Explanation
    from scanner.results.flags import WantedFlags
    from scanner.service.serving import Server
    from schemas.verdict import Verdict


@contextlib.contextmanager
def needs_extra(command: str, extra: str = "review") -> Iterator[None]:
    """Refuse if an import fails in this context, and name the extra that installs the package.

    Raises:
        Refused: the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise Refused(f"{command} needs {error.name}; install it with {install_of(extra)}") from None


def run_until_ended(server: "Server", command: str) -> None:
    """Serve until Ctrl-C, or SIGTERM, which is raised again."""
    try:
        server.run()
    except Terminated:
        raise
    except KeyboardInterrupt:
        tell(f"{command}: ended")


by_option = click.option("--by", metavar="NAME", help="Name of the person who decides  [default: your login name]")


def login_name() -> str:
    """Return the name of the user who runs this. `unknown`: the machine has no name for them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have a user who is in no list
        return "unknown"


@click.command()
@results_argument
@click.argument("document", metavar="[DOC]", required=False)
@click.argument(
    "decision", metavar="[DECISION]", required=False, type=click.Choice([entry.value for entry in ReviewDecision])
)
@click.option("--note", help="Reason, in words")
@by_option
@click.option(
    "--from",
    "file",
    type=NamedPath(path_type=Path, dir_okay=False, exists=True),
    help="File of decisions (.csv or .jsonl), instead of DOC and DECISION",
)
def decide(
    results: str, document: str | None, decision: str | None, note: str | None, by: str | None, file: Path | None
) -> None:
    """Record a decision on one flag, or many from a file.

    A decision is confirmed, quoted, dismissed, unclear or allowed. DOC is the id of a flagged document, or PATH:ROW. No
    decision is ever changed: the newest of each person counts, and people who differ are both shown.

    A file needs the columns `id` (of the flag, as `export` prints it), `decision` and `decided_by`, and may have
    `decided_at` (with its time zone) and `note`. Equal rows count once, so you can give a file that grows again and
    again. If any row is wrong, nothing is recorded and each wrong row is named.

    \b
    Example:
      brickscan decide scan.toml post-4711 quoted --note "the first comment quotes it"
      brickscan decide scan.toml --from decisions.csv
    """
    if file is not None:
        if any(value is not None for value in (document, decision, note, by)):
            raise click.UsageError(
                "--from does not go with DOC, DECISION, --note or --by: the file has them in each row."
            )
        _decide_from(results, file)
        return
    if document is None or decision is None:
        raise click.UsageError("Give DOC and DECISION, or --from and a file of decisions.")
    from scanner.evidence.case import find_case
    from scanner.results.decision_log import NewDecision, decide, new_id, on_documents
    from scanner.signing import unchecked_notes

    location = results_at(results)
    new_decision = NewDecision(new_id(), by or login_name(), "command", decision, note or "")
    case = find_case(location.folder, location.false_positive_rate, document)
    decide(location.folder, case.row, new_decision)
    ((_, decisions),) = on_documents(location.folder, [case.row]).items()
    tell(f"{printable(case.where)}: {decision}, by {printable(new_decision.decided_by)}")
    others = [entry for entry in decisions if entry["decided_by"] != new_decision.decided_by]
    tell(*(f"  {printable(entry['decided_by'])} decided: {entry['decision']}" for entry in others))
    complain(*unchecked_notes(location.folder))


_FAULTS_SHOWN = 10


def _decide_from(results: str, file: Path) -> None:
    from scanner.results.decision_file import WrongRows, record_file
    from scanner.signing import unchecked_notes

    location = results_at(results)
    try:
        outcome = record_file(location.folder, location.false_positive_rate, file)
    except WrongRows as wrong:
        complain(*(f"{file}: {fault}" for fault in wrong.faults[1:_FAULTS_SHOWN]))
        raise
    tell(f"{file}: {outcome.new:,} recorded, {outcome.recorded_before:,} recorded before")
    complain(*(f"{file}, {line}" for line in outcome.changed_since))
    complain(*unchecked_notes(location.folder))
    if outcome.under_alarm:
        complain(
            f"{outcome.under_alarm:,} of them on flags of scans whose audit raised an alarm: `brickscan status` says "
            "why"
        )


REVIEW_PORT = 8747


@click.command()
@results_argument
@click.option("--port", default=REVIEW_PORT, show_default=True, type=Whole(0, 65535), help="Port; 0: any free one")
@by_option
def review(results: str, port: int, by: str | None) -> None:
    """Look at flags in a browser, one after the other, and decide on each.

    Decisions are confirmed, quoted, dismissed, unclear and allowed. The app listens on 127.0.0.1 only, for anyone who
    has the address that it prints. It works by keyboard and without scripts. Several reviewers can each run their own.
    Ctrl-C ends it; decisions are kept.

    \b
    Example:
      brickscan review scan.toml --by ruth
    """
    with needs_extra("review"):
        from scanner.service.review_app import ReviewServer
    from scanner.evidence.explainer import Explainer

    location = results_at(results)
    if not scanned(location):
        return
    server = ReviewServer(Explainer(location.config or location.folder), by or login_name(), port)
    tell(
        f"review: {server.address}",
        f"as {printable(server.by)}; anyone who has this address can see all flags and decide; Ctrl-C ends the app",
    )
    run_until_ended(server, "review")


_EXPORTS = ("verdict", "label-studio", "csv")
_WITH_ACCOUNTS = ("verdict", "csv")


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@click.option("--format", "form", type=click.Choice(_EXPORTS), default="verdict", show_default=True)
@since_option
@until_option
@click.option("--accounts", is_flag=True, help="Marked accounts instead of flags (verdict and csv)")
@click.option("--open", "undecided", is_flag=True, help="Only flags without a decision")
def export(
    config: Path,
    form: str,
    since: datetime | None,
    until: datetime | None,
    accounts: bool,
    undecided: bool,
) -> int:
    """Print flags for other systems, as neutral records, Label Studio tasks or a sheet.

    `verdict` prints one JSON object per line (`brickscan schema verdict`), `label-studio` a JSON list of tasks, `csv` a
    table without formulas. Nothing is sent anywhere. `decide --from` takes back what others decided. Exit code 1: a
    task lacks its text.

    \b
    Example:
      brickscan export scan.toml --since 2026-11-20 > verdicts.jsonl
      brickscan export scan.toml --format csv --open > open.csv
      brickscan export scan.toml --accounts --format csv > accounts.csv
    """
    if accounts and (form not in _WITH_ACCOUNTS or undecided):
        raise click.UsageError(
            f"--accounts goes with --format {' or '.join(_WITH_ACCOUNTS)}, and not with --open: decisions are not "
            "recorded on accounts."
        )
    from scanner.evidence.explainer import Explainer
    from scanner.results.flags import WantedFlags
    from scanner.results.queries import of_trial
    from scanner.signing import unchecked_notes

    explainer = Explainer(config)
    query = WantedFlags(since, until, state="open" if undecided else None)
    if of_trial(explainer.results):
        raise Refused(
            f"results: {explainer.results} has results of a trial, which must not be exported to other systems"
        )
    code = 0
    if accounts:
        _accounts(explainer, config, form, since, until)
    else:
        code = _flags(explainer, config, form, query)
    complain(*unchecked_notes(explainer.results))
    return code


def _flags(explainer: "Explainer", config: Path, form: str, query: "WantedFlags") -> int:
    from scanner.exports import csv_lines
    from scanner.results.flags import count_flags

    counted = count_flags(explainer.results, explainer.rate, query, explainer.canaries)
    complain(counted.in_words() + " (the canaries’ are left out)" * bool(counted.canaries))
    verdicts = _verdicts(explainer, config, query)
    if form == "csv":
        for line in csv_lines(verdict for _, verdict in verdicts):
            tell(line)
    elif form == "label-studio":
        return _tasks(verdicts)
    else:
        for _, verdict in verdicts:
            tell(visible(json.dumps(verdict.model_dump(mode="json"))))
    return 0


def _verdicts(explainer: "Explainer", config: Path, query: "WantedFlags") -> "Iterator[tuple[Explanation, Verdict]]":
    from scanner.evidence.case import FlagCase
    from scanner.exports import verdict_of
    from scanner.results import scans
    from scanner.results.flags import newest
    from scanner.results.queries import ask

    rows = newest(explainer.results, explainer.rate, query, None, fold=False, canaries=explainer.canaries).rows
    scan_of = {
        scan["scan_id"]: scan for scan in ask(explainer.results, lambda: scans(explainer.results).collect()).to_dicts()
    }
    cases = [FlagCase(row, scan_of.get(row["scan_id"])) for row in rows.sort("path", "row").iter_rows(named=True)]
    for explained in explainer.explain_cases(cases):
        yield explained, verdict_of(explained, str(config))


def _accounts(explainer: "Explainer", config: Path, form: str, since: datetime | None, until: datetime | None) -> None:
    from scanner.exports import account_csv_lines, account_verdict_of
    from scanner.looks.marked_accounts import accounts_unread

    verdicts = (account_verdict_of(explained, str(config)) for explained in accounts_unread(explainer))
    accounts = [
        verdict
        for verdict in verdicts
        if (since is None or verdict.scanned_at >= since) and (until is None or verdict.scanned_at < until)
    ]
    if form == "csv":
        tell(*account_csv_lines(accounts))
    else:
        tell(*(visible(json.dumps(verdict.model_dump(mode="json"))) for verdict in accounts))


def _tasks(verdicts: "Iterator[tuple[Explanation, Verdict]]") -> int:
    """Print tasks. If a flag's text cannot be read, the others are printed all the same."""
    from scanner.exports import label_studio_task

    tasks, code = [], 0
    for explained, verdict in verdicts:
        if explained.text is None:
            complain(f"not exported: its text is needed, and {explained.no_text}")
            code = 1
        else:
            tasks.append(label_studio_task(verdict, explained.text))
    tell(visible(json.dumps(tasks)))
    return code

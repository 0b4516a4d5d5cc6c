"""Run `brickscan calibrate CONFIG` (or `python -m jobs.calibrate --config CONFIG`): test our own p-values.

This module also has the commands of `brickscan keys` that follow an audit: admission, the audit secret, published
commitments.
"""

import contextlib
import datetime
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli import end, run, when_interrupted
from jobs.options import Folder, NamedPath, Real, Whole, sign_results, yes_option
from jobs.text import StepProgress, columns, complain, tell
from scanner.errors import Refused, ScanFailed, in_a_line, install_of
from scanner.printable import counted
from scanner.registry import (
    admit_key,
    check_audit_secret,
    find_key,
    load_registry,
    make_audit_secret,
    read_secret,
    set_audit_secret,
)
from scanner.registry.keys_file import PublishedLine, faults, find_missing_keys, publish, read_published
from schemas.words import AuditVerdict

if TYPE_CHECKING:
    from scanner.audit.calibration.calibration_plan import CalibrationPlan
    from scanner.cluster.calibrate import CalibrationCounts

AUDIT_FAILED = 3

_CONFIG = NamedPath(path_type=Path)
_date = click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="Date for {date} in the corpus's paths")
_down_to = click.option(
    "--down-to",
    type=Real(0, 1, min_open=True),
    default=1e-6,
    show_default=True,
    metavar="P",
    help="p-value to plan for: how many documents admit a key down to it",
)
_all = click.option("--all", "everything", is_flag=True, help="Undecided thresholds too")
_show = click.option("--show-text", is_flag=True, help="Show the text of n-grams that repeat or that make keys hit")


@click.command()
@click.argument("config", type=_CONFIG)
@_date
@_down_to
@_all
@_show
def calibrate(config: Path, date: datetime.datetime | None, down_to: float, everything: bool, show_text: bool) -> int:
    """Measure the false-positive rate on text that is known to be unmarked, as a table and plots.

    CONFIG is a TOML file; `brickscan schema calibrate` lists its fields. Exit codes: 0 no p-value is too small, 1
    failed, 2 refused before any work, 3 some p-values are too small.

    \b
    Example:
      brickscan calibrate calibration.toml
      brickscan calibrate calibration.toml --all --down-to 1e-8
    """
    return calibrate_and_tell(config, date, show_text, down_to, everything)


@click.command(name="python -m jobs.calibrate")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.audit.CalibrationConfig")
@_date
@_down_to
@_all
@_show
def module(config: Path, date: datetime.datetime | None, down_to: float, everything: bool, show_text: bool) -> int:
    """Do what `brickscan calibrate CONFIG` does; for schedulers and `ray job submit`."""
    return calibrate_and_tell(config, date, show_text, down_to, everything)


def calibrate_and_tell(
    config: Path, date: datetime.datetime | None, show_text: bool, down_to: float, everything: bool
) -> int:
    """Run an audit with progress on stderr and a summary on stdout. Return the exit code."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused(f"calibrate needs matplotlib; install it with {install_of('audit')}")
    from scanner.audit.calibration.admission import ALARM_WORDS, admissions, signable
    from scanner.audit.calibration.calibration_plan import plan_calibration
    from scanner.audit.calibration.calibration_report import all_rows
    from scanner.audit.statistics.audit_rows import Audit, failing
    from scanner.cluster.calibrate import run_calibration
    from scanner.results.transactions import append_audits, refuse_changed_tables

    plan = plan_calibration(config, None if date is None else date.date())
    if plan.audited is not None:  # refuse tables that cannot be committed to now, before hours of work
        sign_results(plan.results, plan.audited.registry)
        refuse_changed_tables(plan.results)
    audit = Audit.begin(plan.config_sha256, ", ".join(plan.locations), plan.config.seed, plan.config.family_error)
    began = time.monotonic()
    with (
        when_interrupted("calibrate: nothing was written; run it again from the start") as check,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints to stdout, where only the summary belongs
    ):
        counts = run_calibration(plan, f"{plan.results}/.tokens-{audit.audit_id}", StepProgress("calibrate", check))
    rows = all_rows(audit, plan, counts.law, counts.fragments, counts.keys, counts.filters)
    append_audits(plan.results, rows)
    files = _write_files(plan, audit.audit_id, rows, counts, show_text)
    tell(
        f"audit {audit.audit_id}: {counted(counts.documents, 'document')}, "
        f"{counted(counts.distinct, 'distinct text')}, {time.monotonic() - began:.0f} s; "
        f"{len(rows):,} rows in {plan.results}/audits"
    )
    tell(*table(rows, everything))
    for file in files:
        tell(f"wrote {file}")
    sentences = list(failing([row for row in rows if _is_claim(row)], ALARM_WORDS))
    for sentence in sentences:
        tell(f"FAILED: {sentence}")
    tell(*_why(rows), *admissions(rows, down_to), *signable(rows, down_to))
    return AUDIT_FAILED if sentences else 0


def _why(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines that tell a key that fails from a broken law."""
    wrong = {row["kind"] for row in rows if row["verdict"] == "too small"}
    law = {row["kind"] for row in rows if row["kind"].startswith("law")}
    if not law or wrong & law or not wrong & {"key", "key_messages"}:
        return []
    return [
        "With fresh keys for every document, the law itself holds on this corpus. So either the corpus contains text "
        "that was marked with the failing key (its hits then hardly fall with the threshold), or n-grams that many of "
        "the texts share happen to score well under the key, as in texts filled in from one template (the details "
        "count them): leave these n-grams out with a section [keys.filter], as scans do with `filter`, or admit "
        "another key."
    ]


def _is_claim(row: Mapping[str, Any]) -> bool:
    """Return whether a panel is a claim.

    brickscan claims the exact test without repeats. The other panels show the reasons.
    """
    return row["kind"] != "figure" or (row["test"], row["dedup"]) == ("exact", "ngram")


_HEAD = (
    "question",
    "key or format",
    "p up to",
    "tests",
    "reached",
    "expected",
    "reached / expected",
    "pieces",
    "verdict",
)


def table(rows: list[dict[str, Any]], everything: bool = True) -> list[str]:
    """Write the rows of whole formats and keys for people, and the number of other rows by verdict.

    everything: whether undecided rows are included.
    """
    from scanner.audit.calibration.admission import QUESTION_WORDS
    from scanner.audit.statistics.audit_rows import number

    listed = [row for row in rows if everything or row["verdict"] != AuditVerdict.UNDECIDED]
    lines = [
        (
            QUESTION_WORDS[row["kind"]],
            row["key_id"] or row["method"],
            f"{row['threshold']:g}",
            f"{row['tests']:,}",
            f"{row['hits']:,}",
            number(row["expected"]),
            f"{row['hits'] / row['expected']:.3f}" if row["expected"] else "unknown",
            f"{row['clusters']:,}" if row["kind"] == "key" else "-",
            row["verdict"],
        )
        for row in listed
        if row["measure"] == "rate" and row["kind"] in QUESTION_WORDS
    ]
    counts = Counter(
        (row["kind"], row["measure"], f"{row['test']} {row['dedup']}", row["verdict"])
        for row in listed
        if row["kind"] in ("law", "figure")
    )
    words = [f"{' '.join(name[:3])}: {counted(count, 'row')} {name[3]}" for name, count in sorted(counts.items())]
    if len(listed) < len(rows):
        words.append(f"{counted(len(rows) - len(listed), 'row')} undecided, for lack of data (--all shows them)")
    return [*(columns([_HEAD, *lines]) if lines else ()), *words]


def _write_files(
    plan: "CalibrationPlan", audit_id: str, rows: list[dict[str, Any]], counts: "CalibrationCounts", show_text: bool
) -> list[str]:
    from scanner.audit.calibration.calibration_report import FRAGMENT_THRESHOLDS, details, fragments_png, law_png
    from scanner.storage.locations import filesystem_of, write_new

    files = {"details.json": json.dumps(details(plan, counts.fragments, counts.keys, show_text), indent=1).encode()}
    if counts.fragments:
        files["figure.png"] = fragments_png(counts.fragments, FRAGMENT_THRESHOLDS)
    if any(row["kind"] == "law_total" for row in rows):
        files["law.png"] = law_png(rows)
    filesystem, folder = filesystem_of(f"{plan.results}/figures")
    filesystem.create_dir(folder, recursive=True)
    for name, data in files.items():
        try:
            write_new(f"{plan.results}/figures/{audit_id}-{name}", data)
        except OSError as error:
            raise ScanFailed(f"results: {folder}/{audit_id}-{name} cannot be written: {in_a_line(error)}") from None
    return [f"{plan.results}/figures/{audit_id}-{name}" for name in files]


if __name__ == "__main__":
    end(run(module))

_registry = click.option("--registry", required=True, type=NamedPath(path_type=Path), help="Folder of the registry")


@click.command(short_help="Record that a key passed its audit.")
@click.argument("key_id")
@_registry
@click.option("--results", required=True, metavar="DIR", help="Folder of `brickscan calibrate` for this key")
@click.option("--candidates", type=Whole(1), help="Number of keys that were tried  [default: as audited]")
@click.option(
    "--down-to",
    type=Real(0, 1, min_open=True),
    default=1.0,
    metavar="P",
    help="p-value down to which the rate must be known to hold, for example 1e-6",
)
def admit(key_id: str, registry: Path, results: str, candidates: int | None, down_to: float) -> None:
    """Record that a key passed its audit, and how many keys were tried to find it.

    The key's newest audit decides: no p-value too small, and the rate shown to hold down to some p-value. Scans with
    `audit.require_admission` use only keys admitted down to their rate.

    \b
    Example:
      brickscan keys admit summer-2026 --registry registry --results audit --down-to 1e-6
    """
    from scanner.audit.calibration.admission import admission_of, in_words
    from scanner.results.queries import audits
    from scanner.signing import signer_of, unchecked

    key = find_key(load_registry(registry), key_id)
    sign_results(results, registry)
    rows = audits(results).collect()
    signer = signer_of(results)
    if signer is not None and "audits" in signer.unsigned:
        raise Refused(
            f"results: the audits in {results} are not signed, so anybody may have written them, for example because "
            "the first calibration had no [keys] and so no registry to sign with. Audit keys into a separate folder"
        )
    if signer is not None and "audits" in signer.off_record:
        raise Refused(f"results: audits in {results} cannot admit a key: {unchecked(results)}")
    passed = admission_of(key, rows, candidates, down_to)
    admit_key(registry, key_id, passed)
    tell(
        f"{key_id} passed audit {passed.audit_id}: its rate holds down to p = {passed.holds_down_to:g}"
        f"{'' if passed.filter is None else f', {in_words(passed.filter)}'}; "
        f"{passed.candidates} keys were tried"
        + (f", so multiply its p-values by {passed.candidates}" if passed.candidates > 1 else "")
    )


@click.command("audit-secret", short_help="Change the secret that signs results.")
@_registry
@click.option(
    "--secret", metavar="REFERENCE", help="File or variable, as for `keys new`  [default: file:secrets/decoys.secret]"
)
@yes_option
def audit_secret(registry: Path, secret: str | None, yes: bool) -> None:
    """Change the secret that signs results and draws the decoy keys.

    `keys new` makes one with a registry's first key. Anyone who knows it could write text that hits the decoys, or sign
    tables that they changed.

    With a new secret, all signed results are checked and signed again, so let no scan run meanwhile. If the log of a
    table was changed, nothing happens. A data file that was changed stays refused under the new secret. Results that
    are not there are refused too; --yes gives up those that were deleted for good. Repeat the call if it was
    interrupted. Keep the first secret: filters and windows of accounts still use it.

    \b
    Example:
      brickscan keys audit-secret --registry registry
      brickscan keys audit-secret --registry registry --secret file:secrets/decoys-2027.secret
    """
    check_audit_secret(registry, secret)  # first, because reading results may take long
    if load_registry(registry).audit_secret is not None:
        _sign_under(registry, secret, yes)
    tell(f"audit secret  {set_audit_secret(registry, secret)}")
    if (first := load_registry(registry).lasting_secret) is not None:
        tell(f"keep {first}: it is needed to match n-gram filters and account windows with earlier nights")


def _sign_under(registry: Path, secret: str | None, yes: bool) -> None:
    """Sign all results of a registry under another secret.

    Raises:
        Refused: signed results are gone, and may come back. Or a table was changed.
    """
    from scanner.registry.signed_tables import read_signed_tables
    from scanner.results.sign_anew import refuse_changed_under, sign_under
    from scanner.signing import keep_signatures, signer_of

    places = read_signed_tables(str(registry)).places()
    if not places:
        return
    gone = list[int]()
    for results, location in places.items():
        sign_results(location, registry)
        signer = signer_of(location)
        is_there = signer is None or signer.results_here() == results
        if not is_there or (signer is not None and signer.missing_tables() == signer.signed_tables()):
            gone.append(results)
    if gone and not yes:
        where = ", ".join(places[results] for results in gone)
        raise Refused(
            f"audit secret: results that were signed under it are missing: {where}. Nothing was changed. Restore or "
            "mount them first; if they were moved, run `brickscan sign` at their new place; if they were deleted for "
            "good, --yes gives them up. If they come back, they are refused until `brickscan sign` signs them"
        )
    reference = make_audit_secret(registry, secret)
    later = read_secret(reference, registry)
    for results, location in places.items():  # check all places before changing one
        if results not in gone:
            refuse_changed_under(location, str(registry), later)
    for results, location in places.items():
        if results in gone:
            if (signer := signer_of(location)) is not None:
                signer.give_up_results(results)
            if (why := keep_signatures(location)) is not None:
                raise Refused(why)
            tell(f"{location}: there are no results there any more")
            continue
        tables = sign_under(location, str(registry), later)
        tell(f"{location}: {counted(tables, 'table')} signed under {reference}")


_file = click.argument("file", type=NamedPath(path_type=Path))


@click.command("publish", short_help="Append commitments to a public list.")
@_file
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry")
def publish_(file: Path, registry: Path | str) -> None:
    """Append the commitments of a registry's keys to FILE, a public list.

    Each line has a running number, the key's messages, the SHA-256 of its tokenizer and record, the head of what claims
    showed, and a root over the users of its messages, which reveals no names. Put the file where others see and copy
    it. Run this after each `keys new` before anything is marked, after you add users, and after each `claim`. A list
    with changed or missing lines is refused.

    \b
    Example:
      brickscan keys publish commitments.txt --registry registry
    """
    lines, new = publish(registry, file)
    tell(*(" ".join(map(str, line[:5])) for line in lines[len(lines) - new :]))
    tell(_in_words(lines) + f"; {new:,} of them new")
    without_commitment = [key.key_id for key in load_registry(registry).keys if key.commitment is None]
    if without_commitment:
        why = "a commitment to a key of fewer than 128 bits would give the key away"
        tell(f"left out, for {why}: {', '.join(without_commitment)}")


@click.command("verify", short_help="Check a public list of commitments.")
@_file
@click.option("--earlier", type=NamedPath(path_type=Path), help="Copy of the list from an earlier day")
@click.option("--registry", type=Folder(), help="Registry whose keys must be in the list (folder or URI)")
def verify(file: Path, earlier: Path | None, registry: Path | str | None) -> int:
    """Check a public list of commitments: that nobody changed it, and how many keys it has.

    To judge a flag under one of these keys, multiply its p-value by their number, unless the scan corrected for as
    many. Exit code 3: lines of the earlier copy are gone, keys of the registry are missing, or a key of the registry
    lost claims or users that the list has. Keys that the registry lacks are named: another registry's, or lost ones.

    \b
    Example:
      brickscan keys verify commitments.txt --earlier copy-of-march.txt
      brickscan keys verify commitments.txt --registry registry
    """
    lines = read_published(file)
    problems = faults(lines, read_published(earlier) if earlier else [], registry)
    missing = [] if registry is None else find_missing_keys(lines, registry)
    tell(_in_words(lines))
    if missing:
        tell(f"the registry lacks these keys of the list, which are another registry's, or lost: {', '.join(missing)}")
    complain(*problems)
    return 3 if problems else 0


def _in_words(lines: list[PublishedLine]) -> str:
    commitments = len({line.commitment for line in lines})
    return f"{counted(commitments, 'commitment')} published, head {lines[-1].head if lines else '-'}"

"""`brickscan calibrate CONFIG`, the same as `python -m jobs.calibrate --config CONFIG`: do our own p-values hold?

And the commands of `brickscan keys` that follow an audit: admission, the audit secret, published commitments.
"""

import contextlib
import datetime
import importlib.util
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli import end, run, when_interrupted
from jobs.options import Folder, NamedPath, Real, Whole, sign_results, yes_option
from jobs.text import StepProgress, complain, tell
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
from scanner.registry.keys_file import PublishedLine, faults, publish, read_published
from schemas.words import AuditVerdict

if TYPE_CHECKING:
    from scanner.audit.calibration.calibration_plan import CalibrationPlan
    from scanner.cluster.calibrate import CalibrationCounts

AUDIT_FAILED = 3

_WHOLE = ("law_total", "law_best_total", "key")
"""Beginnings of the kinds of rows that people are shown one by one."""

_CONFIG = NamedPath(path_type=Path)
_date = click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="Fills {date} in the corpus's paths.")
_down_to = click.option(
    "--down-to",
    type=Real(0, 1, min_open=True),
    default=1e-6,
    show_default=True,
    metavar="P",
    help="Say how many documents it takes to admit a key down to this p-value.",
)
_all = click.option("--all", "everything", is_flag=True, help="Show also what is undecided.")
_show = click.option("--show-text", is_flag=True, help="Write the n-grams that repeat, or that make keys hit, as text.")


@click.command()
@click.argument("config", type=_CONFIG)
@_date
@_down_to
@_all
@_show
def calibrate(config: Path, date: datetime.datetime | None, down_to: float, everything: bool, show_text: bool) -> int:
    """Audit the false-positive rate over a corpus that is known to be unmarked, and write a table and drawings.

    CONFIG: a TOML file; `brickscan schema calibrate` prints its fields.
    Exit codes: 0 no p-value is too small, 1 failed, 2 refused before
    any work, 3 some are: a sentence names each.

    \b
    Example:
      brickscan calibrate calibration.toml
    """
    return calibrate_and_tell(config, date, show_text, down_to, everything)


@click.command(name="python -m jobs.calibrate")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.audit.CalibrationConfig.")
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
    from scanner.audit.calibration.admission import admissions, signable
    from scanner.audit.calibration.calibration_plan import plan_calibration
    from scanner.audit.calibration.calibration_report import all_rows
    from scanner.audit.statistics.audit_rows import Audit, failing
    from scanner.cluster.calibrate import run_calibration
    from scanner.results.transactions import append_audits, refuse_changed_tables

    plan = plan_calibration(config, None if date is None else date.date())
    if plan.audited is not None:  # hours of work follow: tables that cannot be committed to are refused before
        sign_results(plan.results, plan.audited.registry)
        refuse_changed_tables(plan.results)
    audit = Audit.begin(plan.config_sha256, ", ".join(plan.locations), plan.config.seed, plan.config.family_error)
    began = time.monotonic()
    with (
        when_interrupted("calibrate: nothing was written; run it again, from the start") as check,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints to stdout, which is for the summary
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
    sentences = list(failing([row for row in rows if _is_claim(row)]))
    for sentence in sentences:
        tell(f"TOO SMALL: {sentence}")
    tell(*_why(rows), *admissions(rows, down_to), *signable(rows, down_to))
    return AUDIT_FAILED if sentences else 0


def _why(rows: list[dict[str, Any]]) -> list[str]:
    """Tell a key that fails from a broken law."""
    wrong = {row["kind"] for row in rows if row["verdict"] == "too small"}
    law = {row["kind"] for row in rows if row["kind"].startswith("law")}
    if not law or wrong & law or not wrong & {"key", "key_messages"}:
        return []
    return [
        "Under keys drawn for every document the law itself holds on this corpus. So either it contains text that "
        "was marked with the key that fails (its hits then hardly fall with the threshold), or the key meets n-grams "
        "too well that many of the texts share, as fillings of a template do (the details count them): leave these out "
        "by a section [keys.filter], as scans do with `filter`, or admit another key."
    ]


def _is_claim(row: Mapping[str, Any]) -> bool:
    """Return whether a panel is a claim.

    brickscan states the exact test without repeats, and the other panels show why.
    """
    return row["kind"] != "figure" or (row["test"], row["dedup"]) == ("exact", "ngram")


def table(rows: list[dict[str, Any]], everything: bool = True) -> list[str]:
    """Write the rows of whole formats and keys for people, and the number of others by verdict.

    everything: whether undecided rows are among them.
    """
    from scanner.audit.statistics.audit_rows import number

    listed = [row for row in rows if everything or row["verdict"] != AuditVerdict.UNDECIDED]
    lines = []
    for row in listed:
        if row["measure"] == "rate" and row["kind"].startswith(_WHOLE):
            ratio = f"{row['hits'] / row['expected']:.3f}" if row["expected"] else "unknown"
            lines.append(
                f"{row['kind']:14} {row['key_id'] or row['method']:16} p<={row['threshold']:<6g} "
                f"tests {row['tests']:>15,} hits {row['hits']:>13,} expected {number(row['expected']):>13} "
                f"ratio {ratio} dispersion {row['design_effect']:.2f} "
                f"{counted(row['clusters'], 'piece') + ' ' if row['kind'] == 'key' else ''}{row['verdict']}"
            )
    counts: dict[tuple[str, str, str, str], int] = {}
    for row in listed:
        if row["kind"] in ("law", "figure"):
            name = (row["kind"], row["measure"], f"{row['test']} {row['dedup']}", row["verdict"])
            counts[name] = counts.get(name, 0) + 1
    lines += [f"{' '.join(name[:3])}: {count} rows {name[3]}" for name, count in sorted(counts.items())]
    if len(listed) < len(rows):
        lines.append(f"{len(rows) - len(listed)} rows are undecided, for want of data: --all shows them")
    return lines


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

_registry = click.option("--registry", required=True, type=NamedPath(path_type=Path), help="Folder of the registry.")


@click.command()
@click.argument("key_id")
@_registry
@click.option("--results", required=True, metavar="DIR", help="Results of `brickscan calibrate` on this key.")
@click.option("--candidates", type=Whole(1), help="How many keys were tried.  [default: as audited there]")
@click.option(
    "--down-to",
    type=Real(0, 1, min_open=True),
    default=1.0,
    metavar="P",
    help="Refuse unless the rate is known to hold down to this p-value, such as 1e-6.",
)
def admit(key_id: str, registry: Path, results: str, candidates: int | None, down_to: float) -> None:
    """Record that a key passed its audit, and how many keys were tried to find it.

    Its newest audit decides: nothing too small, and the rate known to hold down to some p-value. A configuration with
    `audit.require_admission` refuses to scan with keys that are not admitted down to its false-positive rate. An audit
    with `keys.filter` admits a key for scans whose `filter` leaves out as much.

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
            f"results: nobody signed the audits in {results}, so anybody may have written them: as where a calibration "
            "without [keys] was the first, which names no registry to sign with. Audit keys into a folder of their own"
        )
    if signer is not None and "audits" in (*signer.off_record, *signer.newer_elsewhere):
        raise Refused(f"results: no key is admitted by audits in {results}: {unchecked(results)}")
    passed = admission_of(key, rows, candidates, down_to)
    admit_key(registry, key_id, passed)
    tell(
        f"{key_id} passed audit {passed.audit_id}: its rate holds down to p = {passed.holds_down_to:g}"
        f"{'' if passed.filter is None else f', {in_words(passed.filter)}'}; "
        f"{passed.candidates} keys were tried"
        + (f", so that its p-values are to be multiplied by {passed.candidates}" if passed.candidates > 1 else "")
    )


@click.command("audit-secret")
@_registry
@click.option("--secret", metavar="REFERENCE", help="As for `keys new`.  [default: file:secrets/decoys.secret]")
@yes_option
def audit_secret(registry: Path, secret: str | None, yes: bool) -> None:
    """Name the secret that scans draw decoy keys from; `keys new` makes one with a registry's first key.

    Decoys test in every scan that p-values are not too small. Who knows the secret could write text that hits them, and
    sign tables of results that they changed. With another secret, all results that were signed are checked and signed
    under it first, while no scan runs: where a table was changed, nothing happens. Results that are not there are
    refused too; --yes gives up those that were deleted or moved for good. Call it again if it was interrupted. Texts of
    verdicts are told apart by the secret too: after a change, rows that a commit moved to another file of a Delta or
    Iceberg table are scanned again. Keep the first secret: the registry goes on to name it (`lasting_secret`), since
    filters of n-grams and windows of accounts are held against nights before the change.

    \b
    Example:
      brickscan keys audit-secret --registry registry
      brickscan keys audit-secret --registry registry --secret file:secrets/decoys-2027.secret
    """
    check_audit_secret(registry, secret)  # before results are read, which may take long
    if load_registry(registry).audit_secret is not None:
        _sign_under(registry, secret, yes)
    tell(f"audit secret  {set_audit_secret(registry, secret)}")
    if (first := load_registry(registry).lasting_secret) is not None:
        tell(f"keep {first}: filters of n-grams and windows of accounts are held against nights before by it")


def _sign_under(registry: Path, secret: str | None, yes: bool) -> None:
    """Sign all results of a registry under another secret.

    Raises:
        Refused: results were signed and are gone, and may come back; a table was changed.
    """
    from scanner.registry.signed_tables import read_signed_tables
    from scanner.results.sign_anew import give_up, refuse_changed_under, sign_under
    from scanner.signing import keep_signatures, signer_of

    locations = read_signed_tables(str(registry)).locations()
    if not locations:
        return
    gone = dict[str, list[str]]()
    for location in locations:
        sign_results(location, registry)
        signer = signer_of(location)
        if signer is not None and signer.missing_tables() == signer.signed_tables():
            gone[location] = signer.missing_tables()
    if gone and not yes:
        raise Refused(
            f"audit secret: results were signed under it and are not there: {', '.join(gone)}. Nothing was changed. "
            "Put them back or mount them first; if they were deleted or moved for good, give --yes, which gives them "
            "up. Should they come back after that, they are refused until `brickscan sign` signs them"
        )
    reference = make_audit_secret(registry, secret)
    later = read_secret(reference, registry)
    for location in locations:  # all places are looked at before one is changed
        if location not in gone:
            refuse_changed_under(location, str(registry), later)
    for location in locations:
        if location in gone:
            for name in gone[location]:
                give_up(location, name)
            if (why := keep_signatures(location)) is not None:
                raise Refused(why)
            tell(f"{location}: there are no results any more")
            continue
        tables = sign_under(location, str(registry), later)
        tell(f"{location}: {counted(tables, 'table')} signed under {reference}")


_file = click.argument("file", type=NamedPath(path_type=Path))


@click.command("publish")
@_file
@click.option("--registry", required=True, type=Folder(), help="Folder of the registry.")
def publish_(file: Path, registry: Path | str) -> None:
    """Append the commitments of a registry's keys to FILE, a list for the public, each with a running number.

    A line has the key's messages, the SHA-256 of its tokenizer and of its public record, the head of what claims showed
    of it, and a root over whom its messages were given to, which shows nobody. FILE is made where it is not there; what
    it holds already stays, and a list whose lines were changed or taken out is refused. Put it where others see and
    copy it. Run it after each `keys new`, before anything is marked, after users are added, and after each `claim`.

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


@click.command("verify")
@_file
@click.option("--earlier", type=NamedPath(path_type=Path), help="A copy of the list that somebody kept.")
@click.option("--registry", type=Folder(), help="Folder or URI of a registry, whose keys must be in the list.")
def verify(file: Path, earlier: Path | None, registry: Path | str | None) -> int:
    """Tell whether FILE, a list of published commitments, is as it was written, and how many it holds.

    Whoever believes a flag under one of these keys multiplies its p-value by their number, where the scan's own
    correction counted fewer. Exit code 3: lines of the earlier copy are gone, or keys of the registry are missing. A
    registry that lacks what the list has of its users, or of what claims showed, is refused: an older one was put back.

    \b
    Example:
      brickscan keys verify commitments.txt --earlier copy-of-march.txt
    """
    lines = read_published(file)
    problems = faults(lines, read_published(earlier) if earlier else [], registry)
    tell(_in_words(lines))
    complain(*problems)
    return 3 if problems else 0


def _in_words(lines: list[PublishedLine]) -> str:
    commitments = len({line.commitment for line in lines})
    return f"{counted(commitments, 'commitment')} published, head {lines[-1].head if lines else '-'}"

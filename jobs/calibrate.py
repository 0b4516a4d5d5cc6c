"""`brickscan calibrate CONFIG`, the same as `python -m jobs.calibrate --config CONFIG`: do our own p-values hold?"""

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
from jobs.options import NamedPath
from jobs.text import tell
from scanner.errors import Refused
from schemas.words import AuditVerdict

if TYPE_CHECKING:
    from scanner.audit.calibration.calibration_plan import CalibrationPlan
    from scanner.cluster.calibrate import CalibrationCounts

AUDIT_FAILED = 3

_WHOLE = ("law_total", "law_best_total", "names_", "key")
"""Beginnings of the kinds of rows that people are shown one by one."""

_CONFIG = NamedPath(path_type=Path)
_date = click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="Fills {date} in the corpus's paths.")
_tests = click.option(
    "--tests",
    type=float,
    metavar="N",
    help="Null p-values of each method for the law, such as 1e10, instead of the configured number.",
)
_down_to = click.option(
    "--down-to",
    type=click.FloatRange(0, 1, min_open=True),
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
@_tests
@_down_to
@_all
@_show
def calibrate(
    config: Path, date: datetime.datetime | None, tests: float | None, down_to: float, everything: bool, show_text: bool
) -> int:
    """Audit the false-positive rate over a corpus that is known to be unmarked, and write a table and drawings.

    CONFIG: a TOML file; `brickscan schema calibrate` prints its fields.
    Exit codes: 0 no p-value is too small, 1 failed, 2 refused before
    any work, 3 some are: a sentence names each.

    \b
    Example:
      brickscan calibrate calibration.toml --tests 1e10
    """
    return calibrate_and_tell(config, date, tests, show_text, down_to, everything)


@click.command(name="python -m jobs.calibrate")
@click.option("--config", required=True, type=_CONFIG, help="TOML file, see schemas.audit.CalibrationConfig.")
@_date
@_tests
@_down_to
@_all
@_show
def module(
    config: Path, date: datetime.datetime | None, tests: float | None, down_to: float, everything: bool, show_text: bool
) -> int:
    """Do what `brickscan calibrate CONFIG` does; for schedulers and `ray job submit`."""
    return calibrate_and_tell(config, date, tests, show_text, down_to, everything)


def calibrate_and_tell(
    config: Path,
    date: datetime.datetime | None = None,
    tests: float | None = None,
    show_text: bool = False,
    down_to: float = 1e-6,
    everything: bool = False,
) -> int:
    """Run an audit with progress on stderr and a summary on stdout. Returns the exit code.

    Raises:
        BrickscanError: see scanner.errors.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused("calibrate needs matplotlib; install it with `pip install 'brickscan[audit]'`")
    from jobs.text import StepProgress
    from scanner.audit.calibration.admission import admissions, signable
    from scanner.audit.calibration.calibration_plan import plan_calibration
    from scanner.audit.calibration.one_key import all_rows
    from scanner.audit.statistics.audit_rows import Audit, failing
    from scanner.cluster.calibrate import PIECE_THRESHOLDS, run_calibration
    from scanner.results.tables import append_audits

    if tests is not None and not 1 <= tests <= 1e15:
        raise click.BadParameter(f"{tests:g} is no number of tests; allowed: 1 to 1e15", param_hint="--tests")
    plan = plan_calibration(config, None if date is None else date.date(), None if tests is None else int(tests))
    audit = Audit.begin(plan.config_sha256, ", ".join(plan.locations), plan.config.seed, plan.config.family_error)
    began = time.monotonic()
    with (
        when_interrupted("calibrate: nothing was written; run it again, from the start") as check,
        contextlib.redirect_stdout(sys.stderr),  # Ray prints to stdout, which is for the summary
    ):
        found = run_calibration(plan, f"{plan.results}/.tokens-{audit.audit_id}", StepProgress("calibrate", check))
    rows = all_rows(audit, plan, found.law, found.pieces, PIECE_THRESHOLDS, found.names, found.keys, found.filters)
    append_audits(plan.results, rows)
    files = _write_files(plan, audit.audit_id, rows, found, PIECE_THRESHOLDS, show_text)
    tell(
        f"audit {audit.audit_id}: {found.documents:,} documents, {found.distinct:,} distinct texts, "
        f"{time.monotonic() - began:.0f} s; {len(rows):,} rows in {plan.results}/audits"
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
        "was marked with the key that fails (its hits then hardly fall with the threshold), or the key meets common "
        "n-grams too well (the details count them): admit another key."
    ]


def _is_claim(row: Mapping[str, Any]) -> bool:
    """Whether a panel is a claim: brickscan states the exact test without repeats, and the other panels show why."""
    return row["kind"] != "figure" or (row["test"], row["dedup"]) == ("exact", "ngram")


def table(rows: list[dict[str, Any]], everything: bool = True) -> list[str]:
    """The rows of whole formats and keys for people, and the number of others by verdict; undecided ones if asked."""
    from scanner.audit.statistics.audit_rows import number

    shown = [row for row in rows if everything or row["verdict"] != AuditVerdict.UNDECIDED]
    lines = []
    for row in shown:
        if row["measure"] == "rate" and row["kind"].startswith(_WHOLE):
            ratio = f"{row['hits'] / row['expected']:.3f}" if row["expected"] else "unknown"
            lines.append(
                f"{row['kind']:14} {row['key_id'] or row['method']:16} {_whose(row)}p<={row['threshold']:<6g} "
                f"tests {row['tests']:>15,} hits {row['hits']:>13,} expected {number(row['expected']):>13} "
                f"ratio {ratio} dispersion {row['design_effect']:.2f} {row['verdict']}"
            )
    counts: dict[tuple[str, str, str, str], int] = {}
    for row in shown:
        if row["kind"] in ("law", "figure"):
            name = (row["kind"], row["measure"], f"{row['test']} {row['dedup']}", row["verdict"])
            counts[name] = counts.get(name, 0) + 1
    lines += [f"{' '.join(name[:3])}: {count} rows {name[3]}" for name, count in sorted(counts.items())]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} rows are undecided, for want of data: --all shows them")
    return lines


def _whose(row: Mapping[str, Any]) -> str:
    """The users of a row on texts of several users."""
    return f"{row['test']:18} " if row["kind"] == "names_wrong" else ""


def _write_files(
    plan: "CalibrationPlan",
    audit_id: str,
    rows: list[dict[str, Any]],
    found: "CalibrationCounts",
    piece_thresholds: tuple[float, ...],
    show_text: bool,
) -> list[str]:
    """Write drawings and details beside the table. Returns their paths."""
    from scanner.audit.calibration.calibration_plots import law_png, pieces_png
    from scanner.audit.calibration.one_key import details
    from scanner.storage.locations import filesystem_of

    files = {
        "details.json": json.dumps(
            details(plan, found.pieces, found.names, found.keys, piece_thresholds, show_text), indent=1
        ).encode()
    }
    if found.pieces:
        files["figure.png"] = pieces_png(found.pieces, piece_thresholds)
    if any(row["kind"] == "law_total" for row in rows):
        files["law.png"] = law_png(rows)
    filesystem, folder = filesystem_of(f"{plan.results}/figures")
    filesystem.create_dir(folder, recursive=True)
    for name, data in files.items():
        with filesystem.open_output_stream(f"{folder}/{audit_id}-{name}") as stream:
            stream.write(data)
    return [f"{plan.results}/figures/{audit_id}-{name}" for name in files]


if __name__ == "__main__":
    end(run(module))

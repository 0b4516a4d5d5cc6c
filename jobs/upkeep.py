"""`brickscan compact`, `sign`, `vacuum`, `retain`, `redate`, `migrate`: upkeep of results, also while scans run."""

from datetime import datetime
from pathlib import Path

import click

from jobs.options import (
    Day,
    NamedPath,
    Results,
    Whole,
    confirm,
    dry_run_option,
    results_argument,
    results_at,
    yes_option,
)
from jobs.text import StepProgress, complain, tell
from scanner.printable import counted
from schemas.versions import VERSION


@click.command()
@results_argument
def compact(results: str) -> None:
    """Merge the small files of the tables, so that queries are faster. No row changes.

    Scans may run meanwhile. `brickscan vacuum` deletes the merged files later.

    \b
    Example:
      brickscan compact scan.toml
    """
    from scanner.results import upkeep
    from scanner.signing import unchecked_notes

    location = results_at(results)
    merged = [row for row in upkeep.compact(location.folder) if row[1]]
    for table, gone, made in merged:
        tell(f"{table:<14} {counted(gone, 'file')} merged into {made:,}")
    if not merged:
        tell("No table has small files to merge.")
    complain(*unchecked_notes(location.folder))


@click.command()
@click.argument("config", type=NamedPath(path_type=Path, dir_okay=False, exists=True))
@yes_option
@dry_run_option
def sign(config: Path, yes: bool, dry_run: bool) -> None:
    """Check that nobody changed the tables, and accept changes that were yours.

    Every commit signs its table with the registry's audit secret, and brickscan refuses a table that something else
    changed. If that was you, for example with another program's compaction, this shows what differs, asks, and signs
    the tables as they are. Whatever anybody changed by hand is believed from then on. A table that you deleted is given
    up. --dry-run only checks, every file of every table.

    \b
    Example:
      brickscan sign scan.toml --dry-run
      brickscan sign scan.toml --yes
    """
    from scanner.results.sign_anew import faults_of_tables, give_up, sign_anew

    folder = results_at(str(config)).folder
    faults = {name: fault for name, fault in faults_of_tables(folder).items() if fault is not None}
    if not faults:
        tell("every table is byte for byte as brickscan left it")
        return
    lines = [f"{name}: {fault.why}" for name, fault in faults.items()]
    if confirm([*lines, f"accepts the current state of {counted(len(faults), 'table')}"], yes, dry_run):
        for name, fault in faults.items():
            if fault.is_gone:
                give_up(folder, name)
                tell(f"{name:<14} given up")
            else:
                tell(f"{name:<14} signed; {counted(sign_anew(folder, name, fault.state), 'file')} rewritten")


@click.command()
@results_argument
@click.option(
    "--retention", default=168, show_default=True, type=Whole(24, 168), help="Hours for which unused files are kept"
)
def vacuum(results: str, retention: int) -> None:
    """Delete files that no table needs: of failed attempts, and of merged, replaced or erased rows.

    Files younger than --retention stay, since a running scan may be about to commit them.

    \b
    Example:
      brickscan vacuum scan.toml --retention 48
    """
    from scanner.results import upkeep
    from scanner.signing import unchecked_notes

    location = results_at(results)
    for table, gone, _ in upkeep.vacuum(location.folder, retention):
        tell(f"{table:<14} {counted(gone, 'file')} deleted")
    complain(*unchecked_notes(location.folder))


@click.command()
@results_argument
def migrate(results: str) -> None:
    """Upgrade the tables of an earlier version to this one. No row changes.

    It takes a moment, however large the tables are, and you can interrupt and repeat it. End scans of the earlier
    version first: they refuse the tables from then on. Tables from before 0.1.0 are refused.

    \b
    Example:
      brickscan migrate scan.toml
    """
    from scanner.results import migration
    from scanner.results.transactions import faults_named
    from scanner.signing import unchecked_notes

    location = results_at(results)
    with faults_named(location.folder):
        versions = migration.migrate(location.folder)
    moved = [name for name, version in versions.items() if version != VERSION]
    for name in moved:
        tell(f"{name:<14} upgraded from version {versions[name]} to {VERSION}")
    if not moved:
        tell(f"{counted(len(versions), 'table')} of version {VERSION}, which this brickscan writes: nothing to upgrade")
    complain(*unchecked_notes(location.folder))


@click.command()
@results_argument
@click.option("--keep", required=True, metavar="DAYS", type=Whole(1, 36_500), help="Days for which nights are kept")
@click.option("--keep-flags", is_flag=True, help="Keep the flags of dropped nights, until a run without this option")
@yes_option
@dry_run_option
def retain(results: str, keep: int, keep_flags: bool, yes: bool, dry_run: bool) -> None:
    """Drop nights that are older than a number of days: verdicts, quarantine, counts and flags.

    A night ages from the date of its data or of its scan, whichever is later. Its files stay known, so no later scan
    takes them up again. You can interrupt and repeat it. `brickscan vacuum` then frees the disk.

    \b
    Example:
      brickscan retain scan.toml --keep 400 --keep-flags --yes
    """
    from scanner.results import retention
    from scanner.signing import unchecked_notes

    location = results_at(results)
    folder = location.folder
    old = retention.expired_rows(folder, retention.cutoff(keep), keep_flags=keep_flags)
    complain(*unchecked_notes(location.folder))
    if not old.nights:
        tell(f"no night is older than {counted(keep, 'day')}, counted from its date or its scan, whichever is later")
        return
    note = ", of which current flags are kept" if keep_flags else ""
    nights = f"{counted(len(old.nights), 'night')}, {old.nights[0]} to {old.nights[-1]}"
    summary = f"drops {nights}: {counted(old.documents, 'document')} and "
    if confirm([summary + f"{counted(old.flagged, 'flag')}{note}", *_claims_stay(location)], yes, dry_run):
        rows = retention.retain(folder, old.scans, keep_flags=keep_flags, watch=StepProgress("retain"))
        tell(f"{rows:,} rows dropped")


def _claims_stay(location: Results) -> list[str]:
    """Say that claims stay with who was given them, where the registry knows of any."""
    from scanner.registry import load_registry
    from scanner.registry.shown_seeds import claims_by_text

    if location.registry is None or not claims_by_text(location.registry, load_registry(location.registry).keys):
        return []
    return ["remains: claims that were given to the parties; the seeds they show are public"]


@click.command()
@results_argument
@click.argument("scan_id")
@click.option("--date", "night", required=True, type=Day(), help="Correct date of its data")
def redate(results: str, scan_id: str, night: datetime) -> None:
    """Correct the date of a scan's data, where its --date was wrong.

    SCAN_ID is the one that `brickscan status` shows. Verdicts stay as they are, and the wrong date stays on record. A
    scan with a filter is refused, because its filter used the date.

    \b
    Example:
      brickscan redate scan.toml 20261122T030000Z-1a2b3c4d --date 2026-11-20
    """
    from scanner.results.retention import redate as correct
    from scanner.signing import unchecked_notes

    location = results_at(results)
    old_night = correct(location.folder, scan_id, night.date())
    tell(f"scan {scan_id}: its night is {night:%Y-%m-%d}; it was {old_night}")
    complain(*unchecked_notes(location.folder))

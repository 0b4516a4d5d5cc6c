"""`brickscan flagged CONFIG`: the newest documents that contain marked text, in words for people (SPEC §4)."""

import math
from pathlib import Path
from typing import Any

import click

from jobs.text import printable
from scanner.detection.scan_plan import read_config, results_of
from schemas.words import Naming

_HEAD = ("scanned", "document", "contains text marked for", "key", "p-value", "audit", "where")
_WIDTH = 60  # characters of an id or a path that are shown


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="How many to show.")
def flagged(config: Path, limit: int) -> None:
    """Show the newest flagged documents, and for whom the text that they contain was marked.

    CONFIG: the file of the scan. A flag says that a document contains text marked for a user: it may be quoted,
    translated or spliced, so it does not say who wrote or posted it. Beside each flag stands how the audit of its scan
    ended: after an alarm, believe no flag before the cause is known.

    \b
    Example:
      brickscan flagged nightly.toml --limit 50
    """
    from scanner import results
    from scanner.results.queries import ask

    settings = read_config(config)
    folder = results_of(settings, config)
    if not results.exist(folder):
        click.echo(f"There are no results in {folder} yet: run `brickscan scan {config}` first.")
        return
    newest = ask(folder, lambda: results.flagged(folder, settings.false_positive_rate).head(limit).collect())
    if newest.is_empty():
        click.echo(_nothing(folder))
        return
    lines = [_HEAD, *(_line(row) for row in newest.iter_rows(named=True))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _nothing(results: str) -> str:
    """What is said when no document is flagged: it may be that none was read."""
    import polars as pl

    from scanner.results.queries import ask, quarantine, verdicts
    from scanner.results.reasons import in_words, reasons

    read = ask(results, lambda: verdicts(results).select(pl.len()).collect().item())
    why = in_words(reasons(quarantine(results)))
    return f"No document is flagged, of {read:,} that were read." + (f" In quarantine: {why}." if why else "")


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['scanned_at']:%Y-%m-%d %H:%M}",
        printable(row["doc_id"] or "-", _WIDTH),
        _marked_for(row),
        row["key_id"],
        _p_value(row["log10_p_global"]),
        row["audit"] or "not judged",
        f"{printable(row['path'], _WIDTH)} row {row['row']}",
    )


def _marked_for(row: dict[str, Any]) -> str:
    if row["naming"] == Naming.HELD_LATER:
        seen, got = (f"{row[name]:%Y-%m-%d %H:%M}" for name in ("first_seen_at", "held_since"))
        return f"message {row['message']}, seen by {seen}, which its user got later: {got}"
    if row["naming"] == Naming.UNALLOCATED and row["messages_tested"] == 1:
        return "nobody: its key marks for everybody alike"
    return {
        Naming.NAMED: printable(row["user_id"] or "(name erased)", _WIDTH),
        Naming.UNALLOCATED: f"message {row['message']}, which no user held then",
        Naming.RESERVED: f"message {row['message']}, which is reserved: a false accusation",
        Naming.REMOVED: f"message {row['message']}, of a removed user",
        Naming.AMBIGUOUS: "several messages",
        Naming.UNDECIDED: "nobody: the evidence for one user alone is too weak",
        Naming.ASSUMED: "nobody: the p-value holds only as far as a hash behaves",
    }[row["naming"]]


def _p_value(log10_p: float) -> str:
    """A p-value from its logarithm, however small."""
    whole = math.floor(log10_p)
    mantissa, carry = f"{10 ** (log10_p - whole):.1e}".split("e")
    return f"{mantissa}e{whole + int(carry)}"

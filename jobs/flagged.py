"""`brickscan flagged CONFIG`: the newest documents that contain marked text, in words for people (SPEC §4)."""

import math
from pathlib import Path
from typing import Any

import click

from scanner.plan import read_config, results_of

_HEAD = ("scanned", "document", "contains text marked for", "key", "p-value", "where")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="How many to show.")
def flagged(config: Path, limit: int) -> None:
    """Show the newest flagged documents, and for whom the text that they contain was marked.

    A flag says that a document contains text marked for a user: it may be quoted, translated or spliced, so it does not
    say who wrote or posted it.

    \b
    Example:
      brickscan flagged nightly.toml --limit 50
    """
    from scanner import results

    folder = results_of(read_config(config), config)
    if not results.exist(folder):
        click.echo(f"There are no results in {folder} yet: run `brickscan scan {config}` first.")
        return
    rows = results.flagged(folder).head(limit).collect().to_dicts()
    if not rows:
        click.echo("No document is flagged.")
        return
    lines = [_HEAD, *(_line(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['scanned_at']:%Y-%m-%d %H:%M}",
        _printable(row["doc_id"] or "-"),
        _marked_for(row),
        row["key_id"],
        _p_value(row["log10_p_global"]),
        _printable(f"{row['path']} row {row['row']}"),
    )


def _marked_for(row: dict[str, Any]) -> str:
    return {
        "named": _printable(row["user_id"] or "(name erased)"),
        "unallocated": f"message {row['message']}, which no user held",
        "reserved": f"message {row['message']}, which is reserved: a false accusation",
        "removed": f"message {row['message']}, of a removed user",
        "ambiguous": "several messages",
    }[row["naming"]]


def _p_value(log10_p: float) -> str:
    """A p-value from its logarithm, however small."""
    whole = math.floor(log10_p)
    mantissa, carry = f"{10 ** (log10_p - whole):.1e}".split("e")
    return f"{mantissa}e{whole + int(carry)}"


def _printable(text: str) -> str:
    """Text from outside, so that it cannot steer a terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")

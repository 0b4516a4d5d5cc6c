"""Lists for people and programs: as a table, as JSON or as CSV. The totals stand below, or on stderr."""

import csv
import io
import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import click

from jobs.text import columns, complain, fitted, tell
from scanner.printable import cell

Form = Literal["table", "json", "csv"]
MOST_COLUMNS = 120
"""Most columns of a table on a terminal, however wide the terminal is."""

form_option = click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), default="table", show_default=True
)


def on_terminal() -> bool:
    """Whether a person reads the output on a terminal, so that lines must not be long."""
    return sys.stdout.isatty()


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], narrowest: Mapping[str, int]) -> None:
    """Print a table of printable cells. On a terminal some columns are cut, each to its limit, until the table fits."""
    lines: Sequence[Sequence[str]] = [head, *rows]
    if on_terminal():
        most = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
        lines = fitted(lines, most, {head.index(name): least for name, least in narrowest.items()})
    tell(*columns(lines))


def show_records(
    form: Form, rows: Sequence[Mapping[str, Any]], totals: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Print rows for programs: all as one JSON object with the totals, or as CSV.

    Times are ISO 8601 in UTC, digests hexadecimal, missing numbers null. In CSV, text that a spreadsheet would take for
    a formula gets an apostrophe, and characters that no terminal shows are escaped. JSON holds exactly what the table
    holds.
    """
    records = [{name: _plain(row[name]) for name in names} for row in rows]
    if form == "json":
        tell(*(visible(line) for line in json.dumps({"rows": records, **totals}, indent=1).splitlines()))
        return
    for line in ([*names], *([cell(record[name]) for name in names] for record in records)):
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(line)
        tell(out.getvalue())


def show_footer(form: Form, lines: Sequence[str]) -> None:
    """Show the totals: below a table, else on stderr."""
    (tell if form == "table" else complain)(*lines)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def visible(line: str) -> str:
    """JSON in which invisible ASCII characters are escaped too, which json.dumps leaves."""
    return line.replace("\x7f", "\\u007f")

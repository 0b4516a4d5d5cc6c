"""Lists that people and programs read: as a table, as JSON or as CSV. What was counted stands below, or on stderr."""

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
from scanner.printable import safe

Form = Literal["table", "json", "csv"]
MOST_COLUMNS = 120
"""Of a table on a terminal, however wide that is."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")

form_option = click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), default="table", show_default=True
)


def on_terminal() -> bool:
    """Whether somebody looks at it, so that lines must not be long."""
    return sys.stdout.isatty()


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], narrowest: Mapping[str, int]) -> None:
    """Print a table of printable cells; on a terminal some columns are cut, each so far at most, until it fits."""
    lines: Sequence[Sequence[str]] = [head, *rows]
    if on_terminal():
        most = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
        lines = fitted(lines, most, {head.index(name): least for name, least in narrowest.items()})
    tell(*columns(lines))


def show_records(
    form: Form, rows: Sequence[Mapping[str, Any]], totals: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Print rows for programs: all as one JSON object with the totals, or as CSV.

    Times are ISO 8601 in UTC, digests hexadecimal, numbers that are none null. In CSV, text that a spreadsheet would
    take for a formula gets an apostrophe, and what no terminal shows is escaped; JSON holds what the table holds.
    """
    records = [{name: _plain(row[name]) for name in names} for row in rows]
    if form == "json":
        tell(*(visible(line) for line in json.dumps({"rows": records, **totals}, indent=1).splitlines()))
        return
    for line in ([*names], *([_cell(record[name]) for name in names] for record in records)):
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(line)
        tell(out.getvalue())


def show_footer(form: Form, lines: Sequence[str]) -> None:
    """Say what was counted: below a table, else on stderr."""
    (tell if form == "table" else complain)(*lines)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def visible(line: str) -> str:
    """JSON in which also that is escaped which is ASCII and yet invisible; json.dumps leaves it."""
    return line.replace("\x7f", "\\u007f")


def _cell(value: object) -> str:
    if not isinstance(value, str):
        return "" if value is None else str(value)
    return safe(f"'{value}" if value.startswith(_FORMULA) else value)

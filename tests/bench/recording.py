"""Lets a benchmark write its table as a file of docs/measurements: `--record docs/measurements/NAME.json`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.measure import circumstances
from tests.support.measurements import Cell, Group, Measurement, write


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give a benchmark the option `--record`."""
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="also write the table here: docs/measurements/NAME.json"
    )


def record(
    options: argparse.Namespace,
    prog: str,
    *,
    group: Group,
    title: str,
    sample: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell | float]],
    mark: str = "version 3",
) -> None:
    """Write the table that a benchmark measured just now, if `--record` asks for it.

    Args:
        options: what `add_option`'s parser returned.
        prog: the command without its arguments, for example "python -m tests.bench.formats".
        group: the heading of the page under which the table goes.
        title: what was measured.
        sample: how much was measured, and what a spread in the table means.
        columns: heads of the columns.
        rows: one sequence of cells a row, as wide as `columns`; a fraction is written with three digits, or as a whole
            number from 100 on.
        mark: the version of the mark, or what was measured in its place.
    """
    if options.record is None:
        return
    machine = circumstances()["machine"]
    measurement = Measurement(
        group=group,
        title=title,
        command=" ".join([prog, *_arguments(sys.argv[1:])]),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=f"{machine['cpu']}, {machine['cores']} cores, load {machine['load'][0]:.1f}",
        mark=mark,
        sample=sample,
        columns=list(columns),
        rows=[[_shown(cell) if isinstance(cell, float) else cell for cell in row] for row in rows],
    )
    write(options.record, measurement)


def _shown(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _arguments(given: Sequence[str]) -> list[str]:
    """The arguments as another reader would give them: without `--record`, and without this machine's folders."""
    words = list(given)
    at = next((k for k, word in enumerate(words) if word.partition("=")[0] == "--record"), len(words))
    del words[at : at + (1 if "=" in "".join(words[at : at + 1]) else 2)]
    return [shlex.quote(Path(word).name if word.startswith("/") else word) for word in words]

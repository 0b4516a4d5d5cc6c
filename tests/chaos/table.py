"""The table of a chaos run: fault, runs, lost, doubled, different."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.chaos.night import Difference


class Row(NamedTuple):
    """A fault, how often it was injected, and the differences in the tables afterwards."""

    fault: str
    runs: int
    difference: Difference


def show(seed: int, rows: Sequence[Row]) -> str:
    total = Row(
        "all", sum(row.runs for row in rows), Difference(*map(sum, zip(*(r.difference for r in rows), strict=True)))
    )
    lines = [f"{'fault':<50}{'runs':>6}{'lost':>6}{'doubled':>9}{'different':>11}   (seed {seed})"]
    for fault, runs, (lost, doubled, different) in [*rows, total]:
        lines.append(f"{fault:<50}{runs:>6}{lost:>6}{doubled:>9}{different:>11}")
    return "\n".join(lines)

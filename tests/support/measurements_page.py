"""Makes docs/measurements.md from the files of its folder: `python -m tests.support.measurements_page`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from tests.support.measurements import FOLDER, Cell, Group, Measurement, read_all

PAGE = FOLDER.with_suffix(".md")
MADE = "<!-- made from docs/measurements/*.json by `make reference`; change it there -->"
HEAD = """# Measurements

Every figure that these pages quote comes from a table here. Each table says which command measured it, when, on which
machine, under which version of the mark, and on how much. Measure on your own machine before you plan with a figure.

**Copied by hand** means that a person copied the figures from an earlier version of these pages, and that the output of
the run is not kept. {origins}"""

HEADINGS = {"Power": "Power: how much marked text is found"}


def main() -> None:
    PAGE.write_text(page_of(FOLDER), encoding="utf-8")


def page_of(folder: Path) -> str:
    """Return the text of the page for a folder of measurements."""
    found = list(read_all(folder))
    parts = [MADE, HEAD.format(origins=_origins(found))]
    for group in get_args(Group):
        sections = [_section(name, measurement) for name, measurement in found if measurement.group == group]
        if sections:
            parts += [f"## {HEADINGS.get(group, group)}", *sections]
    return "\n\n".join(parts) + "\n"


def _origins(found: list[tuple[str, Measurement]]) -> str:
    """Say which tables were copied by hand, by naming the shorter list."""
    copied = [name for name, measurement in found if measurement.transcribed]
    written = [name for name, measurement in found if not measurement.transcribed]
    if not copied or not written:
        return f"{'No' if written else 'Every'} table here is copied by hand."
    if len(written) < len(copied):
        return f"Every table is copied by hand, except those that a command wrote itself: {_links(written)}."
    return f"These tables are copied by hand: {_links(copied)}."


def _links(names: list[str]) -> str:
    return ", ".join(f"[{name}](#{name})" for name in names)


def _section(name: str, measurement: Measurement) -> str:
    command = measurement.command if measurement.command == "not recorded" else f"`{measurement.command}`"
    facts = (
        f"Command: {command}",
        f"Date: {measurement.date}",
        f"Machine: {measurement.machine}",
        f"Mark: {measurement.mark}",
        f"Sample: {measurement.sample}",
    )
    origin = " **Copied by hand.**" if measurement.transcribed else ""
    parts = [f'<a id="{name}"></a>\n\n### {measurement.title}', f"{'. '.join(facts)}.{origin}", _table(measurement)]
    return "\n\n".join([*parts, measurement.note] if measurement.note else parts)


def _table(measurement: Measurement) -> str:
    columns = zip(*measurement.rows, strict=True)
    rulers = ["---:" if all(map(_is_number, cells)) else "---" for cells in columns]
    return "\n".join(_row(cells) for cells in (measurement.columns, rulers, *measurement.rows))


def _row(cells: Iterable[Cell]) -> str:
    shown = (f"{cell:,}" if isinstance(cell, int) else cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(shown)} |"


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int) or bool(re.fullmatch(r"[-+−]?[\d.,]+(e-?\d+)?( ?%)?|", cell))


if __name__ == "__main__":
    main()

"""Reads and writes the files of docs/measurements: one measurement each, whose name is its anchor in the page."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

FOLDER = Path(__file__).parents[2] / "docs" / "measurements"

Group = Literal[
    "Speed",
    "Memory and disk",
    "Power",
    "False positives",
    "Naming",
    "The audit",
    "Claims",
    "Probe",
    "The detector",
    "Other stacks",
]
Line = Annotated[str, Field(pattern=r"^\S.*\S$")]
Cell = str | int


class Measurement(BaseModel):
    """Holds one table of figures and the circumstances in which they were measured."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    group: Group
    title: Line
    command: Line
    """What a reader runs to measure the same, or "not recorded"."""
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$|^not recorded$")]
    machine: Line
    mark: Line
    """The version of the mark, for example "version 3", or what was measured in its place."""
    sample: Line
    """How much was measured, and what an interval or spread in the table means."""
    columns: Annotated[list[Line], Field(min_length=1)]
    rows: Annotated[list[list[Cell]], Field(min_length=1)]
    """Rows as wide as `columns`; a number with a fraction is kept as the file writes it, so that no digit is lost."""
    note: Line | None = None
    transcribed: bool = False
    """Whether a hand copied the figures from an earlier page; a file that a command wrote has no such field."""

    @model_validator(mode="after")
    def _rows_are_as_wide_as_columns(self) -> Self:
        for number, row in enumerate(self.rows, 1):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} has {len(row)} cells; there are {len(self.columns)} columns")
        return self


def read_all(folder: Path = FOLDER) -> Iterator[tuple[str, Measurement]]:
    """Yield each measurement of a folder with its name, by name.

    Raises:
        ValueError: names the file, and says which field is wrong.
    """
    for path in sorted(folder.iterdir()):
        yield path.stem, read(path)


def read(path: Path) -> Measurement:
    """Return the measurement of a file.

    Raises:
        ValueError: names the file, and says which field is wrong.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.json", path.name):
        raise ValueError(f"{path.name}: a measurement's file is named in kebab-case, for example cost-of-formats.json")
    try:
        return Measurement.model_validate(json.loads(path.read_text(encoding="utf-8"), parse_float=str))
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in error.errors())
        raise ValueError(f"{path.name}: {said}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name}: no JSON: {error}") from error


def write(path: Path, measurement: Measurement) -> None:
    """Write a measurement's file, one row a line."""
    fields = measurement.model_dump(exclude_defaults=True)
    lines = [f'  "{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in fields.items() if name != "rows"]
    rows = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in measurement.rows)
    path.write_text("{\n" + ",\n".join([*lines, f'  "rows": [\n{rows}\n  ]']) + "\n}\n", encoding="utf-8")

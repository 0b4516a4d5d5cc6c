"""Measures what docs/pictures shows of audits, and writes it to docs/measurements.

`python -m tests.bench.decoy_nights nights` scans a sound night and one whose p-values a fault halves.
`python -m tests.bench.decoy_nights calibration RESULTS` takes the newest audit of a calibration with `[law]`.
"""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from scanner.audit.statistics.audit_rows import Row
from scanner.cluster.scan import run_scan
from scanner.results.queries import audits
from scanner.scan_plan import make_plan
from tests.bench.planted_faults import FAULTS, write_night
from tests.support.measurements import FOLDER, Cell, Measurement, write
from tests.support.opened_once import keep_inspector, keep_tokenizers
from tests.support.without_ray import put_in_the_place_of_ray

SIZE = 3_000
"""Documents of a night."""

NIGHTS = {"sound night": "none", "every p-value halved": "one format's p × 0.5"}
"""Nights by their names in the picture, with the fault that is planted."""

COLUMNS = ["level", "p-values", "counted", "expected", "least that is meant", "most that is meant"]


def rows_of_night(title: str) -> Sequence[Row]:
    """Scan a night of texts by no user with a fault, and return the rows of its audit."""
    (fault,) = (fault for fault in FAULTS if fault.title == title)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        put_in_the_place_of_ray(patch)
        keep_tokenizers(patch)
        keep_inspector(patch)
        config = write_night(Path(folder), fault, SIZE, 0, marked=False)
        fault.plant(patch)
        outcome = run_scan(make_plan(config), lambda *_: None)
    assert outcome.audit is not None
    return outcome.audit.rows


def cells(name: str, rows: Iterable[Row]) -> list[list[Cell]]:
    """Return the cells of rows of AUDITS, from the largest level down, behind a name."""
    return [
        [name, f"{row['threshold']:g}", f"{row['tests']:,}", f"{row['hits']:,}"]
        + [
            f"{row[column]:,.4g}" if row[column] < 1000 else f"{row[column]:,.0f}"
            for column in ("expected", "low", "high")
        ]
        for row in sorted(rows, key=lambda row: -row["threshold"])
    ]


def of_nights(rows: dict[str, Sequence[Row]]) -> Measurement:
    """Return the decoys of nights, by the nights' names, at levels down to 1e-7."""
    decoys = {
        name: [row for row in of_night if row["kind"] == "decoy_all" and row["threshold"] > 5e-8]
        for name, of_night in rows.items()
    }
    return Measurement(
        group="The audit",
        title="Decoys of a sound night and of a night with a fault",
        command="python -m tests.bench.decoy_nights nights",
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine="any: counts depend on no machine",
        mark="version 3",
        sample=f"{SIZE:,} random texts a night, none of them marked, of which 500 are scored with all messages of a "
        "green list for 100,000 users; limits hold together",
        columns=["night", *COLUMNS],
        rows=[row for name, of_night in decoys.items() for row in cells(name, of_night)],
        note="The fault halves every p-value of the green list.",
    )


def of_calibration(results: str) -> Measurement:
    """Return the counts of the newest calibration of some results."""
    rows = audits(results).filter(pl.col("kind") == "law_total").collect().to_dicts()
    rows = [row for row in rows if row["audit_id"] == max(row["audit_id"] for row in rows)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    return Measurement(
        group="False positives",
        title="How often unmarked texts reach each p-value in a calibration",
        command="brickscan calibrate calibration.toml, then python -m tests.bench.decoy_nights calibration RESULTS",
        date=f"{rows[0]['at']:%Y-%m-%d}",
        machine="any: counts depend on no machine",
        mark="version 3",
        sample=f"{rows[0]['clusters']:,} texts by people a format, each under a key of its own; `tests = 200000000`, "
        "window 4 and γ = 1/4 only; limits hold together",
        columns=["format", *COLUMNS],
        rows=[row for method in methods for row in cells(method, (row for row in rows if row["method"] == method))],
        note="A green list's scores are whole numbers, so fewer texts are expected than the level says.",
    )


def main() -> None:
    """Measure what the command line names."""
    if sys.argv[1:] == ["nights"]:
        write(FOLDER / "decoys-of-two-nights.json", of_nights({name: rows_of_night(of) for name, of in NIGHTS.items()}))
    else:
        _, results = sys.argv[1:]
        write(FOLDER / "p-values-of-a-calibration.json", of_calibration(results))


if __name__ == "__main__":
    main()

"""`make scale`: the cost of a year's tables, with synthetic rows: `python -m tests.bench.tables --rows 1e6 1e7`.

Nights of one file each are written by the project's own write functions; one document in a hundred is flagged, and
every tenth night is scanned twice. Measured are the questions of people and of the next scan: the flags, what a scan
knows of earlier scans, the rows an audit reads, a flush of 20 shards. Then users are erased, small files are merged,
and older nights are dropped. Each line shows by what factor a figure grew, over the factor for the rows.
"""

import argparse
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from scanner import results
from scanner.detection.rows import EXACT_COLUMNS
from scanner.results import queries, retention
from scanner.results.current_rows import enter_side_rows, settle
from scanner.results.retention import erase_user
from scanner.results.transactions import TableEntry, commit, find_committed, open_tables
from scanner.results.upkeep import compact
from scanner.storage.data_files import SCHEMAS, write_file
from tests.bench import recording
from tests.bench.measure import in_a_process
from tests.support.rows import filled, verdict

SHARD_ROWS = 20_000
SHARDS_A_NIGHT = 25
SHARDS_A_FLUSH = 20
FLAGGED = 100  # one document in so many is flagged
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tables", description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7], help="of verdicts")
    parser.add_argument("--folder", type=Path, help="where they are written; default: a temporary folder")
    recording.add_option(parser)
    options = parser.parse_args()
    figures = []
    print(f"{'rows':>12} {'shards':>8} {'what':44} {'CPU s':>8} {'MiB':>7}  {'growth':>7}")
    before: dict[str, tuple[float, float]] = {}
    for rows in map(int, options.rows):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            shards = fill(folder, rows)
            for what in QUESTIONS:
                seconds, mebibytes = in_a_process(partial(asked, what, folder))
                growth = f"{seconds / before[what][1]:.1f}/{rows / before[what][0]:.0f}" if what in before else ""
                print(f"{rows:12,} {shards:8,} {what:44} {seconds:8.2f} {mebibytes:7.0f}  {growth:>7}", flush=True)
                before[what] = (rows, seconds)
                figures.append((rows, shards, what, float(seconds), round(mebibytes)))
    recording.record(
        options,
        parser.prog,
        group="Memory and disk",
        title="Questions to tables of many rows",
        sample="synthetic rows; each question once, in a process of its own",
        columns=("rows", "shards", "question", "CPU seconds", "MiB"),
        rows=figures,
        mark="none",
    )


def fill(folder: str, rows: int) -> int:
    """Write nights that have so many rows together. Returns their number of shards."""
    open_tables(folder)
    shards = list(range(rows // SHARD_ROWS))
    for begin in range(0, len(shards), SHARDS_A_FLUSH):
        flush(folder, shards[begin : begin + SHARDS_A_FLUSH])
    commit_scans(folder, len(shards))
    return len(shards)


def flush(folder: str, shards: list[int]) -> None:
    """Commit shards as the driver of a scan does."""
    scan_id = scan_of(shards[0])
    parts: dict[str, dict[str, TableEntry]] = {name: {} for name in ("flags", "shards", "verdicts")}
    for shard in shards:
        for name, table in tables_of(shard).items():
            file = write_file(folder, name, table.to_batches())
            parts[name][f"shard {shard}"] = TableEntry(f"shard {shard}", (file,) if file else ())
    find_committed(folder, "verdicts", parts["verdicts"])
    for name in ("flags", "shards"):
        enter_side_rows(folder, name, list(parts[name].values()), scan_id)
    commit(folder, "verdicts", list(parts["verdicts"].values()), 1)
    settle(folder, [])


def scan_of(shard: int) -> str:
    return f"{BEGAN + timedelta(days=shard // SHARDS_A_NIGHT):%Y%m%dT%H%M%SZ}-{shard // SHARDS_A_NIGHT:08x}"


def tables_of(shard: int) -> dict[str, pa.Table]:
    """Rows of verdicts, flags and shards of one shard; the second half of every tenth night is its first half again."""
    night, place = divmod(shard, SHARDS_A_NIGHT)
    again = night % 10 == 9 and place >= SHARDS_A_NIGHT // 2
    first = (place - (SHARDS_A_NIGHT // 2 if again else 0)) * SHARD_ROWS
    random = np.random.default_rng(shard)
    at = BEGAN + timedelta(days=night, seconds=shard)
    about = {"scan_id": scan_of(shard), "shard_id": f"shard {shard}", "path": f"/in/{night:05}.parquet"}
    one = verdict(0, scanned_at=at, doc_id=None, **about)
    columns: dict[str, Any] = {name: np.repeat(one.get(name), SHARD_ROWS) for name in SCHEMAS["verdicts"].names}
    flagged = random.random(SHARD_ROWS) < 1 / FLAGGED
    columns |= {
        "row": first + np.arange(SHARD_ROWS),
        "text_id": [random.bytes(16) for _ in range(SHARD_ROWS)],
        "flagged": flagged,
        "p_class": np.where(flagged, 1, 0),
        "user_id": np.where(flagged, random.integers(10**6, size=SHARD_ROWS).astype(str), None),
        "naming": np.where(flagged, "named", "none"),
    }
    schema = SCHEMAS["verdicts"]
    nothing = dict.fromkeys(EXACT_COLUMNS, np.repeat(None, SHARD_ROWS))
    verdicts = pa.table([pa.array({**columns, **nothing}[field.name], field.type) for field in schema], schema=schema)
    columns["log10_p_global"] = -7 - random.random(SHARD_ROWS)
    found = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    found = found.filter(pa.array(flagged))
    flags = pa.table([pa.repeat("set", len(found)), *found.columns], schema=SCHEMAS["flags"])
    span = {"first_row": first, "rows": SHARD_ROWS, "scanned_at": at, "keys": "set", "documents": SHARD_ROWS}
    row = filled(SCHEMAS["shards"], night=f"{at:%Y-%m-%d}", file="1:1", dropped_at=None, **span, **about)
    return {"verdicts": verdicts, "flags": flags, "shards": pa.Table.from_pylist([row], SCHEMAS["shards"])}


def commit_scans(folder: str, shards: int) -> None:
    scans = sorted({scan_of(shard) for shard in range(shards)})
    judged = [*((scan, [scan]) for scan in scans), ("all", scans)]
    rows = [filled(SCHEMAS["scans"], scan_id=scan, audit="no alarm", audited_scans=of) for scan, of in judged]
    file = write_file(folder, "scans", [pa.RecordBatch.from_pylist(rows, SCHEMAS["scans"])])
    commit(folder, "scans", [TableEntry("scans", (file,) if file else ())])


def last_night(folder: str) -> pl.DataFrame:
    """The rows that the audit of the last night reads."""
    found = results.shards(folder).filter(pl.col("night") == pl.col("night").max()).select("shard_id").collect()
    judged = results.scans(folder).select("scan_id")
    return queries.verdicts_of(folder, found["shard_id"], judged).select(pl.len()).collect(engine="streaming")


def one_user(folder: str) -> pl.DataFrame:
    return results.flagged(folder).filter(pl.col("user_id") == "7").collect()


def one_more_flush(folder: str) -> None:
    known = results.shards(folder).select(pl.len()).collect().item()
    flush(folder, list(range(known, known + SHARDS_A_FLUSH)))


def drop_half(folder: str) -> None:
    nights = results.nights(folder).select("night").collect()["night"].sort()
    old = retention.expired_rows(folder, date.fromisoformat(nights[len(nights) // 2]))
    retention.retain(folder, old.scans, keep_flags=False)


QUESTIONS: dict[str, Callable[[str], object]] = {
    "results.flagged(), the newest 20": lambda folder: results.flagged(folder).head(20).collect(engine="streaming"),
    "results.flagged() of one user": one_user,
    "results.nights()": lambda folder: results.nights(folder).collect(),
    "the rows that tonight's audit reads": last_night,
    "20 more shards written and committed": one_more_flush,
    "a user of some flags is erased": lambda folder: erase_user(folder, ["7"]),
    "small files are merged for the first time": compact,
    "a user is erased from merged files": lambda folder: erase_user(folder, ["8"]),
    "the older half of the nights is dropped": drop_half,
}


def asked(what: str, folder: str) -> None:
    """Ask a question once."""
    QUESTIONS[what](folder)


if __name__ == "__main__":
    main()

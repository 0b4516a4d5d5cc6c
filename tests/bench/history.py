"""`make scale`, of a year: what people ask of 10^9 rows of verdicts: `python -m tests.bench.history --rows 1e9`.

A question reads `flags`, `shards` and `scans`, the log of `verdicts`, and the files of verdicts that it needs. So the
first three tables are written whole, a night a file as `brickscan compact` leaves them. Files of verdicts stand in the
log with their names and statistics; the only one that exists holds the document that is asked for.
"""

import argparse
import json
import tempfile
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from scanner import results
from scanner.results.transactions import TableEntry, additions, commit, open_tables, try_to_commit
from scanner.storage.data_files import SCHEMAS, write_file
from scanner.storage.delta import KeptTable
from scanner.storage.locations import table_uri
from tests.bench import recording
from tests.bench.measure import in_a_process
from tests.support.rows import filled, verdict

SHARD_ROWS, SHARDS_A_NIGHT = 20_000, 2_500
MERGED_ROWS = 1_000_000  # rows of a merged file of verdicts
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.history", description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e8, 1e9], help="of verdicts")
    parser.add_argument("--flagged", type=float, default=1e-4, help="share of the documents")
    recording.add_option(parser)
    options = parser.parse_args()
    figures = []
    print(f"{'rows':>13} {'flags':>8} {'what':44} {'CPU s':>8} {'MiB':>7}")
    for rows in map(int, options.rows):
        with tempfile.TemporaryDirectory() as folder:
            flags = fill(folder, rows, options.flagged)
            for what in QUESTIONS:
                seconds, mebibytes = in_a_process(partial(asked, what, folder))
                print(f"{rows:13,} {flags:8,} {what:44} {seconds:8.2f} {mebibytes:7.0f}", flush=True)
                figures.append((rows, flags, what, float(seconds), round(mebibytes)))
    recording.record(
        options,
        parser.prog,
        group="Memory and disk",
        title="Questions to tables of several years",
        sample="synthetic rows; each question once, in a process of its own",
        columns=("rows", "flags", "question", "CPU seconds", "MiB"),
        rows=figures,
        mark="none",
    )


def fill(folder: str, rows: int, share: float) -> int:
    """Write a history of so many rows. Returns how many are flagged."""
    open_tables(folder)
    shards = rows // SHARD_ROWS
    total = 0
    for begin in range(0, shards, SHARDS_A_NIGHT):
        of_night = range(begin, min(begin + SHARDS_A_NIGHT, shards))
        flags = flags_of(of_night, share)
        total += len(flags)
        for name, table in (("flags", flags), ("shards", ranges_of(of_night)), ("scans", scan_of(begin))):
            file = write_file(folder, name, table.to_batches())
            commit(folder, name, [TableEntry(f"night {begin}", (file,) if file else ())])
        of_verdicts = additions([]) + list(files_of(of_night))
        if begin == 0:
            real = write_file(folder, "verdicts", first_verdicts().to_batches())
            of_verdicts += additions([real] if real else [])
        assert try_to_commit(folder, KeptTable(table_uri(folder, "verdicts")).now(), "verdicts", of_verdicts, [])
    DeltaTable(f"{folder}/verdicts").create_checkpoint()
    return total


def about(shard: int) -> dict[str, object]:
    night = shard // SHARDS_A_NIGHT
    at = BEGAN + timedelta(days=night)
    scan_id = f"{at:%Y%m%dT%H%M%SZ}-{night:08x}"
    return {"scan_id": scan_id, "shard_id": f"{shard:064x}", "path": f"/in/{shard:08}.parquet", "scanned_at": at}


def flags_of(shards: range, share: float) -> pa.Table:
    """Flags of a share of the documents, evenly spaced, for a million users in turn."""
    step = round(1 / share)
    numbers = range(shards.start * SHARD_ROWS // step, shards.stop * SHARD_ROWS // step)
    rows = []
    for number in numbers:
        shard, row = divmod(number * step, SHARD_ROWS)
        user = str(number * 7919 % 1_000_000)
        rows.append(verdict(row, **about(shard), user=user, flagged=True, log10_p_global=-9.0) | {"keys": "set"})
    return pa.Table.from_pylist(rows, SCHEMAS["flags"])


def ranges_of(shards: range) -> pa.Table:
    span = {"first_row": 0, "rows": SHARD_ROWS, "keys": "set", "documents": SHARD_ROWS, "dropped_at": None}
    rows = [
        filled(SCHEMAS["shards"], night=f"{BEGAN + timedelta(days=n // SHARDS_A_NIGHT):%Y-%m-%d}", **span, **about(n))
        for n in shards
    ]
    return pa.Table.from_pylist(rows, SCHEMAS["shards"])


def scan_of(shard: int) -> pa.Table:
    scan_id = about(shard)["scan_id"]
    row = filled(SCHEMAS["scans"], scan_id=scan_id, audit="no alarm", audited_scans=[scan_id])
    return pa.Table.from_pylist([row], SCHEMAS["scans"])


def files_of(shards: range) -> Iterator[AddAction]:
    """Merged files of verdicts that stand in the log alone: all but the first."""
    each = MERGED_ROWS // SHARD_ROWS
    for first in range(max(shards.start, each), shards.stop, each):
        bounds = {"scan_id": about(first)["scan_id"], "row": 0, "log10_p_global": -9.0, "path": about(first)["path"]}
        last = bounds | {"row": SHARD_ROWS - 1, "path": about(min(first + each, shards.stop) - 1)["path"]}
        stats = {"numRecords": MERGED_ROWS, "minValues": bounds, "maxValues": last}
        stats["nullCount"] = dict.fromkeys(bounds, 0)
        yield AddAction(f"part-{uuid.uuid4().hex}.parquet", 2**26, {}, 1, True, json.dumps(stats))


def first_verdicts() -> pa.Table:
    """The rows of the first merged file."""
    of_shard = pl.DataFrame([verdict(0, **about(0))], schema=pl.Schema(SCHEMAS["verdicts"]))
    rows = pl.DataFrame({"row": pl.int_range(SHARD_ROWS, eager=True)})
    parts = []
    for shard in range(MERGED_ROWS // SHARD_ROWS):
        same = of_shard.with_columns(**{name: pl.lit(value) for name, value in about(shard).items()})
        parts.append(rows.join(same.drop("row"), how="cross").select(SCHEMAS["verdicts"].names))
    return pl.concat(parts).to_arrow().cast(SCHEMAS["verdicts"])


QUESTIONS: dict[str, Callable[[str], pl.LazyFrame]] = {
    "the newest 20 flags": lambda folder: results.flagged(folder).head(20),
    "the flags of one user": lambda folder: results.flagged(folder).filter(pl.col("user_id") == "7919"),
    "the flags of one account": lambda folder: results.flagged(folder).filter(pl.col("account_id") == "nobody"),
    "the flags of one document": lambda folder: results.flagged(folder).filter(pl.col("path") == about(0)["path"]),
    "one document, flagged or not": lambda folder: results.verdicts(folder, [str(about(3)["path"])]).filter(row=7),
    "the totals of each night": results.nights,
}


def asked(what: str, folder: str) -> None:
    """Ask a question once."""
    assert len(QUESTIONS[what](folder).collect(engine="streaming")) or "account" in what


if __name__ == "__main__":
    main()

"""`make scale`: the cost of a flush by shards in the tables' log: `python -m tests.bench.log --shards 1e4`.

The log of a year is written without the files that it names, since no commit opens them. For each shard it has a file
and its transactions in each table of a scan. Measured are the first flush of a driver, which reads the log; later
flushes, of shards and of packs of small ones; and the look-up of a night's shards when a scan begins.
"""

import argparse
import json
import tempfile
import time
import uuid
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from scanner.results.current_rows import SIDE_TABLES, enter_side_rows, run_number, settle
from scanner.results.transactions import TableEntry, Tables, commit, find_committed, open_tables
from scanner.storage.data_files import SCHEMAS, DataFile
from scanner.storage.locations import table_uri
from tests.bench import recording

SHARDS_A_NIGHT = 2_500
SHARDS_A_FLUSH = 20
FLUSHES = 10
IN_A_PACK = 40  # shards of a pack, files of 500 rows each
SHARDS_A_COMMIT = 5_000
SCAN = "20260101T000000Z-00000000"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.log", description=__doc__)
    parser.add_argument("--shards", type=float, nargs="+", default=[1e4, 1e5], help="in the log")
    parser.add_argument("--folder", type=Path, help="where it is written; default: a temporary folder")
    recording.add_option(parser)
    options = parser.parse_args()
    rows = []
    print(f"{'shards':>10} {'what':44} {'CPU s':>8} {'MiB':>7}")
    for shards in map(int, options.shards):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            fill(folder, shards)
            with get_context("spawn").Pool(1) as pool:
                for what, seconds, mebibytes in pool.apply(measured, (folder, shards)):
                    print(f"{shards:10,} {what:44} {seconds:8.3f} {mebibytes:7.0f}", flush=True)
                    rows.append((shards, what, float(seconds), round(mebibytes)))
    recording.record(
        options,
        parser.prog,
        group="Memory and disk",
        title="The log of the table of verdicts",
        sample="synthetic shards; each question once, in a process of its own",
        columns=("shards", "question", "CPU seconds", "MiB"),
        rows=rows,
        mark="none",
    )


def fill(folder: str, shards: int) -> None:
    """Write the log of so many shards."""
    open_tables(folder, (*SIDE_TABLES, "verdicts"))
    for name in (*SIDE_TABLES, "verdicts"):
        for begin in range(0, shards, SHARDS_A_COMMIT):
            numbers = range(begin, min(begin + SHARDS_A_COMMIT, shards))
            actions = [AddAction(file.name, file.size, {}, 1, True, file.stats) for file in map(a_file, numbers)]
            versions = [Transaction(shard_id(number), run_number(SCAN)) for number in numbers]
            if name != "verdicts":
                versions += [Transaction(f"{shard_id(number)}:{SCAN}", 1) for number in numbers]
            properties = CommitProperties(app_transactions=versions)
            table = DeltaTable(table_uri(folder, name))
            table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
        DeltaTable(table_uri(folder, name)).create_checkpoint()


def shard_id(number: int) -> str:
    return f"{number:064x}"


def a_file(number: int) -> DataFile:
    path = f"/platform/posts/night={number // SHARDS_A_NIGHT:05}/part-{number % SHARDS_A_NIGHT:05}.parquet"
    bounds = {"scan_id": SCAN, "path": path, "row": 0}
    stats = {"numRecords": 20_000, "minValues": bounds, "maxValues": bounds, "nullCount": dict.fromkeys(bounds, 0)}
    return DataFile(f"part-{uuid.uuid4().hex}.parquet", 10**6, 20_000, json.dumps(stats))


def measured(folder: str, shards: int) -> list[tuple[str, float, float]]:
    """CPU seconds of each step, and MiB of memory since the first."""
    before, tables, found = memory(), Tables(folder), []

    def step(what: str, seconds: float) -> None:
        found.append((what, seconds, memory() - before))

    began = time.process_time()
    night = [shard_id(number) for number in range(shards - SHARDS_A_NIGHT, shards)]
    settle(tables, find_committed(tables, "verdicts", night))
    step(f"a scan begins: {SHARDS_A_NIGHT:,} shards are looked up", time.process_time() - began)
    times = [flush(tables, shards + number * SHARDS_A_FLUSH) for number in range(1 + FLUSHES)]
    step("the first flush of 20 shards", times[0])
    step(f"a flush of 20 shards, median of {FLUSHES}", median(times[1:]))
    times = [flush(tables, 2 * shards + number * SHARDS_A_FLUSH * IN_A_PACK, IN_A_PACK) for number in range(FLUSHES)]
    step(f"a flush of 20 packs of {IN_A_PACK} shards, median of {FLUSHES}", median(times))
    return found


def flush(tables: Tables, first: int, pack: int = 1) -> float:
    """Commit 20 more shards, or packs of so many, as the driver of a scan does. Returns CPU seconds."""
    firsts = range(first, first + SHARDS_A_FLUSH * pack, pack)
    packs = [(shard_id(number), [shard_id(number + place) for place in range(1, pack)]) for number in firsts]
    entries = [
        TableEntry(name, (a_file(number),), tuple(others)) for number, (name, others) in zip(firsts, packs, strict=True)
    ]
    began = time.process_time()
    names = [name for entry in entries for name in entry.transactions]
    find_committed(tables, "verdicts", names)
    for name in SIDE_TABLES:
        enter_side_rows(tables, name, entries, SCAN)
    commit(tables, "verdicts", entries, run_number(SCAN))
    settle(tables, names)
    return time.process_time() - began


def memory() -> float:
    """MiB that this process holds now (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


if __name__ == "__main__":
    main()

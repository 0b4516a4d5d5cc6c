"""`make scale`: the cost of a flush in a year's log whose old nights are frozen: `python -m tests.bench.year_log`.

The log is as scans and a weekly `brickscan compact` leave it: rows in `shards` for all nights, transactions of nights
that are not frozen and expired yet (scanner.results.retention), a file of verdicts for each shard of the last week, and
merged files of earlier nights. tests.bench.log has the same figures where no night was ever frozen.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing import get_context
from statistics import median

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from scanner.input.files import InputFile
from scanner.input.shards import Range, Shard
from scanner.results.current_rows import SIDE_TABLES, run_number, settle
from scanner.results.retention import EXPIRE_AFTER, FREEZE_AFTER, done_in_frozen_nights, freeze
from scanner.results.transactions import TableEntry, Tables, commit, find_committed, open_tables
from scanner.storage.data_files import SCHEMAS, write_file
from scanner.storage.locations import table_uri
from tests.bench import recording
from tests.bench.history import BEGAN, MERGED_ROWS, SHARD_ROWS, SHARDS_A_NIGHT, about, files_of, ranges_of
from tests.bench.log import FLUSHES, IN_A_PACK, a_file, flush, memory, shard_id

COMPACTED_AFTER = 7  # nights


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.year_log", description=__doc__)
    parser.add_argument("--shards", type=float, nargs="+", default=[1e5, 1e6], help="of all nights")
    recording.add_option(parser)
    options = parser.parse_args()
    rows = []
    print(f"{'shards':>10} {'what, with nights frozen':48} {'CPU s':>8} {'MiB':>7}")
    for shards in map(int, options.shards):
        with tempfile.TemporaryDirectory() as folder:
            nights = shards // SHARDS_A_NIGHT
            fill(folder, nights)
            with get_context("spawn").Pool(1) as pool:
                for what, seconds, mebibytes in pool.apply(measured, (folder, nights)):
                    print(f"{shards:10,} {what:48} {seconds:8.3f} {mebibytes:7.0f}", flush=True)
                    rows.append((shards, what, float(seconds), round(mebibytes)))
    recording.record(
        options,
        parser.prog,
        group="Memory and disk",
        title="Logs of a year whose nights are frozen",
        sample="synthetic shards; each question once, in a process of its own",
        columns=("shards", "question", "CPU seconds", "MiB"),
        rows=rows,
        mark="none",
    )


def fill(folder: str, nights: int) -> None:
    """Write what so many nights leave; the newest was last night, and the oldest unfrozen night is due to be frozen."""
    open_tables(folder, (*SIDE_TABLES, "verdicts"))
    tables = Tables(folder)
    frozen, expired = nights - FREEZE_AFTER.days, nights - (FREEZE_AFTER + EXPIRE_AFTER).days
    for first in range(0, nights, 50):
        some = range(first * SHARDS_A_NIGHT, min(first + 50, nights) * SHARDS_A_NIGHT)
        file = write_file(folder, "shards", ranges_of(some).to_batches())
        commit(tables, "shards", [TableEntry(f"nights {first}", (file,) if file else ())])
    for night in range(nights):
        add = list(verdicts_of(night, nights))
        for name in (*SIDE_TABLES, "verdicts"):
            transactions = list(transactions_of(night, name)) if night >= expired else []
            if name == "shards" and night < frozen:
                date = f"{BEGAN + timedelta(days=night):%Y-%m-%d}"
                at = (BEGAN + timedelta(days=night, seconds=1)).timestamp()
                transactions += [Transaction(f"frozen:{date}", int(at)), Transaction(f"expiring:{date}", 1)]
            actions = add if name == "verdicts" else []
            if transactions or actions:
                properties = CommitProperties(app_transactions=transactions)
                table = DeltaTable(table_uri(folder, name))
                table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
    for name in (*SIDE_TABLES, "verdicts"):
        DeltaTable(table_uri(folder, name)).create_checkpoint()


def verdicts_of(night: int, nights: int) -> Iterator[AddAction]:
    """Files of a night's verdicts, which stand in the log alone."""
    shards = range(night * SHARDS_A_NIGHT, (night + 1) * SHARDS_A_NIGHT)
    if night < nights - COMPACTED_AFTER:
        yield from files_of(shards)
        return
    for file in map(a_file, shards):
        yield AddAction(file.name, file.size, {}, 1, True, file.stats)


def transactions_of(night: int, name: str) -> Iterator[Transaction]:
    """Transactions in a table's log for a night's shards and their run."""
    scan_id = str(about(night * SHARDS_A_NIGHT)["scan_id"])
    for number in range(night * SHARDS_A_NIGHT, (night + 1) * SHARDS_A_NIGHT):
        yield Transaction(shard_id(number), run_number(scan_id))
        if name != "verdicts":
            yield Transaction(f"{shard_id(number)}:{scan_id}", 1)


def measured(folder: str, nights: int) -> list[tuple[str, float, float]]:
    """CPU seconds of each step, and MiB of memory since the first."""
    before, tables, found = memory(), Tables(folder), []

    def step(what: str, seconds: float) -> None:
        found.append((what, seconds, memory() - before))

    end = nights * SHARDS_A_NIGHT
    tonight, last_year = shards_of(range(end, end + SHARDS_A_NIGHT)), shards_of(range(SHARDS_A_NIGHT))
    began = time.process_time()
    done = find_committed(tables, "verdicts", [shard.shard_id for shard in tonight])
    settle(tables, done)
    assert not done
    assert not done_in_frozen_nights(tables, tonight)
    step(f"a scan begins: {SHARDS_A_NIGHT:,} new shards are looked up", time.process_time() - began)
    began = time.process_time()
    assert len(done_in_frozen_nights(tables, last_year)) == SHARDS_A_NIGHT * (nights > FREEZE_AFTER.days)
    step("the oldest night is looked up once more", time.process_time() - began)
    began = time.process_time()
    frozen = freeze(folder, BEGAN + timedelta(days=nights + 1))
    assert len(frozen) == (nights > FREEZE_AFTER.days)
    step("a night is frozen", time.process_time() - began)
    flushes = [flush(tables, end + number * 20) for number in range(1 + FLUSHES)]
    step("the first flush of 20 shards", flushes[0])
    step(f"a flush of 20 shards, median of {FLUSHES}", median(flushes[1:]))
    flushes = [flush(tables, 2 * end + number * 20 * IN_A_PACK, IN_A_PACK) for number in range(FLUSHES)]
    step(f"a flush of 20 packs of {IN_A_PACK} shards, median of {FLUSHES}", median(flushes))
    return found


def shards_of(numbers: range) -> list[Shard]:
    """Shards of a scan, one a file."""
    paths = [str(about(number)["path"]) for number in numbers]
    files = [InputFile(path, path, path, MERGED_ROWS, 0) for path in paths]
    return [Shard(shard_id(n), file, Range(0, SHARD_ROWS, 0)) for n, file in zip(numbers, files, strict=True)]


if __name__ == "__main__":
    main()

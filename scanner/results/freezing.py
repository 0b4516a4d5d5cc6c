"""Nights that are over for good: their transactions leave Delta's log, and their rows in `shards` say what is done.

Delta reads all transactions of a table whenever it is opened or committed to, so those of a year would slow down every
commit. What scans of one date (UTC) did, here a night, is frozen FREEZE_AFTER after it; the next scan goes on with what
was interrupted. A night of data that is scanned again later is several nights here. The steps:
1. Rows of runs that died before their verdicts leave the tables beside verdicts.
2. `shards` gets a transaction of the night, its version the time of the newest row. This row and older ones stand for
   transactions from then on: step 1 must not be done again, since it goes by transactions, which may be gone.
3. The night's transactions are committed once more with a time; Delta drops them EXPIRE_AFTER after that. Transactions
   without a time, which are all others, it keeps for ever.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

import polars as pl
from deltalake import Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.input.shards import Shard
from scanner.results.settlement import drop_runs, run_number, settle, tables_beside
from scanner.results.tables import read_whole
from scanner.results.transactions import OF_NO_RUN, Tables, try_to_commit
from scanner.storage.delta import attempts, table_uri

FREEZE_AFTER = timedelta(days=30)
EXPIRE_AFTER = timedelta(days=30)
"""Time until transactions of a frozen night expire, longer than any scan runs: a scan that looked for its work before
the night was frozen goes by the transactions.
"""

_DAY = pl.col("began_at").dt.strftime("%Y-%m-%d")

LEAST_AGE = timedelta(days=1)
"""Least age of the newest row of a night, so that no scan of that night still commits."""


def freeze(results: str, now: datetime) -> list[str]:
    """Freeze the nights that are old enough. Returns their dates, such as 2026-11-21.

    Raises:
        ScanFailed: others kept committing first, or a table cannot be read or written.
    """
    tables, rows = Tables(results), read_whole(results, "shards")
    old = rows.filter(pl.col("began_at") < datetime.combine(now - FREEZE_AFTER, datetime.min.time(), UTC))
    nights = old.group_by(night=_DAY).agg(pl.col("scanned_at").max()).sort("night").collect()
    ready = tables.now("shards")[1].versions(map(_expiring, nights["night"]))
    frozen = []
    for night, newest in nights.iter_rows():
        if _expiring(night) not in ready and newest < now - LEAST_AGE:
            _freeze(tables, night, newest)
            frozen.append(night)
    return frozen


def done_in_frozen_nights(tables: Tables, shards: Sequence[Shard]) -> set[str]:
    """Ids of the given shards that a frozen night has done. Raises as `freeze`."""
    if not shards:
        return set()
    wanted = pl.LazyFrame({"shard_id": [shard.shard_id for shard in shards]}, schema={"shard_id": pl.String})
    paths = pl.Series([shard.file.path for shard in shards], dtype=pl.String)
    rows = read_whole(tables.results, "shards", paths).select("shard_id", "scanned_at", night=_DAY)
    found = rows.join(wanted, on="shard_id", how="semi").collect()
    frozen = tables.now("shards")[1].versions(map(_frozen, found["night"].unique()))
    dated = found.select("shard_id", "night", "scanned_at").iter_rows()
    return {shard for shard, night, at in dated if at.timestamp() < frozen.get(_frozen(night), 0)}


def _frozen(night: str) -> str:
    return f"frozen:{night}"


def _expiring(night: str) -> str:
    return f"expiring:{night}"


def _freeze(tables: Tables, night: str, newest: datetime) -> None:
    """Do all steps, or those that are left. newest: time of the night's newest row."""
    # not the present time, by a clock that may be wrong: rows that come later have their transactions
    frozen = Transaction(_frozen(night), math.floor(newest.timestamp()) + 1)
    committed = tables.now("shards")[1].versions([frozen.app_id])
    if not committed:
        runs = _runs(tables, night, frozen.version)
        shards = runs["shard_id"].unique().to_list()
        settle(tables, shards)
        won = tables.now("verdicts")[1].versions(shards)
        drop_runs(tables, [run for run in runs.iter_rows() if run[0] not in won])
        _set(tables, "shards", lambda _: [frozen])
    done = _done(tables, _runs(tables, night, committed.get(frozen.app_id, frozen.version)))
    for name in ("verdicts", *tables_beside(tables)):
        _keep_for_a_time(tables, name)
        _set(tables, name, lambda logged: _with_a_time(logged, done))
    _set(tables, "shards", lambda _: [Transaction(_expiring(night), 1)])


def _runs(tables: Tables, night: str, before: int) -> pl.DataFrame:
    """shard_id and scan_id of the rows of a night in `shards` that are older than so many seconds since 1970."""
    of_night = (night == _DAY) & (pl.col("scanned_at") < datetime.fromtimestamp(before, UTC))
    return read_whole(tables.results, "shards").filter(of_night).select("shard_id", "scan_id").collect()


def _done(tables: Tables, runs: pl.DataFrame) -> set[str]:
    """Shards whose verdicts are of these runs: a row here must not stand for work of another night."""
    won = tables.now("verdicts")[1].versions(runs["shard_id"])
    return {shard for shard, scan_id in runs.iter_rows() if won.get(shard) in (run_number(scan_id), OF_NO_RUN)}


def _with_a_time(logged: dict[str, int], done: Iterable[str]) -> list[Transaction]:
    """Transactions of a table for shards, and for runs of these (scanner.results.settlement), with the present time."""
    shards, now = set(done), int(time.time() * 1000)
    of_shards = ((name, version) for name, version in logged.items() if name.partition(":")[0] in shards)
    return [Transaction(name, version, last_updated=now) for name, version in of_shards]


def _set(tables: Tables, name: str, choose: Callable[[dict[str, int]], list[Transaction]]) -> None:
    """Commit transactions chosen by those that a table has."""
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept = tables.now(name)
        transactions = choose(kept.all())
        if not transactions or try_to_commit(table, name, [], transactions):
            return


def _keep_for_a_time(tables: Tables, name: str) -> None:
    """Have a table drop transactions that have a time."""
    wanted = {"delta.setTransactionRetentionDuration": f"interval {EXPIRE_AFTER.days} days"}
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, _ = tables.now(name)
        if wanted.items() <= table.metadata().configuration.items():
            return
        try:
            table.alter.set_table_properties(wanted)
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            raise ScanFailed(f"results: table {table.table_uri} cannot be written: {in_a_line(error)}") from None

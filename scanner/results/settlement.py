"""Whose rows of a shard stand, when several drivers finished it, or one died over it.

There is no transaction across tables, and two runs may end differently: a document that killed a worker by accident is
in one run's quarantine and among the other's verdicts. So the first run whose verdicts are committed stands, for good,
and the shard's transaction in `verdicts` names it: its version is the run's number. Before that, each run's rows enter
the tables beside it, where the shard's version is the number of the only run there, or CONTESTED; where it is another
than that of `verdicts`, `settle` takes out the rows of other runs. Anyone may settle, at any time, however often: who
wins does that at once, who loses does too, and the next scan does it for one that died before.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from scanner.results.transactions import SCHEMAS, Entry, Tables, additions, kept_tables, try_to_commit, write_file
from scanner.storage.delta import attempts, table_uri

CONTESTED = 0
BESIDE = ("quarantine", "audit_counts", "flags", "flag_texts", "spans", "account_posts", "shards")
"""Tables whose rows belong to verdicts, by shard_id and scan_id; a scan makes those that it is configured to fill."""


def tables_beside(tables: Tables) -> tuple[str, ...]:
    """The tables BESIDE that exist."""
    return tuple(name for name in BESIDE if tables.has(name))


def run_number(scan_id: str) -> int:
    """Number that stands for a run where Delta takes a number: 1 … 2^56, by SHA-256."""
    return int.from_bytes(hashlib.sha256(scan_id.encode()).digest()[:7], "big") + 1


def enter_beside(results: str | Tables, name: str, entries: Sequence[Entry], scan_id: str) -> None:
    """Commit a run's rows to one of the tables BESIDE, next to those of other runs; once, however often called.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be written.
    """
    tables, number = kept_tables(results), run_number(scan_id)
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept = tables.now(name)
        own = {shard: f"{shard}:{scan_id}" for entry in entries for shard in entry.transactions}
        committed = kept.versions([*own, *own.values()])
        missing = [entry for entry in entries if own[entry.transaction] not in committed]
        if not missing:
            return
        transactions = []
        for shard in (shard for entry in missing for shard in entry.transactions):
            transactions.append(Transaction(shard, CONTESTED if shard in committed else number))
            transactions.append(Transaction(own[shard], 1))
        files = [file for entry in missing for file in entry.files]
        if try_to_commit(table, name, additions(files), transactions):
            return


def settle(results: str | Tables, shards: Iterable[str]) -> None:
    """Take out of the tables BESIDE the rows of other runs than the verdicts', for shards that have verdicts.

    Raises:
        ScanFailed: others kept committing first, or a table cannot be written.
    """
    tables = kept_tables(results)
    winners = tables.now("verdicts")[1].versions(shards)
    for name in tables_beside(tables):
        _settle(tables, name, winners)


def drop_runs(tables: Tables, runs: Iterable[tuple[str, str]]) -> None:
    """Take out of the tables BESIDE the rows of runs, by shard_id and scan_id, that died before their verdicts.

    Raises:
        ScanFailed: others kept committing first, or a table cannot be written.
    """
    dead = set(runs)
    for name in tables_beside(tables) if dead else ():
        for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
            table, _ = tables.now(name)
            actions = _without(table, tables.results, name, {shard for shard, _ in dead}, dead.__contains__)
            if not actions or try_to_commit(table, name, actions, []):
                break


def _settle(tables: Tables, name: str, winners: Mapping[str, int]) -> None:
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept = tables.now(name)
        there = kept.versions(winners)
        wrong = {shard: winners[shard] for shard, number in there.items() if winners[shard] != number}
        if not wrong:
            return

        def lost(run: tuple[str, str], wrong: Mapping[str, int] = wrong) -> bool:
            return run[0] in wrong and run_number(run[1]) != wrong[run[0]]

        transactions = [Transaction(shard, winner) for shard, winner in wrong.items()]
        if try_to_commit(table, name, _without(table, tables.results, name, wrong, lost), transactions):
            return


def _without(
    table: DeltaTable, results: str, name: str, shards: Collection[str], goes: Callable[[tuple[str, str]], bool]
) -> list[AddAction | RemoveAction]:
    """Remove the files that hold unwanted rows of a shard; their other rows are written anew.

    Args:
        table: the table as it was looked at.
        results: folder or URI.
        name: the table's name.
        shards: ids; no row of another shard is removed.
        goes: decides by shard_id and scan_id.
    """
    of_shards = pc.field("shard_id").isin(list(shards))
    removals: list[AddAction | RemoveAction] = []
    kept: list[pa.RecordBatch] = []
    for part in table.to_pyarrow_dataset().get_fragments():
        if not part.count_rows(filter=of_shards):
            continue
        rows = part.to_table(SCHEMAS[name])
        pairs = zip(rows["shard_id"].to_pylist(), rows["scan_id"].to_pylist(), strict=True)
        stays = [not goes(pair) for pair in pairs]
        if not all(stays):
            removals.append(RemoveAction(part.path, True, int(time.time() * 1000)))
            kept += rows.filter(pa.array(stays)).to_batches()
    file = write_file(results, name, kept)
    return [*removals, *additions([file] if file else [])]

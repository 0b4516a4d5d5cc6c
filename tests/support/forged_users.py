"""A users table that was changed by somebody who can write its files, without the registry's functions."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

from scanner.registry.index import all_events, open_table
from schemas.tables import USERS


def read_events(folder: Path | str) -> pl.DataFrame:
    """All events of a registry's users, columns of schemas.tables.USERS; no rows when it has no table yet."""
    return all_events(open_table(folder))


def rewrite(folder: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Replace all events of the table, without the registry's functions."""
    events = change(read_events(folder).sort("seq"))
    write_deltalake(str(folder / "users"), events.to_arrow().cast(USERS), mode="overwrite")


def part_files(folder, column: str) -> dict:
    """Files of the index that have a column, with their rows."""
    read = {
        path: pa.ipc.open_file(path.read_bytes()).read_all() for path in (folder / "users" / "_index").glob("*.arrow")
    }
    return {path: rows for path, rows in read.items() if column in rows.column_names}


def write(path, rows: pa.Table) -> None:
    with pa.ipc.new_file(path, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())


def swap_names(path, rows: pa.Table) -> bool:
    """Exchange the names of two users of a part."""
    names = rows["user_id"].to_pylist()
    if len(set(names)) < 2:
        return False
    other = next(n for n, name in enumerate(names) if name != names[0])
    names[0], names[other] = names[other], names[0]
    write(path, rows.set_column(3, "user_id", pa.array(names, pa.string())))
    return True


def _unused(rows: pl.DataFrame) -> int:
    """The smallest message that no event gave: a given one is refused before the chain is checked."""
    return min({*range(rows.height + 1)} - {*rows["message"]})


def _added(rows: pl.DataFrame) -> pl.DataFrame:
    """The last event once more, with the next number and a message of its own."""
    number = pl.lit(rows.height, pl.Int64)
    return rows.tail(1).with_columns(seq=number, event=pl.lit("allocated"), message=pl.lit(_unused(rows), pl.Int64))


CHANGES: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "another message": lambda rows: rows.with_columns(
        message=pl.when(pl.col("seq") == 2).then(_unused(rows)).otherwise("message")
    ),
    "another user": lambda rows: rows.with_columns(
        user_id=pl.when(pl.col("seq") == 2).then(pl.lit("mallory")).otherwise("user_id")
    ),
    "another time": lambda rows: rows.with_columns(
        at=pl.when(pl.col("seq") == 2).then(pl.col("at") - timedelta(days=1)).otherwise("at")
    ),
    "another event": lambda rows: rows.with_columns(
        event=pl.when(pl.col("seq") == 8).then(pl.lit("allocated")).otherwise("event"),
        message=pl.when(pl.col("seq") == 8).then(_unused(rows)).otherwise("message"),
    ),
    "a name for an erased one": lambda rows: rows.with_columns(
        user_id=pl.when(pl.col("seal").is_not_null()).then(pl.lit("mallory")).otherwise("user_id")
    ),
    "one taken out": lambda rows: rows.filter(pl.col("seq") != 2),
    "one twice": lambda rows: pl.concat([rows, rows.filter(pl.col("seq") == 3).with_columns(event=pl.lit("note"))]),
    "two that change places": lambda rows: rows.with_columns(
        seq=pl.when(pl.col("seq") == 1).then(2).when(pl.col("seq") == 2).then(1).otherwise("seq").cast(pl.Int64)
    ),
    "one added": lambda rows: pl.concat([rows, _added(rows)]),
    "one added without a head": lambda rows: pl.concat([rows, _added(rows).with_columns(head=pl.lit(None, pl.Binary))]),
    "all heads taken out": lambda rows: rows.with_columns(head=pl.lit(None, pl.Binary)),
}
"""Forgeries of a table with events 1 to 8, of which the third is not erased and an earlier one is."""

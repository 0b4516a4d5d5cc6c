"""Retention: the rows of nights that are older than a limit leave the tables, whole nights at a time, for good.

What a night committed stays committed: its transactions remain in Delta's log, so no later scan takes its input up
again. Rows of `scans` and `audits` stay, which say what was done, not on whom. `shards`, by which the scans of a night
are known, comes last: what was interrupted is finished by the next call. The files go with `brickscan vacuum`.
"""

import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import ScanFailed, in_a_line
from scanner.results.newest import bring_up_to_date, shards
from scanner.results.queries import ask
from scanner.results.tables import SCHEMAS, additions, table_now, try_to_commit, write_file
from scanner.storage.delta import attempts, table_uri
from scanner.storage.locations import filesystem_of

OF_A_NIGHT = ("quarantine", "audit_counts", "second_scores", "verdicts", "flags", "shards")
"""Tables whose rows belong to a scan, in the order in which they are gone through."""


class Expired(NamedTuple):
    """What is older than a limit: its nights, the ids of its scans, how many documents they read, and flagged."""

    nights: tuple[str, ...]
    scans: tuple[str, ...]
    documents: int
    flagged: int


def expired(results: str, before: date) -> Expired:
    """What began on a date (UTC) before this one. Writes nothing.

    Raises:
        Refused: there are no results.
    """

    def found() -> pl.DataFrame:
        of_scans = shards(results).group_by("scan_id").agg(pl.col("night").max(), pl.col("documents", "flagged").sum())
        return of_scans.filter(pl.col("night") < f"{before:%Y-%m-%d}").sort("night", "scan_id").collect()

    rows = ask(results, found)
    nights = tuple(rows["night"].unique().sort())
    return Expired(nights, tuple(rows["scan_id"]), int(rows["documents"].sum()), int(rows["flagged"].sum()))


def retain(results: str, scans: Sequence[str], *, keep_flags: bool) -> int:
    """Take all rows of these scans out of the tables, table by table. Returns how many rows.

    Args:
        results: folder or URI.
        scans: ids.
        keep_flags: leave the rows of `flags`.

    Raises:
        Refused: there are no results.
        ScanFailed: others kept committing first, or a table cannot be read or written.
    """
    bring_up_to_date(results)
    gone = 0
    for name in OF_A_NIGHT:
        if DeltaTable.is_deltatable(table_uri(results, name)) and not (keep_flags and name == "flags"):
            gone += _without(results, name, pl.Series(scans, dtype=pl.String))
    return gone


def _without(results: str, name: str, scans: pl.Series) -> int:
    gone = 0
    for _ in attempts(f"attempts to drop rows of {table_uri(results, name)}"):
        table = table_now(results, name)
        try:
            actions, gone = _actions(table, results, name, scans)
        except (DeltaError, OSError, pa.ArrowException) as error:  # gone, where another replaced files meanwhile
            if table_now(results, name).version() == table.version():
                raise ScanFailed(f"results: {table.table_uri} cannot be read: {in_a_line(error)}") from None
            continue
        if not actions or try_to_commit(table, name, actions, []):
            break
    return gone


def _actions(
    table: DeltaTable, results: str, name: str, scans: pl.Series
) -> tuple[list[AddAction | RemoveAction], int]:
    """What takes the rows of some scans out of a table, and how many these are. At most one file is written anew."""
    filesystem, folder = filesystem_of(table_uri(results, name))
    actions: list[AddAction | RemoveAction] = []
    kept: list[pa.RecordBatch] = []
    gone, now = 0, int(time.time() * 1000)
    for path in _may_hold(table, scans):
        with filesystem.open_input_file(f"{folder}/{path}") as source:
            file = pq.ParquetFile(source)
            goes = pl.Series(file.read(["scan_id"])["scan_id"]).is_in(scans.implode())
            if goes.any():
                actions.append(RemoveAction(path, True, now))
                gone += int(goes.sum())
            if goes.any() and not goes.all():
                kept += _whole(file.read(), SCHEMAS[name]).filter((~goes).to_arrow()).to_batches()
    written = write_file(results, name, kept)
    return [*actions, *additions([written] if written else [])], gone


def _whole(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns that came after the version that wrote it."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _may_hold(table: DeltaTable, scans: pl.Series) -> list[str]:
    """Names of a table's files but for those whose least and largest scan id say that they hold none of these."""
    files = pl.DataFrame(pa.table(table.get_add_actions(flatten=True)))
    if len(scans) and {"min.scan_id", "max.scan_id"} <= set(files.columns):
        outside = (pl.col("max.scan_id") < scans.min()) | (pl.col("min.scan_id") > scans.max())
        files = files.filter(~outside.fill_null(value=False))
    return list(files["path"])


def cutoff(days: int) -> date:
    """The first date (UTC) of which rows stay, when nights are kept for so many days."""
    return datetime.now(UTC).date() - timedelta(days=days)

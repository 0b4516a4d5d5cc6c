"""Names taken out of verdicts and flags, for those who ask to be forgotten: the rows stay, and name no one."""

from collections.abc import Callable, Sequence
from functools import partial

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.results.rewriting import Anew, rewrite, whole
from scanner.results.tables import ORPHANS_AFTER_HOURS, SCHEMAS, open_tables
from scanner.storage.delta import attempts, open_table, table_uri
from schemas.words import Naming

_LISTS = ("named", "named_again")
"""Columns that list names."""


def erase_user(
    results: str, user_ids: Sequence[str], watch: Callable[[str, int, int], None] = lambda table, done, files: None
) -> int:
    """Erase names from flags and verdicts: the rows read `removed`. Returns how many verdicts were changed.

    The files that held the names are deleted, and so is what failed attempts left a day ago or earlier. What is younger
    may be a running scan's and is left for scanner.results.upkeep.vacuum. It may be interrupted, and called again, at
    any time.

    Args:
        results: folder or URI.
        user_ids: the names.
        watch: called now and then with a table's name, how many of its files were looked at, and how many there are.

    Raises:
        Refused: there are no results.
        ScanFailed: others kept committing first, or the table cannot be read or written.
    """
    if not user_ids:
        return 0
    open_table(table_uri(results, "verdicts"))
    changed = {}
    for name in ("verdicts", "flags"):
        if DeltaTable.is_deltatable(table_uri(results, name)):  # earlier versions wrote no flags
            open_tables(results, [name])  # files that are written anew have every column of this version
            without = partial(_without_names, name, user_ids)
            changed[name] = rewrite(results, name, without, watch=partial(watch, name))
            _delete_replaced(table_uri(results, name))  # also where no name was left: an erasure may have died before
    return changed["verdicts"]


def _without_names(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> Anew | None:
    columns = pa.schema([SCHEMAS[name].field(column) for column in ("user_id", *_LISTS)])
    there = [column for column in columns.names if column in file.schema_arrow.names]
    anywhere = _anywhere(whole(file.read(there), columns), user_ids)
    if not anywhere.any():
        return None
    rows = whole(file.read(), SCHEMAS[name])
    named = pl.Series(rows["user_id"]).is_in(list(user_ids)).fill_null(value=False)
    user = pc.if_else(named.to_arrow(), pa.scalar(None, pa.string()), rows["user_id"])
    naming = pc.if_else(named.to_arrow(), Naming.REMOVED.value, rows["naming"])
    lists = [(column, _others(rows, column, user_ids)) for column in _LISTS]
    for column, values in (("user_id", user), ("naming", naming), *lists):
        at = rows.schema.get_field_index(column)
        rows = rows.set_column(at, rows.schema.field(at), values.cast(rows.schema.field(at).type))
    return Anew(int(anywhere.sum()), rows)


def _anywhere(rows: pa.Table, user_ids: Sequence[str]) -> pl.Series:
    """Whether each row names one of them, alone or among others."""
    one_of = pl.element().struct.field("user_id").is_in(list(user_ids))
    of_each = (pl.col(column).list.eval(one_of.fill_null(value=False)).list.any() for column in _LISTS)
    among = pl.any_horizontal(listed.fill_null(value=False) for listed in of_each)
    alone = pl.col("user_id").is_in(list(user_ids)).fill_null(value=False)
    frame = pl.DataFrame(rows)
    return frame.select(alone | among).to_series()


def _others(rows: pa.Table, column: str, user_ids: Sequence[str]) -> pa.ChunkedArray:
    """One of _LISTS without these names."""
    gone = pl.field("user_id").is_in(list(user_ids)).fill_null(value=False)
    without = pl.element().struct.with_fields(
        user_id=pl.when(~gone).then(pl.field("user_id")),
        naming=pl.when(gone).then(pl.lit(str(Naming.REMOVED))).otherwise(pl.field("naming")),
    )
    frame = pl.DataFrame(rows.select([column]))
    return frame.select(pl.col(column).list.eval(without)).to_arrow()[column]


def _delete_replaced(uri: str) -> None:
    for _ in attempts(f"attempts to delete files with names in {uri}"):
        table = open_table(uri)
        try:
            table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
            table.vacuum(ORPHANS_AFTER_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            if open_table(uri).version() == table.version():
                raise ScanFailed(f"results: files of {uri} cannot be deleted: {in_a_line(error)}") from None
            continue
        return

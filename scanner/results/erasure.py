"""Names taken out of all tables for those who ask to be forgotten: the rows stay, and name no one.

Their kept texts and the notes on their flags are deleted: both may show who somebody is.
"""

from collections.abc import Callable, Sequence
from functools import partial

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.results.account_posts import drop_posts_of
from scanner.results.transactions import ORPHANS_AFTER_HOURS, SCHEMAS, read_whole
from scanner.results.upkeep import RewrittenFile, rewrite
from scanner.storage.delta import attempts, open_table, table_uri
from schemas.tables import NAMED_LISTS
from schemas.words import Naming


def erase_user(
    results: str, user_ids: Sequence[str], watch: Callable[[str, int, int], None] = lambda table, done, files: None
) -> int:
    """Erase names from results: the rows read `removed`. Returns how many verdicts were changed.

    The texts that were kept of their flags are deleted, the notes of decisions on these, and the posts of accounts that
    name them.

    The files that held the names are deleted, and so are leftovers of attempts that failed a day ago or earlier.
    Younger files may be a running scan's, and are left for scanner.results.upkeep.vacuum. It may be interrupted, and
    called again, at any time.

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
    names = [(name, _without_names) for name in ("verdicts", "flags", "spans", "accounts")]
    if DeltaTable.is_deltatable(table_uri(results, "account_posts")):
        drop_posts_of(results, _accounts_of(results, user_ids))
        _delete_replaced(table_uri(results, "account_posts"))
    beside = (("flag_texts", _without_texts), ("flag_readings", _without_texts), ("decisions", _without_notes))
    for name, without in (*beside, *names):
        if DeltaTable.is_deltatable(table_uri(results, name)):  # not every scan makes them all
            changed[name] = rewrite(results, name, partial(without, name, user_ids), watch=partial(watch, name))
            _delete_replaced(table_uri(results, name))  # also where no name was left: an erasure may have died before
    return changed["verdicts"]


def _without_names(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    anywhere = _anywhere(file.read(["user_id", *_lists(name)]), user_ids)
    if not anywhere.any():
        return None
    rows = file.read().cast(SCHEMAS[name])
    named = pl.Series(rows["user_id"]).is_in(list(user_ids)).fill_null(value=False)
    user = pc.if_else(named.to_arrow(), pa.scalar(None, pa.string()), rows["user_id"])
    naming = pc.if_else(named.to_arrow(), Naming.REMOVED.value, rows["naming"])
    lists = [(column, _others(rows, column, user_ids)) for column in _lists(name)]
    for column, values in (("user_id", user), ("naming", naming), *lists):
        at = rows.schema.get_field_index(column)
        rows = rows.set_column(at, rows.schema.field(at), values.cast(rows.schema.field(at).type))
    return RewrittenFile(int(anywhere.sum()), rows)


def _without_texts(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    theirs = _theirs(file, user_ids)
    if not theirs.any():
        return None
    return RewrittenFile(int(theirs.sum()), file.read().cast(SCHEMAS[name]).filter((~theirs).to_arrow()))


def _without_notes(name: str, user_ids: Sequence[str], file: pq.ParquetFile) -> RewrittenFile | None:
    theirs = _theirs(file, user_ids)
    if not theirs.any():
        return None
    others = pl.element().filter(~pl.element().is_in(list(user_ids)))
    rows = pl.DataFrame(file.read().cast(SCHEMAS[name]))
    changed = rows.with_columns(user_ids=pl.col("user_ids").list.eval(others), note=pl.when(~theirs).then("note"))
    return RewrittenFile(int(theirs.sum()), changed.to_arrow().cast(SCHEMAS[name]))


def _theirs(file: pq.ParquetFile, user_ids: Sequence[str]) -> pl.Series:
    """Whether each row has one of these users among its `user_ids`."""
    return pl.Series(file.read(["user_ids"])["user_ids"]).list.eval(pl.element().is_in(list(user_ids))).list.any()


def _accounts_of(results: str, user_ids: Sequence[str]) -> list[str]:
    """Accounts whose posts name one of these users."""
    if not DeltaTable.is_deltatable(table_uri(results, "accounts")):
        return []
    rows = read_whole(results, "accounts").collect().to_arrow()
    return pl.Series(rows["account_id"]).filter(_anywhere(rows, user_ids)).unique().to_list()


def _lists(name: str) -> list[str]:
    return [column for column in NAMED_LISTS if column in SCHEMAS[name].names]


def _anywhere(rows: pa.Table, user_ids: Sequence[str]) -> pl.Series:
    """Whether each row names one of these users, alone or among others."""
    one_of = pl.element().struct.field("user_id").is_in(list(user_ids))
    lists = [column for column in NAMED_LISTS if column in rows.column_names]
    of_each = (pl.col(column).list.eval(one_of.fill_null(value=False)).list.any() for column in lists)
    among = pl.any_horizontal(pl.lit(value=False), *(listed.fill_null(value=False) for listed in of_each))
    erased = pl.col("user_id").is_in(list(user_ids)).fill_null(value=False)
    frame = pl.DataFrame(rows)
    return frame.select(erased | among).to_series()


def _others(rows: pa.Table, column: str, user_ids: Sequence[str]) -> pa.ChunkedArray:
    """One of NAMED_LISTS without these names."""
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

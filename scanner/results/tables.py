"""The tables of results as a whole: making them, bringing an older one up to date, reading one, and its single rows."""

from collections.abc import Iterable, Mapping, Sequence

import deltalake
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.results.data_files import SCHEMAS, TABLES, WITH_BOUNDS, write_file
from scanner.results.transactions import Entry, commit
from scanner.storage.delta import attempts, make_table, open_table, read, table_uri
from scanner.storage.permissions import make_private
from schemas.audit_tables import AUDITS
from schemas.tables import SCANS


def open_tables(results: str, names: Iterable[str] = tuple(TABLES)) -> None:
    """Make the tables that do not exist yet: those of every scan, unless others are named.

    A table that an older version made gains the columns that came since; its rows have null there. A column that may
    be null since then may be so in it too.

    Raises:
        Refused: they cannot be made, or a table with other columns is there.
        ScanFailed: others kept changing a table's columns first.
    """
    for name in names:
        uri, schema = table_uri(results, name), SCHEMAS[name]
        try:
            make_private(results)
            make_private(uri)
            if not DeltaTable.is_deltatable(uri):
                make_table(uri, schema, _statistics(schema))
            _bring_up_to_date(uri, deltalake.Schema.from_arrow(schema))
            found = DeltaTable(uri).schema()
        except (DeltaError, OSError, ValueError) as error:
            raise Refused(
                f"results: table {uri} cannot be opened or made: {in_a_line(error)}; give a folder that can be written"
            ) from None
        wanted = deltalake.Schema.from_arrow(schema)
        if found.fields[: len(wanted.fields)] == wanted.fields != found.fields:
            raise Refused(f"results: table {uri} has columns of a newer version of brickscan; install that version")
        if found != wanted:
            raise Refused(f"results: table {uri} has other columns than this version writes; give another folder")


def _bring_up_to_date(uri: str, wanted: deltalake.Schema) -> None:
    """Add to a table the last of the wanted columns, and allow null where they do; not if it has others, or lacks one.

    Raises:
        ScanFailed: others kept changing its columns first.
    """
    for _ in attempts(f"commits to {uri}"):
        table = DeltaTable(uri)
        there = table.schema().fields
        known = wanted.fields[: len(there)]
        loosened = [new for old, new in zip(there, known, strict=False) if old != new]
        if len(known) < len(there) or any(not allows_null(old, new) for old, new in zip(there, known, strict=True)):
            return
        changes = [*loosened, *wanted.fields[len(there) :]]
        if not changes:
            return
        try:
            table.alter.add_columns(changes)  # for an existing column: it may be null from now on
        except CommitFailedError:
            continue
        return


def allows_null(old: deltalake.Field, new: deltalake.Field) -> bool:
    """Whether a column is the same as before, or may be null since."""
    return old == new or (new.nullable and (old.name, old.type) == (new.name, new.type))


def _statistics(schema: pa.Schema) -> dict[str, str]:
    """Keep names out of Delta's log, where an erasure could not reach them: statistics on these columns alone."""
    return {
        "delta.dataSkippingStatsColumns": ",".join(name for name in WITH_BOUNDS if name in schema.names) or "scan_id"
    }


def read_whole(results: str, name: str, paths: pl.Series | None = None) -> pl.LazyFrame:
    """A table with all of its columns; null in those that came after the version that made it.

    Args:
        results: folder or URI.
        name: the table's name.
        paths: files of the table that hold no row of these paths are left out; the files that are read may have other
            rows too.

    Raises:
        Refused: there is no such table.
    """
    rows, wanted = read(open_table(table_uri(results, name)), paths), pl.Schema(SCHEMAS[name])
    there = rows.collect_schema()
    return rows.with_columns(pl.lit(None, kind).alias(column) for column, kind in wanted.items() if column not in there)


def append_scan(results: str, row: Mapping[str, object]) -> None:
    """Append a row to `scans`, once whatever happens.

    Raises:
        ScanFailed: the table cannot be written.
    """
    file = write_file(results, "scans", [pa.RecordBatch.from_pylist([row], SCANS)])
    commit(results, "scans", [Entry(str(row["scan_id"]), (file,) if file else ())])


def append_audits(results: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows of one audit to `audits`, all at once; the table is made, or given its new columns, where it must be.

    Raises:
        ScanFailed: the table cannot be written.
    """
    uri = table_uri(results, "audits")
    try:
        make_private(results)
        make_private(uri)
        deltalake.write_deltalake(uri, pa.Table.from_pylist(list(rows), AUDITS), mode="append", schema_mode="merge")
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"results: table {uri} cannot be written: {in_a_line(error)}") from None

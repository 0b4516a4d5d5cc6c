"""The tables of results as a whole: where they are, making them, reading one, and its single rows."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, cast

import deltalake
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.results.transactions import SCHEMAS, TABLES, WITH_BOUNDS, TableEntry, commit, write_file
from scanner.storage.delta import make_table, open_table, read, refuse_other_version, table_uri
from scanner.storage.locations import make_private
from schemas.audit import AUDITS
from schemas.tables import SCANS

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Place = str | os.PathLike[str]


def folder_of(place: Place) -> str:
    """Folder or URI of the results that a place names.

    Raises:
        Refused: it is a file, and no configuration of a scan.
    """
    if Path(place).is_file():
        from scanner.scan_plan import read_config, results_of  # it brings kernels, which take a second

        return results_of(read_config(Path(place)), Path(place))
    return os.fspath(place)


def of_any_place(query: Callable[Concatenate[str, Given], Answer]) -> Callable[Concatenate[Place, Given], Answer]:
    """A query that takes a Path or the file of a configuration where it took a folder or URI of results."""

    @wraps(query)
    def ask(results: Place, *given: Given.args, **named: Given.kwargs) -> Answer:
        return query(folder_of(results), *given, **named)

    return cast(Callable[Concatenate[Place, Given], Answer], ask)


def open_tables(results: str, names: Iterable[str] = tuple(TABLES)) -> None:
    """Make the tables that do not exist yet: those of every scan, unless others are named.

    Raises:
        Refused: they cannot be made, or a table of another version or with other columns is there.
    """
    for name in names:
        uri, schema = table_uri(results, name), SCHEMAS[name]
        try:
            make_private(results)
            make_private(uri)
            if not DeltaTable.is_deltatable(uri):
                make_table(uri, schema, _statistics(schema))
            table = DeltaTable(uri)
        except (DeltaError, OSError, ValueError) as error:
            raise Refused(
                f"results: table {uri} cannot be opened or made: {in_a_line(error)}; give a folder that can be written"
            ) from None
        refuse_other(table, name)


def refuse_other(table: DeltaTable, name: str) -> None:
    """Refuse a table that this version does not write.

    Raises:
        Refused: its version or its columns are others.
    """
    refuse_other_version(table)
    if table.schema() != deltalake.Schema.from_arrow(SCHEMAS[name]):
        raise Refused(
            f"results: table {table.table_uri} has other columns than this version writes; give another folder"
        )


def _statistics(schema: pa.Schema) -> dict[str, str]:
    """Keep names out of Delta's log, where an erasure could not reach them: statistics on these columns alone."""
    return {
        "delta.dataSkippingStatsColumns": ",".join(name for name in WITH_BOUNDS if name in schema.names) or "scan_id"
    }


def read_whole(results: str, name: str, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Rows of a table.

    Args:
        results: folder or URI.
        name: the table's name.
        paths: files of the table that hold no row of these paths are left out; the files that are read may have other
            rows too.

    Raises:
        Refused: there is no such table, or it is of another version or has other columns.
    """
    table = open_table(table_uri(results, name))
    refuse_other(table, name)
    return read(table, paths)


def append_scan(results: str, row: Mapping[str, object]) -> None:
    """Append a row to `scans`, once whatever happens.

    Raises:
        ScanFailed: the table cannot be written.
    """
    file = write_file(results, "scans", [pa.RecordBatch.from_pylist([row], SCANS)])
    commit(results, "scans", [TableEntry(str(row["scan_id"]), (file,) if file else ())])


def append_audits(results: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows of one audit to `audits`, all at once; the table is made where there is none.

    Raises:
        ScanFailed: the table cannot be made or written, or another is there.
    """
    uri = table_uri(results, "audits")
    try:
        open_tables(results, ["audits"])
        deltalake.write_deltalake(uri, pa.Table.from_pylist(list(rows), AUDITS), mode="append")
    except (Refused, DeltaError, OSError) as error:  # hours of work end here: no refusal before it
        raise ScanFailed(f"results: table {uri} cannot be written: {in_a_line(error)}") from None

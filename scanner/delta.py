"""Reading Delta tables into polars, from whatever folder: the one place that opens them for queries."""

from typing import cast
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from scanner.errors import Refused


def read(table: DeltaTable) -> pl.LazyFrame:
    """Rows of a table as it was when it was opened.

    On a local disk the table's files are read by their plain names: polars.scan_delta looks for them under a
    percent-encoded path, where none are if a folder's name holds a space or a letter beyond ASCII (polars 2.1).
    """
    if urlsplit(table.table_uri).scheme not in ("", "file"):
        return pl.scan_delta(table)
    files = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    if not files:
        return cast(pl.DataFrame, pl.from_arrow(pa.schema(table.schema()).empty_table())).lazy()
    return pl.scan_parquet(files, glob=False)


def table_uri(results: str, name: str) -> str:
    """Where a table lies: a folder of its own in the folder of results."""
    return f"{results.rstrip('/')}/{name}"


def open_table(uri: str) -> DeltaTable:
    """A table of results as it is now.

    Raises:
        Refused: it is not there.
    """
    try:
        return DeltaTable(uri)
    except (TableNotFoundError, OSError):
        raise Refused(f"results: there is no table {uri} yet; run `brickscan scan` first") from None

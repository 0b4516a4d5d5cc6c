"""Reading Delta tables, from whatever folder: into polars, and the transactions in their logs."""

import json
import re
import time
from collections.abc import Iterable, Iterator
from typing import cast
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from scanner.errors import Refused, ScanFailed
from scanner.storage.locations import filesystem_of

COMMIT_ATTEMPTS = 50
"""Of a commit, while others commit first."""

_LOOKED_UP = 20
"""Transactions that deltalake is asked for one by one; each time it goes through all that there are."""

_MAKES = {
    "audits": "run `brickscan calibrate` or `brickscan scan`",
    "second_scores": "run `brickscan scan` with a section [second_score]",
}
"""What makes the tables that not every scan makes."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


def read(table: DeltaTable, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Rows of a table as it was when it was opened; with `paths`, at least those whose `path` is one of these.

    On a local disk the table's files are read by their plain names: polars.scan_delta looks for them under a
    percent-encoded path, where none are if a folder's name holds a space or a letter beyond ASCII (polars 2.1). A file
    that is older than a column of the table has null there.
    """
    if urlsplit(table.table_uri).scheme not in ("", "file"):
        return pl.scan_delta(table)
    files = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    if paths is not None:
        kept = _holding(table, paths)
        files = [file for file in files if file.rpartition("/")[2] in kept]
    if not files:
        return cast(pl.DataFrame, pl.from_arrow(pa.schema(table.schema()).empty_table())).lazy()
    schema = pl.Schema(pa.schema(table.schema()))
    return pl.scan_parquet(files, glob=False, schema=schema, missing_columns="insert")


def _holding(table: DeltaTable, paths: pl.Series) -> set[str]:
    """Names of a table's files whose least and largest `path` have one of these between them, or that do not tell."""
    files = cast(pl.DataFrame, pl.from_arrow(pa.table(table.get_add_actions(flatten=True))))
    if not {"min.path", "max.path"} <= set(files.columns):
        return set(files["path"])
    known = paths.unique().sort()
    first = known.search_sorted(files["min.path"].fill_null(""), "left")
    reach = known.search_sorted(files["max.path"].fill_null(chr(0x10FFFF)), "right")
    return set(files["path"].filter(pl.Series(first) < pl.Series(reach)))


def table_uri(results: str, name: str) -> str:
    """Where a table lies: a folder of its own in the folder of results."""
    return f"{results.rstrip('/')}/{name}"


def attempts(what: str) -> Iterator[None]:
    """Turns at something that fails while others commit first; each waits a little longer than the one before.

    Args:
        what: cannot be done, for the error, such as `commits to /results/verdicts`.

    Raises:
        ScanFailed: COMMIT_ATTEMPTS turns were in vain.
    """
    for attempt in range(COMMIT_ATTEMPTS):
        yield
        time.sleep(0.01 * attempt)
    raise ScanFailed(f"results: {COMMIT_ATTEMPTS} {what} failed, since others committed first; run again later")


def open_table(uri: str) -> DeltaTable:
    """A table of results as it is now.

    Raises:
        Refused: it is not there.
    """
    try:
        return DeltaTable(uri)
    except (TableNotFoundError, OSError):
        first = _MAKES.get(uri.rpartition("/")[2], "run `brickscan scan`")
        raise Refused(f"results: there is no table {uri} yet; {first} first, or name another folder") from None


def transaction_versions(table: DeltaTable, transactions: Iterable[str]) -> dict[str, int]:
    """Versions of those application transactions that a table has, as it was when it was opened.

    Many are read from the log at once, since a look-up takes as long as the table has transactions: its newest
    checkpoint and the commits after that (the Delta protocol's "Transaction Identifiers"). Where the log is kept in
    another form, each is looked up.
    """
    wanted = set(transactions)
    if len(wanted) > _LOOKED_UP:
        logged = _logged(table)
        if logged is not None:
            return {name: logged[name] for name in wanted & logged.keys()}
    found = ((name, table.transaction_version(name)) for name in wanted)
    return {name: version for name, version in found if version is not None}


def _logged(table: DeltaTable) -> dict[str, int] | None:
    filesystem, folder = filesystem_of(unquote(table.table_uri.removeprefix("file://")))
    folder = f"{folder.rstrip('/')}/_delta_log"
    try:
        names = {info.base_name for info in filesystem.get_file_info(fs.FileSelector(folder))}
        points = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
        newest = max((point for point in points if point <= table.version()), default=-1)
        versions: dict[str, int] = {}
        if newest >= 0:
            with filesystem.open_input_file(f"{folder}/{newest:020d}.checkpoint.parquet") as source:
                column = pq.read_table(source, columns=["txn"]).column("txn").combine_chunks()
            pairs = zip(column.field("appId").to_pylist(), column.field("version").to_pylist(), strict=True)
            versions.update((name, version) for name, version in pairs if name is not None)
        for commit in range(newest + 1, table.version() + 1):
            with filesystem.open_input_stream(f"{folder}/{commit:020d}.json") as source:
                actions = [json.loads(line) for line in source.read().splitlines() if line.strip()]
            versions.update((action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action)
    except (OSError, KeyError, pa.ArrowException):
        return None
    return versions

"""Delta tables in any folder: where they lie, how they are read into polars, and repeated attempts to commit."""

import time
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from scanner.errors import Refused, ScanFailed
from schemas.words import VERSION

_VERSION = "brickscan.version"
"""Property of a table that holds its version."""

COMMIT_ATTEMPTS = 50
"""Most attempts at a commit while others commit first."""

_MAKES = {
    "accounts": "run `brickscan scan` with `accounts = { nights = 1 }`",
    "decisions": "run `brickscan review` or `brickscan decide`",
    "sent": "run `brickscan export --send`",
    "audits": "run `brickscan calibrate` or `brickscan scan`",
    "flag_texts": "run `brickscan scan` with `keep_text = true` in a section [evidence]",
    "filters": "run `brickscan scan` with a section [filter]",
    "second_scores": "run `brickscan scan` with a section [second_score]",
}
"""Commands that make the tables which not every scan makes."""


def read(table: DeltaTable, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Rows of a table as it was when it was opened. With `paths`, at least the rows whose `path` is one of these.

    On a local disk the table's files are read by their plain names: polars.scan_delta looks for them under a
    percent-encoded path, where none are if a folder's name holds a space or a letter beyond ASCII (polars 2.1).
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
    return pl.scan_parquet(files, glob=False, schema=schema)


def _holding(table: DeltaTable, paths: pl.Series) -> set[str]:
    """Names of a table's files whose range of `path` may hold one of the given paths, or that state no range."""
    files = cast(pl.DataFrame, pl.from_arrow(pa.table(table.get_add_actions(flatten=True))))
    if not {"min.path", "max.path"} <= set(files.columns):
        return set(files["path"])
    known = paths.unique().sort()
    first = known.search_sorted(files["min.path"].fill_null(""), "left")
    reach = known.search_sorted(files["max.path"].fill_null(chr(0x10FFFF)), "right")
    return set(files["path"].filter(pl.Series(first) < pl.Series(reach)))


def table_uri(results: str, name: str) -> str:
    """Location of a table: a folder of its own in the folder of results."""
    return f"{results.rstrip('/')}/{name}"


def make_table(uri: str, schema: pa.Schema, configuration: Mapping[str, str]) -> None:
    """Make an empty table, unless it is there or another process makes it at the same time.

    Raises:
        DeltaError, OSError: it cannot be made.
    """
    try:
        DeltaTable.create(
            uri,
            schema,
            mode="ignore",
            configuration={_VERSION: str(VERSION), **configuration},
            raise_if_key_not_exists=False,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:  # what deltalake raises, in spite of `ignore`, when another was faster
        if not DeltaTable.is_deltatable(uri):
            raise


def refuse_other_version(table: DeltaTable) -> None:
    """Refuse a table that another version of brickscan made, whose rows may mean something else.

    Raises:
        Refused: it has no version, or a newer one.
    """
    uri = unquote(table.table_uri.removeprefix("file://")).rstrip("/")
    found = table.metadata().configuration.get(_VERSION)
    if found is None:
        raise Refused(f"table {uri}: was made before 0.1.0, and is read no more; name another folder")
    if found != str(VERSION):
        raise Refused(
            f"table {uri}: has version {found}, of a newer brickscan; install that one, since this reads "
            f"version {VERSION}"
        )


def attempts(subject: str) -> Iterator[None]:
    """Attempts at something that fails while others commit first; each waits a little longer than the one before.

    Args:
        subject: the subject of the error, such as `commits to /results/verdicts`.

    Raises:
        ScanFailed: COMMIT_ATTEMPTS attempts failed.
    """
    for attempt in range(COMMIT_ATTEMPTS):
        yield
        time.sleep(0.01 * attempt)
    raise ScanFailed(f"results: {COMMIT_ATTEMPTS} {subject} failed, since others committed first; run again later")


def open_table(uri: str) -> DeltaTable:
    """A table of results as it is now.

    Raises:
        Refused: it is not there, or of another version.
    """
    try:
        table = DeltaTable(uri)
    except (TableNotFoundError, OSError):
        first = _MAKES.get(uri.rpartition("/")[2], "run `brickscan scan`")
        raise Refused(f"results: there is no table {uri} yet; {first} first, or name another folder") from None
    refuse_other_version(table)
    return table

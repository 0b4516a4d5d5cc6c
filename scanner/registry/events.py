"""Events of a users table as they lie in its files: some are read by their numbers, without the others."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from scanner.errors import ScanFailed, TooLate
from scanner.registry.index import FOLDER as INDEX
from scanner.registry.keys_file import USERS_FOLDER
from scanner.registry.sorted_files import MOST
from scanner.storage.delta import make_table, read, refuse_other_version
from scanner.storage.local_files import make_private
from scanner.storage.locations import is_uri
from schemas.tables import USERS

STATISTICS = {"delta.dataSkippingStatsColumns": "key_id,message,seq"}
"""Properties of the table: statistics go to the log, where no names may stand."""

_ENDS = {"first": "min.seq", "last": "max.seq"}


def open_table(folder: Path | str) -> DeltaTable | None:
    """The users table of a registry as it is now; None: there is none yet.

    Raises:
        Refused: it is of another version.
    """
    location = f"{folder}/{USERS_FOLDER}"
    if not DeltaTable.is_deltatable(location):
        return None
    table = DeltaTable(location)
    refuse_other_version(table)
    return table


def create(folder: Path | str) -> None:
    """Make the users table of a registry, unless another process was faster."""
    make_private(f"{folder}/{USERS_FOLDER}")
    make_table(f"{folder}/{USERS_FOLDER}", USERS, STATISTICS)


def all_events(table: DeltaTable | None) -> pl.DataFrame:
    """All events of a table; no rows where there is none."""
    if table is None:
        return pl.DataFrame(schema=pl.Schema(USERS))
    with reading(table):
        return read(table).collect()


def since(table: DeltaTable, first: int, last: int = MOST) -> pl.DataFrame:
    """Events from one number to another, and all events without a number."""
    wanted = pl.col("seq").is_null() | pl.col("seq").is_between(first, last)
    inside = pl.col("first").is_null() | ((pl.col("last") >= first) & (pl.col("first") <= last))
    return _read(table, inside, wanted)


def numbered(table: DeltaTable, numbers: pl.Series) -> pl.DataFrame:
    """Events of the given numbers, which are in order."""
    files = files_of(table)
    before, up_to = numbers.search_sorted(files["first"], "left"), numbers.search_sorted(files["last"], "right")
    inside = pl.col("path").is_in(files["path"].filter(before < up_to).implode())
    return _read(table, inside, pl.col("seq").is_in(numbers.implode()))


def with_heads(table: DeltaTable, heads: Sequence[bytes]) -> pl.DataFrame:
    """Events after which the chain had one of these heads."""
    return _read(table, pl.lit(value=True), pl.col("head").is_in(list(heads)))


def _read(table: DeltaTable, inside: pl.Expr, wanted: pl.Expr) -> pl.DataFrame:
    """The wanted events, which lie in the files that are inside (rows of `files_of`)."""
    if is_uri(table.table_uri.removeprefix("file://")):
        return pl.scan_delta(table).filter(wanted).select(USERS.names).collect()
    kept = set(files_of(table).filter(inside)["path"])
    names = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    files = [name for name in names if name.rpartition("/")[2] in kept]
    if not files:
        return pl.DataFrame(schema=pl.Schema(USERS))
    rows = pl.scan_parquet(files, glob=False, schema=pl.Schema(USERS))
    return rows.filter(wanted).collect(engine="streaming")


def files_of(table: DeltaTable) -> pl.DataFrame:
    """Files of a table: path, rows, first and last number of an event, null where an event has none."""
    found = cast(pl.DataFrame, pl.from_arrow(pa.table(table.get_add_actions(flatten=True))))
    bounds = {"min.seq", "max.seq", "null_count.seq"} <= set(found.columns)
    whole = pl.col("null_count.seq").fill_null(1) == 0 if bounds else pl.lit(value=False)
    ends = [pl.when(whole).then(name if bounds else None).alias(to) for to, name in _ENDS.items()]
    return found.select("path", pl.col("num_records").alias("rows"), *ends)


@contextlib.contextmanager
def reading(table: DeltaTable | None) -> Iterator[None]:
    """Guard reads of a snapshot's and its index's files: a missing file is an error unless another change took it.

    Raises:
        TooLate: the table has changed since.
        ScanFailed: it has not.
    """
    try:
        yield
    except FileNotFoundError as error:
        if table is not None:
            raise_if_outdated(table)
        raise missing(error) from None


def missing(error: FileNotFoundError) -> ScanFailed:
    """Message about a file that is missing: only the index can be made anew."""
    in_index = f"/{INDEX}/" in str(error)
    help_ = f"delete the folder {INDEX}, which is made anew" if in_index else "restore it from a backup"
    return ScanFailed(f"users table: a file is missing ({error}); {help_}")


def raise_if_outdated(table: DeltaTable) -> None:
    """Files of an outdated snapshot may be gone, when a name was erased; files of the newest one never are."""
    if DeltaTable(table.table_uri).version() != table.version():
        raise TooLate

"""Delta tables in any folder: where they lie, how they are read, and tables that are kept open.

Opening a table costs as much as its log is long, and so does deltalake's look-up of one transaction (6 ms of 10^5). A
driver that commits all night long opens each of its tables once, and reads from then on the commits that came since.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import cast
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.storage.locations import filesystem_of
from schemas.words import MADE_BEFORE, VERSION

TABLE_VERSION = "brickscan.version"
"""Property of a table that holds its version."""

COMMIT_ATTEMPTS = 50
"""Most attempts at a commit while others commit first."""

_MAKES = {
    "accounts": "run `brickscan scan` with `accounts = { nights = 1 }`",
    "decisions": "run `brickscan review` or `brickscan decide`",
    "audits": "run `brickscan calibrate` or `brickscan scan`",
    "flag_levels": "run `brickscan scan` with a section [levels]",
    "flag_texts": "run `brickscan scan` with `keep_text = true` in a section [evidence]",
    "filters": "run `brickscan scan` with a section [filter]",
}
"""Commands that make the tables which not every scan makes."""


def read(table: DeltaTable, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Read a table as it was when it was opened. With `paths`, at least the rows whose `path` is among them.

    On a local disk the table's files are read by their plain names: polars.scan_delta looks for them under a
    percent-encoded path, where none are if a folder's name holds a space or a letter beyond ASCII (polars 2.1).
    """
    if urlsplit(table.table_uri).scheme not in ("", "file"):
        return pl.scan_delta(table)
    files = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    if paths is not None:
        file_names = _holding(table, paths)
        files = [file for file in files if file.rpartition("/")[2] in file_names]
    if not files:
        return cast(pl.DataFrame, pl.from_arrow(pa.schema(table.schema()).empty_table())).lazy()
    schema = pl.Schema(pa.schema(table.schema()))
    return pl.scan_parquet(files, glob=False, schema=schema)


def _holding(table: DeltaTable, paths: pl.Series) -> set[str]:
    """Return the names of a table's files whose range of `path` may hold a given path, or that state no range."""
    files = cast(pl.DataFrame, pl.from_arrow(pa.table(table.get_add_actions(flatten=True))))
    if not {"min.path", "max.path"} <= set(files.columns):
        return set(files["path"])
    sorted_paths = paths.unique().sort()
    first = sorted_paths.search_sorted(files["min.path"].fill_null(""), "left")
    reach = sorted_paths.search_sorted(files["max.path"].fill_null(chr(0x10FFFF)), "right")
    return set(files["path"].filter(pl.Series(first) < pl.Series(reach)))


def make_table(uri: str, schema: pa.Schema, configuration: Mapping[str, str]) -> None:
    """Make an empty table, unless it is there or another process makes it at the same time.

    Raises:
        DeltaError: it cannot be made.
        OSError: it cannot be made.
    """
    try:
        DeltaTable.create(
            uri,
            schema,
            mode="ignore",
            configuration={TABLE_VERSION: str(VERSION), **configuration},
            raise_if_key_not_exists=False,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:  # what deltalake raises, in spite of `ignore`, when another was faster
        if not DeltaTable.is_deltatable(uri):
            raise


def refuse_other_version(table: DeltaTable) -> None:
    """Refuse a table that another version of brickscan made, whose rows may mean something else.

    Raises:
        Refused: it has no version, one from before 0.1.0, or a newer one.
    """
    uri = unquote(table.table_uri.removeprefix("file://")).rstrip("/")
    version = table.metadata().configuration.get(TABLE_VERSION)
    if version is None or (version.isdecimal() and int(version) < VERSION):
        raise Refused(f"table {uri}: {MADE_BEFORE}, and is read no more; name another folder")
    if version != str(VERSION):
        raise Refused(
            f"table {uri}: has version {version}, of a newer brickscan; install that one, since this reads "
            f"version {VERSION}"
        )


def attempts(subject: str) -> Iterator[None]:
    """Yield once for each attempt at something that fails while others commit first. Each waits a little longer.

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
    """Open a table of results as it is now. Raises Refused: it is not there, or of another version."""
    try:
        table = DeltaTable(uri)
    except (TableNotFoundError, OSError):
        first = _MAKES.get(uri.rpartition("/")[2], "run `brickscan scan`")
        raise Refused(f"results: there is no table {uri} yet; {first} first, or name another folder") from None
    refuse_other_version(table)
    return table


_LOOKED_UP = 20
"""Transactions that deltalake is asked for one by one; more than these are read from the log at once."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


class KeptTable:
    """A table, opened when it is first needed."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._table: DeltaTable | None = None
        self._logged: dict[str, int] | None = None  # transactions of the log, as far as it was read
        self._read = -1  # the last version in it
        self._looked_up = 0

    def now(self) -> DeltaTable:
        """Return the table as it is now. The same object is brought up to date by the next call.

        Raises:
            Refused: it is of another version.
            ScanFailed: it cannot be read.
        """
        try:
            if self._table is not None:
                try:
                    self._table.update_incremental()
                except (DeltaError, OSError):  # commits were cleaned up that this object has not read
                    self._table = None
            if self._table is None:
                self._table = DeltaTable(self._uri)
                refuse_other_version(self._table)
        except (DeltaError, OSError) as error:
            raise ScanFailed(f"results: table {self._uri} cannot be read: {in_a_line(error)}") from None
        return self._table

    def versions(self, transactions: Iterable[str]) -> dict[str, int]:
        """Return the versions of the given application transactions, as of the last call of `now`.

        Many are read from the log: its newest checkpoint and the commits after that (the Delta protocol's "Transaction
        Identifiers"). Where the log is kept in another form, each is looked up.

        Raises:
            ScanFailed: the table cannot be read.
        """
        table, names = self._table or self.now(), set(transactions)
        self._looked_up += len(names)
        if self._looked_up > _LOOKED_UP and self._read_log(table):
            logged = self._logged or {}
            return {name: logged[name] for name in names if name in logged}
        versions = ((name, table.transaction_version(name)) for name in names)
        return {name: version for name, version in versions if version is not None}

    def all(self) -> dict[str, int]:
        """Return all transactions of the table as of the last call of `now`; empty where the log has another form."""
        table = self._table or self.now()
        return dict(self._logged or {}) if self._read_log(table) else {}

    def _read_log(self, table: DeltaTable) -> bool:
        """Read what is new in the log, or all of it. Return False if the log is of a form that is not read here."""
        folder = _Log(table.table_uri)
        try:
            if self._logged is None or self._read > table.version():
                self._logged, self._read = folder.checkpoint(table.version())
            try:
                self._logged |= folder.commits(self._read + 1, table.version())
            except FileNotFoundError:  # cleaned up behind a newer checkpoint
                self._logged, self._read = folder.checkpoint(table.version())
                self._logged |= folder.commits(self._read + 1, table.version())
        except (OSError, KeyError, pa.ArrowException):
            self._logged = None
            return False
        self._read = table.version()
        return True


class _Log:
    def __init__(self, table_uri: str) -> None:
        self._filesystem, folder = filesystem_of(unquote(table_uri.removeprefix("file://")))
        self._folder = f"{folder.rstrip('/')}/_delta_log"

    def checkpoint(self, version: int) -> tuple[dict[str, int], int]:
        """Return the transactions of the newest checkpoint up to a version, and its own version; -1: there is none."""
        names = [info.base_name for info in self._filesystem.get_file_info(fs.FileSelector(self._folder))]
        points = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
        newest = max((point for point in points if point <= version), default=-1)
        if newest < 0:
            return {}, newest
        with self._filesystem.open_input_file(f"{self._folder}/{newest:020d}.checkpoint.parquet") as source:
            column = pq.read_table(source, columns=["txn"]).column("txn").combine_chunks()
        rows = column.drop_null()
        return dict(zip(rows.field("appId").to_pylist(), rows.field("version").to_pylist(), strict=True)), newest

    def commits(self, first: int, last: int) -> dict[str, int]:
        """Return the transactions of the commits first … last. Raises FileNotFoundError: one was cleaned up."""
        versions: dict[str, int] = {}
        for commit in range(first, last + 1):
            with self._filesystem.open_input_stream(f"{self._folder}/{commit:020d}.json") as source:
                actions = [json.loads(line) for line in source.read().splitlines() if b'"txn"' in line]
            versions.update((action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action)
        return versions

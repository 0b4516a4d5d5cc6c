"""Handle Delta tables in any folder: their place, reading them, and keeping them open.

The cost of opening a table grows with its log, and so does deltalake's look-up of one transaction (6 ms of 10^5). A
driver that commits all night therefore opens each of its tables once, and from then on reads only newer commits.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from scanner.errors import Refused, ScanFailed, TableError, in_a_line
from scanner.storage.locations import filesystem_of, is_uri, parse_json, refuse_special, sync_to_disk
from schemas.versions import FIRST_VERSION, MADE_BEFORE, VERSION

TABLE_VERSION = "brickscan.version"
"""Property of a table with its version."""

_WRITTEN_VERSION = re.compile("[1-9][0-9]{0,5}")

COMMIT_ATTEMPTS = 50
"""Most attempts at a commit while other processes commit first."""

_MOST_READ_WHOLE = 2**26
"""Most bytes of a file of a table's log other than rows. deltalake reads such a file into memory as a whole."""

_MAKES = {
    "accounts": "run `brickscan scan` with `accounts = { nights = 1 }`",
    "decisions": "run `brickscan review` or `brickscan decide`",
    "audits": "run `brickscan calibrate` or `brickscan scan`",
    "flag_levels": "run `brickscan scan` with a section [levels]",
    "flag_texts": "run `brickscan scan` with `keep_text = true` in a section [evidence]",
    "filters": "run `brickscan scan` with a section [filter]",
}
"""Commands that make the tables that not every scan makes."""


def read(table: DeltaTable, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Read a table as it was when it was opened. With `paths`, return at least the rows whose `path` is among them.

    On a local disk the table's files are read by their plain names. polars.scan_delta uses percent-encoded paths, and
    finds no files if a folder's name has a space or a letter beyond ASCII (polars 2.1).

    Raises:
        OSError: a file on a local disk is missing, or is a FIFO or device, for which polars would wait for ever.
    """
    if urlsplit(table.table_uri).scheme not in ("", "file"):
        return pl.scan_delta(table)
    files = [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]
    if paths is not None:
        file_names = {*files_with_paths(table, paths)}
        files = [file for file in files if file.rpartition("/")[2] in file_names]
    if not files:
        return cast(pl.DataFrame, pl.from_arrow(pa.schema(table.schema()).empty_table())).lazy()
    for file in files:
        refuse_special(os.stat(file).st_mode, file)
    schema = pl.Schema(pa.schema(table.schema()))
    return pl.scan_parquet(files, glob=False, schema=schema, missing_columns="insert")


def files_of(table: DeltaTable) -> pl.DataFrame:
    """Return one row per file, oldest first, with columns such as `path`, `size_bytes`, `min.scan_id`, `max.scan_id`.

    Raises:
        ScanFailed: the log cannot be read.
    """
    with log_read(place_of(table)):
        files = cast(pl.DataFrame, pl.from_arrow(pa.table(table.get_add_actions(flatten=True))))
    return files.sort("modification_time", "path")


def files_with_paths(table: DeltaTable, paths: pl.Series) -> list[str]:
    """Return the names of a table's files whose range of `path` may include one of `paths`, or that state no range."""
    files = files_of(table)
    if not {"min.path", "max.path"} <= set(files.columns):
        return files["path"].to_list()
    sorted_paths = paths.unique().sort()
    first = sorted_paths.search_sorted(files["min.path"].fill_null(""), "left")
    reach = sorted_paths.search_sorted(files["max.path"].fill_null(chr(0x10FFFF)), "right")
    return files["path"].filter(pl.Series(first) < pl.Series(reach)).to_list()


def make_table(uri: str, schema: pa.Schema, configuration: Mapping[str, str]) -> DeltaTable | None:
    """Make an empty table, and return it. None: it exists, or another process makes it at the same time.

    Raises:
        DeltaError: it cannot be made.
        OSError: it cannot be made.
    """
    try:
        table = DeltaTable.create(
            uri,
            schema,
            configuration={TABLE_VERSION: str(VERSION), **configuration},
            raise_if_key_not_exists=False,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except DeltaError:
        if not DeltaTable.is_deltatable(uri):
            raise
        return None
    sync_commit(table, 0)
    return table


def sync_commit(table: DeltaTable, version: int) -> None:
    """Write a commit to a table on this machine to the disk, before anything that needs it.

    deltalake leaves that to the system (1.6.6). If the machine lost power, it could otherwise keep verdicts and lose
    the flags that were committed before them, or keep a commit and lose the one before it.

    Raises:
        OSError: it cannot be synced.
    """
    if is_uri(place := place_of(table)):
        return  # a store has the commit once it answers
    log = Path(place) / "_delta_log"
    for name in (f"{version:020d}.json", f"{version:020d}.checkpoint.parquet", "_last_checkpoint"):
        with suppress(FileNotFoundError):  # no checkpoint was due
            sync_to_disk(log / name)
    for folder in (log, log.parent, log.parent.parent) if version == 0 else (log,):
        sync_to_disk(folder)


def place_of(table: DeltaTable) -> str:
    """Return the folder of a table as people know it: a plain path, or the URI of a folder elsewhere."""
    return unquote(table.table_uri.removeprefix("file://")).rstrip("/")


def version_of(table: DeltaTable) -> int:
    """Return a table's version of brickscan's tables: FIRST_VERSION … VERSION.

    Raises:
        TableError: it has no version, one from before 0.1.0, a newer one, or one in another notation.
    """
    uri = place_of(table)
    version = table.metadata().configuration.get(TABLE_VERSION)
    if version is None or version in map(str, range(FIRST_VERSION)):
        raise TableError(f"table {uri}: {MADE_BEFORE}, and is no longer supported; name another folder")
    if not _WRITTEN_VERSION.fullmatch(version):
        raise TableError(
            f"table {uri}: has version {version[:20]!r}, which brickscan never writes, so somebody changed it: "
            "restore the table from a copy"
        )
    if version not in map(str, range(FIRST_VERSION, VERSION + 1)):
        raise TableError(
            f"table {uri}: has version {version} of a newer brickscan; install that brickscan, since this one reads "
            f"version {VERSION}"
        )
    return int(version)


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
    raise ScanFailed(
        f"results: {COMMIT_ATTEMPTS} {subject} failed because other processes committed first; run again later"
    )


def load_table(uri: str, version: int | None = None) -> DeltaTable:
    """Open a table with any content.

    Args:
        uri: its folder or URI.
        version: version of the log. None: the newest.

    Raises:
        TableError: a file of its log is a FIFO or device, or does not fit into memory.
        DeltaError, OSError, ValueError: as deltalake's `DeltaTable`.
    """
    _refuse_endless(uri, version)
    return DeltaTable(uri, version=version)


def _refuse_endless(uri: str, version: int | None = None) -> None:
    """Raise TableError for a local table if deltalake would read a file of its log as a whole, and the file has no end.

    deltalake reads the hint of the newest checkpoint first, then the checksums of a version, then further files that
    the checkpoint names, in any folder. It waits for ever at a FIFO, or aborts when memory ends (1.6.6). It skips other
    special files in a log.
    """
    log = _local_log(uri)
    if log is None:
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(log)
        for name in names:
            if name == "_last_checkpoint" or name.endswith(".crc"):
                _refuse_endless_file(f"{log}/{name}", uri)
        checkpoints = [name for name in names if ".checkpoint." in name and _has_content(f"{log}/{name}")]
        strange = [name for name in checkpoints if not _CHECKPOINT.fullmatch(name)]
        ours = sorted(name for name in checkpoints if _CHECKPOINT.fullmatch(name))
        read = [name for name in ours if version is None or int(name[:20]) <= version][-1:]
        for name in strange + [name for name in read if _names_files(f"{log}/{name}")]:
            raise TableError(f"table {uri}: _delta_log/{name}: {_OTHER_CHECKPOINT}")


def _local_log(uri: str) -> str | None:
    """Return the folder of a local table's log. None: the table is in a store, where reading a file always ends."""
    folder = unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri
    return None if is_uri(folder) else f"{folder}/_delta_log"


_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")

_OTHER_CHECKPOINT = (
    "it is a checkpoint in parts, or of another form, which brickscan never writes, so somebody changed it: restore "
    "the table from a copy"
)


def _has_content(path: str) -> bool:
    """Return whether a path leads to a regular file with content: deltalake passes over other checkpoints."""
    with suppress(OSError):
        status = os.stat(path)
        return stat.S_ISREG(status.st_mode) and status.st_size > 0
    return False


def _names_files(checkpoint: str) -> bool:
    """Return whether a checkpoint names further files that belong to it. One that is damaged is deltalake's to tell."""
    with suppress(pa.ArrowException, OSError):
        columns = [name for name in pq.read_schema(checkpoint).names if name.lower() == "sidecar"]
        return any(column.null_count < len(column) for column in pq.read_table(checkpoint, columns=columns).columns)
    return False


def _refuse_endless_file(path: str, uri: str) -> None:
    try:
        with suppress(FileNotFoundError):
            status = os.stat(path)
            refuse_special(status.st_mode, path)
            if status.st_size > _MOST_READ_WHOLE:
                raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, but a few thousand are usual")
    except OSError as error:
        raise TableError(f"table {uri}: _delta_log/{Path(path).name}: {error.strerror}: delete it") from None


def open_table(uri: str) -> DeltaTable:
    """Open a table of results as it is now.

    Raises:
        Refused: it does not exist.
        TableError: it has another version, or its log was edited.
        ScanFailed: its log cannot be read.
    """
    try:
        table = load_table(uri)
    except (TableNotFoundError, OSError):
        first = _MAKES.get(uri.rpartition("/")[2], "run `brickscan scan`")
        raise Refused(f"results: there is no table {uri} yet; {first} first, or name another folder") from None
    except ValueError as error:  # columns or types in the log differ from those of its checkpoint or files
        raise TableError(
            f"results: table {uri}: its log contradicts itself ({in_a_line(error)}), so somebody changed it: restore "
            "the table from a copy"
        ) from None
    except DeltaError as error:
        raise ScanFailed(
            f"results: table {uri} cannot be read: {in_a_line(error)[:300]}; check that it is complete and readable, "
            "and restore missing files from a copy"
        ) from None
    version_of(table)
    return table


class LoggedTransaction(NamedTuple):
    """An application transaction in a log.

    version: its version.
    expires: whether it has a time, some time after which Delta drops it.
    """

    version: int
    expires: bool


def logged_transactions(table: DeltaTable) -> dict[str, LoggedTransaction]:
    """Return all application transactions of a table as it was opened.

    Raises:
        ScanFailed: the log cannot be read, or has another form.
    """
    with log_read(place_of(table)):
        return _Log(table.table_uri).transactions(table.version())


def removed_files(table: DeltaTable) -> dict[str, float]:
    """Return when files left a table, in seconds since 1970, as far as the log remembers.

    It does so for at least a week.

    Raises:
        ScanFailed: the log cannot be read, or has another form.
    """
    with log_read(place_of(table)):
        rows = _Log(table.table_uri).removals(table.version())
        return {unquote(row["path"]): (row.get("deletionTimestamp") or 0) / 1000 for row in rows}


def has_vectors(table: DeltaTable) -> bool:
    """Return whether the log of a table has a file with a vector of deleted rows.

    Raises:
        ScanFailed: the log cannot be read, or is kept in another form.
    """
    with log_read(place_of(table)):
        return _Log(table.table_uri).has_vectors(table.version())


@contextmanager
def log_read(place: str) -> Iterator[None]:
    """Raise ScanFailed if the log of a table cannot be read, because it is damaged or has another form."""
    try:
        yield
    except (DeltaError, OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise ScanFailed(f"results: the log of table {place} cannot be read: {in_a_line(error)[:300]}") from None


LogObserver = Callable[[str, LoggedTransaction | None, LoggedTransaction | None], None]
"""Function that is told of a transaction that came, changed or went: its id, its old and its new value. None: none."""


class KeptTable:
    """A table that is opened when it is first needed."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._table: DeltaTable | None = None
        self._logged: dict[str, LoggedTransaction] = {}  # transactions of the log that was read so far
        self._read: int | None = None  # the last version that was read; None: nothing was read
        self._observe: LogObserver | None = None

    def watch(self, observe: LogObserver) -> None:
        """Report every change of the transactions to a function, from the first on.

        Call it before they are first read.
        """
        self._observe = observe

    def now(self) -> DeltaTable:
        """Return the table as it is now. The next call updates the same object, or returns another one.

        Raises:
            TableError: it has another version, or its log has a file without an end.
            ScanFailed: it cannot be read.
        """
        try:
            if self._table is not None:
                if (log := _local_log(self._uri)) is not None:  # the rest of the log was looked at when it was opened
                    _refuse_endless_file(f"{log}/_last_checkpoint", self._uri)
                try:
                    self._table.update_incremental()
                except (DeltaError, OSError):  # commits that this object has not read were cleaned up
                    self._table = None
            if self._table is None:
                self._table, self._read = load_table(self._uri), None  # read everything again
                version_of(self._table)
        except (DeltaError, OSError, ValueError) as error:
            raise ScanFailed(f"results: table {self._uri} cannot be read: {in_a_line(error)}") from None
        return self._table

    @property
    def table(self) -> DeltaTable:
        """Return the table as of the last call of `now`."""
        return self._table or self.now()

    def logged(self) -> Mapping[str, LoggedTransaction]:
        """Return all application transactions of the table as of the last call of `now`.

        They are read from the log: from its newest checkpoint and the commits after it (the Delta protocol's
        "Transaction Identifiers").

        Raises:
            ScanFailed: the log cannot be read, or has another form.
        """
        table, read = self.table, self._read
        self._read = None  # after an error below, everything is read again
        with log_read(place_of(table)):
            self._read_log(table, read)
        return self._logged

    def lasting(self, transactions: Iterable[str]) -> dict[str, int]:
        """Return the versions of the given transactions that do not expire. Raises as `logged`."""
        logged = self.logged()
        return {name: logged[name].version for name in transactions if name in logged and not logged[name].expires}

    def _read_log(self, table: DeltaTable, read: int | None) -> None:
        """Read the part of the log after a version. None: read all of it."""
        log, dropped, newer = _Log(table.table_uri), set[str](), None
        if read is not None and read <= table.version():
            with suppress(FileNotFoundError):  # cleaned up after a newer checkpoint
                newer = log.commits(read + 1, table.version())
        if newer is None:
            newer = log.transactions(table.version())
            dropped = self._logged.keys() - newer.keys()
        if self._observe is not None:
            for name, later in newer.items():
                if (earlier := self._logged.get(name)) != later:
                    self._observe(name, earlier, later)
            for name in dropped:
                self._observe(name, self._logged[name], None)
        self._logged |= newer
        for name in dropped:
            del self._logged[name]
        self._read = table.version()


def _logged(transaction: Mapping[str, Any]) -> LoggedTransaction:
    """Return a transaction of a log. Raises TypeError: it has no name, or its version is no whole number."""
    app_id, version = transaction["appId"], transaction["version"]
    if type(app_id) is not str or type(version) is not int:
        raise TypeError(f"a transaction has the name {app_id!r} and the version {version!r}")
    return LoggedTransaction(version, transaction.get("lastUpdated") is not None)


class _Log:
    def __init__(self, table_uri: str) -> None:
        self._filesystem, folder = filesystem_of(unquote(table_uri.removeprefix("file://")))
        self._folder = f"{folder.rstrip('/')}/_delta_log"

    def transactions(self, version: int) -> dict[str, LoggedTransaction]:
        """Return all transactions up to a version."""
        rows, newest = self._checkpoint("txn", version)
        return {row["appId"]: _logged(row) for row in rows} | self.commits(newest + 1, version)

    def removals(self, version: int) -> list[Mapping[str, Any]]:
        """Return the actions that removed files, oldest first, as far as the log up to a version remembers them."""
        rows, newest = self._checkpoint("remove", version)
        return [*rows, *(row for commit in range(newest + 1, version + 1) for row in self._commit("remove", commit))]

    def has_vectors(self, version: int) -> bool:
        """Return whether a file ever had a vector of deleted rows, as far as the log up to a version remembers it."""
        rows, newest = self._checkpoint("add", version)
        commits = (self._commit("add", commit) for commit in range(newest + 1, version + 1))
        return any(row.get("deletionVector") is not None for row in chain(rows, *commits))

    def _checkpoint(self, kind: str, version: int) -> tuple[list[Mapping[str, Any]], int]:
        """Return the actions of a kind in the newest checkpoint up to a version, and its version. −1: there is none."""
        infos = self._filesystem.get_file_info(fs.FileSelector(self._folder))
        names = [info.base_name for info in infos if info.is_file and info.size]  # deltalake skips others too
        points = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
        if len(points) < sum(".checkpoint." in name for name in names):
            raise KeyError("a checkpoint in parts, or of another form, which deltalake might read instead")
        newest = max((point for point in points if point <= version), default=-1)
        if newest < 0:
            return [], newest
        with self._filesystem.open_input_file(f"{self._folder}/{newest:020d}.checkpoint.parquet") as source:
            column = pq.read_table(source, columns=[kind]).column(kind).combine_chunks()
        return column.drop_null().to_pylist(), newest

    def _commit(self, kind: str, commit: int) -> list[Mapping[str, Any]]:
        """Return the actions of a kind in a commit. Raises FileNotFoundError: it was cleaned up."""
        with self._filesystem.open_input_stream(f"{self._folder}/{commit:020d}.json") as source:
            lines = source.read().splitlines()
        # a key may be written with escapes, so all lines that may contain it are parsed
        actions = [parse_json(line) for line in lines if f'"{kind}"'.encode() in line or b"\\u" in line]
        return [action[kind] for action in actions if kind in action]

    def commits(self, first: int, last: int) -> dict[str, LoggedTransaction]:
        """Return the transactions of the commits first … last. Raises FileNotFoundError: one was cleaned up."""
        transactions: dict[str, LoggedTransaction] = {}
        for commit in range(first, last + 1):
            named = self._commit("txn", commit)
            if len({transaction["appId"] for transaction in named}) < len(named):
                raise KeyError("a commit has a transaction twice, of which readers choose differently")
            transactions |= {transaction["appId"]: _logged(transaction) for transaction in named}
        return transactions

"""The tables of results: where they are, making and reading them, and commits to them that happen exactly once.

Every shard's rows enter a table together with an application transaction of the shard's id. Delta does not refuse an id
that was committed before, so the id is looked up on a snapshot of the table and the commit made through that same
snapshot, without retries: when anyone committed in between, Delta refuses it, and the look-up is done again. The tables
beside verdicts are committed first (scanner.results.current_rows) and verdicts last, as the mark that a shard is done.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.storage.data_files import SCHEMAS, TABLES, WITH_BOUNDS, DataFile, write_file
from scanner.storage.delta import KeptTable, attempts, make_table, open_table, read, refuse_other_version
from scanner.storage.locations import filesystem_of, make_private, table_uri
from schemas.audit import AUDITS
from schemas.tables import SCANS

ORPHANS_AFTER_HOURS = 24
"""Hours after which a file that is no part of its table cannot be a running scan's, which would have committed it."""


def additions(files: Iterable[DataFile], *, changes: bool = True) -> list[AddAction | RemoveAction]:
    """Return Delta's actions that add files.

    Args:
        files: to be added.
        changes: their rows are new; False: they are those of the files that they replace.
    """
    now = int(time.time() * 1000)
    return [AddAction(file.name, file.size, {}, now, changes, file.stats) for file in files]


NO_RUN = 1
"""Version of a transaction that names no run."""


class TableEntry(NamedTuple):
    """An entry that a table gets whole or not at all.

    transaction: application transaction.
    files: files of the entry, possibly none.
    others: further transactions whose rows are in the same files.
    column: holds the transaction of each row.
    """

    transaction: str
    files: tuple[DataFile, ...]
    others: tuple[str, ...] = ()
    column: str = "shard_id"

    @property
    def transactions(self) -> tuple[str, ...]:
        """All transactions of the entry."""
        return (self.transaction, *self.others)


class Tables:
    """The tables of a folder of results, for callers who commit to them again and again: each is opened once."""

    def __init__(self, results: str) -> None:
        self.results = results
        self._kept: dict[str, KeptTable] = {}

    def now(self, name: str) -> tuple[DeltaTable, KeptTable]:
        """Return a table as it is now, and its transactions. Raises ScanFailed: it cannot be read."""
        kept_table = self._kept.setdefault(name, KeptTable(table_uri(self.results, name)))
        return kept_table.now(), kept_table

    def has(self, name: str) -> bool:
        """Return whether such a table exists. Not every scan makes all tables."""
        return name in self._kept or DeltaTable.is_deltatable(table_uri(self.results, name))


def kept_tables(results: str | Tables) -> Tables:
    """Return tables that are open, or open them for one call."""
    return results if isinstance(results, Tables) else Tables(results)


def find_committed(results: str | Tables, name: str, transactions: Iterable[str]) -> set[str]:
    """Return those of the given transactions that a table has."""
    return set(kept_tables(results).now(name)[1].versions(transactions))


def commit(results: str | Tables, name: str, entries: Sequence[TableEntry], run: int | None = None) -> set[str]:
    """Commit entries to a table, without those that it has, whoever else commits at the same time.

    Returns:
        The transactions that this call committed, and those that an earlier call for `run`, their version, committed
        without an answer.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be written.
    """
    tables, own_transactions = kept_tables(results), set[str]()
    for _ in attempts(f"commits to {table_uri(tables.results, name)}"):
        table, kept_table = tables.now(name)
        versions = kept_table.versions(transaction for entry in entries for transaction in entry.transactions)
        own_transactions = {transaction for transaction, by in versions.items() if by == run}
        missing = [
            _without_committed(tables.results, name, entry, versions)
            for entry in entries
            if set(entry.transactions) - set(versions)
        ]
        if not missing:
            break
        names = [transaction for entry in missing for transaction in entry.transactions]
        actions = additions(file for entry in missing for file in entry.files)
        if try_to_commit(table, name, actions, [Transaction(transaction, run or NO_RUN) for transaction in names]):
            own_transactions |= set(names)
            break
    return own_transactions


def _without_committed(results: str, name: str, entry: TableEntry, committed: Collection[str]) -> TableEntry:
    """Return an entry without the transactions that the table has.

    Where it has some, the remaining rows are written anew.

    Raises:
        ScanFailed: a file of the entry cannot be read.
    """
    first, *others = (transaction for transaction in entry.transactions if transaction not in committed)
    if len(others) == len(entry.others):
        return entry
    filesystem, folder = filesystem_of(table_uri(results, name))
    batches: list[pa.RecordBatch] = []
    for file in entry.files:
        try:
            rows = pq.read_table(f"{folder}/{file.name}", schema=SCHEMAS[name], filesystem=filesystem)
        except (OSError, pa.ArrowException) as error:
            raise ScanFailed(f"results: {folder}/{file.name} cannot be read: {in_a_line(error)}") from None
        batches += rows.filter(pc.is_in(rows[entry.column], pa.array([first, *others]))).to_batches()
    written = write_file(results, name, batches)
    return entry._replace(transaction=first, files=(written,) if written else (), others=tuple(others))


def try_to_commit(
    table: DeltaTable, name: str, actions: list[AddAction | RemoveAction], transactions: list[Transaction]
) -> bool:
    """Commit to a table through the snapshot that was looked at. Return False if another commit came since.

    Raises:
        ScanFailed: the table cannot be written.
    """
    properties = CommitProperties(max_commit_retries=0, app_transactions=transactions)
    try:
        table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
    except CommitFailedError:
        return False
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"results: table {table.table_uri} cannot be written: {in_a_line(error)}") from None
    return True


Given = ParamSpec("Given")
Answer = TypeVar("Answer")
ResultsPath = str | os.PathLike[str]


def folder_of(path: ResultsPath) -> str:
    """Return the folder or URI of the results that a path names.

    Raises:
        Refused: the path is a file, and no configuration of a scan.
    """
    if Path(path).is_file():
        from scanner.scan_plan import read_config, results_of  # it brings kernels, which take a second

        return results_of(read_config(Path(path)), Path(path))
    return os.fspath(path)


def of_any_path(query: Callable[Concatenate[str, Given], Answer]) -> Callable[Concatenate[ResultsPath, Given], Answer]:
    """Return a query that takes a Path or the file of a configuration where it took a folder or URI of results."""

    @wraps(query)
    def ask(results: ResultsPath, *given: Given.args, **named: Given.kwargs) -> Answer:
        return query(folder_of(results), *given, **named)

    return cast(Callable[Concatenate[ResultsPath, Given], Answer], ask)


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
                # no statistics of names in Delta's log, where an erasure could not reach them
                bounded = ",".join(name for name in WITH_BOUNDS if name in schema.names) or "scan_id"
                make_table(uri, schema, {"delta.dataSkippingStatsColumns": bounded})
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


def read_whole(results: str, name: str, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Read the rows of a table.

    Args:
        results: folder or URI.
        name: of the table.
        paths: files of the table that hold no row of these paths are left out; the files that are read may have other
            rows too. None: all files.

    Raises:
        Refused: there is no such table, or it is of another version or has other columns.
    """
    table = open_table(table_uri(results, name))
    refuse_other(table, name)
    return read(table, paths)


@contextmanager
def faults_named(results: str) -> Iterator[None]:
    """Raise ScanFailed where a table, or one of its files, cannot be read."""
    try:
        yield
    except (OSError, DeltaError, pl.exceptions.ComputeError) as error:
        raise ScanFailed(
            f"results: {results} cannot be read: {in_a_line(error)[:300]}; look whether all of it is there and may be "
            "read, and put back what is missing from a copy"
        ) from error


def append_scan(results: str, row: Mapping[str, object]) -> None:
    """Append a row to `scans`, once however often it is called. Raises ScanFailed: the table cannot be written."""
    file = write_file(results, "scans", [pa.RecordBatch.from_pylist([row], SCANS)])
    commit(results, "scans", [TableEntry(str(row["scan_id"]), (file,) if file else ())])


def append_audits(results: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows of one audit to `audits`, all at once, and make the table where there is none.

    Raises:
        ScanFailed: the table cannot be made or written, or another is there.
    """
    uri = table_uri(results, "audits")
    try:
        open_tables(results, ["audits"])
        deltalake.write_deltalake(uri, pa.Table.from_pylist(list(rows), AUDITS), mode="append")
    except (Refused, DeltaError, OSError) as error:  # hours of work end here: no refusal before it
        raise ScanFailed(f"results: table {uri} cannot be written: {in_a_line(error)}") from None

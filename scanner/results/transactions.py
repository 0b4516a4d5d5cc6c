"""The tables of results: where they are, making and reading them, and commits to them that happen exactly once.

Every shard's rows enter a table together with an application transaction of the shard's id. Delta does not refuse an id
that was committed before, so the id is looked up on a snapshot of the table and the commit made through that same
snapshot, without retries: when anyone committed in between, Delta refuses it, and the look-up is done again. The tables
beside verdicts are committed first (scanner.results.current_rows) and verdicts last, as the mark that a shard is done.

When a night is frozen (scanner.results.retention), its transactions get a time at which Delta drops them, and leave the
table's signature. From then on `shards` says what is done: a row there that is older than the version, in seconds since
1970, of the transaction of its night.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import MappingProxyType
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
from scanner.registry.signed_tables import NO_NUMBER
from scanner.signing import (
    checked_rows,
    keep_signatures,
    open_results,
    signature_of,
    signer_of,
    unchecked,
)
from scanner.signing.signature import FIELDS, TransactionSum, id_of
from scanner.signing.signer import Signer
from scanner.storage.data_files import SCHEMAS, TABLES, WITH_BOUNDS, DataFile, read_file, write_file
from scanner.storage.delta import (
    TABLE_VERSION,
    KeptTable,
    LoggedTransaction,
    attempts,
    files_of,
    files_with_paths,
    log_read,
    make_table,
    open_table,
    place_of,
    read,
    refuse_endless,
    sync_commit,
    version_of,
)
from scanner.storage.locations import make_private, put_aside, refuse_links_of_table, table_uri
from schemas.audit import AUDITS
from schemas.tables import SCANS
from schemas.versions import VERSION, new_columns

_log = logging.getLogger(__name__)

SECONDS_OF_A_MAKER = 5.0
"""Seconds after which who made a table has signed it, or never will."""

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


def has_table(results: str, name: str) -> bool:
    """Return whether a table exists. Not every scan makes all tables.

    Raises:
        Refused: it was signed, and is gone, and nobody gave it up; or its log has a file without an end.
    """
    if DeltaTable.is_deltatable(uri := table_uri(results, name)):
        refuse_endless(uri)
        return True
    signer = signer_of(results)
    return signer is not None and signer.is_there(name)  # the look that refuses nothing is the one that is answered


Answer = TypeVar("Answer")


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
        self._opened: dict[str, _OpenTable] = {}
        self._frozen: set[str] = set()  # shards that frozen nights have done, as far as was asked

    def now(self, name: str) -> tuple[DeltaTable, KeptTable]:
        """Return a table as it is now, and its transactions, both as they were signed.

        Raises:
            Refused: it is not as it was signed.
            ScanFailed: it cannot be read.
        """
        if name not in self._opened:
            self._opened[name] = _OpenTable(self.results, name)
        return self._opened[name].now()

    def has(self, name: str) -> bool:
        """Return whether such a table exists. Not every scan makes all tables."""
        return name in self._opened or has_table(self.results, name)

    def versions(self, name: str, transactions: Iterable[str]) -> dict[str, int]:
        """Return the versions of those of the given transactions that a table has, as of the last call of `now`.

        Raises:
            Refused: one of them expires, and is of no frozen night, so that somebody wrote it.
            ScanFailed: the table cannot be read.
        """
        logged = self._opened[name].kept_table.logged()
        versions = {app_id: logged[app_id].version for app_id in transactions if app_id in logged}
        expiring = (app_id for app_id in versions if logged[app_id].expires)
        shards = {app_id.partition(":")[0] for app_id in expiring if not app_id.startswith(FIELDS[0])}
        if not shards <= self._frozen:  # seldom: expiring transactions that were not looked up before
            self._frozen = shards_of_frozen_nights(self, read_whole(self.results, "shards"))
            if not shards <= self._frozen:
                raise _unscanned(self.results, name)
        return versions


def shards_of_frozen_nights(tables: Tables, rows: pl.LazyFrame) -> set[str]:
    """Return the ids of the shards that frozen nights have done.

    Args:
        tables: of the results.
        rows: of `shards`; others are not looked at.

    Raises:
        Refused: a table is not as it was signed.
        ScanFailed: a table cannot be read.
    """
    dated = rows.select("shard_id", "scanned_at", night=NIGHT).collect()
    frozen = tables.now("shards")[1].lasting(map(frozen_id, dated["night"].unique()))
    ends = {night: frozen.get(frozen_id(night), 0) for night in dated["night"].unique()}
    is_done = pl.col("scanned_at").dt.epoch("us") < pl.col("night").replace_strict(ends, default=0) * 1_000_000
    return set(dated.filter(is_done)["shard_id"])


def frozen_id(night: str) -> str:
    """Return the transaction of `shards` that freezes a night, such as 2026-11-21."""
    return f"frozen:{night}"


NIGHT = pl.col("began_at").dt.strftime("%Y-%m-%d")
"""The night of a row of `shards`: the date (UTC) at which its scan began."""


class _OpenTable:
    """A table that is kept open, and checked in each version before anybody goes by its transactions."""

    def __init__(self, results: str, name: str) -> None:
        self._name, self._signer = name, signer_of(results)
        self.kept_table = KeptTable(table_uri(results, name))
        self._checked: tuple[DeltaTable | None, int] = None, -1  # the table, and the version of it, that were checked
        if self._signer is not None:
            self._sum = TransactionSum(self._signer.digester, self.kept_table.now(), name)
            self.kept_table.watch(self._sum.change)

    def now(self) -> tuple[DeltaTable, KeptTable]:
        table = self.kept_table.now()
        checked, version = self._checked
        if table is not checked or table.version() != version:
            table, _ = open_checked(self.kept_table.now, self._check)
            self._checked = table, table.version()
        return table, self.kept_table

    def _check(self, table: DeltaTable) -> None:
        refuse_other(table, self._name)
        if self._signer is not None:
            self._signer.record.refresh()  # others may have committed, or somebody put it back
            self.kept_table.logged()  # brings the sum up to date
            self._signer.refuse_unsigned(table, self._name, self._sum)


def open_checked(
    open_now: Callable[[], DeltaTable], check: Callable[[DeltaTable], Answer]
) -> tuple[DeltaTable, Answer]:
    """Return a table as it is now, and what a check says of it; one that others commit to meanwhile is opened again.

    Args:
        open_now: opens the table.
        check: raises Refused for a table that is not as it was signed.

    Raises:
        Refused: what the check raises of a table that nobody commits to.
        ScanFailed: others kept committing.
    """
    for _ in attempts("checks of a table"):
        table = open_now()
        try:
            answer = check(table)
            break
        except Refused:
            if not _has_moved_on(table):
                raise
    return table, answer


def _has_moved_on(table: DeltaTable) -> bool:
    """Return whether others committed to a table since it was opened."""
    return DeltaTable(table.table_uri).version() > table.version()


def kept_tables(results: str | Tables) -> Tables:
    """Return tables that are open, or open them for one call."""
    return results if isinstance(results, Tables) else Tables(results)


def find_versions(results: str | Tables, name: str, transactions: Iterable[str]) -> dict[str, int]:
    """Return the versions of those of the given transactions that a table has now. Raises as `Tables.versions`."""
    tables = kept_tables(results)
    tables.now(name)
    return tables.versions(name, transactions)


def find_committed(results: str | Tables, name: str, transactions: Iterable[str]) -> set[str]:
    """Return those of the given transactions that a table has now. Raises as `Tables.versions`."""
    return set(find_versions(results, name, transactions))


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
        table, _ = tables.now(name)
        versions = tables.versions(name, (transaction for entry in entries for transaction in entry.transactions))
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
        if try_to_commit(
            tables.results, table, name, actions, [Transaction(transaction, run or NO_RUN) for transaction in names]
        ):
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
    batches: list[pa.RecordBatch] = []
    for file in entry.files:
        try:
            rows = pq.read_table(pa.BufferReader(read_file(results, name, file.name)), schema=SCHEMAS[name])
        except (OSError, pa.ArrowException) as error:
            uri = f"{table_uri(results, name)}/{file.name}"
            raise ScanFailed(f"results: {uri} cannot be read: {in_a_line(error)}") from None
        batches += rows.filter(pc.is_in(rows[entry.column], pa.array([first, *others]))).to_batches()
    written = write_file(results, name, batches)
    return entry._replace(transaction=first, files=(written,) if written else (), others=tuple(others))


def try_to_commit(
    results: str,
    table: DeltaTable,
    name: str,
    actions: list[AddAction | RemoveAction],
    transactions: list[Transaction],
    earlier_versions: Mapping[str, int] = MappingProxyType({}),
    anew: Mapping[str, LoggedTransaction] | None = None,
    follows: int = NO_NUMBER,
) -> bool:
    """Commit to a table through the snapshot that was looked at, signed. Return False if another commit came since.

    Args:
        results: folder or URI.
        table: as it was looked at.
        name: of the table.
        actions: files that come and go.
        transactions: of the commit.
        earlier_versions: of those of the transactions that the table has, and that do not expire.
        anew: transactions of the table, which is signed as it is, whoever changed it.
        follows: with `anew`, number of the signature that the new one follows; NO_NUMBER: none, by consent.

    Raises:
        Refused: the table is signed, and this process has no secret to sign it with, or another one; or a file is to
            go, and somebody marked rows of one as deleted.
        ScanFailed: the table cannot be written.
    """
    if any(isinstance(action, RemoveAction) for action in actions):
        _refuse_vectors(table)
    signer, signature = signer_of(results), None
    if signer is not None:
        try:
            signature = signer.sign(table, name, actions, transactions, earlier_versions, anew, follows)
        except Refused:
            if _has_moved_on(table):
                return False
            raise
    elif signature_of(table) is not None:
        raise Refused(
            f"results: table {place_of(table)} is signed, and changed only by who can sign it: {unchecked(results)}"
        )
    signed = [] if signature is None else signature.as_transactions()
    properties = CommitProperties(max_commit_retries=0, app_transactions=[*transactions, *signed])
    refuse_links_of_table(place_of(table))  # it may have become one since the table was opened
    try:
        table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
        sync_commit(table, table.version() + 1)
    except (DeltaError, OSError) as error:
        if isinstance(error, CommitFailedError) and _has_moved_on(table):
            return False
        why, next_commit = in_a_line(error), f"{place_of(table)}/_delta_log/{table.version() + 1:020d}.json"
        if os.path.lexists(next_commit) and not os.path.isfile(next_commit):  # readers pass over it
            why = f"{next_commit} is no file, and stands where the next commit belongs: delete it"
        raise ScanFailed(f"results: table {table.table_uri} cannot be written: {why}") from None
    if signer is not None and signature is not None:
        signer.commit_done(table, name, signature, anew=anew is not None and follows == NO_NUMBER)
    return True


def _refuse_vectors(table: DeltaTable) -> None:
    """Raise Refused where a file has a vector of deleted rows: no commit takes it out, and its rows would be doubled.

    No signature holds vectors, since readers here read files whole, as they were signed.
    """
    with log_read(place := place_of(table)):
        has_vectors = any(batch.num_rows for batch in table.deletion_vectors())
    if has_vectors:
        raise Refused(
            f"results: table {place}: its log has vectors of deleted rows, which brickscan never writes, so somebody "
            "changed it: put the table back from a copy"
        )


Given = ParamSpec("Given")
ResultsPath = str | os.PathLike[str]


def folder_of(path: ResultsPath) -> str:
    """Return the folder or URI of the results that a path names.

    Raises:
        Refused: the path is a file, and no configuration of a scan.
    """
    if Path(path).is_file():
        from scanner.scan_plan import read_config  # it brings kernels, which take a second

        return open_results(read_config(Path(path)), Path(path))
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
    signer, made, end = signer_of(results), list[str](), time.monotonic() + SECONDS_OF_A_MAKER
    if signer is not None:
        signer.record.read_again()  # another process may have made them a moment ago
        signer.refuse_left_behind()
    for name in names:
        uri = table_uri(results, name)
        try:
            make_private(results)
            make_private(uri)
            refuse_links_of_table(uri)
            table, is_made = _open_or_make(results, name, signer, end)
            made += [name] * is_made
        except (DeltaError, OSError, ValueError) as error:
            raise Refused(
                f"results: table {uri} cannot be opened or made: {in_a_line(error)}; give a folder that can be written"
            ) from None
        refuse_other(table, name)
    if made and (why := keep_signatures(results)) is not None:  # before anything is committed to them
        if signer is not None and signer.record.knows_place():
            for name in made:
                put_aside(table_uri(results, name))
                signer.give_up(name)
            raise Refused(
                f"{why}. It knows other tables of {results}, and would refuse new ones that it does not keep: "
                "make them where the registry can be written"
            )
        _log.warning("%s", why)


def _open_or_make(results: str, name: str, signer: Signer | None, end: float) -> tuple[DeltaTable, bool]:
    """Open a table, or make and sign it. Return whether it was made.

    Args:
        results: folder or URI.
        name: of the table.
        signer: of the results; None: nobody signs them.
        end: time.monotonic() until which another process may be about to sign what it has made.
    """
    uri = table_uri(results, name)
    # 1. open it; wait for its maker, and put aside what nobody will sign any more
    if has_table(results, name):
        table = DeltaTable(uri)
        if signer is not None and signer.is_new(table, name):
            signer.record.read_again()  # another process may have signed it meanwhile
        while signer is not None and signer.is_new(table, name) and time.monotonic() < end:
            time.sleep(0.1)
            signer.record.read_again()
            table = DeltaTable(uri)
        if signer is None or not signer.is_new(table, name):
            return table, False
        put_aside(uri)
        _log.warning("results: table %s is empty and nobody's: it was put aside, and is made anew", uri)
    elif signer is not None:
        signer.refuse_unsigned_results()
    else:
        _refuse_signed_results(results, name)

    # 2. make it, with no statistics of names in Delta's log, where an erasure could not reach them
    table_made = make_table(uri, SCHEMAS[name], properties_of(name))
    if table_made is None:  # another process was faster
        return _open_or_make(results, name, signer, time.monotonic() + SECONDS_OF_A_MAKER)

    # 3. sign it as it was made
    if signer is not None:
        signer.table_made(table_made)
        if not try_to_commit(results, table_made, name, [], []):
            there = DeltaTable(uri)
            if id_of(there) == id_of(table_made) and signature_of(there) is None:
                raise Refused(f"results: table {uri}: somebody wrote to it while it was made: delete its folder")
            # this process was paused, and another one put the table aside and made its own
            return _open_or_make(results, name, signer, time.monotonic() + SECONDS_OF_A_MAKER)
    return table_made, signer is not None


def _refuse_signed_results(results: str, name: str) -> None:
    """Raise Refused where other tables of results are signed: who checks them would refuse a new one that is not."""
    for uri in (table_uri(results, other) for other in SCHEMAS if other != name):
        if DeltaTable.is_deltatable(uri) and signature_of(open_table(uri)) is not None:
            raise Refused(
                f"results: table {table_uri(results, name)} is not made, since others are signed: {unchecked(results)}"
            )


DROPS_TRANSACTIONS = "delta.setTransactionRetentionDuration"
"""Property of a table of whose transactions Delta drops those that have a time (scanner.results.retention)."""

_PROTOCOL = (1, 2)
"""Delta's least versions of readers and writers, of tables without vectors of deleted rows and the like."""


def properties_of(name: str) -> dict[str, str]:
    """Return the properties, but that of its version, with which a table is made."""
    bounded = ",".join(column for column in WITH_BOUNDS if column in SCHEMAS[name].names) or "scan_id"
    return {"delta.dataSkippingStatsColumns": bounded}


def refuse_other(table: DeltaTable, name: str) -> None:
    """Refuse a table that this version does not write.

    Raises:
        Refused: its version, columns or properties are others, or it needs more than the plain protocol of Delta.
    """
    version = version_of(table)
    if version != VERSION:
        raise Refused(
            f"results: table {place_of(table)}: has version {version}, of an earlier brickscan, and this one writes "
            f"{VERSION}; move the tables on with `brickscan migrate scan.toml`, which changes no row"
        )
    refuse_other_form(table, name, VERSION)


def fields_of(name: str, version: int) -> list[pa.Field]:
    """Return the columns that a table has in a version."""
    later = new_columns(name, version)
    return [field for field in SCHEMAS[name] if field.name not in later]


def refuse_other_form(table: DeltaTable, name: str, version: int) -> None:
    """Refuse a table of some version whose columns or properties are not those with which brickscan made it.

    Raises:
        Refused: they are others, or the table needs more than the plain protocol of Delta.
    """
    # a table on its way to this version has its new columns a moment before it says so
    schemas = [deltalake.Schema.from_arrow(pa.schema(fields_of(name, each))) for each in (version, VERSION)]
    if table.schema() not in schemas:
        raise Refused(
            f"results: table {table.table_uri} has other columns than this version writes; give another folder"
        )
    metadata, protocol, place = table.metadata(), table.protocol(), place_of(table)
    made, found = {TABLE_VERSION: str(version)} | properties_of(name), metadata.configuration
    strange = sorted(found.keys() - made.keys() - {DROPS_TRANSACTIONS})
    wrong = {key: value for key, value in made.items() if found.get(key) != value}
    if strange or wrong:
        commands = [f"UNSET TBLPROPERTIES ({', '.join(map(repr, strange))})"] if strange else []
        commands += [f"SET TBLPROPERTIES ({', '.join(f'{k!r} = {v!r}' for k, v in wrong.items())})"] if wrong else []
        raise Refused(
            f"results: table {place}: something else than brickscan changed its properties "
            f"{', '.join([*strange, *wrong])}: put the table back from a copy, or have a program such as Spark run "
            + ", ".join(f"`ALTER TABLE delta.`{place}` {command}`" for command in commands)
        )
    if metadata.partition_columns or (protocol.min_reader_version, protocol.min_writer_version) != _PROTOCOL:
        raise Refused(
            f"results: table {place}: something else than brickscan changed its protocol or partitions, as for "
            "vectors of deleted rows, which are not read: put the table back from a copy"
        )


def open_results_table(results: str, name: str) -> DeltaTable:
    """Open a table of results as it is now.

    Raises:
        Refused: there is none; it was signed, and is gone; it is of another version or has other columns.
        ScanFailed: its log cannot be read.
    """
    has_table(results, name)  # one that was signed and is gone was not merely never made
    table = open_table(table_uri(results, name))
    refuse_other(table, name)
    return table


def read_whole(results: str, name: str, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Read the rows of a table.

    Args:
        results: folder or URI.
        name: of the table.
        paths: files of the table that hold no row of these paths are left out; the files that are read may have other
            rows too. None: all files.

    Raises:
        Refused: there is no such table, it is of another version or has other columns, or it was changed by hand. The
            same, when the rows are collected, of one of its files.
    """
    signer = signer_of(results)
    if signer is None:
        return read(open_results_table(results, name), paths)
    signer.record.refresh()
    table, is_signed = open_checked(
        lambda: open_results_table(results, name), lambda table: signer.is_signed(table, name)
    )
    if not is_signed:
        return read(table, paths)
    file_names = files_of(table)["path"].to_list() if paths is None else files_with_paths(table, paths)
    return checked_rows(results, name, file_names)


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


def refuse_changed_tables(results: str) -> None:
    """Refuse results of which a table, or what its log says to be done, is not as brickscan left it.

    The content of files is not read here: it is checked when rows are read.

    Raises:
        Refused: somebody changed a table.
        ScanFailed: a log cannot be read.
    """
    signer = signer_of(results)
    if signer is not None:
        with faults_named(results):
            _refuse_changed(results, signer)


def _refuse_changed(results: str, signer: Signer) -> None:
    signer.record.refresh()
    tables = Tables(results)
    for name in SCHEMAS:
        if has_table(results, name):
            tables.versions(name, tables.now(name)[1].logged())


def _unscanned(results: str, name: str) -> Refused:
    why = "its log has transactions of shards that no scan scanned, so somebody changed it"
    return Refused(f"results: table {table_uri(results, name)}: {why}: put the table back from a copy")


def append_scan(results: str, row: Mapping[str, object]) -> None:
    """Append a row to `scans`, once however often it is called. Raises ScanFailed: the table cannot be written."""
    file = write_file(results, "scans", [pa.RecordBatch.from_pylist([row], SCANS)])
    commit(results, "scans", [TableEntry(str(row["scan_id"]), (file,) if file else ())])


def append_audits(results: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append rows of one audit to `audits`, all at once, and make the table where there is none.

    Raises:
        ScanFailed: the table cannot be made or written, or another is there.
    """
    try:
        open_tables(results, ["audits"])
        file = write_file(results, "audits", [pa.RecordBatch.from_pylist(list(rows), AUDITS)])
        commit(results, "audits", [TableEntry(uuid.uuid4().hex, (file,) if file else ())])
    except Refused as error:  # hours of work end here: no refusal before it
        raise ScanFailed(f"results: table {table_uri(results, 'audits')} cannot be written: {error}") from None

"""Open, read and make the tables of results, and commit to them exactly once.

The rows of each shard are committed to a table together with an application transaction, named by the shard's id. Delta
accepts an id that was committed before. So a commit works in three steps:

1. Look the id up in a snapshot of the table.
2. Commit through that same snapshot, without retries. Delta refuses this if another process committed in between.
3. If Delta refused, begin again with step 1.

The other tables are committed before verdicts (scanner.results.current_rows). A shard's transaction in verdicts
therefore means that the shard is done.

When a night is frozen (scanner.results.retention), its transactions get a time at which Delta drops them, and are no
longer part of the table's signature. From then on the table `shards` tells which shards are done: those whose row is
older than the version of the night's own transaction, which is a time in seconds since 1970.
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

from scanner.errors import Refused, ScanFailed, TableError, in_a_line
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
    has_vectors,
    load_table,
    log_read,
    make_table,
    open_table,
    place_of,
    read,
    sync_commit,
    version_of,
)
from scanner.storage.locations import make_private, put_aside, refuse_links_of_table, table_uri
from schemas.audit import AUDITS
from schemas.tables import SCANS
from schemas.versions import VERSION, new_columns

_log = logging.getLogger(__name__)

SECONDS_OF_A_MAKER = 5.0
"""Seconds after which a process that made a table has signed it, or never will."""

ORPHANS_AFTER_HOURS = 24
"""Hours after which a file outside its table cannot belong to a running scan. A scan would have committed it."""


def additions(files: Iterable[DataFile], *, changes: bool = True) -> list[AddAction | RemoveAction]:
    """Return Delta's actions to add files.

    Args:
        files: files to add.
        changes: whether their rows are new. False: the rows are those of the files that they replace.
    """
    now = int(time.time() * 1000)
    return [AddAction(file.name, file.size, {}, now, changes, file.stats) for file in files]


NO_RUN = 1
"""Version of a transaction that names no run."""


def has_table(results: str, name: str) -> bool:
    """Return whether a table exists. Some scans do not make all tables.

    Raises:
        TableError: the table was signed and is missing, and nobody gave it up.
        ScanFailed: its folder cannot be read.
    """
    with faults_named(results):
        if DeltaTable.is_deltatable(table_uri(results, name)):
            return True
        signer = signer_of(results)
        # at first sight the table is missing, but the signer's own look decides, because a table can appear in between
        return signer is not None and signer.is_there(name)


Answer = TypeVar("Answer")


class TableEntry(NamedTuple):
    """Files and transactions that a table gets all at once or not at all.

    transaction: application transaction.
    files: files of the entry, possibly none.
    others: further transactions whose rows are in the same files.
    column: column that holds the transaction of each row.
    """

    transaction: str
    files: tuple[DataFile, ...]
    others: tuple[str, ...] = ()
    column: str = "shard_id"

    @property
    def transactions(self) -> tuple[str, ...]:
        """Return all transactions of the entry."""
        return (self.transaction, *self.others)


class Tables:
    """The tables of a folder of results, each opened once. It serves callers that commit again and again."""

    def __init__(self, results: str) -> None:
        self.results = results
        self._opened: dict[str, _OpenTable] = {}
        self._frozen: set[str] = set()  # shards of frozen nights that are done, as far as they were looked up

    def now(self, name: str) -> tuple[DeltaTable, KeptTable]:
        """Return the current state of a table, and its transactions. Both are checked against the signature.

        Raises:
            TableError: the table is not as it was signed.
            ScanFailed: the table cannot be read.
        """
        if name not in self._opened:
            self._opened[name] = _OpenTable(self.results, name)
        return self._opened[name].now()

    def has(self, name: str) -> bool:
        """Return whether a table exists. Some scans do not make all tables."""
        return name in self._opened or has_table(self.results, name)

    def versions(self, name: str, transactions: Iterable[str]) -> dict[str, int]:
        """Return the versions of given transactions, of those that the table had at the last call of `now`.

        Raises:
            TableError: one of them expires but belongs to no frozen night, so somebody else wrote it.
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
    """Return the ids of finished shards of frozen nights.

    Args:
        tables: of the results.
        rows: of `shards`. Only these rows are considered.

    Raises:
        TableError: a table is not as it was signed.
        ScanFailed: a table cannot be read.
    """
    dated = rows.select("shard_id", "scanned_at", night=NIGHT).collect()
    frozen = tables.now("shards")[1].lasting(map(frozen_id, dated["night"].unique()))
    ends = {night: frozen.get(frozen_id(night), 0) for night in dated["night"].unique()}
    is_done = pl.col("scanned_at").dt.epoch("us") < pl.col("night").replace_strict(ends, default=0) * 1_000_000
    return set(dated.filter(is_done)["shard_id"])


def frozen_id(night: str) -> str:
    """Return the name of the transaction in `shards` that freezes a night, such as 2026-11-21."""
    return f"frozen:{night}"


NIGHT = pl.col("began_at").dt.strftime("%Y-%m-%d")
"""The night of a row of `shards`: the date (UTC) on which its scan began."""


class _OpenTable:
    """A table that is kept open. Each version is checked before its transactions are used."""

    def __init__(self, results: str, name: str) -> None:
        self._name, self._signer = name, signer_of(results)
        self.kept_table = KeptTable(table_uri(results, name))
        self._checked: tuple[DeltaTable | None, int] = None, -1  # the table that was checked, and its version
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
            self._signer.record.refresh()  # other processes may have committed, or the table may have been put back
            self.kept_table.logged()  # updates the sum
            self._signer.refuse_unsigned(table, self._name, self._sum)


def open_checked(
    open_now: Callable[[], DeltaTable], check: Callable[[DeltaTable], Answer]
) -> tuple[DeltaTable, Answer]:
    """Return the current state of a table and the answer of a check. Open it again if others commit meanwhile.

    Args:
        open_now: opens the table.
        check: raises TableError for a table that is not as it was signed.

    Raises:
        TableError: the check refuses the table, and no other process committed since.
        ScanFailed: other processes kept committing.
    """
    for _ in attempts("checks of a table"):
        table = open_now()
        try:
            answer = check(table)
            break
        except TableError:
            if not _has_moved_on(table):
                raise
    return table, answer


def _has_moved_on(table: DeltaTable) -> bool:
    """Return whether others committed to a table since it was opened. False too where it cannot be opened now."""
    try:
        return load_table(table.table_uri).version() > table.version()
    except (DeltaError, OSError, ValueError):  # somebody changes it right now: what was wrong before is told
        return False


def kept_tables(results: str | Tables) -> Tables:
    """Return the given open tables, or open tables for one call."""
    return results if isinstance(results, Tables) else Tables(results)


def find_versions(results: str | Tables, name: str, transactions: Iterable[str]) -> dict[str, int]:
    """Return the current versions of those given transactions that a table has. Raises as `Tables.versions`."""
    tables = kept_tables(results)
    tables.now(name)
    return tables.versions(name, transactions)


def find_committed(results: str | Tables, name: str, transactions: Iterable[str]) -> set[str]:
    """Return those of the given transactions that a table has now. Raises as `Tables.versions`."""
    return set(find_versions(results, name, transactions))


def commit(results: str | Tables, name: str, entries: Sequence[TableEntry], run: int | None = None) -> set[str]:
    """Commit the entries that a table does not have yet, even if other processes commit at the same time.

    Args:
        results: folder, URI or open tables.
        name: of the table.
        entries: entries to commit.
        run: version of the transactions, which identifies this run. None: no run.

    Returns:
        The transactions that this call committed.
        Also those that an earlier call for `run` committed without learning of its success.

    Raises:
        ScanFailed: other processes kept committing first, or the table cannot be written.
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
    """Return an entry without the transactions that the table already has.

    If there are any, the remaining rows are written to a new file.

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
    """Commit to a table through the given snapshot, and sign it. Return False if another commit came first.

    Args:
        results: folder or URI.
        table: snapshot of the table.
        name: of the table.
        actions: files to add and to remove.
        transactions: transactions of the commit.
        earlier_versions: versions of those of the transactions that the table already has and that do not expire.
        anew: transactions of the table. If given, the table is signed as it is, whoever changed it.
        follows: with `anew`, the number of the signature that the new one follows. NO_NUMBER: none, because a person
            agreed to the table as it is.

    Raises:
        Refused: the table is signed, and this process has no secret or another secret. Or a file is to be removed, and
            somebody marked rows of one as deleted.
        ScanFailed: the table cannot be written.
    """
    if any(isinstance(action, RemoveAction) for action in actions):
        _refuse_vectors(table)
    signer, signature = signer_of(results), None
    if signer is not None:
        try:
            signature = signer.sign(table, name, actions, transactions, earlier_versions, anew, follows)
        except TableError:
            if _has_moved_on(table):
                return False
            raise
    elif signature_of(table) is not None:
        raise Refused(
            f"results: table {place_of(table)} is signed and can only be changed by a process that can sign it: "
            f"{unchecked(results)}"
        )
    signed = [] if signature is None else signature.as_transactions()
    properties = CommitProperties(max_commit_retries=0, app_transactions=[*transactions, *signed])
    refuse_links_of_table(place_of(table))  # the table may have been replaced by a link since it was opened
    try:
        table.create_write_transaction(actions, "append", SCHEMAS[name], commit_properties=properties)
        sync_commit(table, table.version() + 1)
    except (DeltaError, OSError) as error:
        if isinstance(error, CommitFailedError) and _has_moved_on(table):
            return False
        why, next_commit = in_a_line(error), f"{place_of(table)}/_delta_log/{table.version() + 1:020d}.json"
        if os.path.lexists(next_commit) and not os.path.isfile(next_commit):  # readers ignore such an entry
            why = f"{next_commit} is not a file but has the name of the next commit: delete it"
        raise ScanFailed(f"results: table {table.table_uri} cannot be written: {why}") from None
    if signer is not None and signature is not None:
        signer.commit_done(table, name, signature, anew=anew is not None and follows == NO_NUMBER)
    return True


def _refuse_vectors(table: DeltaTable) -> None:
    """Refuse a table with vectors of deleted rows by a TableError.

    No commit removes such a vector, and the rows of its file would be doubled. Signatures do not cover vectors: readers
    here read whole files, as they were signed.
    """
    with log_read(place := place_of(table)):  # deltalake reads the vectors, and would wait for ever for one in a FIFO
        is_changed = has_vectors(table) or any(batch.num_rows for batch in table.deletion_vectors())
    if is_changed:
        raise TableError(
            f"results: table {place}: its log has deletion vectors, which brickscan never writes, so somebody changed "
            "it: restore the table from a copy"
        )


Given = ParamSpec("Given")
ResultsPath = str | os.PathLike[str]


def folder_of(path: ResultsPath) -> str:
    """Return the folder or URI of the results that a path names.

    Raises:
        Refused: the path is a file other than the configuration of a scan.
    """
    if Path(path).is_file():
        from scanner.scan_plan import read_config  # late: it loads kernels, which takes a second

        return open_results(read_config(Path(path)), Path(path))
    return os.fspath(path)


def of_any_path(query: Callable[Concatenate[str, Given], Answer]) -> Callable[Concatenate[ResultsPath, Given], Answer]:
    """Wrap a query that takes a folder or URI of results, so that it also takes a Path or a configuration file."""

    @wraps(query)
    def ask(results: ResultsPath, *given: Given.args, **named: Given.kwargs) -> Answer:
        return query(folder_of(results), *given, **named)

    return cast(Callable[Concatenate[ResultsPath, Given], Answer], ask)


def open_tables(results: str, names: Iterable[str] = tuple(TABLES)) -> None:
    """Make the tables that do not exist yet. By default these are the tables of every scan.

    Raises:
        Refused: a table cannot be made, or one of another version or with other columns exists.
    """
    signer, made, end = signer_of(results), list[str](), time.monotonic() + SECONDS_OF_A_MAKER
    if signer is not None:
        signer.record.read_again()  # another process may have just made them
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
    # before the first commit, so that the registry knows the new tables
    if made and (why := keep_signatures(results)) is not None:
        if signer is not None and signer.record.is_kept():
            for name in made:
                put_aside(table_uri(results, name))
                signer.give_up(name)
            raise Refused(
                f"{why}. It has signatures of other tables and could not record these tables as the newest: create "
                "them where the registry can be written"
            )
        _log.warning("%s", why)


def _open_or_make(results: str, name: str, signer: Signer | None, end: float) -> tuple[DeltaTable, bool]:
    """Open a table, or make and sign it. Return the table and whether it was made.

    Args:
        results: folder or URI.
        name: of the table.
        signer: of the results. None: the results are not signed.
        end: time.monotonic() until which another process may still sign the table that it made.
    """
    uri = table_uri(results, name)
    # 1. open it: wait until its maker has signed it, and put it aside if that never happens
    if has_table(results, name):
        table = load_table(uri)
        if signer is not None and signer.is_new(table, name):
            signer.record.read_again()  # another process may have signed it meanwhile
        while signer is not None and signer.is_new(table, name) and time.monotonic() < end:
            time.sleep(0.1)
            signer.record.read_again()
            table = load_table(uri)
        if signer is None or not signer.is_new(table, name):
            return table, False
        put_aside(uri)
        _log.warning("results: table %s is empty and unsigned: it was moved aside and will be created again", uri)
    elif signer is not None:
        signer.refuse_unsigned_results()
    else:
        _refuse_signed_results(results, name)

    # 2. make it without statistics of names in Delta's log, where an erasure could not remove them
    table_made = make_table(uri, SCHEMAS[name], properties_of(name))
    if table_made is None:  # another process made it first
        return _open_or_make(results, name, signer, time.monotonic() + SECONDS_OF_A_MAKER)

    # 3. sign it as it was made
    if signer is not None:
        signer.table_made(table_made)
        if not try_to_commit(results, table_made, name, [], []):
            there = load_table(uri)
            if id_of(there) == id_of(table_made) and signature_of(there) is None:
                raise TableError(
                    f"results: table {uri}: somebody wrote to it while it was being created: delete its folder"
                )
            # this process was paused, and another one put its table aside and made a new one
            return _open_or_make(results, name, signer, time.monotonic() + SECONDS_OF_A_MAKER)
    return table_made, signer is not None


def _refuse_signed_results(results: str, name: str) -> None:
    """Raise Refused if other tables of results are signed: a new table without a signature would be refused later."""
    for uri in (table_uri(results, other) for other in SCHEMAS if other != name):
        if DeltaTable.is_deltatable(uri) and signature_of(open_table(uri)) is not None:
            raise Refused(
                f"results: table {table_uri(results, name)} is not created, because other tables are signed: "
                f"{unchecked(results)}"
            )


DROPS_TRANSACTIONS = "delta.setTransactionRetentionDuration"
"""Property of a table from which Delta drops transactions that have a time (scanner.results.retention)."""

_PROTOCOL = (1, 2)
"""Delta's lowest versions of readers and writers, for tables without features such as vectors of deleted rows."""


def properties_of(name: str) -> dict[str, str]:
    """Return the properties of a new table, without its version."""
    bounded = ",".join(column for column in WITH_BOUNDS if column in SCHEMAS[name].names) or "scan_id"
    return {"delta.dataSkippingStatsColumns": bounded}


def refuse_other(table: DeltaTable, name: str) -> None:
    """Refuse a table that this version of brickscan does not write.

    Raises:
        TableError: its version, columns or properties differ, or it needs more than Delta's plain protocol.
    """
    version = version_of(table)
    if version != VERSION:
        raise TableError(
            f"results: table {place_of(table)}: has version {version} of an earlier brickscan, but this one writes "
            f"{VERSION}; upgrade the tables with `brickscan migrate scan.toml`, which does not change any row"
        )
    refuse_other_form(table, name, VERSION)


def fields_of(name: str, version: int) -> list[pa.Field]:
    """Return the columns of a table in a version."""
    later = new_columns(name, version)
    return [field for field in SCHEMAS[name] if field.name not in later]


def refuse_other_form(table: DeltaTable, name: str, version: int) -> None:
    """Refuse a table whose columns or properties differ from those that brickscan gives it in a version.

    Raises:
        TableError: they differ, or the table needs more than Delta's plain protocol.
    """
    # during a migration a table has its new columns a moment before its version says so
    schemas = [deltalake.Schema.from_arrow(pa.schema(fields_of(name, each))) for each in (version, VERSION)]
    if table.schema() not in schemas:
        raise TableError(
            f"results: table {table.table_uri} does not have the columns that this version writes; give another folder"
        )
    metadata, protocol, place = table.metadata(), table.protocol(), place_of(table)
    made, found = {TABLE_VERSION: str(version)} | properties_of(name), metadata.configuration
    strange = sorted(found.keys() - made.keys() - {DROPS_TRANSACTIONS})
    wrong = {key: value for key, value in made.items() if found.get(key) != value}
    if strange or wrong:
        commands = [f"UNSET TBLPROPERTIES ({', '.join(map(repr, strange))})"] if strange else []
        commands += [f"SET TBLPROPERTIES ({', '.join(f'{k!r} = {v!r}' for k, v in wrong.items())})"] if wrong else []
        raise TableError(
            f"results: table {place}: something other than brickscan changed its properties "
            f"{', '.join([*strange, *wrong])}: restore the table from a copy, or have a program such as Spark run "
            + ", ".join(f"`ALTER TABLE delta.`{place}` {command}`" for command in commands)
        )
    if metadata.partition_columns or (protocol.min_reader_version, protocol.min_writer_version) != _PROTOCOL:
        raise TableError(
            f"results: table {place}: something other than brickscan changed its protocol or partitions, for example "
            "to use deletion vectors, which are not supported: restore the table from a copy"
        )


def open_results_table(results: str, name: str) -> DeltaTable:
    """Open the current state of a table of results.

    Raises:
        Refused: there is no such table, and there never was.
        TableError: it was signed and is missing, has no commit that can be read, has another version or has other
            columns.
        ScanFailed: its log cannot be read.
    """
    is_there = has_table(results, name)  # raises for a table that was signed and is missing
    try:
        table = open_table(table_uri(results, name))
    except Refused:
        if is_there:  # commits may not be read, or only what deltalake passes over is left of them
            raise TableError(
                f"results: table {table_uri(results, name)}: exists, but no commit of its log can be read: somebody "
                "changed it, or you do not have permission to read it. Restore the table from a copy"
            ) from None
        raise
    refuse_other(table, name)
    return table


def read_whole(results: str, name: str, paths: pl.Series | None = None) -> pl.LazyFrame:
    """Read the rows of a table.

    Args:
        results: folder or URI.
        name: of the table.
        paths: files without rows of these paths are not read. The files that are read may have other rows too. None:
            all files.

    Raises:
        Refused: there is no such table.
        TableError: it has another version or other columns, or it is not as it was signed. When the rows are collected:
            one of its files is not as it was signed.
        ScanFailed: its log cannot be read. When the rows of a signed table are collected: one of its files cannot.
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
    """Turn errors of reading a table or one of its files into ScanFailed."""
    try:
        yield
    except (OSError, DeltaError, pl.exceptions.ComputeError) as error:
        raise ScanFailed(
            f"results: {results} cannot be read: {in_a_line(error)[:300]}; check that it is complete and readable, "
            "and restore missing files from a copy"
        ) from error


def refuse_changed_tables(results: str) -> None:
    """Refuse results with a changed table, or with a changed log of finished shards.

    The content of files is not read here. It is checked when rows are read.

    Raises:
        TableError: somebody changed a table.
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


def _unscanned(results: str, name: str) -> TableError:
    why = "its log has transactions of shards that were never scanned, so somebody changed it"
    return TableError(f"results: table {table_uri(results, name)}: {why}: restore the table from a copy")


def append_scan(results: str, row: Mapping[str, object]) -> None:
    """Append a row to `scans`, at most once for each scan. Raises ScanFailed: the table cannot be written."""
    file = write_file(results, "scans", [pa.RecordBatch.from_pylist([row], SCANS)])
    commit(results, "scans", [TableEntry(str(row["scan_id"]), (file,) if file else ())])


def append_audits(results: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Append the rows of one audit to `audits`, all at once. The table is made if needed.

    Raises:
        ScanFailed: the table cannot be made or written, or it has another version or other columns.
    """
    try:
        open_tables(results, ["audits"])
        file = write_file(results, "audits", [pa.RecordBatch.from_pylist(list(rows), AUDITS)])
        commit(results, "audits", [TableEntry(uuid.uuid4().hex, (file,) if file else ())])
    except (Refused, TableError) as error:  # Refused would mean that no work was done, but hours of it end here
        raise ScanFailed(f"results: table {table_uri(results, 'audits')} cannot be written: {error}") from None

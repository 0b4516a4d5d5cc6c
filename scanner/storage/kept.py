"""A Delta table that is kept open: only new commits are read to bring its snapshot and transactions up to date.

Opening a table costs as much as its log is long, and so does deltalake's look-up of one transaction (6 ms of 10^5). A
driver that commits all night long opens each of its tables once, and reads from then on the commits that came since.
"""

import json
import re
from collections.abc import Iterable
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from scanner.errors import ScanFailed, in_a_line
from scanner.storage.delta import refuse_other_version
from scanner.storage.locations import filesystem_of

_LOOKED_UP = 20
"""Transactions that deltalake is asked for one by one; more than these are read from the log at once."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")


class KeptTable:
    """A table, opened when it is first needed.

    Args:
        uri: its folder.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._table: DeltaTable | None = None
        self._logged: dict[str, int] | None = None  # transactions of the log, as far as it was read
        self._read = -1  # the last version in it
        self._looked_up = 0

    def now(self) -> DeltaTable:
        """The table as it is now. The same object is brought up to date by the next call.

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
        """Versions of the given application transactions, as of the last call of `now`.

        Many are read from the log: its newest checkpoint and the commits after that (the Delta protocol's "Transaction
        Identifiers"). Where the log is kept in another form, each is looked up.

        Raises:
            ScanFailed: the table cannot be read.
        """
        table, wanted = self._table or self.now(), set(transactions)
        self._looked_up += len(wanted)
        if self._looked_up > _LOOKED_UP and self._read_log(table):
            logged = self._logged or {}
            return {name: logged[name] for name in wanted if name in logged}
        found = ((name, table.transaction_version(name)) for name in wanted)
        return {name: version for name, version in found if version is not None}

    def all(self) -> dict[str, int]:
        """All transactions of the table as of the last call of `now`; empty where the log has another form."""
        table = self._table or self.now()
        return dict(self._logged or {}) if self._read_log(table) else {}

    def _read_log(self, table: DeltaTable) -> bool:
        """Read what is new in the log, or all of it. False: the log is of a form that is not read here."""
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
    """The files of a table's log."""

    def __init__(self, table_uri: str) -> None:
        self._filesystem, folder = filesystem_of(unquote(table_uri.removeprefix("file://")))
        self._folder = f"{folder.rstrip('/')}/_delta_log"

    def checkpoint(self, version: int) -> tuple[dict[str, int], int]:
        """Transactions of the newest checkpoint that is no newer than a version, and its version; -1 for none."""
        names = [info.base_name for info in self._filesystem.get_file_info(fs.FileSelector(self._folder))]
        points = [int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match]
        newest = max((point for point in points if point <= version), default=-1)
        if newest < 0:
            return {}, newest
        with self._filesystem.open_input_file(f"{self._folder}/{newest:020d}.checkpoint.parquet") as source:
            column = pq.read_table(source, columns=["txn"]).column("txn").combine_chunks()
        known = column.drop_null()
        return dict(zip(known.field("appId").to_pylist(), known.field("version").to_pylist(), strict=True)), newest

    def commits(self, first: int, last: int) -> dict[str, int]:
        """Transactions of the commits first … last. Raises FileNotFoundError: one was cleaned up."""
        found: dict[str, int] = {}
        for commit in range(first, last + 1):
            with self._filesystem.open_input_stream(f"{self._folder}/{commit:020d}.json") as source:
                actions = [json.loads(line) for line in source.read().splitlines() if b'"txn"' in line]
            found.update((action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action)
        return found

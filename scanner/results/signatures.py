"""Signatures of tables of results: what somebody changed, took away or put back by hand is seen when it is read.

Who can write the results can write any row. So each commit signs the whole table, under the registry's audit secret:

1. A file's name states the SHA-256 of its content (scanner.storage.data_files), so that a set of names says what the
   table holds.
2. A table has two digests, of its files and of its application transactions, by which scans know what is done. Each is
   the sum, modulo 2^126, of HMAC-SHA-256 over each file (its name, rows, and ranges of `path` and `scan_id`) or over
   each transaction that does not expire, and over the signature's number, nonce and other fields; all of them with the
   table's name and Delta id. This is MSet-Add-Hash of Clarke, Devadas, van Dijk, Gassend and Suh, "Incremental
   Multiset Hash Functions and Their Application to Memory Integrity Checking" (2003): without the key nobody finds
   another set of the same digest, and a commit changes it by what it adds and takes away. A nonce is drawn for each
   commit, so that the difference of two digests shows nothing of what is in them. Transactions that expire are of
   nights that are frozen; the table `shards` shows which these are (scanner.results.transactions).
3. The signature stands in Delta's log as application transactions: its number, that of the one that it follows, an id
   that all tables of the results have, the nonce and the digests. They are committed together with the files and
   outlive checkpoints. A commit that brickscan did not make leaves them as they were, and they do not fit.
4. The registry keeps what was made, signed and given up at each place (scanner.registry.signed_tables). Numbers grow
   with time, in whatever process: an older state has a smaller number, and so has what a killed scan committed and
   somebody kept for later. Two commits that follow one show that the first was taken back. Another table has another
   id, a table of other results another id of results, and a table that is gone is missed. A table without a signature
   is signed only by who made it, or where the registry says that it was made here: nobody else chose its id.

Whoever reads a table recomputes its digest from the files of the log, and holds each file that is read against its
name, in the same bytes that are then decoded. Whoever commits to one, or looks up what is done, checks both digests
whenever the table has a new version; sums are kept up, so that this costs as much as what is new. A scan checks all
tables when it begins and before it ends.

Where no registry is named, or its audit secret cannot be read, tables are read as they are and nothing is checked; what
was signed can then not be committed to.
"""

import hmac
import io
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction
from polars.io.plugins import register_io_source

from scanner.errors import Refused, ScanFailed
from scanner.registry import read_audit_secret
from scanner.registry.signed_tables import NO_NUMBER, SignedTable, append_signed_tables, read_signed_tables
from scanner.storage.data_files import SCHEMAS, read_file, sha256_in
from scanner.storage.delta import LoggedTransaction, files_of, logged_transactions, place_of
from scanner.storage.locations import absolute, real_location, table_uri
from schemas.config import ScanConfig

_BITS = 63  # Delta's versions of transactions are signed 64-bit integers
_DIGITS = 2  # of a digest
_MODULUS = 1 << (_BITS * _DIGITS)

_FIELDS = ("signature", "signature:earlier", "signature:secret", "signature:results", "signature:nonce")
_DIGESTS = tuple(f"signature:{what}:{digit}" for what in ("files", "transactions") for digit in range(_DIGITS))
"""Application transactions that hold a signature: its fields, and its digests in digits of 63 bits, smallest first."""

_VERDICTS = "verdicts"
"""The table that all results of scans have: by it, tables of one folder are told from others at a new place."""

_SECONDS_UNKEPT = 60.0
"""Seconds after which a commit has the registry keep signatures, which is done in any case when a process ends."""

_PUT_BACK = (
    "Believe nothing of it: put the table back from a copy that fits, or scan its input again into another folder"
)


class Signature(NamedTuple):
    """A signature of a table.

    number: of the commit that signed it; it grows with time.
    earlier: number of the signature that it follows; NO_NUMBER: none, or it was signed as it was by consent.
    secret: number that tells secrets apart, and shows nothing of them.
    results: id of the results, 63 bits.
    nonce: drawn for the commit, 63 bits.
    files: digest of all files of the table then, 0 … 2^126 − 1.
    transactions: digest of all transactions that do not expire, 0 … 2^126 − 1.
    """

    number: int
    earlier: int
    secret: int
    results: int
    nonce: int
    files: int
    transactions: int

    def as_transactions(self) -> list[Transaction]:
        """Return the application transactions that hold it."""
        digests = (self.files, self.transactions)
        digits = [digest >> (_BITS * digit) & ((1 << _BITS) - 1) for digest in digests for digit in range(_DIGITS)]
        fields = self[: len(_FIELDS)]
        return [Transaction(name, value) for name, value in zip(_FIELDS + _DIGESTS, (*fields, *digits), strict=True)]


def signature_of(table: DeltaTable) -> Signature | None:
    """Return the signature that a table carries, whether it fits or not; None: it carries none."""
    number = table.transaction_version(_FIELDS[0])
    if number is None:
        return None
    earlier, secret, results, nonce = (table.transaction_version(name) or 0 for name in _FIELDS[1:])
    digits = [table.transaction_version(name) or 0 for name in _DIGESTS]
    files, transactions = (digits[at] + (digits[at + 1] << _BITS) for at in (0, _DIGITS))
    return Signature(number, earlier, secret, results, nonce, files, transactions)


class TransactionSum:
    """The sum of the HMACs of a log's transactions that do not expire, kept up as the log grows.

    value: the sum, modulo 2^126.
    count: number of all transactions, with those that expire.
    """

    def __init__(self, signer: "Signer", table: DeltaTable, name: str) -> None:
        self._signer, self._table_id, self._name = signer, _id_of(table), name
        self.value = self.count = 0

    def change(self, app_id: str, earlier: LoggedTransaction | None, later: LoggedTransaction | None) -> None:
        """Take in a transaction that came, changed or went. As scanner.storage.delta.LogObserver."""
        self.count += (later is not None) - (earlier is not None)
        self.value = (self.value + self._hmac(app_id, later) - self._hmac(app_id, earlier)) % _MODULUS

    def _hmac(self, app_id: str, transaction: LoggedTransaction | None) -> int:
        if transaction is None or transaction.expires or app_id.startswith(_FIELDS[0]):
            return 0
        return self._signer.hmac_of_transaction(self._name, self._table_id, app_id, transaction.version)


class Signer:
    """Signs and checks the tables of one folder of results. It holds a secret, and refuses to be pickled.

    unsigned: names of tables that were read and that nobody ever signed.
    """

    def __init__(self, results: str, registry: str, secret: bytes) -> None:
        self._registry = registry
        self._location = real_location(results)
        self._key = hmac.digest(secret, b"signed-tables-v1", "sha256")
        self._secret = self._hmac("secret") % (1 << _BITS)
        self._signed_tables, self._read_at = read_signed_tables(registry), time.monotonic()
        self._carried: dict[str, tuple[int, Signature]] = {}  # by a table's id: as we left it, or checked it
        self._files_sums: dict[str, tuple[Counter[_FileFacts], int]] = {}  # by a table's id: files, and their sum
        self._unkept: list[SignedTable] = []  # of our commits and new tables: the registry lacks them
        self._adopted: dict[str, SignedTable] = {}  # by a table's id: those that fit, and that the registry lacks
        self._lock, self._kept_at = threading.Lock(), time.monotonic()
        self.unsigned: set[str] = set()

    def __reduce__(self) -> str:
        raise TypeError("what holds the audit secret is not pickled: open it where it is needed")

    def sign(
        self,
        table: DeltaTable,
        name: str,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Sequence[Transaction],
        earlier_versions: Mapping[str, int],
        anew: Mapping[str, LoggedTransaction] | None = None,
    ) -> Signature | None:
        """Return the signature of a table after a commit.

        Args:
            table: as it is before the commit.
            name: of the table.
            actions: of the commit.
            transactions: of the commit.
            earlier_versions: of those of the transactions that the table has.
            anew: transactions of the table, which is taken as it is, whatever signature it carries.

        Returns:
            None: the table has files and no signature, so that nobody knows whose they are.

        Raises:
            Refused: it is not as it was signed.
            ScanFailed: its log cannot be read.
        """
        # 1. take the signature that the table carries, checked by this process in this version, or compute it
        self.refresh()
        if anew is not None:
            earlier, follows = self._computed(table, name, self._results_by_consent(table), anew), NO_NUMBER
            least = self._signed_tables.last_number(self._location, name, _id_of(table))
        else:
            if self._carried_by(table) is None and not self.is_signed(table, name, self._sum_now(table, name)):
                return None
            carried, made = self._carried_by(table), self._known_here(table, name)
            if carried is None and made is None:
                if self._are_unsigned():
                    return None
                raise Refused(
                    f"results: table {place_of(table)}: is empty, and the registry does not say that it was made here. "
                    "Delete its folder"
                )
            earlier = carried or self._computed(table, name, made.results_id if made else 0, {})
            follows = carried.number if carried else made.number if made else NO_NUMBER
            self._refuse_put_back(table, name, earlier._replace(number=follows))
            least = follows

        # 2. exchange number and nonce for new ones
        later = earlier._replace(number=_next_number(least), earlier=follows, nonce=secrets.randbits(_BITS))
        files, done = earlier.files, earlier.transactions
        files += self._mask("files", table, name, later) - self._mask("files", table, name, earlier)
        done += self._mask("transactions", table, name, later) - self._mask("transactions", table, name, earlier)

        # 3. add the files that come, and subtract those that go
        added = [action for action in actions if isinstance(action, AddAction)]
        files += sum(self._hmac_of_file(table, name, _facts_of(action)) for action in added)
        removed = {action.path for action in actions} - {action.path for action in added}
        if removed:
            files -= sum(self._hmac_of_file(table, name, row) for row in _rows_of_files(table) if row[0] in removed)

        # 4. likewise with transactions, of which those that expire are left out
        for transaction in transactions:
            app_id = transaction.app_id
            if app_id in earlier_versions:
                done -= self.hmac_of_transaction(name, _id_of(table), app_id, earlier_versions[app_id])
            if transaction.last_updated is None:
                done += self.hmac_of_transaction(name, _id_of(table), app_id, transaction.version)
        return later._replace(files=files % _MODULUS, transactions=done % _MODULUS)

    def has_signed(self, signature: Signature) -> bool:
        """Return whether a signature names this signer's secret, whether it fits a table or not."""
        return bool(signature.secret == self._secret)

    def commit_done(self, table: DeltaTable, name: str, signature: Signature, *, anew: bool = False) -> None:
        """Take in that a commit of this process was signed.

        Args:
            table: as it was before the commit.
            name: of the table.
            signature: of the table after it.
            anew: whatever was signed there before is given up.
        """
        self._carried[_id_of(table)] = table.version() + 1, signature
        if anew:
            others = [
                entry for entry in self._signed_tables.at(self._location, name) if entry.table_id != _id_of(table)
            ]
            self._give_up(others)
        self._take_in([self._entry(table, name, signature, "signed anew" if anew else "signed")])
        self._keep_now_and_then()

    def _keep_now_and_then(self) -> None:
        if self._unkept and time.monotonic() - self._kept_at > _SECONDS_UNKEPT:
            with suppress(ScanFailed):  # the end of the process says so
                self.keep()

    def _entry(
        self, table: DeltaTable, name: str, signature: Signature, event: Literal["signed", "signed anew"]
    ) -> SignedTable:
        place = self._location, name, _id_of(table)
        return SignedTable(*place, signature.results, event, signature.number, signature.earlier)

    def table_made(self, table: DeltaTable, name: str) -> None:
        """Take in that this process made a table."""
        results_id = max(self._results_here(), default=secrets.randbits(_BITS))
        self._take_in([SignedTable(self._location, name, _id_of(table), results_id, "made", _next_number(0))])

    def is_nobodys(self, table: DeltaTable, name: str, end: float) -> bool:
        """Return whether nobody is known to have made an empty table, as where a scan died before it said so.

        Args:
            table: as it was opened.
            name: of the table.
            end: time.monotonic() until which the registry is asked, since its maker may be about to say so.
        """
        while not self._signed_tables.at(self._location, name):
            if signature_of(table) is not None or files_of(table).height or self._are_unsigned():
                return False
            if time.monotonic() > end:
                return True
            time.sleep(0.1)
            self._read_again()
        return False

    def signed_tables(self) -> list[str]:
        """Return the names of tables that were signed, and that nobody gave up."""
        return sorted({entry.table for entry in self._signed_tables.of(self._location)})

    def missing_tables(self) -> list[str]:
        """Return the names of tables that were signed, and are gone."""
        return [name for name in self.signed_tables() if not DeltaTable.is_deltatable(table_uri(self._location, name))]

    def give_up(self, name: str) -> None:
        """Take in that a table is gone by consent, and not missed."""
        self._give_up(self._signed_tables.at(self._location, name))

    def _give_up(self, entries: Sequence[SignedTable]) -> None:
        event: Literal["given up"] = "given up"
        self._take_in([
            entry._replace(event=event, number=_next_number(entry.number), earlier=NO_NUMBER) for entry in entries
        ])  # fmt: skip

    def _take_in(self, entries: Sequence[SignedTable]) -> None:
        with self._lock:
            self._signed_tables.add(entries)
            self._unkept += entries

    def refuse_missing(self, name: str) -> None:
        """Raise Refused for a table that is gone, if it was signed, and nobody gave it up."""
        if self._signed_tables.at(self._location, name):
            self._read_again()
            if self._signed_tables.at(self._location, name):
                raise Refused(
                    f"results: table {table_uri(self._location, name)}: was signed, and is gone. Look whether all of "
                    "its disk is there, and put it back from a copy. If you deleted it, run `brickscan sign` with the "
                    "scan's configuration, which gives it up"
                )

    def refresh(self) -> None:
        """Read again what the registry keeps, unless that was done a moment ago; call it before a table is opened."""
        self._keep_now_and_then()
        if time.monotonic() - self._read_at > _SECONDS_OF_A_QUERY:
            self._read_again()

    def _read_again(self) -> None:
        signed_tables, self._read_at = read_signed_tables(self._registry), time.monotonic()
        with self._lock:
            signed_tables.add(self._unkept)
            self._signed_tables = signed_tables

    def keep(self) -> None:
        """Have the registry keep the newest signatures of this process, from any of its threads.

        Raises:
            ScanFailed: it cannot be written.
        """
        with self._lock:
            entries, self._kept_at = [*self._adopted.values(), *self._unkept], time.monotonic()
        if entries:
            append_signed_tables(self._registry, entries)
            with self._lock:
                kept = {*entries}
                self._unkept = [entry for entry in self._unkept if entry not in kept]
                self._adopted = {key: entry for key, entry in self._adopted.items() if entry not in kept}
            self._read_again()

    def sum_transactions(
        self, table: DeltaTable, name: str, transactions: Mapping[str, LoggedTransaction]
    ) -> TransactionSum:
        """Return the sum of transactions of a table."""
        total = TransactionSum(self, table, name)
        for app_id, transaction in transactions.items():
            total.change(app_id, None, transaction)
        return total

    def is_signed(self, table: DeltaTable, name: str, transactions: TransactionSum | None = None) -> bool:
        """Return whether a table is as brickscan left it; False: it was never signed.

        What another process signed a moment ago is asked of the registry again before a table is refused.

        Args:
            table: as it was opened.
            name: of the table.
            transactions: sum of those of its log, to be held against the signature too; None: they do not matter.

        Raises:
            Refused: it is not as it was signed, it was put back to an earlier state, or it is another table.
        """
        try:
            return self._is_signed(table, name, transactions)
        except Refused:
            self._read_again()
            return self._is_signed(table, name, transactions)

    def _is_signed(self, table: DeltaTable, name: str, transactions: TransactionSum | None) -> bool:
        signature, where = signature_of(table), f"results: table {place_of(table)}"
        last, table_id = self._known_here(table, name), _id_of(table)
        if self._signed_tables.was_given_up(self._location, name, table_id):
            raise Refused(f"{where}: it is a table that was given up, and was put back. {_PUT_BACK}")
        if last is None and self._signed_tables.at(self._location, name):
            raise Refused(f"{where}: another table was signed there, and this one was put in its place. {_PUT_BACK}")
        if signature is not None and self.has_signed(signature) and self._is_of_others(signature, last):
            raise Refused(f"{where}: it was signed among other results, and put here. {_PUT_BACK}")
        if self._signed_tables.is_forked(self._location, name, table_id):
            raise Refused(f"{where}: two commits follow one, so that the first was taken back. {_PUT_BACK}")
        if signature is None:
            has_files = bool(files_of(table).height)
            is_used = has_files or (transactions is not None and transactions.count > 0)
            is_known = last is not None or (is_used and self._has_signed_results(name))
            was_signed = last is not None and last.event != "made"
            if (is_known and (is_used or was_signed)) or (is_used and not has_files):
                raise Refused(f"{where}: it carries no signature, so brickscan did not write it. {_PUT_BACK}")
            if has_files:
                self.unsigned.add(name)
            return not has_files
        if not self.has_signed(signature):
            raise Refused(
                f"{where}: was signed under another audit secret than that of registry {self._registry}: name the "
                "registry of its scans, or put its audit secret back"
            )
        self._refuse_put_back(table, name, signature)
        if signature.files != self._files(table, name, signature):
            raise Refused(f"{where}: {_what_changed(table)}. {_PUT_BACK}")
        if transactions is not None:
            if signature.transactions != self._done(table, name, signature, transactions):
                raise Refused(f"{where}: its log has other transactions than brickscan committed. {_PUT_BACK}")
            self._carried[table_id] = table.version(), signature
            if last is None or last.number < signature.number:
                with self._lock:
                    self._adopted[table_id] = self._entry(table, name, signature, "signed")
        return True

    def _carried_by(self, table: DeltaTable) -> Signature | None:
        """Return the signature of a table as this process left it, or checked it, in this version."""
        version, carried = self._carried.get(_id_of(table), (-1, None))
        return carried if version == table.version() else None

    def _refuse_put_back(self, table: DeltaTable, name: str, signature: Signature) -> None:
        """Refuse a table whose signature is older than the newest that the registry or this process knows."""
        last, (_, carried) = self._known_here(table, name), self._carried.get(_id_of(table), (-1, None))
        for newest in (last.number if last else NO_NUMBER, carried.number if carried else NO_NUMBER):
            if signature.number < newest:
                raise Refused(
                    f"results: table {place_of(table)}: it was put back to an earlier state, before the last commit "
                    f"that brickscan made. {_PUT_BACK}"
                )
            if signature.number > newest and NO_NUMBER < signature.earlier < newest:
                raise Refused(
                    f"results: table {place_of(table)}: its last commit follows an earlier one than brickscan made, "
                    f"which was taken back. {_PUT_BACK}"
                )

    def _known_here(self, table: DeltaTable, name: str) -> SignedTable | None:
        """Return the newest signature of a table at this place; None: the registry does not know it here."""
        signed = self._signed_tables.at(self._location, name)
        return next((entry for entry in signed if entry.table_id == _id_of(table)), None)

    def _results_here(self) -> set[int]:
        """Return the id of the results at this place, by the registry, or by the verdicts; empty: none were signed."""
        known = {entry.results_id for entry in self._signed_tables.of(self._location)}
        uri = table_uri(self._location, _VERDICTS)
        if known or not DeltaTable.is_deltatable(uri):
            return known
        table = DeltaTable(uri)
        signature = signature_of(table)
        if signature is None or not self.has_signed(signature):
            return set()
        return {signature.results} if signature.files == self._files(table, _VERDICTS, signature) else set()

    def _is_of_others(self, signature: Signature, last: SignedTable | None) -> bool:
        """Return whether a table belongs to other results than those of this place."""
        here = self._results_here() if last is None else {last.results_id}
        return bool(here) and signature.results not in here

    def _results_by_consent(self, table: DeltaTable) -> int:
        """Return the id of the results to which a table belongs that is signed as it is."""
        here, signature = self._results_here(), signature_of(table)
        named = {signature.results} if signature is not None and self.has_signed(signature) else set()
        return max(here & named or here or named, default=secrets.randbits(_BITS))

    def _are_unsigned(self) -> bool:
        """Return whether nobody signed the results, so that nothing of them is signed."""
        uri = table_uri(self._location, _VERDICTS)
        if not DeltaTable.is_deltatable(uri):
            return False
        verdicts = DeltaTable(uri)
        return signature_of(verdicts) is None and bool(files_of(verdicts).height)

    def _has_signed_results(self, name: str) -> bool:
        """Return whether the results are signed to which a table belongs."""
        if self._signed_tables.at(self._location, _VERDICTS):
            return True
        uri = table_uri(self._location, _VERDICTS)
        return name != _VERDICTS and DeltaTable.is_deltatable(uri) and signature_of(DeltaTable(uri)) is not None

    def _sum_now(self, table: DeltaTable, name: str) -> TransactionSum:
        return self.sum_transactions(table, name, logged_transactions(table))

    def _computed(
        self, table: DeltaTable, name: str, results_id: int, transactions: Mapping[str, LoggedTransaction]
    ) -> Signature:
        blank = Signature(0, NO_NUMBER, self._secret, results_id, 0, 0, 0)
        done = self._done(table, name, blank, self.sum_transactions(table, name, transactions))
        return blank._replace(files=self._files(table, name, blank), transactions=done)

    def _files(self, table: DeltaTable, name: str, signature: Signature) -> int:
        files, (summed, value) = Counter(_rows_of_files(table)), self._files_sums.get(_id_of(table), (Counter(), 0))
        value += sum(self._hmac_of_file(table, name, row) for row in (files - summed).elements())
        value -= sum(self._hmac_of_file(table, name, row) for row in (summed - files).elements())
        self._files_sums[_id_of(table)] = files, value % _MODULUS
        return (self._mask("files", table, name, signature) + value) % _MODULUS

    def _done(self, table: DeltaTable, name: str, signature: Signature, transactions: TransactionSum) -> int:
        return (self._mask("transactions", table, name, signature) + transactions.value) % _MODULUS

    def _mask(self, what: str, table: DeltaTable, name: str, signature: Signature) -> int:
        return self._hmac("signature", what, name, _id_of(table), *signature[: len(_FIELDS)])

    def _hmac_of_file(self, table: DeltaTable, name: str, facts: "_FileFacts") -> int:
        return self._hmac("file", name, _id_of(table), *facts)

    def hmac_of_transaction(self, name: str, table_id: str, app_id: str, version: int) -> int:
        """Return the HMAC of a transaction that does not expire, 0 … 2^126 − 1."""
        return self._hmac("transaction", name, table_id, app_id, version)

    def _hmac(self, *facts: str | int | None) -> int:
        digest = hmac.digest(self._key, json.dumps(facts).encode(), "sha256")
        return int.from_bytes(digest, "big") % _MODULUS


def _next_number(earlier: int) -> int:
    """Return a number that grows with time, and that no other process draws: milliseconds since 1970, and 20 bits."""
    return max(earlier + 1, time.time_ns() // 1_000_000 << 20 | secrets.randbits(20))


_SECONDS_OF_A_QUERY = 1.0
"""Seconds for which the registry is not asked again."""

_BOUNDS = ("path", "scan_id")
"""Columns whose ranges decide which files are read or rewritten."""


def _id_of(table: DeltaTable) -> str:
    return str(table.metadata().id)


_FileFacts = tuple[str | int | None, ...]


def _rows_of_files(table: DeltaTable) -> Iterator[_FileFacts]:
    """Yield the facts of each file of a table that a signature holds: name, number of rows, and ranges."""
    files = files_of(table)
    names = ("path", "num_records", *(f"{end}.{column}" for column in _BOUNDS for end in ("min", "max")))
    columns = [pl.col(name) if name in files.columns else pl.lit(None).alias(name) for name in names]
    yield from files.select(columns).iter_rows()


def _facts_of(action: AddAction) -> _FileFacts:
    """Return the facts of a file that a commit adds, as `_rows_of_files` reads them from the log."""
    stats = json.loads(action.stats)
    ranges = (stats[bound].get(column) for column in _BOUNDS for bound in ("minValues", "maxValues"))
    return action.path, stats["numRecords"], *ranges


def _what_changed(table: DeltaTable) -> str:
    """Say that another program changed a table, where its log says so, or that somebody did."""
    for commit in table.history(_COMMITS_LOOKED_AT):
        if commit.get("operation") in _NEVER_OURS:
            return (
                f"its files are not those that brickscan committed, and its log has {commit['operation']} by "
                f"{commit.get('engineInfo', 'another program')}. If you ran that, and nothing else was changed, run "
                "`brickscan sign` with the scan's configuration, and use `brickscan compact` from then on"
            )
    return "its files are not those that brickscan committed, so somebody changed it"


_COMMITS_LOOKED_AT = 50
_NEVER_OURS = ("OPTIMIZE", "MERGE", "DELETE", "UPDATE", "RESTORE", "CREATE OR REPLACE TABLE")
"""Operations of Delta that brickscan does to no table of results."""


def checked_rows(results: str, name: str, file_names: Sequence[str]) -> pl.LazyFrame:
    """Return the rows of a table's files, each file held against its name in the same bytes that are decoded.

    Args:
        results: folder or URI.
        name: of the table.
        file_names: files of the table that are read, by the log of a signed table.

    Returns:
        A lazy frame that raises when it is collected. Refused: the content of a file is not what was written; OSError:
        a file cannot be read.
    """
    schema = pl.Schema(SCHEMAS[name])

    def read_files(
        columns: list[str] | None, predicate: pl.Expr | None, max_rows: int | None, _batch: int | None
    ) -> Iterator[pl.DataFrame]:
        left = max_rows  # polars asks for the first rows of the source, and filters these
        yield pl.DataFrame(schema=schema).select(columns or schema.names())  # a frame without files has columns too
        for file_name in file_names:
            if left == 0:
                return
            if sha256_in(file_name) is None:
                raise Refused(f"results: {table_uri(results, name)}/{file_name}: brickscan did not write this file")
            content = io.BytesIO(read_file(results, name, file_name))
            rows = pl.read_parquet(content, columns=columns, use_statistics=False)
            rows = rows if left is None else rows.head(left)
            left = None if left is None else left - len(rows)
            yield rows if predicate is None else rows.filter(predicate)

    return register_io_source(read_files, schema=schema)


_registries: dict[str, str] = {}
_signers: dict[str, Signer | str] = {}  # or why there is none


def open_results(config: ScanConfig, config_file: Path) -> str:
    """Return the folder or URI of a configuration's results, which this process signs and checks from now on.

    Raises:
        Refused: a password or options in a URI.
    """
    from scanner.scan_plan import results_of  # it brings kernels, which take a second

    results = results_of(config, config_file)
    sign_with(results, absolute("registry", config.registry, config_file.absolute().parent))
    return results


def sign_with(results: str, registry: str) -> None:
    """Have this process sign what it commits to results, and check what it reads of them, from now on.

    Args:
        results: folder or URI, as all calls name it.
        registry: folder or URI of the registry whose audit secret signs.
    """
    if _registries.get(results) != registry:
        _registries[results] = registry
        _signers.pop(results, None)


def registry_of(results: str) -> str | None:
    """Return the folder or URI of the registry whose audit secret this process checks results with; None: none does."""
    return None if signer_of(results) is None else _registries[results]


def signer_of(results: str) -> Signer | None:
    """Return what signs and checks results; None: nothing does, for the reason that `unchecked` gives.

    Raises:
        Refused: what the registry keeps of signatures is of another version.
    """
    if results not in _registries:
        return None
    if results not in _signers:
        registry = _registries[results]
        try:
            secret = read_audit_secret(registry)
        except Refused as error:
            _signers[results] = str(error)
        else:
            _signers[results] = Signer(results, registry, secret)
    opened = _signers[results]
    return opened if isinstance(opened, Signer) else None


def unchecked(results: str) -> str | None:
    """Return why rows of results were read without a check of their signature; None: all that were read are signed."""
    if results not in _registries:
        return "no registry was named: name the scan's configuration instead of its results"
    signer = _signers.get(results)
    if isinstance(signer, str):
        return signer
    if signer is not None and signer.unsigned:
        return f"nobody signed {', '.join(sorted(signer.unsigned))}: `brickscan sign` does"
    return None


def use_signer(results: str, signer: Signer) -> None:
    """Have this process sign and check results by this signer from now on."""
    _signers[results] = signer


def keep_signatures(results: str) -> str | None:
    """Have the registry keep the newest signatures of this process's commits to results. Return why it could not."""
    signer = _signers.get(results)
    try:
        if isinstance(signer, Signer):
            signer.keep()
    except ScanFailed as error:
        return f"{error}. Until it can be, nobody sees that tables of {results} were put back to an earlier state"
    return None

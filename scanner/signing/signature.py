"""Define the signature of a table, and its digests: sums of HMACs over files and transactions."""

import hmac
import json
from collections.abc import Iterator
from typing import NamedTuple

import polars as pl
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction

from scanner.storage.delta import LoggedTransaction, files_of, log_read, place_of

_BITS = 63  # Delta's versions of transactions are signed 64-bit integers
_DIGITS = 2  # of a digest
MODULUS = 1 << (_BITS * _DIGITS)

FIELDS = (
    "signature",
    "signature:earlier",
    "signature:known",
    "signature:secret",
    "signature:results",
    "signature:nonce",
)
DIGESTS = tuple(f"signature:{what}:{digit}" for what in ("files", "transactions") for digit in range(_DIGITS))
"""Application transactions that hold a signature: its fields, and its digests in digits of 63 bits, lowest first."""

_BOUNDS = ("path", "scan_id")
"""Columns whose ranges decide which files are read or rewritten."""

FileFacts = tuple[str | int | None, ...]
"""The facts of a file that a signature covers: name, number of rows, and the ranges of _BOUNDS."""


class Signature(NamedTuple):
    """A signature of a table.

    number: number of the signing commit. It grows with time.
    earlier: number of the signature that it follows. NO_NUMBER (scanner.registry.signed_tables): none, or a person
        agreed to sign the table as it was.
    known: number that the registry had for the table at that time. NO_NUMBER: none.
    secret: number that tells secrets apart and reveals nothing about them.
    results: id of the results, 63 bits.
    nonce: drawn for the commit, 63 bits.
    files: digest of all files of the table at that time, 0 … 2^126 − 1.
    transactions: digest of all transactions that do not expire, 0 … 2^126 − 1.
    """

    number: int
    earlier: int
    known: int
    secret: int
    results: int
    nonce: int
    files: int
    transactions: int

    def as_transactions(self) -> list[Transaction]:
        """Return the application transactions that hold the signature."""
        digests = (self.files, self.transactions)
        digits = [digest >> (_BITS * digit) & ((1 << _BITS) - 1) for digest in digests for digit in range(_DIGITS)]
        fields = self[: len(FIELDS)]
        return [Transaction(name, value) for name, value in zip(FIELDS + DIGESTS, (*fields, *digits), strict=True)]


def signature_of(table: DeltaTable) -> Signature | None:
    """Return the signature that a table carries, even if it does not fit. None: it carries none.

    Raises:
        ScanFailed: the log cannot be read.
    """
    with log_read(place_of(table)):
        number = table.transaction_version(FIELDS[0])
        if number is None:
            return None
        fields = [table.transaction_version(name) or 0 for name in FIELDS[1:]]
        digits = [table.transaction_version(name) or 0 for name in DIGESTS]
    files, transactions = (digits[at] + (digits[at + 1] << _BITS) for at in (0, _DIGITS))
    return Signature._make([number, *fields, files, transactions])


def id_of(table: DeltaTable) -> str:
    """Return the id that Delta drew for a table when it was made."""
    return str(table.metadata().id)


def facts_of_files(table: DeltaTable) -> Iterator[FileFacts]:
    """Yield the facts that a signature covers, for each file of a table."""
    files = files_of(table)
    names = ("path", "num_records", *(f"{end}.{column}" for column in _BOUNDS for end in ("min", "max")))
    columns = [pl.col(name) if name in files.columns else pl.lit(None).alias(name) for name in names]
    yield from files.select(columns).iter_rows()


def facts_of_action(action: AddAction) -> FileFacts:
    """Return the facts of a file that a commit adds, equal to those that `facts_of_files` reads from the log later."""
    stats = json.loads(action.stats)
    ranges = (stats[bound].get(column) for column in _BOUNDS for bound in ("minValues", "maxValues"))
    return action.path, stats["numRecords"], *ranges


class Digester:
    """Compute HMACs under an audit secret, 0 … 2^126 − 1. Digests are sums of them. It refuses to be pickled.

    secret: number that tells secrets apart and reveals nothing about them, 63 bits.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"signed-tables-v1", "sha256")
        self.secret = self._hmac("secret") % (1 << _BITS)

    def __reduce__(self) -> str:
        raise TypeError("objects with the audit secret are never pickled: open them where they are needed")

    def hmac_of_file(self, table: DeltaTable, name: str, facts: FileFacts) -> int:
        """Return the HMAC of a file of a table."""
        return self._hmac("file", name, id_of(table), *facts)

    def hmac_of_transaction(self, table_id: str, name: str, app_id: str, version: int) -> int:
        """Return the HMAC of a transaction that does not expire."""
        return self._hmac("transaction", name, table_id, app_id, version)

    def mask(self, what: str, table: DeltaTable, name: str, signature: Signature) -> int:
        """Return the HMAC of a signature's fields, which is added to its digest of `files` or `transactions`."""
        return self._hmac("signature", what, name, id_of(table), *signature[: len(FIELDS)])

    def _hmac(self, *facts: str | int | None) -> int:
        digest = hmac.digest(self._key, json.dumps(facts).encode(), "sha256")
        return int.from_bytes(digest, "big") % MODULUS


class TransactionSum:
    """The sum of the HMACs of a log's transactions that do not expire. It is updated as the log grows.

    value: the sum, modulo 2^126.
    count: number of all transactions, including those that expire.
    """

    def __init__(self, digester: Digester, table: DeltaTable, name: str) -> None:
        self._digester, self._table_id, self._name = digester, id_of(table), name
        self.value = self.count = 0

    def change(self, app_id: str, earlier: LoggedTransaction | None, later: LoggedTransaction | None) -> None:
        """Update the sum for a transaction that came, changed or went.

        Arguments as scanner.storage.delta.LogObserver.
        """
        self.count += (later is not None) - (earlier is not None)
        self.value = (self.value + self._hmac(app_id, later) - self._hmac(app_id, earlier)) % MODULUS

    def _hmac(self, app_id: str, transaction: LoggedTransaction | None) -> int:
        if transaction is None or transaction.expires or app_id.startswith(FIELDS[0]):
            return 0
        return self._digester.hmac_of_transaction(self._table_id, self._name, app_id, transaction.version)

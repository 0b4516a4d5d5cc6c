"""Sign and check the tables of one folder of results (scanner.signing)."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import ScanFailed, TableError
from scanner.registry.signed_tables import NO_NUMBER, STRANGE, UNFOLLOWED, Carried, SignedTable
from scanner.signing.signature import (
    MODULUS,
    Digester,
    FileFacts,
    Signature,
    TransactionSum,
    facts_of_action,
    facts_of_files,
    id_of,
    signature_of,
)
from scanner.signing.tables_on_record import TablesOnRecord
from scanner.storage.data_files import SCHEMAS
from scanner.storage.delta import LoggedTransaction, files_of, load_table, log_read, logged_transactions, place_of
from scanner.storage.locations import table_uri

_VERDICTS = "verdicts"
"""The table that all results of scans have. At a new place it is asked first which results are there."""

_PUT_BACK = (
    "Do not trust its rows: restore the table from a matching copy, or scan its input again into another folder. If "
    "you made the change yourself, `brickscan sign` accepts it"
)

_IF_MOVED = "if you moved them, `brickscan sign` or the next commit records the new place"

_log = logging.getLogger(__name__)

_COMMITS_LOOKED_AT = 50
_NEVER_OURS = ("OPTIMIZE", "MERGE", "DELETE", "UPDATE", "RESTORE", "CREATE OR REPLACE TABLE")
"""Operations of Delta that brickscan never applies to a table of results."""


class Signer:
    """Sign and check the tables of one folder of results. It holds a secret, and refuses to be pickled.

    digester: of the audit secret.
    record: what is known about the tables of the folder.
    unsigned: names of tables that were read although they were never signed.
    off_record: names of tables that were read although the registry knows nothing of their results.
    """

    def __init__(self, results: str, registry: str, secret: bytes) -> None:
        self.digester = Digester(secret)
        self.record = TablesOnRecord(registry, results)
        self._results = results  # where tables are read: the record's location need not be written in the same way
        self.unsigned: set[str] = set()
        self.off_record: set[str] = set()
        self._results_seen: int | None = None  # id of the results here, at a place that is new to the registry
        # by table id: version and signature of a table that this process wrote or checked
        self._checked: dict[str, tuple[int, Signature]] = {}
        self._place_told = False
        self._own_ids: set[str] = set()  # of tables that this process made
        self._files_sums: dict[str, tuple[Counter[FileFacts], int]] = {}  # by table id: files, sum of HMACs

    def __reduce__(self) -> str:
        raise TypeError("objects with the audit secret are never pickled: open them where they are needed")

    def sign(
        self,
        table: DeltaTable,
        name: str,
        actions: Sequence[AddAction | RemoveAction],
        transactions: Sequence[Transaction],
        earlier_versions: Mapping[str, int],
        anew: Mapping[str, LoggedTransaction] | None = None,
        follows: int = NO_NUMBER,
    ) -> Signature:
        """Return the signature of a table after a commit.

        Args:
            table: as it is before the commit.
            name: of the table.
            actions: of the commit.
            transactions: of the commit.
            earlier_versions: versions of those of the transactions that the table already has.
            anew: transactions of the table. If given, the table is accepted as it is, whatever signature it carries.
            follows: with `anew`, the number of the signature that the new one follows.

        Raises:
            TableError: the table is not as it was signed, or was never signed.
            ScanFailed: its log cannot be read.
        """
        # 1. start from the signature before: the checked one, or with `anew` one of the table as it is
        self.record.refresh()
        earlier = self._signature_before(table, name) if anew is None else self._signature_by_consent(table, name, anew)

        # 2. replace its number and nonce
        later = earlier._replace(
            number=_next_number(max(earlier.number, self.record.last_number_of(earlier.results))),
            earlier=earlier.number if anew is None else follows,
            known=self.record.kept_number(earlier.results, name, id_of(table)),
            nonce=secrets.randbits(63),
        )
        mask, hmac_of_transaction = self.digester.mask, self.digester.hmac_of_transaction
        files = earlier.files + mask("files", table, name, later) - mask("files", table, name, earlier)
        done = earlier.transactions
        done += mask("transactions", table, name, later) - mask("transactions", table, name, earlier)

        # 3. add the HMACs of new files, and subtract those of removed files
        added = [action for action in actions if isinstance(action, AddAction)]
        files += sum(self.digester.hmac_of_file(table, name, facts_of_action(action)) for action in added)
        removed = {action.path for action in actions} - {action.path for action in added}
        if removed:
            gone = (facts for facts in facts_of_files(table) if facts[0] in removed)
            files -= sum(self.digester.hmac_of_file(table, name, facts) for facts in gone)

        # 4. do the same for transactions. Those that expire do not count
        for transaction in transactions:
            app_id = transaction.app_id
            if app_id in earlier_versions:
                done -= hmac_of_transaction(id_of(table), name, app_id, earlier_versions[app_id])
            if transaction.last_updated is None:
                done += hmac_of_transaction(id_of(table), name, app_id, transaction.version)
        return later._replace(files=files % MODULUS, transactions=done % MODULUS)

    def _put_on_record(self, results: int) -> None:
        """Put all tables on record whose results the registry does not know, because it could not be written before.

        Args:
            results: id of the results.

        Raises:
            TableError: a table is not as it was signed. Or the registry keeps signatures of other results, which means
                that it may have been restored from a copy older than these results.
            ScanFailed: the log of a table cannot be read.
        """
        if self.record.is_kept():
            raise TableError(
                f"results: registry {self.record.registry} has no record of those in {self.record.location}, so they "
                "may not be the newest. If they are the right ones, `brickscan sign` accepts them as they are"
            )
        entries = []
        for name, table in self._tables_here().items():
            signature = signature_of(table)
            if signature is not None and signature.results == results:
                self.is_signed(table, name, self.sum_transactions(table, name, logged_transactions(table)))
                entries.append(self._entry(table, name, signature, "signed"))
                self.off_record.discard(name)
        self.record.add(entries)
        with suppress(ScanFailed):  # reported at the end of the process
            self.record.keep()

    def _signature_before(self, table: DeltaTable, name: str) -> Signature:
        """Return the signature of a table, checked in this version.

        For an empty table of this process, make a first one.

        Raises:
            TableError: the table is not as it was signed, or was never signed.
        """
        transactions = None
        if self._checked_signature(table) is None:
            transactions = self.sum_transactions(table, name, logged_transactions(table))
            self.refuse_unsigned(table, name, transactions)
        signature = self._checked_signature(table)
        if signature is not None:  # it is of this version, but other processes may have committed or given up the table
            if (fault := self._fault(table, name, signature)) is not None:
                raise _changed(table, fault)
            if self.record.newest(signature.results, name, id_of(table)) is None:
                self._put_on_record(signature.results)
            return signature
        # somebody can make another table with that id, and a faster process may have written rows to it
        is_own = id_of(table) in self._own_ids and table.version() == 0
        if not is_own or transactions is None or transactions.count or files_of(table).height:
            raise unsigned(table)
        results = self.results_here()
        if results is None:
            results = secrets.randbits(63)
            if others := self.record.locations():
                where = self.record.location, ", ".join(others)
                _log.warning("results: started over in %s; the registry knows those of %s", *where)
        return self._signature_as_it_is(table, name, NO_NUMBER, results, {})

    def _signature_by_consent(
        self, table: DeltaTable, name: str, transactions: Mapping[str, LoggedTransaction]
    ) -> Signature:
        """Return the signature that a table would carry as it is, as part of the results that it belongs to."""
        joined, here, signature = self.joined_results(table), self.results_here(), signature_of(table)
        here = here if joined is None else joined
        named = signature.results if signature is not None and self.has_signed(signature) else None
        numbers = [self.record.last_number(each, name, id_of(table)) for each in (here, named) if each is not None]
        results = next((each for each in (here, named) if each is not None), secrets.randbits(63))
        return self._signature_as_it_is(table, name, max(numbers, default=NO_NUMBER), results, transactions)

    def _signature_as_it_is(
        self,
        table: DeltaTable,
        name: str,
        number: int,
        results: int,
        transactions: Mapping[str, LoggedTransaction],
    ) -> Signature:
        blank = Signature(number, NO_NUMBER, NO_NUMBER, self.digester.secret, results, 0, 0, 0)
        done = self._digest_of_transactions(table, name, blank, self.sum_transactions(table, name, transactions))
        return blank._replace(files=self._digest_of_files(table, name, blank), transactions=done)

    def commit_done(self, table: DeltaTable, name: str, signature: Signature, *, anew: bool = False) -> None:
        """Note that a commit of this process was signed.

        Args:
            table: as it was before the commit.
            name: of the table.
            signature: of the table after the commit.
            anew: whether all earlier signatures of a table at this place are given up.
        """
        self._checked[id_of(table)] = table.version() + 1, signature
        if anew:
            self._consent(table, name, signature)
        else:
            self.record.add([self._entry(table, name, signature, "signed")])
        self.record.keep_now_and_then()

    def take(self, table: DeltaTable, name: str, transactions: TransactionSum) -> bool:
        """Accept a table as it is, if its signature fits and is no older than any that it had. Return False otherwise.

        This puts results that the registry did not know on record without another signature. After False, a new
        signature is needed.
        """
        signature = signature_of(table)
        if (
            signature is None
            or not self.has_signed(signature)
            or self.results_here() not in (None, signature.results)
            or self.last_place() is not None  # they were moved here: a new signature records that they continue here
            or signature.number < self.record.last_number(signature.results, name, id_of(table))
            or signature.files != self._digest_of_files(table, name, signature)
            or signature.transactions != self._digest_of_transactions(table, name, signature, transactions)
        ):
            return False
        self._consent(table, name, signature)
        return True

    def _consent(self, table: DeltaTable, name: str, signature: Signature) -> None:
        others, earlier = self.record.named(signature.results, name), self.record.results_here()
        if earlier not in (None, signature.results):
            self._give_up(self.record.tables_of(earlier), "left")
        self._give_up([entry for entry in others if entry.table_id != id_of(table)], "given up")
        self.record.add([self._entry(table, name, signature, "signed anew")])
        self.off_record.discard(name)
        self.unsigned.discard(name)

    def _entry(
        self, table: DeltaTable, name: str, signature: Signature, event: Literal["signed", "signed anew"]
    ) -> SignedTable:
        place = self.record.location, name, id_of(table)
        return SignedTable(*place, signature.results, event, signature.number, signature.earlier)

    def table_made(self, table: DeltaTable) -> None:
        """Note that this process made a table. It may sign the table although it carries no signature."""
        self._own_ids.add(id_of(table))

    def is_new(self, table: DeltaTable, name: str) -> bool:
        """Return whether a table is empty and not on record. Another process is making it, or died while making it.

        False for a signed table whose results the registry does not know.
        """
        signature, here = signature_of(table), self.results_here()
        results = here if signature is None else signature.results
        if files_of(table).height or (results is not None and self.record.newest(results, name, id_of(table))):
            return False
        return signature is None or self.knows_results()

    def refuse_unsigned(self, table: DeltaTable, name: str, transactions: TransactionSum) -> None:
        """Raise TableError for a table that must not be used: as `is_signed`, and also if it was never signed."""
        if not self.is_signed(table, name, transactions):
            raise unsigned(table)

    def results_here(self) -> int | None:
        """Return the id of the results at this place, from the registry or from the tables here.

        None: none were signed.

        At a place that is new to the registry, the table of verdicts decides. If it is missing, another table does. The
        answer stays the same while this process runs, whatever is put there meanwhile.

        Raises:
            ScanFailed: the log of a table cannot be read.
        """
        if (known := self.record.results_here()) is not None or self._results_seen is not None:
            return self._results_seen if known is None else known
        for name, table, signature in self._signatures_here():
            if signature.files == self._digest_of_files(table, name, signature):
                self._results_seen = signature.results
                break
        return self._results_seen

    def _signatures_here(self) -> Iterator[tuple[str, DeltaTable, Signature]]:
        """Yield name, table and signature of each table here that was signed with this secret, verdicts first.

        Tables that cannot be read are skipped.
        """
        for name in sorted(SCHEMAS, key=lambda name: name != _VERDICTS):
            uri = table_uri(self._results, name)
            table, signature = None, None
            with suppress(ScanFailed), log_read(uri):
                if DeltaTable.is_deltatable(uri):
                    table = load_table(uri)
                    signature = signature_of(table)
            if table is not None and signature is not None and self.has_signed(signature):
                yield name, table, signature

    def _results_by_consent(self) -> int | None:
        """Return the id of the results here for a person who accepts them as they are. None: none were signed.

        Other results may have been moved to this place. So most of the tables decide here, and not the registry.
        """
        named = Counter(signature.results for _, _, signature in self._signatures_here())
        known = [results for results, _ in named.most_common() if self.record.tables_of(results)]
        return known[0] if known else self.results_here()

    def joined_results(self, table: DeltaTable) -> int | None:
        """Return the id of the results here, by `_results_by_consent`, if a table belongs to them.

        None: it does not.
        """
        signature, results = signature_of(table), self._results_by_consent()
        is_theirs = signature is not None and self.has_signed(signature) and signature.results == results
        return results if is_theirs else None

    def last_place(self) -> str | None:
        """Return the place where the results were last signed. None if the registry knows that they are here."""
        here = self.results_here() if self.record.results_here() is None else None
        return None if here is None or not self.record.tables_of(here) else self.record.place_of(here)

    def lie_here(self) -> bool:
        """Return whether the results were last signed here, as far as the registry knows."""
        here = self.results_here()
        return here is None or self.record.place_of(here) == self.record.location

    def knows_results(self) -> bool:
        """Return whether the registry or this process knows a signature of the results here."""
        here = self.results_here()
        return here is not None and bool(self.record.tables_of(here))

    def _tables_here(self) -> dict[str, DeltaTable]:
        """Return the tables at this place, by name, signed or not. Raises ScanFailed: a log cannot be read."""
        with log_read(self._results):
            uris = {name: table_uri(self._results, name) for name in SCHEMAS}
            return {name: load_table(uri) for name, uri in uris.items() if DeltaTable.is_deltatable(uri)}

    def signed_tables(self) -> list[str]:
        """Return the names of the signed tables of the results here, without those that were given up."""
        here = self.results_here()
        return [] if here is None else sorted({entry.table for entry in self.record.tables_of(here)})

    def missing_tables(self) -> list[str]:
        """Return the names of signed tables that are missing. Raises ScanFailed: the place of one is no folder."""
        with log_read(self._results):
            uris = {name: table_uri(self._results, name) for name in self.signed_tables()}
            return [name for name, uri in uris.items() if not DeltaTable.is_deltatable(uri)]

    def is_there(self, name: str) -> bool:
        """Look again for a table that was just not there, and return whether it exists now.

        Raises:
            TableError: the table was signed and is missing, and nobody gave it up.
        """
        self.record.refresh()
        if self._entries_here(name):
            self.record.read_again()
        uri = table_uri(self._results, name)
        there = DeltaTable.is_deltatable(uri)
        if not there and (entries := self._entries_here(name)):
            where = entries[0].location
            elsewhere = "" if where == self.record.location else f", last in {where}"
            raise TableError(
                f"results: table {uri}: was signed{elsewhere} but no longer exists. Check that its disk is mounted, "
                "and restore it from a copy. If you deleted it, run `brickscan sign` with the scan's configuration, "
                "which gives it up"
            )
        return bool(there)

    def _entries_here(self, name: str) -> list[SignedTable]:
        here = self.results_here()
        return [] if here is None else self.record.named(here, name)

    def give_up(self, name: str) -> None:
        """Note that a person agrees that a table is gone. It is then not reported as missing.

        The results may have left this place: all their tables are gone and the registry knows that they continued
        elsewhere, or other results are here now. Then their tables are recorded as "left" here and are not given up
        elsewhere.
        """
        is_empty = self.missing_tables() == self.signed_tables()
        has_left = (is_empty and not self.lie_here()) or self._results_by_consent() != self.results_here()
        self._give_up(self._entries_here(name), "left" if has_left else "given up")

    def give_up_results(self, results: int) -> None:
        """Note that a person agrees that results of this id exist nowhere any more."""
        self._give_up(self.record.tables_of(results), "given up")

    def _give_up(self, entries: Sequence[SignedTable], event: Literal["given up", "left"]) -> None:
        place = self.record.location
        for entry in entries:
            number = _next_number(max(entry.number, self.record.last_number_of(entry.results_id)))
            self.record.add([entry._replace(location=place, event=event, number=number, earlier=NO_NUMBER)])

    def has_signed(self, signature: Signature) -> bool:
        """Return whether a signature names this signer's secret. It may still not fit its table."""
        return bool(signature.secret == self.digester.secret)

    def is_signed(self, table: DeltaTable, name: str, transactions: TransactionSum | None = None) -> bool:
        """Return whether a table is as brickscan left it. False: it was never signed.

        Before a table is refused, the registry is read again, because another process may have just signed it.

        Args:
            table: as it was opened.
            name: of the table.
            transactions: sum over its log, which is checked too. None: transactions are not checked.

        Raises:
            TableError: the table is not as it was signed, was put back to an earlier state, or is another table.
        """
        try:
            return self._is_signed(table, name, transactions)
        except TableError:
            self.record.read_again()
            return self._is_signed(table, name, transactions)

    def _is_signed(self, table: DeltaTable, name: str, transactions: TransactionSum | None) -> bool:
        # 1. compare it with the record of its results
        signature, where = signature_of(table), f"results: table {place_of(table)}"
        fault = self._fault(table, name, signature)
        # an empty table of an unknown id is not at fault: another process is just making it
        if fault is not None and not (fault == STRANGE and _is_empty(table, transactions)):
            raise _changed(table, fault)

        # 2. without a signature it is either a table that was never signed, or empty
        if signature is None:
            return self._may_be_unsigned(table, name, transactions)
        if not self.has_signed(signature):
            raise TableError(
                f"{where}: was not signed under the audit secret of registry {self.record.registry}: name the "
                "registry of its scans, or restore its audit secret. If `brickscan keys audit-secret` was "
                "interrupted, run it again: it checks each table against the secret that it was signed under"
            )

        newest = self.record.newest(signature.results, name, id_of(table))
        self.unsigned.discard(name)
        (self.off_record.add if newest is None else self.off_record.discard)(name)

        # 3. compute its digests
        for wrong in self.wrong_digests(table, name, signature, transactions):
            raise TableError(f"{where}: {wrong}. {_PUT_BACK}")

        # 4. say once where the results were before: only their tables say that they are here now
        if not self._place_told and newest is not None and (place := self.last_place()) is not None:
            self._place_told = True
            _log.warning("results: those in %s were last signed at %s: %s", self.record.location, place, _IF_MOVED)
        if transactions is None:
            return True

        # 5. remember the result, and give the registry a signature that it lacks, as after a killed scan
        self._checked[id_of(table)] = table.version(), signature
        if newest is not None and newest.number < signature.number:
            self.record.adopt(self._entry(table, name, signature, "signed"))
        return True

    def wrong_digests(
        self, table: DeltaTable, name: str, signature: Signature, transactions: TransactionSum | None
    ) -> Iterator[str]:
        """Yield sentences on differences between a table and its signature by this secret.

        Arguments as for `is_signed`.
        """
        if signature.files != self._digest_of_files(table, name, signature):
            yield _what_changed(table)
        done = None if transactions is None else self._digest_of_transactions(table, name, signature, transactions)
        if done not in (None, signature.transactions):
            yield "its log has transactions that brickscan did not commit"

    def _fault(self, table: DeltaTable, name: str, signature: Signature | None) -> str | None:
        """Return why a table does not belong to its results, or is older than their newest state. None: no fault."""
        here, ours = self.results_here(), signature if signature is not None and self.has_signed(signature) else None
        if ours is None:
            return None if here is None else self.record.fault(here, name, id_of(table), None)
        if here not in (None, ours.results):
            last = self.record.place_of(ours.results) or "a place that the registry does not know"
            return f"it was signed as part of other results, last at {last}, and was put here later"
        carried = Carried(ours.number, ours.earlier, ours.known)
        fault = self.record.fault(ours.results, name, id_of(table), carried)
        if fault == UNFOLLOWED:
            newest = self.record.newest(ours.results, name, id_of(table))
            fault = None if newest is not None and self._follows(table, name, ours, newest.number) else fault
        return fault

    def _follows(self, table: DeltaTable, name: str, signature: Signature, newest: int) -> bool:
        """Return whether a signature follows the one of number `newest`, by the signatures in the table's log.

        A signature in the log is authentic if it fits the files of its version, because that digest covers its
        fields.
        """
        number, earlier = signature.number, signature.earlier
        for version in range(table.version() - 1, -1, -1):
            if number <= newest or earlier <= newest:
                return newest in (number, earlier)
            with log_read(place_of(table)):
                before = load_table(table.table_uri, version=version)
            left = signature_of(before)
            if left is None or not self.has_signed(left):
                return False
            if left.number == earlier and left.files == self._digest_of_files(before, name, left):
                number, earlier = left.number, left.earlier
            elif left.number != number:
                return False
        return newest in (number, earlier)

    def _may_be_unsigned(self, table: DeltaTable, name: str, transactions: TransactionSum | None) -> bool:
        """Return False for a table with files that was never signed, and True for an empty one, which shows nothing.

        Raises:
            TableError: it was signed before, or brickscan would have signed it.
        """
        was_signed = any(entry.table_id == id_of(table) for entry in self._entries_here(name))
        has_files = bool(files_of(table).height)
        is_used = has_files or (transactions is not None and transactions.count > 0)
        if was_signed or (is_used and (not has_files or self._has_signed_results(name))):
            raise TableError(
                f"results: table {place_of(table)}: it carries no signature, so brickscan did not write it. {_PUT_BACK}"
            )
        if has_files or id_of(table) not in self._own_ids:
            self.unsigned.add(name)
        return not has_files

    def _checked_signature(self, table: DeltaTable) -> Signature | None:
        """Return the signature of this version of a table, if this process wrote or checked it."""
        version, signature = self._checked.get(id_of(table), (-1, None))
        return signature if version == table.version() else None

    def _has_signed_results(self, name: str) -> bool:
        """Return whether a table belongs to signed results, by the registry or by another table."""
        others = (table for other, table in self._tables_here().items() if other != name)
        return self.results_here() is not None or any(signature_of(table) is not None for table in others)

    def refuse_unsigned_results(self) -> None:
        """Raise TableError if a table has files but was never signed: a new table beside it would be signed."""
        for table in self._tables_here().values():
            if signature_of(table) is None and files_of(table).height:
                raise unsigned(table)

    def sum_transactions(
        self, table: DeltaTable, name: str, transactions: Mapping[str, LoggedTransaction]
    ) -> TransactionSum:
        """Return the sum over transactions of a table."""
        total = TransactionSum(self.digester, table, name)
        for app_id, transaction in transactions.items():
            total.change(app_id, None, transaction)
        return total

    def _digest_of_files(self, table: DeltaTable, name: str, signature: Signature) -> int:
        files, (summed, value) = Counter(facts_of_files(table)), self._files_sums.get(id_of(table), (Counter(), 0))
        value += sum(self.digester.hmac_of_file(table, name, facts) for facts in (files - summed).elements())
        value -= sum(self.digester.hmac_of_file(table, name, facts) for facts in (summed - files).elements())
        self._files_sums[id_of(table)] = files, value % MODULUS
        return (self.digester.mask("files", table, name, signature) + value) % MODULUS

    def _digest_of_transactions(
        self, table: DeltaTable, name: str, signature: Signature, transactions: TransactionSum
    ) -> int:
        return (self.digester.mask("transactions", table, name, signature) + transactions.value) % MODULUS


def _is_empty(table: DeltaTable, transactions: TransactionSum | None) -> bool:
    """Return whether a table has no file, and no lasting transaction except those of its signature."""
    return not files_of(table).height and (transactions is None or transactions.value == 0)


def _changed(table: DeltaTable, fault: str) -> TableError:
    return TableError(f"results: table {place_of(table)}: {fault}. {_PUT_BACK}")


def unsigned(table: DeltaTable) -> TableError:
    """Return the error for reading from, or committing to, a table that was never signed."""
    return TableError(
        f"results: table {place_of(table)}: it is not signed, so anybody may have written it. If it is yours, for "
        "example from scans under a registry without an audit secret, `brickscan sign` accepts it as it is; otherwise "
        "name another folder"
    )


def _next_number(earlier: int) -> int:
    """Return a number that grows with time and that no other process draws: ms since 1970, and 20 random bits."""
    return max(earlier + 1, time.time_ns() // 1_000_000 << 20 | secrets.randbits(20))


def _what_changed(table: DeltaTable) -> str:
    """Return a sentence on who changed a table: another program, if the log says so, or somebody."""
    commits = list[dict[str, Any]]()
    with suppress(ScanFailed), log_read(place_of(table)):  # its history may have been made unreadable too
        commits = table.history(_COMMITS_LOOKED_AT)
    for commit in commits:
        if commit.get("operation") in _NEVER_OURS:
            return (
                f"its files are not those that brickscan committed, and its log has {commit['operation']} by "
                f"{commit.get('engineInfo', 'another program')}. If you ran that and nothing else changed, run "
                "`brickscan sign` with the scan's configuration, and use `brickscan compact` from then on"
            )
    return "its files are not those that brickscan committed, so somebody changed it"

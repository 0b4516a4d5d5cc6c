"""Signing the tables of one folder of results, and checking them (scanner.signing)."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import Refused, ScanFailed
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
from scanner.storage.delta import LoggedTransaction, files_of, log_read, logged_transactions, place_of
from scanner.storage.locations import table_uri

_VERDICTS = "verdicts"
"""The table that all results of scans have: by it, tables of one folder are told from others at a new place."""

_PUT_BACK = (
    "Believe nothing of it: put the table back from a copy that fits, or scan its input again into another folder. "
    "What you did yourself, `brickscan sign` takes as it is"
)

_log = logging.getLogger(__name__)

_COMMITS_LOOKED_AT = 50
_NEVER_OURS = ("OPTIMIZE", "MERGE", "DELETE", "UPDATE", "RESTORE", "CREATE OR REPLACE TABLE")
"""Operations of Delta that brickscan does to no table of results."""


class Signer:
    """Signs and checks the tables of one folder of results. It holds a secret, and refuses to be pickled.

    digester: of the audit secret.
    record: what is known of the tables of the folder.
    unsigned: names of tables that were read and that nobody ever signed.
    off_record: names of tables that were read, and that the registry does not know at this place.
    newer_elsewhere: tables that were read, of which the registry knows a newer state: where, by their names.
    """

    def __init__(self, results: str, registry: str, secret: bytes) -> None:
        self.digester = Digester(secret)
        self.record = TablesOnRecord(registry, results)
        self._place = self.digester.number_of_place(self.record.location)
        self.unsigned: set[str] = set()
        self.off_record: set[str] = set()
        self.newer_elsewhere: dict[str, str] = {}
        self._checked: dict[str, tuple[int, Signature]] = {}  # by a table's id: version and signature, left or checked
        self._own_ids: set[str] = set()  # of the tables that this process made
        self._files_sums: dict[str, tuple[Counter[FileFacts], int]] = {}  # by a table's id: files, and their sum

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
        follows: int = NO_NUMBER,
    ) -> Signature:
        """Return the signature of a table after a commit.

        Args:
            table: as it is before the commit.
            name: of the table.
            actions: of the commit.
            transactions: of the commit.
            earlier_versions: of those of the transactions that the table has.
            anew: transactions of the table, which is taken as it is, whatever signature it carries.
            follows: with `anew`, number of the signature that the new one follows.

        Raises:
            Refused: it is not as it was signed, or nobody signed it.
            ScanFailed: its log cannot be read.
        """
        # 1. take the signature of what is there: the checked one, or one of the table as it is
        self.record.refresh()
        if anew is None and not self.record.all():
            self._put_on_record()
        earlier = self._signature_before(table, name) if anew is None else self._signature_by_consent(table, name, anew)

        if anew is None and (where := self.newer_elsewhere.get(name)) is not None:  # the note ends with this commit
            _log.warning("results: table %s is older than in %s, and goes on", place_of(table), where)

        # 2. exchange number and nonce for new ones, and say where it is signed
        later = earlier._replace(
            number=_next_number(earlier.number),
            earlier=earlier.number if anew is None else follows,
            place=self._place,
            known=self.record.kept_number(name, id_of(table)),
            nonce=secrets.randbits(63),
        )
        mask, hmac_of_transaction = self.digester.mask, self.digester.hmac_of_transaction
        files = earlier.files + mask("files", table, name, later) - mask("files", table, name, earlier)
        done = earlier.transactions
        done += mask("transactions", table, name, later) - mask("transactions", table, name, earlier)

        # 3. add the files that come, and subtract those that go
        added = [action for action in actions if isinstance(action, AddAction)]
        files += sum(self.digester.hmac_of_file(table, name, facts_of_action(action)) for action in added)
        removed = {action.path for action in actions} - {action.path for action in added}
        if removed:
            gone = (facts for facts in facts_of_files(table) if facts[0] in removed)
            files -= sum(self.digester.hmac_of_file(table, name, facts) for facts in gone)

        # 4. likewise with transactions, of which those that expire are left out
        for transaction in transactions:
            app_id = transaction.app_id
            if app_id in earlier_versions:
                done -= hmac_of_transaction(id_of(table), name, app_id, earlier_versions[app_id])
            if transaction.last_updated is None:
                done += hmac_of_transaction(id_of(table), name, app_id, transaction.version)
        return later._replace(files=files % MODULUS, transactions=done % MODULUS)

    def _put_on_record(self) -> None:
        """Put all tables on record at a place that the registry does not know, as of results that were moved.

        Raises:
            Refused: one is not as it was signed, older than it was at another place, or left behind there.
            ScanFailed: the log of one cannot be read.
        """
        entries = []
        for name in SCHEMAS:
            uri = table_uri(self.record.location, name)
            table = DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
            signature = None if table is None else signature_of(table)
            if table is not None and signature is not None:
                self.is_signed(table, name, self.sum_transactions(table, name, logged_transactions(table)))
                entry = self._entry(table, name, signature, "signed")
                if (fault := self.fault_of_moved(table, name, signature)) is not None:
                    raise Refused(
                        f"results: table {place_of(table)}: {fault}. Name the right one, or take this one by "
                        "`brickscan sign`"
                    )
                entries.append(entry)
                self.off_record.discard(name)
        here = {entry.table for entry in entries}
        for entry in self.record.of_results({entry.results_id for entry in entries}):
            if entry.table not in here:
                raise self._left_behind(entry)
        if entries:
            _log.warning("results: tables of %s are put on record as they are: they were moved", self.record.location)
        elif others := self.record.locations():
            where = self.record.location, ", ".join(others)
            _log.warning("results: begun anew in %s; the registry knows those of %s", *where)
        self.record.add(entries)
        with suppress(ScanFailed):  # the end of the process says so
            self.record.keep()

    def fault_of_moved(self, table: DeltaTable, name: str, signature: Signature) -> str | None:
        """Return why a table at a place that the registry does not know is not the one of its results; None: it may be.

        Args:
            table: whose signature fits it.
            name: of the table.
            signature: that it carries.
        """
        carried = Carried(signature.number, signature.earlier, signature.known)
        fault = self.record.fault_of_moved(self._entry(table, name, signature, "signed"), carried)
        newest = self.record.newest_anywhere(name, id_of(table))
        is_followed = newest is not None and self._follows(table, name, signature, newest.number)
        return None if fault == UNFOLLOWED and is_followed else fault

    def refuse_left_behind(self) -> None:
        """Raise Refused where results were moved here and one of their tables was not: it would be made anew, empty."""
        for entry in self.left_behind().values():
            raise self._left_behind(entry)

    def _left_behind(self, entry: SignedTable) -> Refused:
        return Refused(
            f"results: table {table_uri(self.record.location, entry.table)}: was signed at {entry.location}, and did "
            "not come along with the others. Put it here too, or go on without it by `brickscan sign`"
        )

    def left_behind(self) -> dict[str, SignedTable]:
        """Return the tables, by name, that results had at another place, and lack here; none where the place is known.

        Another table in the place of one is none of the results.

        Raises:
            ScanFailed: the log of a table cannot be read.
        """
        if self.record.all():
            return {}
        with log_read(self.record.location):
            uris = {name: table_uri(self.record.location, name) for name in SCHEMAS}
            here = {name: DeltaTable(uri) for name, uri in uris.items() if DeltaTable.is_deltatable(uri)}
        signatures = [signature for table in here.values() if (signature := signature_of(table)) is not None]
        ids = {signature.results for signature in signatures if self.has_signed(signature)}
        if not ids:  # nothing here says which results these are, as where they are begun
            return {}
        here_ids = {name: id_of(table) for name, table in here.items()}
        entries = self.record.of_results(ids)
        return {entry.table: entry for entry in entries if here_ids.get(entry.table) != entry.table_id}

    def _signature_before(self, table: DeltaTable, name: str) -> Signature:
        """Return the signature of a table, checked in this version, or of an empty one that this process made.

        Raises:
            Refused: it is not as it was signed, or nobody signed it.
        """
        transactions = None
        if self._checked_signature(table) is None:
            transactions = self.sum_transactions(table, name, logged_transactions(table))
            self.refuse_unsigned(table, name, transactions)
        signature = self._checked_signature(table)
        if signature is not None:  # of this version; others may have committed, or given it up, since
            if (fault := self._fault(table, name, signature)) is not None:
                raise _changed(table, fault)
            return signature
        # who chose its id may have another table of that id, and who was faster than we may have put rows into it
        is_own = id_of(table) in self._own_ids and table.version() == 0
        if not is_own or transactions is None or transactions.count or files_of(table).height:
            raise unsigned(table)
        results_id = max(self._results_here(), default=secrets.randbits(63))
        return self._signature_as_it_is(table, name, NO_NUMBER, results_id, {})

    def _signature_by_consent(
        self, table: DeltaTable, name: str, transactions: Mapping[str, LoggedTransaction]
    ) -> Signature:
        """Return the signature that a table would carry as it is, of the results to which it belongs."""
        here, signature = self._results_here(), signature_of(table)
        named = {signature.results} if signature is not None and self.has_signed(signature) else set()
        results_id = max(here & named or here or named, default=secrets.randbits(63))
        newest = self.record.newest_anywhere(name, id_of(table))
        number = max(self.record.last_number(name, id_of(table)), NO_NUMBER if newest is None else newest.number)
        return self._signature_as_it_is(table, name, number, results_id, transactions)

    def _signature_as_it_is(
        self,
        table: DeltaTable,
        name: str,
        number: int,
        results_id: int,
        transactions: Mapping[str, LoggedTransaction],
    ) -> Signature:
        blank = Signature(number, NO_NUMBER, self._place, NO_NUMBER, self.digester.secret, results_id, 0, 0, 0)
        done = self._digest_of_transactions(table, name, blank, self.sum_transactions(table, name, transactions))
        return blank._replace(files=self._digest_of_files(table, name, blank), transactions=done)

    def commit_done(self, table: DeltaTable, name: str, signature: Signature, *, anew: bool = False) -> None:
        """Take in that a commit of this process was signed.

        Args:
            table: as it was before the commit.
            name: of the table.
            signature: of the table after it.
            anew: whatever was signed there before is given up.
        """
        self._checked[id_of(table)] = table.version() + 1, signature
        self.newer_elsewhere.pop(name, None)
        if anew:
            self._consent(table, name, signature)
        else:
            self.record.add([self._entry(table, name, signature, "signed")])
        self.record.keep_now_and_then()

    def take(self, table: DeltaTable, name: str, transactions: TransactionSum) -> bool:
        """Take a table as it is by consent, if its signature fits it and is no older than any of its place or others.

        So results that were moved, or put back, are on record without another signature. Return False: it needs one.
        """
        signature = signature_of(table)
        if (
            signature is None
            or not self.has_signed(signature)
            or signature.number < self.record.last_number(name, id_of(table))
            or self.record.newer_elsewhere(name, id_of(table), signature.number) is not None
            or signature.files != self._digest_of_files(table, name, signature)
            or signature.transactions != self._digest_of_transactions(table, name, signature, transactions)
        ):
            return False
        self._consent(table, name, signature)
        return True

    def _consent(self, table: DeltaTable, name: str, signature: Signature) -> None:
        self._give_up([entry for entry in self.record.named(name) if entry.table_id != id_of(table)])
        self.record.add([self._entry(table, name, signature, "signed anew")])
        self.off_record.discard(name)
        self.unsigned.discard(name)
        self.newer_elsewhere.pop(name, None)

    def _entry(
        self, table: DeltaTable, name: str, signature: Signature, event: Literal["signed", "signed anew"]
    ) -> SignedTable:
        place = self.record.location, name, id_of(table)
        return SignedTable(*place, signature.results, event, signature.number, signature.earlier)

    def table_made(self, table: DeltaTable) -> None:
        """Take in that this process made a table, and may sign it though it carries no signature."""
        self._own_ids.add(id_of(table))

    def is_new(self, table: DeltaTable, name: str) -> bool:
        """Return whether a table is empty, and not on record here: another process makes it now, or died of that.

        At a place that the registry does not know, one that is signed may be of results that were moved.
        """
        if files_of(table).height or self.record.newest(name, id_of(table)) is not None:
            return False
        return signature_of(table) is None or self.record.knows_place()

    def refuse_unsigned(self, table: DeltaTable, name: str, transactions: TransactionSum) -> None:
        """Raise Refused for a table that nobody may go by or commit to: as `is_signed`, and where nobody signed it."""
        if not self.is_signed(table, name, transactions):
            raise unsigned(table)

    def signed_tables(self) -> list[str]:
        """Return the names of tables that were signed, and that nobody gave up."""
        return sorted({entry.table for entry in self.record.all()})

    def missing_tables(self) -> list[str]:
        """Return the names of tables that were signed, and are gone. Raises ScanFailed: the folder of one is none."""
        with log_read(self.record.location):
            uris = {name: table_uri(self.record.location, name) for name in self.signed_tables()}
            return [name for name, uri in uris.items() if not DeltaTable.is_deltatable(uri)]

    def is_there(self, name: str) -> bool:
        """Return whether a table is there that was not a moment ago: it may have been made, or taken away, meanwhile.

        Raises:
            Refused: it is gone, it was signed, and nobody gave it up.
        """
        self.record.refresh()
        if self.record.named(name):
            self.record.read_again()
        uri = table_uri(self.record.location, name)
        there = DeltaTable.is_deltatable(uri)
        if not there and self.record.named(name):
            raise Refused(
                f"results: table {uri}: was signed, and is gone. Look whether all of "
                "its disk is there, and put it back from a copy. If you deleted it, run `brickscan sign` with the "
                "scan's configuration, which gives it up"
            )
        if not there and not self.record.all():
            for entry in (entry for entry in self.left_behind().values() if entry.table == name):
                raise self._left_behind(entry)
        return bool(there)

    def give_up(self, name: str) -> None:
        """Take in that a table is gone by consent, and not missed."""
        self._give_up(self.record.named(name))

    def _give_up(self, entries: Sequence[SignedTable]) -> None:
        event: Literal["given up"] = "given up"
        self.record.add([
            entry._replace(event=event, number=_next_number(entry.number), earlier=NO_NUMBER) for entry in entries
        ])  # fmt: skip

    def has_signed(self, signature: Signature) -> bool:
        """Return whether a signature names this signer's secret, whether it fits a table or not."""
        return bool(signature.secret == self.digester.secret)

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
            self.record.read_again()
            return self._is_signed(table, name, transactions)

    def _is_signed(self, table: DeltaTable, name: str, transactions: TransactionSum | None) -> bool:
        # 1. hold it against what is on record of its place
        signature, where = signature_of(table), f"results: table {place_of(table)}"
        fault = self._fault(table, name, signature)
        if fault is not None and not (fault == STRANGE and _is_empty(table, transactions)):  # which is made just now
            raise _changed(table, fault)

        # 2. without a signature it is one that nobody ever signed, or empty
        if signature is None:
            return self._may_be_unsigned(table, name, transactions)
        if not self.has_signed(signature):
            raise Refused(
                f"{where}: was signed under another audit secret than that of registry {self.record.registry}: name "
                "the registry of its scans, or put its audit secret back. If `brickscan keys audit-secret` was "
                "interrupted, call it again: it holds each table against the secret that it was signed under"
            )

        newest = self.record.newest(name, id_of(table))
        self.unsigned.discard(name)
        (self.off_record.add if newest is None else self.off_record.discard)(name)
        newer = self.record.newer_elsewhere(name, id_of(table), signature.number)
        self.newer_elsewhere.pop(name, None)
        if newer is not None:
            self.newer_elsewhere[name] = newer.location

        # 3. compute its digests
        for wrong in self.wrong_digests(table, name, signature, transactions):
            raise Refused(f"{where}: {wrong}. {_PUT_BACK}")
        if transactions is None:
            return True

        # 4. remember it, and have the registry keep what it lacks, as of a scan that was killed
        self._checked[id_of(table)] = table.version(), signature
        if newest is not None and newest.number < signature.number:
            self.record.adopt(self._entry(table, name, signature, "signed"))
        return True

    def wrong_digests(
        self, table: DeltaTable, name: str, signature: Signature, transactions: TransactionSum | None
    ) -> Iterator[str]:
        """Yield what a signature of this secret says otherwise of a table than it is. Arguments as for `is_signed`."""
        if signature.files != self._digest_of_files(table, name, signature):
            yield _what_changed(table)
        done = None if transactions is None else self._digest_of_transactions(table, name, signature, transactions)
        if done not in (None, signature.transactions):
            yield "its log has other transactions than brickscan committed"

    def _fault(self, table: DeltaTable, name: str, signature: Signature | None) -> str | None:
        """Return why a table is not the one of its place, or older than its newest state; None: it may be."""
        ours = signature if signature is not None and self.has_signed(signature) else None
        fault = self.record.fault(name, id_of(table), None if ours is None else self._carried(ours))
        if fault == UNFOLLOWED and ours is not None:
            last = self.record.newest(name, id_of(table))
            fault = None if last is not None and self._follows(table, name, ours, last.number) else fault
        if fault in (None, STRANGE) and ours is not None:
            newest = self.record.newest(name, id_of(table))
            here = self._results_here() if newest is None else {newest.results_id}
            if here and ours.results not in here:
                return "it was signed among other results, and put here"
        return fault

    def _follows(self, table: DeltaTable, name: str, signature: Signature, newest: int) -> bool:
        """Return whether a signature follows that of a number, by the signatures that the table's log has.

        They are authentic where they fit the files of their versions: their fields are masked into that digest.
        """
        number, earlier = signature.number, signature.earlier
        for version in range(table.version() - 1, -1, -1):
            if number <= newest or earlier <= newest:
                return newest in (number, earlier)
            with log_read(place_of(table)):
                before = DeltaTable(table.table_uri, version=version)
            left = signature_of(before)
            if left is None or not self.has_signed(left):
                return False
            if left.number == earlier and left.files == self._digest_of_files(before, name, left):
                number, earlier = left.number, left.earlier
            elif left.number != number:
                return False
        return newest in (number, earlier)

    def _carried(self, signature: Signature) -> Carried:
        known = signature.known if signature.place == self._place else None
        return Carried(signature.number, signature.earlier, known)

    def _may_be_unsigned(self, table: DeltaTable, name: str, transactions: TransactionSum | None) -> bool:
        """Return False for a table with files that nobody ever signed, True for an empty one, which shows nothing.

        Raises:
            Refused: it was signed, or brickscan would have signed it.
        """
        was_signed, has_files = self.record.newest(name, id_of(table)) is not None, bool(files_of(table).height)
        is_used = has_files or (transactions is not None and transactions.count > 0)
        if was_signed or (is_used and (not has_files or self._has_signed_results(name))):
            raise Refused(
                f"results: table {place_of(table)}: it carries no signature, so brickscan did not write it. {_PUT_BACK}"
            )
        if has_files or id_of(table) not in self._own_ids:
            self.unsigned.add(name)
        return not has_files

    def _checked_signature(self, table: DeltaTable) -> Signature | None:
        """Return the signature of a table as this process left it, or checked it, in this version."""
        version, signature = self._checked.get(id_of(table), (-1, None))
        return signature if version == table.version() else None

    def _results_here(self) -> set[int]:
        """Return the id of the results at this place, by the registry, or by the verdicts; empty: none were signed."""
        known = {entry.results_id for entry in self.record.all()}
        verdicts = None if known else self._verdicts()
        signature = None if verdicts is None else signature_of(verdicts)
        if verdicts is None or signature is None or not self.has_signed(signature):
            return known
        return (
            {signature.results} if signature.files == self._digest_of_files(verdicts, _VERDICTS, signature) else set()
        )

    def _has_signed_results(self, name: str) -> bool:
        """Return whether the results are signed to which a table belongs: the registry or another table says so."""
        uris = (table_uri(self.record.location, other) for other in SCHEMAS if other != name)
        return bool(self.record.all()) or any(
            signature_of(DeltaTable(uri)) is not None for uri in uris if DeltaTable.is_deltatable(uri)
        )

    def refuse_unsigned_results(self) -> None:
        """Raise Refused where a table has files and nobody signed it: a new one beside it would be signed."""
        for uri in (table_uri(self.record.location, name) for name in SCHEMAS):
            table = DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
            if table is not None and signature_of(table) is None and files_of(table).height:
                raise unsigned(table)

    def _verdicts(self) -> DeltaTable | None:
        uri = table_uri(self.record.location, _VERDICTS)
        return DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None

    def sum_transactions(
        self, table: DeltaTable, name: str, transactions: Mapping[str, LoggedTransaction]
    ) -> TransactionSum:
        """Return the sum of transactions of a table."""
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
    """Return whether a table has no file, and no transaction that does not expire but those of its signature."""
    return not files_of(table).height and (transactions is None or transactions.value == 0)


def _changed(table: DeltaTable, fault: str) -> Refused:
    return Refused(f"results: table {place_of(table)}: {fault}. {_PUT_BACK}")


def unsigned(table: DeltaTable) -> Refused:
    """Return the refusal to go by a table, or to commit to it, that nobody signed."""
    return Refused(
        f"results: table {place_of(table)}: nobody signed it, so anybody may have written it. If it is yours, as of "
        "scans under a registry that had no audit secret, `brickscan sign` takes it as it is; else name another folder"
    )


def _next_number(earlier: int) -> int:
    """Return a number that grows with time, and that no other process draws: milliseconds since 1970, and 20 bits."""
    return max(earlier + 1, time.time_ns() // 1_000_000 << 20 | secrets.randbits(20))


def _what_changed(table: DeltaTable) -> str:
    """Say that another program changed a table, where its log says so, or that somebody did."""
    commits = list[dict[str, Any]]()
    with suppress(ScanFailed), log_read(place_of(table)):  # whoever changed it may have made its history unreadable
        commits = table.history(_COMMITS_LOOKED_AT)
    for commit in commits:
        if commit.get("operation") in _NEVER_OURS:
            return (
                f"its files are not those that brickscan committed, and its log has {commit['operation']} by "
                f"{commit.get('engineInfo', 'another program')}. If you ran that, and nothing else was changed, run "
                "`brickscan sign` with the scan's configuration, and use `brickscan compact` from then on"
            )
    return "its files are not those that brickscan committed, so somebody changed it"

"""What the registry and this process know of the tables at one place: signed and given up there."""

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from scanner.errors import ScanFailed
from scanner.registry.signed_tables import (
    Carried,
    SignedTable,
    append_signed_tables,
    keeps_signatures,
    read_signed_tables,
)
from scanner.storage.locations import locations_on_the_way

_SECONDS_OF_A_QUERY = 1.0
"""Seconds for which the registry is not asked again."""

_SECONDS_UNKEPT = 60.0
"""Seconds after which the registry keeps what it lacks, which is done in any case when a process ends."""


class TablesOnRecord:
    """The record of one place: what the registry keeps, and what it is to keep of this process. Threads may share it.

    location: folder or URI of the results, links followed, unless the registry knows tables at the path as it is named,
        or with links followed in the folders above it: a folder that became a link stays the place it was, so that
        whoever exchanged it does not make it a new one.

    Args:
        registry: folder or URI.
        results: folder or URI of the results.
    """

    def __init__(self, registry: str, results: str) -> None:
        self.registry = registry
        self._lock = threading.Lock()
        self._unkept: list[SignedTable] = []  # of this process: the registry lacks them
        self._adopted: dict[str, SignedTable] = {}  # by a table's id: newest of other processes that it lacks
        self._kept_at = time.monotonic()
        self._was_read = False  # whether the registry kept any signature when it was last read
        self.read_again()
        places = list(locations_on_the_way(results))
        self.location = next(filter(self._signed_tables.knows, places), places[-1])

    def all(self) -> list[SignedTable]:
        """Return the last entry of each table that is here, and was not given up."""
        return self._signed_tables.of(self.location)

    def named(self, name: str) -> list[SignedTable]:
        """Return the last entry of each table of a name that was not given up; most often there is one."""
        return self._signed_tables.at(self.location, name)

    def newest(self, name: str, table_id: str) -> SignedTable | None:
        """Return the last entry of a table; None: it was never here, or it was given up."""
        return next((entry for entry in self.named(name) if entry.table_id == table_id), None)

    def newest_anywhere(self, name: str, table_id: str) -> SignedTable | None:
        """Return the newest signature of a table, wherever it lay; None: it was never signed."""
        return self._signed_tables.newest_anywhere(name, table_id)

    def newer_elsewhere(self, name: str, table_id: str, number: int) -> SignedTable | None:
        """Return the newest signature of a table at another place, unless it was given up there or is no newer."""
        return self._signed_tables.newer_elsewhere(self.location, name, table_id, number)

    def fault_of_moved(self, moved: SignedTable, carried: Carried) -> str | None:
        """Return why a moved table is not the one that its results had, as of SignedTables.fault_of_moved."""
        return self._signed_tables.fault_of_moved(moved, carried)

    def of_results(self, results_ids: Collection[int]) -> list[SignedTable]:
        """Return what last happened to each table of results, wherever it lay, unless it was given up."""
        return self._signed_tables.of_results(results_ids)

    def is_kept(self) -> bool:
        """Return whether the registry keeps signatures, of this place or another: else it cannot be written."""
        return bool(self.locations())

    def locations(self) -> list[str]:
        """Return the places of all results that were signed and not given up, in order."""
        return self._signed_tables.locations()

    def last_number(self, name: str, table_id: str) -> int:
        """Return the largest number that a table ever had here; NO_NUMBER: it was never here."""
        return self._signed_tables.last_number(self.location, name, table_id)

    def kept_number(self, name: str, table_id: str) -> int:
        """Return the number of the last signature that the registry keeps of a table here; NO_NUMBER: of none."""
        return self._signed_tables.kept_number(self.location, name, table_id)

    def knows_place(self) -> bool:
        """Return whether the registry keeps a signature of a table here that was not given up."""
        return self._signed_tables.knows(self.location)

    def fault(self, name: str, table_id: str, carried: Carried | None) -> str | None:
        """Return why a table is not as it was last left here, as of SignedTables.fault; None: it may be."""
        return self._signed_tables.fault(self.location, name, table_id, carried)

    def add(self, entries: Sequence[SignedTable]) -> None:
        """Take in what happened here. The registry keeps it later."""
        with self._lock:
            self._signed_tables.add(entries)
            self._unkept += entries

    def adopt(self, entry: SignedTable) -> None:
        """Take in a signature of another process, such as one that was killed, that nothing here lists yet."""
        with self._lock:
            self._signed_tables.add([entry])
            self._adopted[entry.table_id] = entry

    def refresh(self) -> None:
        """Read again what the registry keeps, unless that was done a moment ago; call it before a table is opened."""
        self.keep_now_and_then()
        if time.monotonic() - self._read_at > _SECONDS_OF_A_QUERY:
            self.read_again()

    def read_again(self) -> None:
        """Read again what the registry keeps. Raises ScanFailed: it is gone, as where a disk is not mounted."""
        signed_tables, self._read_at = read_signed_tables(self.registry), time.monotonic()
        self._refuse_gone(is_there=not signed_tables.is_empty())
        self._was_read = not signed_tables.is_empty()
        with self._lock:
            signed_tables.add([*self._adopted.values(), *self._unkept])
            self._signed_tables = signed_tables

    def _refuse_gone(self, *, is_there: bool) -> None:
        if self._was_read and not is_there:
            raise ScanFailed(
                f"registry: the signatures that {self.registry} kept are gone: look whether its disk is there"
            )

    def keep_now_and_then(self) -> None:
        """Have the registry keep what it lacks, unless that was done a moment ago, or it cannot be written."""
        if self._unkept and time.monotonic() - self._kept_at > _SECONDS_UNKEPT:
            with suppress(ScanFailed):  # the end of the process says so
                self.keep()

    def keep(self) -> None:
        """Have the registry keep what it lacks. Raises ScanFailed: it cannot be written, or is gone."""
        with self._lock:
            entries, self._kept_at = [*self._adopted.values(), *self._unkept], time.monotonic()
        if entries:
            self._refuse_gone(is_there=keeps_signatures(self.registry))  # else a record is begun in its place
            append_signed_tables(self.registry, entries)
            with self._lock:
                kept = {*entries}
                self._unkept = [entry for entry in self._unkept if entry not in kept]
                self._adopted = {key: entry for key, entry in self._adopted.items() if entry not in kept}
            self.read_again()

"""Keep what the registry and this process know of the signed tables at one place."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from scanner.errors import ScanFailed
from scanner.registry.signed_tables import (
    Carried,
    SignedTable,
    append_signed_tables,
    keeps_signatures,
    read_signed_tables,
)
from scanner.storage.locations import named_location

_SECONDS_OF_A_QUERY = 1.0
"""Seconds for which the registry is not read again."""

_SECONDS_UNKEPT = 60.0
"""Seconds after which the registry is given the signatures that it lacks. The end of a process does this too."""


class TablesOnRecord:
    """The record of results: signatures that the registry has, and those of this process that it does not have yet.

    Threads may share it.

    location: folder or URI of the results as it is named, without following links. Replacing a folder by a link does
        not make it another place.

    Args:
        registry: folder or URI.
        results: folder or URI of the results.
    """

    def __init__(self, registry: str, results: str) -> None:
        self.registry = registry
        self.location = named_location(results)
        self._lock = threading.Lock()
        self._unkept: list[SignedTable] = []  # of this process, not yet in the registry
        self._adopted: dict[str, SignedTable] = {}  # by table id: newest of other processes, not in the registry
        self._kept_at = time.monotonic()
        self._was_read = False  # whether the registry kept any signature when it was last read
        self.read_again()

    def results_here(self) -> int | None:
        """Return the id of the results that were last signed here. None: they left, were given up, or never existed."""
        return self._signed_tables.results_at(self.location)

    def place_of(self, results_id: int) -> str | None:
        """Return the place where results were last signed. None: nothing is known of them."""
        return self._signed_tables.place_of(results_id)

    def tables_of(self, results_id: int) -> list[SignedTable]:
        """Return the last entry of each table of results that was not given up."""
        return self._signed_tables.tables_of(results_id)

    def named(self, results_id: int, name: str) -> list[SignedTable]:
        """Return the last entries of all tables of a name that were not given up. There is rarely more than one."""
        return self._signed_tables.at(results_id, name)

    def newest(self, results_id: int, name: str, table_id: str) -> SignedTable | None:
        """Return the last entry of a table. None: these results never had it, or it was given up."""
        return next((entry for entry in self.named(results_id, name) if entry.table_id == table_id), None)

    def is_kept(self) -> bool:
        """Return whether the registry keeps any signatures. If not, it cannot be written."""
        return self._was_read

    def locations(self) -> list[str]:
        """Return the places of all results that were signed and not given up, in order."""
        return sorted({*self._signed_tables.places().values()})

    def last_number(self, results_id: int, name: str, table_id: str) -> int:
        """Return the largest number that a table ever had in results. NO_NUMBER: it never belonged to them."""
        return self._signed_tables.last_number(results_id, name, table_id)

    def last_number_of(self, results_id: int) -> int:
        """Return the largest number of results, at any place, or of other results here. NO_NUMBER: there is none."""
        return self._signed_tables.last_number_of(results_id, self.location)

    def kept_number(self, results_id: int, name: str, table_id: str) -> int:
        """Return the number of the last signature that the registry keeps of a table. NO_NUMBER: it keeps none."""
        return self._signed_tables.kept_number(results_id, name, table_id)

    def fault(self, results_id: int, name: str, table_id: str, carried: Carried | None) -> str | None:
        """Return why a table is not the last known one of its results (SignedTables.fault). None: it may be."""
        return self._signed_tables.fault(results_id, name, table_id, carried)

    def add(self, entries: Sequence[SignedTable]) -> None:
        """Add events of this process. The registry gets them later."""
        with self._lock:
            self._signed_tables.add(entries)
            self._unkept += entries

    def adopt(self, entry: SignedTable) -> None:
        """Add a signature of another process that is not listed yet, for example because the process was killed."""
        with self._lock:
            self._signed_tables.add([entry])
            self._adopted[entry.table_id] = entry

    def refresh(self) -> None:
        """Read the registry's record again, unless that was just done. Call it before opening a table."""
        self.keep_now_and_then()
        if time.monotonic() - self._read_at > _SECONDS_OF_A_QUERY:
            self.read_again()

    def read_again(self) -> None:
        """Read the registry's record again.

        Raises ScanFailed: it is gone, for example because a disk is not mounted.
        """
        signed_tables, self._read_at = read_signed_tables(self.registry), time.monotonic()
        self._refuse_gone(is_there=not signed_tables.is_empty())
        self._was_read = not signed_tables.is_empty()
        with self._lock:
            signed_tables.add([*self._adopted.values(), *self._unkept])
            self._signed_tables = signed_tables

    def _refuse_gone(self, *, is_there: bool) -> None:
        if self._was_read and not is_there:
            raise ScanFailed(
                f"registry: the signatures that {self.registry} kept are missing: check that its disk is mounted"
            )

    def keep_now_and_then(self) -> None:
        """Give the registry the signatures that it lacks, unless that was just done or it cannot be written."""
        if self._unkept and time.monotonic() - self._kept_at > _SECONDS_UNKEPT:
            with suppress(ScanFailed):  # reported at the end of the process
                self.keep()

    def keep(self) -> None:
        """Give the registry the signatures that it lacks. Raises ScanFailed: it cannot be written, or is gone."""
        with self._lock:
            entries, self._kept_at = [*self._adopted.values(), *self._unkept], time.monotonic()
        if entries:
            # without this check, a new record would begin in place of one that is gone
            self._refuse_gone(is_there=keeps_signatures(self.registry))
            append_signed_tables(self.registry, entries)
            with self._lock:
                kept = {*entries}
                self._unkept = [entry for entry in self._unkept if entry not in kept]
                self._adopted = {key: entry for key, entry in self._adopted.items() if entry not in kept}
            self.read_again()

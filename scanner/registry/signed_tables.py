"""Keep signatures of tables of results with the registry, out of reach of people who can only write the results.

They could put an older state of a table back. It is signed correctly, but the number of its signature is smaller than
the number that is kept here. Or they could take a commit back and let another one be made in its place. Then two
commits follow the same one (scanner.signing).

Results are identified by an id, which each signature of a table contains, and not by their place: they may be moved.
Of a copy and its original, only one may go on. Entries mean the same in any order.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from scanner.errors import ScanFailed, in_a_line
from scanner.storage.delta import attempts, make_table, open_table, read
from scanner.storage.locations import make_private
from schemas.tables import SIGNED_TABLES

SIGNED_TABLES_FOLDER = "signed_tables"

NO_NUMBER = -1
"""Number for: there is none."""

STRANGE = "the registry knows other tables of these results but not this one, so it was put here later"
"""Fault of a table that is signed as a table of these results, but was never here."""

UNFOLLOWED = "its commits do not follow the last one that brickscan made here, so that one was rolled back"
"""Fault of a table if no record shows that its last commit follows the newest signature."""


class SignedTable(NamedTuple):
    """An event of a table of results.

    location: folder or URI of the results, as the user wrote it.
    table: name of the table.
    table_id: id of the Delta table.
    results_id: id of the results, shared by all of their tables.
    event: one of four. `signed`: a commit signed the table. `signed anew`: a person agreed to the table as it was.
        `given up`: a person gave it up. `left`: a person gave the results up at this place only, since they continued
        at another one.
    number: number of the signature, or of the time of the event.
    earlier: number of the signature that it follows. NO_NUMBER: unknown, or none.
    """

    location: str
    table: str
    table_id: str
    results_id: int
    event: Literal["signed", "signed anew", "given up", "left"]
    number: int
    earlier: int = NO_NUMBER


class Carried(NamedTuple):
    """The numbers in a table's signature.

    number: number of the signature.
    earlier: number of the signature that it follows.
    known: number that the registry kept for the table when it was signed. NO_NUMBER: none.
    """

    number: int
    earlier: int
    known: int


class _History:
    """The events of one table.

    newest: the last signature.
    kept: number of the last signature that the registry keeps. NO_NUMBER: none, for example if it cannot be written.
    anew: number of the last signature by consent. Earlier events do not matter.
    given_up: number of the last event at which it was given up.
    """

    def __init__(self) -> None:
        self.entries: dict[int, set[SignedTable]] = {}  # by number: a person may consent to a signed state as it is
        self._fork: tuple[int, ...] | None = None  # as `fork` returns it; None: not computed yet
        self.newest: SignedTable | None = None
        self.kept = self.anew = self.given_up = NO_NUMBER

    def add(self, entry: SignedTable, *, is_kept: bool) -> None:
        self.entries.setdefault(entry.number, set()).add(entry)
        self._fork = None
        if entry.event == "given up":
            self.given_up = max(self.given_up, entry.number)
            return
        if is_kept:
            self.kept = max(self.kept, entry.number)
        if entry.event == "signed anew":
            self.anew = max(self.anew, entry.number)
        self.newest = max(self.newest or entry, entry, key=_age)

    @property
    def fork(self) -> tuple[int, ...]:
        """Return the numbers of two commits that follow the same one, the later first. Empty: there are none.

        One of the two was taken back. Of several such pairs, the latest is returned.

        Numbers grow, so no number lies between a signature and the one that it follows. This is tested instead of
        equality, because the record may lack the common predecessor, for example if the scan that made it was killed.
        """
        if self._fork is None:
            signed = {
                number: max(entry.earlier for entry in entries if entry.event != "given up")
                for number, entries in self.entries.items()
                if any(entry.event != "given up" for entry in entries)
            }
            numbers = sorted(signed, reverse=True)
            forks = (pair for pair in pairwise(numbers) if NO_NUMBER < signed[pair[0]] < pair[1])
            self._fork = next(forks, ())
        return self._fork

    @property
    def last_number(self) -> int:
        """Return the number of the newest signature. NO_NUMBER: there is none."""
        return NO_NUMBER if self.newest is None else self.newest.number

    @property
    def is_given_up(self) -> bool:
        """Return whether the table is given up. Only a person's consent makes it a table of these results again."""
        return self.given_up > self.anew

    @property
    def is_forked(self) -> bool:
        """Return whether two commits followed the same one, and nobody consented. Then one of them was taken back."""
        return max(self.fork, default=NO_NUMBER) > self.anew

    def is_unfollowed(self, carried: Carried) -> bool:
        """Return whether no record shows that the signature `carried` follows the newest one.

        The registry may lack signatures in between, for example of a scan that was killed. That is no fault if the scan
        knew the newest signature.
        """
        newest = self.last_number
        number, earlier = carried.number, carried.earlier
        while number > newest:
            number = earlier
            if number > newest:
                if number not in self.entries:
                    return carried.known != newest
                earlier = max(entry.earlier for entry in self.entries[number])
        return number < newest


class _Place:
    """The entries of the last signature of results at one place, and of the time when they left it."""

    def __init__(self) -> None:
        self.signed: SignedTable | None = None
        self.left: SignedTable | None = None

    def add(self, entry: SignedTable) -> None:
        if entry.event == "left":
            self.left = max(self.left or entry, entry, key=_age)
        elif entry.event != "given up":
            self.signed = max(self.signed or entry, entry, key=_age)

    @property
    def number(self) -> int:
        """Return the number of the last signature at the place. NO_NUMBER: none since the results left it."""
        if self.signed is None or (self.left is not None and self.left.number > self.signed.number):
            return NO_NUMBER
        return self.signed.number


class SignedTables:
    """The tables that were signed under a registry's audit secret, built from its entries in any order."""

    def __init__(self, entries: Iterable[SignedTable] = ()) -> None:
        self._histories: dict[tuple[int, str], dict[str, _History]] = {}  # by results and name, then by a table's id
        self._places: dict[str, dict[int, _Place]] = {}  # by place, then by results
        self._add(entries, are_kept=True)

    def add(self, entries: Iterable[SignedTable]) -> None:
        """Add entries that the registry does not keep yet."""
        self._add(entries, are_kept=False)

    def _add(self, entries: Iterable[SignedTable], *, are_kept: bool) -> None:
        for entry in entries:
            self._places.setdefault(entry.location, {}).setdefault(entry.results_id, _Place()).add(entry)
            if entry.event != "left":
                histories = self._histories.setdefault((entry.results_id, entry.table), {})
                histories.setdefault(entry.table_id, _History()).add(entry, is_kept=are_kept)

    def is_empty(self) -> bool:
        """Return whether there is no entry of any results."""
        return not self._places

    def results_at(self, location: str) -> int | None:
        """Return the id of the results that were last signed at a place, unless they left it or were given up."""
        places = self._places.get(location, {})
        there = {results: place.number for results, place in places.items() if self.tables_of(results)}
        last = max(there, key=there.__getitem__, default=None)
        return None if last is None or there[last] == NO_NUMBER else last

    def place_of(self, results_id: int) -> str | None:
        """Return where results were last signed. None: the registry does not know them."""
        signed = [places[results_id].signed for places in self._places.values() if results_id in places]
        newest = max((entry for entry in signed if entry is not None), key=_age, default=None)
        return None if newest is None else newest.location

    def tables_of(self, results_id: int) -> list[SignedTable]:
        """Return the newest signature of each table of results that was not given up."""
        return [entry for results, name in self._histories if results == results_id for entry in self.at(results, name)]

    def at(self, results_id: int, table: str) -> list[SignedTable]:
        """Return the newest signature of each table with a name that was not given up.

        Most often there is one table.
        """
        histories = self._histories.get((results_id, table), {}).values()
        return [each.newest for each in histories if each.newest is not None and not each.is_given_up]

    def last_number(self, results_id: int, table: str, table_id: str) -> int:
        """Return the largest number that a table ever had in results. NO_NUMBER: it was never a table of them."""
        return max(self._history(results_id, table, table_id).entries, default=NO_NUMBER)

    def last_number_of(self, results_id: int, location: str) -> int:
        """Return the largest number of results at any place, or of any results at a place. NO_NUMBER: there is none."""
        everywhere = [each.get(results_id) for each in self._places.values()]
        places = [each for each in [*everywhere, *self._places.get(location, {}).values()] if each is not None]
        entries = (entry for place in places for entry in (place.signed, place.left) if entry is not None)
        return max((entry.number for entry in entries), default=NO_NUMBER)

    def kept_number(self, results_id: int, table: str, table_id: str) -> int:
        """Return the number of the last signature of a table that the registry keeps. NO_NUMBER: it keeps none."""
        return self._history(results_id, table, table_id).kept

    def fault(self, results_id: int, table: str, table_id: str, carried: Carried | None) -> str | None:
        """Return why a table cannot be the newest state of its results. None: it can.

        Args:
            results_id: id of the results.
            table: name of the table.
            table_id: id of the Delta table.
            carried: numbers in its signature. None: it has no signature of ours.
        """
        history, others = self._history(results_id, table, table_id), self.at(results_id, table)
        if history.is_given_up:
            return "it is a table that was given up and then put back"
        if history.newest is None:
            if others:
                return f"another table was signed at {others[0].location}, and this one was put in its place"
            return STRANGE if carried is not None and self.tables_of(results_id) else None
        if len(others) > 1:
            return "two tables were signed there, and one of them was moved away"
        if history.is_forked:
            return "two commits follow the same one, so the first was rolled back, or a copy was continued"
        newest = history.newest.number
        if carried is None or carried.number == newest:
            return None
        if carried.number < newest:
            last = history.newest.location
            return f"it was restored to an earlier state, or is a copy: brickscan made its last commit at {last}"
        if history.kept != NO_NUMBER and carried.known not in history.entries:
            return "its last commit was made with another copy of the registry"
        return UNFOLLOWED if history.is_unfollowed(carried) else None

    def _history(self, results_id: int, table: str, table_id: str) -> _History:
        return self._histories.get((results_id, table), {}).get(table_id, _History())

    def places(self) -> dict[int, str]:
        """Return where results were last signed, by their id, in order of the places.

        Results that were given up are left out.
        """
        everywhere = {results for results, name in self._histories if self.at(results, name)}
        places = ((self.place_of(results), results) for results in everywhere)
        return {results: place for place, results in sorted((place, id_) for place, id_ in places if place is not None)}

    def entries(self) -> Iterator[SignedTable]:
        """Yield a shorter list of entries with the same meaning. It only lacks the order of commits of long ago."""
        written = set[SignedTable]()
        for histories in self._histories.values():
            for history in histories.values():
                numbers = {*sorted(history.entries)[-NUMBERS_KEPT:], history.anew, history.given_up, *history.fork}
                for number in numbers - {NO_NUMBER}:
                    written |= history.entries[number]
        for places in self._places.values():
            for place in places.values():
                written |= {entry for entry in (place.signed, place.left) if entry is not None}
        yield from sorted(written)


def _age(entry: SignedTable) -> tuple[int, SignedTable]:
    return entry.number, entry


NUMBERS_KEPT = 1000
"""Number of signatures that are kept of a table. A commit that was taken back is noticed among these only."""

HOURS_OF_A_READER = 24
"""Hours for which replaced files are kept, for processes that still read them."""

FILES_KEPT = 50
"""Number of files of the table of signatures. Beyond it, their entries are written into one file."""


def keeps_signatures(registry: str) -> bool:
    """Return whether a registry keeps signatures of tables."""
    return bool(DeltaTable.is_deltatable(f"{registry}/{SIGNED_TABLES_FOLDER}"))


def read_signed_tables(registry: str) -> SignedTables:
    """Read the signatures of tables that a registry keeps. Raises Refused: the table is of another version."""
    return (
        _tables_of(open_table(f"{registry}/{SIGNED_TABLES_FOLDER}")) if keeps_signatures(registry) else SignedTables()
    )


def _tables_of(table: DeltaTable) -> SignedTables:
    rows = read(table).select(SignedTable._fields).collect()
    return SignedTables(SignedTable(*row) for row in rows.iter_rows())


def append_signed_tables(registry: str, entries: Sequence[SignedTable]) -> None:
    """Append signatures of tables. Raises ScanFailed: the registry cannot be written."""
    uri = f"{registry}/{SIGNED_TABLES_FOLDER}"
    try:
        make_private(uri)
        make_table(uri, SIGNED_TABLES, {})
        for _ in attempts(f"appends to {uri}"):
            with suppress(CommitFailedError):  # another process merged the table's files at the same time
                write_deltalake(uri, _rows_of(entries), mode="append")
                break
        table = open_table(uri)
        if len(table.file_uris()) > FILES_KEPT:
            with suppress(CommitFailedError):  # another process appended; a later call merges the files
                rows = _rows_of([*_tables_of(table).entries()])
                write_deltalake(table, rows, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))
                open_table(uri).vacuum(HOURS_OF_A_READER, dry_run=False, enforce_retention_duration=False)
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"registry: table {uri} cannot be written: {in_a_line(error)}") from None


def _rows_of(entries: Sequence[SignedTable]) -> pa.Table:
    now = datetime.now(UTC)
    return pa.Table.from_pylist([{**entry._asdict(), "signed_at": now} for entry in entries], SIGNED_TABLES)

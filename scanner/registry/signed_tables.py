"""Signatures of tables of results, kept with the registry, where who can write the results puts nothing back.

Whoever can write results can put an older state of a table in its place, which is signed as it was: its number is
smaller than the one that stands here. Or they take back a commit, and another one is made in its place: then two
commits stand here that follow one (scanner.signing). Or they put a table there that was committed to elsewhere, in a
copy of the results: its signature names a place and a number that are not of this one. Entries mean the same in any
order.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
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
"""Number where there is none."""

STRANGE = "the registry knows other tables here and not this one, so that it was put here"
"""Fault of a table that may be of these results, and that was never here."""

UNFOLLOWED = "its commits do not follow the last one that brickscan made here, which was taken back"
"""Fault of a table of which nothing on record says that its last commit follows the newest signature."""


class SignedTable(NamedTuple):
    """What happened to a table of results.

    location: folder or URI of the results, links followed.
    table: its name.
    table_id: of the Delta table.
    results_id: of the results, which all of their tables have.
    event: a commit signed it, it was signed as it was by consent, or it was given up by consent.
    number: of the signature, or of the time when it was given up.
    earlier: number of the signature that it follows; NO_NUMBER: unknown, or none.
    """

    location: str
    table: str
    table_id: str
    results_id: int
    event: Literal["signed", "signed anew", "given up"]
    number: int
    earlier: int = NO_NUMBER


class Carried(NamedTuple):
    """What a table's signature says of when it was signed.

    number: of the signature.
    earlier: number of the signature that it follows.
    known: number that the registry kept of the table at this place when it was signed, NO_NUMBER: none; None: it was
        signed at another place.
    """

    number: int
    earlier: int
    known: int | None


class _History:
    """What happened to one table at one place.

    newest: the last time when it was signed.
    kept: number of the last signature that the registry keeps; NO_NUMBER: of none, as where it cannot be written.
    anew: number of the last signature by consent: what is before it does not matter.
    given_up: number of the last time when it was given up.
    fork: numbers of two commits that follow one, of which the first was taken back: the latest; else empty.
    """

    def __init__(self) -> None:
        self.entries: dict[int, set[SignedTable]] = {}  # by number: one that was signed may be consented to as it is
        self._later: dict[int, int] = {}  # by number of a signature: that of the one that follows it
        self.newest: SignedTable | None = None
        self.kept = self.anew = self.given_up = NO_NUMBER
        self.fork: tuple[int, ...] = ()

    def add(self, entry: SignedTable, *, is_kept: bool) -> None:
        self.entries.setdefault(entry.number, set()).add(entry)
        if entry.event == "given up":
            self.given_up = max(self.given_up, entry.number)
            return
        if is_kept:
            self.kept = max(self.kept, entry.number)
        if entry.event == "signed anew":
            self.anew = max(self.anew, entry.number)
        self.newest = max(self.newest or entry, entry, key=lambda each: (each.number, each))
        if entry.earlier != NO_NUMBER:
            other = self._later.setdefault(entry.earlier, entry.number)
            fork = tuple(sorted({entry.number, other}, reverse=True))
            self.fork = max(self.fork, fork if len(fork) > 1 else ())

    @property
    def last_number(self) -> int:
        """Number of the newest signature; NO_NUMBER: there is none."""
        return NO_NUMBER if self.newest is None else self.newest.number

    @property
    def is_given_up(self) -> bool:
        """Whether it is no table of these results any more: only by consent it becomes one again."""
        return self.given_up > self.anew

    @property
    def is_forked(self) -> bool:
        """Whether two commits followed one, so that the first was taken back, and nobody consented to that."""
        return max(self.fork, default=NO_NUMBER) > self.anew

    def is_unfollowed(self, carried: Carried) -> bool:
        """Return whether nothing here says that a later signature follows the newest one.

        The registry may lack what lies between them, as of a scan that was killed, which knew the newest one.
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


class SignedTables:
    """The tables that were signed under a registry's audit secret, from the entries that it keeps, in any order."""

    def __init__(self, entries: Iterable[SignedTable] = ()) -> None:
        self._places: dict[tuple[str, str], dict[str, _History]] = {}  # by place and name, then by the table's id
        self._add(entries, are_kept=True)

    def add(self, entries: Iterable[SignedTable]) -> None:
        """Take in entries that the registry does not keep yet."""
        self._add(entries, are_kept=False)

    def _add(self, entries: Iterable[SignedTable], *, are_kept: bool) -> None:
        for entry in entries:
            histories = self._places.setdefault((entry.location, entry.table), {})
            histories.setdefault(entry.table_id, _History()).add(entry, is_kept=are_kept)

    def is_empty(self) -> bool:
        """Return whether there is no entry of any place."""
        return not self._places

    def at(self, location: str, table: str) -> list[SignedTable]:
        """Return the newest signature of each table at a place that was not given up; most often there is one."""
        histories = self._places.get((location, table), {}).values()
        return [each.newest for each in histories if each.newest is not None and not each.is_given_up]

    def last_number(self, location: str, table: str, table_id: str) -> int:
        """Return the largest number that a table ever had at a place; NO_NUMBER: it was never there."""
        return max(self._history(location, table, table_id).entries, default=NO_NUMBER)

    def kept_number(self, location: str, table: str, table_id: str) -> int:
        """Return the number of the last signature of a table that the registry keeps; NO_NUMBER: it keeps none."""
        return self._history(location, table, table_id).kept

    def knows(self, location: str) -> bool:
        """Return whether the registry keeps a signature of a table at a place that was not given up."""
        return any(
            history.kept != NO_NUMBER and not history.is_given_up
            for (place, _), histories in self._places.items()
            if place == location
            for history in histories.values()
        )

    def fault(self, location: str, table: str, table_id: str, carried: Carried | None) -> str | None:
        """Return why a table is not as it was last left at a place; None: it may be.

        Args:
            location: folder or URI of the results, links followed.
            table: its name.
            table_id: of the Delta table.
            carried: what its signature says; None: it carries none that is ours.
        """
        history = self._history(location, table, table_id)
        if history.is_given_up:
            return "it is a table that was given up, and was put back"
        if history.newest is None:
            if self.at(location, table):
                return "another table was signed there, and this one was put in its place"
            return STRANGE if carried is not None and self.knows(location) else None
        if len(self.at(location, table)) > 1:
            return "two tables were signed there, of which one was put away"
        if history.is_forked:
            return "two commits follow one, so that the first was taken back"
        newest = history.newest.number
        if carried is None or carried.number == newest:
            return None
        if carried.number < newest:
            return "it was put back to an earlier state, before the last commit that brickscan made"
        if carried.known is None or (history.kept != NO_NUMBER and carried.known not in history.entries):
            return "its last commit was made at another place, or by who has another copy of the registry"
        return UNFOLLOWED if history.is_unfollowed(carried) else None

    def _history(self, location: str, table: str, table_id: str) -> _History:
        return self._places.get((location, table), {}).get(table_id, _History())

    def of(self, location: str) -> list[SignedTable]:
        """Return the newest signature of each table at a place that was not given up."""
        return [entry for place, name in self._places if place == location for entry in self.at(place, name)]

    def newest_anywhere(self, table: str, table_id: str) -> SignedTable | None:
        """Return the newest signature of a table, wherever it lay; None: it was never signed."""
        of_places = [histories[table_id] for histories in self._tables_of(table) if table_id in histories]
        signed = [history.newest for history in of_places if history.newest is not None]
        return max(signed, key=lambda entry: entry.number, default=None)

    def newer_elsewhere(self, location: str, table: str, table_id: str, number: int) -> SignedTable | None:
        """Return the newest signature of a table at another place, unless it was given up there or is no newer."""
        there = [
            entry
            for place, name in self._places
            if name == table and place != location
            for entry in self.at(place, name)
            if entry.table_id == table_id and entry.number > number
        ]
        return max(there, key=lambda entry: entry.number, default=None)

    def _tables_of(self, table: str) -> list[dict[str, _History]]:
        """Return what happened to the tables of a name, by their ids, place by place."""
        return [histories for (_, name), histories in self._places.items() if name == table]

    def fault_of_moved(self, moved: SignedTable, carried: Carried) -> str | None:
        """Return why a table at a place that is not known is not the one that its results had; None: it may be.

        Args:
            moved: the table.
            carried: what its signature says.
        """
        histories = self._everywhere(moved.table, doubtful_stand=False)
        ours = histories.pop(moved.table_id, _History())
        if ours.is_given_up:
            return "it is a table that was given up, and was put back"
        if ours.is_forked:
            return "two commits follow one, so that the first was taken back"
        if ours.newest is not None and ours.newest.number > moved.number:
            return f"it is older than it was at {ours.newest.location}, as a copy is, or what a link leads to"
        for newest in (history.newest for history in histories.values() if not history.is_given_up):
            if newest is not None and newest.results_id == moved.results_id:
                return f"another table was signed at {newest.location}, and this one was put in its place"
        return UNFOLLOWED if ours.newest is not None and ours.is_unfollowed(carried) else None

    def of_results(self, results_ids: Collection[int]) -> list[SignedTable]:
        """Return the newest signature of each table of results, wherever it lay, unless it was given up there."""
        last: dict[str, SignedTable] = {}
        for name in {name for _, name in self._places}:
            for history in self._everywhere(name, doubtful_stand=True).values():
                newest = history.newest
                if newest is not None and newest.results_id in results_ids and not history.is_given_up:
                    last[name] = max(last.get(name, newest), newest, key=lambda entry: entry.number)
        return [*last.values()]

    def _everywhere(self, table: str, *, doubtful_stand: bool) -> dict[str, _History]:
        """Return what happened to tables of a name at all places, by their ids.

        That a table was given up counts at the place where it was last: it may have been moved from others for good.
        Where it has one number at two places, as after a move, it was last where its results have the newest signature.

        Args:
            table: the name.
            doubtful_stand: a table that was given up at one of two places, of which nothing says where it was last,
                counts as not given up.
        """
        went_on: dict[tuple[str, int], int] = {}  # by place and results: number of their newest signature
        of_tables: dict[str, list[tuple[str, _History]]] = {}
        for (place, name), histories in self._places.items():
            for table_id, history in histories.items():
                if history.newest is not None:
                    key = place, history.newest.results_id
                    went_on[key] = max(went_on.get(key, NO_NUMBER), history.last_number)
                if name == table:
                    of_tables.setdefault(table_id, []).append((place, history))

        def lastness(place: str, history: _History) -> tuple[int, int, bool]:
            number = NO_NUMBER if history.newest is None else went_on[place, history.newest.results_id]
            return history.last_number, number, history.is_given_up != doubtful_stand

        merged = {table_id: _History() for table_id in of_tables}
        for table_id, of_places in of_tables.items():
            _, last = max(of_places, key=lambda each: lastness(*each))
            for _, history in of_places:
                for entry in itertools.chain.from_iterable(history.entries.values()):
                    if history is last or entry.event != "given up":
                        merged[table_id].add(entry, is_kept=True)
        return merged

    def locations(self) -> list[str]:
        """Return the places of all results that were signed and not given up, in order."""
        return sorted({place for place, name in self._places if self.at(place, name)})

    def entries(self) -> Iterator[SignedTable]:
        """Yield the entries that say what all say, but of which commit long ago followed which."""
        for histories in self._places.values():
            for history in histories.values():
                numbers = {*sorted(history.entries)[-NUMBERS_KEPT:], history.anew, history.given_up, *history.fork}
                for number in sorted(numbers - {NO_NUMBER}):
                    yield from sorted(history.entries[number])


NUMBERS_KEPT = 1000
"""Signatures of a table that are kept: a commit that was taken back shows while those of its time are here."""

HOURS_OF_A_READER = 24
"""Hours for which files that were written together are left to whoever still reads them."""

FILES_KEPT = 50
"""Files of the table of signatures beyond which their entries are written into one."""


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
            with suppress(CommitFailedError):  # others wrote its files together meanwhile
                write_deltalake(uri, _rows_of(entries), mode="append")
                break
        table = open_table(uri)
        if len(table.file_uris()) > FILES_KEPT:
            with suppress(CommitFailedError):  # somebody appended meanwhile: the next one writes them together
                rows = _rows_of([*_tables_of(table).entries()])
                write_deltalake(table, rows, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))
                open_table(uri).vacuum(HOURS_OF_A_READER, dry_run=False, enforce_retention_duration=False)
    except (DeltaError, OSError) as error:
        raise ScanFailed(f"registry: table {uri} cannot be written: {in_a_line(error)}") from None


def _rows_of(entries: Sequence[SignedTable]) -> pa.Table:
    now = datetime.now(UTC)
    return pa.Table.from_pylist([{**entry._asdict(), "signed_at": now} for entry in entries], SIGNED_TABLES)

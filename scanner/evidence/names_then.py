"""Names of flags held against the registry: who held a message when the flag was made, whatever its row says.

A row of `flags` can be changed by whoever can write the results. The registry says whose a message was: by the events
up to the chain's head that the flag's scan wrote down, and those that came while the scan ran.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from scanner.errors import Refused, ScanFailed
from scanner.printable import printable
from scanner.registry import given_rows, numbers_of_heads, users_of
from scanner.results import scans
from scanner.results.queries import ask, standing_flags
from schemas.registry import is_reserved
from schemas.words import Naming

Row = Mapping[str, Any]

_LONGEST_ID = 60
_OF_REGISTRY = (Naming.NAMED, Naming.UNALLOCATED, Naming.EVERYBODY, Naming.HELD_LATER, Naming.RESERVED, Naming.REMOVED)
_NOBODY = Naming.UNALLOCATED, Naming.EVERYBODY
_VERIFY = "`brickscan users verify` with --results tells whether the registry was changed"


class RegistrySays(NamedTuple):
    """The registry's word on the names of a flag.

    agrees: None: it was not asked, or cannot tell; sentence: for people.
    """

    agrees: bool | None
    sentence: str


NOT_ASKED = RegistrySays(None, "not asked: name the scan's configuration instead of its results")


class _Then(NamedTuple):
    """The time of a flag.

    at: by when its document existed; began, ended: when its scan began, and wrote the row; number: of the last event
    before the head that the scan wrote down, -1: there was none, None: it is not known; lost: the chain lacks it.
    """

    at: datetime
    began: datetime
    ended: datetime
    number: int | None
    lost: bool

    def surely(self, seq: int | None, time: datetime) -> bool:
        """Whether an event stood in the registry when the scan began."""
        return time <= self.began if self.number is None or seq is None else seq <= self.number

    def perhaps(self, seq: int | None, time: datetime) -> bool:
        """Whether a worker of the scan may have known an event."""
        return self.surely(seq, time) or time <= self.ended


def held_against(registry: Path | str, results: str, rows: Sequence[Row]) -> list[RegistrySays]:
    """The registry's word on each of some rows of schemas.tables.VERDICTS, or with fewer columns, as rows of spans.

    Raises:
        Refused: there are no results.
    """
    ids = list({row["scan_id"] for row in rows})
    wanted = pl.col("scan_id").is_in(ids)
    known = ask(results, lambda: scans(results).filter(wanted).select("scan_id", "started_at", "users_head").collect())
    of_scans = {row["scan_id"]: row for row in known.to_dicts()}
    try:
        numbers = numbers_of_heads(registry, set(known["users_head"].drop_nulls()))
        entries = {(one["key_id"], one["message"]) for row in rows for one in _entries(row)}
        frame = pl.DataFrame(list(entries), {"key_id": pl.String, "message": pl.Int64}, orient="row")
        given = {(row["key_id"], row["message"]): row for row in given_rows(registry, frame).to_dicts()}
    except (Refused, ScanFailed) as error:
        return [RegistrySays(None, f"it cannot be asked: {error}")] * len(rows)
    return [_of_row(row, _then(row, of_scans.get(row["scan_id"]), numbers), given) for row in rows]


def as_the_registry_says(row: Row, says: RegistrySays) -> Row:
    """A row that names nobody where the registry says that somebody else held the message, or nobody did."""
    if says.agrees is not False or row["naming"] != Naming.NAMED:
        return row
    nobody = {"user_id": None, "naming": Naming.CONTRADICTED, "named": None, "named_again": None, "held_since": None}
    return {**row, **{name: value for name, value in nobody.items() if name in row}}


def strangers(registry: Path | str, results: str, rate: float, user_ids: Sequence[str]) -> dict[str, int]:
    """Users whom flags name for messages that the registry never gave them, with how many documents.

    Raises:
        Refused: there are no results, or there is no registry.
    """
    place = ["user_id", "key_id", "message"]
    named = (pl.col("naming") == Naming.NAMED) & pl.col("user_id").is_in(list(user_ids))
    found = ask(results, lambda: standing_flags(results, rate, named).group_by(place).len().collect())
    wrong = found.join(users_of(registry, user_ids), on=place, how="anti")
    return dict(wrong.group_by("user_id").agg(pl.col("len").sum()).sort("user_id").iter_rows())


def _then(row: Row, scan: Row | None, numbers: Mapping[str, int]) -> _Then:
    began = scan["started_at"] if scan else row["scanned_at"]
    head = scan["users_head"] if scan else None
    number = numbers.get(head) if head else -1 if scan else None
    at = row.get("first_seen_at") or began
    return _Then(at, began, row["scanned_at"], number, head is not None and number is None)


def _entries(row: Row) -> Iterator[Row]:
    """The row itself and the entries of NAMED beside it, those whose naming follows from the registry."""
    for one in (row, *(row.get("named") or ()), *(row.get("named_again") or ())):
        if one["message"] is not None and one["naming"] in _OF_REGISTRY:
            yield one


def _of_row(row: Row, then: _Then, given: Mapping[tuple[str, int], Row]) -> RegistrySays:
    erased, said = False, "it says the same"
    for one in _entries(row):
        held = given.get((one["key_id"], one["message"]))
        possible = list(_possible(one["message"], held, then))
        recorded = (Naming(one["naming"]), one["user_id"])
        if recorded[0] == Naming.NAMED and (Naming.NAMED, None) in possible:
            erased = recorded[1] is not None
        elif recorded not in possible and not (recorded == (Naming.NAMED, None) and possible[-1][0] == Naming.NAMED):
            return RegistrySays(False, _contradiction(one, held, possible[-1], then))
        since = one.get("held_since")
        if recorded[0] == Naming.NAMED and held is not None and since not in (None, held["allocated_at"]):
            return RegistrySays(False, _contradiction(one, held, possible[-1], then))
        if one is row and recorded[0] == Naming.NAMED and held is not None:
            said = "it gave the message to this user" + _until(held["removed_at"])
    if erased:
        return RegistrySays(None, "the user's name was erased from it, so that it cannot tell whose the message was")
    return RegistrySays(True, said)


def _possible(message: int, held: Row | None, then: _Then) -> Iterator[tuple[Naming, str | None]]:
    """What a worker of the scan may have found, the last as the registry has it."""
    if is_reserved(message):
        yield Naming.RESERVED, None
        return
    given_at = (held["seq"], held["allocated_at"]) if held is not None else None
    if given_at is None or not then.surely(*given_at):
        yield from ((naming, None) for naming in reversed(_NOBODY))
    if held is None or given_at is None or not then.perhaps(*given_at):
        return
    if held["allocated_at"] > then.at:
        yield Naming.HELD_LATER, None
        return
    removed = (held["removed_seq"], held["removed_at"]) if held["removed_at"] is not None else None
    if removed is not None and then.perhaps(*removed):
        yield Naming.REMOVED, None
    if removed is None or not then.surely(*removed):
        yield Naming.NAMED, held["user_id"]


def _contradiction(one: Row, held: Row | None, found: tuple[Naming, str | None], then: _Then) -> str:
    since = "" if held is None else f" (given {held['allocated_at']:%Y-%m-%d %H:%M} UTC{_until(held['removed_at'])})"
    if then.lost:
        chain = "its chain never had the head that this scan wrote down, so it is older than these results, or another"
    elif then.number is None:
        chain = f"one of the two was changed; {_VERIFY}"
    else:
        chain = f"its chain has the head that this scan wrote down, so the row was changed; {_VERIFY}"
    row = _words(Naming(one["naming"]), one["user_id"])
    by_registry = _words(found[0], found[1])
    if found[0] == Naming.NAMED and found[1] == one["user_id"]:
        row += f" since {one['held_since']:%Y-%m-%d %H:%M} UTC"
    return f"the row says that {row}; the registry, that {by_registry}{since}. Name nobody by this row: {chain}"


def _until(removed_at: datetime | None) -> str:
    return "" if removed_at is None else f", and withdrew it {removed_at:%Y-%m-%d %H:%M} UTC"


def _words(naming: Naming, user_id: str | None) -> str:
    whose = "a user whose name was erased" if user_id is None else f"user {printable(user_id, _LONGEST_ID)}"
    return {
        Naming.NAMED: f"{whose} held the message then",
        Naming.HELD_LATER: "its user got the message after the document existed",
        Naming.RESERVED: "the message is reserved, and nobody's",
        Naming.REMOVED: "the user who held the message had been removed",
    }.get(naming, "nobody held the message then")

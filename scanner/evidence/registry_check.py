"""Names of flags held against the registry: who held a message when the flag was made, whatever its row says.

A row of `flags`, `spans` or `accounts` can be changed by whoever can write the results. The registry says whose a
message was: by the events up to the chain's head that the flag's scan wrote down, and those that came while the scan
ran. When that was, and since when the document existed, `scans` and `shards` say where the row says more.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from scanner.errors import Refused, ScanFailed
from scanner.printable import printable
from scanner.registry import given_rows, numbers_of_heads, users_of
from scanner.results.earlier_scans import ScanOfRow, scans_of
from scanner.results.flags import WantedFlags
from scanner.results.queries import ask, flags_at_rate
from scanner.results.registry_record import changed_names
from schemas.registry import is_reserved
from schemas.words import OF_REGISTRY, Naming

Row = Mapping[str, Any]

_LONGEST_ID = 60
_PLACE = ["user_id", "key_id", "message"]
_NOBODY = Naming.UNALLOCATED, Naming.EVERYBODY
_VERIFY = "`brickscan users verify` with --results tells whether the registry was changed"
_CLOCKS = timedelta(minutes=5)  # by which clocks of a cluster's machines may differ
_DAY = timedelta(days=1)
_LAST_DAY = datetime.max.replace(tzinfo=UTC) - _DAY  # a post may be dated 9999-12-31
_ERASED = "the user's name was erased from it, so that nothing tells whose the message was: none is shown"
_TWO_THINGS = (
    "not asked: the row says two things, that it names somebody and that it does not, as no scan writes it. Name "
    "nobody by this row: it was changed"
)
CHANGED_ROW = "Name nobody by this row: it was changed"
_NO_SCAN = "neither `scans` nor `shards` has the scan of this row, so that nothing tells when it was. Name nobody by it"


class RegistryCheck(NamedTuple):
    """The registry's answer on the names of a flag.

    agrees: whether it says the same, None: it was not asked, or cannot tell.
    sentence: the answer in words.
    erased: keys and messages whose user's name was erased from it.
    """

    agrees: bool | None
    sentence: str
    erased: frozenset[tuple[str, int]] = frozenset()


NOT_ASKED = RegistryCheck(None, "not asked: name the scan's configuration instead of its results")


class _FlagTime(NamedTuple):
    """The time of a flag.

    at: time by which its document existed.
    began: when its scan began.
    ended: when its scan had written the row at the latest.
    number: of the last event before the head that the scan wrote down, -1: there was none, None: it is not known.
    lost: whether the chain lacks that head.
    next_number: the same number of the next scan, None: there is none.
    """

    at: datetime
    began: datetime
    ended: datetime
    number: int | None
    lost: bool
    next_number: int | None

    def surely(self, seq: int | None, time: datetime) -> bool:
        """Return whether an event stood in the registry when the scan began."""
        return time <= self.began if self.number is None or seq is None else seq <= self.number

    def perhaps(self, seq: int | None, time: datetime) -> bool:
        """Return whether a worker of the scan may have known an event."""
        later = seq is not None and self.next_number is not None and seq > self.next_number
        return self.surely(seq, time) or (time <= self.ended and not later)


def held_against(registry: Path | str, results: str, rows: Sequence[Row]) -> list[RegistryCheck]:
    """Return the registry's word on each of some rows of VERDICTS, SPANS or ACCOUNTS (schemas).

    The files that names are read from are first checked against the record of the last scan: an edited registry names
    nobody.

    Args:
        registry: folder or URI of the registry.
        results: folder or URI of the results.
        rows: rows as scanner.results gives them. Rows of spans also have the columns first_seen_at and created_at of
            their document.

    Raises:
        Refused: there are no results.
    """
    row_scans = ask(results, lambda: scans_of(results, rows))
    try:
        numbers = numbers_of_heads(
            registry, {head for scan in row_scans for head in (scan.head, scan.next_head) if head}
        )
        entries = {(entry["key_id"], entry["message"]) for row in rows for entry in _entries(row)}
        frame = pl.DataFrame(list(entries), {"key_id": pl.String, "message": pl.Int64}, orient="row")
        holders = {(row["key_id"], row["message"]): row for row in given_rows(registry, frame).to_dicts()}
        change = changed_names(registry, results, frame) if entries else None
    except (Refused, ScanFailed) as error:
        return [unless_contradicted(row, f"it cannot be asked: {error}") for row in rows]
    if change is not None:
        refusal = RegistryCheck(False, f"not asked: {change}. Name nobody by this row before that is known")
        return [refusal if any(_entries(row)) else unless_contradicted(row, "nobody is named") for row in rows]
    return [_checked(row, scan, numbers, holders) for row, scan in zip(rows, row_scans, strict=True)]


def with_registry_names(row: Row, check: RegistryCheck) -> Row:
    """Return a row that names nobody where the registry contradicts it, and nobody whose name was erased there."""
    if check.agrees is False:
        nobody = {
            "user_id": None,
            "naming": Naming.CONTRADICTED,
            "named": None,
            "further_messages": None,
            "held_since": None,
        }
        return {**row, **{name: value for name, value in nobody.items() if name in row}}
    if not check.erased:
        return row

    def drop_erased_user(entry: Row) -> Row:
        return {**entry, "user_id": None} if (entry["key_id"], entry["message"]) in check.erased else entry

    lists = {
        name: [drop_erased_user(entry) for entry in row[name]]
        for name in ("named", "further_messages")
        if row.get(name)
    }
    return {**drop_erased_user(row), **lists}


def strangers(registry: Path | str, results: str, rate: float, user_ids: Sequence[str]) -> dict[str, int]:
    """Count documents of users whom flags name for messages that the registry never gave them.

    Returns:
        The number of documents by user.

    Raises:
        Refused: there are no results, or there is no registry.
    """
    entry = pl.struct("key_id", "message", "user_id")
    entry_lists = [
        pl.col(name).list.eval(pl.struct(pl.element().struct.field("key_id", "message", "user_id"))).fill_null([])
        for name in ("named", "further_messages")
    ]
    user_messages = users_of(registry, user_ids).select(*_PLACE).lazy()

    def question() -> pl.DataFrame:
        rows = flags_at_rate(results, rate, WantedFlags(users=tuple(user_ids)).expression())
        lists = rows.select("path", "row", entry=pl.concat_list(entry, *entry_lists))
        entries = lists.explode("entry").unnest("entry").unique()
        user_entries = entries.filter(pl.col("user_id").is_in(list(user_ids)))
        return user_entries.join(user_messages, on=_PLACE, how="anti").collect()

    stranger_entries = ask(results, question)
    documents = stranger_entries.group_by("user_id").agg(pl.struct("path", "row").n_unique())
    return dict(documents.sort("user_id").iter_rows())


def unless_contradicted(row: Row, sentence: str) -> RegistryCheck:
    """Return the word on a row for which the registry was not asked: a row that says two things contradicts itself."""
    return RegistryCheck(False, _TWO_THINGS) if row["naming"] == Naming.CONTRADICTED else RegistryCheck(None, sentence)


def _flag_time(row: Row, ran: ScanOfRow, numbers: Mapping[str, int]) -> _FlagTime | None:
    if ran.began is None or ran.ended is None:
        return None
    number = numbers.get(ran.head) if ran.head else -1 if ran.recorded else None
    existed = row["first_seen_at"] if "first_seen_at" in row else row.get("last_post")
    times = [existed or ran.began, ran.began, *(() if ran.file is None else (ran.file,))]
    if row.get("created_at") is not None:
        times.append(_LAST_DAY if row["created_at"] > _LAST_DAY else row["created_at"] + _DAY)  # a date's last moment
    ended = min(row["scanned_at"], ran.ended)
    lost = ran.head is not None and number is None
    return _FlagTime(min(times), ran.began, ended, number, lost, numbers.get(ran.next_head or ""))


def _entries(row: Row) -> Iterator[Row]:
    """Yield the row itself and the entries of NAMED beside it, those whose naming follows from the registry."""
    for entry in (row, *(row.get("named") or ()), *(row.get("further_messages") or ())):
        if entry["message"] is not None and entry["naming"] in OF_REGISTRY:
            yield entry


def _checked(
    row: Row, ran: ScanOfRow, numbers: Mapping[str, int], holders: Mapping[tuple[str, int], Row]
) -> RegistryCheck:
    if row["naming"] == Naming.CONTRADICTED:
        return RegistryCheck(False, _TWO_THINGS)
    erased, sentence, flag_time = set[tuple[str, int]](), "it says the same", _flag_time(row, ran, numbers)
    if flag_time is None:
        return RegistryCheck(False, _NO_SCAN) if any(_entries(row)) else RegistryCheck(None, "nobody is named")
    # differences: a time that somebody wrote over may be the first or the last there is, which nothing is added to
    early, late = flag_time.began - row["scanned_at"], row["scanned_at"] - (ran.ended or flag_time.ended)
    if max(early, late) > _CLOCKS:
        when = f"{row['scanned_at']:%Y-%m-%d %H:%M:%S} UTC"
        return RegistryCheck(False, f"the row was scanned at {when}, and its scan did not run then. {CHANGED_ROW}")
    for entry in _entries(row):
        held = holders.get((entry["key_id"], entry["message"]))
        answers = list(_possible(entry["message"], held, flag_time))
        recorded = (Naming(entry["naming"]), entry["user_id"])
        as_erased = (Naming.NAMED, None) in answers
        if as_erased and recorded[0] in (Naming.NAMED, Naming.REMOVED):  # an erasure from results leaves `removed`
            if recorded[1] is not None:
                erased.add((entry["key_id"], entry["message"]))
        elif recorded not in answers and not (recorded == (Naming.NAMED, None) and answers[-1][0] == Naming.NAMED):
            return RegistryCheck(False, _contradiction(entry, held, answers[-1], flag_time))
        since = entry.get("held_since")
        if recorded[0] == Naming.NAMED and held is not None and since not in (None, held["allocated_at"]):
            return RegistryCheck(False, _contradiction(entry, held, answers[-1], flag_time))
        if entry is row and recorded[0] == Naming.NAMED and held is not None:
            sentence = "it gave the message to this user" + _until(held["removed_at"])
    return RegistryCheck(None, _ERASED, frozenset(erased)) if erased else RegistryCheck(True, sentence)


def _possible(message: int, held: Row | None, flag_time: _FlagTime) -> Iterator[tuple[Naming, str | None]]:
    """Yield what a worker of the scan may have found, the last as the registry has it."""
    if is_reserved(message):
        yield Naming.RESERVED, None
        return
    given_at = (held["seq"], held["allocated_at"]) if held is not None else None
    if given_at is None or not flag_time.surely(*given_at):
        yield from ((naming, None) for naming in reversed(_NOBODY))
    if held is None or given_at is None or not flag_time.perhaps(*given_at):
        return
    if held["allocated_at"] > flag_time.at:
        yield Naming.HELD_LATER, None
        return
    removal = (held["removed_seq"], held["removed_at"]) if held["removed_at"] is not None else None
    if removal is not None and flag_time.perhaps(*removal):
        yield Naming.REMOVED, None
    if removal is None or not flag_time.surely(*removal):
        yield Naming.NAMED, held["user_id"]


def _contradiction(entry: Row, held: Row | None, answer: tuple[Naming, str | None], flag_time: _FlagTime) -> str:
    since = "" if held is None else f" (given {held['allocated_at']:%Y-%m-%d %H:%M} UTC{_until(held['removed_at'])})"
    if flag_time.lost:
        chain = "its chain never had the head that this scan wrote down, so it is older than these results, or another"
    elif flag_time.number is None:
        chain = f"one of the two was changed; {_VERIFY}"
    else:
        chain = f"its chain has the head that this scan wrote down, so the row was changed; {_VERIFY}"
    row = _words(Naming(entry["naming"]), entry["user_id"])
    by_registry = _words(answer[0], answer[1])
    if answer[0] == Naming.NAMED and answer[1] == entry["user_id"]:
        row += f" since {entry['held_since']:%Y-%m-%d %H:%M} UTC"
    return f"the row says that {row}; the registry, that {by_registry}{since}. Name nobody by this row: {chain}"


def _until(removed_at: datetime | None) -> str:
    return "" if removed_at is None else f", and withdrew it {removed_at:%Y-%m-%d %H:%M} UTC"


def _words(naming: Naming, user_id: str | None) -> str:
    user = "a user whose name was erased" if user_id is None else f"user {printable(user_id, _LONGEST_ID)}"
    return {
        Naming.NAMED: f"{user} held the message then",
        Naming.HELD_LATER: "its user got the message after the document existed",
        Naming.RESERVED: "the message is reserved, and nobody's",
        Naming.REMOVED: "the user who held the message had been removed",
    }.get(naming, "nobody held the message then")

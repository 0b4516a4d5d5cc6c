"""Handle a reviewer's work on the flags of a scan: list them, show one, record a decision on it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlencode

import polars as pl

from scanner.errors import Refused
from scanner.evidence.advice import Advice, Precision, advise, others_can_mark, precision, version_of
from scanner.evidence.case import FlagCase, find_case
from scanner.evidence.copied_text import earlier_of_others
from scanner.evidence.explainer import Explainer, Glance
from scanner.evidence.explanation import Explanation
from scanner.looks.marked_account import AccountExplanation, AccountLine
from scanner.looks.marked_accounts import account_look, marked_accounts
from scanner.night_report import Line, line_of
from scanner.printable import printable
from scanner.results import current_decisions
from scanner.results.decision_log import (
    DECIDED_ON,
    NewDecision,
    State,
    decide,
    on_documents,
    recorded_decision,
    users_of,
)
from scanner.results.flags import FlagCount, WantedFlags, by_need, count_flags, flags_at
from scanner.results.queries import ask, keys_of_scans, of_trial
from scanner.signing import unchecked
from schemas.words import Naming


class ChangedText(Refused):
    """The text is not the one that the reviewer saw. Nothing was recorded."""


class DocumentPlace(NamedTuple):
    """The place of a document."""

    path: str
    row: int


STATES: Mapping[str, State | None] = {"open": "open", "unclear": "unclear", "decided": "decided", "all": None}
"""Choices of the list, each with the state of its flags. None: any state."""


_NOTHING = {
    "open": "All flags have been reviewed.",
    "unclear": "No flags were left unclear.",
    "decided": "No flag has a decision yet.",
    "all": "Nothing was flagged.",
}


@dataclass(frozen=True)
class FlagRequest:
    """The flags that a reviewer asked for, as in the address of each page. Empty fields ask for any.

    user: a part of the user's name, in upper or lower case.
    account: a part of the account's name, in upper or lower case.

    Raises:
        Refused: the state is none of STATES.
    """

    state: str = "open"
    user: str = ""
    account: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise Refused(f"state {self.state[:40]!r}: allowed are {', '.join(STATES)}")

    @property
    def choice(self) -> WantedFlags:
        """Return the same request in the form that lists of flags take."""
        keys = (self.key,) if self.key else ()
        return WantedFlags(keys=keys, state=STATES[self.state], user_part=self.user, account_part=self.account)

    @property
    def filters(self) -> str:
        """Return the requested user, account and key in words. Empty: none is requested."""
        parts = (
            ("the user", "contains", self.user),
            ("the account", "contains", self.account),
            ("the key", "is", self.key),
        )
        return " and ".join(f"{name} {relation} “{printable(value, 60)}”" for name, relation, value in parts if value)

    @property
    def nothing(self) -> str:
        """Return the sentence to show if no flag fits the request."""
        if self.filters:
            return f"There are no {'' if self.state == 'all' else self.state + ' '}flags where {self.filters}."
        return _NOTHING[self.state]

    def unfiltered(self, page: str) -> str:
        """Return the address of a page with flags of the same state, of any user, account and key."""
        return FlagRequest(self.state).address(page)

    def address(self, page: str, **more: object) -> str:
        """Return the address of a page of the app with the same request."""
        fields = {name: value for name, value in (asdict(self) | more).items() if value != ""}
        return f"{page}?{urlencode(fields)}"


LINES_A_PAGE = 100

MOST_LEFT = 10_000
"""Largest number of remembered pages of flags that a reviewer left."""


class LikestPost(NamedTuple):
    """The earlier post of another account that is most like a flagged text, and the address of its page."""

    account_id: str
    address: str


class ListedFlag(NamedTuple):
    """A flag in the list.

    glance: beginning of its text. None: the text cannot be read.
    copies: number of copies of the text among the requested flags.
    version: version of the key.
    cautious: whether anybody besides the user can make its mark.
    owned: as `Explanation.owned`.
    need: its index in IN_NEED.
    address: address of its page.
    """

    line: Line
    glance: Glance | None
    copies: int
    version: str
    cautious: bool
    owned: bool | None
    like: LikestPost | None
    need: int
    decided: list[dict[str, Any]]
    address: str


class FlagCounts(NamedTuple):
    """Numbers of flags that are requested, and that are hidden by the requested state and by the other filters."""

    on_list: int
    by_state: int
    by_filters: int
    total: FlagCount


class FlagPage(NamedTuple):
    """Some of the requested flags.

    first: number of flags before them.
    keys: all keys of all scans.
    not_checked: why nobody checked that the tables are as brickscan wrote them. None: they are.
    """

    entries: Sequence[ListedFlag]
    first: int
    counts: FlagCounts
    measured: Precision
    keys: list[str]
    not_checked: str | None


class ListedAccounts(NamedTuple):
    """Some of `total` marked accounts.

    not_checked: why nobody checked that the tables are as brickscan wrote them. None: they are.
    """

    lines: Sequence[AccountLine]
    total: int
    not_checked: str | None


class FlagView(NamedTuple):
    """One flag.

    number: its place among the requested flags, from 1. None: it is not among them.
    total: number of requested flags.
    """

    explained: Explanation
    decided: list[dict[str, Any]]
    number: int | None
    total: int
    before: DocumentPlace | None
    after: DocumentPlace | None


class ReviewSession:
    """The flags of one folder of results, for one reviewer. Methods may be called from several threads.

    Args:
        explainer: explainer of the results.
        by: the reviewer.
    """

    def __init__(self, explainer: Explainer, by: str) -> None:
        self._explainer, self.by = explainer, by
        self._explaining = Lock()  # an Explainer reads files and opens keys while it works
        self.results, self._rate = explainer.results, explainer.rate
        self._canaries = explainer.canaries
        self._glances: dict[tuple[Any, ...], Glance | None] = {}
        self._left: dict[str, None] = {}
        self._advice: dict[tuple[Any, ...], Advice] = {}

    def list(self, request: FlagRequest, first: int) -> FlagPage:
        """Return LINES_A_PAGE of the requested flags, beginning at a place.

        Flags that need a decision most come first.
        """
        order = self._order(request.choice)
        page = order.slice(first, LINES_A_PAGE)
        rows = flags_at(self.results, self._rate, request.choice, page)
        decisions = ask(self.results, lambda: current_decisions(self.results).collect())
        entries = self._entries(request, rows, page.to_dicts())
        counts = self._counts(request, len(order))
        keys = keys_of_scans(self.results)
        return FlagPage(entries, first, counts, precision(decisions), keys, unchecked(self.results))

    def _order(self, choice: WantedFlags) -> pl.DataFrame:
        return by_need(self.results, self._rate, choice, self._canaries)

    def _counts(self, request: FlagRequest, on_list: int) -> FlagCounts:
        def counted(choice: WantedFlags) -> FlagCount:
            return count_flags(self.results, self._rate, choice, self._canaries)

        total, state_count = counted(WantedFlags()), counted(WantedFlags(state=request.choice.state))
        return FlagCounts(on_list, total.flagged - state_count.flagged, state_count.flagged - on_list, total)

    def _entries(
        self, request: FlagRequest, rows: Sequence[Mapping[str, Any]], places: Sequence[Mapping[str, Any]]
    ) -> Sequence[ListedFlag]:
        decisions, earlier_posts = on_documents(self.results, rows), earlier_of_others(self.results, self._rate, rows)
        glances = self._glances_at(rows)

        def entry(row: Mapping[str, Any], place: Mapping[str, Any]) -> ListedFlag:
            key = self._explainer.key_on_record(row["key_id"])
            first = next(iter(earlier_posts.get((row["path"], row["row"]), ())), None)
            return ListedFlag(
                line_of(row),
                glances[_document(row)],
                place["copies"],
                version_of(key),
                others_can_mark(key),
                self._explainer.is_owned(row) if row["account_id"] is not None and users_of(row) else None,
                None if first is None else LikestPost(first["account_id"], _address(first)),
                place["need"],
                decisions.get(_document(row), []),
                request.address("/flag", path=row["path"], row=row["row"]),
            )

        return [entry(row, place) for row, place in zip(rows, places, strict=True)]

    def _glances_at(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[tuple[Any, ...], Glance | None]:
        """Return the beginning of each text, by the columns DECIDED_ON.

        Each text is read once, in the order of its file.
        """
        with self._explaining:
            for row in sorted(rows, key=_document):
                if _document(row) not in self._glances:
                    self._glances[_document(row)] = self._explainer.glance(FlagCase(row, None))
        return self._glances

    def view_flag(self, request: FlagRequest, place: DocumentPlace) -> FlagView:
        """Return one flag, with its neighbours in the list.

        Raises:
            Refused: there is no such flag.
        """
        case = find_case(self.results, self._rate, f"{place.path}:{place.row}")
        places = [DocumentPlace(*row) for row in self._order(request.choice).select("path", "row").iter_rows()]
        decisions = on_documents(self.results, [case.row]).get(_document(case.row), [])
        with self._explaining:  # after all rows were read, because it reports whether these were checked
            (explained,) = self._explainer.explain_cases([case])
        self._advice[_document(case.row)] = advise(explained)
        if place not in places:  # a decision was made on it, so it is no longer open: continue with the first
            return FlagView(explained, decisions, None, len(places), None, next(iter(places), None))
        i = places.index(place)
        previous_place, next_place = places[i - 1] if i else None, places[i + 1] if i + 1 < len(places) else None
        return FlagView(explained, decisions, i + 1, len(places), previous_place, next_place)

    def advice(self, place: DocumentPlace, text_sha256: str) -> Advice:
        """Return the advice on a flag's page, as last shown. Raises as `decide` does."""
        document = _document(self._flag_as_shown(place, text_sha256))
        if document not in self._advice:
            self.view_flag(FlagRequest("all"), place)
        return self._advice[document]

    def accounts(self, first: int) -> ListedAccounts:
        """Return LINES_A_PAGE marked accounts, beginning at a place. Accounts named for a user come first."""
        with self._explaining:
            rows = marked_accounts(self._explainer)
        rows.sort(key=lambda row: row["naming"] != Naming.NAMED)
        trial = bool(ask(self.results, lambda: of_trial(self.results)))
        lines = []
        for row in rows[first : first + LINES_A_PAGE]:
            address = f"/account?{urlencode({'id': row['account_id'], 'night': row['night']})}"
            lines.append(account_look().line_of_account(row, address, trial=trial))
        return ListedAccounts(lines, len(rows), unchecked(self.results))

    def account(self, account_id: str, night: date) -> Sequence[AccountExplanation]:
        """Explain a marked account in a night. Raises as `explain_account` does."""
        with self._explaining:
            return account_look().explain_account(self._explainer, account_id, night)

    def _flag_as_shown(self, place: DocumentPlace, text_sha256: str) -> Mapping[str, Any]:
        """Return the flag whose text has a hexadecimal digest: a row of schemas.tables.VERDICTS with `audit`.

        Raises:
            ChangedText: another text is at this place now.
            Refused: there is no such flag.
        """
        flag = find_case(self.results, self._rate, f"{place.path}:{place.row}").row
        if flag["text_sha256"].hex() != text_sha256:
            raise ChangedText("the text there now is not the one that you saw: look at it, and decide again")
        return flag

    def leave(self, decision_id: str) -> None:
        """Make no decision any more with the form of a page that a reviewer has left."""
        self._left[decision_id] = None
        while len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]

    def decide(self, place: DocumentPlace, text_sha256: str, made: NewDecision) -> Mapping[str, Any]:
        """Record a decision on a flag as its page showed it. Return its row.

        Raises:
            ChangedText: another text is at this place now, the reviewer left the form's page, or the form was already
            used for
                another decision.
            Refused: there is no such flag.
            ScanFailed: the table cannot be written.
        """
        flag = self._flag_as_shown(place, text_sha256)
        if made.decision_id in self._left and recorded_decision(self.results, made.decision_id) is None:
            raise ChangedText(
                f"nothing was recorded on {place.path}:{place.row}: you had moved on to another page; open the flag "
                "again to decide on it"
            )
        row = decide(self.results, flag, made)
        submission = (*_document(flag), made.decision, made.note, made.decided_by)
        if (*_document(row), row["decision"], row["note"] or "", row["decided_by"]) != submission:
            raise ChangedText(
                f"this form was sent before and recorded as {row['decision']} by {printable(row['decided_by'], 60)}: "
                "reload the flag to change that"
            )
        return row


def _address(row: Mapping[str, Any]) -> str:
    return FlagRequest("all").address("/flag", path=row["path"], row=row["row"])


def _document(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in DECIDED_ON)

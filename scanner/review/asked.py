"""Which flags a reviewer asked for: the address of each page holds it, and a page without flags says it in words."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlencode

from scanner.errors import Refused
from scanner.printable import printable
from scanner.results.decided import State
from scanner.results.wanted_flags import WantedFlags

STATES: Mapping[str, State | None] = {"open": "open", "unclear": "unclear", "decided": "decided", "all": None}
"""Choices of the list, each with the state of its flags; None: any."""


_NOTHING = {
    "open": "All flags were looked at.",
    "unclear": "No flag was left unclear.",
    "decided": "Nobody decided on a flag yet.",
    "all": "Nothing was flagged.",
}


@dataclass(frozen=True)
class Asked:
    """Which flags a reviewer asked for, as it stands in the address of each page; empty: any.

    user, account: a part of the name, in upper or lower case.

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
    def wanted(self) -> WantedFlags:
        """The same choice in the form that lists of flags take."""
        keys = (self.key,) if self.key else ()
        return WantedFlags(keys=keys, state=STATES[self.state], user_part=self.user, account_part=self.account)

    @property
    def filters(self) -> str:
        """The choice of user, account and key, in words; empty: none."""
        parts = (
            ("the user", "contains", self.user),
            ("the account", "contains", self.account),
            ("the key", "is", self.key),
        )
        return " and ".join(f"{name} {how} “{printable(value, 60)}”" for name, how, value in parts if value)

    @property
    def nothing(self) -> str:
        """What to say where no flag is as asked for."""
        if self.filters:
            return f"No {'' if self.state == 'all' else self.state + ' '}flag is one where {self.filters}."
        return _NOTHING[self.state]

    def unfiltered(self, page: str) -> str:
        """Address of a page with flags of the same state, whatever their user, account and key."""
        return Asked(self.state).address(page)

    def address(self, page: str, **more: object) -> str:
        """Address of a page of the app that keeps this choice."""
        fields = {name: value for name, value in (asdict(self) | more).items() if value != ""}
        return f"{page}?{urlencode(fields)}"

"""Define the interface of marked accounts: lists, pages, exports and reviews use it to ask the look that finds them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple, Protocol

from scanner.evidence.explainer import Explainer
from scanner.text.quoting import TextPart, parts_of

NO_DECISION = (
    "decisions are not recorded on accounts: a decision is about one text, and the posts of an account change from "
    "night to night. If single posts are flagged, decide on those"
)
"""Sentence that explains why an account has no decisions."""


class AccountPost(NamedTuple):
    """A post of a marked account.

    scored: number of scored tokens, of all its words.
    level, own_level: how strongly all of its words, or only its own words, show the mark, 0 to len(RUN_STRENGTHS).
        None: fewer than TOKENS_A_RUN tokens are scored, or the key cannot be opened.
    """

    path: str
    row: int
    created_at: datetime | None
    text: str
    scored: int
    level: int | None
    own_level: int | None

    @property
    def parts(self) -> list[TextPart]:
        """Return quoted lines and own words, in order."""
        return parts_of(self.text)


@dataclass(frozen=True)
class AccountExplanation:
    """The explanation of a marked account.

    row: row of ACCOUNTS with `audit`.
    not_checked: reason why the tables were not checked to be as brickscan wrote them. None: they were.
    trial: whether its keys are dated back.
    posts: its posts, strongest first.
    read: number of posts that could be read again.
    no_posts: reason why none could be read. None: some could.
    log10_p, log10_p_own: log10 p of all posts, and of own words only, as they are read now, corrected as in the row.
        NaN: too few tokens. None: not computed, for the reason `no_evidence`.
    """

    row: Mapping[str, Any]
    not_checked: str | None
    trial: bool
    posts: Sequence[AccountPost]
    read: int
    no_posts: str | None
    log10_p: float | None
    log10_p_own: float | None
    no_evidence: str | None


class AccountLine(NamedTuple):
    """A marked account in a list.

    address: link to its page. Empty: it has none.
    """

    account: str
    night: str
    user: str
    to_do: str
    posts: str
    quoted: str
    chance: str
    address: str


class AccountLook(Protocol):
    """A look that finds accounts whose posts together are marked, and tells people about them."""

    def none_tested(self, results: str) -> bool:
        """Return whether no scan tested accounts."""

    def marked_accounts(
        self, explainer: Explainer, night: date | None = None, account_ids: Sequence[str] = ()
    ) -> list[Mapping[str, Any]]:
        """Return rows of ACCOUNTS with `audit`, smallest p first.

        Args:
            explainer: of the results.
            night: date of the data. None: the newest row of each account.
            account_ids: only these accounts. Empty: all accounts.
        """

    def accounts_unread(self, explainer: Explainer) -> list[AccountExplanation]:
        """Return all marked accounts, each without its posts."""

    def explain_account(
        self, explainer: Explainer, account_id: str, night: date | None = None
    ) -> list[AccountExplanation]:
        """Explain a marked account: its newest row, or its row of a night, one for each set of keys.

        Raises:
            Refused: the account is not marked.
        """

    def line_of_account(self, row: Mapping[str, Any], address: str, *, trial: bool) -> AccountLine:
        """Write a row of ACCOUNTS as a line of a list."""

    def users_named(self, row: Mapping[str, Any]) -> list[str]:
        """Return the ids of the users whom an account's row names."""

    def what_was_found(self, explained: AccountExplanation) -> Iterator[tuple[str, str]]:
        """Yield pairs of a heading and a sentence."""

    def posts_in_words(self, explained: AccountExplanation, most: int = ...) -> str:
        """Write a sentence on which posts are shown."""

    def about_post(self, post: AccountPost) -> str:
        """Write a sentence on when and where a post was, and how strongly it shows the mark."""

    def about_account(self, found: Sequence[AccountExplanation]) -> dict[str, Any]:
        """Return values for the template `account.html.j2`."""

    def account_page(self, found: Sequence[AccountExplanation], back: str | None = None) -> str:
        """Return the page of an account, as HTML. `back` is a link to its night."""

    def record_of_account(self, explained: AccountExplanation) -> dict[str, Any]:
        """Return a record for json.dumps."""

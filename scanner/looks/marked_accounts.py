"""List the look that finds marked accounts. Without a look, no account is marked."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from scanner.errors import Refused
from scanner.evidence.explainer import Explainer
from scanner.looks.accounts import explanation
from scanner.looks.marked_account import AccountExplanation, AccountLook

ACCOUNT_LOOKS: tuple[AccountLook, ...] = (explanation,)
"""The only such look, on a line that can be deleted together with its folder."""


def account_look() -> AccountLook:
    """Return the look.

    Raises:
        Refused: there is none.
    """
    for look in ACCOUNT_LOOKS:
        return look
    raise Refused("this installation does not test accounts")


def none_tested(results: str) -> bool:
    """Return whether no scan tested accounts."""
    return not ACCOUNT_LOOKS or account_look().none_tested(results)


def marked_accounts(
    explainer: Explainer, night: date | None = None, account_ids: Sequence[str] = ()
) -> list[Mapping[str, Any]]:
    """See AccountLook.marked_accounts. Empty if there is no look."""
    return account_look().marked_accounts(explainer, night, account_ids) if ACCOUNT_LOOKS else []


def accounts_unread(explainer: Explainer) -> list[AccountExplanation]:
    """See AccountLook.accounts_unread. Empty if there is no look."""
    return account_look().accounts_unread(explainer) if ACCOUNT_LOOKS else []

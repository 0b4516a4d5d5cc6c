"""The decision that a flag's page recommends, and why: the first row of one table that fits what the page shows.

It recommends and decides nothing. Whose account it is, and what a platform allows, only its own records tell.
"""

from collections.abc import Callable
from typing import NamedTuple

from scanner.evidence.explanation import Explanation
from scanner.evidence.sentences import QUOTED, WHY_NOBODY, name
from scanner.results.decision_log import users_of
from scanner.watermark.formats import format_of
from schemas.registry import MasterKey
from schemas.words import AuditState, Decision, Naming, Proof

COPIED = 0.5
"""Least share of what was scored that stands in earlier posts of other accounts, for a text to be called a copy."""


class Rule(NamedTuple):
    """A row of the table: what is seen, what to record (None: nothing), and whether a flag fits."""

    what: str
    decision: Decision | None
    fits: Callable[[Explanation], bool]


def _not_to_be_used(explained: Explanation) -> bool:
    row = explained.row
    refuted = row["proof"] == Proof.DIFFERS or row["naming"] in (Naming.UNPROVED, Naming.CONTRADICTED)
    return bool(refuted or row["audit"] == AuditState.ALARM)


def _for_nobody_known(explained: Explanation) -> bool:
    row = explained.row
    held = row["user_id"] is not None and explained.registry.agrees is True
    return row["naming"] != Naming.EVERYBODY and not (row["naming"] == Naming.NAMED and held)


def others_can_mark(key: MasterKey | None) -> bool:
    """Whether others than the user can make the mark of a key, as far as its record shows."""
    if key is None or format_of(key).generator is not None:  # a generator's caution is about marks that are missed
        return False
    return bool(format_of(key).cautions(key.messages))


def version_of(key: MasterKey | None) -> str:
    """The version of this project's format of a key, or the name of a stack's format, in words."""
    if key is None:
        return "key not on record"
    form = format_of(key)
    return form.name if form.version is None else f"version {form.version}"


def _others_can_make_it(explained: Explanation) -> bool:
    return explained.generator is None and others_can_mark(explained.key)


def _in_quoted_lines(explained: Explanation) -> bool:
    spans = explained.spans
    return explained.carried_by == "quoted" or bool(spans and all(span["quoted"] >= QUOTED for span in spans))


def _copied(explained: Explanation) -> bool:
    return explained.copied is not None and explained.copied.share >= COPIED and not _names_are_equal(explained)


def _names_are_equal(explained: Explanation) -> bool:
    return explained.row["account_id"] in users_of(explained.row)


RULES = (
    Rule(
        "the audit alarmed, the registry says otherwise, or it came out differently when it was computed again",
        None,
        _not_to_be_used,
    ),
    Rule(
        "the message is reserved: it belongs to nobody",
        Decision.DISMISSED,
        lambda explained: explained.row["naming"] == Naming.RESERVED,
    ),
    Rule(
        "a test: the mark of a trial, or of a canary",
        Decision.ALLOWED,
        lambda explained: explained.canary or bool((explained.case.scan or {}).get("trial")),
    ),
    Rule("too little to name a user, or the registry does not know the user", Decision.UNCLEAR, _for_nobody_known),
    Rule("others can make this key's mark, as under version 1", Decision.UNCLEAR, _others_can_make_it),
    Rule(
        "the text that was scanned cannot be shown, or not weighed",
        Decision.UNCLEAR,
        lambda explained: explained.text is None or explained.weighed is None,
    ),
    Rule("quoted lines carry it all", Decision.QUOTED, _in_quoted_lines),
    Rule("most of it stands in earlier posts of other accounts", Decision.QUOTED, _copied),
    Rule(
        "the account is not known",
        Decision.UNCLEAR,
        lambda explained: explained.row["account_id"] is None,
    ),
    Rule(
        "account and user differ, unless your records say that they are one person",
        Decision.UNCLEAR,
        lambda explained: explained.row["naming"] == Naming.NAMED and not _names_are_equal(explained),
    ),
    Rule("the mark is there, in words of the account's own", Decision.CONFIRMED, lambda _: True),
)


class Advice(NamedTuple):
    """The recommended decision, None: to record nothing; rule: the place in RULES of the row that fits."""

    rule: int
    decision: Decision | None

    @property
    def why(self) -> str:
        """What is seen."""
        return RULES[self.rule].what


def advise(explained: Explanation) -> Advice:
    """The first row of RULES that fits a flag."""
    number = next(number for number, rule in enumerate(RULES) if rule.fits(explained))
    return Advice(number, RULES[number].decision)


def in_short(explained: Explanation) -> str:
    """One line to decide by: for whom it is marked, who posted it, and under which key."""
    row = explained.row
    users = ", ".join(name(user) for user in users_of(row)[:3])
    marked = f"Marked for {users or 'a user whose name was erased'}"
    if row["naming"] != Naming.NAMED:
        marked = f"Nobody is named: {WHY_NOBODY[row['naming']]}"
    whose = ""
    if row["naming"] == Naming.NAMED and row["account_id"] is not None:
        whose = " (the same name)" if _names_are_equal(explained) else " (another name)"
    version = "" if explained.key is None else f", {version_of(explained.key)}"
    version += ": others can make its mark" * _others_can_make_it(explained)
    return f"{marked}; posted by account {name(row['account_id'])}{whose}; key {name(row['key_id'])}{version}"

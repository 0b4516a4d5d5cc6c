"""Recommend a decision about a flag, and say how often such flags were right.

The decision is advice: it decides nothing, since only a platform's own records tell whose an account is, and what is
allowed. Beside it stands how often such flags were right. A flag is right where the mark is there, whoever posted it:
`confirmed`, `quoted` and `allowed` say so, `dismissed` says that it is not. Distinct texts are counted, since copies of
one text are one piece of evidence. A text on which decisions differ, or that was left unclear, counts for neither, and
the words say how many such texts there are.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import polars as pl

from scanner.audit.statistics.judgement import Limits, binomial_limits
from scanner.evidence.explanation import Explanation
from scanner.evidence.sentences import SHARE_OF_QUOTED_LINES, account_of, name
from scanner.printable import at_most, counted
from scanner.results.decision_log import DECIDED_ON, users_of
from scanner.watermark.formats import format_of
from schemas.registry import MasterKey
from schemas.words import WHY_NOBODY, AuditState, Naming, Proof, ReviewDecision

PRECISION_RISK = 0.025
"""Risk that one limit of the interval misses; both together: 5 %."""


_RIGHT = (ReviewDecision.CONFIRMED, ReviewDecision.QUOTED, ReviewDecision.ALLOWED)


class Precision(NamedTuple):
    """Distinct texts with decisions.

    right: texts whose flags are right.
    wrong: texts whose flags are wrong.
    differ: texts on which decisions differ.
    unclear: texts that every decision leaves unclear.
    """

    right: int
    wrong: int
    differ: int
    unclear: int

    @property
    def texts(self) -> int:
        """All texts with decisions."""
        return sum(self)

    @property
    def share(self) -> float | None:
        """Share of right texts among right and wrong ones; None where there are none."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def limits(self) -> Limits | None:
        """Exact limits of the share (Clopper and Pearson, 95 %), for texts that were drawn at random."""
        return binomial_limits(self.right, self.right + self.wrong, PRECISION_RISK) if self.right + self.wrong else None

    def in_words(self) -> str:
        """Return the share of right texts with its interval. The caller says what the share leaves out."""
        if self.share is None or self.limits is None:
            return "not known"
        low, high = self.limits
        return f"{self.share:.1%} ({low:.1%} to {high:.1%} with 95 % confidence)"

    def counts_in_words(self) -> str:
        """Return the counts of all texts with decisions.

        For example `12 right, 3 wrong; left out: 4 unclear and 1 on which deciders differ`.
        """
        not_counted = [f"{self.unclear:,} unclear"] * (self.unclear > 0)
        not_counted += [f"{self.differ:,} on which deciders differ"] * (self.differ > 0)
        counted = f"{self.right:,} right, {self.wrong:,} wrong"
        return f"{counted}; left out: {' and '.join(not_counted)}" if not_counted else counted


def precision(decisions: pl.DataFrame, flags: Sequence[dict[str, object]] | None = None) -> Precision:
    """Count decisions by text.

    Args:
        decisions: current decisions, as in schemas.tables.DECISIONS.
        flags: rows of VERDICTS. Only decisions on these flags count; None counts all.
    """
    if flags is not None:
        kinds = {name: decisions.schema[name] for name in DECIDED_ON}
        flag_rows = pl.DataFrame([{name: row[name] for name in DECIDED_ON} for row in flags], schema=kinds)
        decisions = decisions.join(flag_rows, on=DECIDED_ON, how="semi")
    texts = decisions.group_by("text_sha256").agg(
        right=pl.col("decision").is_in(list(_RIGHT)).any(), wrong=(pl.col("decision") == ReviewDecision.DISMISSED).any()
    )
    counts = {(right, wrong): 0 for right in (True, False) for wrong in (True, False)}
    counts |= {(right, wrong): count for right, wrong, count in texts.group_by("right", "wrong").len().iter_rows()}
    return Precision(counts[True, False], counts[False, True], counts[True, True], counts[False, False])


SHARE_OF_A_COPY = 0.5
"""Least share of what was scored that stands in earlier posts of other accounts, for a text to be called a copy."""


class AdviceRule(NamedTuple):
    """A row of the table.

    finding: what is seen.
    decision: what to record, None: nothing.
    fits: whether a flag fits the row.
    """

    finding: str
    decision: ReviewDecision | None
    fits: Callable[[Explanation], bool]


def _not_to_be_used(explained: Explanation) -> bool:
    row = explained.row
    refuted = row["proof"] == Proof.DIFFERS or row["naming"] == Naming.UNPROVED
    return bool(refuted or row["audit"] == AuditState.ALARM)


def _for_nobody_known(explained: Explanation) -> bool:
    row = explained.row
    return row["naming"] != Naming.EVERYBODY and not (row["naming"] == Naming.NAMED and row["user_id"] is not None)


def others_can_mark(key: MasterKey | None) -> bool:
    """Return whether others than the user can make the mark of a key, as far as its record shows."""
    if key is None or format_of(key).generator is not None:  # a generator's caution is about marks that are missed
        return False
    return bool(format_of(key).cautions(key.messages))


def version_of(key: MasterKey | None) -> str:
    """Return the version of this project's format of a key, or the name of a stack's format, in words."""
    if key is None:
        return "key not on record"
    form = format_of(key)
    return form.name if form.version is None else f"version {form.version}"


def _others_can_make_it(explained: Explanation) -> bool:
    return explained.generator is None and others_can_mark(explained.key)


def _in_quoted_lines(explained: Explanation) -> bool:
    spans = explained.spans
    return explained.carried_by == "quoted" or bool(
        spans and all(span["quoted"] >= SHARE_OF_QUOTED_LINES for span in spans)
    )


def _copied(explained: Explanation) -> bool:
    return explained.copied is not None and explained.copied.share >= SHARE_OF_A_COPY and not explained.owned


RULES = (
    AdviceRule(
        "the audit alarmed, or it came out differently when it was computed again",
        None,
        _not_to_be_used,
    ),
    AdviceRule(
        "the message is reserved: it belongs to nobody",
        ReviewDecision.DISMISSED,
        lambda explained: explained.row["naming"] == Naming.RESERVED,
    ),
    AdviceRule(
        "a test: the mark of a trial, or of a canary",
        ReviewDecision.ALLOWED,
        lambda explained: explained.canary or bool((explained.case.scan or {}).get("trial")),
    ),
    AdviceRule(
        "nobody checked that the tables are as brickscan wrote them",
        None,
        lambda explained: explained.not_checked is not None,
    ),
    AdviceRule(
        "too little to name a user, or the user is not known any more", ReviewDecision.UNCLEAR, _for_nobody_known
    ),
    AdviceRule("others can make this key's mark, as under version 1", ReviewDecision.UNCLEAR, _others_can_make_it),
    AdviceRule(
        "the text that was scanned cannot be shown, or not weighed",
        ReviewDecision.UNCLEAR,
        lambda explained: explained.text is None or explained.text_evidence is None,
    ),
    AdviceRule("quoted lines carry it all", ReviewDecision.QUOTED, _in_quoted_lines),
    AdviceRule("most of it stands in earlier posts of other accounts", ReviewDecision.QUOTED, _copied),
    AdviceRule(
        "the account is not known", ReviewDecision.UNCLEAR, lambda explained: explained.row["account_id"] is None
    ),
    AdviceRule(
        "no record of yours says that the account is the user's",
        ReviewDecision.UNCLEAR,
        lambda explained: explained.row["naming"] == Naming.NAMED and not explained.owned,
    ),
    AdviceRule(
        "it is marked for others too than the account's user: see whose each part is",
        ReviewDecision.UNCLEAR,
        lambda explained: len(users_of(explained.row)) > 1,
    ),
    AdviceRule("the mark is there, in words of the account's own", ReviewDecision.CONFIRMED, lambda _: True),
)


class Advice(NamedTuple):
    """The advice on a flag.

    rule: the place in RULES of the row that fits.
    decision: the recommended decision, None: to record nothing.
    """

    rule: int
    decision: ReviewDecision | None

    @property
    def why(self) -> str:
        """What is seen."""
        return RULES[self.rule].finding


def advise(explained: Explanation) -> Advice:
    """Return the advice of the first row of RULES that fits a flag."""
    number = next(number for number, rule in enumerate(RULES) if rule.fits(explained))
    return Advice(number, RULES[number].decision)


OWNERSHIP = {
    True: "by your records this user's account",
    False: "by your records not this user's account",
    None: "no record says whose account it is",
}
"""What is known of an account that posted a flag, by `Explanation.owned`."""


def in_short(explained: Explanation) -> str:
    """Return one line to decide by: for whom the text is marked, who posted it, and under which key."""
    row = explained.row
    users = ", ".join(name(user) for user in users_of(row)[:3])
    marked = f"Marked for {users or 'a user whose name was erased'}"
    if row["naming"] != Naming.NAMED:
        marked = f"Nobody is named: {WHY_NOBODY[row['naming']]}"
    ownership = ""
    if row["naming"] == Naming.NAMED and row["account_id"] is not None:
        ownership = f" ({OWNERSHIP[explained.owned]})"
    version = "" if explained.key is None else f", {version_of(explained.key)}"
    version += ": others can make its mark" * _others_can_make_it(explained)
    return f"{marked}; posted by {account_of(row)}{ownership}; key {name(row['key_id'])}{version}"


def by_chance(explained: Explanation) -> str | None:
    """Say how many flags like this one chance alone gives in a scan of this size.

    Returns:
        A sentence; None where the number is not known.
    """
    if explained.expected is None or explained.case.scan is None:
        return None
    documents = counted(explained.case.scan["documents"], "document")
    return f"In a scan of {documents}, chance alone gives {at_most(explained.expected)} flags with so small a p-value"

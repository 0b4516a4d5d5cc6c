"""Recommend a decision about a flag, and tell how often such flags were right.

The recommendation decides nothing: only a platform's own records show who owns an account, and what is allowed. A flag
is right if the text carries the mark, no matter who posted it. The decisions `confirmed`, `quoted` and `allowed` say
that it does, and `dismissed` says that it does not.

Distinct texts are counted, because copies of one text are one piece of evidence. A text on which decisions differ, or
that was left unclear, counts as neither right nor wrong. The sentence says how many such texts there are.
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
"""Risk that one limit of the interval misses. For both limits together it is 5 %."""


_RIGHT = (ReviewDecision.CONFIRMED, ReviewDecision.QUOTED, ReviewDecision.ALLOWED)


class Precision(NamedTuple):
    """Numbers of distinct texts with decisions.

    right: texts with right flags.
    wrong: texts with wrong flags.
    differ: texts on which decisions differ.
    unclear: texts that every decision leaves unclear.
    """

    right: int
    wrong: int
    differ: int
    unclear: int

    @property
    def texts(self) -> int:
        """Return the number of all texts with decisions."""
        return sum(self)

    @property
    def share(self) -> float | None:
        """Return the share of right texts among right and wrong ones. None: there are neither."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def limits(self) -> Limits | None:
        """Return exact limits of the share (Clopper and Pearson, 95 %), for texts that were drawn at random."""
        return binomial_limits(self.right, self.right + self.wrong, PRECISION_RISK) if self.right + self.wrong else None

    def in_words(self) -> str:
        """Return the share of right texts with its interval. The caller adds what the share leaves out."""
        if self.share is None or self.limits is None:
            return "not known"
        low, high = self.limits
        return f"{self.share:.1%} ({low:.1%} to {high:.1%} with 95 % confidence)"

    def counts_in_words(self) -> str:
        """Return the counts of all texts with decisions.

        For example `12 right, 3 wrong; left out: 4 unclear and 1 on which deciders differ`.
        """
        not_counted = [f"{self.unclear:,} unclear"] * (self.unclear > 0)
        not_counted += [f"{self.differ:,} on which reviewers differ"] * (self.differ > 0)
        counted = f"{self.right:,} right, {self.wrong:,} wrong"
        return f"{counted}; left out: {' and '.join(not_counted)}" if not_counted else counted


def precision(decisions: pl.DataFrame, flags: Sequence[dict[str, object]] | None = None) -> Precision:
    """Count decisions by text.

    Args:
        decisions: current decisions, as in schemas.tables.DECISIONS.
        flags: rows of VERDICTS. Only decisions on these flags count. None: all decisions count.
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
"""Least share of scored tokens that are in earlier posts of other accounts. From here on, a text is called a copy."""


class AdviceRule(NamedTuple):
    """A row of the table of advice.

    finding: the finding, in words.
    decision: the decision to record. None: record nothing.
    fits: returns whether a flag fits the row.
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
    """Return whether anybody besides the user can make the mark of a key, as far as its record shows."""
    if key is None or format_of(key).generator is not None:  # warnings on generators are on missed marks
        return False
    return bool(format_of(key).cautions(key.messages))


def version_of(key: MasterKey | None) -> str:
    """Return the version of a key's format in words if it is this project's own, or the name of the stack's format."""
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
        "the scan's audit raised an alarm, or a second computation of the flag gave a different result",
        None,
        _not_to_be_used,
    ),
    AdviceRule(
        "the message is reserved and never given to a user",
        ReviewDecision.DISMISSED,
        lambda explained: explained.row["naming"] == Naming.RESERVED,
    ),
    AdviceRule(
        "a test: the mark of a trial or of a canary",
        ReviewDecision.ALLOWED,
        lambda explained: explained.canary or bool((explained.case.scan or {}).get("trial")),
    ),
    AdviceRule(
        "the signatures of the results were not checked",
        None,
        lambda explained: explained.not_checked is not None,
    ),
    AdviceRule("no user is named", ReviewDecision.UNCLEAR, _for_nobody_known),
    AdviceRule("others can make this key's mark, as with version 1", ReviewDecision.UNCLEAR, _others_can_make_it),
    AdviceRule(
        "the scanned text cannot be shown or scored again",
        ReviewDecision.UNCLEAR,
        lambda explained: explained.text is None or explained.text_evidence is None,
    ),
    AdviceRule("only quoted lines carry the mark", ReviewDecision.QUOTED, _in_quoted_lines),
    AdviceRule("most of the text is in earlier posts of other accounts", ReviewDecision.QUOTED, _copied),
    AdviceRule(
        "earlier posts of other accounts cannot be read, so the words may be copied",
        ReviewDecision.UNCLEAR,
        lambda explained: explained.copied is not None and explained.copied.not_read > 0 and not explained.owned,
    ),
    AdviceRule("the account is unknown", ReviewDecision.UNCLEAR, lambda explained: explained.row["account_id"] is None),
    AdviceRule(
        "your records do not say that the account is the user's",
        ReviewDecision.UNCLEAR,
        lambda explained: explained.row["naming"] == Naming.NAMED and not explained.owned,
    ),
    AdviceRule(
        "the text is marked for other users too: see which part is marked for whom",
        ReviewDecision.UNCLEAR,
        lambda explained: len(users_of(explained.row)) > 1,
    ),
    AdviceRule("the account's own words carry the mark", ReviewDecision.CONFIRMED, lambda _: True),
)


class Advice(NamedTuple):
    """The advice on a flag.

    rule: index in RULES of the row that fits.
    decision: the recommended decision. None: record nothing.
    """

    rule: int
    decision: ReviewDecision | None

    @property
    def why(self) -> str:
        """Return the finding in words."""
        return RULES[self.rule].finding


def advise(explained: Explanation) -> Advice:
    """Return the advice of the first row of RULES that fits a flag."""
    number = next(number for number, rule in enumerate(RULES) if rule.fits(explained))
    return Advice(number, RULES[number].decision)


OWNERSHIP = {
    True: "this user's account, by your records",
    False: "not this user's account, by your records",
    None: "no record says whose account it is",
}
"""Sentences on the account that posted a flag, by `Explanation.owned`."""


def in_short(explained: Explanation) -> str:
    """Return the deciding facts in one line: for whom the text is marked, who posted it, and under which key."""
    row = explained.row
    users = ", ".join(name(user) for user in users_of(row)[:3])
    marked = f"Marked for {users or 'a user whose name was erased'}"
    if row["naming"] != Naming.NAMED:
        marked = f"No user is named: {WHY_NOBODY[row['naming']]}"
    ownership = ""
    if row["naming"] == Naming.NAMED and row["account_id"] is not None:
        ownership = f" ({OWNERSHIP[explained.owned]})"
    version = "" if explained.key is None else f", {version_of(explained.key)}"
    version += ": others can make its mark" * _others_can_make_it(explained)
    return f"{marked}; posted by {account_of(row)}{ownership}; key {name(row['key_id'])}{version}"


def by_chance(explained: Explanation) -> str | None:
    """Return a sentence on how many flags like this chance gives in a scan of this size.

    None: the number is not known.
    """
    if explained.expected is None or explained.case.scan is None:
        return None
    documents = counted(explained.case.scan["documents"], "document")
    return f"In a scan of {documents}, expect {at_most(explained.expected)} flags this strong by chance"

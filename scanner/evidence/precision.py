"""How often flags were right, by what people decided on them, with an interval.

A flag is right where the mark is there, whoever posted it: `confirmed`, `quoted` and `allowed` say so, `dismissed` says
that it is not. Distinct texts are counted, since copies of one text are one piece of evidence. A text on which
decisions differ, or that was left unclear, counts for neither, and the words say how many such texts there are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from scanner.audit.statistics.judgement import Limits, binomial_limits
from scanner.results.decision_log import DECIDED_ON
from schemas.words import Decision

RISK = 0.025
"""Risk that one limit of the interval misses; both together: 5 %."""

_RIGHT = (Decision.CONFIRMED, Decision.QUOTED, Decision.ALLOWED)


class Precision(NamedTuple):
    """Distinct texts with decisions: right, wrong, with decisions that differ, and left unclear by all."""

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
        """Share of right texts among right and wrong ones; None: there are none."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def limits(self) -> Limits | None:
        """Exact limits of the share (Clopper and Pearson, 95 %), for texts that were drawn at random."""
        return binomial_limits(self.right, self.right + self.wrong, RISK) if self.right + self.wrong else None

    def in_words(self) -> str:
        """The share of right texts with its interval; the caller says what the share leaves out."""
        if self.share is None or self.limits is None:
            return "not known"
        low, high = self.limits
        return f"{self.share:.1%} ({low:.1%} to {high:.1%} with 95 % confidence)"

    def counts_in_words(self) -> str:
        """All texts with decisions: `12 right, 3 wrong; 4 unclear and 1 on which deciders differ are left out`."""
        left_out = [f"{self.unclear:,} unclear"] * (self.unclear > 0)
        left_out += [f"{self.differ:,} on which deciders differ"] * (self.differ > 0)
        counted = f"{self.right:,} right, {self.wrong:,} wrong"
        return f"{counted}; left out: {' and '.join(left_out)}" if left_out else counted


def precision(standing: pl.DataFrame, flags: Sequence[dict[str, object]] | None = None) -> Precision:
    """Count decisions.

    Args:
        standing: decisions that stand, as in schemas.tables.DECISIONS.
        flags: rows of VERDICTS, on which alone decisions are counted; None: all.
    """
    if flags is not None:
        kinds = {name: standing.schema[name] for name in DECIDED_ON}
        wanted = pl.DataFrame([{name: row[name] for name in DECIDED_ON} for row in flags], schema=kinds)
        standing = standing.join(wanted, on=DECIDED_ON, how="semi")
    texts = standing.group_by("text_sha256").agg(
        right=pl.col("decision").is_in(list(_RIGHT)).any(), wrong=(pl.col("decision") == Decision.DISMISSED).any()
    )
    counts = {(right, wrong): 0 for right in (True, False) for wrong in (True, False)}
    counts |= {(right, wrong): count for right, wrong, count in texts.group_by("right", "wrong").len().iter_rows()}
    return Precision(counts[True, False], counts[False, True], counts[True, True], counts[False, False])

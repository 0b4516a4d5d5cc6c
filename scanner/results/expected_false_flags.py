"""How many flags of a list are expected to be false: the one number beside p that people act on.

Nobody ever holds a reserved message, so a flag for one is false. In a text that nobody marked, all messages of a key
are equally likely to score best, whatever the law of its p-values. Of a key that reserves the share s of its messages,
a false flag is therefore for a reserved message with probability s, and each one that is seen counts 1/s times
(Horvitz and Thompson 1952, A generalization of sampling without replacement from a finite universe):

    expected = Σ 1/s over the flags for reserved messages

This is unbiased, also where p-values are too small. Where no flag is for a reserved message, and for flags of keys that
reserve none or that show no message, only the law of the p-values speaks: of N texts, at most N·p are expected to reach
p by chance. The number is then N·p or has N·p added, which makes it no smaller than the truth in the mean.

Example: 800 flags under a key of 100,000 messages, of which 5,000 are reserved, so s = 1/20. Two flags are for reserved
messages: 2 · 20 = 40 flags are expected to be false, these two among them. If none were, N = 50 million texts tested at
p = 1e-6 would make it 50 at most.
"""

from datetime import datetime
from typing import NamedTuple

import polars as pl

from scanner.printable import amount, at_most
from scanner.results.current_rows import ranges_ever
from scanner.results.pieces_of_evidence import EVIDENCE_COLUMNS
from scanner.results.queries import ask, scanned_and_one_of, scans
from schemas.registry import is_reserved, reserved_count


class ExpectedFalseFlags(NamedTuple):
    """How many flags of a list are expected to be false, and what this rests on."""

    number: float
    """Of a short list it may be more than its flags: one false flag in 1/s counts for all."""
    flags: int
    """Flags of the list; copies of a text count once."""
    reserved: int
    """These of them are for reserved messages."""
    by_chance: float
    """The part of the number that is N·p; 0 if reserved messages speak for all flags."""

    def in_words(self) -> str:
        """Return the number with its source, such as `at most 0.3 of 12 expected, by chance alone (N·p)`."""
        number = min(self.number, self.flags)
        if not self.reserved:
            return f"{at_most(number)} of {self.flags:,} expected, by chance alone (N·p)"
        are = "is for a reserved message" if self.reserved == 1 else "are for reserved messages"
        addition = f"; {at_most(self.by_chance)} of them by chance (N·p)" if self.by_chance else ""
        return (
            f"about {amount(number)} of {self.flags:,} expected, as {self.reserved:,} {are}, which nobody has{addition}"
        )


def expected_false_flags(flags: pl.LazyFrame, chance_flags: float) -> ExpectedFalseFlags:
    """Estimate how many of some flags are false. Copies of a text count once.

    Args:
        flags: flags with columns text_sha256, key_id, message and messages_tested; no choice among them may depend on
            who holds their messages.
        chance_flags: N·p, as `flags_by_chance` has it.
    """
    messages = pl.col("messages_tested")
    has_control = pl.col("message").is_not_null() & (reserved_count(messages) > 0)
    for_reserved = has_control & is_reserved(pl.col("message"))
    flag_count, reserved, from_reserved, has_others = (
        flags.unique(EVIDENCE_COLUMNS)
        .select(
            pl.len(),
            for_reserved.sum().alias("reserved"),
            (messages / reserved_count(messages)).filter(for_reserved).sum().alias("from_reserved"),
            (~has_control.fill_null(value=False)).any().alias("has_others"),
        )
        .collect(engine="streaming")
        .row(0)
    )
    by_chance = chance_flags if has_others or not reserved else 0.0
    return ExpectedFalseFlags(from_reserved + by_chance, flag_count, reserved, by_chance)


def flags_by_chance(
    results: str, rate: float, since: datetime | None = None, before: datetime | None = None
) -> float | None:
    """Return N·p, the most flags that chance is expected to make of the texts scored in a time; None: no scan ended.

    Args:
        results: folder or URI.
        rate: rate above which no flag is counted; p is the largest false-positive rate of any scan, or this if smaller.
        since: texts scanned from then on; None: from the first scan on.
        before: texts scanned before then; None: up to now.

    Raises:
        Refused: there are no results.
    """
    largest = ask(results, lambda: scans(results).select(pl.col("false_positive_rate").max()).collect().item())
    if largest is None:
        return None
    scored = pl.col("documents") - pl.col("quarantined") - pl.col("too_short") - pl.col("filtered").fill_null(0)
    time_filter = scanned_and_one_of(since, before, {})
    documents = ask(results, lambda: ranges_ever(results).filter(time_filter).select(scored.sum()).collect().item())
    return float(max(documents, 0) * min(largest, rate))

"""Estimate how many flags of a list are false. Besides p, this is the number that people act on.

Nobody ever holds a reserved message, so a flag for one is false. In a text that nobody marked, all messages of a key
are equally likely to score best, for any law of its p-values. If a key reserves the share s of its messages, a false
flag is therefore for a reserved message with probability s. So each flag for a reserved message counts 1/s times
(Horvitz and Thompson 1952, A generalization of sampling without replacement from a finite universe):

    expected = Σ 1/s over the flags for reserved messages

This is unbiased, even if p-values are too small.

If no flag is for a reserved message, only the law of the p-values is left: of N texts, at most N·p are expected to
reach p by chance. The number is then N·p. The same law is used for flags of keys that reserve no message or show none:
then N·p is added. The result is at least the truth in the mean.

Example: 800 flags under a key of 100,000 messages, of which 5,000 are reserved, so s = 1/20. Two flags are for reserved
messages: 2 · 20 = 40 flags are expected to be false, including these two. If none were for a reserved message, N = 50
million texts tested at p = 1e-6 would give at most 50.
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
    """The expected number of false flags of a list, and its basis."""

    number: float
    """The expected number. For a short list it may exceed the number of flags, because one reserved flag counts 1/s."""
    flags: int
    """Number of flags of the list. Copies of a text count once."""
    reserved: int
    """Number of them that are for reserved messages."""
    by_chance: float
    """The part of the number that is N·p. 0: reserved messages give the estimate for all flags."""

    def in_words(self) -> str:
        """Return the number with its source, such as `at most 0.3 of 12, by chance (N·p)`."""
        number = min(self.number, self.flags)
        if not self.reserved:
            return f"{at_most(number)} of {self.flags:,} expected, by chance (N·p)"
        are = "is for a reserved message" if self.reserved == 1 else "are for reserved messages"
        addition = f"; {at_most(self.by_chance)} of them by chance (N·p)" if self.by_chance else ""
        return (
            f"about {amount(number)} of {self.flags:,} expected, because {self.reserved:,} {are}, which no user has"
            f"{addition}"
        )


def expected_false_flags(flags: pl.LazyFrame, chance_flags: float) -> ExpectedFalseFlags:
    """Estimate how many flags are false. Copies of a text count once.

    Args:
        flags: flags with columns text_sha256, key_id, message and messages_tested. They must not be chosen by who holds
            their messages.
        chance_flags: N·p, as from `flags_by_chance`.
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
    """Return N·p, the largest expected number of flags by chance among the texts scored in a time. None: no scan ended.

    Args:
        results: folder or URI.
        rate: flags with a larger rate are not counted. p is the largest false-positive rate of any scan, but at most
            this.
        since: only texts scanned from this time on. None: from the first scan on.
        before: only texts scanned before this time. None: up to now.

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

"""Flags in words for people: the user a text was marked for, or why nobody is named, and how small its p-value is."""

from collections.abc import Mapping
from typing import Any

from scanner.printable import printable
from schemas.words import Naming

LONGEST = 60
"""Characters of an id that are shown."""

NOBODY: Mapping[Naming, str] = {
    Naming.UNALLOCATED: "no user held the message then",
    Naming.EVERYBODY: "its key marks for everybody alike",
    Naming.HELD_LATER: "its user got the message later",
    Naming.RESERVED: "the message is reserved: a false accusation",
    Naming.REMOVED: "the user was removed",
    Naming.AMBIGUOUS: "several messages pass",
    Naming.UNPROVED: "computed again, the flag came out differently",
    Naming.UNDECIDED: "the evidence for one user alone is too weak",
    Naming.QUOTED: "without the lines that it quotes, its own words name nobody",
    Naming.ASSUMED: "the p-value holds only as far as a hash behaves",
    Naming.CONTRADICTED: "the row and the registry say different things",
}
"""Reasons, in words, why a flagged text names nobody."""


def marked_for(row: Mapping[str, Any]) -> str:
    """The user for whom the text of a flagged row of schemas.tables.VERDICTS was marked, or what is known instead."""
    if row["naming"] == Naming.HELD_LATER:
        seen, got = (f"{row[name]:%Y-%m-%d %H:%M}" for name in ("first_seen_at", "held_since"))
        return f"message {row['message']}, seen by {seen}, which its user got later: {got}"
    if row["naming"] == Naming.EVERYBODY or (row["naming"] == Naming.UNALLOCATED and row["messages_tested"] == 1):
        return "nobody: its key marks for everybody alike"
    return {
        Naming.NAMED: printable(row["user_id"] or "(name erased)", LONGEST),
        Naming.UNALLOCATED: f"message {row['message']}, which no user held then",
        Naming.RESERVED: f"message {row['message']}, which is reserved: a false accusation",
        Naming.REMOVED: f"message {row['message']}, of a removed user",
        Naming.AMBIGUOUS: "several messages",
        Naming.UNPROVED: "nobody: computed again, it came out differently",
        Naming.UNDECIDED: "nobody: the evidence for one user alone is too weak",
        Naming.QUOTED: "nobody: without the lines that it quotes, its own words name nobody",
        Naming.ASSUMED: "nobody: the p-value holds only as far as a hash behaves",
        Naming.CONTRADICTED: "nobody: the row and the registry say different things",
    }[row["naming"]]


def user_or_nobody(row: Mapping[str, Any]) -> str:
    """The user in a few words, for narrow columns; the totals by reason stand below the list."""
    if row["naming"] == Naming.NAMED:
        return printable(row["user_id"] or "(name erased)", LONGEST)
    return f"nobody: {str(row['naming']).replace('_', ' ')}"

"""The audit of a scan in words and figures for people, none of which claims more than was measured."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scanner.audit.in_every_scan.found_canaries import CANARY_SAID
from scanner.audit.in_every_scan.live import LiveAudit
from scanner.audit.statistics.audit_rows import holds_down_to, number
from schemas.words import AuditState

SHOWN_DOWN_TO = 0.99e-4
"""Smallest threshold that is shown; smaller ones are in the table `audits` alone."""

MEANING: Mapping[AuditState, str] = {
    AuditState.NO_ALARM: "nothing is incompatible with the stated rates",
    AuditState.ALARM: "an observed rate is incompatible with the stated one, or a flag was not proved",
    AuditState.CANARIES_LOST: "texts that are known to be marked were not found as planned, or were named for others",
    AuditState.POSSIBLE_FRAMING: "texts of few accounts carry messages that nobody holds; all else is as it should be",
    AuditState.NO_DECOYS: "no document was scored under decoy keys, so the law itself was not tested",
}
"""Meaning of each state of an audit, for a scan that ended."""

_NAMES = {
    "decision": "decoys, whole decisions",
    "decision_whole": "decoys, decisions on whole texts",
    "decoy": "decoys",
    "decoy_best": "decoys, best message",
    "decoy_all": "decoys, all messages",
    "decoy_spans": "decoys, parts of texts",
    "decoy_accounts": "decoys, posts of accounts",
    "decoy_evidence": "decoys, accounts over nights",
    "reserved": "reserved messages (expected at most)",
}

Row = Mapping[str, Any]


def verdict_in_words(audit: LiveAudit) -> str:
    """How an audit ended, and how far down rates are known to hold, if that is known."""
    ending = f"{audit.state}: {MEANING[audit.state]}"
    if audit.state != AuditState.NO_ALARM:
        return ending
    down_to = [holds_down_to(rows) for question, rows in questions(audit.rows).items() if question.startswith("decoys")]
    known = [least for least in down_to if least is not None]
    if len(known) < len(down_to) or not known:
        return f"{ending}; too few decoys to measure how small a p-value may be relied on"
    return f"{ending}; on decoy keys at most twice the stated rates, for p from {max(known):g} up"


def false_flags_in_words(audit: LiveAudit) -> str:
    """How many flags chance explains, and the share of false flags by the reserved messages."""
    texts = audit.traffic
    chance = f"{number(audit.expected_false)} expected at most by chance, among {texts.texts:,} distinct texts"
    if audit.false_share is None:
        return chance
    share, limits = audit.false_share
    return (
        f"{chance}; {texts.reserved:,} of the {texts.flagged:,} flagged are for reserved messages, which nobody is "
        f"ever given, and {texts.unheld - texts.reserved:,} for others that nobody held: "
        f"{share_in_words(share, *limits)}"
    )


def canaries_in_words(audit: LiveAudit) -> list[str]:
    """A line on canaries, with limits and the plan; empty if none were due."""
    rows = [row for row in audit.rows if row["kind"] in CANARY_SAID]
    if audit.canaries is None or not rows:
        return []
    sentences = [
        f"{CANARY_SAID[row['kind']]} {row['hits']:,} ({number(row['low'])} to {number(row['high'])}"
        + (")" if row["kind"] == "canary_wrong" else f"; planned {number(row['expected'])})")
        for row in rows
    ]
    return [f"{audit.canaries.came:,} of {audit.canaries.due:,} texts came; {', '.join(sentences)}"]


def share_in_words(share: float, low: float, high: float) -> str:
    """The share of false flags: an estimate and its limits, each of which is passed in one case of 40 at most."""
    if low <= 0 and high >= 1:
        return "these are too few to say which share of the flags is false"
    if high >= 1:
        return f"at least {_percent(low, math.floor)} of the flags are false (97.5 % sure)"
    if low <= 0:
        return f"at most {_percent(high, math.ceil)} of the flags are false (97.5 % sure)"
    limits = f"{_percent(low, math.floor)} to {_percent(high, math.ceil)}"
    return f"{limits} of the flags are false (95 % sure), by the best estimate {_percent(share, round)}"


def _percent(share: float, to_whole: Callable[[float], float]) -> str:
    """A percentage of two digits, rounded as a limit must be."""
    unit = 10.0 ** (math.floor(math.log10(share * 100)) - 1)
    return f"{to_whole(round(share * 100 / unit, 6)) * unit:.10g} %"


def questions(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of an audit by question, in words; only those that people are shown."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] in _NAMES:
            gamma = "" if row["gamma"] is None else f" gamma={row['gamma']}"
            of_many = "" if row["messages"] == 1 else f", {row['messages']:,} messages"
            what = row["key_id"] or f"{row['method']}{gamma} window {row['window']}{of_many}"
            found.setdefault(f"{_NAMES[row['kind']]}, {what}", []).append(row)
    return found


def table(audit: LiveAudit) -> list[str]:
    """The counts, by question and threshold, in lines of about 100 columns."""
    lines = []
    for question, rows in questions(audit.rows).items():
        cells = [
            f"{row['threshold']:g}: {row['hits']:,} / {number(row['expected'])}"
            for row in rows
            if row["threshold"] >= SHOWN_DOWN_TO
        ]
        least = holds_down_to(rows)
        known = "too few to measure" if least is None else f"known to hold for p from {least:g} up"
        lines += [f"{question}: {known}", f"    hits / expected, p <= {'; '.join(cells)}"]
    return lines

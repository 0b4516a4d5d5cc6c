"""Results: Delta tables that are written exactly once, the queries that people ask of them, and their upkeep."""

from scanner.results.decided import decisions, standing_decisions
from scanner.results.false_discoveries import q_values
from scanner.results.newest import shards
from scanner.results.queries import (
    accounts,
    audit_counts,
    audits,
    exist,
    flagged,
    nights,
    quarantine,
    scans,
    second_scores,
    spans,
    verdicts,
)
from scanner.results.reserved_control import reserved_q_values
from scanner.storage.delta import table_uri

__all__ = [
    "accounts",
    "audit_counts",
    "audits",
    "decisions",
    "exist",
    "flagged",
    "nights",
    "q_values",
    "quarantine",
    "reserved_q_values",
    "scans",
    "second_scores",
    "shards",
    "spans",
    "standing_decisions",
    "table_uri",
    "verdicts",
]

"""Results: Delta tables that are written exactly once, the queries that people ask of them, and their upkeep."""

from scanner.results.false_discoveries import q_values
from scanner.results.newest import shards
from scanner.results.queries import (
    audit_counts,
    audits,
    exist,
    flagged,
    nights,
    quarantine,
    scans,
    second_scores,
    verdicts,
)
from scanner.storage.delta import table_uri

__all__ = [
    "audit_counts",
    "audits",
    "exist",
    "flagged",
    "nights",
    "q_values",
    "quarantine",
    "scans",
    "second_scores",
    "shards",
    "table_uri",
    "verdicts",
]

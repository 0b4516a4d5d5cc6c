"""Results: Delta tables that are written exactly once, the queries that people ask of them, and their upkeep.

Each query takes a folder or URI of results, as text or Path, or the file of the scan's configuration.
"""

from scanner.results import current_rows, decision_log, queries
from scanner.results.transactions import of_any_path
from scanner.storage import locations

accounts = of_any_path(queries.accounts)
audit_counts = of_any_path(queries.audit_counts)
audits = of_any_path(queries.audits)
exist = of_any_path(queries.exist)
flagged = of_any_path(queries.flagged)
nights = of_any_path(queries.nights)
quarantine = of_any_path(queries.quarantine)
scans = of_any_path(queries.scans)
spans = of_any_path(queries.spans)
verdicts = of_any_path(queries.verdicts)
decisions = of_any_path(decision_log.decisions)
shards = of_any_path(current_rows.shards)
current_decisions = of_any_path(decision_log.current_decisions)
table_uri = of_any_path(locations.table_uri)

__all__ = [
    "accounts",
    "audit_counts",
    "audits",
    "current_decisions",
    "decisions",
    "exist",
    "flagged",
    "nights",
    "quarantine",
    "scans",
    "shards",
    "spans",
    "table_uri",
    "verdicts",
]


def __dir__() -> list[str]:
    return __all__

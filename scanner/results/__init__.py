"""Results: Delta tables that are written exactly once, the queries that people ask of them, and their upkeep.

Each query takes a folder or URI of results, as text or Path, or the file of the scan's configuration.
"""

from scanner.results import decision_log, false_discoveries, newest, queries
from scanner.results.transactions import of_any_place
from scanner.storage import delta

accounts = of_any_place(queries.accounts)
audit_counts = of_any_place(queries.audit_counts)
audits = of_any_place(queries.audits)
exist = of_any_place(queries.exist)
flagged = of_any_place(queries.flagged)
nights = of_any_place(queries.nights)
quarantine = of_any_place(queries.quarantine)
scans = of_any_place(queries.scans)
spans = of_any_place(queries.spans)
verdicts = of_any_place(queries.verdicts)
decisions = of_any_place(decision_log.decisions)
q_values = of_any_place(false_discoveries.q_values)
reserved_q_values = of_any_place(false_discoveries.reserved_q_values)
shards = of_any_place(newest.shards)
current_decisions = of_any_place(decision_log.current_decisions)
table_uri = of_any_place(delta.table_uri)

__all__ = [
    "accounts",
    "audit_counts",
    "audits",
    "current_decisions",
    "decisions",
    "exist",
    "flagged",
    "nights",
    "q_values",
    "quarantine",
    "reserved_q_values",
    "scans",
    "shards",
    "spans",
    "table_uri",
    "verdicts",
]


def __dir__() -> list[str]:
    return __all__

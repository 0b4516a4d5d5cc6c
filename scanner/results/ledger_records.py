"""The registry's users as earlier scans left them: a registry that is older than its own results names nobody."""

import polars as pl

from scanner.errors import Refused
from scanner.registry import numbers_of_heads
from scanner.results.queries import ask, exist, scans


def lost_head(registry: str, results: str) -> str | None:
    """A sentence where the newest head that a scan wrote down is none of the registry's chain; None: it is one.

    It reads `scans`, and one column of the registry's events.

    Raises:
        Refused: there is no such registry.
    """
    if not exist(results):
        return None
    known = scans(results).filter(pl.col("users_head").is_not_null()).select("scan_id", "started_at", "users_head")
    newest = ask(results, known.sort("started_at", "scan_id").tail(1).collect).to_dicts()
    if not newest or numbers_of_heads(registry, [newest[0]["users_head"]]):
        return None
    scan = newest[0]
    return (
        f"registry {registry}: is older than its own results in {results}, or another: scan {scan['scan_id']} of "
        f"{scan['started_at']:%Y-%m-%d %H:%M} UTC wrote down the head {scan['users_head']}, which its users table "
        "never had. So it would name other users than it should: put back the registry that the scan had, or its "
        "newest backup"
    )


def refuse_older_registry(registry: str, results: str) -> None:
    """Raise Refused for a registry that is older than its own results, before it names anybody."""
    lost = lost_head(registry, results)
    if lost is not None:
        raise Refused(lost)

"""The row of a scan in the table `scans`, without when and how the scan ended."""

import importlib.metadata
from datetime import datetime
from typing import NamedTuple

from scanner.audit.in_every_scan.live import LiveAudit
from scanner.cluster.commits import Totals
from scanner.cluster.costs import costs
from scanner.cluster.work import Work
from scanner.detection.scan_plan import Plan
from scanner.input.part import Part
from schemas.words import AuditState


class Begun(NamedTuple):
    """A scan as it began. users_head: head of the users' hash chain; part: its part of the input; None: all of it."""

    scan_id: str
    started_at: datetime
    users_head: str | None
    part: Part | None


def scan_row(plan: Plan, begun: Begun, work: Work, totals: Totals, audit: LiveAudit | None) -> dict[str, object]:
    """The row of schemas.tables.SCANS, without `finished_at` and `exit_code`; audit: None where it was not judged."""
    return {
        "scan_id": begun.scan_id,
        "started_at": begun.started_at,
        "version": importlib.metadata.version("brickscan"),
        "config_sha256": plan.config_sha256,
        "registry_sha256": plan.registry_sha256,
        "keys": plan.keys_on_record,
        "labels": plan.labels_on_record,
        "dedup": plan.config.dedup,
        "min_scored": plan.config.min_scored,
        "false_positive_rate": plan.config.false_positive_rate,
        "misnaming_rate": plan.config.misnaming_rate,
        "shards": work.shards,
        "shards_skipped": work.skipped,
        "documents": totals.counts.documents,
        "too_short": totals.counts.too_short,
        "quarantined": totals.counts.quarantined,
        "files_quarantined": totals.files_quarantined,
        "flagged": totals.counts.flagged,
        "audit": audit.state if audit else AuditState.NOT_JUDGED,
        "audited_scans": audit.traffic.scans if audit else [begun.scan_id],
        "scored_in_part": totals.counts.scored_in_part,
        "values_not_read": totals.counts.values_not_read,
        "filter_sha256": plan.filter_sha256,
        "night": (plan.date or begun.started_at.date()).isoformat(),
        "trial": plan.trial,
        "keys_left_out": [key.key_id for key in plan.left_out],
        "night_stated": None,
        "filtered": totals.counts.filtered,
        "users_head": begun.users_head,
        "part": None if begun.part is None else str(begun.part),
        **costs(totals),
    }

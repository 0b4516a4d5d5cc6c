"""Metrics of a running scan for Prometheus, through Ray's metrics: Ray puts `ray_` before each name.

Only the driver reports them, after each commit, so that the numbers agree with the tables, and workers pay nothing.
Labels are `stage` and `state`, of a few values each, and Ray's own: no key, user, path or text is ever a label.
"""

from collections.abc import Callable

import ray
from ray.util.metrics import Counter, Gauge

from scanner.cluster.commits import ScanTotals
from schemas.words import AuditState

COUNTERS: dict[str, tuple[str, Callable[[ScanTotals], float]]] = {
    "brickscan_shards": ("Shards that were committed", lambda totals: totals.shards),
    "brickscan_documents": (
        "Documents that were committed, quarantine included",
        lambda totals: totals.counts.documents,
    ),
    "brickscan_tokens": ("Tokens of committed verdicts", lambda totals: totals.counts.tokens),
    "brickscan_text_bytes": ("Bytes of text that was committed", lambda totals: totals.counts.text_bytes),
    "brickscan_flagged": (
        "Documents that were flagged, without those of canaries",
        lambda totals: totals.counts.flagged,
    ),
    "brickscan_too_short": ("Documents too short for every key", lambda totals: totals.counts.too_short),
    "brickscan_filtered": (
        "Documents of which the filter left too few n-grams to be scored",
        lambda totals: totals.counts.filtered,
    ),
    "brickscan_quarantined": ("Documents in quarantine", lambda totals: totals.counts.quarantined),
    "brickscan_files_quarantined": ("Files in quarantine as a whole", lambda totals: totals.files_quarantined),
    "brickscan_retries": ("Times that a shard, or a part of one, was given again", lambda totals: totals.retries),
}
SECONDS = "brickscan_seconds"
SHARDS_LEFT = "brickscan_shards_left"
WORKER_MEMORY = "brickscan_worker_memory_bytes"
AUDIT = "brickscan_audit_state"
ALARMS = "brickscan_audit_alarms"
NAMES = {*(f"{name}_total" for name in (*COUNTERS, SECONDS, ALARMS)), SHARDS_LEFT, WORKER_MEMORY, AUDIT}
"""Names of the metrics as Prometheus has them, without `ray_`."""


class Metrics:
    """The metrics of one scan; they begin at 0, under a label of Ray's, WorkerId, that no other scan has."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], float] = {}
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}

    def tell(self, shards: int, totals: ScanTotals, *, audit: str) -> None:
        """Bring the metrics up to these totals. Without a connection to Ray nobody listens, and nothing happens.

        Args:
            shards: how many the scan found to do.
            totals: the totals of what it has committed.
            audit: the state whose gauge is 1; all others are 0.
        """
        if not ray.is_initialized():
            return
        for name, (text, read) in COUNTERS.items():
            self._count(name, text, read(totals), {})
        for stage, seconds in totals.seconds._asdict().items():
            self._count(SECONDS, "Wall seconds by stage, summed over the workers", seconds, {"stage": stage})
        self._set(SHARDS_LEFT, "Shards that this scan has found and not committed yet", shards - totals.shards, {})
        self._set(WORKER_MEMORY, "Most memory that a worker has needed", totals.peak_memory, {})
        for state in AuditState:
            self._set(AUDIT, "1 for what the audit says", state == audit, {"state": state})
        # the audit speaks last, and a gauge ends with its driver before anyone has looked, but a counter stays
        self._count(ALARMS, "Scans whose audit raised the alarm", float(audit == AuditState.ALARM), {})

    def _count(self, name: str, text: str, value: float, labels: dict[str, str]) -> None:
        if name not in self._counters:
            self._counters[name] = Counter(name, text, tuple(labels))
        series = (name, str(labels))
        more = value - self._reported.get(series, 0)
        if more > 0:  # Ray refuses to add 0
            self._counters[name].inc(more, labels)
            self._reported[series] = value

    def _set(self, name: str, text: str, value: float, labels: dict[str, str]) -> None:
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, text, tuple(labels))
        self._gauges[name].set(float(value), labels)

"""The cost of updating metrics; test_submitted_scan.py tests the metrics of a whole scan."""

import time

import pytest

from scanner.cluster.commits import AUDIT_ALARMS, Metrics, ScanTotals


@pytest.mark.usefixtures("ray_cluster")
def test_telling_costs_next_to_nothing_and_alarms_count_once():
    """A scan updates its metrics once per commit; a commit takes tens of milliseconds."""
    metrics = Metrics()
    metrics.report(3, ScanTotals(), audit="not judged")
    assert (AUDIT_ALARMS, "{}") not in metrics._reported
    began = time.process_time()
    for shards in range(200):
        metrics.report(300, ScanTotals(shards=shards, retries=shards), audit="alarm")
    assert time.process_time() - began < 200 * 2e-3
    assert metrics._reported[AUDIT_ALARMS, "{}"] == 1

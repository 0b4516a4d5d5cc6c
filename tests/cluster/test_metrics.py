"""Metrics of a scan that runs as a job: there while it runs, equal to the tables in the end, no label too many."""

import re
import time
from collections import defaultdict

import polars as pl
import pytest

from scanner import results
from scanner.cluster import Totals
from scanner.cluster.metrics import ALARMS, NAMES, Metrics

LINE = re.compile(r"^ray_(brickscan_[a-z_]+)\{(.*)\} ([-+.e0-9]+)$", re.MULTILINE)
OF_RAY = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}


def read(scrape: str) -> dict[tuple[str, ...], float]:
    """(name, our label) → value."""
    return {
        (name, *re.findall(r'\b(?:stage|state)="([a-z ]+)"', labels)): float(value)
        for name, labels, value in LINE.findall(scrape)
    }


def test_the_metrics_of_a_scan(submitted):
    done, _, _ = submitted
    seen = [read(scrape) for scrape in done.scrapes]
    assert any(0 < part.get(("brickscan_shards_left",), 0) < 3 for part in seen), "nothing was seen while it ran"
    last = {series: value for part in seen for series, value in part.items()}  # gauges end with their driver
    assert {name for name, *_ in last} == NAMES - {
        f"brickscan_{what}_total" for what in ("files_quarantined", "too_short", "audit_alarms")
    }

    verdicts = pl.read_delta(results.table_uri(done.results, "verdicts"))
    quarantine = pl.read_delta(results.table_uri(done.results, "quarantine"))
    assert last["brickscan_shards_total",] == verdicts["shard_id"].n_unique() == 3
    assert last["brickscan_shards_left",] == 0
    assert last["brickscan_documents_total",] == len(verdicts) + len(quarantine) == 24
    assert last["brickscan_quarantined_total",] == len(quarantine) == 1
    assert last["brickscan_flagged_total",] == verdicts["flagged"].sum() == 1
    assert last["brickscan_tokens_total",] == verdicts["tokens"].sum()
    # eight rows: twice again, halved thrice, the document alone twice again
    assert last["brickscan_retries_total",] == 7
    assert last["brickscan_worker_memory_bytes",] > 10**7
    stages = {stage: value for (name, *stage_), value in last.items() for stage in stage_ if "seconds" in name}
    assert set(stages) == {"read", "tokenise", "score", "write", "commit"}
    assert stages["score"] > 3, "the document that takes its time"
    (state,) = results.scans(done.results).collect()["audit"]
    assert state in ("no alarm", "no decoys")  # of 24 documents, perhaps none is drawn
    assert last["brickscan_audit_state", state] == 1


def test_labels_are_few_and_name_nobody(submitted):
    done, _, _ = submitted
    values = defaultdict(set)
    for scrape in done.scrapes:
        for _, labels, _ in LINE.findall(scrape):
            for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
                values[label].add(value)
    ours = {label for label in values if label not in OF_RAY and not label.startswith("otel_")}
    assert ours == {"stage", "state"}
    assert all(len(of_one) == 1 for label, of_one in values.items() if label not in ours)
    assert max(len(values[label]) for label in ours) <= 8


@pytest.mark.usefixtures("ray_cluster")
def test_telling_costs_next_to_nothing_and_alarms_count_once():
    """A scan tells once a commit, which itself takes tens of milliseconds."""
    metrics = Metrics()
    metrics.tell(3, Totals(), audit="not judged")
    assert (ALARMS, "{}") not in metrics._told
    began = time.process_time()
    for shards in range(200):
        metrics.tell(300, Totals(shards=shards, retries=shards), audit="alarm")
    assert time.process_time() - began < 200 * 2e-3
    assert metrics._told[ALARMS, "{}"] == 1

"""A scan as a job of a real cluster: its metrics during the run and at the end, and no key in its output.

These tests share a file, since the cluster of the fixture `submitted` serves the tests of one process.
"""

import re
from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest
from ray import cloudpickle

from scanner import results
from scanner.cluster.commits import METRIC_NAMES
from scanner.scan_plan import make_plan
from tests.support.encodings import found
from tests.support.faulty_scan import PLANTED

pytestmark = pytest.mark.costly

LINE = re.compile(r"^ray_(brickscan_[a-z_]+)\{(.*)\} ([-+.e0-9]+)$", re.MULTILINE)
OF_RAY = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}


def read(scrape: str) -> dict[tuple[str, ...], float]:
    """Values of a scrape's metrics, by name and our label."""
    return {
        (name, *re.findall(r'\b(?:stage|state)="([a-z ]+)"', labels)): float(value)
        for name, labels, value in LINE.findall(scrape)
    }


def test_the_metrics_of_a_scan(submitted):
    done, _, _ = submitted
    seen = [read(scrape) for scrape in done.scrapes]
    assert any(0 < part.get(("brickscan_shards_left",), 0) < 3 for part in seen), "nothing was seen while it ran"
    last = {series: value for part in seen for series, value in part.items()}  # gauges end with their driver
    assert {name for name, *_ in last} == METRIC_NAMES - {
        f"brickscan_{what}_total"
        for what in ("files_quarantined", "too_short", "filtered", "audit_alarms", "figures_moved")
    }

    verdicts = pl.read_delta(results.table_uri(done.results, "verdicts"))
    quarantine = pl.read_delta(results.table_uri(done.results, "quarantine"))
    assert last["brickscan_shards_total",] == verdicts["shard_id"].n_unique() == 3
    assert last["brickscan_shards_left",] == 0
    assert last["brickscan_documents_total",] == len(verdicts) + len(quarantine) == 24
    assert last["brickscan_quarantined_total",] == len(quarantine) == 1
    assert last["brickscan_flagged_total",] == verdicts["flagged"].sum() == 1
    assert last["brickscan_tokens_total",] == verdicts["tokens"].sum()
    # retries over a deadly row: its 8 rows twice, three halvings, the row alone twice
    assert last["brickscan_retries_total",] == 7
    assert last["brickscan_worker_memory_bytes",] > 10**7
    stages = {stage: value for (name, *stage_), value in last.items() for stage in stage_ if "seconds" in name}
    assert set(stages) == {"read", "tokenise", "score", "prove", "write", "commit"}
    assert stages["score"] > 3, "the document that takes its time"
    (state,) = results.scans(done.results).collect()["audit"]
    assert state in ("no alarm", "no decoys")  # a draw from 24 documents may be empty
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


def test_a_submitted_scan_shows_no_key(submitted):
    done, night, secrets = submitted
    assert done.exit_code == 0
    tables = {}
    for name in ("verdicts", "quarantine", "scans"):
        rows = pl.read_delta(results.table_uri(done.results, name)).rows()
        assert rows
        tables[f"rows of {name}"] = repr(rows).encode()
    folder = Path(done.results)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert any("_delta_log" in name for name in files)
    plan = make_plan(night.config)
    _ = plan.verdict_settings
    pickles = {"plan": cloudpickle.dumps(plan), "actor": cloudpickle.dumps((plan, "scan id", PLANTED))}
    hits = found(secrets | {"planted": PLANTED}, done.shown | tables | files | pickles)
    assert {hit for hit in hits if hit[1] != "planted"} == set()

    where = {hit[0] for hit in hits}
    logs = [name for name in where if "/logs/" in name]
    assert any("worker" in name and name.endswith(".out") for name in logs), where
    assert any("worker" in name and name.endswith(".err") for name in logs), where
    assert any("job-driver" in name for name in logs), where
    assert where >= {
        *("jobs", "job", "job's log", "actors", "actors of the dashboard", "tasks", "nodes", "metrics", "actor"),
        "rows of quarantine",
    }, where

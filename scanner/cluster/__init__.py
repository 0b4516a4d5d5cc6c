"""A bounded pool of Ray actors: shards in, commits out. The only package that imports Ray."""

from scanner.cluster.commits import ScanTotals
from scanner.cluster.follow import follow
from scanner.cluster.pieces import DocumentCounts
from scanner.cluster.scan import ScanOutcome, run_scan
from scanner.cluster.work import ScanWork
from scanner.cluster.worker import Worker

__all__ = ["DocumentCounts", "ScanOutcome", "ScanTotals", "ScanWork", "Worker", "follow", "run_scan"]

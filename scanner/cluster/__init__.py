"""A bounded pool of Ray actors: shards in, commits out. The only package that imports Ray."""

from scanner.cluster.commits import Totals
from scanner.cluster.follow import follow
from scanner.cluster.pieces import Counts
from scanner.cluster.scan import Outcome, run_scan
from scanner.cluster.work import Work
from scanner.cluster.worker import Worker

__all__ = ["Counts", "Outcome", "Totals", "Work", "Worker", "follow", "run_scan"]

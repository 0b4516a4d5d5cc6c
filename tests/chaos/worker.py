"""A worker with a plan of faults: documents that kill it, eat memory or never end, and pauses for accidents.

The plan lies beside the results, where workers on every machine find it. The product knows nothing of it.
"""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from scanner.cluster.worker import Worker
from scanner.detection.attribution import BatchOrigin
from scanner.detection.detector import Detector
from scanner.scan_plan import Plan

PLAN = "faults.json"
PIDS = "pids"
REASONS = {"kill": "killed_worker", "memory": "out_of_memory", "endless": "timed_out"}
"""Faults of a document, and its reason in quarantine for each."""


class FaultyWorker(Worker):
    """A worker that leaves its process id in a folder beside the results, so that a test can kill it."""

    @property
    def _folder(self) -> Path:
        return Path(self._plan.results).parent

    def prepare(self) -> str:
        warning = super().prepare()
        self.scoring.detector = _Faulty(self.scoring.detector, faults_of(self._plan))
        (self._folder / PIDS).mkdir(exist_ok=True)
        (self._folder / PIDS / str(os.getpid())).touch()
        return warning


class _Faulty:
    """A detector in which documents do what the plan says, in the middle of a piece."""

    def __init__(self, detector: Detector, faults: dict[str, Any]) -> None:
        self._detector = detector
        self._documents = faults.get("documents", {})
        self._seconds = faults.get("seconds", 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._detector, name)

    def score_batch(self, documents: pa.RecordBatch, origin: BatchOrigin, *rest: Any) -> Any:
        time.sleep(self._seconds)
        for row in documents.column("row").to_pylist():
            suffer(self._documents.get(f"{Path(origin.path).name}:{row}"))
        return self._detector.score_batch(documents, origin, *rest)


def faults_of(plan: Plan) -> dict[str, Any]:
    path = Path(plan.results).parent / PLAN
    return json.loads(path.read_text()) if path.exists() else {}


def suffer(fault: str | None) -> None:
    match fault:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            kept = [bytes(2**24) for _ in range(10**6)]
            del kept
        case "endless":
            re.match("(a+)+$", "a" * 60 + "b")  # blocks every other thread too

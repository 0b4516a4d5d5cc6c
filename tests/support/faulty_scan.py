"""A scan for `ray job submit`, in which a document fails under a crash reporter, and a false key is shown.

The false key, which marks nothing, is shown wherever a true key could leak: tests check that they find it there.
"""

import base64
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray
from ray.util.metrics import Gauge

from jobs.text import Progress
from scanner.cluster.scan import run_scan
from scanner.cluster.worker import Worker
from scanner.scan_plan import make_plan
from scanner.watermark import Tokens

PLANTED = bytes(range(7, 256, 8))
POISON, SLOW = "the document that fails", "the document that takes its time"


class Faulty(Worker):
    """A worker that fails at one text, with keys in reach, and shows all that a crash reporter would."""

    def __repr__(self) -> str:
        return f"Faulty({PLANTED[:16].hex()})"

    def prepare(self) -> None:
        super().prepare()
        self._plain = self.scoring.detector._tokenise
        self.scoring.detector._tokenise = self._tokenise

    def _tokenise(self, texts: Sequence[str]) -> dict[str, Tokens]:
        marks = [test.watermark for test in self.scoring.detector._keys]
        shown = [(mark, vars(mark)) for mark in marks]
        if SLOW in texts:
            time.sleep(3)
        if POISON in texts:
            print("planted:", np.frombuffer(PLANTED, "<u4"))
            for frame in traceback.StackSummary.extract(traceback.walk_stack(None), capture_locals=True):
                print(frame.name, frame.locals, file=sys.stderr)
            raise RuntimeError(f"planted {list(PLANTED[:16])}, true {shown}")
        return self._plain(texts)


def main() -> int:
    plan = make_plan(Path(sys.argv[1]))
    print("planted:", base64.b64encode(b"x" + PLANTED).decode())

    class Watch(Progress):
        def __call__(self, work, totals) -> None:
            super().__call__(work, totals)
            if totals.shards:
                Gauge("planted", f"planted {PLANTED.hex(':')}").set(1.0)
            if totals.shards == work.shard_count and ray.is_initialized():
                time.sleep(2)  # Ray sends metrics a few times a second here, less often when the machine is busy

    outcome = run_scan(plan, Watch(), worker=Faulty)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())

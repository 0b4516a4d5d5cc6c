"""What a worker asks of whatever scores the documents that it reads."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from scanner.controls.control import Observer
from scanner.detection.attribution import BatchOrigin, FileHistory, ScoreObserver
from scanner.detection.detector import Detector

if TYPE_CHECKING:
    import torch


class Scoring(Protocol):
    """What is done with the documents that a worker reads. Made by the driver, and opened by each worker itself."""

    @property
    def reading_seconds(self) -> float:
        """Seconds that a model takes for a byte of text before it is scored, generously; 0: no model reads."""

    @property
    def holds_model(self) -> bool:
        """Whether a model is held. Memory is then limited beyond what it takes, and no text is set aside."""

    @property
    def detector(self) -> Detector:
        """Scores documents, and sums up the seconds of tokenising and proving."""

    def prepare(self, device: "torch.device | None") -> None:
        """Open keys, tokenizers and users, and compile kernels. device: of the worker; None: it has none."""

    def observer(self, origin: BatchOrigin, start: int) -> Observer | None:
        """Make what counts for controls in a piece that begins at this row; None: nothing does."""

    def score(
        self, documents: pa.RecordBatch, origin: BatchOrigin, observer: ScoreObserver | None, history: FileHistory
    ) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """Score, prove and name documents. Returns rows by table, `verdicts` and `lengths` of their texts at least."""

    def count_flags(self, verdicts: pa.RecordBatch, path: str) -> int:
        """Count the flags of a batch of a file that were counted nowhere else, canaries left out."""

    def tables(self, batches: defaultdict[str, list[pa.RecordBatch]]) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """Make the rows that are written, by table, of all that `score` gave, and of `audit_counts`."""

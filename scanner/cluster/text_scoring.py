"""Score the documents that a scan's workers read, each text as it was written.

Each worker opens keys, tokenizers and users itself, because a plan contains no secrets.
"""

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from scanner.cluster.machines import give_back_memory
from scanner.comparing import TextCounter, text_counters
from scanner.controls.control import Observer, Subject
from scanner.controls.observation import OpenControls, count_verdicts
from scanner.detection.attribution import BatchOrigin, FileHistory, ScoreObserver
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_detector, open_text_ids
from scanner.detection.rows import (
    TextIds,
    flagged_rows,
    for_everybody,
    span_rows,
    texts_of_flags,
    with_canaries,
    with_ids,
)
from scanner.filtering import open_filter
from scanner.looks.look import Keeper
from scanner.looks.looks import LOOKS
from scanner.scan_plan import Plan

if TYPE_CHECKING:
    import torch


class TextScoring:
    """Scores texts as they were written, names users, and keeps rows that later looks need."""

    reading_seconds = 0.0
    holds_model = False

    def __init__(self, plan: Plan, scan_id: str) -> None:
        self._plan, self._scan_id = plan, scan_id
        self._device: torch.device | None = None

    @cached_property
    def detector(self) -> Detector:
        """Open keys, tokenizers, users and the filter."""
        plan = self._plan
        ngram_filter = open_filter(plan.results, plan.filter_sha256, self._text_ids.ngram_secret())
        return open_detector(plan, self._device, ngram_filter)

    @cached_property
    def _controls(self) -> OpenControls:
        return OpenControls(self._plan)

    @cached_property
    def _text_ids(self) -> TextIds:
        return open_text_ids(self._plan)

    @cached_property
    def _keepers(self) -> list[Keeper]:
        keepers = (look.keeper(self._plan, self._scan_id, self._text_ids) for look in LOOKS)
        return [keeper for keeper in keepers if keeper is not None]

    @cached_property
    def _counters(self) -> list[TextCounter]:
        return text_counters(self._text_ids)

    def prepare(self, device: "torch.device | None") -> None:
        """Open keys, tokenizers, users, filter and counters, and compile kernels. Raises as `open_detector`."""
        self._device = device
        detector = self.detector
        give_back_memory()  # tokenizers leave a third of what they took while they were opened
        # counters are opened now, so that a secret that is gone is told before any work
        detector.compile(self._controls.rehearsal(), [lambda: self._counters])

    def observer(self, origin: BatchOrigin, start: int) -> Observer | None:
        """Make the observer of the controls for a piece that begins at this row. None: no control counts anything."""
        return self._controls.observers(Subject.TEXTS, origin, f"{origin.shard_id};{start};", self.detector)

    def score(
        self, documents: pa.RecordBatch, origin: BatchOrigin, observer: ScoreObserver | None, history: FileHistory
    ) -> dict[str, list[pa.RecordBatch]]:
        """Score documents, prove their flags and name users. Return exact rows by table, with the lengths of texts."""
        result = self.detector.score_batch(documents, origin, observer, history)
        verdicts, flagged = result.verdicts, result.verdicts["flagged"].true_count
        if flagged:
            verdicts = with_canaries(verdicts, self._plan.canaries_made)
        batches = {
            "verdicts": [verdicts],
            "lengths": [result.lengths],
            "quarantine": [result.quarantine],
            "spans": [result.spans],
        }
        if self._plan.config.evidence.keep_text and flagged:
            batches["flag_texts"] = [texts_of_flags(documents, verdicts)]
        batches |= {counter.table: [counter.rows(documents, verdicts, origin)] for counter in self._counters}
        return batches | {keeper.table: [keeper.rows(documents, verdicts)] for keeper in self._keepers}

    def count_flags(self, verdicts: pa.RecordBatch, path: str) -> int:
        """Count the flags of a file's batch, without canaries."""
        del path
        return int(verdicts["flagged"].true_count - verdicts["canary"].true_count)

    def tables(self, batches: defaultdict[str, list[pa.RecordBatch]]) -> dict[str, list[pa.RecordBatch]]:
        """Make the rows to write from exact rows of documents. Only rows of flags stay exact, for `flags`."""
        plan, exact = self._plan, [with_ids(batch, self._text_ids) for batch in batches["verdicts"]]
        tables = {
            "verdicts": [for_everybody(*both) for both in zip(exact, batches["lengths"], strict=True)],
            "flags": [flagged_rows(batch, plan.key_set) for batch in exact if batch["flagged"].true_count],
            "spans": [span_rows(batch, plan.key_set) for batch in batches["spans"] if len(batch)],
            "quarantine": batches["quarantine"],
            "flag_texts": batches["flag_texts"],
            "audit_counts": [*batches["audit_counts"], *count_verdicts(plan, exact, self._text_ids)],
        }
        tables |= {counter.table: counter.in_order(batches[counter.table]) for counter in self._counters}
        return tables | {keeper.table: keeper.in_order(batches[keeper.table]) for keeper in self._keepers}

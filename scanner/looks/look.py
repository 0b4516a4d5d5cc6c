"""Define the interface of a look: a way to test a text besides the whole text as written.

A look is never asked for its share of the false-positive rate. The core computes all shares in one place
(scanner.error_shares.ErrorShares).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from scanner.controls.control import Observer
from scanner.detection.attribution import BatchOrigin, FileHistory, ScoreObserver
from scanner.detection.detector import Detector
from scanner.detection.rows import TextIds
from scanner.follow_up import CommittedScan, OnActors
from scanner.input.shards import Shard
from scanner.scan_plan import Plan

if TYPE_CHECKING:
    import torch


class Scoring(Protocol):
    """The treatment of the documents that a worker reads. The driver makes it, and each worker opens it for itself."""

    @property
    def reading_seconds(self) -> float:
        """Return the seconds that a model takes for a byte of text before it is scored, a generous estimate.

        0: no model reads.
        """

    @property
    def holds_model(self) -> bool:
        """Return whether it holds a model.

        If so, memory is limited beyond the model's use, and no text is set aside.
        """

    @property
    def detector(self) -> Detector:
        """Return the detector, which scores documents and sums up the seconds of tokenising and proving."""

    def prepare(self, device: "torch.device | None") -> None:
        """Open keys, tokenizers and users, and compile kernels. `device` is the worker's. None: it has none."""

    def observer(self, origin: BatchOrigin, start: int) -> Observer | None:
        """Create the observer that counts for controls in a piece that begins at this row. None: no control counts."""

    def score(
        self, documents: pa.RecordBatch, origin: BatchOrigin, observer: ScoreObserver | None, history: FileHistory
    ) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """Score, prove and name documents.

        Return rows for each table, at least `verdicts` and the `lengths` of their texts.
        """

    def count_flags(self, verdicts: pa.RecordBatch, path: str) -> int:
        """Count the flags in a batch of a file that were not counted elsewhere, without canaries."""

    def tables(self, batches: defaultdict[str, list[pa.RecordBatch]]) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """Make the rows to write for each table, from all results of `score` and of `audit_counts`."""


class Keeper(Protocol):
    """Keeps rows of documents while they are scanned, for the look's later work. Each worker makes its own."""

    @property
    def table(self) -> str:
        """Return the name of the table of these rows. It is committed beside `verdicts`."""

    def rows(self, documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows to keep of a batch.

        Args:
            documents: documents of the batch.
            verdicts: exact rows of VERDICTS on some of the documents, in their order.
        """

    def in_order(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return rows in the order in which they are written."""


class SecondPass(NamedTuple):
    """Shards whose documents are read once more.

    plan: plan of the pass, which gives the ids under which the shards are committed.
    tables: tables that get rows, besides those of a scan.
    scoring: makes the scoring of documents, given whether each worker has a GPU.
    reading_seconds: seconds that a model takes for a byte of text, a generous estimate.
    gpus: GPUs of each worker.
    gpus_field: field of the configuration that asks for them.
    """

    plan: Plan
    shards: Sequence[Shard]
    tables: Sequence[str]
    scoring: Callable[[bool], Scoring]
    reading_seconds: float
    gpus: float
    gpus_field: str


class SecondPassTotals(NamedTuple):
    """Totals of a second pass.

    texts: documents that were read.
    flagged: documents that are flagged now and were not before, without canaries.
    canaries: flagged texts of canaries.
    unproved: flags that a slow path computed differently.
    left: shards whose file cannot be read now.
    given_up: documents at which every worker ended that read them. They keep their present verdict.
    """

    texts: int = 0
    flagged: int = 0
    canaries: int = 0
    unproved: int = 0
    left: int = 0
    given_up: int = 0


class ReadAgain(Protocol):
    """A function that has workers read shards once more, and commits the results."""

    def __call__(self, scan: CommittedScan, again: SecondPass) -> SecondPassTotals:
        """Return the totals.

        Raises:
            Refused: a worker cannot begin.
            ScanFailed: results cannot be written.
        """


@dataclass(frozen=True)
class LookResult:
    """The result of a look's work after all documents were committed.

    counts: counts for the record of the job. None: there was no work.
    columns: columns of the scan's row of SCANS.
    audited: ids under which it has rows of AUDIT_COUNTS.
    unproved: rows of its own tables whose proof differs.
    summary: headings and sentences for people.
    hands: sentences on faults that a person must look at.
    """

    counts: Mapping[str, object] | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    audited: Sequence[str] = ()
    unproved: int = 0
    summary: Sequence[tuple[str, str]] = ()
    hands: Sequence[str] = ()


NO_RESULT = LookResult()


class LookEstimate(NamedTuple):
    """The work left for a look: a heading, sentences, and the same as numbers."""

    name: str
    sentences: tuple[str, ...]
    facts: dict[str, object]


class LookRun(Protocol):
    """The work of a look on a scan after all documents are committed."""

    @property
    def result(self) -> LookResult:
        """Return the result so far. An interrupted scan records it too."""

    def run(self, scan: CommittedScan, on_actors: OnActors, read_again: ReadAgain) -> None:
        """Do the work that is left, and commit it. A look that was killed continues from there.

        Raises:
            Refused: something cannot be opened.
            ScanFailed: results cannot be read or written.
        """


class Look(Protocol):
    """A way to test a text besides the whole text as written. A configuration may turn it on."""

    @property
    def name(self) -> str:
        """Return its name in the record of a job."""

    @property
    def section(self) -> str:
        """Return the section of scan.toml that turns it on."""

    def check(self, plan: Plan) -> Callable[[Plan, Sequence[Shard]], LookEstimate] | None:
        """Return a function that estimates the cost of the work left.

        It takes the plan with its filter, and the input's shards.

        None: the look is not configured, or its cost is negligible.

        Raises:
            Refused: the look cannot be used.
        """

    def tables(self, plan: Plan) -> Sequence[str]:
        """Return the names of the tables that workers fill for it."""

    def keeper(self, plan: Plan, scan_id: str, text_ids: TextIds) -> Keeper | None:
        """Create the keeper of rows of documents. None: the look keeps none."""

    def follow_up(self, plan: Plan) -> LookRun | None:
        """Create the run that follows a scan, before any document is read. None: there is none.

        Raises:
            Refused: it cannot be created.
        """

"""The seam of a look: a way to test a text besides the whole text as written.

A look is never asked for its share of the false-positive rate: the core computes all shares in one place
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
        """Open keys, tokenizers and users, and compile kernels. `device` is the worker's; None: it has none."""

    def observer(self, origin: BatchOrigin, start: int) -> Observer | None:
        """Create the observer that counts for controls in a piece that begins at this row; None: none does."""

    def score(
        self, documents: pa.RecordBatch, origin: BatchOrigin, observer: ScoreObserver | None, history: FileHistory
    ) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """Score, prove and name documents. Returns rows by table, `verdicts` and `lengths` of their texts at least."""

    def count_flags(self, verdicts: pa.RecordBatch, path: str) -> int:
        """Count the flags of a batch of a file that were counted nowhere else, canaries left out."""

    def tables(self, batches: defaultdict[str, list[pa.RecordBatch]]) -> Mapping[str, Sequence[pa.RecordBatch]]:
        """Make the rows that are written, by table, of all that `score` gave, and of `audit_counts`."""


class Keeper(Protocol):
    """Keeps rows of documents while these are scanned, for what the look does later. Each worker makes its own."""

    @property
    def table(self) -> str:
        """Name of the table of the rows, which is committed beside `verdicts`."""

    def rows(self, documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
        """Return what is kept of a batch.

        Args:
            documents: of the batch.
            verdicts: exact rows of VERDICTS on some of the documents, in their order.
        """

    def in_order(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return rows in the order in which they are written."""


class SecondPass(NamedTuple):
    """Shards whose documents are read once more.

    plan: of the pass, which says under which ids the shards are committed.
    tables: that get rows, besides those of a scan.
    scoring: makes what scores the documents; given whether each worker has a GPU.
    reading_seconds: seconds that a model takes for a byte of text, generously.
    gpus: of each worker.
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
    flagged: documents that are flagged now and were not before, canaries left out.
    canaries: flagged texts of canaries.
    unproved: flags that a slow path computed differently.
    left: shards whose file cannot be read now.
    given_up: documents that ended each worker that read them, and keep the verdict that they have.
    """

    texts: int = 0
    flagged: int = 0
    canaries: int = 0
    unproved: int = 0
    left: int = 0
    given_up: int = 0


class ReadAgain(Protocol):
    """Has workers read shards once more, and commits what is found there."""

    def __call__(self, scan: CommittedScan, again: SecondPass) -> SecondPassTotals:
        """Return the totals.

        Raises:
            Refused: a worker cannot begin.
            ScanFailed: results cannot be written.
        """


@dataclass(frozen=True)
class LookResult:
    """Result of what a look did once all documents were committed.

    counts: for the record of the job; None: nothing was done.
    columns: of the scan's row of SCANS.
    audited: ids under which it has rows of AUDIT_COUNTS.
    unproved: rows of its own tables whose proof came out differently.
    summary: headings and sentences for people.
    hands: sentences on what somebody must look at.
    """

    counts: Mapping[str, object] | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    audited: Sequence[str] = ()
    unproved: int = 0
    summary: Sequence[tuple[str, str]] = ()
    hands: Sequence[str] = ()


NO_RESULT = LookResult()


class LookEstimate(NamedTuple):
    """What is left for a look to do: a heading, sentences, and the same as numbers."""

    name: str
    sentences: tuple[str, ...]
    facts: dict[str, object]


class LookRun(Protocol):
    """What a look does with a scan once all documents are committed."""

    @property
    def result(self) -> LookResult:
        """The result so far, which also a scan records that is interrupted."""

    def run(self, scan: CommittedScan, on_actors: OnActors, read_again: ReadAgain) -> None:
        """Do what is left to do, and commit it: a look that was killed goes on from there.

        Raises:
            Refused: something cannot be opened.
            ScanFailed: results cannot be read or written.
        """


class Look(Protocol):
    """A way to test a text besides the whole text as written, which a configuration may turn on."""

    @property
    def name(self) -> str:
        """Name in the record of a job."""

    @property
    def section(self) -> str:
        """Section of scan.toml that turns it on."""

    def check(self, plan: Plan) -> Callable[[Plan, Sequence[Shard]], LookEstimate] | None:
        """Return an estimator of the cost of what is left, by the plan with its filter and the input's shards.

        None: the look is not configured, or costs nothing worth telling.

        Raises:
            Refused: the look cannot be used.
        """

    def tables(self, plan: Plan) -> Sequence[str]:
        """Name the tables that workers fill for it."""

    def keeper(self, plan: Plan, scan_id: str, text_ids: TextIds) -> Keeper | None:
        """Create the keeper of rows of documents; None: the look keeps none."""

    def follow_up(self, plan: Plan) -> LookRun | None:
        """Create the run that follows a scan, before any document is read; None: none does.

        Raises:
            Refused: it cannot be created.
        """

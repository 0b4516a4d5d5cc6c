"""Define questions to actors and their answers: pieces of shards, signs of life, reports, lost documents.

The states of work, as scanner.cluster.todo changes them:

    shard or pack ── cut to the pace ──► pieces ──► reported
      a pack that fails, or whose third node dies ──► each shard a piece, given alone
      a piece that fails ATTEMPTS times, or whose third node dies ──► halves (HALF), given alone
      a half that fails, or whose node dies ──► halves, down to single documents
      a piece without progress ──► rows before its last report in batches, the rest one_by_one; announced rows alone
      a document that its worker set aside for its size ──► a piece of one document (LARGE), given alone
      a single document: out of ATTEMPTS (LARGE: LARGE_ATTEMPTS), of nodes, or of time ──► Lost: only identified
      Lost, once identified, or once that failed too ──► in its shard's list of lost documents

A shard is finished when none of its pieces is open.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple

from scanner.errors import FileFault
from scanner.input.documents import UNKNOWN_IDENTITY, Identity
from scanner.input.shards import Shard
from scanner.storage.data_files import DataFile


class Piece(NamedTuple):
    """Rows start … stop−1 of a shard's file: the whole shard, or a part of it.

    one_by_one: whether a worker made no progress over these rows. Documents are then scored one by one, each announced.
    """

    shard: Shard
    start: int
    stop: int
    one_by_one: bool = False


@dataclass(frozen=True)
class DocumentCounts:
    """Numbers of documents that were read, by result.

    text_bytes: bytes of their texts.
    tokens: tokens of their verdicts.
    values_not_read: documents with an id, account or time that cannot be read, and is null.
    proved, unproved: flags that a second computation confirmed, or did not.
    not_offered: flags without a second computation.
    in_future: documents whose own time is in the future. Without an own time, their file's time counts.
    older_than_key: documents flagged under a key that was made after they existed.
    filtered: documents with too few n-grams left by the filter to be scored.
    canaries: flagged texts of canaries that were named correctly. They are not in `flagged`.
    of_keys: positions of all texts, for keys with shown seeds. By (key id, "scored"): positions that the key scored. By
        (key id, "shown"): positions that it left out because their seeds were shown.
    """

    documents: int = 0
    too_short: int = 0
    quarantined: int = 0
    flagged: int = 0
    text_bytes: int = 0
    tokens: int = 0
    scored_in_part: int = 0
    in_future: int = 0
    older_than_key: int = 0
    values_not_read: int = 0
    proved: int = 0
    unproved: int = 0
    not_offered: int = 0
    filtered: int = 0
    canaries: int = 0
    of_keys: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __add__(self, other: "DocumentCounts") -> "DocumentCounts":
        return DocumentCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


NO_DOCUMENTS = DocumentCounts()


class Seconds(NamedTuple):
    """Wall seconds by stage: five stages of the workers, summed over them, and `commit` of the driver.

    A worker has one core, so its seconds are core-seconds. With a GPU, they include the core's waits for it.

    score: without the proofs of flags, which are in `prove`.
    """

    read: float = 0.0
    tokenise: float = 0.0
    score: float = 0.0
    prove: float = 0.0
    write: float = 0.0
    commit: float = 0.0

    @property
    def of_workers(self) -> float:
        """Return the seconds of the workers, all stages together."""
        return sum(self) - self.commit

    def plus(self, other: "Seconds") -> "Seconds":
        """Return the sums by stage."""
        return Seconds(*(a + b for a, b in zip(self, other, strict=True)))


NO_TIME = Seconds()


Files = Mapping[str, tuple[DataFile, ...]]
"""Files that are not part of their tables yet, by table. Tables without rows are left out."""


@dataclass(frozen=True)
class Report:
    """Result of a piece: the files of its rows, or a fault of its file.

    peak_memory: of the worker, in bytes.
    set_aside: rows that are in none of the files, because their texts may need more memory than there is. Each becomes
        a piece of its own.
    """

    files: Files = field(default_factory=dict)
    counts: DocumentCounts = NO_DOCUMENTS
    fault: FileFault | None = None
    peak_memory: int = 0
    seconds: Seconds = NO_TIME
    set_aside: tuple[int, ...] = ()


@dataclass(frozen=True)
class PackReport:
    """Results of whole shards that share files, in order.

    counts: counts of each shard. None: its file is at fault or a text is large, so it must be scanned by itself.
    """

    counts: tuple[DocumentCounts | None, ...]
    files: Files
    peak_memory: int
    seconds: Seconds


class Busy(NamedTuple):
    """A sign of life. The next one, or the report, is due within `seconds`.

    behind: number of rows that are done.
    row: the only document that is worked on from now on. None: there may be several, or a file is read or written.
    """

    seconds: float
    behind: int = 0
    row: int | None = None


class LostDocument(NamedTuple):
    """A document that could not be scored: row, reason (schemas.words.DOCUMENT_REASONS), detail and identity."""

    row: int
    reason: str
    detail: str
    whose: Identity = UNKNOWN_IDENTITY


@dataclass
class FinishedShard:
    """A finished shard: every row is in a report or lost, unless its file turned out to be at fault.

    retries: number of times that the shard, or a part of it, failed and was tried again, whole or halved.
    """

    shard: Shard
    reports: list[Report] = field(default_factory=list)
    lost: list[LostDocument] = field(default_factory=list)
    fault: FileFault | None = None
    retries: int = 0

    @property
    def documents(self) -> int:
        """Return the number of documents in a report or lost."""
        return sum(report.counts.documents for report in self.reports) + len(self.lost)


class Pack(NamedTuple):
    """Small shards that are scanned together, as a whole. Their rows share files."""

    shards: tuple[Shard, ...]


@dataclass
class FinishedPack:
    """The finished shards of a pack, each with its counts, and the report with their files."""

    shards: dict[Shard, DocumentCounts]
    report: PackReport

    @property
    def documents(self) -> int:
        """Return the number of documents of the finished shards."""
        return sum(counts.documents for counts in self.shards.values())


class PieceState(Enum):
    """States of a piece that is to be scored: as the pace cut it, half of a failed piece, or one large document."""

    CUT = auto()
    HALF = auto()
    LARGE = auto()


@dataclass
class PieceWork:
    """A piece, its shard, its state, and whether its actor may hold nothing else.

    state: Lost: its only document is no longer scored, but only identified.
    failed_on: for each failed attempt, the node whose worker died. None: no worker died.
    nodes: number of nodes that died while they scanned it.
    """

    piece: Piece
    shard: "OpenShard"
    state: PieceState | LostDocument = PieceState.CUT
    failed_on: list[str | None] = field(default_factory=list)
    exclusive: bool = False
    nodes: int = 0

    @property
    def path(self) -> str:
        """Return the path of its file."""
        return self.piece.shard.file.path

    @property
    def documents(self) -> int:
        """Return the number of its documents."""
        return self.piece.stop - self.piece.start

    @property
    def single(self) -> bool:
        """Return whether it is a single document."""
        return self.documents == 1

    @property
    def text_bytes(self) -> int:
        """Return the approximate bytes of its text: its share of the shard's bytes."""
        rows = self.piece.shard.rows
        return rows.text_bytes * self.documents // rows.documents

    def cut(self, documents: int) -> "tuple[PieceWork, PieceWork]":
        """Return its first so many documents, and the rest, as two pieces. The shard is finished after both."""
        middle = self.piece.start + documents
        self.shard.open_pieces += 1
        first, rest = self.piece._replace(stop=middle), self.piece._replace(start=middle)
        return replace(self, piece=first, failed_on=[]), replace(self, piece=rest, failed_on=[])


@dataclass
class PackWork:
    """A pack, whether its actor may hold nothing else, and the number of nodes that died while they scanned it."""

    pack: Pack
    exclusive: bool = False
    nodes: int = 0

    @property
    def documents(self) -> int:
        """Return the number of its documents."""
        return sum(shard.rows.documents for shard in self.pack.shards)

    @property
    def text_bytes(self) -> int:
        """Return the approximate bytes of its text."""
        return sum(shard.rows.text_bytes for shard in self.pack.shards)

    def cut(self, documents: int) -> "tuple[PieceWork | PackWork, PieceWork | PackWork]":
        """Cut a pack of several shards in two. The first part has at most so many documents, or is a single shard."""
        shards, ends = self.pack.shards, accumulate(shard.rows.documents for shard in self.pack.shards)
        first = min(max(sum(end <= documents for end in ends), 1), len(shards) - 1)
        return self._part(shards[:first]), self._part(shards[first:])

    def _part(self, shards: tuple[Shard, ...]) -> "PieceWork | PackWork":
        if len(shards) > 1:
            return PackWork(Pack(shards), self.exclusive, self.nodes)
        return replace(whole_shard(shards[0], exclusive=self.exclusive), nodes=self.nodes)


@dataclass
class OpenShard:
    """A shard that is worked on, with the number of its pieces that are left."""

    finished: FinishedShard
    open_pieces: int = 1


def whole_shard(shard: Shard, *, exclusive: bool = False, retries: int = 0) -> PieceWork:
    """Return a shard as one piece."""
    piece = Piece(shard, shard.rows.start, shard.rows.stop)
    return PieceWork(piece, OpenShard(FinishedShard(shard, retries=retries)), exclusive=exclusive)

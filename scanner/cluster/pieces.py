"""Work and results of a pool of actors: shards, packs of them, their pieces, and lost documents."""

from dataclasses import dataclass, field
from typing import NamedTuple

from scanner.cluster.reports import Counts, PackReport, Piece, Report
from scanner.errors import FileFault
from scanner.input.identity import UNKNOWN, Identity
from scanner.input.shards import Shard


class Lost(NamedTuple):
    """A document that could not be scored: row, reason (schemas.words.DOCUMENT_REASONS), detail and identity."""

    row: int
    reason: str
    detail: str
    whose: Identity = UNKNOWN


@dataclass
class Finished:
    """A finished shard: every row is in a report or lost, unless its file turned out to be at fault.

    retries: how often the shard, or a part of it, failed and was given again, whole or halved.
    """

    shard: Shard
    reports: list[Report] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    fault: FileFault | None = None
    retries: int = 0

    @property
    def documents(self) -> int:
        """Documents in a report or lost."""
        return sum(report.counts.documents for report in self.reports) + len(self.lost)


class Pack(NamedTuple):
    """Small shards that are scanned together, whole, and whose rows share files."""

    shards: tuple[Shard, ...]


@dataclass
class FinishedPack:
    """The finished shards of a pack, each with its counts, and the report with their files."""

    shards: dict[Shard, Counts]
    report: PackReport

    @property
    def documents(self) -> int:
        """Documents of the finished shards."""
        return sum(counts.documents for counts in self.shards.values())


@dataclass
class Work:
    """A piece, the shard that it belongs to, and whether its actor may hold nothing else.

    failed_on: for each failed attempt, the node whose worker died, None where none died; large: the document was set
    aside for its size; lost: it is no longer scored, only identified; nodes: how many nodes died over it.
    """

    piece: Piece
    shard: "OpenShard"
    failed_on: list[str | None] = field(default_factory=list)
    alone: bool = False
    large: bool = False
    lost: Lost | None = None
    nodes: int = 0

    @property
    def path(self) -> str:
        """Path of its file."""
        return self.piece.shard.file.path

    @property
    def single(self) -> bool:
        """Whether it is a single document."""
        return self.piece.stop - self.piece.start == 1

    @property
    def whole(self) -> bool:
        """Whether it is its whole shard."""
        rows = self.piece.shard.rows
        return (self.piece.start, self.piece.stop) == (rows.start, rows.stop)


@dataclass
class PackWork:
    """A pack, whether its actor may hold nothing else, and how many nodes died over it."""

    pack: Pack
    alone: bool = False
    nodes: int = 0


@dataclass
class OpenShard:
    """A shard that is worked on, and how many of its pieces are left."""

    finished: Finished
    open_pieces: int = 1


def whole_shard(shard: Shard, *, alone: bool = False, retries: int = 0) -> Work:
    """A shard as one piece."""
    piece = Piece(shard, shard.rows.start, shard.rows.stop)
    return Work(piece, OpenShard(Finished(shard, retries=retries)), alone=alone)

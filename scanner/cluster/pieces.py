"""Work and results of a pool of actors: shards, packs of them, their pieces, and lost documents."""

from dataclasses import dataclass, field, replace
from itertools import accumulate
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
    aside for its size; lost: it is no longer scored, only identified; nodes: how many nodes died over it; halved: it is
    a part of a piece that failed.
    """

    piece: Piece
    shard: "OpenShard"
    failed_on: list[str | None] = field(default_factory=list)
    alone: bool = False
    large: bool = False
    lost: Lost | None = None
    nodes: int = 0
    halved: bool = False

    @property
    def path(self) -> str:
        """Path of its file."""
        return self.piece.shard.file.path

    @property
    def documents(self) -> int:
        """How many documents it has."""
        return self.piece.stop - self.piece.start

    @property
    def single(self) -> bool:
        """Whether it is a single document."""
        return self.documents == 1

    @property
    def text_bytes(self) -> int:
        """About how many bytes of text it has: its share of the shard's."""
        rows = self.piece.shard.rows
        return rows.text_bytes * self.documents // (rows.stop - rows.start)

    def cut(self, most: int) -> "tuple[Work, Work]":
        """Its first so many documents, and the rest: two pieces of the shard, which is finished after both."""
        middle = self.piece.start + most
        self.shard.open_pieces += 1
        first, rest = self.piece._replace(stop=middle), self.piece._replace(start=middle)
        return replace(self, piece=first, failed_on=[]), replace(self, piece=rest, failed_on=[])


@dataclass
class PackWork:
    """A pack, whether its actor may hold nothing else, and how many nodes died over it."""

    pack: Pack
    alone: bool = False
    nodes: int = 0

    @property
    def documents(self) -> int:
        """How many documents it has."""
        return sum(shard.rows.stop - shard.rows.start for shard in self.pack.shards)

    @property
    def text_bytes(self) -> int:
        """About how many bytes of text it has."""
        return sum(shard.rows.text_bytes for shard in self.pack.shards)

    def cut(self, most: int) -> "tuple[Work | PackWork, Work | PackWork]":
        """Two parts of a pack of several shards: the first has so many documents at most, or a single shard."""
        shards, ends = self.pack.shards, accumulate(shard.rows.stop - shard.rows.start for shard in self.pack.shards)
        first = min(max(sum(end <= most for end in ends), 1), len(shards) - 1)
        return self._part(shards[:first]), self._part(shards[first:])

    def _part(self, shards: tuple[Shard, ...]) -> "Work | PackWork":
        if len(shards) > 1:
            return PackWork(Pack(shards), self.alone, self.nodes)
        return replace(whole_shard(shards[0], alone=self.alone), nodes=self.nodes)


@dataclass
class OpenShard:
    """A shard that is worked on, and how many of its pieces are left."""

    finished: Finished
    open_pieces: int = 1


def whole_shard(shard: Shard, *, alone: bool = False, retries: int = 0) -> Work:
    """A shard as one piece."""
    piece = Piece(shard, shard.rows.start, shard.rows.stop)
    return Work(piece, OpenShard(Finished(shard, retries=retries)), alone=alone)

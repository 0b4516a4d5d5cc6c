"""Order the work that is left, size its pieces, and decide what happens after a piece fails.

A piece has as many documents as a worker scores in some 15 seconds, at the speed that this scan has shown.

- A piece that fails is tried again, then halved, down to the document that is to blame.
- A piece that makes no progress is cut at its worker's last report. The rows after it are scored one by one, so the
  next last report names the document. That costs two stalls of minutes each.
- Work on a lost node does not count as an attempt, because nodes are preempted in waves. If nobody announced the loss,
  a document may be its cause. A piece over which several nodes were lost in this way is therefore halved too, which
  blames no document. A document that was alone while many nodes were lost is given up.

scanner.cluster.pieces draws the states.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

from scanner.cluster.machines import NodeEnd, Nodes
from scanner.cluster.pieces import (
    FinishedPack,
    FinishedShard,
    LostDocument,
    Pack,
    PackReport,
    PackWork,
    Piece,
    PieceState,
    PieceWork,
    Report,
    Seconds,
    whole_shard,
)
from scanner.input.documents import UNKNOWN_IDENTITY, Identity
from scanner.input.shards import Shard
from scanner.scan_plan import Plan
from scanner.watermark.formats import format_of
from scanner.watermark.parts import MOST_SEARCHES

SECONDS_A_PIECE = 15.0
"""Target duration of a piece, in seconds. A shard that takes less than twice as long stays whole."""

SLOW_SHARD = 600.0
"""Estimated seconds of a shard, by `seconds_a_byte`, from which its first piece is a small one.

The estimate is 20 to 300 times too long.
"""

FIRST_DOCUMENTS = 256
"""Number of documents of a piece of a slow shard, before any piece has come back."""

LEAST_DOCUMENTS = 16
"""Fewest documents of a piece, unless its shard has fewer. Each piece opens a file and writes others."""


def seconds_a_byte(plan: Plan) -> float:
    """Return a generous estimate of the seconds to score a byte of text under a plan's keys: at most a token a byte."""
    searches = 1 if plan.weights.span is None else MOST_SEARCHES
    return searches * sum(format_of(key).seconds(key.messages) for key in plan.keys)


class PiecePace:
    """The number of documents that a piece may have, from the pieces that came back. The newest pieces count most.

    seconds: generous estimate of the seconds to score a byte of text. 0: shards stay whole until a piece has come back.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._generous = seconds
        self._documents = self._seconds = 0.0

    def record(self, documents: int, seconds: Seconds) -> None:
        """Record the duration of a piece."""
        if documents and seconds.of_workers:
            self._documents = self._documents / 2 + documents
            self._seconds = self._seconds / 2 + seconds.of_workers

    def largest(self, documents: int, text_bytes: int) -> int:
        """Return the size of the next piece of so many documents, with so many bytes of text: a power of two, or all.

        A piece of the same size is read on from the end of the piece before (scanner.input.documents.Reader).
        """
        if self._seconds:
            longest = max(int(SECONDS_A_PIECE * self._documents / self._seconds), LEAST_DOCUMENTS)
        elif self._generous * text_bytes < SLOW_SHARD:
            return documents
        else:
            longest = FIRST_DOCUMENTS
        return documents if documents <= 2 * longest else 1 << longest.bit_length() - 1

    def pieces(self, documents: int, text_bytes: int) -> int:
        """Count the pieces for so many documents, with so many bytes of text, at the present pace."""
        return -(-documents // self.largest(documents, text_bytes)) if documents else 1

    def pieces_of(self, shards: Iterable[Shard]) -> int:
        """Count the pieces for shards at the present pace. So many workers find work."""
        return sum(self.pieces(shard.rows.documents, shard.rows.text_bytes) for shard in shards)


ATTEMPTS = 3
"""Number of attempts at a shard, at a piece cut to the pace, and again at a single document.

A half in between is halved at its first failure.
"""

NODES_A_SHARD = 3
"""Number of unannounced losses of nodes over a shard, a piece or a pack before it is cut. A half is cut at once."""

NODES_A_DOCUMENT = 12
"""Number of unannounced losses of nodes over a single document before it is given up."""

LARGE_ATTEMPTS = 2
"""Number of attempts at a document that was set aside for its size."""

LARGE_LOST = 3
"""Number of lost large documents of a file. After so many, its other large documents are not tried."""

_NO_PROGRESS = "the worker made no progress; a larger cluster.stall_seconds gives it more time"
_log = logging.getLogger(__name__)


class Todo:
    """Work that waits for an actor, and the open shards.

    in_parts: number of finished documents of open shards.

    Args:
        nodes: nodes that are gone.
        pace: how large pieces may be. None: shards and packs stay whole until they fail.
    """

    def __init__(self, nodes: Nodes, pace: PiecePace | None = None) -> None:
        self._nodes, self._pace = nodes, pace
        self._waiting: deque[PieceWork | PackWork] = deque()
        self._large_lost: Counter[str] = Counter()  # lost large documents, by path
        self.in_parts = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, units: Iterable[Shard | Pack]) -> None:
        """Append shards and packs of shards."""
        self._waiting.extend(PackWork(unit) if isinstance(unit, Pack) else whole_shard(unit) for unit in units)

    @property
    def first(self) -> PieceWork | PackWork:
        """Return the next piece of work."""
        return self._waiting[0]

    def next_work(self) -> PieceWork | PackWork:
        """Take the next piece of work, cut to the pace. The rest follows next."""
        work = self._waiting.popleft()
        while self._pace and not self._failed_before(work):
            longest = self._pace.largest(work.documents, work.text_bytes)
            if longest >= work.documents:
                break
            work, rest = work.cut(longest)
            self._waiting.appendleft(rest)
        return work

    @staticmethod
    def _failed_before(work: PieceWork | PackWork) -> bool:
        if isinstance(work, PackWork):
            return False
        return bool(work.failed_on) or work.state is not PieceState.CUT or work.piece.one_by_one

    def pieces(self, limit: int) -> int:
        """Count the pieces that the waiting work would be cut into now, up to `limit`."""
        pieces = 0
        for work in self._waiting:
            pieces += self._pace.pieces(work.documents, work.text_bytes) if self._pace else 1
            if pieces >= limit:
                break
        return min(pieces, limit)

    def put_back(self, works: Iterable[PieceWork | PackWork]) -> None:
        """Put back work that was not begun, in its order. It is next, and goes to an actor that holds nothing else."""
        for work in reversed([*works]):
            work.exclusive = True
            self._waiting.appendleft(work)

    def retry_or_cut(
        self, work: PieceWork | PackWork, reason: str, detail: str, node_id: str | None = None
    ) -> FinishedShard | None:
        """Try failed work again, or take it apart. A document is given up after its last attempt.

        node_id: the node on which the worker died. Processes of an ending node may die before Ray reports the node as
            gone. As soon as it does, such an attempt no longer counts.
        """
        if isinstance(work, PackWork):
            self._take_apart(work, detail)
            return None
        if isinstance(work.state, LostDocument):
            return self.lose(work, work.state, UNKNOWN_IDENTITY)
        work.failed_on.append(node_id)
        failures = sum(self._nodes.gone(node_id) is None for node_id in work.failed_on)
        attempts = self._attempts(work)
        if failures < attempts and len(work.failed_on) < NODES_A_DOCUMENT:
            # The last place in the queue, so a minute in which all workers are killed blames no document. Large
            # documents
            # of a file are tried one after the other, until enough of them are lost.
            postponed = reason == "killed_worker" and work.single and work.state is not PieceState.LARGE
            self._retry(work, postponed=postponed)
        elif work.single:
            self._give_up(work, reason, detail)
        else:
            self._halve(work, detail)
        return None

    def cut_at_stall(self, work: PieceWork | PackWork, behind: int, row: int | None) -> FinishedShard | None:
        """Handle work on which an actor made no progress: cut it, or give up a document that was announced by itself.

        behind: number of rows that were done at the actor's last report.
        row: the only document that the actor worked on then. None: unknown.
        """
        if isinstance(work, PackWork):
            self._take_apart(work, _NO_PROGRESS, behind)
        elif isinstance(work.state, LostDocument):
            return self.lose(work, work.state, UNKNOWN_IDENTITY)
        elif row is not None:
            self._split(work, row, row + 1)
        elif not work.piece.one_by_one:
            self._split(work, work.piece.start + behind, work.piece.stop)
        elif work.single:
            self._give_up(work, "timed_out", _NO_PROGRESS)
        else:
            self._halve(work, _NO_PROGRESS)
        return None

    def put_back_or_cut(self, work: PieceWork | PackWork, how: NodeEnd) -> FinishedShard | None:
        """Put back work whose node is gone, without counting an attempt.

        Cut or give up work over which many nodes died.
        """
        work.nodes += how is NodeEnd.DIED
        detail = f"{work.nodes} nodes of the cluster died while scanning this"
        if isinstance(work, PackWork):
            if work.nodes < NODES_A_SHARD:
                self.put_back([work])
            else:
                self._take_apart(work, detail)
        elif work.nodes < (NODES_A_DOCUMENT if work.single else 1 if work.state is PieceState.HALF else NODES_A_SHARD):
            self._retry(work)
        elif isinstance(work.state, LostDocument):
            return self.lose(work, work.state, UNKNOWN_IDENTITY)
        elif work.single:
            self._give_up(work, "killed_worker", f"{detail} alone")
        else:
            self._halve(work, detail)
        return None

    def unpack(self, work: PackWork, report: PackReport) -> FinishedPack:
        """Return the finished shards of a pack. Its other shards become pieces."""
        counted = zip(work.pack.shards, report.counts, strict=True)
        done = {shard: counts for shard, counts in counted if counts is not None}
        if self._pace:
            self._pace.record(sum(counts.documents for counts in done.values()), report.seconds)
        self._waiting.extend(whole_shard(shard) for shard in work.pack.shards if shard not in done)
        return FinishedPack(done, report)

    def lose(self, work: PieceWork, lost: LostDocument, identity: Identity) -> FinishedShard | None:
        """Count a document as lost, now that its identity is known."""
        work.shard.finished.lost.append(lost._replace(whose=identity))
        self.in_parts += 1
        return self._close(work)

    def take_report(self, work: PieceWork, report: Report) -> FinishedShard | None:
        """Take the report of a piece. If its shard is finished, return the shard."""
        finished = work.shard.finished
        finished.reports.append(report)
        finished.fault = finished.fault or report.fault
        self.in_parts += report.counts.documents
        if self._pace and work.state is not PieceState.LARGE and not work.piece.one_by_one:
            self._pace.record(report.counts.documents, report.seconds)
        work.shard.open_pieces += len(report.set_aside)
        for row in report.set_aside:
            piece = work.piece._replace(start=row, stop=row + 1)
            self._waiting.append(PieceWork(piece, work.shard, PieceState.LARGE, exclusive=True))
        self._give_up_large(work.path)
        return self._close(work)

    @staticmethod
    def _attempts(work: PieceWork) -> int:
        if work.state is PieceState.LARGE:
            return LARGE_ATTEMPTS
        return 1 if work.state is PieceState.HALF and not work.single else ATTEMPTS

    def _retry(self, work: PieceWork, *, postponed: bool = False) -> None:
        work.shard.finished.retries += 1
        if postponed:
            work.exclusive = True
            self._waiting.append(work)
        else:
            self.put_back([work])

    def _take_apart(self, work: PackWork, detail: str, behind: int | None = None) -> None:
        """Make each shard a piece. Shards that end after row `behind` of the pack are scored one by one."""
        _log.warning("splitting a pack of %d shards: %s", len(work.pack.shards), detail)
        pieces = [whole_shard(shard, exclusive=True, retries=1) for shard in work.pack.shards]
        ends = accumulate(piece.documents for piece in pieces)
        for piece, end in zip(pieces, ends, strict=True):
            piece.piece = piece.piece._replace(one_by_one=behind is not None and end > behind)
        self._waiting.extendleft(reversed(pieces))

    def _split(self, work: PieceWork, start: int, stop: int) -> None:
        """Cut work that made no progress, so that rows start … stop−1, one of which is to blame, stand apart."""
        # Rows before them are repeated in batches, these and the rest one by one. A document that was alone is given
        # up.
        shard, begin, end, one_by_one = work.piece
        work.shard.finished.retries += 1
        rows = f"row {start}" if one_by_one else f"rows {start} to {stop - 1}"
        _log.warning("%s of %s: %s", rows, shard.file.path, _NO_PROGRESS)
        parts = [Piece(shard, begin, start), Piece(shard, start, stop, True), Piece(shard, stop, end, True)]
        first, blamed, last = (replace(work, piece=part, failed_on=[]) for part in parts)
        rest = [piece for piece in (first, last) if piece.documents]
        work.shard.open_pieces += len(rest)
        if one_by_one:
            self.put_back(rest)
            self._give_up(blamed, "timed_out", _NO_PROGRESS)
        else:
            self.put_back([blamed, *rest])

    def _halve(self, work: PieceWork, detail: str) -> None:
        shard, start, stop, one_by_one = work.piece
        work.shard.finished.retries += 1
        _log.warning("splitting rows %d to %d of %s in half: %s", start, stop - 1, shard.file.path, detail)
        middle = (start + stop) // 2
        work.shard.open_pieces += 1
        halves = ((start, middle), (middle, stop))
        self.put_back(PieceWork(Piece(shard, *rows, one_by_one), work.shard, PieceState.HALF) for rows in halves)

    def _give_up(self, work: PieceWork, reason: str, detail: str) -> None:
        """Give a document up. An actor is asked only for its identity."""
        self._large_lost[work.path] += work.state is PieceState.LARGE
        work.state, work.nodes = LostDocument(work.piece.start, reason, detail), 0
        self.put_back([work])
        self._give_up_large(work.path)

    def _give_up_large(self, path: str) -> None:
        """Give up the waiting large documents of a file that lost LARGE_LOST of them."""
        if self._large_lost[path] < LARGE_LOST:
            return
        why = f"{LARGE_LOST} documents of this size in the file could not be scored; this one was not tried"
        for work in self._waiting:
            if isinstance(work, PieceWork) and work.state is PieceState.LARGE and work.path == path:
                work.state = LostDocument(work.piece.start, "out_of_memory", why)

    def _close(self, work: PieceWork) -> FinishedShard | None:
        finished = work.shard.finished
        work.shard.open_pieces -= 1
        if work.shard.open_pieces:
            return None
        self.in_parts -= finished.documents
        return finished

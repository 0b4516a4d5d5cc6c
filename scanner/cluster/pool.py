"""A fixed pool of actors: shards in, finished shards out. Nothing is dropped whole, nothing is retried for ever.

A piece that kills its actor, raises, needs more memory than a worker may take or makes no progress is tried again, then
halved, down to the document that is to blame. Attempts are counted here, never by Ray. An actor that dies may take the
result of the piece before with it, so whatever was near a death is from then on given to an actor alone: no document is
blamed for its neighbour. Documents that a worker sets aside for their size come last, alone, and not all are tried
where others of their file failed. An actor is asked whose a lost document is. A pack of small shards is one piece of
work; when it fails, each of its shards becomes a piece.
"""

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from scanner.cluster.pieces import Finished, FinishedPack, Lost, Pack, PackWork, Work, whole_shard
from scanner.cluster.reports import Busy, PackReport, Piece, Report
from scanner.errors import BrickscanError, Refused, ScanFailed
from scanner.input.identity import UNKNOWN, Identity
from scanner.input.shards import Shard

IN_FLIGHT = 2
"""Pieces that an actor holds: one that it works on, and one that waits."""

ATTEMPTS = 3
"""Attempts at a whole shard, and again at a single document; a part in between is halved at once, which is another
attempt.
"""

LARGE_ATTEMPTS = 2
"""Attempts at a document that was set aside for its size."""

LARGE_LOST = 3
"""Lost documents of a file from which on no other document of it that was set aside for its size is tried."""

START_ATTEMPTS = 5
"""Most actors that may die before one of them is ready."""

_WAIT_SECONDS = 1.0
_PARTS = 16
"""Parts of the actors whose answers are taken at a time: each wait costs what all that are waited for cost."""

_SECONDS_FOR_A_PART = 0.1
"""Longest wait for a part of many actors, well below what the piece that waits at each of them takes."""

_COMPLAIN_EVERY = 60.0
_NOT_BEGUN = "no worker could start for %d s: does the cluster have a free CPU, and do other processes leave it some?"
_PREPARING = (
    "workers have started, and for %d s none was ready: they load keys and tokenizers and, once a machine, compile "
    "kernels, which takes minutes where other processes use its CPUs"
)
_log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """An actor and the work that it was given, in order. `work` None: it was asked to prepare itself.

    deadline: on the monotonic clock, for a sign of life from what it was given first; preparing has none, since Ray may
    have to wait for a machine; begun: a reference to be had once its process runs; behind: rows of what it was given
    first that are done with.
    """

    actor: Any
    given: deque[tuple[Any, Work | PackWork | None]]
    begun: Any
    ready: bool = False
    deadline: float = math.inf
    behind: int = 0

    def takes(self, work: Work | PackWork, most: int) -> bool:
        """Whether it can be given a piece, and then holds at most so many."""
        if not self.ready or len(self.given) >= most:
            return False
        return not self.given or not (work.alone or any(other and other.alone for _, other in self.given))

    def give(self, work: Work | PackWork) -> None:
        """Ask the actor to do it."""
        streams: Any = {"num_returns": "streaming"}
        if isinstance(work, PackWork):
            ref = self.actor.scan_pack.options(**streams).remote(work.pack.shards)
        else:
            ask = self.actor.scan if work.lost is None else self.actor.identify
            ref = ask.options(**streams).remote(work.piece)
        self.given.append((ref, work))


class Pool:
    """A number of actors with the methods `prepare()`, `scan(Piece)`, `scan_pack(shards)` and `identify(Piece)`.

    The first returns a warning or nothing, the second yields Busy and at last a Report, the third a PackReport, the
    fourth an Identity.

    Args:
        start: makes an actor.
        workers: how many actors there are at a time.
        stall_seconds: seconds without a sign of life after which a piece is given up; a Busy sets another time.
        on_devices: an actor holds a device, which an error may have made useless to its process for good.
    """

    def __init__(
        self, start: Callable[[], Any], workers: int, stall_seconds: float = math.inf, *, on_devices: bool = False
    ) -> None:
        self._start = start
        self._stall_seconds = stall_seconds
        self._on_devices = on_devices
        self._slots = [self._new_slot() for _ in range(workers)]
        self._todo: deque[Work | PackWork] = deque()
        self._failed_starts = 0
        self._began = False
        self._warned: set[str] = set()
        self.waited = 0.0  # seconds for actors, by which one sees whether they wait for the driver
        self._idle = 0.0  # seconds without an answer before any actor is ready
        self._complain_at = _COMPLAIN_EVERY
        self._told = -math.inf
        self._in_parts = 0  # documents of parts of shards, that are done
        self._large_lost: Counter[str] = Counter()  # lost large documents, by path

    def run(self, shards: Iterable[Shard | Pack]) -> Iterator[Finished | FinishedPack | None]:
        """Work through shards and packs of them. Yields finished ones, and None about every second meanwhile.

        Raises:
            Refused: an actor refused to begin, and none had begun before.
            ScanFailed: results cannot be written, or no actor can be started.
        """
        self._todo.extend(PackWork(unit) if isinstance(unit, Pack) else whole_shard(unit) for unit in shards)
        while self._todo or any(work for slot in self._slots for _, work in slot.given):
            self._hand_out()
            heads = {slot.given[0][0]: slot for slot in self._slots if slot.given}
            part = max(1, len(heads) // _PARTS)
            patience = _WAIT_SECONDS if part == 1 else _SECONDS_FOR_A_PART
            began = time.monotonic()
            done, _ = ray.wait(list(heads), num_returns=part, timeout=patience)
            self.waited += time.monotonic() - began
            if not done:
                self._complain(patience)
            if time.monotonic() - self._told >= _WAIT_SECONDS:
                yield None
                self._told = time.monotonic()
            for ref in done:
                finished = self._take(heads[ref])
                if finished is not None:
                    yield finished
            for slot in self._late():
                finished = self._stalled(slot)
                if finished is not None:
                    yield finished

    def _late(self) -> list[_Slot]:
        """Slots past their deadline whose results do not wait to be taken: then the driver itself may be late."""
        late = {slot.given[0][0]: slot for slot in self._slots if slot.given and slot.deadline < time.monotonic()}
        if not late:
            return []
        _, silent = ray.wait(list(late), num_returns=len(late), timeout=0)
        return [late[ref] for ref in silent]

    @property
    def under_way(self) -> int:
        """Documents of unfinished shards that are done."""
        return self._in_parts + sum(slot.behind for slot in self._slots)

    def close(self) -> None:
        """End all actors."""
        for slot in self._slots:
            ray.kill(slot.actor)

    def _new_slot(self) -> _Slot:
        actor = self._start()
        begun = actor.__ray_ready__.remote()  # asked first, since an actor does one thing after the other
        return _Slot(actor, deque([(actor.prepare.remote(), None)]), begun)

    def _complain(self, waited: float) -> None:
        """Say once a minute that no actor is ready, and what it waits for: a CPU of the cluster, or its machine."""
        if any(slot.ready for slot in self._slots):
            return
        self._idle += waited
        if self._idle < self._complain_at:
            return
        self._complain_at += _COMPLAIN_EVERY
        begun, _ = ray.wait([slot.begun for slot in self._slots], timeout=0)
        _log.warning(_PREPARING if begun else _NOT_BEGUN, self._idle)

    def _give_up(self, path: str) -> None:
        """Try no large document of a file of which enough were lost."""
        if self._large_lost[path] < LARGE_LOST:
            return
        what = f"{LARGE_LOST} documents of this file that are as large could not be scored; it was not tried"
        for work in self._todo:
            if isinstance(work, Work) and work.large and work.lost is None and work.path == path:
                work.lost = Lost(work.piece.start, "out_of_memory", what)

    def _hand_out(self) -> None:
        for most in range(1, IN_FLIGHT + 1):
            for slot in self._slots:
                if self._todo and slot.takes(self._todo[0], most):
                    work = self._todo.popleft()
                    slot.give(work)
                    if len(slot.given) == 1:
                        slot.deadline = time.monotonic() + self._stall_seconds

    def _take(self, slot: _Slot) -> Finished | FinishedPack | None:
        """Take an answer about the first work that an actor was given: a sign of life, its result, or its end."""
        ref, work = slot.given[0]
        try:
            found = ray.get(ref if work is None else next(ref))
        except RayTaskError as error:
            if work is not None and (self._on_devices or isinstance(error.cause, MemoryError)):
                # by another actor: what this one holds on to, or a device, would be missing to all that follows
                self._replace(slot)
            else:
                self._begin_next(slot)
            return self._raised(error.cause, work)
        except RayError as error:
            return self._died(slot, error)
        if isinstance(found, Busy):
            slot.deadline = time.monotonic() + found.seconds
            slot.behind = found.behind
            return None
        self._begin_next(slot)
        if work is None:
            slot.ready = self._began = True
            self._failed_starts = 0
            if found and found not in self._warned:
                self._warned.add(found)
                _log.warning("%s", found)
            return None
        if isinstance(work, PackWork):
            return self._unpack(work, found)
        return self._close_piece(work, found) if work.lost is None else self._lose(work, work.lost, found)

    def _begin_next(self, slot: _Slot) -> None:
        slot.given.popleft()
        slot.deadline, slot.behind = time.monotonic() + self._stall_seconds, 0

    def _raised(self, cause: BaseException, work: Work | PackWork | None) -> Finished | None:
        if work is None:
            error = Refused if isinstance(cause, Refused) and not self._began else ScanFailed
            raise error(f"a worker cannot begin: {cause}") from None
        if isinstance(cause, BrickscanError):
            raise ScanFailed(str(cause)) from None
        reason = "out_of_memory" if isinstance(cause, MemoryError) else "failed"
        return self._failed(work, reason, f"{type(cause).__name__}: {cause}"[:500])

    def _died(self, slot: _Slot, error: RayError) -> Finished | None:
        """Replace a dead actor. The work that it was doing is to blame."""
        _log.warning("a worker died: %s", str(error).splitlines()[0])
        work = self._replace(slot)
        if work is None:
            self._failed_starts += 1
            if self._failed_starts >= START_ATTEMPTS:
                raise ScanFailed(f"{START_ATTEMPTS} workers died while they started: {error}") from None
            return None
        what = "the worker died while it scanned this; it may have needed more than cluster.worker_memory_mb"
        return self._failed(work, "killed_worker", what)

    def _stalled(self, slot: _Slot) -> Finished | None:
        """Replace an actor that makes no progress."""
        _log.warning("a worker made no progress, and is ended")
        work = self._replace(slot)
        what = "the worker made no progress; the time it has grows with cluster.stall_seconds"
        return None if work is None else self._failed(work, "timed_out", what)

    def _replace(self, slot: _Slot) -> Work | PackWork | None:
        """End an actor and start another. Returns the work that it was doing; waiting work goes to another actor."""
        ray.kill(slot.actor)  # it may only be out of reach
        _, work = slot.given.popleft()
        waiting = [later for _, later in slot.given if later is not None]
        for later in waiting:
            later.alone = True
        self._todo.extendleft(reversed(waiting))
        self._slots[self._slots.index(slot)] = self._new_slot()
        return work

    def _failed(self, work: Work | PackWork, reason: str, detail: str) -> Finished | None:
        if isinstance(work, PackWork):
            _log.warning("a pack of %d shards is taken apart: %s", len(work.pack.shards), detail)
            self._todo.extendleft(whole_shard(shard, alone=True, retries=1) for shard in reversed(work.pack.shards))
            return None
        if work.lost is not None:
            return self._lose(work, work.lost, UNKNOWN)
        work.attempts += 1
        work.alone = True
        (shard, start, stop), rows = work.piece, work.shard.finished.shard.rows
        single, whole = stop - start == 1, (start, stop) == (rows.start, rows.stop)
        attempts = LARGE_ATTEMPTS if work.large else ATTEMPTS if single or whole else 1
        if work.attempts < attempts:
            work.shard.finished.retries += 1
            self._todo.appendleft(work)
            return None
        if single:
            work.lost = Lost(start, reason, detail)
            self._todo.appendleft(work)
            self._large_lost[work.path] += work.large
            self._give_up(work.path)
            return None
        work.shard.finished.retries += 1
        _log.warning("rows %d to %d of %s are halved: %s", start, stop - 1, shard.file.path, detail)
        middle = (start + stop) // 2
        work.shard.open_pieces += 1
        self._todo.extendleft(
            Work(Piece(shard, *part), work.shard, alone=True) for part in ((middle, stop), (start, middle))
        )
        return None

    def _unpack(self, work: PackWork, report: PackReport) -> FinishedPack:
        """Give out the finished shards of a pack; its other shards become pieces."""
        counted = zip(work.pack.shards, report.counts, strict=True)
        done = {shard: counts for shard, counts in counted if counts is not None}
        self._todo.extend(whole_shard(shard) for shard in work.pack.shards if shard not in done)
        return FinishedPack(done, report)

    def _lose(self, work: Work, lost: Lost, whose: Identity) -> Finished | None:
        """Give a document up, now that everything about it is known."""
        work.shard.finished.lost.append(lost._replace(whose=whose))
        self._in_parts += 1
        return self._close_piece(work, None)

    def _close_piece(self, work: Work, report: Report | None) -> Finished | None:
        finished = work.shard.finished
        if report is not None:
            finished.reports.append(report)
            finished.fault = finished.fault or report.fault
            self._in_parts += report.counts.documents
            work.shard.open_pieces += len(report.set_aside)
            self._todo.extend(
                Work(Piece(work.piece.shard, row, row + 1), work.shard, alone=True, large=True)
                for row in report.set_aside
            )
            self._give_up(work.path)
        work.shard.open_pieces -= 1
        if work.shard.open_pieces:
            return None
        self._in_parts -= finished.documents
        return finished

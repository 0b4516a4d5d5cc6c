"""A pool of actors: shards in, finished shards out. Nothing is dropped whole, nothing is retried for ever.

scanner.cluster.todo says what becomes of work that fails. Attempts are counted there, never by Ray, and a node that is
gone is none (scanner.cluster.machines). An actor that dies may take the result of the piece before with it. So work
that an actor held when it died is from then on given to an actor that holds nothing else: no document is blamed for its
neighbour. An actor is asked for the identity of a lost document.

An actor whose node is gone is replaced by one that starts wherever there is room; meanwhile the other actors work on.
When nodes join the cluster, more actors are started.

Work that harms no worker needs less: plain functions (`spread`), or a few actors that hold something heavy, such as a
language model (`on_actors`); few items are in flight, and the first failure ends it.
"""

import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from scanner.cluster.machines import NodeEnd, Nodes, node_of, node_of_actor
from scanner.cluster.pieces import Busy, FinishedPack, FinishedShard, LostDocument, Pack, PackWork, PieceWork
from scanner.cluster.todo import PiecePace, Todo
from scanner.errors import BrickscanError, Refused, ScanFailed
from scanner.input.shards import Shard

IN_FLIGHT = 2
"""Pieces, or items, that a worker holds: one that it works on, and one that waits."""

START_ATTEMPTS = 5
"""Deaths of starting actors in a row that end a scan; with their nodes, twice the number of actors more."""

GROW_SECONDS = 5.0
"""Seconds between two looks at how many actors the cluster has room for."""

UNREACHABLE_SECONDS = 120.0
"""Longest time for which an actor may be out of reach; Ray finds out in a quarter of it that a node is gone."""

_WAIT_SECONDS = 1.0
_PARTS = 16
"""Parts into which actors are split for waiting: the cost of a wait grows with the number of actors waited for."""

_SECONDS_FOR_A_PART = 0.1
"""Longest wait for one part of many actors, well below the time that the next piece at each actor takes."""

_COMPLAIN_EVERY = 60.0
_NOT_BEGUN = "no worker could start for %d s: does the cluster have a free CPU, and do other processes leave it some?"
_PREPARING = (
    "workers have started, and for %d s none was ready: they load keys and tokenizers and, once a machine, compile "
    "kernels, which takes minutes where other processes use its CPUs"
)
_log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """An actor and its work, in order.

    work: None: the actor was asked to prepare itself.
    deadline: on the monotonic clock, for a sign of life from its first work. Preparing has none, since Ray may have to
        wait for a machine.
    begun: a reference to its node's id, ready once its process runs.
    behind: rows of its first work that are done.
    row: the only document that is worked on.
    out_of_reach: it did not answer, and was asked for a sign of life.
    """

    actor: Any
    calls: deque[tuple[Any, PieceWork | PackWork | None]]
    begun: Any
    ready: bool = False
    deadline: float = math.inf
    behind: int = 0
    row: int | None = None
    out_of_reach: bool = False

    @property
    def waiting(self) -> list[PieceWork | PackWork]:
        return [work for _, work in list(self.calls)[1:] if work is not None]

    def takes(self, work: PieceWork | PackWork, calls_at_once: int) -> bool:
        """Return whether it can be given one more piece and then holds no more than the stated number."""
        if not self.ready or self.out_of_reach or len(self.calls) >= calls_at_once:
            return False
        return not self.calls or not (work.exclusive or any(other and other.exclusive for _, other in self.calls))

    def give(self, work: PieceWork | PackWork) -> None:
        streams: Any = {"num_returns": "streaming"}
        if isinstance(work, PackWork):
            ref = self.actor.scan_pack.options(**streams).remote(work.pack.shards)
        else:
            ask = self.actor.identify if isinstance(work.state, LostDocument) else self.actor.scan
            ref = ask.options(**streams).remote(work.piece)
        self.calls.append((ref, work))


class Pool:
    """A number of actors with the methods `prepare()`, `scan(Piece)`, `scan_pack(shards)` and `identify(Piece)`.

    The first returns a warning or nothing, the second yields Busy and at last a Report, the third a PackReport, the
    fourth an Identity.

    Args:
        start: makes an actor.
        workers: how many actors there are at a time, at first.
        stall_seconds: seconds without a sign of life after which a piece is given up; a Busy sets another time.
        on_devices: an actor holds a device, which an error may have made useless to its process for good.
        room: how many actors the cluster has room for now, since nodes join it; None: as many as at first.
        pace: how large pieces may be; None: shards and packs stay whole until they fail.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        workers: int,
        stall_seconds: float = math.inf,
        *,
        on_devices: bool = False,
        room: Callable[[], int] | None = None,
        pace: PiecePace | None = None,
    ) -> None:
        self._start = start
        self._stall_seconds = stall_seconds
        self._on_devices = on_devices
        self._slots = [self._new_slot() for _ in range(workers)]
        self._room, self._grow_at = room, time.monotonic() + GROW_SECONDS
        self._nodes = Nodes()
        self._todo = Todo(self._nodes, pace)
        self._failed_starts = self._lost_starts = 0
        self._began = False
        self._warned: set[str] = set()
        self.waited = 0.0  # seconds that the driver waited for actors: few mean that actors wait for the driver
        self._idle = 0.0  # seconds without an answer before any actor is ready
        self._complain_at = _COMPLAIN_EVERY
        self._reported = -math.inf

    def run(self, shards: Iterable[Shard | Pack]) -> Iterator[FinishedShard | FinishedPack | None]:
        """Work through shards and packs of them. Yield finished ones, and None about every second meanwhile.

        Raises:
            Refused: an actor refused to begin, and none had begun before.
            ScanFailed: results cannot be written, or no actor can be started.
        """
        self._todo.add(shards)
        while self._todo or any(work for slot in self._slots for _, work in slot.calls):
            self._grow()
            self._hand_out()
            heads = {slot.calls[0][0]: slot for slot in self._slots if slot.calls}
            part = max(1, len(heads) // _PARTS)
            patience = _WAIT_SECONDS if part == 1 else _SECONDS_FOR_A_PART
            began = time.monotonic()
            done, _ = ray.wait(list(heads), num_returns=part, timeout=patience)
            self.waited += time.monotonic() - began
            if not done:
                self._complain(patience)
            if time.monotonic() - self._reported >= _WAIT_SECONDS:
                yield None
                self._reported = time.monotonic()
            for ref in done:
                finished = self._take(heads[ref])
                if finished is not None:
                    yield finished
            for slot in self._late():
                finished = self._stalled(slot)
                if finished is not None:
                    yield finished

    def _late(self) -> list[_Slot]:
        """Return slots past their deadline, unless results wait to be taken: then the driver itself may be late."""
        late = {slot.calls[0][0]: slot for slot in self._slots if slot.calls and slot.deadline < time.monotonic()}
        if not late:
            return []
        _, silent = ray.wait(list(late), num_returns=len(late), timeout=0)
        return [late[ref] for ref in silent]

    @property
    def under_way(self) -> int:
        """Documents of unfinished shards that are done."""
        return self._todo.in_parts + sum(slot.behind for slot in self._slots)

    def close(self) -> None:
        """End all actors."""
        for slot in self._slots:
            ray.kill(slot.actor)

    def _new_slot(self) -> _Slot:
        actor = self._start()
        begun = actor.__ray_call__.remote(node_of_actor)  # asked first, since an actor does one call after the other
        return _Slot(actor, deque([(actor.prepare.remote(), None)]), begun)

    def _grow(self) -> None:
        """Start more actors for the work that waits, where nodes have joined the cluster."""
        if self._room is None or time.monotonic() < self._grow_at:
            return
        self._grow_at = time.monotonic() + GROW_SECONDS
        more = self._todo.pieces(max(self._room() - len(self._slots), 0))
        self._slots += [self._new_slot() for _ in range(more)]

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

    def _hand_out(self) -> None:
        for calls_at_once in range(1, IN_FLIGHT + 1):
            for slot in self._slots:
                if self._todo and slot.takes(self._todo.first, calls_at_once):
                    slot.give(self._todo.next_work())
                    if len(slot.calls) == 1:
                        slot.deadline = time.monotonic() + self._stall_seconds

    def _take(self, slot: _Slot) -> FinishedShard | FinishedPack | None:
        """Take an answer about the first work that an actor was given: a sign of life, its result, or its end."""
        ref, work = slot.calls[0]
        try:
            answer = ray.get(ref if work is None or slot.out_of_reach else next(ref))
        except RayTaskError as error:
            if work is not None and (self._on_devices or isinstance(error.cause, MemoryError)):
                # by another actor: this one may hold on to memory or have lost its device, which later pieces need
                self._replace(slot)
            else:
                self._begin_next(slot)
            return self._raised(error.cause, work)
        except ActorUnavailableError:
            self._ask_again(slot)
            return None
        except RayError as error:
            return self._died(slot, str(error))
        if slot.out_of_reach:
            return self._died(slot, "it could not be reached for a while")
        if isinstance(answer, Busy):
            slot.deadline = time.monotonic() + answer.seconds
            slot.behind, slot.row = answer.behind, answer.row
            return None
        self._begin_next(slot)
        if work is None:
            slot.ready = self._began = True
            self._failed_starts = self._lost_starts = 0
            if answer and answer not in self._warned:
                self._warned.add(answer)
                _log.warning("%s", answer)
            return None
        if isinstance(work, PackWork):
            return self._todo.unpack(work, answer)
        if isinstance(work.state, LostDocument):
            return self._todo.lose(work, work.state, answer)
        return self._todo.take_report(work, answer)

    def _begin_next(self, slot: _Slot) -> None:
        slot.calls.popleft()
        slot.deadline, slot.behind, slot.row = time.monotonic() + self._stall_seconds, 0, None

    def _raised(self, cause: BaseException, work: PieceWork | PackWork | None) -> FinishedShard | None:
        if work is None:
            error = Refused if isinstance(cause, Refused) and not self._began else ScanFailed
            raise error(f"a worker cannot begin: {cause}") from None
        if isinstance(cause, BrickscanError):
            raise ScanFailed(str(cause)) from None
        reason = "out_of_memory" if isinstance(cause, MemoryError) else "failed"
        return self._todo.retry_or_cut(work, reason, f"{type(cause).__name__}: {cause}"[:500])

    def _ask_again(self, slot: _Slot) -> None:
        """Ask an unreachable actor for a sign of life: Ray then finds out whether the actor or its node is gone."""
        if not slot.out_of_reach:
            slot.out_of_reach, slot.deadline = True, time.monotonic() + UNREACHABLE_SECONDS
        self._todo.put_back(slot.waiting)
        slot.calls = deque([(slot.actor.__ray_ready__.remote(), slot.calls[0][1])])

    def _died(self, slot: _Slot, reason: str) -> FinishedShard | None:
        """Replace a dead actor. The work that it was doing has failed, unless its node is gone."""
        node_id = node_of(slot.begun)
        gone = self._nodes.gone(node_id)
        _log.warning("a worker died%s: %s", " with its node" if gone else "", reason.splitlines()[0])
        work = self._replace(slot)
        if work is None:
            self._failed_starts += gone is None
            self._lost_starts += gone is NodeEnd.DIED
            starts_allowed = START_ATTEMPTS + 2 * len(self._slots)
            if self._failed_starts >= START_ATTEMPTS or self._lost_starts >= starts_allowed:
                dead = max(self._failed_starts, self._lost_starts)
                raise ScanFailed(f"{dead} workers died while they started: {reason}") from None
            return None
        if gone is not None:
            return self._todo.put_back_or_cut(work, gone)
        why = "the worker died while it scanned this; it may have needed more than cluster.worker_memory_mb"
        return self._todo.retry_or_cut(work, "killed_worker", why, node_id)

    def _stalled(self, slot: _Slot) -> FinishedShard | None:
        if slot.out_of_reach:
            return self._died(slot, f"it could not be reached for {UNREACHABLE_SECONDS:g} s")
        _log.warning("a worker made no progress, and is ended")
        work = self._replace(slot)
        return None if work is None else self._todo.cut_at_stall(work, slot.behind, slot.row)

    def _replace(self, slot: _Slot) -> PieceWork | PackWork | None:
        """End an actor and start another. Return the work that it was doing; waiting work goes to another actor."""
        ray.kill(slot.actor)  # it may be alive, but out of reach
        self._todo.put_back(slot.waiting)
        self._slots[self._slots.index(slot)] = self._new_slot()
        return slot.calls[0][1]


DEATHS_MADE_GOOD = 2
"""Most deaths of a worker that are made good, each with another try of its items."""

Item = TypeVar("Item")
Holder = TypeVar("Holder")


class Call(NamedTuple):
    """A function with its arguments. It must be deterministic, since a worker that dies is replaced."""

    name: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def spread(
    calls: Iterable[Call], workers: int, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[tuple[Any, Any]]:
    """Make all calls on the cluster. Yields (name, result), in the order in which they finish.

    `meanwhile` is called about every second while none does.

    Raises:
        BrickscanError: of the first call that raised one.
        ScanFailed: a call failed in another way.
    """

    @functools.cache
    def remote(function: Callable[..., Any]) -> Any:  # noqa: ANN401
        return ray.remote(num_cpus=1, max_retries=DEATHS_MADE_GOOD)(function)

    def ask(_holder: int, call: Call) -> Any:  # noqa: ANN401
        return remote(call.function).remote(*call.arguments)

    holders = range(IN_FLIGHT * workers)
    for call, result in _work_through(calls, holders, ask, lambda call: str(call.name), meanwhile):
        yield call.name, result


def on_actors(
    kind: type,
    arguments: tuple[Any, ...],
    items: Iterable[Item],
    workers: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> Generator[tuple[Item, Any], None, None]:
    """Give each item to one of the actors, and yield (item, result) in the order in which they finish.

    Args:
        kind: class of the actors, with a deterministic method `do(item)`, since an actor that dies is replaced.
        arguments: arguments of the class.
        items: the items.
        workers: the most actors, each of one CPU.
        meanwhile: called about every second while no item is finished.

    Raises:
        BrickscanError: of the first item that raised one.
        ScanFailed: an item failed in another way, or kept killing its actor.
    """
    todo = list(items)
    remote: Any = ray.remote(num_cpus=1, max_restarts=DEATHS_MADE_GOOD, max_task_retries=DEATHS_MADE_GOOD)(kind)
    actors: list[Any] = [remote.remote(*arguments) for _ in range(min(workers, len(todo)))]
    try:
        # every actor gets its first item before any gets its second
        yield from _work_through(
            todo,
            actors * IN_FLIGHT,
            lambda actor, item: actor.do.remote(item),
            lambda _item: kind.__name__,
            meanwhile,
        )
    finally:
        if ray.is_initialized():  # not after an interrupt: `kill` and `cancel` would start Ray anew
            for actor in actors:
                ray.kill(actor)


def _work_through(
    items: Iterable[Item],
    holders: Sequence[Holder],
    ask: Callable[[Holder, Item], Any],
    name: Callable[[Item], str],
    meanwhile: Callable[[], None],
) -> Iterator[tuple[Item, Any]]:
    """Give each item to the first holder that is free; `holders` names one as often as it may hold an item."""
    waiting: dict[Any, tuple[Holder, Item]] = {}
    turns, free = iter(items), list(holders)
    try:
        while True:
            for holder, item in zip(free, turns, strict=False):
                waiting[ask(holder, item)] = (holder, item)
            if not waiting:
                return
            while not (done := ray.wait(list(waiting), num_returns=1, timeout=_WAIT_SECONDS)[0]):
                meanwhile()
            holder, item = waiting.pop(done[0])
            free = [holder]
            yield item, _result(done[0], name(item))
    finally:
        if ray.is_initialized():
            for reference in waiting:
                ray.cancel(reference, force=False)


def _result(reference: Any, name: str) -> Any:  # noqa: ANN401
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, BrickscanError):
            raise error.cause from None
        raise ScanFailed(f"{name} failed: {type(error.cause).__name__}: {error.cause}") from None
    except RayError as error:
        raise ScanFailed(f"{name} failed: {str(error).splitlines()[0]}") from None

"""Run a pool of actors: shards in, finished shards out. No shard is lost, and none is retried for ever.

scanner.cluster.todo decides what happens after work fails. It counts attempts itself, and does not use Ray's retries.
Work that fails because its node is gone (scanner.cluster.machines) costs no attempt.

When an actor dies, the result of the piece that it finished before may be lost as well. From then on, each piece that
it held is given to an actor that holds nothing else. No document is then blamed for the piece next to it. For a
document that was lost, an actor is asked for its identity only.

An actor on a lost node is replaced by an actor on any node with room, while the other actors continue. When nodes join
the cluster, more actors are started.

Work that cannot harm a worker is simpler. It runs as plain functions (`spread`), or on a few actors that hold something
large, such as a language model (`on_actors`). Few items are in flight, and the first failure ends it.
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
from scanner.errors import BrickscanError, Refused, ScanFailed, TableError
from scanner.input.shards import Shard

IN_FLIGHT = 2
"""Number of pieces, or items, that a worker holds: one that it works on, and one that waits."""

START_ATTEMPTS = 5
"""Deaths of starting actors in a row that end a scan. If their nodes died too, twice the number of actors more."""

GROW_SECONDS = 5.0
"""Seconds between checks of how many actors the cluster has room for."""

UNREACHABLE_SECONDS = 120.0
"""Longest time for which an actor may be out of reach. Ray needs a quarter of it to find that a node is gone."""

_WAIT_SECONDS = 1.0
_PARTS = 16
"""Number of groups in which actors are waited for, because the cost of a wait grows with the number of actors."""

_SECONDS_FOR_A_PART = 0.1
"""Longest wait for one group of many actors. It is well below the time that an actor's next piece takes."""

_COMPLAIN_EVERY = 60.0
_NOT_BEGUN = "no worker could start for %d s: does the cluster have a free CPU that other processes are not using?"
_PREPARING = (
    "workers have started, but after %d s none is ready: they load keys and tokenizers and, once per machine, compile "
    "kernels, which takes minutes on a busy machine"
)
_log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """An actor and its work, in order.

    calls: references to answers, with their work. None for the work: the actor was asked to prepare itself.
    begun: reference to its node's id, ready once its process runs.
    deadline: time on the monotonic clock for a sign of life from its first work. Preparing has none, because Ray may
        have to wait for a machine.
    behind: number of finished rows of its first work.
    row: the only document that it works on.
    out_of_reach: whether it did not answer, and was asked for a sign of life.
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
        """Return whether the actor can take one more piece without holding more than `calls_at_once`."""
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
    """Several actors with the methods `prepare()`, `scan(Piece)`, `scan_pack(shards)` and `identify(Piece)`.

    - `prepare` returns a warning or nothing.
    - `scan` yields Busy any number of times, and at last a Report.
    - `scan_pack` yields a PackReport, and `identify` an Identity, likewise.

    Args:
        start: makes an actor.
        workers: number of actors at first.
        stall_seconds: seconds without a sign of life after which a piece is given up. A Busy sets another time.
        on_devices: whether an actor holds a device. After an error, its process may never be able to use the device
            again.
        room: returns the number of actors that the cluster has room for now, as nodes join it. None: as many as at
            first.
        pace: how large pieces may be. None: shards and packs stay whole until they fail.
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
        self.waited = 0.0  # seconds that the driver waited for actors; if few, the driver is the bottleneck
        self._idle = 0.0  # seconds without an answer before any actor is ready
        self._complain_at = _COMPLAIN_EVERY
        self._reported = -math.inf

    def run(self, shards: Iterable[Shard | Pack]) -> Iterator[FinishedShard | FinishedPack | None]:
        """Work through shards and packs of shards. Yield finished ones, and None about every second in between.

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
        """Return slots past their deadline.

        Empty if results are still to be taken: then the driver itself may be late.
        """
        late = {slot.calls[0][0]: slot for slot in self._slots if slot.calls and slot.deadline < time.monotonic()}
        if not late:
            return []
        _, silent = ray.wait(list(late), num_returns=len(late), timeout=0)
        return [late[ref] for ref in silent]

    @property
    def under_way(self) -> int:
        """Return the number of finished documents in unfinished shards."""
        return self._todo.in_parts + sum(slot.behind for slot in self._slots)

    def close(self) -> None:
        """End all actors."""
        for slot in self._slots:
            ray.kill(slot.actor)

    def _new_slot(self) -> _Slot:
        actor = self._start()
        begun = actor.__ray_call__.remote(node_of_actor)  # the first call, because an actor runs its calls in order
        return _Slot(actor, deque([(actor.prepare.remote(), None)]), begun)

    def _grow(self) -> None:
        """Start more actors for waiting work if nodes have joined the cluster."""
        if self._room is None or time.monotonic() < self._grow_at:
            return
        self._grow_at = time.monotonic() + GROW_SECONDS
        more = self._todo.pieces(max(self._room() - len(self._slots), 0))
        self._slots += [self._new_slot() for _ in range(more)]

    def _complain(self, waited: float) -> None:
        """Warn once a minute that no actor is ready, with the reason: it has no CPU yet, or is still preparing."""
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
        """Take an answer about an actor's first work: a sign of life, a result, or the actor's end."""
        ref, work = slot.calls[0]
        try:
            answer = ray.get(ref if work is None or slot.out_of_reach else next(ref))
        except RayTaskError as error:
            if work is not None and (self._on_devices or isinstance(error.cause, MemoryError)):
                # give the work to another actor: this one may still hold memory, or have lost the device that pieces
                # need
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
            return self._died(slot, "it was unreachable for a while")
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
            error = Refused if isinstance(cause, Refused | TableError) and not self._began else ScanFailed
            raise error(f"a worker cannot begin: {cause}") from None
        if isinstance(cause, BrickscanError):
            raise ScanFailed(str(cause)) from None
        reason = "out_of_memory" if isinstance(cause, MemoryError) else "failed"
        return self._todo.retry_or_cut(work, reason, f"{type(cause).__name__}: {cause}"[:500])

    def _ask_again(self, slot: _Slot) -> None:
        """Ask an unreachable actor for a sign of life. Ray then finds out whether the actor or its node is gone."""
        if not slot.out_of_reach:
            slot.out_of_reach, slot.deadline = True, time.monotonic() + UNREACHABLE_SECONDS
        self._todo.put_back(slot.waiting)
        slot.calls = deque([(slot.actor.__ray_ready__.remote(), slot.calls[0][1])])

    def _died(self, slot: _Slot, reason: str) -> FinishedShard | None:
        """Replace a dead actor. Its current work counts as failed, unless its node is gone."""
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
                raise ScanFailed(f"{dead} workers died while starting: {reason}") from None
            return None
        if gone is not None:
            return self._todo.put_back_or_cut(work, gone)
        why = "the worker died while scanning this; it may have needed more than cluster.worker_memory_mb"
        return self._todo.retry_or_cut(work, "killed_worker", why, node_id)

    def _stalled(self, slot: _Slot) -> FinishedShard | None:
        if slot.out_of_reach:
            return self._died(slot, f"it was unreachable for {UNREACHABLE_SECONDS:g} s")
        _log.warning("a worker made no progress and is being stopped")
        work = self._replace(slot)
        return None if work is None else self._todo.cut_at_stall(work, slot.behind, slot.row)

    def _replace(self, slot: _Slot) -> PieceWork | PackWork | None:
        """End an actor and start another. Return its current work. Waiting work goes to other actors."""
        ray.kill(slot.actor)  # it may still be alive, but out of reach
        self._todo.put_back(slot.waiting)
        self._slots[self._slots.index(slot)] = self._new_slot()
        return slot.calls[0][1]


DEATHS_MADE_GOOD = 2
"""Largest number of deaths of workers that are made good, each by trying its items again."""

Item = TypeVar("Item")
Holder = TypeVar("Holder")


class Call(NamedTuple):
    """A function with its arguments. It must be deterministic, because it is called again if a worker dies."""

    name: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def spread(
    calls: Iterable[Call], workers: int, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[tuple[Any, Any]]:
    """Make all calls on the cluster. Yield (name, result) in the order in which they finish.

    meanwhile: called about every second while no call finishes.

    Raises:
        BrickscanError: the error of the first call that raised one.
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
    gpus: float = 0.0,
) -> Generator[tuple[Item, Any], None, None]:
    """Give each item to one of the actors, and yield (item, result) in the order in which they finish.

    Args:
        kind: class of the actors, with a method `do(item)`. It must be deterministic, because items of an actor that
            dies are given to another.
        arguments: arguments of the class.
        items: the items.
        workers: largest number of actors. Each takes one CPU.
        meanwhile: called about every second while no item is finished.
        gpus: share of a GPU, or number of GPUs, that each actor takes.

    Raises:
        BrickscanError: the error of the first item that raised one.
        ScanFailed: an item failed in another way, or kept killing its actor.
    """
    todo = list(items)
    options = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=DEATHS_MADE_GOOD, max_task_retries=DEATHS_MADE_GOOD)
    remote: Any = options(kind)
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
        if ray.is_initialized():  # false after an interrupt; then `kill` and `cancel` would start Ray again
            for actor in actors:
                ray.kill(actor)


def _work_through(
    items: Iterable[Item],
    holders: Sequence[Holder],
    ask: Callable[[Holder, Item], Any],
    name: Callable[[Item], str],
    meanwhile: Callable[[], None],
) -> Iterator[tuple[Item, Any]]:
    """Give each item to the first free holder. `holders` lists a holder as often as the number of items it may hold."""
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

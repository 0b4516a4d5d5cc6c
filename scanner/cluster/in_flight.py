"""Items worked through on a Ray cluster: few in flight, results as they come, the first failure ends it.

Plain functions work (`spread`), or a few actors that hold something heavy, such as a language model (`on_actors`). A
scan must also lose no item, whatever it does to its worker: see scanner.cluster.pool.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from scanner.errors import BrickscanError, ScanFailed

IN_FLIGHT = 2
"""Items that a worker holds: one that it works on, and one that waits."""

RETRIES = 2
"""Most deaths of a worker that are made good, each with another try of its items."""

_WAIT_SECONDS = 1.0

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
        return ray.remote(num_cpus=1, max_retries=RETRIES)(function)

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
) -> Iterator[tuple[Item, Any]]:
    """Give each item to one of the actors. Yields (item, result), in the order in which they finish.

    Args:
        kind: class of the actors, with a method `do(item)` that is deterministic, since an actor that dies is replaced.
        arguments: arguments of its constructor.
        items: the items; without any, no actor is started.
        workers: the most actors, each of one CPU.
        meanwhile: called about every second while no item is finished.

    Raises:
        BrickscanError: of the first item that raised one.
        ScanFailed: an item failed in another way, or kept killing its actor.
    """
    todo = list(items)
    remote: Any = ray.remote(num_cpus=1, max_restarts=RETRIES, max_task_retries=RETRIES)(kind)
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
        for actor in actors:
            ray.kill(actor)


def _work_through(
    items: Iterable[Item],
    holders: Sequence[Holder],
    ask: Callable[[Holder, Item], Any],
    name: Callable[[Item], str],
    meanwhile: Callable[[], None],
) -> Iterator[tuple[Item, Any]]:
    """Each item to the first holder that is free; `holders` names one as often as it may hold an item."""
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

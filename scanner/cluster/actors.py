"""Items worked through by a few actors that hold something heavy, such as a language model: few in flight."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from scanner.errors import BrickscanError, ScanFailed

IN_FLIGHT = 2
"""Items that an actor holds: one that it works on, one that waits."""

RESTARTS = 2
"""Deaths of an actor that are made good, each with another try of what it held."""

Item = TypeVar("Item")


def on_actors(
    kind: type, arguments: tuple[Any, ...], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Any]]:
    """Give each item to one of the actors. Yields (item, what came of it), in the order in which they finish.

    Args:
        kind: class of the actors, with a method `do(item)` that is deterministic, since an actor that dies is replaced.
        arguments: of its constructor.
        items: what is to be done; no actor is started for none.
        workers: the most actors, each of one CPU.

    Raises:
        BrickscanError: of the first item that raised one.
        ScanFailed: an item failed in another way, or kept killing its actor.
    """
    todo = list(items)
    remote: Any = ray.remote(num_cpus=1, max_restarts=RESTARTS, max_task_retries=RESTARTS)(kind)
    actors: list[Any] = [remote.remote(*arguments) for _ in range(min(workers, len(todo)))]
    waiting: dict[Any, tuple[Any, Item]] = {}
    turns = iter(todo)
    free = actors * IN_FLIGHT  # every actor gets its first item before any gets its second
    try:
        while True:
            for actor, item in zip(free, turns, strict=False):
                waiting[actor.do.remote(item)] = (actor, item)
            if not waiting:
                return
            done, _ = ray.wait(list(waiting), num_returns=1)
            actor, item = waiting.pop(done[0])
            yield item, _result(done[0], kind)
            free = [actor]
    finally:
        for actor in actors:
            ray.kill(actor)


def _result(reference: Any, kind: type) -> Any:  # noqa: ANN401
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, BrickscanError):
            raise error.cause from None
        raise ScanFailed(f"{kind.__name__} failed: {type(error.cause).__name__}: {error.cause}") from None
    except RayError as error:
        raise ScanFailed(f"{kind.__name__} failed: {str(error).splitlines()[0]}") from None

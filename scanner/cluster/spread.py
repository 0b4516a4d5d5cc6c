"""Independent calls of plain functions over a Ray cluster: few in flight, results as they come."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from scanner.errors import BrickscanError, ScanFailed

IN_FLIGHT = 2
"""Calls a worker holds: one that it works on, one that waits."""


class Call(NamedTuple):
    """A function and what it is called with; it must be deterministic, since a worker that dies is replaced."""

    name: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def spread(calls: Iterable[Call], workers: int) -> Iterator[tuple[Any, Any]]:
    """Make all calls on the cluster. Yields (name, result), in the order in which they finish.

    Raises:
        BrickscanError: of the first call that raised one.
        ScanFailed: a call failed in another way.
    """
    remote: dict[Any, Any] = {}
    waiting: dict[Any, Call] = {}
    todo = iter(calls)
    try:
        while True:
            for call in todo:
                if call.function not in remote:
                    remote[call.function] = ray.remote(num_cpus=1, max_retries=2)(call.function)
                waiting[remote[call.function].remote(*call.arguments)] = call
                if len(waiting) >= IN_FLIGHT * workers:
                    break
            if not waiting:
                return
            done, _ = ray.wait(list(waiting), num_returns=1)
            call = waiting.pop(done[0])
            try:
                result = ray.get(done[0])
            except RayTaskError as error:
                if isinstance(error.cause, BrickscanError):
                    raise error.cause from None
                raise ScanFailed(f"{call.name} failed: {type(error.cause).__name__}: {error.cause}") from None
            except RayError as error:
                raise ScanFailed(f"{call.name} failed: {str(error).splitlines()[0]}") from None
            yield call.name, result
    finally:
        for reference in waiting:
            ray.cancel(reference, force=False)

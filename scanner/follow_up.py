"""Define the interface between the driver of a scan and its follow-ups.

These are the work of looks and of the filter once the scan's documents are committed.

A follow-up is a function. It asks its own tables which parts are left, has actors do these, and commits each as it
comes. So the next scan of the same input continues a follow-up that was killed. The driver starts the actors, and no
follow-up imports Ray.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from scanner.input.shards import Shard
from scanner.scan_plan import Plan

Part = TypeVar("Part")
PartOfActor = TypeVar("PartOfActor", contravariant=True)
Result = TypeVar("Result")
ResultOfActor = TypeVar("ResultOfActor", covariant=True)


class Actor(Protocol[PartOfActor, ResultOfActor]):
    """A process that does parts of a follow-up. Its arguments, parts and results are pickled, and hold no secrets."""

    def do(self, part: PartOfActor, /) -> ResultOfActor:
        """Do a part and write its files, in no table yet.

        It is deterministic, because an actor that dies is replaced.
        """


class OnActors(Protocol):
    """Has actors do parts, on a cluster that is connected with the first of them."""

    def __call__(
        self, actor: type[Actor[Part, Result]], arguments: tuple[Any, ...], parts: Iterable[Part]
    ) -> Iterator[tuple[Part, Result]]:
        """Yield each part with its result, in the order in which they finish.

        arguments: the arguments of an actor.

        Raises:
            BrickscanError: the error of the first part that raised one.
            ScanFailed: a part failed in another way, or kept killing its actor.
        """


class CommittedScan(NamedTuple):
    """A scan after its documents are committed.

    shards: shards of all of its input, whichever scan committed them.
    began: when the scan began.
    whole: whether its input is all that the configuration names.
    """

    plan: Plan
    scan_id: str
    shards: Sequence[Shard]
    began: datetime
    whole: bool

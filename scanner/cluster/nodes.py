"""Nodes of the cluster that are gone, and whether a document may be the cause."""

from enum import Enum
from typing import Any

import ray
from ray.exceptions import RayError

_UNANNOUNCED = (0, 2)
"""Numbers of Ray's NodeDeathInfo: unspecified, and terminated unexpectedly."""


class Gone(Enum):
    """How a node went."""

    TAKEN = "taken"  # it was preempted, drained or told to end, which no document causes
    DIED = "died"  # its end was not announced: its machine was taken away, or a document brought it down


class Nodes:
    """Nodes that are gone. Ray is asked again only about nodes not yet known to be gone."""

    def __init__(self) -> None:
        self._gone: dict[str, Gone] = {}

    def gone(self, node_id: str | None) -> Gone | None:
        """How a node went. None: it is alive, or unknown."""
        if node_id is not None and node_id not in self._gone:
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            # added to what is known, since Ray forgets the oldest
            self._gone |= {node["NodeID"]: _how(node) for node in nodes if not node["Alive"]}
        return None if node_id is None else self._gone.get(node_id)


def _how(node: dict[str, Any]) -> Gone:
    return Gone.DIED if node["DeathReason"] in _UNANNOUNCED else Gone.TAKEN


def own_node(_actor: object) -> str:
    """Id of the node that this process runs on; to be called by an actor."""
    return ray.get_runtime_context().get_node_id()


def node_of(begun: Any) -> str | None:  # noqa: ANN401
    """Id of the node on which an actor began, by the reference to its `own_node`. None: the actor never began."""
    if not ray.wait([begun], timeout=0)[0]:
        return None
    try:
        node_id: str = ray.get(begun)
    except RayError:
        return None
    return node_id

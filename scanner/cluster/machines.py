"""Ray, started or joined, and its machines: nodes that are gone, GPUs, memory.

A worker that holds a GPU, or a share of one, tokenises on its own CPU core and scores on the GPU. So the share says
how many cores feed a GPU: all workers are alike, and none that scores on a CPU is left with the night's last shard.
While one worker tokenises or copies, the GPU works for the others.
"""

import contextlib
import ctypes
import functools
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from scanner.cluster.embedded import QUIET, embedded_ray
from scanner.errors import Refused, ScanFailed, in_a_line
from scanner.interrupts import sigterm_interrupts
from schemas.config import ClusterConfig, ScanClusterConfig

if TYPE_CHECKING:
    import torch


_UNANNOUNCED = (0, 2)
"""Numbers of Ray's NodeDeathInfo: unspecified, and terminated unexpectedly."""


class NodeEnd(Enum):
    """How a node went."""

    ANNOUNCED = "taken"  # it was preempted, drained or told to end, which no document causes
    DIED = "died"  # its end was not announced: its machine was taken away, or a document brought it down


class Nodes:
    """Nodes that are gone. Ray is asked again only about nodes not yet known to be gone."""

    def __init__(self) -> None:
        self._gone: dict[str, NodeEnd] = {}

    def gone(self, node_id: str | None) -> NodeEnd | None:
        """Return how a node went; None: it is alive, or unknown."""
        if node_id is not None and node_id not in self._gone:
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            # added to what is known, since Ray forgets the oldest
            self._gone |= {node["NodeID"]: _how(node) for node in nodes if not node["Alive"]}
        return None if node_id is None else self._gone.get(node_id)


def _how(node: dict[str, Any]) -> NodeEnd:
    return NodeEnd.DIED if node["DeathReason"] in _UNANNOUNCED else NodeEnd.ANNOUNCED


def node_of_actor(_actor: object) -> str:
    """Return the id of the node that this process runs on; to be called by an actor."""
    return ray.get_runtime_context().get_node_id()


def node_of(begun: Any) -> str | None:  # noqa: ANN401
    """Return the id of the node on which an actor began, by the reference to its `node_of_actor`; None: it did not."""
    if not ray.wait([begun], timeout=0)[0]:
        return None
    try:
        node_id: str = ray.get(begun)
    except RayError:
        return None
    return node_id


_log = logging.getLogger(__name__)


def share_gpus(config: ClusterConfig, workers: int) -> tuple[int, float]:
    """Return how many workers there can be, and the share of a GPU that each holds; warn once when there is no GPU.

    Raises:
        Refused: the configuration requires GPUs that the cluster does not have.
    """
    share = config.gpus_per_worker
    fit, why = fit_gpus(share, workers, "cluster.gpus_per_worker")
    if fit:
        return fit, share
    if config.require_gpus:
        raise Refused(f"{why}; add GPUs, or leave out cluster.require_gpus to score on CPUs")
    _log.warning("%s; everything is scored on CPUs, with the same results", why)
    return workers, 0.0


def fit_gpus(share: float, workers: int, field: str) -> tuple[int, str]:
    """Return how many of the workers the cluster's GPUs are enough for, and what is missing if that is 0.

    Args:
        share: share of a GPU, or number of GPUs, that each worker holds.
        workers: the most workers.
        field: the configuration's field with the share.
    """
    if not share:
        return workers, ""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    gpus = [node["Resources"].get("GPU", 0.0) for node in nodes if node["Alive"]]
    # shares of several GPUs are not put together
    fit = sum(int(count) * int(1 / share + 1e-9) if share < 1 else int(count / share) for count in gpus)
    return min(workers, fit), f"{field} = {share:g}: the cluster has {sum(gpus):g} GPUs, too few for one worker"


def device_of_worker(config: ClusterConfig) -> tuple["torch.device | None", str]:
    """Return the device that this worker scores on, or None and the reason.

    The device is None where the worker holds no GPU or cannot use its GPU.

    Raises:
        Refused: the worker cannot use its GPU, and the configuration requires GPUs.
    """
    if not config.gpus_per_worker or not (ray.is_initialized() and ray.get_gpu_ids()):
        return None, ""
    try:
        from scanner.gpu.runs import devices, wake

        gpus = devices()
        why = "torch finds no CUDA device"
    except ImportError as error:
        gpus, why = [], f"{error}; torch's CUDA build brings what is needed"
    if gpus:
        wake(gpus[0])  # before the worker's memory is limited: the limit does not count what is mapped by then
        return gpus[0], ""
    fault = f"a worker was given a GPU that it cannot use: {why}"
    if config.require_gpus:
        raise Refused(f"{fault}; leave out cluster.require_gpus to score on CPUs")
    return None, f"{fault}; it scores on the CPU, with the same results"


def limit_memory(limit: int, *, more: bool = False) -> None:
    """Let this process take so many bytes, or so many more than it has; beyond that: MemoryError, or its end (Linux).

    The kernel counts memory that is mapped for data, so mapped memory that is not touched yet (arenas, stacks, a
    device's address space) is added. A limit on all address space would count libraries and Ray's shared store.

    Raises:
        ScanFailed: the process takes more already.
    """
    if sys.platform != "linux":
        return
    held, data = resident(), _pages(5)
    if more:
        limit += held
    if held >= limit:
        raise ScanFailed(
            f"it takes {held >> 20} MiB before its first document, and may take {limit >> 20}; raise "
            "cluster.worker_memory_mb, or let fewer workers share a machine"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    data_limit = limit - held + data
    resource.setrlimit(
        resource.RLIMIT_DATA, (data_limit if hard == resource.RLIM_INFINITY else min(data_limit, hard), hard)
    )


def give_back_memory() -> None:
    """Give memory that the allocator holds without using it back to the system (glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Return the bytes of memory that this process holds; 0 where the system does not say."""
    return _pages(1)


def _pages(field: int) -> int:
    """Return the bytes of a field of /proc/self/statm (proc(5)); 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


WORKER_MEMORY = 4096 * 2**20
"""Bytes that a worker may take unless configured: the worst text of 16 MiB needs 3.5 GB."""

_SHARE = 0.9
"""Share of the memory that Ray counts as free for work which all workers of a machine may take together."""

_KNOCK_SECONDS = 10.0


@contextlib.contextmanager
def ray_begun(config: ClusterConfig) -> Iterator[Callable[[], None]]:
    """Begin to start Ray, unless it runs or is elsewhere, and disconnect from it afterwards.

    A connection that this process had before is used, and left open.

    Yields:
        A function that connects this process to Ray; it may be called several times.

    Raises:
        ScanFailed: the cluster cannot be reached or started; the function raises it.
    """
    address = config.address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        yield lambda: None
    elif address:
        try:
            yield functools.partial(_join, address)
        finally:
            ray.shutdown()
    else:
        with embedded_ray(config.workers) as connect:
            yield connect


@contextlib.contextmanager
def cluster(config: ClusterConfig, connect: Callable[[], None] | None = None) -> Iterator[int]:
    """Connect to Ray and yield the number of workers.

    An existing connection of this process is used, and left open. SIGTERM interrupts meanwhile, as Ctrl-C does.

    Args:
        config: the cluster.
        connect: the function that `ray_begun` gave, which also ends the connection; None: connect only meanwhile.

    Raises:
        ScanFailed: the cluster cannot be reached or started.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_interrupts())
        (connect or stack.enter_context(ray_begun(config)))()
        stack.enter_context(sigterm_interrupts())  # again, since joining a cluster replaces the handler
        yield worker_count(config)


def worker_memory(config: ScanClusterConfig) -> int:
    """Return the bytes that a worker may take on the cluster that this process is connected to.

    Unless configured, a worker gets at most its CPU's share of the smallest machine, which keeps each machine from
    running out.
    """
    if config.worker_memory_mb is not None:
        return config.worker_memory_mb * 2**20
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    shares = [_SHARE * machine.get("memory", 0) / machine["CPU"] for machine in machines if machine.get("CPU")]
    return int(min([WORKER_MEMORY, *shares]))


def _join(address: str) -> None:
    if ray.is_initialized():
        return
    try:
        _knock(address)
        ray.init(address=address, **QUIET)
    except Exception as error:  # Ray raises Exception itself
        fault = f"Ray: the cluster at {address!r} cannot be reached: {in_a_line(error)}"
        raise ScanFailed(
            f"{fault}; see whether it runs, what [cluster] address or RAY_ADDRESS names, and whether RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH has its token"
        ) from None


def _knock(address: str) -> None:
    """Raise OSError when there is no answer at the address: Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()


def worker_count(config: ClusterConfig) -> int:
    """Return the number of workers: as configured, or one for each CPU that the cluster has now."""
    return config.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)  # type: ignore[no-untyped-call]

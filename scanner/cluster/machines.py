"""Start or join Ray, and watch its machines: nodes that are gone, GPUs, memory.

A worker with a GPU, or a share of one, tokenises on its own CPU core and scores on the GPU. The share therefore sets
how many cores feed a GPU. All workers are alike, so the night's last shard never waits for a slower worker that scores
on a CPU. While one worker tokenises or copies, the GPU works for the others.
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
"""Numbers of Ray's NodeDeathInfo for an end without notice: unspecified, and terminated unexpectedly."""


class NodeEnd(Enum):
    """The way in which a node ended."""

    ANNOUNCED = "taken"  # preempted, drained or told to end; no document causes this
    DIED = "died"  # without notice: its machine was taken away, or a document brought it down


class Nodes:
    """Nodes that are gone. Ray is asked only about nodes that are not known to be gone yet."""

    def __init__(self) -> None:
        self._gone: dict[str, NodeEnd] = {}

    def gone(self, node_id: str | None) -> NodeEnd | None:
        """Return how a node ended. None: it is alive, or unknown."""
        if node_id is not None and node_id not in self._gone:
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            # keep earlier entries, because Ray forgets the oldest nodes
            self._gone |= {node["NodeID"]: _how(node) for node in nodes if not node["Alive"]}
        return None if node_id is None else self._gone.get(node_id)


def _how(node: dict[str, Any]) -> NodeEnd:
    return NodeEnd.DIED if node["DeathReason"] in _UNANNOUNCED else NodeEnd.ANNOUNCED


def node_of_actor(_actor: object) -> str:
    """Return the id of the node that this process runs on. Called in an actor."""
    return ray.get_runtime_context().get_node_id()


def node_of(begun: Any) -> str | None:  # noqa: ANN401
    """Return the node id of an actor, from the reference to its `node_of_actor`. None: the actor did not begin."""
    if not ray.wait([begun], timeout=0)[0]:
        return None
    try:
        node_id: str = ray.get(begun)
    except RayError:
        return None
    return node_id


_log = logging.getLogger(__name__)


def share_gpus(config: ClusterConfig, workers: int) -> tuple[int, float]:
    """Return the possible number of workers, and the share of a GPU for each. Warn once if there is no GPU.

    Raises:
        Refused: the configuration requires GPUs that the cluster does not have.
    """
    share = config.gpus_per_worker
    fit, why = fit_gpus(share, workers, "cluster.gpus_per_worker")
    if fit:
        return fit, share
    if config.require_gpus:
        raise Refused(f"{why}; add GPUs, or remove cluster.require_gpus to use CPUs")
    _log.warning("%s; CPUs are used instead", why)
    return workers, 0.0


def fit_gpus(share: float, workers: int, field: str) -> tuple[int, str]:
    """Return how many of the workers fit on the cluster's GPUs, and a sentence on what is missing if none fits.

    Args:
        share: share of a GPU, or number of GPUs, for each worker.
        workers: largest number of workers.
        field: the configuration's field with the share.
    """
    if not share:
        return workers, ""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    gpus = [node["Resources"].get("GPU", 0.0) for node in nodes if node["Alive"]]
    # a worker cannot combine shares of several GPUs
    fit = sum(int(count) * int(1 / share + 1e-9) if share < 1 else int(count / share) for count in gpus)
    return min(workers, fit), f"{field} = {share:g}: the cluster has {sum(gpus):g} GPUs, too few for one worker"


def device_of_worker(config: ClusterConfig) -> tuple["torch.device | None", str]:
    """Return the GPU that this worker uses, or None and the reason.

    The device is None if the worker has no GPU or cannot use its GPU.

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
        gpus, why = [], f"{error}; install torch's CUDA build, which includes what is missing"
    if gpus:
        wake(gpus[0])  # before the worker's memory is limited: memory mapped before is not counted
        return gpus[0], ""
    fault = f"a worker was given a GPU that it cannot use: {why}"
    if config.require_gpus:
        raise Refused(f"{fault}; remove cluster.require_gpus to use CPUs")
    return None, f"{fault}; this worker uses the CPU instead"


def limit_memory(limit: int, *, more: bool = False) -> None:
    """Limit the memory of this process to so many bytes, or to so many more than it has (Linux).

    Beyond the limit, it gets a MemoryError or is ended.

    The kernel counts memory that is mapped for data. Memory that is mapped but not yet touched (arenas, stacks, a
    device's address space) is therefore added to the limit. A limit on all address space would count libraries and
    Ray's shared store.

    Raises:
        ScanFailed: the process already takes more.
    """
    if sys.platform != "linux":
        return
    held, data = resident(), _pages(5)
    if more:
        limit += held
    if held >= limit:
        raise ScanFailed(
            f"it uses {held >> 20} MiB before its first document, of {limit >> 20} allowed; raise "
            "cluster.worker_memory_mb, or run fewer workers on a machine"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    data_limit = limit - held + data
    resource.setrlimit(
        resource.RLIMIT_DATA, (data_limit if hard == resource.RLIM_INFINITY else min(data_limit, hard), hard)
    )


def give_back_memory() -> None:
    """Return memory to the system that the allocator keeps but does not use (glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Return the bytes of memory that this process holds. 0 if the system does not tell."""
    return _pages(1)


def _pages(field: int) -> int:
    """Return the bytes of a field of /proc/self/statm (proc(5)). 0 if there is none."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def peak_memory() -> int:
    """Return the largest number of bytes of memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


WORKER_MEMORY = 4096 * 2**20
"""Bytes that a worker may take unless configured. The worst text of 16 MiB needs 3.5 GB."""

_SHARE = 0.9
"""Share of the memory that Ray counts as free for work. All workers of a machine together may take this share."""

_KNOCK_SECONDS = 10.0


@contextlib.contextmanager
def ray_begun(config: ClusterConfig) -> Iterator[Callable[[], None]]:
    """Begin to start Ray, unless it runs or is elsewhere, and disconnect from it afterwards.

    An earlier connection of this process is used, and left open.

    Yields:
        A function that connects this process to Ray. It may be called several times. It raises ScanFailed too.

    Raises:
        ScanFailed: the cluster cannot be reached or started.
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

    An existing connection of this process is used, and left open. During this, SIGTERM interrupts as Ctrl-C does.

    Args:
        config: the cluster.
        connect: the function that `ray_begun` yielded. `ray_begun` then also ends the connection. None: connect only
            for the time of this context.

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

    Unless configured, a worker gets at most its CPU's share of the smallest machine. No machine then runs out of
    memory.
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
    except Exception as error:  # Ray raises bare Exception
        fault = f"Ray: the cluster at {address!r} cannot be reached: {in_a_line(error)}"
        raise ScanFailed(
            f"{fault}; check that it is running, that [cluster] address or RAY_ADDRESS is right, and that "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH has its token"
        ) from None


def _knock(address: str) -> None:
    """Raise OSError if nothing answers at the address. Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()


def worker_count(config: ClusterConfig) -> int:
    """Return the number of workers: as configured, or one for each CPU that the cluster has now."""
    return config.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)  # type: ignore[no-untyped-call]

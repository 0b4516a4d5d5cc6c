"""GPUs for workers: how many workers share one, and what happens where there is none.

A worker that holds a GPU, or a share of one, tokenises on its own CPU core and scores on the GPU. So the share says
how many cores feed a GPU: all workers are alike, and none that scores on a CPU is left with the night's last shard.
While one worker tokenises or copies, the GPU works for the others.
"""

import logging
from typing import TYPE_CHECKING, Any

import ray

from scanner.errors import Refused
from schemas.config import ClusterConfig

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


def share_gpus(config: ClusterConfig, workers: int) -> tuple[int, float]:
    """How many workers there can be, and how much of a GPU each one holds; warns once when there is no GPU.

    Raises:
        Refused: the configuration requires GPUs that the cluster does not have.
    """
    share = config.gpus_per_worker
    fit, what = fit_gpus(share, workers, "cluster.gpus_per_worker")
    if fit:
        return fit, share
    if config.require_gpus:
        raise Refused(f"{what}; add GPUs, or leave out cluster.require_gpus to score on CPUs")
    _log.warning("%s; everything is scored on CPUs, with the same results", what)
    return workers, 0.0


def fit_gpus(share: float, workers: int, field: str) -> tuple[int, str]:
    """How many of the workers the cluster's GPUs are enough for, if each holds such a share; when 0, what is missing.

    field: the configuration's field with the share.
    """
    if not share:
        return workers, ""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    gpus = [node["Resources"].get("GPU", 0.0) for node in nodes if node["Alive"]]
    # shares of several GPUs are not put together
    fit = sum(int(there) * int(1 / share + 1e-9) if share < 1 else int(there / share) for there in gpus)
    return min(workers, fit), f"{field} = {share:g}: the cluster has {sum(gpus):g} GPUs, too few for one worker"


def own_device(config: ClusterConfig) -> tuple["torch.device | None", str]:
    """The device that this worker scores on. None, with the reason, where it holds no GPU or cannot use its GPU.

    Raises:
        Refused: it cannot use its GPU, and the configuration requires GPUs.
    """
    if not config.gpus_per_worker or not (ray.is_initialized() and ray.get_gpu_ids()):
        return None, ""
    try:
        from scanner.gpu.devices import devices, wake

        found = devices()
        why = "torch finds no CUDA device"
    except ImportError as error:
        found, why = [], f"{error}; torch's CUDA build brings what is needed"
    if found:
        wake(found[0])  # before the worker's memory is limited: the limit does not count what is mapped by then
        return found[0], ""
    what = f"a worker was given a GPU that it cannot use: {why}"
    if config.require_gpus:
        raise Refused(f"{what}; leave out cluster.require_gpus to score on CPUs")
    return None, f"{what}; it scores on the CPU, with the same results"

"""Ray, started or joined: the configuration's cluster, the one in RAY_ADDRESS, or one embedded in this process."""

import contextlib
import logging
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from scanner.errors import ScanFailed, in_a_line
from schemas.config import ClusterConfig, ScanClusterConfig

_OBJECT_STORE_BYTES = 100 * 2**20
"""Bytes of Ray's object store: only plans and descriptions of files cross it."""

WORKER_MEMORY = 4096 * 2**20
"""Bytes that a worker may take unless configured: the worst text of 16 MiB needs 3.5 GB."""

_SHARE = 0.9
"""Share of the memory that Ray counts as free for work which all workers of a machine may take together."""

_STARTS = 3
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
_KNOCK_SECONDS = 10.0
_TOKEN_SETTINGS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@contextlib.contextmanager
def cluster(config: ClusterConfig) -> Iterator[int]:
    """Connect to Ray; gives the number of workers. An existing connection of this process is used, and left open.

    Raises:
        ScanFailed: the cluster cannot be reached or started.
    """
    if ray.is_initialized():
        yield room(config)
        return
    address = config.address or os.environ.get("RAY_ADDRESS")
    with tempfile.TemporaryDirectory(prefix="bricks", ignore_cleanup_errors=True) as private:
        if address:
            _join(address)
        else:
            _start(_embedded(config, private))
        try:
            yield room(config)
        finally:
            ray.shutdown()


def worker_memory(config: ScanClusterConfig) -> int:
    """Bytes that a worker may take on the cluster that this process is connected to.

    Unless configured, a worker gets at most its CPU's share of the smallest machine, so that the machine never runs
    out.
    """
    if config.worker_memory_mb is not None:
        return config.worker_memory_mb * 2**20
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    shares = [_SHARE * machine.get("memory", 0) / machine["CPU"] for machine in machines if machine.get("CPU")]
    return int(min([WORKER_MEMORY, *shares]))


def _join(address: str) -> None:
    try:
        _knock(address)
        ray.init(address=address, **_QUIET)
    except Exception as error:  # Ray raises Exception itself
        what = f"Ray: the cluster at {address!r} cannot be reached: {in_a_line(error)}"
        raise ScanFailed(f"{what}; see whether it runs, and what [cluster] address or RAY_ADDRESS names") from None


def _start(options: dict[str, Any]) -> None:
    """Start a cluster in this process. Ray gives its processes 30 s to start, too few where others use the CPUs."""
    for attempt in range(1, _STARTS + 1):
        before = _children()
        try:
            ray.init(**_QUIET, **options)
        except Exception as error:  # Ray raises Exception itself when it is too slow to start
            ray.shutdown()
            for process in _children() - before:  # what Ray started and forgets, which would go on
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if attempt == _STARTS:
                raise ScanFailed(
                    f"Ray: the embedded cluster did not start, tried {_STARTS} times: {in_a_line(error)}; run it again "
                    "when fewer processes use this machine, or start a cluster before (`ray start --head`), and name "
                    'it by `address = "auto"` in [cluster]'
                ) from None
        else:
            return


def _children() -> set[int]:
    """Ids of this process's children; none where the system does not list them."""
    found = set[int]()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found.update(map(int, path.read_text().split()))
    return found


def _knock(address: str) -> None:
    """Raise OSError when nobody listens at the address: Ray itself would try for a quarter of an hour."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()


def _embedded(config: ClusterConfig, private: str) -> dict[str, Any]:
    """Options of a cluster in this process; private: a folder that nobody else can enter, for its logs and sockets."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own is 15, at which one other busy process leaves workers 3 % of its CPU: they started in minutes
    os.environ.setdefault("RAY_worker_niceness", "0")
    if not any(name in os.environ for name in _TOKEN_SETTINGS):
        # Ray listens on all addresses and so needs a token; by default it would write one into the home folder, where
        # it changes how later clusters start
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": config.workers,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "_temp_dir": f"{private}/ray",  # not the folder itself, which Ray opens to everybody
    }


def room(config: ClusterConfig) -> int:
    """Number of workers: as configured, or one for each CPU that the cluster has now."""
    return config.workers or max(int(ray.cluster_resources().get("CPU", 1)), 1)  # type: ignore[no-untyped-call]

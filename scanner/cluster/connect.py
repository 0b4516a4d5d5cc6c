"""Ray, started or joined: the configuration's cluster, the one in RAY_ADDRESS, or one embedded in this process."""

import contextlib
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

import ray

from scanner.errors import ScanFailed
from schemas.config import ClusterConfig, ScanClusterConfig

_OBJECT_STORE_BYTES = 100 * 2**20
"""Bytes of Ray's object store: only plans and descriptions of files cross it."""

WORKER_MEMORY = 4096 * 2**20
"""Bytes that a worker may take unless configured: the worst text of 16 MiB needs 3.5 GB."""

_SHARE = 0.9
"""Share of the memory that Ray counts as free for work which all workers of a machine may take together."""

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
        options: dict[str, Any] = {"address": address} if address else _embedded(config, private)
        try:
            if address:
                _knock(address)
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:  # Ray raises Exception itself when it is too slow to start
            where = f"cluster at {address!r}" if address else "embedded cluster"
            raise ScanFailed(f"Ray: the {where} cannot be reached or started: {error}") from None
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

"""Ray on this machine alone, for one driver; its processes start while the driver looks at keys and files.

`ray.init` would start more: a dashboard, even where it is turned off, an autoscaler and a reader of logs. Each of them
imports all of Ray, and the driver waits for the dashboard: together two of the four CPU seconds of Ray's start.
"""

import contextlib
import logging
import os
import resource
import secrets
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray
from ray._private.authentication.authentication_token_setup import (
    enable_token_auth_by_default,
    ensure_token_if_auth_enabled,
)
from ray._private.node import Node
from ray._private.parameter import RayParams

from scanner.errors import ScanFailed, in_a_line

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Options of every connection to Ray."""

_OBJECT_STORE_BYTES = 100 * 2**20
"""Bytes of Ray's object store: only plans and descriptions of files cross it."""

_OPEN_FILES = 2**16
"""Files and sockets that Ray may have open, as far as the system lets it, as `ray.init` raises it."""

_STARTS = 3
_TOKEN_SETTINGS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class _Head(Node):
    """Ray's processes on this machine. Raises Exception, as Ray does, when they are too slow to start."""

    def __init__(self, workers: int | None, folder: str) -> None:
        params = RayParams(
            num_cpus=workers,
            object_store_memory=_OBJECT_STORE_BYTES,
            temp_dir=folder,
            include_log_monitor=False,  # type: ignore[arg-type] # Ray's type is wrong
            no_monitor=True,
            dashboard_agent_listen_port=0,  # any: where another Ray has the usual one, it waits for that for seconds
        )
        try:
            super().__init__(params, head=True, shutdown_at_exit=False, spawn_reaper=True)
        except BaseException:
            self.end()
            raise

    def start_api_server(self, **_options: object) -> None:
        """Start no dashboard; `include_dashboard=False` would only take its pages from it."""

    def end(self) -> None:
        """End the processes, and wait until they are gone."""
        self.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


@contextlib.contextmanager
def embedded_ray(workers: int | None) -> Iterator[Callable[[], None]]:
    """Begin to start Ray, for so many workers; None: one for each CPU. Gives what connects this process to it.

    Raises:
        ScanFailed: by what connects, when Ray does not start.
    """
    _prepare()
    with (
        tempfile.TemporaryDirectory(prefix="bricks", ignore_cleanup_errors=True) as private,
        ThreadPoolExecutor(1) as starter,  # Linux ends Ray's processes with the thread that started them
    ):

        def begin() -> Future[_Head]:
            return starter.submit(_Head, workers, f"{private}/ray")  # not the folder itself, which Ray opens to all

        heads = [begin()]

        def connect() -> None:
            # Ray gives its processes 30 s to start, too few where others use the CPUs
            for left in reversed(range(_STARTS)):
                try:
                    ray.init(address=heads[-1].result().gcs_address, **QUIET)
                except Exception as error:  # Ray raises Exception itself
                    failure = in_a_line(error)
                    ray.shutdown()
                    _end(heads[-1])
                    heads.extend([begin()] if left else [])
                else:
                    return
            raise ScanFailed(
                f"Ray: the embedded cluster did not start, tried {_STARTS} times: {failure}; run it again when fewer "
                "processes use this machine, or start a cluster before (`ray start --head`), and name it by `address = "
                '"auto"` in [cluster]'
            )

        try:
            yield connect
        finally:
            _end(heads[-1])


def _end(head: Future[_Head]) -> None:
    """End what a thread started, or is about to."""
    if head.exception() is None:
        head.result().end()


def _prepare() -> None:
    """Set the environment and the limits that Ray's processes inherit."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own is 15, at which one other busy process leaves workers 3 % of its CPU: they started in minutes
    os.environ.setdefault("RAY_worker_niceness", "0")
    # a process for each CPU, for which the connection waits: actors start theirs when they are made
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    if not any(name in os.environ for name in _TOKEN_SETTINGS):
        # Ray listens on all addresses and so needs a token; by default it would write one into the home folder, where
        # it changes how later clusters start
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns that strangers are kept out
    enable_token_auth_by_default()
    ensure_token_if_auth_enabled()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))

"""Ray on this machine alone, for one driver; its processes start while the driver looks at keys and files.

`ray.init` would start more: a dashboard, even where it is turned off, an autoscaler and a reader of logs. Each of them
imports all of Ray, and the driver waits for the dashboard: together two of the four CPU seconds of Ray's start.
"""

import contextlib
import errno
import itertools
import logging
import os
import resource
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

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


_SOCKETS = ("raylet", "plasma_store")
_SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 # a private folder is made in one of them
_LEAST_ROOM = 2**20
"""Bytes for Ray's files that must be free: its logs take a fifth of it before the first document."""

_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENAMETOOLONG}
"""Errors of the system that another try meets again."""


class RayFolders(NamedTuple):
    """Private folders of an embedded Ray: for its files, for its sockets, whose paths are short, and for its store."""

    files: str
    sockets: str
    store: str


@contextlib.contextmanager
def ray_folders() -> Iterator[RayFolders]:
    """Make the folders that Ray needs, and remove them afterwards.

    A socket's path has at most 107 bytes (103 on macOS), of which Ray's own names below a folder take 70: TMPDIR of
    SLURM, of macOS and of many runners of tests is longer than what is left. So sockets may lie elsewhere.

    Raises:
        ScanFailed: a folder cannot be made, or has no room.
    """
    with contextlib.ExitStack() as made:
        files = ""
        try:
            files = made.enter_context(_private_folder(None))
            with tempfile.TemporaryFile(dir=files) as probe:
                probe.write(bytes(_LEAST_ROOM))
        except OSError as error:
            where = f" in {os.path.dirname(files)}" if files else ""
            raise ScanFailed(
                f"Ray: its temporary files cannot be written{where}: {in_a_line(error)}; make room there, or have "
                "TMPDIR name another folder"
            ) from None
        yield RayFolders(files, made.enter_context(_folder_of_sockets(files)), _store(files))


@contextlib.contextmanager
def _private_folder(base: str | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bricks", dir=base, ignore_cleanup_errors=True) as folder:
        yield folder


@contextlib.contextmanager
def _folder_of_sockets(files: str) -> Iterator[str]:
    """The folder of Ray's files if its path is short enough for sockets, else a private one of its own."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    failures = list[str]()
    with contextlib.ExitStack() as made:
        for base in (None, *([runtime] if runtime else []), *_SHORT_FOLDERS):
            try:
                folder = files if base is None else made.enter_context(_private_folder(base))
                _try_sockets(f"{folder}/0")
            except OSError as error:
                failures.append(f"{files if base is None else base}: {in_a_line(error)}")
            else:
                yield folder
                return
        raise ScanFailed(
            f"Ray: no folder can hold its sockets ({'; '.join(failures)}); have TMPDIR name a folder of at most 70 "
            "characters that can be written"
        )


def _try_sockets(folder: str) -> None:
    """Raise OSError if sockets of Ray's names cannot be made in a new folder."""
    os.mkdir(folder)
    try:
        for name in _SOCKETS:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(f"{folder}/{name}")
            os.unlink(f"{folder}/{name}")
    finally:
        os.rmdir(folder)


def _store(files: str) -> str:
    """The folder of Ray's object store: shared memory, or where that has no room the folder of its files."""
    shared = "/dev/shm"  # noqa: S108 # Ray makes a file without a name there
    try:
        found = os.statvfs(shared)
    except OSError:
        return files
    room = found.f_bavail * found.f_frsize
    return shared if room > _OBJECT_STORE_BYTES and os.access(shared, os.W_OK) else files


class _Head(Node):
    """Ray's processes on this machine. Raises Exception, as Ray does, when they are too slow to start."""

    def __init__(self, workers: int | None, folders: RayFolders, number: int) -> None:
        raylet, plasma = (f"{folders.sockets}/{number}/{name}" for name in _SOCKETS)
        params = RayParams(
            num_cpus=workers,
            object_store_memory=_OBJECT_STORE_BYTES,
            plasma_directory=folders.store,
            temp_dir=f"{folders.files}/ray",  # not the folder itself, which Ray opens to all
            raylet_socket_name=raylet,
            plasma_store_socket_name=plasma,
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
        ScanFailed: there is no folder for Ray; by what connects, when Ray does not start.
    """
    _prepare()
    with (
        ray_folders() as folders,
        ThreadPoolExecutor(1) as starter,  # Linux ends Ray's processes with the thread that started them
    ):
        numbers = itertools.count()

        def begin() -> Future[_Head]:
            return starter.submit(_Head, workers, folders, next(numbers))

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
                    if isinstance(error, OSError) and error.errno in _LASTING:
                        raise ScanFailed(f"Ray: the embedded cluster cannot start here: {failure}") from None
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

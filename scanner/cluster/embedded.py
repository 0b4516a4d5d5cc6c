"""Start Ray on this machine for one driver, in a thread, while the driver opens keys and reads footers."""

import contextlib
import errno
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import ray

from scanner.errors import ScanFailed, in_a_line

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
"""Options of every connection to Ray."""

_OBJECT_STORE_BYTES = 100 * 2**20
"""Bytes of Ray's object store. Only plans and descriptions of files go through it."""

_STARTS = 3
_TOKEN_SETTINGS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

_SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 # a private folder is made in one of them

_SOCKET_NAME_BYTES = len("ray/session_2026-01-31_12-00-00_123456_1234567/sockets/plasma_store")
"""Length in bytes of the longest name that Ray gives a socket below its folder."""

_LEAST_ROOM = 2**20
"""Bytes that must be free for Ray's files. Its logs take a fifth of this before the first document."""

_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.ENAMETOOLONG}
"""Errors of the system that another attempt would meet again."""


@contextlib.contextmanager
def ray_folder() -> Iterator[str]:
    """Make a private folder for Ray's files and sockets, and remove it afterwards.

    The path of a socket has at most 107 bytes (103 on macOS), and Ray's own names take 67 of them. The TMPDIR of SLURM,
    of macOS and of many test runners is too long for that. The folder is then made elsewhere.

    Raises:
        ScanFailed: there is no folder that can be written and can contain sockets.
    """
    failures = list[str]()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for base in (None, *([runtime] if runtime else []), *_SHORT_FOLDERS):
        with contextlib.ExitStack() as made:
            try:
                folder = made.enter_context(
                    tempfile.TemporaryDirectory(prefix="bricks", dir=base, ignore_cleanup_errors=True)
                )
                _try_to_write(folder)
            except OSError as error:
                failures.append(f"{base or os.environ.get('TMPDIR', 'TMPDIR')}: {in_a_line(error)}")
                continue
            yield folder
            return
    raise ScanFailed(
        f"Ray: no folder can hold its files and sockets ({'; '.join(failures)}); set TMPDIR to a folder with free "
        "space and a path of at most 24 bytes"
    )


def _try_to_write(folder: str) -> None:
    """Raise OSError if a folder has no space for Ray's files, or cannot contain sockets with Ray's names."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(_LEAST_ROOM))
    path = f"{folder}/{'s' * _SOCKET_NAME_BYTES}"
    with socket.socket(socket.AF_UNIX) as probe_socket:
        probe_socket.bind(path)
    os.unlink(path)


@contextlib.contextmanager
def embedded_ray(workers: int | None) -> Iterator[Callable[[], None]]:
    """Begin to start Ray, for so many workers (None: one for each CPU), and end it afterwards.

    Yields:
        A function that waits until this process is connected to Ray. It may be called several times, and raises
        ScanFailed
            if Ray does not start.

    Raises:
        ScanFailed: there is no folder for Ray.
    """
    _prepare()
    with ray_folder() as folder, contextlib.ExitStack() as starters:

        def begin() -> Future[object]:
            # Linux ends Ray's processes together with the thread that started them. Each thread therefore lives as long
            # as its Ray, and nothing is left of a failed attempt.
            starters.close()
            starter = starters.enter_context(ThreadPoolExecutor(1))
            return starter.submit(
                ray.init,
                "local",
                num_cpus=workers,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=f"{folder}/ray",  # not the folder itself, because Ray opens its folder to everybody
                **QUIET,
            )

        started = begin()

        def connect() -> None:
            nonlocal started
            # Ray gives its processes 30 s to start, which is too short if other processes use the CPUs
            for left in reversed(range(_STARTS)):
                try:
                    started.result()
                except Exception as error:  # Ray raises bare Exception
                    failure = in_a_line(error)
                    ray.shutdown()
                    if isinstance(error, OSError) and error.errno in _LASTING:
                        raise ScanFailed(f"Ray: the embedded cluster cannot start here: {failure}") from None
                    if left:
                        started = begin()
                else:
                    return
            raise ScanFailed(
                f"Ray: the embedded cluster did not start in {_STARTS} attempts: {failure}; run this again when the "
                "machine is less busy, or start a cluster first (`ray start --head`) and set "
                '`address = "auto"` in [cluster]'
            )

        try:
            yield connect
        finally:
            wait([started])
            ray.shutdown(wait_for_processes=True)


def _prepare() -> None:
    """Set the variables that Ray's processes inherit."""
    # Ray's default is 15. One other busy process then leaves workers 3 % of its CPU, and they took minutes to start.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray would start a process for each CPU, and connecting would wait for them. Actors start their own processes.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    if not any(name in os.environ for name in _TOKEN_SETTINGS):
        # Ray listens on all addresses and so needs a token. By default it would write one into the home folder,
        # where it changes how later clusters start.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

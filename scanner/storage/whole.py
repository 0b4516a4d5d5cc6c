"""Files that are whole or not there, whatever interrupts us: written under another name, synced to disk, renamed."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put what `write` writes in the place of `path`, in one step.

    Raises:
        OSError: it cannot be written; then `path` is as it was.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    with unfinished.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def exchange(one: Path, other: Path) -> None:
    """Have two folders take each other's names, in one step, so that whoever looks finds one or the other.

    Raises:
        OSError: the system or its filesystem cannot do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError("the system has no renameat2")
    if libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk: a new or renamed file is found after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

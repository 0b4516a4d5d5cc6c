"""Files that are whole or not there, whatever interrupts us: written under another name, synced to disk, renamed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


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


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk: a new or renamed file is found after a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

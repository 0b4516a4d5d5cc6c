"""Files that survive a crash and rival writers: one writer at a time, and a reader sees the old text or the new."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scanner.errors import Refused
from scanner.storage.locations import filesystem_of, is_uri

USERS_FOLDER = "users"
"""Folder of the users table, in a registry."""


def read_far(uri: str) -> str:
    """Text of a file that lies on another machine.

    Raises:
        Refused: it is not there or cannot be read.
    """
    filesystem, path = filesystem_of(uri)
    try:
        with filesystem.open_input_file(path) as file:
            return str(file.read().decode("utf-8"))
    except FileNotFoundError:
        raise Refused(f"registry: there is no {uri}; make it with `brickscan keys new` and copy it there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"registry: {uri} cannot be read: {error}") from None


def local_folder(folder: Path | str) -> Path:
    """A registry's local folder, where its keys can be changed.

    Raises:
        Refused: it lies on another machine, where no lock can be held; or it is a file.
    """
    refuse_file(folder)
    if is_uri(folder):
        raise Refused(f"registry {folder}: keys are made and changed in a local folder; copy its keys.toml there then")
    return Path(folder)


def refuse_file(folder: Path | str) -> None:
    """Raise Refused when a registry's path leads to something that is no folder."""
    if not is_uri(folder) and os.path.lexists(folder) and not os.path.isdir(folder):
        raise Refused(f"registry {folder}: is no folder; name the folder that `brickscan keys new` made")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; other processes wait. The operating system frees it when its holder dies."""
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

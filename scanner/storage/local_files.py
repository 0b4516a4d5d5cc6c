"""Files of this machine: opened by a name that somebody gives, written whole, open to nobody else.

Files that somebody names, on a command line or in a configuration: the one way to open them.

Whatever is named, reading it ends: a FIFO has no writer to wait for, a device no end, and JSON any depth.

Permissions on this machine: tables are for their owner and group, and nobody else may change a registry.

Files that are whole or not there, whatever interrupts us: written under another name, synced to disk, renamed.
"""

import ctypes
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from scanner.storage.locations import is_uri

MOST_SETTINGS = 2**24
"""Most bytes of a file of settings, such as scan.toml."""

MOST_TOKENIZER = 2**29
"""Most bytes of a tokenizer.json; the largest that are known have 40 MB."""

MOST_ROWS = 2**36
"""Most bytes of a file of users, prompts or texts, which is held in memory."""


def read_named(path: Path | str, most: int = MOST_SETTINGS) -> bytes:
    """The bytes of a regular file.

    Args:
        path: a local path.
        most: bytes; a file that has more is not read.

    Raises:
        OSError: it cannot be read, is no regular file or is too large; `strerror` says why, for people.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a null character
        raise OSError(errno.EINVAL, "this cannot be a path") from None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        refuse_special(found.st_mode)
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it has {found.st_size:,} bytes, and {most:,} are allowed")
        return file.read()


def refuse_special(mode: int) -> None:
    """Raise OSError for the mode of a FIFO, socket or device, which may have no end; and of a folder."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a FIFO, socket or device; a regular file is needed")


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401
    """What JSON says. Raises ValueError: it is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects stand in one another too deeply") from None


_OTHERS = stat.S_IRWXO


def make_private(folder: Path | str) -> None:
    """Make a local folder that others cannot enter, unless it exists, so that they cannot read its files.

    Its parents get usual permissions. Nothing is done for a URI.

    Raises:
        OSError: it cannot be made.
    """
    if not is_uri(folder):
        Path(folder).mkdir(mode=0o777 & ~_OTHERS, parents=True, exist_ok=True)


def writable_by_others(paths: Iterable[Path]) -> Path | None:
    """The first of local paths, or of the folders that they lie in, that others can change; None: there is none.

    In a folder with the sticky bit, such as /tmp, nobody replaces another's files. For a path that does not exist, only
    its folders are looked at.
    """
    for path in paths:
        for above in (real := Path(os.path.realpath(path)), *real.parents):
            try:
                mode = above.stat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            if mode & stat.S_IWOTH and not (mode & stat.S_ISVTX and above != real):
                return above
    return None


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

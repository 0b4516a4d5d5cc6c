"""Files that somebody names, on a command line or in a configuration: the one way to open them.

Whatever is named, reading it ends: a FIFO has no writer to wait for, a device no end, and JSON any depth.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

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

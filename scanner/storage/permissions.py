"""Permissions on this machine: tables are for their owner and group, and nobody else may change a registry."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from scanner.storage.locations import is_uri

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

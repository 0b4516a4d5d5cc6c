"""Paths of this machine that lead to one file: by links, or since the file has several names."""

import functools
import os
import stat
from array import array
from collections.abc import Iterable

import numpy as np


def link_target(path: str) -> object:
    """Return one value for all local paths to one file.

    It is the end of links, or device and inode of a file of several names.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # a table's log may name what no path can be
        return _real(path)
    return (status.st_dev, status.st_ino) if status.st_nlink > 1 else _real(path)


def link_targets(paths: Iterable[str]) -> dict[str, object]:
    """Return `link_target` for paths that others may lead to, by these paths. Each folder is followed once."""
    real_folder = functools.cache(_real)
    targets: dict[str, object] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        real = f"{real_folder(folder or '/').rstrip('/')}/{name}"
        try:
            status = os.lstat(path)
        except (OSError, ValueError):
            status = None
        if status is not None and (status.st_nlink > 1 or stat.S_ISLNK(status.st_mode)):
            targets[path] = link_target(path)
        elif real != path:
            targets[path] = real
    return targets


def share_inodes(paths: Iterable[str]) -> bool:
    """Return whether two paths lead to files of one inode number. Else no two lead to one file.

    Paths that cannot be looked at do not count.
    """
    inodes = array("Q")
    for path in paths:
        try:
            inodes.append(os.stat(path).st_ino)
        except (OSError, ValueError):
            continue
    in_order = np.sort(np.array(inodes, np.uint64))
    return bool((in_order[1:] == in_order[:-1]).any())


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path

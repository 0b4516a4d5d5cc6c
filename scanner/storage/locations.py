"""Locations: plain paths and URIs, the filesystem behind each, and what a URI may not hold."""

import functools
import os
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scanner.errors import Refused

if TYPE_CHECKING:
    from pyarrow import fs

REQUESTS_AT_ONCE = 128
"""Requests that a driver has under way to a store, each of some 30 ms: 100,000 files are two requests each."""


@functools.cache
def filesystem_of(location: str) -> "tuple[fs.FileSystem, str]":
    """Filesystem of a resolved path, and the path on it.

    Raises:
        Refused: a URI of a scheme that pyarrow does not read.
    """
    import pyarrow as pa  # a server that marks text reads its key without it
    from pyarrow import fs

    if "://" not in location:
        return fs.LocalFileSystem(), location
    try:
        filesystem, inner = fs.FileSystem.from_uri(location)
    except (pa.ArrowException, ValueError) as error:
        shown = location.partition("?")[0]  # the part behind it may hold a secret
        raise Refused(
            f"{shown!r} is no path that can be read: {str(error).replace(location, shown)}; "
            "allowed: plain paths and URIs of filesystems that pyarrow knows (file, s3, gs, hdfs, abfs)"
        ) from None
    return filesystem, inner


def ask_many_at_once() -> None:
    """Let the clients of stores that this process makes from now on hold REQUESTS_AT_ONCE connections.

    Arrow gives a client as many as Arrow has threads for input and output, and 25 at least.
    """
    import pyarrow as pa

    if pa.io_thread_count() < REQUESTS_AT_ONCE:
        pa.set_io_thread_count(REQUESTS_AT_ONCE)


def is_uri(location: Path | str) -> bool:
    """Whether it is the URI of another machine's folder, and not a plain path."""
    return "://" in str(location)


def absolute(field: str, location: str, base: Path) -> str:
    """An absolute path or a URI, without a slash at its end, for the location of tables or of a registry.

    Args:
        field: name of the configuration's field, for the error.
        location: a plain path, relative ones starting at `base`, or a URI; a local folder's URI becomes a plain path.
        base: a folder.

    Raises:
        Refused: a password or options in a URI; a scheme that nothing reads.
    """
    refuse_password(field, location)
    if "://" not in location:
        return str(base / location)
    if "?" in location:
        raise Refused(f"{field}: {location!r} holds options after a '?'; give them by the environment: AWS_REGION, …")
    inner = filesystem_of(location)[1]
    return posixpath.normpath(inner) if location.startswith("file://") else location.rstrip("/")


def real_location(location: str) -> str:
    """Where a local path or its URI leads, links followed; any other URI stays what it is."""
    if location.startswith("file://"):
        location = filesystem_of(location)[1]
    return location.partition("?")[0] if "://" in location else os.path.realpath(location)


def refuse_password(field: str, location: str) -> None:
    """Raise Refused when a URI holds a password, without repeating it. A slash in a password hides the @ behind it."""
    if "://" not in location:
        return
    _, colon, after = urlsplit(location).netloc.rpartition(":")
    no_port = bool(colon) and "@" in location and not after.isdigit() and not after.endswith("]")
    if urlsplit(location).password is not None or no_port:
        raise Refused(f"{field}: a URI holds a password; give it by the environment, since paths are stored")

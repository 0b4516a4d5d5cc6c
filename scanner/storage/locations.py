"""Locations: plain paths and URIs, the filesystem behind each, and files of this machine.

Whatever somebody names, reading it ends: a FIFO has no writer to wait for, a device no end, and JSON any depth. Files
are whole or not there, whatever interrupts us: written under another name, synced to disk, renamed. They are for their
owner and group, and nobody else may change a registry.
"""

import ctypes
import errno
import functools
import json
import os
import posixpath
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from scanner.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs


REQUESTS_AT_ONCE = 128
"""Requests that a driver has under way to a store, each of some 30 ms: 100,000 files are two requests each."""


@functools.cache
def filesystem_of(location: str) -> "tuple[fs.FileSystem, str]":
    """Return the filesystem of a resolved path, and the path on it.

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
        address = location.partition("?")[0]  # the part behind it may hold a secret
        raise Refused(
            f"{address!r} is no path that can be read: {str(error).replace(location, address)}; "
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
    """Return whether a location is the URI of another machine's folder, and not a plain path."""
    return "://" in str(location)


def absolute(field: str, location: str, base: Path) -> str:
    """Return an absolute path or a URI, without a slash at its end, for the location of tables or of a registry.

    Args:
        field: name of the configuration's field, for the error.
        location: a plain path, or a URI. A local folder's URI becomes a plain path.
        base: where relative paths start.

    Raises:
        Refused: a password or options in a URI; a scheme that nothing reads; a plain path with `%` and two hexadecimal
            digits.
    """
    refuse_password(field, location)
    if "://" not in location:
        path = str(base / location)
        if _ESCAPED.search(path):  # deltalake would read and write tables of another folder (1.6.6)
            raise Refused(
                f"{field}: {path!r} has a % before two hexadecimal digits, which Delta takes for one character; "
                "all other names are allowed: rename that folder"
            )
        return path
    if "?" in location:
        raise Refused(f"{field}: {location!r} holds options after a '?'; give them by the environment: AWS_REGION, …")
    inner = filesystem_of(location)[1]
    return posixpath.normpath(inner) if location.startswith("file://") else location.rstrip("/")


_ESCAPED = re.compile("%[0-9a-fA-F]{2}")


def real_location(location: str) -> str:
    """Return where a local path or its URI leads, links followed. Any other URI stays as it is, without its options."""
    if location.startswith("file://"):
        location = filesystem_of(location)[1]
    return location.partition("?")[0] if "://" in location else os.path.realpath(location)


def locations_on_the_way(location: str) -> Iterator[str]:
    """Yield the paths that a local path is on its way to where it leads, from the one that is named to the real one.

    Links are followed in ever more of the folders above it, and in the path itself last. Of a URI, yield it, and where
    it leads.
    """
    if "://" in location:
        yield location
    else:
        path = Path(os.path.abspath(location))
        yield str(path)
        for above in reversed(path.parents):
            yield os.path.join(os.path.realpath(above), path.relative_to(above))
    yield real_location(location)


def refuse_password(field: str, location: str) -> None:
    """Raise Refused when a URI holds a password, without repeating it. A slash in a password hides the @ behind it."""
    if "://" not in location:
        return
    _, colon, after = urlsplit(location).netloc.rpartition(":")
    no_port = bool(colon) and "@" in location and not after.isdigit() and not after.endswith("]")
    if urlsplit(location).password is not None or no_port:
        raise Refused(f"{field}: a URI holds a password; give it by the environment, since paths are stored")


MOST_SETTINGS = 2**24
"""Most bytes of a file of settings, such as scan.toml."""

MOST_TOKENIZER = 2**29
"""Most bytes of a tokenizer.json; the largest that are known have 40 MB."""

MOST_LIST = 2**36
"""Most bytes of a file of users, prompts or texts, which is held in memory."""


def read_named(path: Path | str, max_bytes: int = MOST_SETTINGS) -> bytes:
    """Read the bytes of a regular file.

    Args:
        path: of the file.
        max_bytes: a larger file is not read.

    Raises:
        OSError: it cannot be read, is no regular file or is too large; `strerror` says why, for people.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a null character
        raise OSError(errno.EINVAL, "this cannot be a path") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        refuse_special(status.st_mode, path)
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, and {max_bytes:,} are allowed")
        try:
            return file.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, f"there is no memory for its {status.st_size:,} bytes", str(path)) from None


def read_whole_file(location: str) -> "pa.Buffer":
    """Read the bytes of a file, on this machine of a regular one. Raises OSError: it cannot be read."""
    import pyarrow as pa
    from pyarrow import fs

    filesystem, path = filesystem_of(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        return pa.py_buffer(read_named(path, sys.maxsize))
    with filesystem.open_input_file(path) as source:
        return source.read_buffer()


def refuse_special(mode: int, path: Path | str) -> None:
    """Raise OSError, with a path, for the mode of a FIFO, socket or device, which may have no end, and of a folder."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a FIFO, socket or device; a regular file is needed", str(path))


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401
    """Return the value of JSON. Raises ValueError: it is none, or is nested too deeply."""
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
    """Return the first of local paths, or of the folders that they lie in, that others can change; None: there is none.

    In a folder with the sticky bit, such as /tmp, users cannot replace each other's files. For a path that does not
    exist, only its folders are looked at.
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
    """Write a file anew and put it in the place of `path`, in one step.

    Args:
        path: of the file.
        write: writes the content to an open file.

    Raises:
        OSError: it cannot be written; then `path` is as it was.
    """
    with unfinished_beside(path) as unfinished:
        with unfinished.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    sync_to_disk(path.parent)


@contextmanager
def unfinished_beside(path: Path) -> Iterator[Path]:
    """Yield a free name beside a path, for a file that is written and then put in its place.

    Nobody can guess it: who can write the folder could else put a link there, and have us write to what it leads to.
    Make the file as a new one all the same (mode "x"). It is removed in the end, unless it was put in its place.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.unfinished")
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def write_new(location: str, data: "pa.Buffer | bytes") -> None:
    """Write a new file durably. No link is followed: who can write the folder could else choose what is overwritten.

    Args:
        location: of the file, a path or a URI, in a folder that is there.
        data: its content.

    Raises:
        OSError: it cannot be written, or a local file or link of its name is there.
        Refused: its local folder is a link.
    """
    from pyarrow import fs

    filesystem, path = filesystem_of(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        with filesystem.open_output_stream(path) as stream:
            stream.write(data)
        return
    refuse_link(str(Path(path).parent))
    with open(path, "xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.unlink(path)  # a part of a file is of no use, and a full disk needs its room
            raise
    sync_to_disk(Path(path).parent)


def exchange(folder: Path, other: Path) -> None:
    """Exchange the names of two folders in one step. A reader finds one or the other at any time.

    Raises:
        OSError: the system or its filesystem cannot do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError("the system has no renameat2")
    if libc.renameat2(_HERE, os.fsencode(folder), _HERE, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_to_disk(path: Path) -> None:
    """Bring a file, or the entries of a folder, to the disk, so that they are found after a crash of the machine.

    Raises:
        OSError: it is not there, or cannot be synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_files(location: str, choose: Callable[[Mapping[str, float]], Iterable[str]]) -> int:
    """Delete regular files that lie directly in a folder. No link is followed or deleted, and no folder looked into.

    Who can write the folder could else have us delete what lies behind a link.

    Args:
        location: of the folder, a resolved path or a URI.
        choose: gets the files' names, with the times of their last change in seconds since 1970; returns the names of
            those to be deleted.

    Returns:
        The number of files that were deleted.

    Raises:
        OSError: the folder is a link, or cannot be read, or a file cannot be deleted.
    """
    from pyarrow import fs

    filesystem, folder = filesystem_of(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            changed_at: dict[str, float] = {}
            for name in os.listdir(descriptor):
                with suppress(FileNotFoundError):  # another process deletes the same
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        changed_at[name] = status.st_mtime
            names = {*choose(changed_at)}
            if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                raise OSError(errno.ESTALE, "another folder came in its place, so that nothing was deleted")
            for name in names:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        return len(names)
    infos = [info for info in filesystem.get_file_info(fs.FileSelector(folder)) if info.is_file]
    names = {*choose({info.base_name: info.mtime.timestamp() for info in infos})}

    def delete(name: str) -> None:
        with suppress(FileNotFoundError):
            filesystem.delete_file(f"{folder}/{name}")

    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        list(pool.map(delete, names))
    return len(names)


def put_aside(location: str) -> None:
    """Give a local folder a hidden name beside its own. Of a link, the link gets it.

    Raises:
        OSError: it cannot be renamed.
        Refused: it lies on another machine, where nothing is renamed in one step.
    """
    if is_uri(location):
        raise Refused(f"{location}: is a table that nobody finished, as where a scan was killed: delete its folder")
    folder = Path(location)
    folder.rename(folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.unfinished"))


def refuse_link(location: str) -> None:
    """Raise Refused for a local folder that is a link: whatever is written or deleted in it, lies elsewhere."""
    if os.path.islink(real := location.removeprefix("file://")):
        raise Refused(
            f"{real}: is a link, and its files are another folder's: put the folder itself there, or mount it"
        )


def refuse_links_of_table(uri: str) -> None:
    """Raise Refused where a local table's folder or log is a link: commits would go to another table."""
    for folder in (uri.rstrip("/"), f"{uri.rstrip('/')}/_delta_log"):
        refuse_link(folder)


def table_uri(results: str, name: str) -> str:
    """Return the location of a table: a folder of its own in the folder of results."""
    return f"{results.rstrip('/')}/{name}"

"""Handle locations: plain paths and URIs, the filesystem behind each, and files on this machine.

Reading always ends, whatever path or content a user names. Special files are refused, because a FIFO has no writer and
a device has no end. Deeply nested JSON is refused too.

Files are written under another name, synced to disk and renamed, so an interruption never leaves an incomplete file.
They can be read by their owner and group only, and nobody else may change a registry.
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
"""Requests to a store that a driver has in flight, of some 30 ms each. 100,000 files need two requests each."""


@functools.cache
def filesystem_of(location: str) -> "tuple[fs.FileSystem, str]":
    """Return the filesystem of a resolved path, and the path on it.

    Raises:
        Refused: pyarrow does not read URIs of this scheme.
    """
    import pyarrow as pa  # late: a server that marks text reads its key without it
    from pyarrow import fs

    if "://" not in location:
        return fs.LocalFileSystem(), location
    try:
        filesystem, inner = fs.FileSystem.from_uri(location)
    except (pa.ArrowException, ValueError) as error:
        address = location.partition("?")[0]  # the part after it may contain a secret
        raise Refused(
            f"{address!r} is not a path that can be read: {str(error).replace(location, address)}; allowed: plain "
            "paths and URIs of filesystems that pyarrow knows (file, s3, gs, hdfs, abfs)"
        ) from None
    return filesystem, inner


def ask_many_at_once() -> None:
    """Allow REQUESTS_AT_ONCE connections to each client of a store that this process makes from now on.

    Arrow gives a client as many connections as Arrow has threads for input and output, and 25 at least.
    """
    import pyarrow as pa

    if pa.io_thread_count() < REQUESTS_AT_ONCE:
        pa.set_io_thread_count(REQUESTS_AT_ONCE)


def is_uri(location: Path | str) -> bool:
    """Return whether a location is a URI of a folder elsewhere, and not a plain path."""
    return "://" in str(location)


def absolute(field: str, location: str, base: Path) -> str:
    """Return an absolute path or a URI, without a final slash, for the location of tables or of a registry.

    Args:
        field: name of the configuration's field, for the error.
        location: a plain path, or a URI. A local folder's URI becomes a plain path.
        base: folder that relative paths start from.

    Raises:
        Refused: the URI has a password or options, or a scheme that is not read. Or a plain path has `%` and two
            hexadecimal digits.
    """
    refuse_password(field, location)
    if "://" not in location:
        path = str(base / location)
        if _ESCAPED.search(path):  # deltalake would use the tables of another folder (1.6.6)
            raise Refused(
                f"{field}: {path!r} has a % before two hexadecimal digits, which Delta decodes to one character; all "
                "other names are allowed: rename that folder"
            )
        return path
    if "?" in location:
        raise Refused(
            f"{field}: {location!r} has options after a '?'; set them in the environment instead: AWS_REGION, …"
        )
    inner = filesystem_of(location)[1]
    return posixpath.normpath(inner) if location.startswith("file://") else location.rstrip("/")


_ESCAPED = re.compile("%[0-9a-fA-F]{2}")


def real_location(location: str) -> str:
    """Return the target of a local path or its URI, with links followed. Any other URI only loses its options."""
    if location.startswith("file://"):
        location = filesystem_of(location)[1]
    return location.partition("?")[0] if "://" in location else os.path.realpath(location)


def named_location(location: str) -> str:
    """Return the absolute path of a local folder or its URI, or a URI without its options.

    No link is followed but one before a `..`: the path without both would lead to another folder.
    """
    if location.startswith("file://"):
        location = filesystem_of(location)[1]
    if "://" in location:
        return location.partition("?")[0]
    path = os.path.join(os.getcwd(), location, "")
    above, up, below = path.rpartition("/../")
    if up and (real := os.path.realpath(above + up)) != os.path.realpath(os.path.abspath(above + up)):
        path = os.path.join(real, below.lstrip("/"))
    return os.path.abspath(path)


def refuse_password(field: str, location: str) -> None:
    """Raise Refused if a URI has a password, without repeating it. A slash in a password hides the @ after it."""
    if "://" not in location:
        return
    _, colon, after = urlsplit(location).netloc.rpartition(":")
    no_port = bool(colon) and "@" in location and not after.isdigit() and not after.endswith("]")
    if urlsplit(location).password is not None or no_port:
        raise Refused(f"{field}: a URI must not contain a password, since paths are stored; set it in the environment")


MOST_SETTINGS = 2**24
"""Largest size of a file of settings, such as scan.toml, in bytes."""

MOST_TOKENIZER = 2**29
"""Largest size of a tokenizer.json, in bytes. The largest known ones have 40 MB."""

MOST_LIST = 2**36
"""Largest size of a file of users, prompts or texts, in bytes. It is held in memory."""


def read_named(path: Path | str, max_bytes: int = MOST_SETTINGS) -> bytes:
    """Read the bytes of a regular file.

    Args:
        path: path of the file.
        max_bytes: larger files are not read.

    Raises:
        OSError: the file cannot be read, is no regular file or is too large. `strerror` says why, for people.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a null character in the path
        raise OSError(errno.EINVAL, "this is not a valid path") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        refuse_special(status.st_mode, path)
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes; {max_bytes:,} are allowed")
        try:
            return file.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, f"there is no memory for its {status.st_size:,} bytes", str(path)) from None


def read_whole_file(location: str) -> "pa.Buffer":
    """Read the bytes of a file. A local file must be a regular one. Raises OSError: it cannot be read."""
    import pyarrow as pa
    from pyarrow import fs

    filesystem, path = filesystem_of(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        return pa.py_buffer(read_named(path, sys.maxsize))
    with filesystem.open_input_file(path) as source:
        return source.read_buffer()


def refuse_special(mode: int, path: Path | str) -> None:
    """Raise OSError, with a path, for the mode of a folder, or of a FIFO, socket or device, which may have no end."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a FIFO, socket or device; a regular file is needed", str(path))


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401
    """Return the value of JSON. Raises ValueError: the text is no JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


_OTHERS = stat.S_IRWXO


def is_there(path: Path) -> bool:
    """Return whether a path exists. A broken link does not. Raises OSError: that cannot be determined."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def list_files(folder: Path, ending: str) -> list[Path]:
    """Return the paths in a local folder whose names have an ending, sorted. None if the folder does not exist.

    Path.glob returns nothing for a folder that cannot be read either, so it is not used.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(ending)]
    except FileNotFoundError:
        return []


def make_private(folder: Path | str) -> None:
    """Make a local folder, unless it exists, that other users cannot enter. They then cannot read its files.

    Its parents get usual permissions. Nothing is done for a URI.

    Raises:
        OSError: it cannot be made.
    """
    if not is_uri(folder):
        Path(folder).mkdir(mode=0o777 & ~_OTHERS, parents=True, exist_ok=True)


def writable_by_others(paths: Iterable[Path]) -> Path | None:
    """Return the first of local paths, or of the folders above them, that other users can change. None: there is none.

    In a folder with the sticky bit, such as /tmp, users cannot replace each other's files. For a path that does not
    exist, only its folders are checked.
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
    """Write a new file and put it in the place of `path`, in one step.

    Args:
        path: path of the file.
        write: writes the content to an open file.

    Raises:
        OSError: it cannot be written. `path` is then unchanged.
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
    """Yield a free name next to a path, for a file that is written first and renamed to the path afterwards.

    Nobody can guess the name. Otherwise, anybody who can write the folder could put a link there, and we would write to
    its target. Open the file with mode "x" all the same. In the end it is removed, unless it was renamed.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.unfinished")
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def write_new(location: str, data: "pa.Buffer | bytes") -> None:
    """Write a new file durably. No link is followed, because anybody who can write the folder could choose its target.

    Args:
        location: path or URI of the file, in an existing folder.
        data: its content.

    Raises:
        OSError: it cannot be written, or a local file or link with its name exists.
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
            os.unlink(path)  # a part of a file is useless, and a full disk needs the space
            raise
    sync_to_disk(Path(path).parent)


def exchange(folder: Path, other: Path) -> None:
    """Exchange the names of two folders in one step. At any time, a reader finds one or the other.

    Raises:
        OSError: the system or its filesystem cannot do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError("the system has no renameat2")
    if libc.renameat2(_HERE, os.fsencode(folder), _HERE, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def sync_to_disk(path: Path) -> None:
    """Write a file, or the entries of a folder, to the disk, so that they survive a crash of the machine.

    Raises:
        OSError: it does not exist, or cannot be synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_files(location: str, choose: Callable[[Mapping[str, float]], Iterable[str]]) -> int:
    """Delete regular files that lie directly in a folder.

    Links are not followed or deleted, and subfolders not entered.

    Otherwise, anybody who can write the folder could make us delete the target of a link.

    Args:
        location: the folder, a resolved path or a URI.
        choose: takes the files' names, with the times of their last change in seconds since 1970. Returns the names to
            delete.

    Returns:
        The number of deleted files.

    Raises:
        OSError: the folder is a link or cannot be read, or a file cannot be deleted.
    """
    from pyarrow import fs

    filesystem, folder = filesystem_of(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            changed_at: dict[str, float] = {}
            for name in os.listdir(descriptor):
                with suppress(FileNotFoundError):  # another process deletes it too
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        changed_at[name] = status.st_mtime
            names = {*choose(changed_at)}
            if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                raise OSError(errno.ESTALE, "another folder replaced it, so nothing was deleted")
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
    """Rename a local folder to a hidden name next to it. If it is a link, rename the link.

    Raises:
        OSError: it cannot be renamed.
        Refused: it is on another machine, where nothing is renamed in one step.
    """
    if is_uri(location):
        raise Refused(f"{location}: is an unfinished table, perhaps of a scan that was killed: delete its folder")
    folder = Path(location)
    folder.rename(folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.unfinished"))


def refuse_link(location: str) -> None:
    """Raise Refused for a local folder that is a link, because writes and deletions in it would happen elsewhere."""
    if os.path.islink(real := location.removeprefix("file://")):
        raise Refused(f"{real}: is a link to files in another folder: put the folder itself there, or mount it")


def refuse_links_of_table(uri: str) -> None:
    """Raise Refused if a local table's folder or log is a link, because commits would go to another table."""
    for folder in (uri.rstrip("/"), f"{uri.rstrip('/')}/_delta_log"):
        refuse_link(folder)


def table_uri(results: str, name: str) -> str:
    """Return the location of a table: its own folder in the folder of results."""
    return f"{results.rstrip('/')}/{name}"

"""The files of the input: found on any filesystem that pyarrow reads, and told apart from what they were when listed.

A file is listed once, with its size and modification mark. Whoever reads it later checks these before and after, so
that no verdict rests on a file that changed in between.
"""

import datetime
import functools
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from scanner.errors import FileFault, Refused, ScanFailed
from scanner.storage.locations import filesystem_of, refuse_password


@dataclass(frozen=True)
class InputFile:
    """A file as it was listed.

    path: absolute path or URI, as the tables show it; location: the configured path it was found under, which tells the
    filesystem; inner: its path on that filesystem; size in bytes; modified: nanoseconds since 1970, or 0 where the
    filesystem does not tell.
    """

    path: str
    location: str
    inner: str
    size: int
    modified: int

    def open(self) -> pa.NativeFile:
        """Open it for random reads.

        Raises:
            FileFault: it is gone or cannot be opened.
        """
        try:
            return filesystem_of(self.location)[0].open_input_file(self.inner)
        except FileNotFoundError:
            raise FileFault("vanished", "the file was listed, and then it was gone") from None
        except OSError as error:
            raise FileFault("io_error", f"the file cannot be opened: {error}") from None

    def check_unchanged(self) -> None:
        """Raise FileFault when the file is gone, is another one than was listed by size and mark, or cannot be one."""
        if not _is_utf8(self.inner):
            raise FileFault("unreadable", "the file's name is no UTF-8; rename it")
        try:
            now = filesystem_of(self.location)[0].get_file_info(self.inner)
        except OSError as error:
            raise FileFault("io_error", f"the file cannot be looked up: {error}") from None
        if now.type == fs.FileType.NotFound:
            raise FileFault("vanished", "the file was listed, and then it was gone")
        if now.type != fs.FileType.File:  # opening a FIFO would wait for its writer
            raise FileFault("no_regular_file", "this is a FIFO, socket, device or folder, not a regular file")
        if (now.size, now.mtime_ns or 0) != (self.size, self.modified):
            difference = (
                f"{self.size} bytes then, {now.size} now"
                if now.size != self.size
                else f"modified at {self.modified} ns since 1970 then, at {now.mtime_ns or 0} now"
            )
            raise FileFault("changed", f"the file changed after it was listed: {difference}")


def resolve(path: str, base: Path, date: datetime.date | None) -> str:
    """Fill in {date}, and make a plain path absolute; a URI stays a URI, but a local one becomes a plain path.

    Args:
        path: one entry of `input.paths`.
        base: folder at which relative paths start.
        date: fills {date}, as 2026-08-31.

    Raises:
        Refused: {date} without a date, a password in a URI.
    """
    if "{date}" in path:
        if date is None:
            raise Refused(f"input.paths: {path!r} holds {{date}}; say which with --date 2026-08-31")
        path = path.replace("{date}", date.isoformat())
    if "://" not in path:
        return posixpath.normpath((base / path).absolute().as_posix())
    refuse_password("input.paths", path)
    return posixpath.normpath(filesystem_of(path)[1]) if path.startswith("file://") else path


def list_files(
    locations: Iterable[str],
    missing: Callable[[str], None] | None = None,
    passed_over: Callable[[str], None] = lambda path: None,
) -> list[InputFile]:
    """List the Parquet files of resolved paths, sorted, each once, also when links lead to it from several places.

    A path of a file is taken whatever its name; in a folder, at any depth, what ends in .parquet, but nothing whose
    name or folder begins with `_` or `.` (unfinished and internal files, by the convention of Arrow and Spark). What is
    no regular file, or has a name in a folder that is no UTF-8, is listed too: `check_unchanged` tells its fault.

    Args:
        locations: resolved paths.
        missing: is told of a path that does not exist, which then counts as empty; None: it is refused.
        passed_over: is told of each file in a folder that does not end in .parquet, unless its name hides it.

    Raises:
        Refused: a path that does not exist, or cannot be written down.
        ScanFailed: a folder that cannot be listed.
    """
    files: dict[str, InputFile] = {}
    for location in locations:
        try:
            filesystem, inner = filesystem_of(location)
            info = filesystem.get_file_info(inner)
            if info.type == fs.FileType.NotFound and missing is not None:
                missing(location)
                continue
            if info.type == fs.FileType.NotFound:
                raise Refused(f"input.paths: {location!r} does not exist; name a Parquet file or a folder of them")
            found = [_found(info)]
            if info.type == fs.FileType.Directory:
                found = list(_in_folder(filesystem, inner, passed_over))
        except UnicodeError as error:
            name = os.fsencode(getattr(error, "object", location))
            raise Refused(f"input.paths: a name in {location!r} is no UTF-8: {name!r}; rename it") from None
        except ValueError as error:
            raise Refused(f"input.paths: {location!r} cannot be a path: {error}; correct it") from None
        except OSError as error:
            raise ScanFailed(f"input.paths: {location!r} cannot be listed: {error}") from None
        shown = (urlsplit(location)._replace(query="").geturl() if "://" in location else location).rstrip("/")
        for item in found:
            path = shown + item.inner[len(inner.rstrip("/")) :]
            files.setdefault(path, InputFile(_printable(path), location, *item))
    by_file: dict[object, InputFile] = {}
    real_folder = functools.cache(os.path.realpath)
    for path, file in sorted(files.items(), key=lambda item: item[1].path):
        by_file.setdefault(path if "://" in path else _leads_to(path, real_folder), file)
    return list(by_file.values())


def _leads_to(path: str, real_folder: Callable[[str], str]) -> object:
    """The same for all paths that lead to one file: where links lead; device and inode of what has several names.

    An inode of a file with one name says nothing: some network filesystems give the same one to several files.

    Args:
        path: absolute.
        real_folder: os.path.realpath of folders, remembered: many files are in one.
    """
    folder, _, name = path.rpartition("/")
    real = f"{real_folder(folder)}/{name}"
    try:
        there = os.lstat(real)
        if stat.S_ISLNK(there.st_mode):
            real = os.path.realpath(real)
            there = os.stat(real)
    except OSError:
        return real
    return (there.st_dev, there.st_ino) if there.st_nlink > 1 else real


def _is_utf8(name: str) -> bool:
    """False where Python put lone surrogates for bytes that are no UTF-8."""
    try:
        return name.isascii() or bool(name.encode())
    except UnicodeEncodeError:
        return False


def _printable(path: str) -> str:
    return path if _is_utf8(path) else os.fsencode(path).decode(errors="backslashreplace")


class _Found(NamedTuple):
    """The last fields of an InputFile."""

    inner: str
    size: int
    modified: int


def _found(info: fs.FileInfo) -> _Found:
    return _Found(info.path, max(info.size or 0, 0), info.mtime_ns or 0)


def _found_here(path: str) -> _Found:
    """As `_found` of Arrow's listing, at a fifth of its cost."""
    try:
        there = os.stat(path)
    except OSError:
        return _Found(path, 0, 0)
    return _Found(path, there.st_size if stat.S_ISREG(there.st_mode) else 0, there.st_mtime_ns)


def _in_folder(filesystem: fs.FileSystem, folder: str, passed_over: Callable[[str], None]) -> Iterator[_Found]:
    if isinstance(filesystem, fs.LocalFileSystem):
        paths = []
        for path in _walk(folder):
            if path.endswith(".parquet"):
                paths.append(path)
            else:
                passed_over(_printable(path))
        yield from (_found_here(path) if _is_utf8(path) else _Found(path, 0, 0) for path in paths)
        return
    for item in filesystem.get_file_info(fs.FileSelector(folder, recursive=True)):
        below = item.path[len(folder.rstrip("/")) :].strip("/").split("/")
        hidden = any(part.startswith(("_", ".")) for part in below)
        if item.type == fs.FileType.Directory or hidden:
            continue
        if below[-1].endswith(".parquet"):
            yield _found(item)
        else:
            passed_over(item.path)


def _walk(folder: str) -> Iterator[str]:
    """Paths of the files of a local folder. Each real folder is entered once, lest links go round in circles.

    A link that leads nowhere is among them, which Arrow's own listing would pass over in silence.
    """

    def fail(error: OSError) -> None:
        raise error

    entered = {os.path.realpath(folder)}
    for here, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        new = []
        for name in sorted(folders):
            real = os.path.realpath(os.path.join(here, name))
            if not name.startswith(("_", ".")) and real not in entered:
                entered.add(real)
                new.append(name)
        folders[:] = new
        yield from (os.path.join(here, name) for name in names if not name.startswith(("_", ".")))

"""The files of the input: found, recognised when they change, shared among drivers; tables' folders are refused.

A table's log says which of its files count. Read as loose files, they hold deleted rows, and rows that stand twice.

A file is listed once, with its size and modification mark. Whoever reads it later checks these before and after, so
that no verdict rests on a file that changed in between.

A part of the input: the files that one of several drivers scans, chosen by a hash of their paths.
"""

import contextlib
import datetime
import glob
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from scanner.errors import FileFault, Refused, ScanFailed
from scanner.printable import printable
from scanner.storage.locations import ask_many_at_once, filesystem_of, is_uri, refuse_password

HIDDEN = ("_", ".")
"""First characters of names that are passed over."""

_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}  # folders in the folder of a table
_ICEBERG_FOLDER, _ICEBERG_FILES = "metadata", (".metadata.json", ".metadata.json.gz")


class Table(NamedTuple):
    """The folder of a table, and its kind: Delta, Hudi or Iceberg."""

    folder: str
    kind: str


class TableFolders:
    """Refuses tables at, above and below one path of the input. Each folder above is asked for once.

    Args:
        location: the path, as it is configured.
        filesystem: where it lies.
    """

    def __init__(self, location: str, filesystem: fs.FileSystem) -> None:
        self._location, self._filesystem = location.partition("?")[0], filesystem
        self._known: dict[str, str | None] = {}  # kinds of the folders above

    def refuse_by(self, folder: str, below: Sequence[str]) -> None:
        """Refuse a table by a file that lies below the location.

        Args:
            folder: a folder.
            below: names of the folders from there to the file, and the file's. What lies in a hidden folder is passed
                over, as it is not read.

        Raises:
            Refused: the file belongs to a table's log.
        """
        for place, name in enumerate(below[:-1]):
            if name in _LOGS:
                self._refuse(Table("/".join([folder, *below[:place]]), _LOGS[name]))
            if name.startswith(HIDDEN):
                return
        if below[-2:-1] == [_ICEBERG_FOLDER] and below[-1].endswith(_ICEBERG_FILES):
            self._refuse(Table("/".join([folder, *below[:-2]]), "Iceberg"))

    def refuse_above(self, inner: str) -> None:
        """Refuse a path if it, or a folder above it, is a table. Costs some requests for each folder above.

        Raises:
            Refused: there is such a table.
        """
        for folder in map(str, (PurePosixPath(inner), *PurePosixPath(inner).parents)):
            if folder not in self._known:
                self._known[folder] = self._kind(folder)
            kind = self._known[folder]
            if kind is not None:
                self._refuse(Table(folder, kind))

    def _kind(self, folder: str) -> str | None:
        for log, kind in _LOGS.items():
            if self._is_folder(posixpath.join(folder, log)):
                return kind
        metadata = posixpath.join(folder, _ICEBERG_FOLDER)
        if self._is_folder(metadata):
            with contextlib.suppress(OSError, UnicodeError):
                inside = self._filesystem.get_file_info(fs.FileSelector(metadata))
                return "Iceberg" if any(item.base_name.endswith(_ICEBERG_FILES) for item in inside) else None
        return None

    def _is_folder(self, path: str) -> bool:
        """False too where nobody may look: a store may let a reader see the input and nothing above."""
        try:
            return bool(self._filesystem.get_file_info(path).type == fs.FileType.Directory)
        except (OSError, UnicodeError):
            return False

    def _refuse(self, table: Table) -> None:
        raise Refused(
            f"input.paths: {self._location!r}: {printable(table.folder)!r} is the folder of {_a(table.kind)} table, "
            "and files of it may hold rows that were deleted or rewritten; write the rows that stand into Parquet "
            "files in a folder of their own, and name that"
        )


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "AEIOU" else f"a {kind}"


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
            raise Refused(f"input.paths: {path!r} holds {{date}}; say which with --date {newest_date(path, base)}")
        path = path.replace("{date}", date.isoformat())
    if "://" not in path:
        return posixpath.normpath((base / path).absolute().as_posix())
    refuse_password("input.paths", path)
    return posixpath.normpath(filesystem_of(path)[1]) if path.startswith("file://") else path


def newest_date(path: str, base: Path) -> str:
    """The newest date whose files are there, for advice: a path with {date}; "yesterday" where none is, or of a URI."""
    if is_uri(path):
        return "yesterday"
    before, *rest = (base / path).absolute().as_posix().split("{date}")
    digits = "-".join("[0-9]" * n for n in (4, 2, 2))
    found = glob.iglob(glob.escape(before) + "".join(digits + glob.escape(part) for part in rest))
    dates = sorted(name.removeprefix(before)[:10] for name in found)
    return next((date for date in reversed(dates) if (base / path.replace("{date}", date)).exists()), "yesterday")


def list_files(
    locations: Iterable[str],
    missing: Callable[[str], None] | None = None,
    passed_over: Callable[[str], None] = lambda path: None,
    before: Iterable[InputFile] = (),
) -> list[InputFile]:
    """List the Parquet files of resolved paths, sorted, each once, also when links lead to it from several places.

    A path of a file is taken whatever its name. In a folder, at any depth, files that end in .parquet are taken, but
    none whose name or folder begins with `_` or `.` (unfinished and internal files, by the convention of Arrow and
    Spark). Anything that is no regular file, or whose name in a folder is no UTF-8, is listed too: `check_unchanged`
    reports its fault.

    Args:
        locations: resolved paths.
        missing: called with a path that does not exist, which then counts as empty; None: it is refused.
        passed_over: called with each file in a folder that does not end in .parquet, unless its name hides it.
        before: files listed some seconds ago. For an unchanged file the same object is returned, which costs less.

    Raises:
        Refused: a path that does not exist, or cannot be written down; a Delta, Iceberg or Hudi table at, above or
            below a path.
        ScanFailed: a folder that cannot be listed.
    """
    files: dict[str, InputFile] = {}
    leads: dict[str, object] = {}  # the same for all paths that lead to one file; where none is named, the path
    known = {(file.location, file.inner): file for file in before}
    for location in locations:
        shown = (urlsplit(location)._replace(query="").geturl() if "://" in location else location).rstrip("/")
        begin, found = _found_under(location, missing, passed_over)
        for item, size, modified, real in found:
            path = shown + item[begin:]
            if path in files:
                continue
            file = known.get((location, item))
            if file is None or file.size != size or file.modified != modified:
                file = InputFile(_printable(path), location, item, size, modified)
            files[path] = file
            if real is not None:
                leads[path] = real
    by_file: dict[object, InputFile] = {}
    for path in sorted(files):
        by_file.setdefault(leads.get(path, path), files[path])
    return list(by_file.values())


def find_file(path: str) -> InputFile:
    """A file that was listed before, as it is now; whatever became of its folder.

    Args:
        path: path of the file, as the tables show it, with the options of its URI.

    Raises:
        Refused: it does not exist, or cannot be written down.
        ScanFailed: it cannot be looked at.
    """
    shown = urlsplit(path)._replace(query="").geturl() if "://" in path else path
    with _faults_of(path):
        filesystem, inner = filesystem_of(path)
        info = filesystem.get_file_info(inner)
    if info.type == fs.FileType.NotFound:
        raise _missing(path)
    found = _found(info)
    return InputFile(_printable(shown), path, found.inner, found.size, found.modified)


def _missing(location: str) -> Refused:
    return Refused(f"input.paths: {location!r} does not exist; name a Parquet file or a folder of them")


@contextlib.contextmanager
def _faults_of(location: str) -> Iterator[None]:
    """Have errors about a path tell which one, as Refused or ScanFailed."""
    try:
        yield
    except UnicodeError as error:
        name = os.fsencode(getattr(error, "object", location))
        raise Refused(f"input.paths: a name in {location!r} is no UTF-8: {name!r}; rename it") from None
    except ValueError as error:
        raise Refused(f"input.paths: {location!r} cannot be a path: {error}; correct it") from None
    except OSError as error:
        raise ScanFailed(f"input.paths: {location!r} cannot be listed: {error}") from None


def _found_under(
    location: str, missing: Callable[[str], None] | None, passed_over: Callable[[str], None]
) -> "tuple[int, list[_Found]]":
    """The files at a path, and how long the path is on its filesystem. Raises as `list_files`."""
    if is_uri(location):
        ask_many_at_once()
    with _faults_of(location):
        filesystem, inner = filesystem_of(location)
        info = filesystem.get_file_info(inner)
        local = isinstance(filesystem, fs.LocalFileSystem)
        tables = TableFolders(location, filesystem)
        tables.refuse_above(inner)
        if local:
            tables.refuse_above(os.path.realpath(inner))
        if info.type == fs.FileType.NotFound:
            if missing is None:
                raise _missing(location)
            missing(location)
            found = []
        elif info.type != fs.FileType.Directory:
            found = [_found(info, _leads_to(location) if local else None)]
        else:
            found = list((_in_local_folder if local else _in_folder)(filesystem, inner, tables, passed_over))
    return len(inner.rstrip("/")), found


def _leads_to(path: str) -> object:
    """One value for all local paths to one file: the end of links; device and inode of a file of several names.

    The inode of a file with one name says nothing: some network filesystems give several files the same one.
    """
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        return real
    return (status.st_dev, status.st_ino) if status.st_nlink > 1 else real


def _is_utf8(name: str) -> bool:
    """False where Python put lone surrogates for bytes that are no UTF-8."""
    try:
        return name.isascii() or bool(name.encode())
    except UnicodeEncodeError:
        return False


def _printable(path: str) -> str:
    return path if _is_utf8(path) else os.fsencode(path).decode(errors="backslashreplace")


class _Found(NamedTuple):
    """The last fields of an InputFile, and where it leads to; None: its path alone identifies it."""

    inner: str
    size: int
    modified: int
    real: object


def _found(info: fs.FileInfo, real: object = None) -> _Found:
    return _Found(info.path, max(info.size or 0, 0), info.mtime_ns or 0, real)


def _in_folder(
    filesystem: fs.FileSystem, folder: str, tables: TableFolders, passed_over: Callable[[str], None]
) -> Iterator[_Found]:
    for item in filesystem.get_file_info(fs.FileSelector(folder, recursive=True)):
        below = item.path[len(folder.rstrip("/")) :].strip("/").split("/")
        hidden = any(part.startswith(HIDDEN) for part in below)
        is_folder = item.type == fs.FileType.Directory
        tables.refuse_by(folder, [*below, ""] if is_folder else below)
        if is_folder or hidden:
            continue
        if below[-1].endswith(".parquet"):
            yield _found(item)
        else:
            passed_over(item.path)


def _in_local_folder(
    _: fs.FileSystem, folder: str, tables: TableFolders, passed_over: Callable[[str], None]
) -> Iterator[_Found]:
    """Files as in Arrow's own listing, at a fifth of its cost. A link that leads nowhere is listed too."""
    for real, files in _walk(folder, tables):
        for file in files:
            path = file.path
            if not path.endswith(".parquet"):
                passed_over(_printable(path))
            elif _is_utf8(path):
                if file.is_symlink():
                    tables.refuse_above(os.path.dirname(os.path.realpath(path)))
                yield _found_here(file, f"{real}/{file.name}" if real else None)
            else:
                yield _Found(path, 0, 0, None)


def _found_here(file: os.DirEntry[str], real: str | None) -> _Found:
    """A file by one look at it, or a link by a look at its target; real: its path without that link."""
    path = file.path
    try:
        status = file.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            real, status = os.path.realpath(path), os.stat(path)
    except OSError:
        return _Found(path, 0, 0, real)
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return _Found(path, size, status.st_mtime_ns, (status.st_dev, status.st_ino) if status.st_nlink > 1 else real)


def _walk(folder: str, tables: TableFolders) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """A local folder and all below it, each with its files, nothing hidden, and its real path where that is another.

    Each real folder is entered once, lest links go round in circles.

    Raises:
        OSError: one cannot be listed.
    """
    entered = {os.path.realpath(folder)}
    todo = [folder]
    while todo:
        here = todo.pop()
        files: list[os.DirEntry[str]] = []
        folders: list[os.DirEntry[str]] = []
        with os.scandir(here) as entries:
            for entry in entries:
                if not entry.name.startswith(HIDDEN):
                    (folders if _is_folder(entry) else files).append(entry)
                elif _is_folder(entry):
                    tables.refuse_by(here, [entry.name, ""])
        if files and os.path.basename(here) == "metadata":
            tables.refuse_above(os.path.dirname(here))
        real = os.path.realpath(here)
        yield "" if real == here else real, files
        new = []
        for entry in sorted(folders, key=lambda entry: entry.name):
            real = os.path.realpath(entry.path)
            if entry.is_symlink():
                tables.refuse_above(real)
            if real not in entered:
                entered.add(real)
                new.append(entry.path)
        todo += reversed(new)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to a target that cannot be looked at
        return False


class DriverShare(NamedTuple):
    """One of several parts of the input, written `number/of`; numbers begin at 1.

    A file's path alone decides its part. So parts are disjoint and together hold all files, also where drivers list the
    input at different times. Parts of many files hold about equal bytes.
    """

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> "DriverShare":
        """A part as people write it, such as `1/3`.

        Raises:
            ValueError: the text names no part.
        """
        if not re.fullmatch("[0-9]{1,6}/[0-9]{1,6}", text):
            raise ValueError(f"{text!r} names no part; write its number and how many parts there are, as in 1/3")
        number, of = map(int, text.split("/"))
        if not 1 <= number <= of:
            raise ValueError(f"{text!r} names no part; the number is 1 to {of}, as in 1/{max(of, 1)}")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, file: InputFile) -> bool:
        """Whether a file belongs to this part."""
        hashed = int.from_bytes(hashlib.sha256(file.path.encode()).digest()[:8])
        return hashed % self.of == self.number - 1

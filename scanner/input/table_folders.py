"""Folders of Delta, Iceberg and Hudi tables in the input, which are refused.

A table's log says which of its files count. Read as loose files, they hold deleted rows, and rows that stand twice.
"""

import contextlib
import posixpath
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from pyarrow import fs

from scanner.errors import Refused
from scanner.printable import printable

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

"""Read the commits of a Delta table's log line by line, because one commit may name a million files."""

import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyarrow import fs

from scanner.input.tables import Commit
from scanner.storage.locations import REQUESTS_AT_ONCE, parse_json

COMMIT = re.compile(r"([0-9]{20})\.json")
"""Pattern of the names of commits, which contain the version."""

_VECTOR = re.compile(rb'"deletionVector"(?!\s*:\s*null)')
_ESCAPE = b"\\u"  # with which a writer may spell names of fields too
_MILLISECOND = 10**6  # nanoseconds
_LAST_MILLISECOND = (2**63 - 1) // _MILLISECOND  # since 1970
_BLOCK = 2**20  # bytes of a commit that are held at a time, by each of REQUESTS_AT_ONCE threads


def to_nanoseconds(milliseconds: int) -> int:
    """Return a time of a log in nanoseconds since 1970, within the limits of a time."""
    return min(max(milliseconds, 0), _LAST_MILLISECOND) * _MILLISECOND


def all_to_nanoseconds(milliseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return many times as `to_nanoseconds` does."""
    return np.clip(milliseconds, 0, _LAST_MILLISECOND) * _MILLISECOND


def actions_of(lines: Iterable[bytes], *names: bytes) -> Iterator[dict[str, Any]]:
    """Yield the actions of the lines that may have one of some names, without nulls.

    Some writers give null to all other names.

    Raises:
        ValueError: such a line is no JSON object. Other readers would read it in another way.
    """
    for line in lines:
        if _ESCAPE in line or any(b'"%b"' % name in line for name in names):
            try:
                action = parse_json(line)
            except ValueError as error:
                raise ValueError(f"a line of its log is not a JSON object, as the protocol requires: {error}") from None
            if not isinstance(action, dict):
                raise ValueError("a line of its log is not a JSON object, as the protocol requires")
            yield {name: fields for name, fields in action.items() if fields is not None}


class CommitLog:
    """The commits of a table up to a version, as far back as they are there.

    whole: whether no commit is missing, from the first one on.
    last_gap: number of commits before the last gap. 0: there is none.
    named: function that returns a path in the log as results show it.
    """

    def __init__(self, filesystem: fs.FileSystem, folder: str, version: int, named: Callable[[str], str]) -> None:
        self._filesystem, self._named = filesystem, named
        self._vectors: dict[str, dict[str, int]] = {}  # stated rows of vectors by files, by commits that add these
        items = filesystem.get_file_info(fs.FileSelector(folder))
        plain = (item for item in items if item.type == fs.FileType.File)  # a FIFO would wait for its writer
        path_of = {int(match[1]): item.path for item in plain if (match := COMMIT.fullmatch(item.base_name))}
        self._numbers = [number for number in sorted(path_of) if number <= version]
        self._paths = [path_of[number] for number in self._numbers]
        self.whole = len(self._numbers) == version + 1
        self.last_gap = max((i for i, number in enumerate(self._numbers) if number - 1 not in path_of), default=0)

    def commits(self) -> list[Commit]:
        """Read the commits in their order. If the log is whole, added files that no commit removed are left out."""
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            changes = dict(zip(self._paths, threads.map(self._changes, self._paths), strict=True))
            gone = {path for commit in changes.values() for path in commit.removes}
            appends = [path for path, commit in changes.items() if not commit.removes and (gone or not self.whole)]
            add_filter = gone if self.whole else None
            changes |= zip(appends, threads.map(lambda path: self._read(path, add_filter), appends), strict=True)
        return [*changes.values()]

    @property
    def names_vectors(self) -> bool:
        """Return whether a commit adds a deletion vector. A log can have some although it states that it has none."""
        return any(self._vectors.values())

    def stated_rows(
        self, commits: Sequence[Commit], checkpoint: int, checkpoint_rows: Mapping[str, int]
    ) -> dict[str, int]:
        """Return how many rows deletion vectors remove by the log, by the files' paths as results show them.

        Args:
            commits: the result of `commits`.
            checkpoint: version up to which a checkpoint states the numbers. -1: there is no checkpoint.
            checkpoint_rows: the numbers at that version, by paths in the log.
        """
        stated = {self._named(path): rows for path, rows in checkpoint_rows.items()}
        for number, path, commit in zip(self._numbers, self._paths, commits, strict=True):
            if number > checkpoint:
                for name in (*commit.removes, *commit.adds):
                    stated.pop(name, None)
                stated |= self._vectors.get(path, {})
        return stated

    def _changes(self, path: str) -> Commit:
        """Read a commit that removes files, or return an empty one."""
        removes = vectors = False
        with self._opened(path) as lines:
            for line in lines:
                if _ESCAPE in line:
                    for action in actions_of([line]):
                        removes = removes or "remove" in action
                        vectors = vectors or action.get("add", {}).get("deletionVector") is not None
                else:
                    removes = removes or b'"remove"' in line
                    vectors = vectors or (b'"deletionVector"' in line and _VECTOR.search(line) is not None)
            if not removes and not vectors:
                return Commit({}, [])
            lines.seek(0)  # costs nothing in a commit of one block
            return self._parsed(path, lines, None if removes else ())

    def _read(self, path: str, add_filter: Collection[str] | None) -> Commit:
        with self._opened(path) as lines:
            return self._parsed(path, lines, add_filter)

    @contextmanager
    def _opened(self, path: str) -> Iterator[io.BufferedReader]:
        with self._filesystem.open_input_file(path) as file:
            yield io.BufferedReader(file, _BLOCK)

    def _parsed(self, path: str, lines: io.BufferedReader, add_filter: Collection[str] | None) -> Commit:
        """Return the commit at a path, from its lines, and note its vectors.

        add_filter: the files that it may add. None: all.
        """
        commit, vectors = Commit({}, []), dict[str, int]()
        for action in actions_of(lines, b"add", b"remove"):
            if "add" in action:
                name = self._named(action["add"]["path"])
                modified = to_nanoseconds(int(action["add"]["modificationTime"]))
                vector = action["add"].get("deletionVector")
                if vector is not None:
                    vectors[name] = int(vector["cardinality"])  # deltalake reads "1" too
                if add_filter is None or name in add_filter:
                    commit.adds[name] = modified
            elif "remove" in action:
                commit.removes.append(self._named(action["remove"]["path"]))
        self._vectors[path] = vectors
        return commit

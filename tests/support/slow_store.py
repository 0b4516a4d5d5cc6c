"""Local files behind the delays of an object store: every request is counted, and takes its time."""

import threading
import time
from collections import Counter
from pathlib import Path

from pyarrow import fs

A_PAGE = 1000  # keys that a store lists at a time


class SlowStore:
    """The filesystem calls of scanner.input. requests: number by kind; together: the most at once.

    Args:
        seconds: that each request takes.
    """

    def __init__(self, seconds: float) -> None:
        self.requests: Counter[str] = Counter()
        self.together = self._now = 0
        self._seconds, self._lock, self._files = seconds, threading.Lock(), fs.LocalFileSystem()

    def filesystem_of(self, location: str) -> tuple["SlowStore", str]:
        """As scanner.storage.locations has it: s3://folder/name is the local /folder/name."""
        return self, location.removeprefix("s3:/")

    def ask(self, what: str) -> None:
        with self._lock:
            self.requests[what] += 1
            self._now += 1
            self.together = max(self.together, self._now)
        time.sleep(self._seconds)
        with self._lock:
            self._now -= 1

    def get_file_info(self, asked: "str | fs.FileSelector") -> "fs.FileInfo | list[fs.FileInfo]":
        found = self._files.get_file_info(asked)
        for _ in range(1 if isinstance(asked, str) else -(-len(found) // A_PAGE)):
            self.ask("look up" if isinstance(asked, str) else "list")
        return found

    def open_input_file(self, path: str) -> "_Opened":
        self.ask("open")  # also reads the size
        return _Opened(self, Path(path))


class _Opened:
    def __init__(self, store: SlowStore, path: Path) -> None:
        self._store, self._data = store, path.read_bytes()

    def __enter__(self) -> "_Opened":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def size(self) -> int:
        return len(self._data)

    def read_at(self, size: int, begin: int) -> bytes:
        self._store.ask("read")
        return self._data[begin : begin + size]

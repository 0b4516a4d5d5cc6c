"""The detector's log of metadata, which has a bound: what a provider can answer an authority from."""

import errno
import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from scanner.service.signing import make_folder


class DetectorLog:
    """The log: a JSON object a line, and a file a day.

    Args:
        folder: made where there is none. Others cannot enter it.
        days: how many days files are kept.
        max_bytes: of all files. Beyond it the oldest file goes, and none of today's lines.
    """

    def __init__(self, folder: Path, days: int, max_bytes: int) -> None:
        self._folder, self._days, self._max_bytes = folder, days, max_bytes
        self._day, self._size = "", math.inf  # which the first line looks up
        make_folder(folder)

    def add(self, entries: Sequence[Mapping[str, object]]) -> None:
        """Append entries, with the time.

        Raises:
            OSError: they cannot be written, or today's are as many bytes as all may be. None of them is written.
        """
        if not entries:
            return
        now = datetime.now(UTC)
        time = {"time": now.isoformat(timespec="seconds")}
        raw = "".join(json.dumps(time | {**entry}) + "\n" for entry in entries).encode()
        if self._size + len(raw) > self._max_bytes:
            self._make_room(len(raw))
        path = f"{self._folder}/{now.date()}.jsonl"
        with open(path, "ab", buffering=0) as file:  # a path's own `open` takes twice as long
            end = file.tell()
            if self._size + len(raw) > self._max_bytes or file.write(raw) < len(raw):
                file.truncate(end)  # else the next line would go on where this one was cut off
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._size += len(raw)

    def expire(self) -> None:
        """Delete the files of days that are over for longer than they are kept, once a day."""
        if datetime.now(UTC).date().isoformat() != self._day:
            self._make_room(0)

    def _make_room(self, room: int) -> None:
        """Delete days that are too old, and the oldest ones where so many bytes more would be too many."""
        today = datetime.now(UTC).date()
        self._day, oldest = today.isoformat(), (today - timedelta(days=self._days)).isoformat()
        sizes = {path: path.stat().st_size for path in sorted(self._folder.glob("????-??-??.jsonl"))}
        self._size = sum(sizes.values())
        for path, size in sizes.items():
            if path.stem < oldest or (path.stem < self._day and self._size + room > self._max_bytes):
                path.unlink()
                self._size -= size

"""Since when a document has existed: a user who got its message later was not the one it was marked for.

A document's own time may be wrong, and a scan of today meets documents of years ago. So the earliest of these times
counts: its own; its file's, where it has none; when a scan first had this file; when one first flagged this text,
wherever it stood. The time of another copy does not count: whoever posts a copy may choose it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from scanner.input.files import InputFile

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Sightings(NamedTuple):
    """A scan's knowledge when it begins.

    began: when, before it listed its files; files: by path, when an earlier scan had the same file; texts: by SHA-256,
    when an earlier scan flagged the text.
    """

    began: datetime
    files: Mapping[str, datetime]
    texts: Mapping[bytes, datetime]


class OfFile(NamedTuple):
    """Knowledge of a file's documents, without their own times.

    began, texts: as in Sightings; seen: when an earlier scan had the file, None: not before; written: when the file was
    modified, None: its filesystem does not tell.
    """

    began: datetime
    texts: Mapping[bytes, datetime]
    seen: datetime | None
    written: datetime | None

    def first_seen(self, own: datetime | None, text: bytes) -> datetime | None:
        """Latest time by which a document existed. None: nothing shows that it existed before the scan began.

        Args:
            own: its own time, or None.
            text: SHA-256.
        """
        known = (self.written if own is None else own, self.seen, self.texts.get(text))
        first = min((time for time in known if time is not None), default=self.began)
        return first if first < self.began else None


def written(file: InputFile) -> datetime | None:
    """When a file was modified, where its filesystem says so."""
    return moment(file.modified) if file.modified else None


def moment(modified: int) -> datetime:
    """Nanoseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=modified // 1000)

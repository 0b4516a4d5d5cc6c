"""From messages that may be named to users: since when a text has existed, and who held them then.

Since when a document has existed: a user who got its message later was not the one it was marked for.

A document's own time may be wrong, and a scan of today meets documents of years ago. So the earliest of these times
counts: its own; its file's, where it has none; when a scan first had this file; when one first flagged this text,
wherever it stood. The time of another copy does not count: whoever posts a copy may choose it.

From messages that may be named to users: the columns of VERDICTS with the users a text was marked for, each once.

Two messages of one user are one user (SPEC_2 §3). So a text under two keys of one user, as it comes where one key
replaces another, names that user. This holds under keys of version 1 too, where several messages that pass name nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.under_test import KeyUnderTest, NamesUsers
from scanner.input.files import InputFile
from scanner.registry import Named
from scanner.watermark.rule import Found, passes
from schemas.words import Naming

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


Who = Callable[[str, int, datetime], Named]
"""Function that gives whom a message of a key names, for a document that existed at a time."""


class Entry(NamedTuple):
    """A message that may be named: its key's id, its corrected log10 p, and whom it names."""

    key_id: str
    message: int
    log10_p_global: float
    who: Named

    def row(self) -> dict[str, Any]:
        """As in schemas.tables.NAMED."""
        ids = {"key_id": self.key_id, "message": self.message, "log10_p_global": self.log10_p_global}
        return ids | {"user_id": self.who.user_id, "naming": self.who.naming}


class Names(NamedTuple):
    """Columns of VERDICTS of D documents, object[D] each."""

    naming: NDArray[np.object_]
    user_id: NDArray[np.object_]
    first_seen_at: NDArray[np.object_]
    held_since: NDArray[np.object_]
    named: NDArray[np.object_]
    named_again: NDArray[np.object_]

    @classmethod
    def of_nobody(cls, naming: NDArray[np.object_]) -> "Names":
        """Columns before anybody is named."""
        return cls(naming.copy(), *(np.full(len(naming), None) for _ in cls._fields[1:]))

    def put(self, document: int, entries: Sequence[Entry], first_seen: datetime | None, began: datetime) -> None:
        """Name users for a document.

        Args:
            document: its place.
            entries: the verdict's own first.
            first_seen: time by which it existed; None: not known to exist before the scan.
            began: when the scan began.
        """
        who = entries[0].who
        later = began if who.naming == Naming.HELD_LATER else None
        self.naming[document], self.user_id[document], self.held_since[document] = who
        self.first_seen_at[document] = first_seen or later
        known: set[str | None] = set()
        once: list[dict[str, Any]] = []
        again: list[dict[str, Any]] = []
        for entry in entries:
            user = entry.who.user_id
            (again if user in known else once).append(entry.row())
            known |= {user} - {None}  # two messages that name nobody need not be of one user
        self.named[document], self.named_again[document] = once, again or None


def entries_of(
    found: Sequence[Found],
    chosen: Sequence[NDArray[np.bool_]],
    document: int,
    best: tuple[int, int],
    who: Callable[[int, int], tuple[str, Named]],
) -> list[Entry]:
    """Some candidates of a document as entries, the verdict's first, then the others by p, smallest first.

    Args:
        found: the findings of each key.
        chosen: candidates of each key, bool[D, C].
        document: its place.
        best: key, by its place, and candidate of the verdict.
        who: key id and who is named, by place of the key and message.
    """
    each = sorted(
        ((key, c) != best, float(said.log10_p_global[document, c]), key, c)
        for key, (said, of_key) in enumerate(zip(found, chosen, strict=True))
        for c in np.flatnonzero(of_key[document]).tolist()
    )
    entries = []
    for _, log10_p, key, c in each:
        message = int(found[key].message[document, c])
        key_id, named = who(key, message)
        entries.append(Entry(key_id, message, log10_p, named))
    return entries


def who_at(keys: Sequence[KeyUnderTest], holders: NamesUsers, at: datetime) -> Callable[[int, int], tuple[str, Named]]:
    """Key id and named user, by place of the key and message, for a document that existed at `at`."""

    def who(key: int, message: int) -> tuple[str, Named]:
        of_key = keys[key].key
        named = holders.naming(of_key.key_id, message, at)
        if of_key.messages == 1 and named.naming == Naming.UNALLOCATED:
            named = named._replace(naming=Naming.EVERYBODY)
        return of_key.key_id, named

    return who


def passing_of(found: Sequence[Found], false_positive_rate: float) -> list[NDArray[np.bool_]]:
    """Candidates of each key that pass: bool[D, C]."""
    return [passes(said.log10_p_global, false_positive_rate) & said.stands for said in found]


def of_one_user(entries: Sequence[Entry]) -> bool:
    """Whether all are messages of the same user, who had them in time."""
    return all(entry.who.naming == Naming.NAMED for entry in entries) and (
        len({entry.who.user_id for entry in entries}) == 1
    )


def to_be_looked_at(
    naming: NDArray[np.object_],
    torn: NDArray[np.bool_],
    found: Sequence[Found],
    passing: Sequence[NDArray[np.bool_]],
) -> list[int]:
    """Documents whose messages name somebody, or may, if they are all of one user.

    Args:
        naming: object[D].
        torn: bool[D], where another message passes in another text of the document, so that nobody is named.
        found: the findings of each key.
        passing: candidates of each key that pass, bool[D, C]; where one of them is of a key that names nobody, several
            still name nobody.
    """
    assumed = [of_key.any(axis=1) & said.basis.assumed for said, of_key in zip(found, passing, strict=True)]
    perhaps = (naming == Naming.AMBIGUOUS) & ~torn & ~np.any(assumed, axis=0)
    return [int(i) for i in np.flatnonzero((naming == Naming.NAMED) | perhaps)]

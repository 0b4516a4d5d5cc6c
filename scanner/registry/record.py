"""What is kept of a verification of a registry's users, where those who write the registry cannot change it."""

from typing import NamedTuple

FIRST_HEAD = bytes(32)
"""Head of the chain of users before any event."""


class NamesPart(NamedTuple):
    """A file of the index that names are read from, as it was when the chain was verified.

    key_id: id of the key.
    kind: of its rows (scanner.registry.index).
    file: its name.
    rows: how many it has.
    first: its first message.
    last: its last message.
    sha256: of the file, as hex text.
    first_event: smallest number of an event in it.
    """

    key_id: str
    kind: str
    file: str
    rows: int
    first: int
    last: int
    sha256: str
    first_event: int


class Record(NamedTuple):
    """A verification, to be kept where those who write the registry cannot change it.

    checkpoints: how many events the chain had, with its head then.
    parts: all files that names are read from.
    """

    checkpoints: frozenset[tuple[int, str]] = frozenset({(0, FIRST_HEAD.hex())})
    parts: frozenset[NamesPart] = frozenset()


NO_RECORD = Record()
"""Record of a registry that nobody verified."""

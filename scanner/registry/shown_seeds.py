"""Seeds of keys of version 3 that claims have shown, in a registry's folder: shown/KEY.jsonl (SPEC_3 §5).

Whoever read a claim can mark the windows of its seeds for anybody. So nothing is marked or scored in buckets that were
shown, and what they are is kept with the key. Each line is one event, in canonical JSON (RFC 8785):

    {"at": time, "buckets": [...], "event": {"before", "leaves", "number", "text"}, "salt": hex, "sum": hex,
     "text_sha256": hex, "unit": words}

at is when it was written (UTC, to the second), never before the line before; text_sha256 is of the text alone, by which
an erasure tells which claims it cannot take back. The event alone is public. It names leaves and never buckets, from
which the text could be rebuilt; text is SHA-256(salt ‖ text), and before the SHA-256 of the event before it, 64 zeros
of the first. Event and buckets stand in one line, so that no crash parts them. sum is SHA-256 of the sum before (of the
first line: the SHA-256 of the key's record) and the line without it: an edit that the events' chain does not see shows.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.printable import counted
from scanner.storage.canonical_json import read_strictly, write_canonical
from scanner.storage.locations import filesystem_of, is_uri, make_private, read_named, write_whole
from schemas.key_record import MOST_SEEDS
from schemas.registry import MasterKey

SHOWN_FOLDER = "shown"

FIRST_HEAD = "0" * 64
"""Head of a key of which nothing was shown."""

MOST_BYTES = 2**29
"""Most bytes of a key's file: some 6,000 events of 1,000 seeds, after which few positions are left to score."""

_HASH_BYTES, _SALT_BYTES = 32, 16
_AT = "%Y-%m-%dT%H:%M:%SZ"
_FIELDS = {"at", "buckets", "event", "salt", "sum", "text_sha256", "unit"}
_BRING_BACK = "bring the file back from the newest copy of the registry; the key neither scans nor marks without it"
_NO_EVENT = "it has not the fields of an event"


class ShownEvent(NamedTuple):
    """What is public of one showing of seeds.

    number: of the event, from 1.
    before: SHA-256 of the event before it, as hex; 64 zeros of the first.
    text: SHA-256 of the salt and the text, as hex.
    leaves: of the buckets that it newly shows, as hex, ascending; none where all were shown before.
    """

    number: int
    before: str
    text: str
    leaves: tuple[str, ...]


def event_bytes(event: ShownEvent) -> bytes:
    """Return an event as it is published, canonical JSON; the next one carries its SHA-256."""
    return write_canonical(event._asdict())


def event_head(event: ShownEvent) -> str:
    """Return the SHA-256 of an event, as hex."""
    return hashlib.sha256(event_bytes(event)).hexdigest()


class ShownUpTo(NamedTuple):
    """What a reader knew of what was shown of a key.

    number: of the last event that it read; 0: nothing was shown.
    head: SHA-256 of that event, as hex.
    """

    number: int
    head: str


class ShownSeeds(NamedTuple):
    """What was shown of one key. Its repr shows no bucket.

    events: all of them, in order.
    newly: the buckets that each event newly showed, int64 arrays, ascending.
    """

    events: tuple[ShownEvent, ...] = ()
    newly: tuple[NDArray[np.int64], ...] = ()

    def __repr__(self) -> str:
        return f"ShownSeeds(number={self.number}, head={self.head!r}, …)"

    @property
    def number(self) -> int:
        """Number of the last event; 0: nothing was shown."""
        return len(self.events)

    @property
    def head(self) -> str:
        """SHA-256 of the last event, as hex; 64 zeros: nothing was shown."""
        return event_head(self.events[-1]) if self.events else FIRST_HEAD

    @property
    def last(self) -> ShownUpTo:
        """Number and head."""
        return ShownUpTo(self.number, self.head)

    @property
    def buckets(self) -> NDArray[np.int64]:
        """All buckets that were shown, int64, ascending."""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *self.newly]))

    @property
    def leaves(self) -> frozenset[bytes]:
        """Their leaves, 32 bytes each."""
        return frozenset(bytes.fromhex(leaf) for event in self.events for leaf in event.leaves)

    def up_to(self, number: int) -> "ShownSeeds":
        """Return what was shown by an event of that number and those before it; 0: nothing.

        Raises:
            ValueError: there is no such event.
        """
        if not 0 <= number <= self.number:
            raise ValueError(f"there is no event {number}, but {self.number} in all")
        return ShownSeeds(self.events[:number], self.newly[:number])


class _Line(NamedTuple):
    """A line of the file. Its repr shows nothing but its number."""

    at: datetime
    event: ShownEvent
    buckets: NDArray[np.int64]
    salt: bytes
    text_sha256: str
    unit: str
    sum: str

    def __repr__(self) -> str:
        return f"_Line({self.event.number}, …)"

    def is_about(self, text: bytes, unit: str) -> bool:
        return self.unit == unit and self.event.text == _text_digest(self.salt, text)


def shown_path(folder: Path | str, key_id: str) -> str:
    """Return the path or URI of the file of what was shown of a key."""
    return f"{folder}/{SHOWN_FOLDER}/{key_id}.jsonl"


def read_shown(folder: Path | str, key: MasterKey) -> ShownSeeds:
    """Read what was shown of a key; nothing was where it has no file.

    Args:
        folder: the registry's folder, or a URI.
        key: the key.

    Raises:
        Refused: the file cannot be read, is another key's, or a line is not as it was written; names file and line.
    """
    lines = _read_lines(folder, key)[1]
    return ShownSeeds(tuple(line.event for line in lines), tuple(line.buckets for line in lines))


def find_event(folder: Path | str, key: MasterKey, text: bytes, unit: str) -> tuple[ShownEvent, bytes] | None:
    """Return the event of a claim about a text and unit, and its salt of 16 bytes; None: no claim was made of them.

    Arguments as of `append_event`. Raises as `read_shown`.
    """
    found = (line for line in _read_lines(folder, key)[1] if line.is_about(text, unit))
    return next(((line.event, line.salt) for line in found), None)


def shown_then(folder: Path | str, key: MasterKey, then: ShownUpTo | None = None) -> ShownSeeds:
    """Read what was shown of a key by then: nothing, of a key whose seeds are never shown.

    Args:
        folder: the registry's folder, or a URI.
        key: the key.
        then: up to which event; None: all that is on record now.

    Raises:
        Refused: as `read_shown`; or what a reader knew then is not on record, since an older registry was put back.
    """
    shown = shown_since(folder, key, then)
    return shown if then is None else shown.up_to(then.number)


def shown_since(folder: Path | str, key: MasterKey, then: ShownUpTo | None) -> ShownSeeds:
    """Read all that was shown of a key, of which an event is known: nothing, of a key whose seeds are never shown.

    Args:
        folder: the registry's folder, or a URI.
        key: the key.
        then: the event; None: none is known.

    Raises:
        Refused: as `read_shown`; or the event is not on record, since an older registry was put back.
    """
    if key.record is None:
        return ShownSeeds()
    shown = read_shown(folder, key)
    if then is not None and (then.number > shown.number or shown.up_to(then.number).head != then.head):
        raise Refused(
            f"{shown_path(folder, key.key_id)}: lacks event {then.number} of what was shown of key {key.key_id!r}, "
            "which a scan, a server, a list or a claim has: an older registry was put back, or another. What it lacks "
            f"is public and would be scored as if it were secret: {_BRING_BACK}"
        )
    return shown


class ClaimOfText(NamedTuple):
    """A claim that was made of a text, as far as the registry knows of it.

    key_id: of the key.
    number: of its event.
    at: when the event was written.
    """

    key_id: str
    number: int
    at: datetime


def claims_by_text(folder: Path | str, keys: Iterable[MasterKey]) -> dict[str, list[ClaimOfText]]:
    """Return the claims that were made under keys, by the SHA-256 of their text, as hex. Raises as `read_shown`."""
    found: dict[str, list[ClaimOfText]] = {}
    for key in keys:
        for line in _read_lines(folder, key)[1] if key.record is not None else ():
            found.setdefault(line.text_sha256, []).append(ClaimOfText(key.key_id, line.event.number, line.at))
    return found


def shown_now(folder: Path | str, keys: Iterable[MasterKey]) -> tuple[tuple[str, ShownUpTo], ...]:
    """Return up to which event seeds were shown, by the ids of keys whose seeds can be. Raises as `read_shown`."""
    return tuple((key.key_id, read_shown(folder, key).last) for key in keys if key.record is not None)


def refuse_above_cap(folder: Path | str, key: MasterKey, most_a_month: int, at: datetime | None = None) -> None:
    """Raise Refused where as many events showed seeds of a key in a calendar month (UTC) as a month may have.

    Raises as `read_shown` too. Events that show nothing new do not count.

    at: a time of the month, with a zone; now by default.
    """
    _refuse_above(key.key_id, _read_lines(folder, key)[1], most_a_month, at or datetime.now(UTC))


def _refuse_above(key_id: str, lines: Sequence[_Line], most: int, at: datetime) -> None:
    had = sum((line.at.year, line.at.month) == (at.year, at.month) and len(line.buckets) > 0 for line in lines)
    if had >= most:
        raise Refused(
            f"key {key_id!r}: {counted(had, 'claim')} showed seeds of it in {at:%B %Y} (UTC), and scan.toml "
            f"allows {most:,} a month (claims.most_a_month): wait for the next month, or raise the number. `brickscan "
            "replay --proof` writes a claim for whoever holds the key's secret, at no cost"
        )


def append_event(
    folder: Path | str,
    key_id: str,
    text: bytes,
    unit: str,
    buckets: Sequence[int],
    leaves: Sequence[bytes],
    *,
    most_a_month: int | None = None,
    at: datetime | None = None,
) -> tuple[ShownEvent, bytes]:
    """Write that a claim shows seeds, before it is written itself, so that nothing is marked or scored with them.

    A further claim about the same text and unit shows nothing new and gets the event of the first.

    Args:
        folder: the registry's local folder. Its lock is held meanwhile.
        key_id: of the key.
        text: the whole text, in UTF-8.
        unit: words that tell the unit of the claim among those of the text; they are not published.
        buckets: that positions of the unit meet, those that were shown before too.
        leaves: of the buckets, in their order, 32 bytes each.
        most_a_month: most events in a calendar month (UTC) that show something of the key; None: as many as are asked
            for.
        at: a time with a zone; now by default. Where the last event is later, its time counts.

    Returns:
        The event, and its salt of 16 bytes.

    Raises:
        Refused: as `read_shown`; the key has no public record; the month has as many events as it may have; or the file
            cannot be written.
        ValueError: buckets and leaves are not of each other, or out of range.
    """
    # late: servers that mark only read, and do not carry it
    from scanner.registry.keys_file import find_key, load_registry, local_folder, locked

    folder = local_folder(folder)
    load_registry(folder)  # refuse before a lock file is made in a folder that is no registry
    with locked(folder):
        key = find_key(load_registry(folder), key_id)
        raw, lines = _read_lines(folder, key)
        for line in lines:
            if line.is_about(text, unit):
                return line.event, line.salt
        # a clock that was put back begins no month anew
        time = max(
            [(at or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0), *(line.at for line in lines[-1:])]
        )
        newly = _newly_shown(lines, buckets, leaves)
        if newly and most_a_month is not None:
            _refuse_above(key_id, lines, most_a_month, time)
        salt = secrets.token_bytes(_SALT_BYTES)
        before = event_head(lines[-1].event) if lines else FIRST_HEAD
        leaves_shown = tuple(sorted(leaf.hex() for leaf in newly.values()))
        event = ShownEvent(len(lines) + 1, before, _text_digest(salt, text), leaves_shown)
        fields = {
            "at": f"{time:{_AT}}",
            "buckets": sorted(newly),
            "event": event._asdict(),
            "salt": salt.hex(),
            "text_sha256": hashlib.sha256(text).hexdigest(),
            "unit": unit,
        }
        added = write_canonical(fields | {"sum": _sum_after(lines[-1].sum if lines else str(key.record), fields)})
        if len(raw) + len(added) >= MOST_BYTES:
            raise Refused(f"key {key_id!r}: so much of it was shown that no more is recorded; mark with a new key")
        _write_private(Path(shown_path(folder, key_id)), raw + added + b"\n")
    return event, salt


def _newly_shown(lines: Sequence[_Line], buckets: Sequence[int], leaves: Sequence[bytes]) -> dict[int, bytes]:
    """Return the leaves of the buckets that were not shown before."""
    of_buckets = dict(zip(map(int, buckets), leaves, strict=True))
    if not all(0 <= bucket < 2**MOST_SEEDS for bucket in of_buckets):
        raise ValueError("a bucket is out of its range")
    if not all(len(leaf) == _HASH_BYTES for leaf in of_buckets.values()):
        raise ValueError(f"a leaf has {_HASH_BYTES} bytes")
    if len({*of_buckets.values()}) < len(of_buckets):
        raise ValueError("two buckets have one leaf")
    shown = {int(bucket) for line in lines for bucket in line.buckets}
    shown_leaves = {leaf for line in lines for leaf in line.event.leaves}
    if any((bucket in shown) != (leaf.hex() in shown_leaves) for bucket, leaf in of_buckets.items()):
        raise ValueError("a leaf is not that of its bucket in what was shown before")
    return {bucket: leaf for bucket, leaf in of_buckets.items() if bucket not in shown}


def _write_private(path: Path, content: bytes) -> None:
    def write(file: Any) -> None:  # noqa: ANN401 - a binary file
        os.fchmod(file.fileno(), 0o600)
        file.write(content)

    try:
        make_private(path.parent)
        write_whole(path, write)
    except OSError as error:
        raise Refused(f"{path}: cannot be written ({error.strerror}); mount the registry so that it can") from None


def _text_digest(salt: bytes, text: bytes) -> str:
    return hashlib.sha256(salt + text).hexdigest()


def _sum_after(sum_before: str, fields: dict[str, Any]) -> str:
    return hashlib.sha256(bytes.fromhex(sum_before) + write_canonical(fields)).hexdigest()


def _read_lines(folder: Path | str, key: MasterKey) -> tuple[bytes, list[_Line]]:
    """Read the file of a key, and its lines. Raises as `read_shown`; Refused: the key has no public record."""
    path = shown_path(folder, key.key_id)
    if key.record is None:
        raise Refused(f"key {key.key_id!r} has no public record: seeds of keys of version 3 alone are shown")
    raw = _read(path)
    return (b"", []) if raw is None else (raw, [*_parsed(path, raw, key.record)])


def _read(path: str) -> bytes | None:
    try:
        if not is_uri(path):
            return read_named(path, MOST_BYTES)
        filesystem, inner = filesystem_of(path)
        with filesystem.open_input_file(inner) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(
            f"{path}: cannot be read ({error.strerror or error}), and it says which seeds of the key are public: "
            f"{_BRING_BACK}"
        ) from None


def _parsed(path: str, raw: bytes, record: str) -> Iterator[_Line]:
    """Yield the lines of a file, each held against the one before it; record: SHA-256 of the key's record."""
    if not raw.endswith(b"\n"):
        raise Refused(f"{path}: its last line has no end; {_BRING_BACK}")
    head, sum_before, shown, shown_leaves = FIRST_HEAD, record, set[int](), set[str]()
    at_before = datetime.min.replace(tzinfo=UTC)
    for number, text in enumerate(raw[:-1].split(b"\n"), start=1):
        try:
            line = _parsed_line(text, sum_before)
            event, buckets = line.event, line.buckets.tolist()
            if (event.number, event.before) != (number, head) or line.at < at_before:
                raise ValueError("its number, time and `before` do not follow from the line before")
            if not (shown.isdisjoint(buckets) and shown_leaves.isdisjoint(event.leaves)):
                raise ValueError("it shows again what was shown before")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = error if type(error) is ValueError else _NO_EVENT
            raise Refused(
                f"{path}, line {number}: {fault}; lines are only ever appended, by `brickscan claim`: {_BRING_BACK}"
            ) from None
        shown.update(buckets)
        shown_leaves.update(event.leaves)
        head, sum_before, at_before = event_head(event), line.sum, line.at
        yield line


def _parsed_line(text: bytes, sum_before: str) -> _Line:
    """Read a line. Raises ValueError, KeyError, TypeError, AttributeError: it is not one; no value of it is told."""
    fields = _strictly(text)
    if write_canonical(fields) != text:
        raise ValueError("it is not canonical JSON (RFC 8785)")
    if set(fields) != _FIELDS or set(fields["event"]) != {*ShownEvent._fields}:
        raise ValueError(_NO_EVENT)
    if fields.pop("sum") != (sum_after := _sum_after(sum_before, fields)):
        raise ValueError("its sum does not follow from it and the line before: it was changed, or is of another key")
    event = ShownEvent(**fields["event"] | {"leaves": tuple(fields["event"]["leaves"])})
    buckets = fields["buckets"]
    if buckets != sorted({*buckets}) or list(event.leaves) != sorted({*event.leaves}):
        raise ValueError("its buckets and leaves do not stand in ascending order, each once")
    if len(buckets) != len(event.leaves) or any(type(bucket) is not int for bucket in buckets):
        raise ValueError("it has not a leaf for each bucket")
    hexes = [(leaf, _HASH_BYTES) for leaf in event.leaves] + [(event.text, _HASH_BYTES), (fields["salt"], _SALT_BYTES)]
    if any(bytes.fromhex(value).hex() != value or len(value) != 2 * size for value, size in hexes):
        raise ValueError("a hash or the salt has another length")
    at = datetime.strptime(fields["at"], _AT).replace(tzinfo=UTC)
    words = str(fields["text_sha256"]), str(fields["unit"])
    return _Line(at, event, np.array(buckets, np.int64), bytes.fromhex(fields["salt"]), *words, sum_after)


def _strictly(text: bytes) -> Any:  # noqa: ANN401
    try:
        return read_strictly(text)
    except ValueError:
        raise ValueError("it is no JSON") from None  # the reader's own words could hold parts of the line

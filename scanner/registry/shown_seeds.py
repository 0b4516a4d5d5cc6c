"""Keep a record of the seeds of version 3 keys that claims have shown: shown/KEY.jsonl in a registry (SPEC_3 §5).

A reader of a claim can mark the windows of its seeds for any user. So the buckets of shown seeds are no longer marked
or scored, and the key's registry keeps a list of them. Each line of the file is one event, in canonical JSON (RFC
8785):

    {"at": time, "buckets": [...], "event": {"before", "leaves", "line", "number", "text"}, "salt": hex,
     "text_sha256": hex}

- at: when the line was written (UTC, to the second), never earlier than the line before.
- text_sha256: SHA-256 of the text. An erasure uses it to tell which claims it cannot take back.
- event: the only public part. It names leaves and never buckets, because the text could be rebuilt from buckets.
  - text: SHA-256(salt ‖ text).
  - line: SHA-256(salt ‖ the line without `salt` and `line`, with the SHA-256 of the key's record as `record`). So each
    edit shows, and one that fits gives another head, and heads are published. The salt keeps buckets from being tried.
  - before: SHA-256 of the previous event, 64 zeros in the first one.

Event and buckets are in the same line, so a crash cannot separate them.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.printable import counted
from scanner.storage.canonical_json import read_strictly, write_canonical
from scanner.storage.locations import (
    filesystem_of,
    is_uri,
    make_private,
    read_named,
    writable_by_others,
    write_whole,
)
from schemas.key_record import MOST_SEEDS
from schemas.registry import MasterKey, Registry

SHOWN_FOLDER = "shown"

FIRST_HEAD = "0" * 64
"""Head of a key without any shown seeds."""

MOST_BYTES = 2**29
"""Most bytes of a key's file: some 6,000 events of 1,000 seeds. After that, few positions are left to score."""

_HASH_BYTES, _SALT_BYTES = 32, 16
_ROOT = 0
_AT = "%Y-%m-%dT%H:%M:%SZ"
_FIELDS = {"at", "buckets", "event", "salt", "text_sha256"}
_BRING_BACK = "restore the file from the newest copy of the registry, without which the key neither scans nor marks"
_NO_EVENT = "it does not have the fields of an event"


class EventsUnreadable(Refused):
    """The system does not read the events of a key now. It may do so a minute later."""


class ShownEvent(NamedTuple):
    """The public part of one showing of seeds.

    number: of the event, from 1.
    before: SHA-256 of the previous event, as hex. 64 zeros in the first event.
    text: SHA-256 of the salt and the text, as hex.
    line: SHA-256 of the salt and what the registry has of the event, such as its buckets, as hex.
    leaves: leaves of the buckets that it shows for the first time, as hex, ascending. Empty where all were shown
        before.
    """

    number: int
    before: str
    text: str
    line: str
    leaves: tuple[str, ...]


def event_bytes(event: ShownEvent) -> bytes:
    """Return an event as it is published: canonical JSON. The next event contains its SHA-256."""
    return write_canonical(event._asdict())


def event_head(event: ShownEvent) -> str:
    """Return the SHA-256 of an event, as hex."""
    return hashlib.sha256(event_bytes(event)).hexdigest()


class ShownUpTo(NamedTuple):
    """The last event of a key that a reader knows of.

    number: of that event. 0: nothing was shown.
    head: SHA-256 of that event, as hex.
    """

    number: int
    head: str


class ShownSeeds(NamedTuple):
    """All showings of one key. Its repr shows no bucket.

    events: all events, in order.
    newly: the buckets that each event showed for the first time, int64 arrays, ascending.
    """

    events: tuple[ShownEvent, ...] = ()
    newly: tuple[NDArray[np.int64], ...] = ()

    def __repr__(self) -> str:
        return f"ShownSeeds(number={self.number}, head={self.head!r}, …)"

    @property
    def number(self) -> int:
        """Return the number of the last event. 0: nothing was shown."""
        return len(self.events)

    @property
    def head(self) -> str:
        """Return the SHA-256 of the last event, as hex. 64 zeros: nothing was shown."""
        return event_head(self.events[-1]) if self.events else FIRST_HEAD

    @property
    def last(self) -> ShownUpTo:
        """Return number and head."""
        return ShownUpTo(self.number, self.head)

    @property
    def buckets(self) -> NDArray[np.int64]:
        """Return all shown buckets, int64, ascending."""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *self.newly]))

    @property
    def leaves(self) -> frozenset[bytes]:
        """Return the leaves of all shown buckets, 32 bytes each."""
        return frozenset(bytes.fromhex(leaf) for event in self.events for leaf in event.leaves)

    def up_to(self, number: int) -> "ShownSeeds":
        """Return the showings up to and including the event of that number. 0: none.

        Raises:
            ValueError: there is no such event.
        """
        if not 0 <= number <= self.number:
            raise ValueError(f"there is no event {number}, only {self.number} in all")
        return ShownSeeds(self.events[:number], self.newly[:number])


class _Line(NamedTuple):
    """A line of the file. Its repr shows only its number."""

    at: datetime
    event: ShownEvent
    buckets: NDArray[np.int64]
    salt: bytes
    text_sha256: str

    def __repr__(self) -> str:
        return f"_Line({self.event.number}, …)"


def shown_path(folder: Path | str, key_id: str) -> str:
    """Return the path or URI of the file with the shown seeds of a key."""
    return f"{folder}/{SHOWN_FOLDER}/{key_id}.jsonl"


def read_shown(folder: Path | str, key: MasterKey) -> ShownSeeds:
    """Read the shown seeds of a key. Without a file, nothing was shown.

    Args:
        folder: the registry's folder, or a URI.
        key: the key.

    Raises:
        Refused: the file cannot be read, belongs to another key, or a line was changed. The message names file and
            line.
    """
    lines = _read_lines(folder, key)[1]
    return ShownSeeds(tuple(line.event for line in lines), tuple(line.buckets for line in lines))


def read_event(folder: Path | str, key: MasterKey, number: int) -> tuple[ShownEvent, bytes]:
    """Return the event of that number, and its salt of 16 bytes. Raises as `read_shown`."""
    line = _read_lines(folder, key)[1][number - 1]
    return line.event, line.salt


def find_events(folder: Path | str, key: MasterKey, text: bytes) -> list[int]:
    """Return the numbers of the events of all claims about a text, in UTF-8. Raises as `read_shown`."""
    lines = _read_lines(folder, key)[1]
    return [line.event.number for line in lines if line.event.text == _text_digest(line.salt, text)]


def shown_then(folder: Path | str, key: MasterKey, then: ShownUpTo | None = None) -> ShownSeeds:
    """Read the seeds of a key that were shown by a given event. Nothing for a key whose seeds are never shown.

    Args:
        folder: the registry's folder, or a URI.
        key: the key.
        then: the last event to include. None: all that are on record now.

    Raises:
        Refused: as `read_shown`, or the event is not on record because an older registry was put back.
    """
    shown = shown_since(folder, key, then)
    return shown if then is None else shown.up_to(then.number)


def shown_since(folder: Path | str, key: MasterKey, then: ShownUpTo | None) -> ShownSeeds:
    """Read all shown seeds of a key, and check that a known event is among them.

    Nothing for a key whose seeds are never shown.

    Args:
        folder: the registry's folder, or a URI.
        key: the key.
        then: the known event. None: no event is known.

    Raises:
        Refused: as `read_shown`, or the event is not on record because an older registry was put back.
    """
    if key.record is None:
        return ShownSeeds()
    shown = read_shown(folder, key)
    if then is not None and (then.number > shown.number or shown.up_to(then.number).head != then.head):
        raise Refused(
            f"{shown_path(folder, key.key_id)}: lacks event {then.number} of key {key.key_id!r}, which a scan, a "
            "server, a list or a claim has: this is an older registry or a different one. The missing seeds are "
            f"public and would be scored as if they were secret; {_BRING_BACK}"
        )
    return shown


class ClaimOfText(NamedTuple):
    """An earlier claim about a text, as the registry has it.

    key_id: of the key.
    number: of its event.
    at: when the event was written.
    """

    key_id: str
    number: int
    at: datetime


def claims_by_text(folder: Path | str, keys: Iterable[MasterKey]) -> dict[str, list[ClaimOfText]]:
    """Return the claims made under keys, by the SHA-256 of their text, as hex. Raises as `read_shown`."""
    found: dict[str, list[ClaimOfText]] = {}
    for key in keys:
        for line in _read_lines(folder, key)[1] if key.record is not None else ():
            found.setdefault(line.text_sha256, []).append(ClaimOfText(key.key_id, line.event.number, line.at))
    return found


def shown_now(folder: Path | str, keys: Iterable[MasterKey]) -> tuple[tuple[str, ShownUpTo], ...]:
    """Return the last event of each key whose seeds can be shown, with the key's id. Raises as `read_shown`."""
    return tuple((key.key_id, read_shown(folder, key).last) for key in keys if key.record is not None)


def refuse_above_cap(folder: Path | str, key: MasterKey, most_a_month: int, at: datetime | None = None) -> None:
    """Refuse when the month has no room for another event that shows seeds of a key.

    Months are calendar months in UTC. Events that show nothing new do not count. Raises as `read_shown` too.

    at: a time in the month, with a zone. Now by default.

    Raises:
        Refused: the month already has `most_a_month` such events.
    """
    lines = _read_lines(folder, key)[1]
    at = _time_after(lines, at)
    in_month = [line for line in lines if (line.at.year, line.at.month) == (at.year, at.month)]
    had = sum(len(line.buckets) > 0 for line in in_month)
    if had >= most_a_month:
        raise Refused(
            f"key {key.key_id!r}: {counted(had, 'claim')} showed seeds of it in {at:%B %Y} (UTC), and scan.toml allows "
            f"{most_a_month:,} a month (claims.most_a_month): wait for the next month, or raise the number. `brickscan "
            "replay --proof` writes a claim for a holder of the key's secret, and shows no seeds"
        )


def _time_after(lines: Sequence[_Line], at: datetime | None) -> datetime:
    """Return a time in UTC, now by default, or that of the last line if it is later.

    So a clock that was set back does not start a full month again.
    """
    time = (at or datetime.now(UTC)).astimezone(UTC).replace(microsecond=0)
    return max([time, *(line.at for line in lines[-1:])])


def append_event(
    folder: Path | str,
    key_id: str,
    text: bytes,
    buckets: Sequence[int],
    leaves: Sequence[bytes],
    *,
    known: ShownUpTo | None = None,
    keys: Sequence[MasterKey] | None = None,
    at: datetime | None = None,
) -> tuple[ShownEvent, bytes]:
    """Record that a claim shows seeds. This comes before the claim is written: its seeds are then never used again.

    Args:
        folder: the registry's local folder. Its lock is held meanwhile.
        key_id: of the key.
        text: the whole text, in UTF-8.
        buckets: all buckets that positions of the claim use, also those that were shown before.
        leaves: the leaves of the buckets, in the same order, 32 bytes each.
        known: the last event when the claim was computed. None: it does not matter.
        keys: of the registry when the claim was computed. None: they do not matter.
        at: a time with a zone, now by default. If the last event is later, its time is used.

    Returns:
        The event.
        Its salt of 16 bytes.

    Raises:
        Refused: as `shown_since`, or the key has no public record, another claim was made since `known`, the keys
            are not `keys`, or the file cannot be written.
        ValueError: buckets and leaves do not belong together, or are out of range.
    """
    # imported late, because servers that mark only read, and do not ship these modules
    from scanner.registry.keys_file import find_key, load_registry, local_folder, locked

    folder = local_folder(folder)
    load_registry(folder)  # refuse before a lock file is made in a folder that is no registry
    with locked(folder):
        registry = load_registry(folder)
        key = find_key(registry, key_id)
        if keys is not None:
            refuse_changed_keys(registry, keys)
        shown_since(folder, key, known)
        raw, lines = _read_lines(folder, key)
        if known is not None and known.number < len(lines):
            raise Refused(
                f"key {key_id!r}: another claim was made in the meantime, and its seeds count less in this one, so no "
                "seeds are shown; run this again"
            )
        time = _time_after(lines, at)
        newly = _newly_shown(lines, buckets, leaves)
        salt = secrets.token_bytes(_SALT_BYTES)
        before = event_head(lines[-1].event) if lines else FIRST_HEAD
        leaves_shown = tuple(sorted(leaf.hex() for leaf in newly.values()))
        event = ShownEvent(len(lines) + 1, before, _text_digest(salt, text), "", leaves_shown)
        fields = {
            "at": f"{time:{_AT}}",
            "buckets": sorted(newly),
            "event": event._asdict(),
            "salt": salt.hex(),
            "text_sha256": hashlib.sha256(text).hexdigest(),
        }
        event = event._replace(line=_line_digest(salt, fields, str(key.record)))
        added = write_canonical(fields | {"event": event._asdict()})
        if len(raw) + len(added) >= MOST_BYTES:
            raise Refused(f"key {key_id!r}: so much of it was shown that no more can be recorded; mark with a new key")
        _write_private(Path(shown_path(folder, key_id)), raw + added + b"\n")
    return event, salt


def refuse_changed_keys(registry: Registry, keys: Sequence[MasterKey]) -> None:
    """Refuse a claim whose p counts other keys than the registry has.

    Args:
        registry: the registry as it is now.
        keys: of the registry when the claim was computed.

    Raises:
        Refused: keys were made or changed in the meantime.
    """
    if registry.keys != keys:
        raise Refused(
            "keys of the registry changed in the meantime, and p counts them all, so no seeds are shown; run this again"
        )


def _newly_shown(lines: Sequence[_Line], buckets: Sequence[int], leaves: Sequence[bytes]) -> dict[int, bytes]:
    """Return the leaves of the buckets that were not shown before.

    Raises:
        ValueError: buckets and leaves do not belong together, or are out of range.
    """
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
        raise ValueError("a leaf differs from the one shown for its bucket before")
    return {bucket: leaf for bucket, leaf in of_buckets.items() if bucket not in shown}


def _write_private(path: Path, content: bytes) -> None:
    def write(file: Any) -> None:  # noqa: ANN401 - a binary file
        # the umask decides for the group, and a person who changed it
        mode = os.stat(path if path.exists() else file.fileno()).st_mode
        os.fchmod(file.fileno(), stat.S_IMODE(mode) & ~stat.S_IRWXO)
        with suppress(OSError):  # of a network drive
            os.fchown(file.fileno(), *user)
        file.write(content)

    try:
        user = _user_of(path)
        make_private(path.parent)
        if path.parent.lstat().st_uid == _ROOT:
            with suppress(OSError):
                os.lchown(path.parent, *user)  # of a link itself, never of the folder that it leads to
        write_whole(Path(os.path.realpath(path)), write)  # the real path, so that a link in its place stays a link
    except OSError as error:
        raise Refused(f"{path}: cannot be written ({error.strerror}); mount the registry so that it can") from None


def _user_of(path: Path) -> tuple[int, int]:
    """Return to whom root gives what it makes, by the numbers of user and group. -1, -1: to nobody.

    Otherwise, no reader of the registry's user could go on. The registry's folder can be root's, as a volume is, and
    the folder of the file a link to another user's.
    """
    if os.geteuid() == _ROOT:
        registry = path.parent.parent
        for one in (path, path.parent, registry / "keys.toml", registry):
            if one.exists() and (found := one.stat()).st_uid != _ROOT:
                return found.st_uid, found.st_gid
    return -1, -1


def _text_digest(salt: bytes, text: bytes) -> str:
    return hashlib.sha256(salt + text).hexdigest()


def _line_digest(salt: bytes, fields: dict[str, Any], record: str) -> str:
    event = {name: value for name, value in fields["event"].items() if name != "line"}
    others = {name: value for name, value in fields.items() if name != "salt"}
    return hashlib.sha256(salt + write_canonical(others | {"event": event, "record": record})).hexdigest()


def _read_lines(folder: Path | str, key: MasterKey) -> tuple[bytes, list[_Line]]:
    """Read the file of a key as bytes and as lines.

    Raises:
        Refused: as `read_shown`, or the key has no public record.
    """
    path = shown_path(folder, key.key_id)
    if key.record is None:
        raise Refused(
            f"key {key.key_id!r} has no public record: only keys of version 3 have seeds that claims can show"
        )
    raw = _read(path)
    return (b"", []) if raw is None else (raw, [*_parsed(path, raw, key.record)])


def _read(path: str) -> bytes | None:
    try:
        if not is_uri(path):
            _refuse_writable(Path(path))
            return read_named(path, MOST_BYTES)
        filesystem, inner = filesystem_of(path)
        with filesystem.open_input_file(inner) as file:
            return bytes(file.read())
    except FileNotFoundError:
        if any(os.path.islink(one) and not os.path.exists(one) for one in (path, os.path.dirname(path))):
            raise Refused(f"{path}: a link leads nowhere, perhaps because a volume is not mounted; mount it") from None
        return None
    except OSError as error:
        advice = "let this user read it" if isinstance(error, PermissionError) else _BRING_BACK
        raise EventsUnreadable(
            f"{path}: cannot be read ({error.strerror or error}), but it says which seeds of the key are public; "
            f"{advice}"
        ) from None


def _refuse_writable(path: Path) -> None:
    """Refuse a file that other users of this machine can change or delete, so that public seeds count as secret."""
    open_to = writable_by_others([path, path.parent])  # the folder too, because the file can be a link out of it
    if open_to is not None:
        mode = f"{stat.S_IMODE(open_to.stat().st_mode):04o}"
        raise Refused(
            f"{path}: others can write {open_to} (mode {mode}), and so change which seeds of the key count as public; "
            f"remove that permission (chmod o-w {open_to})"
        )


def _parsed(path: str, raw: bytes, record: str) -> Iterator[_Line]:
    """Yield the lines of a file, checking each against the line before. record: SHA-256 of the key's record."""
    if not raw.endswith(b"\n"):
        raise Refused(f"{path}: its last line has no end; {_BRING_BACK}")
    head, shown, shown_leaves = FIRST_HEAD, set[int](), set[str]()
    at_before = datetime.min.replace(tzinfo=UTC)
    for number, text in enumerate(raw[:-1].split(b"\n"), start=1):
        try:
            line = _parsed_line(text, record)
            event, buckets = line.event, line.buckets.tolist()
            if (event.number, event.before) != (number, head) or line.at < at_before:
                raise ValueError("its number, time and `before` do not follow from the line before")
            if not (shown.isdisjoint(buckets) and shown_leaves.isdisjoint(event.leaves)):
                raise ValueError("it shows seeds that were shown before")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = error if type(error) is ValueError else _NO_EVENT
            raise Refused(
                f"{path}, line {number}: {fault}, but lines are only ever appended, by `brickscan claim`; {_BRING_BACK}"
            ) from None
        shown.update(buckets)
        shown_leaves.update(event.leaves)
        head, at_before = event_head(event), line.at
        yield line


def _parsed_line(text: bytes, record: str) -> _Line:
    """Read a line. record: SHA-256 of the key's record.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is not a valid line. The message repeats none of its values.
    """
    fields = _read_canonical(text)
    if set(fields) != _FIELDS or set(fields["event"]) != {*ShownEvent._fields}:
        raise ValueError(_NO_EVENT)
    event = ShownEvent(**fields["event"] | {"leaves": tuple(fields["event"]["leaves"])})
    buckets = fields["buckets"]
    if buckets != sorted({*buckets}) or list(event.leaves) != sorted({*event.leaves}):
        raise ValueError("its buckets and leaves are not in ascending order, each once")
    if len(buckets) != len(event.leaves) or any(type(bucket) is not int for bucket in buckets):
        raise ValueError("it does not have a leaf for each bucket")
    hexes = [(value, _HASH_BYTES) for value in (*event.leaves, event.text)] + [(fields["salt"], _SALT_BYTES)]
    if any(bytes.fromhex(value).hex() != value or len(value) != 2 * size for value, size in hexes):
        raise ValueError("a hash or the salt has the wrong length")
    salt = bytes.fromhex(fields["salt"])
    if event.line != _line_digest(salt, fields, record):
        raise ValueError("its digest does not match it: it was changed, or belongs to another key")
    at = datetime.strptime(fields["at"], _AT).replace(tzinfo=UTC)
    return _Line(at, event, np.array(buckets, np.int64), salt, str(fields["text_sha256"]))


def _read_canonical(text: bytes) -> Any:  # noqa: ANN401
    with suppress(ValueError, RecursionError):  # their messages could quote parts of the line
        fields = read_strictly(text)
        if write_canonical(fields) == text:
            return fields
    raise ValueError("it is not canonical JSON (RFC 8785)")

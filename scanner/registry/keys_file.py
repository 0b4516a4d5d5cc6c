"""Read and write the files of a registry's keys: keys.toml, and the list of published commitments.

keys.toml survives a crash and concurrent writers. Only one process writes at a time, and a reader sees either the old
text or the new text.

The list of published commitments is a text file to which lines are only appended. Its lines have running numbers and
chained digests:

    number day key_id commitment messages tokenizer record shown dealt head
    head = SHA-256("brickscan commitments 5" line feed, head of the line before (64 zeros before the first) line feed,
                   number day key_id commitment messages tokenizer record shown dealt)

- messages: how many messages the key has.
- tokenizer: SHA-256 of its tokenizer.json.
- record: SHA-256 of its public record, or "-" for a format without records.
- shown: number of the last event by which a claim showed seeds of the key, a colon and that event's SHA-256. "-" if
  nothing was shown.
- dealt: how many events the messages of the key have (given and removed), a colon and the root of a tree over their
  records, which reveals no user (scanner.registry.dealt). "-" if no message was given.

When one of these values changes, the key gets another line. So the list reveals a claim of fewer messages or events, of
another tokenizer or record, or of a message that was given later.

A person with a copy of the list, or only its last head, can tell whether a later list still begins with it. Changing
or removing a line in the middle breaks the chain. If lines at the end are removed, only those who saw them notice.
"""

import fcntl
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import tomli_w
from pydantic import ValidationError

from scanner.errors import Refused
from scanner.registry.secrets import read_secret
from scanner.storage.locations import MOST_LIST, filesystem_of, is_uri, read_named, writable_by_others, write_whole
from scanner.storage.toml import digest, explain_error, read_toml, read_toml_text
from schemas.registry import MasterKey, Registry

if TYPE_CHECKING:
    from scanner.watermark import Format

USERS_FOLDER = "users"
"""Folder of the users table in a registry."""


def read_far(uri: str) -> str:
    """Read the text of a file on another machine.

    Raises:
        Refused: it does not exist or cannot be read.
    """
    filesystem, path = filesystem_of(uri)
    try:
        with filesystem.open_input_file(path) as file:
            return str(file.read().decode("utf-8"))
    except FileNotFoundError:
        raise Refused(f"registry: {uri} does not exist; make it with `brickscan keys new` and copy it there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"registry: {uri} cannot be read: {error}") from None


def local_folder(folder: Path | str) -> Path:
    """Return the local folder of a registry, where its keys can be changed.

    Raises:
        Refused: it is on another machine, where no lock can be held, or it is a file.
    """
    refuse_file(folder)
    if is_uri(folder):
        raise Refused(
            f"registry {folder}: keys are made and changed in a local folder; change the local one and copy its "
            "keys.toml to this registry"
        )
    return Path(folder)


def refuse_file(folder: Path | str) -> None:
    """Raise Refused if the path of a registry leads to something other than a folder."""
    if not is_uri(folder) and os.path.lexists(folder) and not os.path.isdir(folder):
        raise Refused(f"registry {folder}: is not a folder; name the folder that `brickscan keys new` made")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder while other processes wait. If the holder dies, the operating system frees it.

    Raises:
        Refused: the folder cannot be written, for example because the registry is mounted read-only.
    """
    with ExitStack() as held:
        try:
            lock = held.enter_context((folder / ".lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise Refused(
                f"{folder}: cannot be locked ({error.strerror}), so nothing was changed; make sure that "
                f"{folder / '.lock'} can be written"
            ) from None
        yield


KEYS_FILE = "keys.toml"

_HEADER = """\
# The master keys of this registry, written by `brickscan keys`: where each secret lives, never the secret itself.
# Published commitments and marked texts depend on every value here. Moving a secret or a tokenizer file: edit its path.

"""


def load_registry(folder: Path | str) -> Registry:
    """Read the keys of a registry.

    Raises:
        Refused: there is no registry, others can change it, or its keys.toml holds a value that is not allowed. The
            message names file, field and value.
    """
    refuse_file(folder)
    path = f"{folder}/{KEYS_FILE}" if is_uri(folder) else Path(folder) / KEYS_FILE
    if isinstance(path, Path):
        _refuse_writable(path.parent)
    if isinstance(path, str):
        registry = read_toml_text(path, read_far(path), Registry)
    elif path.is_file():
        registry = read_toml(path, Registry)
    else:
        fault = f"holds no {KEYS_FILE}" if path.parent.is_dir() else "is not a folder; check the path"
        raise Refused(f"registry {folder}: {fault}; make its first key with `brickscan keys new`")
    weighted = any(key.one_of is not None for key in registry.keys)
    for number, key in enumerate(registry.keys):
        try:
            _check_beacon(key, checked_format(key))
            if weighted and key.one_of is None and gives_p_values(key):
                raise ValueError("has no weight (one_of), but other keys have one; add keys only with `brickscan keys`")
        except ValidationError as error:
            raise Refused(f"{path}: {explain_error(error, model_of(key), f'keys.{number}.parameters.')}") from None
        except ValueError as error:
            raise Refused(f"{path}: keys.{number}: {error}") from None
    return registry


def _check_beacon(key: MasterKey, made_for: "Format") -> None:
    """Check that R of a key follows from its record and the beacon's value.

    Raises:
        ValueError: it does not, because one of them was edited.
    """
    from scanner.watermark.format import DrawsFromSeeds

    if not isinstance(made_for, DrawsFromSeeds):
        if key.record is not None or key.beacon_value is not None:
            raise ValueError(f"record and beacon_value are only for formats with seeds, and {made_for.name!r} has none")
        return
    if key.record is None:
        raise ValueError("has no record, which fixes its seeds; make such keys with `brickscan keys new`")
    if not key.waits_for_beacon and made_for.beacon != beacon_of_key(key):
        raise ValueError(
            "beacon does not follow from record and beacon_value: one of them was edited; restore the original"
        )


def beacon_of_key(key: MasterKey) -> str:
    """Return R of a key with a record, as hex, from the beacon's value on record."""
    from scanner.watermark.native.secret import beacon_of_digest  # late: it needs arrays, though not numba

    return beacon_of_digest(bytes.fromhex(key.record or ""), bytes.fromhex(key.beacon_value or "")).hex()


def gives_p_values(key: MasterKey) -> bool:
    """Return whether the format of the key has a law."""
    from scanner.watermark.formats import format_of

    return format_of(key).law() is not None


def checked_format(key: MasterKey) -> "Format":
    """Return the format of a key, checked against the key's parameters and messages.

    Raises:
        ValueError: there is no such format, or the format cannot have so many messages.
        ValidationError: a parameter is not valid. It is a ValueError too.
    """
    from scanner.watermark.formats import format_of

    made_for = format_of(key)
    made_for.check_messages(key.messages)
    return made_for


def model_of(key: MasterKey) -> "type[Format]":
    """Return the class of the format of a key."""
    from scanner.watermark.formats import FORMATS

    return FORMATS[key.format]


def _refuse_writable(folder: Path) -> None:
    """Refuse a registry that other users of this machine can change: they could add keys or change names."""
    path = writable_by_others([folder / KEYS_FILE, folder / USERS_FOLDER])
    if path is not None:
        raise Refused(
            f"registry {folder}: others can write {path} (mode {stat.S_IMODE(path.stat().st_mode):04o}), and so "
            f"change its keys or users; remove that permission (chmod o-w {path}) or move the registry"
        )


def find_key(registry: Registry, key_id: str) -> MasterKey:
    """Return the key with that id.

    Raises:
        Refused: the registry has no such key. The message names the keys it has.
    """
    for key in registry.keys:
        if key.key_id == key_id:
            return key
    ids = ", ".join(key.key_id for key in registry.keys) or "none yet"
    raise Refused(f"key {key_id!r} is not in the registry; its keys: {ids}")


_NOT_IN_DIGEST = ("one_of", "held_by", "record", "beacon_value")
"""Fields of a key that the digest leaves out when they are null."""


def audit_secret_of(folder: Path | str, registry: Registry) -> str:
    """Return the reference to a registry's audit secret.

    It draws the decoys, tells texts apart in rows of verdicts, and signs the tables of results.

    Raises:
        Refused: the registry has none.
    """
    if registry.audit_secret is None:
        raise Refused(
            f"registry {str(folder)!r} has no audit secret, which signs tables and tells texts apart; make it with "
            f"`brickscan keys audit-secret --registry {folder}`, or restore the registry that had one"
        )
    return registry.audit_secret


def read_audit_secret(folder: Path | str) -> bytes:
    """Read a registry's audit secret.

    Raises:
        Refused: there is no registry, or it has no audit secret.
        SecretError: the secret cannot be read.
    """
    return read_secret(audit_secret_of(folder, load_registry(folder)), folder)


def lasting_secret_of(folder: Path | str, registry: Registry) -> str:
    """Return the reference to a registry's first audit secret. Raises as `audit_secret_of`."""
    return registry.lasting_secret or audit_secret_of(folder, registry)


def read_lasting_secret(folder: Path | str) -> bytes:
    """Read a registry's first audit secret. Raises as `read_audit_secret`."""
    return read_secret(lasting_secret_of(folder, load_registry(folder)), folder)


def registry_sha256(registry: Registry) -> str:
    """Return a digest of everything on record about the keys, as hex. Registries with equal digests are equal."""
    from scanner.watermark.formats import format_of

    null = {name for name in ("trial", "lasting_secret") if not getattr(registry, name)}
    fields = registry.model_dump(mode="json", exclude={"version", "keys", "canaries"} | null)
    keys = [
        key.model_dump(mode="json", exclude=_fields_not_in_digest(key)) | format_of(key).digest_fields()
        for key in registry.keys
    ]
    return digest(fields | {"keys": keys})


def _fields_not_in_digest(key: MasterKey) -> dict[str, Any]:
    """Return the fields of a key that the digest leaves out, in the form that pydantic takes."""
    names = ("format", "parameters", *(name for name in _NOT_IN_DIGEST if getattr(key, name) is None))
    usual = (
        {}
        if key.admission is None
        else {"filter": key.admission.filter is None, "dedup": key.admission.dedup == "ngram"}
    )
    return dict.fromkeys(names, True) | {"admission": {name for name, is_usual in usual.items() if is_usual}}


def change_registry(folder: Path | str, change: Callable[[Registry], Registry]) -> Registry:
    """Replace the record by the result of `change` under the folder's lock. Return the new record.

    Raises:
        Refused: there is no registry, it is not in a local folder, or `change` raised. Nothing was written.
    """
    folder = local_folder(folder)
    load_registry(folder)  # refuse before a lock file is made in a folder that is no registry
    with locked(folder):
        registry = change(load_registry(folder))
        write_registry(folder, registry)
    return registry


def write_registry(folder: Path, registry: Registry) -> None:
    """Write all of keys.toml. The caller holds the folder's lock."""
    text = _HEADER + tomli_w.dumps(registry.model_dump(exclude_none=True))
    write_whole(folder / KEYS_FILE, lambda file: file.write(text.encode()))


_FIRST_HEAD = "0" * 64
_TITLE = "brickscan commitments 5"
_NONE = "-"
_LINE = re.compile(
    r"([1-9][0-9]{0,19}) ([0-9]{4}-[0-9]{2}-[0-9]{2}) ([a-z0-9][a-z0-9._-]{0,63}) ([0-9a-f]{64}) ([1-9][0-9]{0,19}) "
    r"([0-9a-f]{64}) ([0-9a-f]{64}|-) ([1-9][0-9]{0,9}:[0-9a-f]{64}|-) ([1-9][0-9]{0,19}:[0-9a-f]{64}|-) ([0-9a-f]{64})"
)


class PublishedLine(NamedTuple):
    """A line of the list.

    number: running number.
    day: day on which it was added (UTC).
    key_id: id of the key.
    commitment: commitment of the key, as hex.
    messages: how many messages the key has.
    tokenizer: SHA-256 of the tokenizer.json, as hex.
    record: SHA-256 of the public record, as hex. "-": the key has none.
    shown: number of the last event that showed seeds, a colon and its SHA-256. "-": nothing was shown.
    dealt: how many events the messages of the key have, a colon and their root. "-": no message was given.
    head: head after the line, as hex.
    """

    number: int
    day: str
    key_id: str
    commitment: str
    messages: int
    tokenizer: str
    record: str
    shown: str
    dealt: str
    head: str


def read_published(path: Path) -> list[PublishedLine]:
    """Read the lines of a list and check their chain.

    Raises:
        Refused: it cannot be read, or a line was changed. The message names the line.
    """
    try:
        text = read_named(path, MOST_LIST).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'no ASCII'})") from None
    lines: list[PublishedLine] = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise Refused(
                f"{path}, line {number}: is not of the form `number day key commitment messages tokenizer record "
                "shown dealt head`; restore the list"
            )
        last_head = lines[-1].head if lines else _FIRST_HEAD
        if int(match[1]) != number or match[10] != _head(last_head, line.rpartition(" ")[0]):
            raise Refused(
                f"{path}, line {number}: number and head do not follow from the line before: lines were changed, "
                "moved or removed. Restore the list from a copy that others keep"
            )
        lines.append(PublishedLine(number, match[2], match[3], match[4], int(match[5]), *match.group(6, 7, 8, 9, 10)))
    return lines


def _head(last_head: str, body: str) -> str:
    return sha256(f"{_TITLE}\n{last_head}\n{body}".encode()).hexdigest()


def _committed_fields(folder: Path | str, key: MasterKey) -> tuple[str, int, str, str, str] | None:
    """Return the fields by which a line commits to a key: commitment, messages, tokenizer, record, shown.

    None: the key has no commitment.

    Raises:
        Refused: the shown seeds of the key cannot be read.
    """
    from scanner.registry.shown_seeds import read_shown  # late: that file imports this one

    if key.commitment is None:
        return None
    shown = None if key.record is None else read_shown(folder, key)
    last = f"{shown.number}:{shown.head}" if shown is not None and shown.number else _NONE
    return key.commitment, key.messages, key.tokenizer.sha256, key.record or _NONE, last


def _dealt(folder: Path | str, keys: Iterable[MasterKey], lines: Iterable[PublishedLine]) -> dict[str, str]:
    """Return the field `dealt` of keys, by their ids. Keys without given messages are left out.

    Raises:
        Refused: the registry's users do not match the lines, because an older registry was put back. It would give a
            message again that another user already has.
        ScanFailed: the users cannot be read.
    """
    from scanner.registry.dealt import Dealt, dealt_now  # late: they load libraries of tables, like the ledger

    key_ids = {key.commitment: key.key_id for key in keys}
    published = defaultdict[str, list[Dealt]](list)
    for line in lines:
        key_id = key_ids.get(line.commitment)
        if line.dealt == _NONE or key_id is None:
            continue
        if line.key_id != key_id:  # made again from its secret: it can find texts that were marked before
            raise Refused(
                f"key {key_id!r}: according to the list, messages of key {key_id!r} were given as those of key "
                f"{line.key_id!r}, and they would be given a second time, to other users: restore the registry that "
                f"has key {line.key_id!r}"
            )
        published[key_id].append(Dealt.of(line.dealt))
    return {key_id: str(dealt) for key_id, dealt in dealt_now(folder, published).items()}


def refuse_lost_heads(folder: Path | str, key: MasterKey, lines: Iterable[PublishedLine]) -> None:
    """Refuse a registry that lacks a published event by which seeds of a key were shown.

    Raises:
        Refused: an older registry was put back, or two registries showed seeds of one key.
    """
    from scanner.registry.shown_seeds import ShownUpTo, shown_since  # late: that file imports this one

    # whatever the record, because a key that was made again from its secret has the same seeds
    of_key = (line.shown for line in lines if line.commitment == key.commitment)
    stated = {shown.partition(":")[::2] for shown in of_key if shown != _NONE}
    last = max((int(number) for number, _ in stated), default=0)
    for number, head in stated:
        if int(number) == last:  # the chain of events makes the last one imply all before it
            shown_since(folder, key, ShownUpTo(last, head))


@contextmanager
def _list_locked(path: Path) -> Iterator[None]:
    """Hold the lock of a list while publishing. Other registries may publish to it too. A missing list is created.

    Raises:
        Refused: it cannot be written.
    """
    with ExitStack() as held:
        try:
            while True:
                list_file = held.enter_context(path.open("a"))
                fcntl.flock(list_file, fcntl.LOCK_EX)
                # otherwise another process replaced the file between open and lock
                if os.path.samestat(os.fstat(list_file.fileno()), path.stat()):
                    break
        except OSError as error:
            raise Refused(f"{path}: cannot be written ({error.strerror}); name another file") from None
        yield


def publish(folder: Path | str, path: Path) -> tuple[list[PublishedLine], int]:
    """Append the registry's commitments that a list lacks, in the order in which the keys were made.

    Args:
        folder: the registry's local folder. Its lock is held meanwhile.
        path: the list, which may hold keys of other registries too. The file is created if it does not exist.

    Returns:
        The whole list.
        How many of its last lines are new.

    Raises:
        Refused: as `read_published`, or the shown seeds of a key cannot be read or lack an event of the list, the users
            do not match the list, or the list cannot be written.
        ScanFailed: the users cannot be read.
    """
    folder = local_folder(folder)
    while True:
        keys, before = load_registry(folder).keys, read_published(path) if path.exists() else []
        dealt = _dealt(folder, keys, before)  # before the lock is taken, because it takes long
        with locked(folder), _list_locked(path):
            lines = read_published(path)
            ours, count = {key.commitment for key in keys}, len(lines)
            if lines[: len(before)] != before or any(line.commitment in ours for line in lines[len(before) :]):
                continue  # its users may be newer than these
            day = datetime.now(UTC).date().isoformat()
            published = {line[3:9] for line in lines}
            for key in keys:
                refuse_lost_heads(folder, key, lines)
                fields = _committed_fields(folder, key)
                if fields is not None and (*fields, dealt.get(key.key_id, _NONE)) not in published:
                    number, last = len(lines) + 1, lines[-1].head if lines else _FIRST_HEAD
                    body = number, day, key.key_id, *fields, dealt.get(key.key_id, _NONE)
                    lines.append(PublishedLine(*body, _head(last, " ".join(map(str, body)))))
            if len(lines) > count:
                _write_list(path, lines)
            return lines, len(lines) - count


def _write_list(path: Path, lines: Sequence[PublishedLine]) -> None:
    """Write a list in place of what a path leads to, with the same mode: whoever reads it there goes on reading it."""
    text, real = "".join(" ".join(map(str, line)) + "\n" for line in lines), Path(os.path.realpath(path))

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), stat.S_IMODE(real.stat().st_mode))
        file.write(text.encode())

    try:
        write_whole(real, write)
    except OSError as error:
        raise Refused(f"{path}: cannot be written ({error.strerror}); name another file") from None


def find_missing_keys(lines: Sequence[PublishedLine], folder: Path | str) -> list[str]:
    """Return the ids of the keys of a list that a registry lacks. They are of other registries, or are lost."""
    ours = {key.commitment for key in load_registry(folder).keys}
    return [*dict.fromkeys(line.key_id for line in lines if line.commitment not in ours)]


def faults(lines: Sequence[PublishedLine], earlier: Sequence[PublishedLine], folder: Path | str | None) -> list[str]:
    """Return sentences on faults of a list. It must begin with an earlier copy and hold the keys of a registry.

    Users who were added after the list was written are no fault.

    Args:
        lines: of the list.
        earlier: lines of a copy that was kept. Empty: there is none.
        folder: the registry's folder, or a URI. None: no registry is compared.

    Raises:
        Refused: the registry is none.
        ScanFailed: the users cannot be read.
    """
    changed = [
        f"line {old.number} of the earlier copy, of key {old.key_id}, is not in the list: the list was cut or started "
        "over"
        for old, new in zip(earlier, [*lines, *[None] * len(earlier)], strict=False)
        if old != new
    ][:1]
    published = {line[3:8] for line in lines}
    lacking = list[str]()
    if folder is not None:
        keys = load_registry(folder).keys
        lost = _lost(folder, keys, lines)
        if lost:
            return changed + lost
        lacking = [key.key_id for key in keys if _committed_fields(folder, key) not in {None, *published}]
    return changed + [
        f"key {key_id} of the registry, with its messages, tokenizer, record and shown seeds, is not in the list: "
        "`brickscan keys publish`"
        for key_id in lacking
    ]


def _lost(folder: Path | str, keys: Sequence[MasterKey], lines: Sequence[PublishedLine]) -> list[str]:
    """Return a sentence on each key whose shown seeds or users are not those of the list, or cannot be read."""
    lost = list[str]()
    for key in keys:  # all of them, because what is to be done with a key depends on what it lost
        with _added_to(lost):
            refuse_lost_heads(folder, key, lines)
    if not any(line.dealt != _NONE for line in lines):
        return lost
    try:
        _dealt(folder, keys, lines)
    except Refused:  # by one key, which reading all users once more for each key tells from the others
        for key in keys:
            with _added_to(lost):
                _dealt(folder, [key], lines)
    return lost


@contextmanager
def _added_to(faults: list[str]) -> Iterator[None]:
    """Add a refusal to a list of faults, and go on."""
    try:
        yield
    except Refused as refused:
        faults.append(str(refused))

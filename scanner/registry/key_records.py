"""Read and write public records of keys of version 3 and the kept nodes of their trees, in a registry (SPEC_3 §2).

    records/KEY.json    the record, byte for byte as it is to be published
    records/KEY.value   the value of the beacon that the record names, in hexadecimal, once it is set
    trees/KEY           the kept nodes of the tree over the key's seeds, 32 bytes each

keys.toml stores the record's SHA-256 and the beacon's value, so an edited record is noticed. R follows from the two.

These files are written before keys.toml. After a crash in between they belong to no key, and the next attempt writes
them anew. None of them is secret.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from scanner.errors import Refused
from scanner.registry.keys_file import beacon_of_key, change_registry, find_key, load_registry, local_folder
from scanner.storage.canonical_json import read_strictly, write_canonical
from scanner.storage.locations import list_files, make_private, read_named, write_whole
from scanner.storage.toml import explain_error
from schemas.key_record import KeyRecord, NamedBeacon, NormalFormDigest
from schemas.registry import MOST_VALUE_BYTES, MasterKey, Registry

RECORDS_FOLDER, TREES_FOLDER = "records", "trees"

MOST_RECORD = 2**23
"""Largest size of a record, in bytes."""

_HASH_BYTES = 32


class RecordTerms(NamedTuple):
    """A platform's decisions on a record when it makes a key.

    looks: share of the rate of each look, by name and version. The shares are at most 1 in all.
    normal_form: the second form in which texts are looked at. None: there is none.
    beacon: the beacon whose value will be hashed into R. None: there is none.
    """

    looks: Mapping[str, float]
    normal_form: NormalFormDigest | None = None
    beacon: NamedBeacon | None = None


ONE_LOOK = RecordTerms({"as written/1": 1.0})
"""Terms with one look: at texts as they are written."""


def record_path(folder: Path | str, key_id: str) -> Path:
    """Return the path of a key's record."""
    return Path(folder) / RECORDS_FOLDER / f"{key_id}.json"


def tree_path(folder: Path | str, key_id: str) -> Path:
    """Return the path of the kept nodes of a key's tree."""
    return Path(folder) / TREES_FOLDER / key_id


def _value_path(folder: Path | str, key_id: str) -> Path:
    return Path(folder) / RECORDS_FOLDER / f"{key_id}.value"


def record_bytes(record: KeyRecord) -> bytes:
    """Return the bytes of a record for publication: canonical JSON (RFC 8785)."""
    return write_canonical(record.model_dump(mode="json"))


def parse_record(raw: bytes) -> KeyRecord:
    """Read a record from its published bytes.

    Raises:
        ValueError: the bytes are too many, are no JSON, have a name twice, or lack a field, or have one that is unknown
            or not allowed.
    """
    if len(raw) > MOST_RECORD:
        raise ValueError(f"has {len(raw):,} bytes; {MOST_RECORD:,} are allowed")
    fields = read_strictly(raw)
    if isinstance(fields, dict) and isinstance(fields.get("earlier"), list):
        fields["earlier"] = tuple(fields["earlier"])
    try:
        return KeyRecord.model_validate(fields)
    except ValidationError as error:
        raise ValueError(explain_error(error, KeyRecord)) from None


def read_record(folder: Path | str, key: MasterKey) -> tuple[KeyRecord, bytes]:
    """Read the record of a key. Return it, and its bytes for publication.

    Raises:
        Refused: the key has no record, the record cannot be read, or it is not the one that was made with the key.
    """
    if key.record is None:
        raise Refused(f"key {key.key_id!r} has no public record: only keys of version 3 have one")
    path = record_path(folder, key.key_id)
    try:
        raw = read_named(path, MOST_RECORD)
    except OSError as error:
        raise Refused(
            f"{path}: cannot be read ({error.strerror}); restore the record from where it was published"
        ) from None
    found = hashlib.sha256(raw).hexdigest()
    if found != key.record:
        raise Refused(
            f"{path}: is not the record that was made with key {key.key_id!r}: its SHA-256 is {found[:16]}…, but "
            f"keys.toml has {key.record[:16]}…; restore it from where it was published"
        )
    try:
        record = parse_record(raw)
    except ValueError as error:
        raise Refused(f"{path}: {error}") from None
    of_key = key.commitment, key.tokenizer.sha256
    if (record.commitment, record.tokenizer_sha256) != of_key or record.messages > key.messages:  # they may grow
        raise Refused(
            f"{path}: commitment, tokenizer or messages of key {key.key_id!r} in keys.toml differ from the record; "
            "restore keys.toml"
        )
    return record, raw


def read_tree(folder: Path | str, key: MasterKey) -> list[bytes]:
    """Read the kept nodes of a key's tree, and check that they lead to the root in its record.

    Raises:
        Refused: as `read_record`. Or the nodes cannot be read, or lead to another root.
    """
    from scanner.watermark.native.tree import kept_count, root_of  # late: most commands hash nothing
    from schemas.key_record import parse_label

    record, _ = read_record(folder, key)
    path, size = tree_path(folder, key.key_id), _HASH_BYTES * kept_count(parse_label(record.label).seeds)
    try:
        raw = read_named(path, size)
    except OSError as error:
        raise Refused(f"{path}: cannot be read ({error.strerror}); restore it from a copy of the registry") from None
    nodes = [raw[i : i + _HASH_BYTES] for i in range(0, len(raw), _HASH_BYTES)]
    if len(raw) != size or root_of(nodes).hex() != record.root:
        raise Refused(f"{path}: does not lead to the root of the record; restore it from a copy of the registry")
    return nodes


def write_record(folder: Path, key: MasterKey, record: KeyRecord, kept: Sequence[bytes]) -> MasterKey:
    """Write a new key's record and the kept nodes of its tree. The caller holds the lock, and writes keys.toml next.

    Args:
        folder: the registry's folder.
        key: the key. keys.toml does not have it yet.
        record: the key's record.
        kept: nodes of 32 bytes.

    Returns:
        The key, with the record's SHA-256. If the record names no beacon, also with R.

    Raises:
        Refused: the files cannot be written. Or another record of a key with that id exists, and may be published.
    """
    raw, path = record_bytes(record), record_path(folder, key.key_id)
    parse_record(raw)
    try:
        if path.exists() and read_named(path, MOST_RECORD) != raw:
            raise Refused(
                f"{path}: is the record of another key with this id that is not in keys.toml. If an older keys.toml "
                "was restored, restore the newer one; otherwise choose another id, since records are never withdrawn"
            )
        for folder_of_keys in (path.parent, tree_path(folder, key.key_id).parent):
            make_private(folder_of_keys)
        write_whole(tree_path(folder, key.key_id), lambda file: file.write(b"".join(kept)))
        write_whole(path, lambda file: file.write(raw))
    except OSError as error:
        raise Refused(f"registry {folder}: cannot be written ({error.strerror}); mount it as writable") from None
    key = key.model_copy(update={"record": hashlib.sha256(raw).hexdigest()})
    return key if record.beacon is not None else _with_beacon(key, b"")


def delete_record(folder: Path, key_id: str) -> None:
    """Delete the files that `write_record` wrote for a key that was not made after all."""
    for path in (record_path(folder, key_id), tree_path(folder, key_id)):
        path.unlink(missing_ok=True)


def earlier_records(folder: Path, registry: Registry, new_id: str) -> tuple[str, ...]:
    """Return the SHA-256 of every record in a registry except that of a new key.

    Records of keys in keys.toml come first, in the order in which the keys were made. The other records are of keys
    that somebody removed from keys.toml. They count too: a record stays published when its key is given up.

    Raises:
        Refused: a record cannot be read.
    """
    of_keys = [key.record for key in registry.keys if key.record is not None]
    known = {record_path(folder, key.key_id) for key in registry.keys} | {record_path(folder, new_id)}
    given_up = [path for path in _record_files(folder) if path not in known]
    try:
        others = [hashlib.sha256(read_named(path, MOST_RECORD)).hexdigest() for path in given_up]
    except OSError as error:
        raise Refused(f"{folder / RECORDS_FOLDER}: a record cannot be read ({error.strerror})") from None
    return tuple(dict.fromkeys([*of_keys, *others]))


def refuse_same_root(folder: Path, new_id: str, root: str) -> None:
    """Refuse a new key with the root of another record, even if that record's key is not in keys.toml (SPEC_3 §2).

    Otherwise seeds that were shown under the other key would count as secret under the new one.

    Args:
        folder: the registry's folder.
        new_id: id of the new key. A record with this id is the new key's own, from an interrupted attempt.
        root: root of the new key's tree.

    Raises:
        Refused: another record has this root, or a record cannot be read.
    """
    own = record_path(folder, new_id)
    for path in (path for path in _record_files(folder) if path != own):
        try:
            same = root.encode() in read_named(path, MOST_RECORD)
        except OSError as error:
            raise Refused(f"{path}: cannot be read ({error.strerror})") from None
        if same:
            raise Refused(
                f"{path}: is the record of a key with the same secret and format, and claims may have shown its "
                "seeds. If an older keys.toml was restored, restore the newer one; otherwise make the key with a new "
                "secret"
            )


def _record_files(folder: Path) -> list[Path]:
    """Return the paths of all records in a registry. Raises Refused: the folder cannot be read."""
    try:
        return list_files(folder / RECORDS_FOLDER, ".json")
    except OSError as error:
        raise Refused(f"{folder / RECORDS_FOLDER}: cannot be read ({error.strerror})") from None


def set_beacon(folder: Path | str, key_id: str, value: bytes) -> MasterKey:
    """Set the value of the beacon that a key's record names, for good. R follows from it.

    Setting the same value again changes nothing.

    Args:
        folder: the registry's folder.
        key_id: id of the key.
        value: the beacon's bytes.

    Raises:
        Refused: the value is too short or too long. Or the key's record names no beacon, is missing or was edited. Or
            another value was set before.
    """
    if not 1 <= len(value) <= MOST_VALUE_BYTES:
        raise Refused(f"--value: {len(value)} bytes; 1 to {MOST_VALUE_BYTES:,} are allowed: the value of the round")
    folder = local_folder(folder)
    key = find_key(load_registry(folder), key_id)
    if key.beacon_value == value.hex():
        return key

    def in_place(registry: Registry) -> Registry:
        key = find_key(registry, key_id)
        record, _ = read_record(folder, key)
        if record.beacon is None:
            raise Refused(f"key {key_id!r}: its record names no beacon, so it cannot have a value")
        witness = _value_path(folder, key_id)
        found = key.beacon_value or _read_value(witness)
        if found not in (None, value.hex()):
            raise Refused(
                f"key {key_id!r}: a different value, {found}, was set for good (keys.toml, {witness}): text that was "
                "marked under it would not be found under this one"
            )
        try:
            write_whole(witness, lambda file: file.write(f"{value.hex()}\n".encode()))
        except OSError as error:
            raise Refused(f"{witness}: cannot be written ({error.strerror}); mount the registry as writable") from None
        new = _with_beacon(key, value)
        return registry.model_copy(update={"keys": tuple(new if one is key else one for one in registry.keys)})

    return find_key(change_registry(folder, in_place), key_id)


def _with_beacon(key: MasterKey, value: bytes) -> MasterKey:
    """Return a key with a beacon's value, and with R among the parameters of its format. Its record is known."""
    key = key.model_copy(update={"beacon_value": value.hex() or None})
    return key.model_copy(update={"parameters": {**key.parameters, "beacon": beacon_of_key(key)}})


def _read_value(path: Path) -> str | None:
    """Return the beacon's value from its file, if it was set before. None: there is no such file.

    Raises:
        Refused: the file cannot be read.
    """
    try:
        return read_named(path, 2 * MOST_VALUE_BYTES + 1).decode("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'no ASCII'})") from None

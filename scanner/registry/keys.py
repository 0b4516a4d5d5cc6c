"""The master keys of a registry: made, read, retired and opened. What is on record is in keys.toml, secrets are not."""

import hashlib
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from pydantic import ValidationError

from scanner.errors import Refused, SecretError, TokenizerError
from scanner.registry.locked_files import USERS_FOLDER, local_folder, locked, read_far
from scanner.registry.secrets import new_secret_file, read_secret, secret_path
from scanner.registry.weights import with_weights
from scanner.storage.canonical import digest
from scanner.storage.locations import is_uri
from scanner.storage.permissions import make_private, writable_by_others
from scanner.storage.toml import explained, read_toml, read_toml_text
from scanner.storage.whole import write_whole
from schemas.registry import Admission, Canaries, MasterKey, Registry, TokenizerFile

if TYPE_CHECKING:
    from scanner.watermark import Format, Watermark
    from scanner.watermark.opened import Held

KEYS_FILE = "keys.toml"
_DECOYS = "decoys.secret"
AUDIT_SECRET = f"file:secrets/{_DECOYS}"
"""Where the audit secret is made, unless the first key's own lies elsewhere."""

_HEADER = """\
# The master keys of this registry, written by `brickscan keys`: where each secret lives, never the secret itself.
# Published commitments and marked texts depend on every value here. Moving a secret or a tokenizer file: edit its path.

"""


def load_registry(folder: Path | str) -> Registry:
    """Read the keys of a registry.

    Raises:
        Refused: there is no registry, or its keys.toml holds something that is not allowed; names file, field, value.
            Others can change it.
    """
    path = f"{folder}/{KEYS_FILE}" if is_uri(folder) else Path(folder) / KEYS_FILE
    if isinstance(path, Path):
        _refuse_writable(path.parent)
    if isinstance(path, str):
        registry = read_toml_text(path, read_far(path), Registry)
    elif path.is_file():
        registry = read_toml(path, Registry)
    else:
        raise Refused(f"registry {folder}: holds no {KEYS_FILE}; make its first key with `brickscan keys new`")
    weighted = any(key.one_of is not None for key in registry.keys)
    for number, key in enumerate(registry.keys):
        try:
            _checked_format(key)
            if weighted and key.one_of is None and _gives_p_values(key):
                raise ValueError("has no weight (one_of), while others have; add keys with `brickscan keys` alone")
        except ValidationError as error:
            raise Refused(f"{path}: {explained(error, _model_of(key), f'keys.{number}.parameters.')}") from None
        except ValueError as error:
            raise Refused(f"{path}: keys.{number}: {error}") from None
    return registry


def _gives_p_values(key: MasterKey) -> bool:
    from scanner.watermark.formats import format_of

    return format_of(key).law() is not None


def _checked_format(key: MasterKey) -> "Format":
    """The format of a key, after a look at what it says of a key's parameters and messages.

    Raises:
        ValueError: no such format, or messages that it cannot have; ValidationError, which is one: a parameter.
    """
    from scanner.watermark.formats import format_of

    found = format_of(key)
    found.check_messages(key.messages)
    return found


def _model_of(key: MasterKey) -> "type[Format]":
    from scanner.watermark.formats import FORMATS

    return FORMATS[key.format]


def _refuse_writable(folder: Path) -> None:
    """Refuse a registry that others can change: they would put in their own keys, or name whom they like."""
    found = writable_by_others([folder / KEYS_FILE, folder / USERS_FOLDER])
    if found is not None:
        raise Refused(
            f"registry {folder}: others can write {found} (mode {stat.S_IMODE(found.stat().st_mode):04o}), and so "
            f"change its keys or users; take that right away (chmod o-w {found}) or put the registry elsewhere"
        )


def find_key(registry: Registry, key_id: str) -> MasterKey:
    """The key of that id.

    Raises:
        Refused: the registry has no such key; names those it has.
    """
    for key in registry.keys:
        if key.key_id == key_id:
            return key
    known = ", ".join(key.key_id for key in registry.keys) or "none yet"
    raise Refused(f"key {key_id!r} is not in the registry; its keys: {known}")


def registry_sha256(registry: Registry) -> str:
    """Digest of all that is on record about the keys, as hex text: equal digests, equal registries."""
    from scanner.watermark.formats import format_of

    whole = registry.model_dump(mode="json", exclude={"keys", "canaries"})
    keys = [
        key.model_dump(mode="json", exclude={"format", "parameters"} | ({"one_of"} if key.one_of is None else set()))
        | format_of(key).decides()
        for key in registry.keys
    ]
    return digest(whole | {"keys": keys})


def suggested_parameters(name: str) -> dict[str, Any]:
    """Parameters of a new key of a format, where nothing else is said; none of a format that is not known."""
    from scanner.watermark.formats import FORMATS

    return dict(FORMATS[name].suggested) if name in FORMATS else {}


def new_key(
    folder: Path | str,
    key_id: str,
    *,
    format: str,  # noqa: A002 - the key's own word
    messages: int,
    tokenizer: Path | str,
    secret: str | None = None,
    known: "Held[bytes] | None" = None,
    active_from: datetime | None = None,
    active_until: datetime | None = None,
    **parameters: object,
) -> MasterKey:
    """Add a master key to a registry, which is made when it is not there; the commitment to publish is in the result.

    Args:
        folder: of the registry.
        key_id: of the new key.
        format: one of scanner.watermark.formats.FORMATS.
        messages: M, how many messages the key has.
        tokenizer: a tokenizer.json. A relative path starts at the working folder or at the registry's folder.
        secret: `file:PATH` (a relative path starts at the registry's folder) or `env:NAME`; by default a file in the
            registry. A file that does not exist is made, with a new secret. So is, beside it, the audit secret of a
            registry that names none yet, where a file can be made there.
        known: the secret of a key that marks elsewhere already, for the file that is made; None: a new one is drawn.
        active_from: nothing is marked with it before, though users may get messages; a time with a zone, or None: now.
        active_until: nothing is marked with it from then on, though scans test it; None: until it is retired.
        parameters: of the format, such as window=4, gamma="1/4".

    Raises:
        Refused: a value out of range, an id in use, or a secret that a key of this registry already has; SecretError,
            TokenizerError. Nothing was written then.
    """
    folder = local_folder(folder)
    reference = f"file:secrets/{key_id}.key" if secret is None else secret
    key = _checked(
        key_id=key_id,
        format=format,
        parameters=parameters,
        messages=messages,
        tokenizer=TokenizerFile(file=os.fspath(tokenizer), sha256="0" * 64),
        secret=reference,
        created_at=datetime.now(UTC),
        active_from=active_from,
        active_until=active_until,
    )
    try:
        made_for = _checked_format(key)
    except ValidationError as error:
        raise Refused(_told(error)) from None
    except ValueError as error:
        raise Refused(str(error)) from None
    pinned = _pin_tokenizer(folder, os.fspath(tokenizer))
    # with the format's defaults, which then are on record
    key = key.model_copy(update={"tokenizer": pinned, "parameters": made_for.model_dump(exclude_none=True)})
    path = secret_path(reference, folder)
    if known is not None and (path is None or os.path.lexists(path)):
        raise Refused(f"secret {reference}: is there already, and the key is given too; name a file that is not there")
    if path is None or os.path.lexists(path):
        _read_secret_of(made_for, reference, folder)  # refuse before the first folder is made
    try:
        make_private(folder)
    except OSError as error:
        raise Refused(f"registry {folder}: cannot be made ({error.strerror}); name another folder") from None
    with locked(folder):
        registry = load_registry(folder) if (folder / KEYS_FILE).exists() else Registry()
        if any(key_id == other.key_id for other in registry.keys):
            raise Refused(f"key {key_id!r} is in the registry already; ids are never used again, choose another")
        made = path is not None and not os.path.lexists(path)
        key_bytes = (
            _new_secret(path, made_for, known)
            if made and path is not None
            else _read_secret_of(made_for, reference, folder)
        )
        try:
            _read_secret_of(made_for, reference, folder)  # as every scan will: it may be one that can be guessed
            _refuse_reuse(registry, folder, key_bytes)
            key = key.model_copy(update={"commitment": _commitment(key_bytes, made_for)})
            audit_secret = registry.audit_secret or _audit_secret_beside(folder, reference)
            keys = with_weights(registry.keys, key, _gives_p_values)
            _write(folder, registry.model_copy(update={"audit_secret": audit_secret, "keys": keys}))
            key = keys[-1]
        except BaseException:
            if made and path is not None:
                path.unlink()
            raise
    return key


def set_audit_secret(folder: Path | str, secret: str | None = None) -> str:
    """Name the secret that the audits of scans draw decoy keys from. Returns its reference.

    Args:
        folder: of the registry.
        secret: as for `new_key`.

    Raises:
        Refused: there is no registry, or the reference is none; SecretError: the secret cannot be read or made.
    """
    folder = local_folder(folder)
    load_registry(folder)
    with locked(folder):
        registry = load_registry(folder)
        reference = _audit_secret(folder, secret)
        _write(folder, registry.model_copy(update={"audit_secret": reference}))
    return reference


def set_canaries(folder: Path | str, canaries: Canaries) -> Canaries:
    """Record canaries beside those that were made before, which stay; the power is the new one. Returns all of them.

    Raises:
        Refused: there is no registry.
    """
    folder = local_folder(folder)
    load_registry(folder)
    with locked(folder):
        registry = load_registry(folder)
        before = registry.canaries.made if registry.canaries else ()
        made = tuple(dict.fromkeys((*before, *canaries.made)))
        found = canaries.model_copy(update={"made": made})
        _write(folder, registry.model_copy(update={"canaries": found}))
    return found


def _audit_secret_beside(folder: Path, reference: str) -> str | None:
    """An audit secret beside the file of a key's secret; none when that is in the environment or mounted read-only."""
    kind, _, file = reference.partition(":")
    if kind != "file":
        return None
    beside = f"file:{os.path.join(os.path.dirname(file), _DECOYS)}"
    try:
        return _audit_secret(folder, beside)
    except SecretError:
        path = secret_path(beside, folder)
        if path is not None and os.path.lexists(path):
            raise
        return None


def _audit_secret(folder: Path, secret: str | None) -> str:
    """A reference to a secret that is there; a file that does not exist is made."""
    reference = AUDIT_SECRET if secret is None else secret
    try:
        Registry(audit_secret=reference)
    except ValidationError:
        raise Refused("audit secret: a reference is needed, 'file:PATH' or 'env:NAME', not the secret itself") from None
    path = secret_path(reference, folder)
    if path is None or os.path.lexists(path):
        read_secret(reference, folder)
    else:
        new_secret_file(path)
    return reference


def retire_key(folder: Path | str, key_id: str) -> MasterKey:
    """Retire a key: it is still scanned, and never marked with again. One that is retired stays as it is.

    Raises:
        Refused: the key is unknown.
    """

    def retire(key: MasterKey) -> dict[str, object]:
        return {"retired_at": key.retired_at or datetime.now(UTC)}

    return _change(local_folder(folder), key_id, retire)


def admit_key(folder: Path | str, key_id: str, admission: Admission) -> MasterKey:
    """Record the audit that a key passed (scanner.audit.calibration.admission), in place of an earlier one.

    Raises:
        Refused: the key is unknown.
    """
    return _change(local_folder(folder), key_id, lambda key: {"admission": admission})


def _change(folder: Path, key_id: str, change: Callable[[MasterKey], dict[str, object]]) -> MasterKey:
    load_registry(folder)  # refuse before a lock file is made in a folder that is no registry
    with locked(folder):
        registry = load_registry(folder)
        key = find_key(registry, key_id)
        changed = key.model_copy(update=change(key))
        keys = tuple(changed if other is key else other for other in registry.keys)
        _write(folder, registry.model_copy(update={"keys": keys}))
    return changed


def check_secret(folder: Path | str, key: MasterKey) -> bytes:
    """Check that a key can be opened here, by its commitment alone; returns its key bytes.

    Raises:
        SecretError: the secret cannot be read, or is not the one that the key's commitment was made for.
    """
    from scanner.watermark.formats import format_of

    found = format_of(key)
    key_bytes = _read_secret_of(found, key.secret, folder)
    if _commitment(key_bytes, found) != key.commitment:
        raise SecretError(
            f"key {key.key_id!r}: the secret at {key.secret} does not fit the recorded commitment "
            f"{str(key.commitment)[:16]}…; another secret lies there now, or its format or parameters were edited"
        )
    return key_bytes


def open_key(folder: Path | str, key: MasterKey) -> "Watermark":
    """The watermark of a key, ready to score or mark: its secret is read here, where it is used.

    Raises:
        SecretError: as `check_secret` does.
    """
    from scanner.watermark.formats import format_of

    return format_of(key).open(check_secret(folder, key))


def tokenizer_path(folder: Path | str, key: MasterKey) -> Path | str:
    """Path or URI of the key's tokenizer.json; a relative path starts at the registry's folder."""
    if is_uri(folder) and not Path(key.tokenizer.file).is_absolute():
        return f"{folder}/{key.tokenizer.file}"
    return Path(folder) / key.tokenizer.file


def _checked(**values: object) -> MasterKey:
    try:
        return MasterKey.model_validate(values)
    except ValidationError as error:
        raise Refused(_told(error)) from None


def _told(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        value = f" = {item['input']!r}" if field not in ("secret", "") and item["type"] != "missing" else ""
        lines.append(f"{field}{value}: {item['msg'].removeprefix('Value error, ')}".removeprefix(": "))
    return "; ".join(lines)


def _pin_tokenizer(folder: Path, given: str) -> TokenizerFile:
    """Path and SHA-256 of a tokenizer.json. Kept relative to the registry when it was given so or lies inside it."""
    here, there = Path(given), folder / given
    if here.is_file() and there.is_file() and not here.samefile(there):
        raise TokenizerError(f"tokenizer {given} is two files, {here.absolute()} and {there}; give an absolute path")
    path = here if here.is_file() else there
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"tokenizer {given}: cannot be read ({error.strerror}); name a tokenizer.json, from the working folder, "
            "from the registry's folder or absolute"
        ) from None
    try:
        fields = json.loads(raw)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or "model" not in fields:
        raise TokenizerError(f"tokenizer {given}: is not a tokenizer.json (a JSON object with a field 'model')")
    if path is here:
        given = os.path.abspath(path)
        if Path(given).is_relative_to(os.path.abspath(folder)):
            given = os.path.relpath(given, os.path.abspath(folder))
    return TokenizerFile(file=given, sha256=hashlib.sha256(raw).hexdigest())


def _read_secret_of(made_for: "Format", reference: str, folder: Path | str) -> bytes:
    """The secret of a key of a format; where nobody is ever named, it may be a published one. Raises SecretError."""
    return read_secret(reference, folder, made_for.secret_bytes, guessable=made_for.basis().assumed)


def _new_secret(path: Path, made_for: "Format", known: "Held[bytes] | None") -> bytes:
    """A new secret of a format, or one that is known, and the file that holds it."""
    from scanner.watermark.format import DrawsKeys

    if known is not None:
        secret = known.value
        return new_secret_file(path, lambda _entropy: secret)
    if not isinstance(made_for, DrawsKeys):
        raise SecretError(f"secret file {path}: is not there, and no secret of format {made_for.name!r} can be drawn")
    return new_secret_file(path, made_for.draw_key)


def _commitment(key_bytes: bytes, made_for: "Format") -> str | None:
    from scanner.watermark.format import Commits

    return made_for.commitment(key_bytes).hex() if isinstance(made_for, Commits) else None


def _refuse_reuse(registry: Registry, folder: Path, key_bytes: bytes) -> None:
    for key in registry.keys:
        if _is_secret_of(key, folder, key_bytes):
            raise Refused(
                f"this is the secret of key {key.key_id!r}; two keys with one secret are not independent tests: "
                "name a file that does not exist yet, and a new secret is made"
            )


def _is_secret_of(key: MasterKey, folder: Path, key_bytes: bytes) -> bool:
    """Whether bytes are the secret of a key; no where a key has no commitment and its secret cannot be read here."""
    from scanner.watermark.formats import format_of

    made_for = format_of(key)
    if len(key_bytes) not in made_for.secret_bytes:
        return False
    if key.commitment is not None:  # it tells even where the key's own secret cannot be read
        return _commitment(key_bytes, made_for) == key.commitment
    try:
        return _read_secret_of(made_for, key.secret, folder) == key_bytes
    except SecretError:
        return False


def _write(folder: Path, registry: Registry) -> None:
    text = _HEADER + tomli_w.dumps(registry.model_dump(exclude_none=True))
    write_whole(folder / KEYS_FILE, lambda file: file.write(text.encode()))

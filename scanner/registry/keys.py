"""The master keys of a registry: made, retired, admitted. What is on record is in keys.toml, secrets are not."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from scanner.errors import Refused, SecretError
from scanner.registry.audit_secret import audit_secret_beside
from scanner.registry.keys_file import (
    KEYS_FILE,
    change_registry,
    checked_format,
    find_key,
    gives_p_values,
    load_registry,
    local_folder,
    locked,
    model_of,
    write_registry,
)
from scanner.registry.opening import commitment_of, opened, read_secret_of
from scanner.registry.secrets import new_secret_file, secret_path
from scanner.registry.tokenizer_files import pin_tokenizer, refuse_narrow
from scanner.registry.weights import with_weights
from scanner.storage.local_files import make_private
from schemas.registry import TRIAL_NAME, Admission, MasterKey, Registry, TokenizerFile
from schemas.words import VERSION

if TYPE_CHECKING:
    from scanner.watermark import Format
    from scanner.watermark.stacks.shared import Held


def suggested_parameters(name: str) -> dict[str, Any]:
    """Parameters of a format's new key if the user chose none; empty for an unknown format."""
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
    held_by: str | None = None,
    **parameters: object,
) -> MasterKey:
    """Add a master key to a registry, which is made when it is not there; the commitment to publish is in the result.

    Args:
        folder: the registry's folder.
        key_id: the new key's id.
        format: one of scanner.watermark.formats.FORMATS.
        messages: M, how many messages the key has.
        tokenizer: a tokenizer.json. A relative path starts at the working folder or at the registry's folder.
        secret: `file:PATH` (a relative path starts at the registry's folder) or `env:NAME`; by default a file in the
            registry. A file that does not exist is made, with a new secret. So is, beside it, the audit secret of a
            registry that names none yet, where a file can be made there.
        known: the secret of a key that marks elsewhere already, for the file that is made; None: a new one is drawn.
        active_from: nothing is marked with it before, though users may get messages; a time with a zone, or None: now.
        active_until: nothing is marked with it from then on, though scans test it; None: until it is retired.
        held_by: who else has the secret, such as a site that serves a marked model; None: nobody knows.
        parameters: the format's parameters, such as window=4, gamma="1/4".

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
        held_by=held_by,
    )
    try:
        made_for = checked_format(key)
    except ValidationError as error:
        raise Refused(_in_words(error, model_of(key))) from None
    except ValueError as error:
        raise Refused(str(error)) from None
    pinned = pin_tokenizer(folder, os.fspath(tokenizer))
    refuse_narrow(made_for, pinned)
    # with the format's defaults, which go on record
    key = key.model_copy(update={"tokenizer": pinned.entry, "parameters": made_for.model_dump(exclude_none=True)})
    path = secret_path(reference, folder)
    if known is not None and (path is None or os.path.lexists(path)):
        raise Refused(f"secret {reference}: is there already, and the key is given too; name a file that is not there")
    if path is None or os.path.lexists(path):
        read_secret_of(made_for, reference, folder)  # refuse before the first folder is made
    try:
        make_private(folder)
    except OSError as error:
        raise Refused(f"registry {folder}: cannot be made ({error.strerror}); name another folder") from None
    with locked(folder):
        registry = load_registry(folder) if (folder / KEYS_FILE).exists() else Registry(version=VERSION)
        if any(key_id == other.key_id for other in registry.keys):
            raise Refused(f"key {key_id!r} is in the registry already; ids are never used again, choose another")
        if registry.trial:
            refuse_real_name("key", key_id)
        made = path is not None and not os.path.lexists(path)
        key_bytes = (
            _new_secret(path, made_for, known)
            if made and path is not None
            else read_secret_of(made_for, reference, folder)
        )
        try:
            read_secret_of(made_for, reference, folder)  # as every scan will: it may be one that can be guessed
            opened(made_for, key_bytes, f"secret {reference}:")
            _refuse_reuse(registry, folder, key_bytes, made_for)
            key = key.model_copy(update={"commitment": commitment_of(key_bytes, made_for)})
            audit_secret = registry.audit_secret or audit_secret_beside(folder, reference)
            keys = with_weights(registry.keys, key, gives_p_values)
            write_registry(folder, registry.model_copy(update={"audit_secret": audit_secret, "keys": keys}))
            key = keys[-1]
        except BaseException:
            if made and path is not None:
                path.unlink()
            raise
    return key


TRIAL_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
"""Time since which the key and the users of a trial count as there, so that text of any date can be tried."""


def begin_trial(folder: Path | str) -> None:
    """Mark a registry as one for a trial. Raises as `change_registry`."""
    change_registry(folder, lambda registry: registry.model_copy(update={"trial": True}))


def refuse_real_name(kind: str, name: str) -> None:
    """Refuse an id in a registry that was made for a trial, unless it shows that."""
    if not name.startswith(TRIAL_NAME):
        raise Refused(
            f"{kind} {name!r}: this registry was made for a trial, and its ids begin with {TRIAL_NAME!r}; make another "
            "registry with `brickscan init` for real keys and users"
        )


def retire_key(folder: Path | str, key_id: str) -> MasterKey:
    """Retire a key: it is still scanned, and never marked with again. A retired key stays as it is.

    Raises:
        Refused: the key is unknown.
    """
    return _change(folder, key_id, lambda key: {"retired_at": key.retired_at or datetime.now(UTC)})


def admit_key(folder: Path | str, key_id: str, admission: Admission) -> MasterKey:
    """Record the audit that a key passed (scanner.audit.calibration.admission), in place of an earlier one.

    Raises:
        Refused: the key is unknown.
    """
    return _change(folder, key_id, lambda key: {"admission": admission})


def _change(folder: Path | str, key_id: str, change: Callable[[MasterKey], dict[str, object]]) -> MasterKey:
    def in_place(registry: Registry) -> Registry:
        key = find_key(registry, key_id)
        changed = key.model_copy(update=change(key))
        return registry.model_copy(
            update={"keys": tuple(changed if other is key else other for other in registry.keys)}
        )

    return find_key(change_registry(folder, in_place), key_id)


def _checked(**values: object) -> MasterKey:
    try:
        return MasterKey.model_validate(values)
    except ValidationError as error:
        raise Refused(_in_words(error, MasterKey)) from None


def _in_words(error: ValidationError, model: type[BaseModel]) -> str:
    lines = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        if item["type"] == "missing":
            lines.append(f"{field}: is needed{_about(model, field)}; give it with --set {field}=…")
            continue
        value = f" = {item['input']!r}" if field not in ("secret", "") else ""
        lines.append(f"{field}{value}: {item['msg'].removeprefix('Value error, ')}".removeprefix(": "))
    return "; ".join(lines)


def _about(model: type[BaseModel], field: str) -> str:
    """Description of a format's field, if it has one."""
    found = model.model_fields.get(field)
    return f" ({found.description})" if found is not None and found.description else ""


def _new_secret(path: Path, made_for: "Format", known: "Held[bytes] | None") -> bytes:
    """A format's secret, new or known, and the file that holds it."""
    from scanner.watermark.format import DrawsKeys

    if known is not None:
        secret = known.value
        return new_secret_file(path, lambda _entropy: secret)
    if not isinstance(made_for, DrawsKeys):
        raise SecretError(f"secret file {path}: is not there, and no secret of format {made_for.name!r} can be drawn")
    return new_secret_file(path, made_for.draw_key)


def _refuse_reuse(registry: Registry, folder: Path, key_bytes: bytes, made_for: "Format") -> None:
    for key in registry.keys:
        # several formats share a default key, which is public and names nobody
        if key.format != made_for.name and made_for.basis().assumed:
            continue
        if _is_secret_of(key, folder, key_bytes):
            raise Refused(
                f"this is the secret of key {key.key_id!r}; two keys with one secret are not independent tests: "
                "name a file that does not exist yet, and a new secret is made"
            )


def _is_secret_of(key: MasterKey, folder: Path, key_bytes: bytes) -> bool:
    """Whether bytes are the secret of a key; False where it has no commitment and its secret cannot be read here."""
    from scanner.watermark.formats import format_of

    made_for = format_of(key)
    if len(key_bytes) not in made_for.secret_bytes:
        return False
    if key.commitment is not None:  # the commitment decides even where the key's own secret cannot be read
        return commitment_of(key_bytes, made_for) == key.commitment
    try:
        return read_secret_of(made_for, key.secret, folder) == key_bytes
    except SecretError:
        return False

"""Make, weigh, retire, admit and open the master keys of a registry. keys.toml has their records but no secrets.

The weight of a key is the share of the false-positive rate that it may use up. It is fixed for ever when the key is
made. Correcting all keys for their current number would not do: each new key would allow scanning the old keys' texts
again at a rate that is already spent, and P(ever flagged falsely) would grow as α (1 + 1/2 + 1/3 + …). With weights
that sum to at most 1, it stays at α however many keys are added.

The first keys of a registry share the rate equally. Once other keys come, the first ones keep one half, and the j-th
later key gets 1/(2 j (j + 1)). These sum to the other half. For example, with two first keys: each has 1/4, the first
later key has 1/4, the second 1/12, the third 1/24.

A secret is read only where it is used, and checked against the commitment on record.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from scanner.errors import Refused, SecretError
from scanner.registry.key_records import (
    ONE_LOOK,
    RecordTerms,
    delete_record,
    earlier_records,
    record_path,
    refuse_same_root,
    write_record,
)
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
from scanner.registry.naming import has_users
from scanner.registry.secrets import new_secret_file, read_secret, secret_path
from scanner.registry.tokenizer_files import pin_tokenizer, refuse_narrow
from scanner.storage.locations import is_uri, make_private
from scanner.storage.toml import explain_error
from schemas.key_record import KeyRecord
from schemas.registry import TRIAL_NAME, Admission, MasterKey, Registry, TokenizerFile
from schemas.versions import VERSION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from scanner.registry.shown_seeds import ShownSeeds
    from scanner.watermark import Format, Watermark
    from scanner.watermark.hidden_value import HiddenValue


def first_keys(keys: Sequence[MasterKey], counts: Callable[[MasterKey], bool]) -> list[MasterKey]:
    """Return the first keys of a registry, which share the rate equally. Empty while no key has a weight."""
    counting = [key for key in keys if counts(key)]
    if not counting or counting[0].one_of is None:
        return []
    first = counting[: counting[0].one_of // 2]
    return first if all(key.one_of == 2 * len(first) for key in first) else []


SETTING_UP = timedelta(days=1)
"""Time after the making of a registry's first key in which it is being set up. Keys of this time share equally."""


def with_weights(
    keys: Sequence[MasterKey], new: MasterKey, counts: Callable[[MasterKey], bool]
) -> tuple[MasterKey, ...]:
    """Return the keys of a registry with the new key last, all with weights unless the registry is being set up.

    Args:
        keys: the registry's keys, in their order.
        new: the new key.
        counts: whether a key gives p-values. Other keys have no weight.

    Raises:
        Refused: weights were edited, and no weight is left for another key.
    """
    counting = [key for key in keys if counts(key)]
    if not counting or not counts(new):
        return (*keys, new)
    if all(key.one_of is None for key in counting):
        if new.created_at - min(key.created_at for key in keys) < SETTING_UP:
            return (*keys, new)
        half = {"one_of": 2 * len(counting)}
        keys = [key.model_copy(update=half) if counts(key) else key for key in keys]
    rest_of_weight = 1 - sum((Fraction(1, key.one_of) for key in keys if key.one_of is not None), Fraction(0))
    if rest_of_weight <= 0:
        raise Refused(
            "keys: the weights of the keys (1/one_of in keys.toml) sum to 1, and none is left for another key; they "
            "are fixed when a key is made: restore the original values"
        )
    # j: before the j-th later key, 1/(2 j) is left
    number = -((-1) // (2 * rest_of_weight))
    return (*keys, new.model_copy(update={"one_of": 2 * number * (number + 1)}))


def suggested_parameters(name: str) -> dict[str, Any]:
    """Return the default parameters of a format's new key. Empty for an unknown format."""
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
    secret_value: "HiddenValue[bytes] | None" = None,
    active_from: datetime | None = None,
    active_until: datetime | None = None,
    held_by: str | None = None,
    terms: RecordTerms = ONE_LOOK,
    watch: Callable[[int, int], object] = lambda done, of: None,
    **parameters: object,
) -> MasterKey:
    """Add a master key to a registry. The registry is made if needed. The result has the commitment to publish.

    Args:
        folder: the registry's folder.
        key_id: the new key's id.
        format: one of scanner.watermark.formats.FORMATS.
        messages: M, how many messages the key has.
        tokenizer: a tokenizer.json. A relative path starts at the working folder or at the registry's folder.
        secret: `file:PATH` (a relative path starts at the registry's folder) or `env:NAME`. By default a file in the
            registry. A file that does not exist is made with a new secret. If the registry has no audit secret yet, one
            is made beside it, where a file can be made there.
        secret_value: the secret of a key that already marks elsewhere, for the new file. None: draw a new one.
        active_from: no text is marked with the key before this time, though users may get messages. A time with a zone.
            None: now.
        active_until: no text is marked with the key from this time on, though scans test it. None: until it is retired.
        held_by: who else has the secret, such as a site that serves a marked model. None: not on record.
        terms: terms of the public record of a key that draws from seeds. Other keys have no record.
        watch: called with the number of finished nodes of the tree over such seeds, and the number of all nodes.
        parameters: the format's parameters, such as window=4, gamma="1/4".

    Raises:
        Refused: a value is out of range, the id is in use, or a key of this registry already has the secret. Nothing
            was written.
        SecretError: the secret cannot be used. Nothing was written.
        TokenizerError: the tokenizer cannot be used. Nothing was written.
    """
    from scanner.watermark.format import DrawsFromSeeds

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
    if isinstance(made_for, DrawsFromSeeds) and made_for.beacon is not None:
        raise Refused("beacon: is computed from the public record and the beacon's value; leave it out")
    pinned = pin_tokenizer(folder, os.fspath(tokenizer))
    refuse_narrow(made_for, pinned)
    # the format's defaults go on record too, so that later defaults change no existing key
    key = key.model_copy(update={"tokenizer": pinned.entry, "parameters": made_for.model_dump(exclude_none=True)})
    path = secret_path(reference, folder)
    if secret_value is not None and (path is None or os.path.lexists(path)):
        raise Refused(f"secret {reference}: already exists, but a key was given too; name a file that does not exist")
    if path is None or os.path.lexists(path):
        read_secret_of(made_for, reference, folder)  # refuses before any folder is made
    try:
        make_private(folder)
    except OSError as error:
        raise Refused(f"registry {folder}: cannot be created ({error.strerror}); name another folder") from None
    with locked(folder):
        registry = load_registry(folder) if (folder / KEYS_FILE).exists() else Registry(version=VERSION)
        if any(key_id == other.key_id for other in registry.keys):
            raise Refused(f"key {key_id!r} is already in the registry; ids are never reused, choose another")
        if registry.trial:
            refuse_real_name("key", key_id)
        key = key.model_copy(update={"created_at": _now_for(folder, registry)})
        # after a crash or an edit, a record may exist without a key in keys.toml: a failure must not delete it
        had_record = record_path(folder, key_id).exists()
        is_new_file = path is not None and not os.path.lexists(path)
        key_bytes = (
            _new_secret(path, made_for, secret_value)
            if is_new_file and path is not None
            else read_secret_of(made_for, reference, folder)
        )
        try:
            read_secret_of(made_for, reference, folder)  # read it as every scan will: it may be easy to guess
            if not isinstance(made_for, DrawsFromSeeds):  # formats with seeds open only once R is known
                open_format(made_for, key_bytes, f"secret {reference}:")
            _refuse_reuse(registry, folder, key_bytes, made_for)
            key = key.model_copy(update={"commitment": commitment_of(key_bytes, made_for)})
            if isinstance(made_for, DrawsFromSeeds):
                key = _with_record(folder, registry, key, made_for, made_for.seed_key(key_bytes), terms, watch)
            audit_secret = registry.audit_secret or audit_secret_beside(folder, reference)
            keys = with_weights(registry.keys, key, gives_p_values)
            write_registry(folder, registry.model_copy(update={"audit_secret": audit_secret, "keys": keys}))
            key = keys[-1]
        except BaseException:
            if not is_on_record(folder, key_id):  # an interrupt may come just after keys.toml was written
                if is_new_file and path is not None:
                    path.unlink()
                if isinstance(made_for, DrawsFromSeeds) and not had_record:
                    delete_record(folder, key_id)
            raise
    return key


def is_on_record(folder: Path, key_id: str) -> bool:
    """Return whether keys.toml has a key. True if it cannot be read, so that no file of the key is deleted."""
    if not (folder / KEYS_FILE).exists():
        return False
    try:
        return any(key.key_id == key_id for key in load_registry(folder).keys)
    except (Refused, OSError):
        return True


def _with_record(
    folder: Path,
    registry: Registry,
    key: MasterKey,
    made_for: "Format",
    seed_key: "NDArray[np.uint32]",
    terms: RecordTerms,
    watch: Callable[[int, int], object],
) -> MasterKey:
    """Grow the tree of a new key and write its nodes and public record. Return the key with the record's SHA-256.

    Raises:
        Refused: the terms are not allowed, or the files cannot be written.
    """
    from scanner.watermark.native.tree import grow_tree, root_of
    from schemas.key_record import parse_label

    label = made_for.label()
    kept = grow_tree(seed_key, parse_label(label).seeds, watch)
    root = root_of(kept).hex()
    refuse_same_root(folder, key.key_id, root)
    try:
        record = KeyRecord(
            version=3,
            label=label,
            root=root,
            commitment=str(key.commitment),
            tokenizer_sha256=key.tokenizer.sha256,
            messages=key.messages,
            normal_form=terms.normal_form,
            looks=dict(terms.looks),
            beacon=terms.beacon,
            earlier=earlier_records(folder, registry, key.key_id),
        )
    except ValidationError as error:
        raise Refused(f"record: {explain_error(error, KeyRecord)}") from None
    return write_record(folder, key, record, kept)


TRIAL_BEGAN = datetime(1970, 1, 1, tzinfo=UTC)
"""Time from which the key and users of a trial count as present. It is early, so that text of any date can be tried."""


def begin_trial(folder: Path | str) -> None:
    """Mark a registry as a trial registry. Raises as `change_registry`."""
    change_registry(folder, lambda registry: registry.model_copy(update={"trial": True}))


def refuse_real_name(kind: str, name: str) -> None:
    """Refuse an id in a trial registry unless it begins with TRIAL_NAME.

    Raises:
        Refused: it does not.
    """
    if not name.startswith(TRIAL_NAME):
        raise Refused(
            f"{kind} {name!r}: this registry was made for a trial, so its ids begin with {TRIAL_NAME!r}; make another "
            "registry with `brickscan init` for real keys and users"
        )


def retire_key(folder: Path | str, key_id: str) -> MasterKey:
    """Retire a key: scans still test it, but no text is marked with it again. A retired key is left as it is.

    Raises:
        Refused: the key is unknown.
    """
    now = _now_for(folder, load_registry(folder))
    return _change(folder, key_id, lambda key: {"retired_at": key.retired_at or now})


def _now_for(folder: Path | str, registry: Registry) -> datetime:
    """Return this machine's time. Raises as `clock.now_for`."""
    from scanner.registry.clock import now_for  # late: it loads libraries of tables, which takes long
    from scanner.registry.ledger import open_users

    return now_for(registry, open_users(folder).last_at if has_users(folder) else None)


def admit_key(folder: Path | str, key_id: str, admission: Admission) -> MasterKey:
    """Record the audit that a key passed (scanner.audit.calibration.admission). It replaces an earlier one.

    Raises:
        Refused: the key is unknown.
    """
    return _change(folder, key_id, lambda key: {"admission": admission})


def _change(folder: Path | str, key_id: str, change: Callable[[MasterKey], dict[str, object]]) -> MasterKey:
    def in_place(registry: Registry) -> Registry:
        key = find_key(registry, key_id)
        new_key = key.model_copy(update=change(key))
        return registry.model_copy(
            update={"keys": tuple(new_key if other is key else other for other in registry.keys)}
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
    """Return the description of a format's field in brackets. Empty if it has none."""
    info = model.model_fields.get(field)
    return f" ({info.description})" if info is not None and info.description else ""


def _new_secret(path: Path, made_for: "Format", secret_value: "HiddenValue[bytes] | None") -> bytes:
    from scanner.watermark.format import DrawsKeys

    if secret_value is not None:
        secret = secret_value.value
        return new_secret_file(path, lambda _entropy: secret)
    if not isinstance(made_for, DrawsKeys):
        raise SecretError(
            f"secret file {path}: does not exist, and secrets of format {made_for.name!r} cannot be drawn"
        )
    return new_secret_file(path, made_for.draw_key)


def _refuse_reuse(registry: Registry, folder: Path, key_bytes: bytes, made_for: "Format") -> None:
    for key in registry.keys:
        # several formats share a default key, which is public and never names a user
        if key.format != made_for.name and made_for.basis().assumed:
            continue
        if _is_secret_of(key, folder, key_bytes):
            raise Refused(
                f"this is the secret of key {key.key_id!r}; two keys with the same secret are not independent tests: "
                "name a file that does not exist yet to draw a new secret"
            )


def _is_secret_of(key: MasterKey, folder: Path, key_bytes: bytes) -> bool:
    """Return whether bytes are the secret of a key.

    False if the key has no commitment and its secret cannot be read here.
    """
    from scanner.watermark.formats import format_of

    made_for = format_of(key)
    if len(key_bytes) not in made_for.secret_bytes:
        return False
    if key.commitment is not None:  # it decides, even if the key's own secret cannot be read here
        return commitment_of(key_bytes, made_for) == key.commitment
    try:
        own_secret = read_secret_of(made_for, key.secret, folder)
        # HMAC derives users' keys and pads a short secret with zeros: secrets that differ only in these are the same
        return own_secret.rstrip(b"\0") == key_bytes.rstrip(b"\0")
    except SecretError:
        return False


def check_secret(folder: Path | str, key: MasterKey) -> bytes:
    """Read the secret of a key and check it against the key's commitment. Return its bytes.

    The key is not opened.

    Raises:
        SecretError: the secret cannot be read, or does not fit the key's commitment.
    """
    from scanner.watermark.formats import format_of

    return _checked_secret(folder, key, format_of(key))


def _checked_secret(folder: Path | str, key: MasterKey, made_for: "Format") -> bytes:
    key_bytes = read_secret_of(made_for, key.secret, folder)
    if commitment_of(key_bytes, made_for) != key.commitment:
        raise SecretError(
            f"key {key.key_id!r}: the secret at {key.secret} does not fit the recorded commitment "
            f"{str(key.commitment)[:16]}…; there is a different secret there now, or its format or parameters were "
            "edited"
        )
    return key_bytes


def open_key(folder: Path | str, key: MasterKey, shown: "ShownSeeds | None" = None) -> "Watermark":
    """Return the watermark of a key, ready to score or mark. The secret is read here.

    Args:
        folder: the registry's folder, or a URI.
        key: the key.
        shown: seeds of the key whose steps are neither scored nor marked. None: all seeds that were ever shown.

    Raises:
        SecretError: as `check_secret` and as `open_format`.
        Refused: the shown seeds of the key cannot be read.
    """
    from scanner.registry.shown_seeds import shown_then  # late: most commands open no key
    from scanner.watermark.format import LeavesOut
    from scanner.watermark.formats import format_of

    made_for = format_of(key)
    key_bytes = _checked_secret(folder, key, made_for)
    mark = open_format(made_for, key_bytes, f"key {key.key_id!r}: the secret at {key.secret}")
    shown = shown_then(folder, key) if shown is None else shown
    return mark.leave_out(shown.buckets) if isinstance(mark, LeavesOut) else mark


def open_key_to_mark(folder: Path | str, key: MasterKey) -> "Watermark":
    """Return the watermark of a key for a program that marks text.

    The program holds a lease while it uses the watermark.

    A claim waits until the lease ends. If the lease cannot be renewed, logits processors refuse to mark.

    Raises:
        SecretError: as `open_key`.
        Refused: as `open_key`, or the registry cannot be written.
    """
    from scanner.registry.leases import take_lease
    from scanner.registry.shown_seeds import shown_then
    from scanner.watermark.native.version3_marks import Version3Mark

    lease = take_lease(folder, "program", needed=key.record is not None)
    try:
        shown = shown_then(folder, key)
        mark = open_key(folder, key, shown)
        lease.read({key.key_id: shown.number})
    except BaseException:
        lease.end()
        raise
    if isinstance(mark, Version3Mark):
        mark = mark.while_holds(lease.check)
        weakref.finalize(mark, lease.end)
    return mark


def open_format(made_for: "Format", key_bytes: bytes, name: str) -> "Watermark":
    """Return a format opened with a secret.

    Args:
        made_for: the format.
        key_bytes: the secret.
        name: name of the secret for errors.

    Raises:
        SecretError: the secret is not valid for the format.
    """
    try:
        return made_for.open(key_bytes)
    except ValueError as error:
        raise SecretError(f"{name} is not valid for format {made_for.name!r}: {error}") from None


def tokenizer_path(folder: Path | str, key: MasterKey) -> Path | str:
    """Return the path or URI of the key's tokenizer.json. A relative path starts at the registry's folder."""
    if is_uri(folder) and not Path(key.tokenizer.file).is_absolute():
        return f"{folder}/{key.tokenizer.file}"
    return Path(folder) / key.tokenizer.file


def read_secret_of(made_for: "Format", reference: str, folder: Path | str) -> bytes:
    """Read the secret of a format's key. It may be a published one if the format never names a user.

    Raises:
        SecretError: it cannot be read, or is not valid.
    """
    return read_secret(
        reference, folder, made_for.secret_bytes, guessable=made_for.basis().assumed, if_guessed=made_for.if_guessed
    )


def commitment_of(key_bytes: bytes, made_for: "Format") -> str | None:
    """Return the commitment to publish, as hex. None: the format has none, because it would be an offline oracle."""
    from scanner.watermark.format import Commits

    return made_for.commitment(key_bytes).hex() if isinstance(made_for, Commits) else None


_DECOYS = "decoys.secret"
AUDIT_SECRET = f"file:secrets/{_DECOYS}"
"""Reference to the audit secret, unless the secret of the first key is elsewhere."""


def set_audit_secret(folder: Path | str, secret: str | None = None) -> str:
    """Set the secret that draws decoy keys and signs tables. Return its reference.

    Tables signed under another secret must first be signed under this one (scanner.results.sign_anew.sign_under). The
    registry keeps the reference to the first secret, because filters and windows of accounts need it.

    Raises:
        Refused: there is no registry, or the reference is not valid.
        SecretError: the secret cannot be read or made.
    """

    def change(registry: Registry) -> Registry:
        later, first = make_audit_secret(Path(folder), secret), registry.lasting_secret or registry.audit_secret
        return registry.model_copy(update={"audit_secret": later, "lasting_secret": None if first == later else first})

    return str(change_registry(folder, change).audit_secret)


def audit_secret_beside(folder: Path, reference: str) -> str | None:
    """Return the reference to an audit secret beside the file of a key's secret. The audit secret is made if needed.

    None: the key's secret is in the environment, or no file can be made beside it.

    Raises:
        SecretError: an audit secret exists there and cannot be read.
    """
    kind, _, file = reference.partition(":")
    if kind != "file":
        return None
    neighbour = f"file:{os.path.join(os.path.dirname(file), _DECOYS)}"
    try:
        return make_audit_secret(folder, neighbour)
    except SecretError:
        path = secret_path(neighbour, folder)
        if path is not None and os.path.lexists(path):
            raise
        return None


def check_audit_secret(folder: Path | str, secret: str | None) -> str:
    """Return the reference to an audit secret. The secret is read if it exists, but never made.

    Raises:
        Refused: the reference is not valid.
        SecretError: the secret cannot be read.
    """
    reference = AUDIT_SECRET if secret is None else secret
    try:
        Registry(version=VERSION, audit_secret=reference)
    except ValidationError:
        raise Refused("audit secret: a reference is needed, 'file:PATH' or 'env:NAME', not the secret itself") from None
    path = secret_path(reference, folder)
    if path is None or os.path.lexists(path):
        read_secret(reference, folder)
    return reference


def make_audit_secret(folder: Path, secret: str | None) -> str:
    """Return a reference to an audit secret. A file that does not exist is made.

    Raises as `check_audit_secret`.
    """
    reference = check_audit_secret(folder, secret)
    path = secret_path(reference, folder)
    if path is not None and not os.path.lexists(path):
        new_secret_file(path)
    return reference

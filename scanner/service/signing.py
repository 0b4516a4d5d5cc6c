"""Keep the detector's secrets: Ed25519 keys that sign its reports, one at a time and with dates, and experts' tokens.

signing.json in the detector's folder lists every key that it ever had. signing-ID.pem is the private key of the one
that signs. A key's id is the beginning of the SHA-256 of its public key, so no other key can pass for it.

Experts learn more from the detector than others. They have tokens, which end and can be revoked. tokens.json has the
tokens' digests. A token has 256 random bits, so a plain SHA-256 hides it.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from scanner.errors import Refused, SecretError
from scanner.registry.keys_file import locked
from scanner.registry.secrets import new_private_file, read_private_file
from scanner.storage.locations import make_private, read_named, write_whole
from scanner.storage.toml import canonical
from schemas.service import ExpertToken, PageStatement, SignedReport, SigningKey, Statement

_HANDOVER = timedelta(minutes=1)
"""Time after a new key is made in which reports by the last one are valid, because some are being signed just then."""


def make_folder(folder: Path) -> None:
    """Make a folder of the detector that others cannot enter. Do nothing if it exists.

    Raises:
        Refused: it cannot be made.
    """
    try:
        make_private(folder)
    except OSError as error:
        raise Refused(f"{folder}: the folder cannot be created ({error.strerror}); name another `state`") from None


class _SigningKeys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    file: ClassVar = "signing.json"
    title: ClassVar = "signing keys"

    keys: tuple[SigningKey, ...] = ()

    @model_validator(mode="after")
    def _ids_are_their_own(self) -> "_SigningKeys":
        if any(key_id_of(_public_key(key)) != key.key_id for key in self.keys):
            raise ValueError("an id belongs to another key")
        return self


class _Tokens(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    file: ClassVar = "tokens.json"
    title: ClassVar = "tokens"

    tokens: tuple[ExpertToken, ...] = ()


Records = TypeVar("Records", _SigningKeys, _Tokens)


def _read(state: Path, kind: type[Records]) -> Records:
    path = state / kind.file
    try:
        return kind.model_validate_json(read_named(path)) if path.exists() else kind()
    except (OSError, ValidationError):
        raise Refused(f"{path}: is not a list of {kind.title}; restore it from a copy") from None


def _write(state: Path, records: _SigningKeys | _Tokens) -> None:
    text = records.model_dump_json(indent=1)
    write_whole(state / records.file, lambda file: file.write(text.encode() + b"\n"))


def signing_keys(state: Path) -> tuple[SigningKey, ...]:
    """Return every signing key of a detector, oldest first.

    Raises:
        Refused: the list cannot be read, an id belongs to another key, or there are private keys without a list.
    """
    keys, path = _read(state, _SigningKeys).keys, state / _SigningKeys.file
    if not path.exists() and any(state.glob("signing-*.pem")):  # else old reports would be nobody's
        raise Refused(
            f"{path}: is missing, but its private keys exist; restore it from a copy, or delete the private keys too"
        )
    return keys


def _public_key(key: SigningKey) -> Ed25519PublicKey:
    """Return the public key of a signing key.

    Raises:
        ValueError: it is no Ed25519 key.
    """
    public = load_pem_public_key(key.public_key.encode())
    if not isinstance(public, Ed25519PublicKey):
        raise ValueError("another kind of key")
    return public


def new_signing_key(state: Path) -> SigningKey:
    """Make a key that signs from now on, in place of the present one. Reports of the old key stay valid.

    The private file of the old key is deleted, because it signs nothing more.

    Raises:
        Refused: it cannot be written.
    """
    make_folder(state)
    with locked(state):
        keys, now = signing_keys(state), datetime.now(UTC).replace(microsecond=0)
        private = Ed25519PrivateKey.generate()
        public = private.public_key()
        signing_key = SigningKey(
            key_id=key_id_of(public),
            public_key=public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
            signs_from=now,
        )
        text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        new_private_file(_private_file(state, signing_key.key_id), text)
        expiry = {"signs_until": now + _HANDOVER}
        previous_keys = [key if key.signs_until else key.model_copy(update=expiry) for key in keys]
        _write(state, _SigningKeys(keys=(*previous_keys, signing_key)))
        for key in previous_keys:
            _private_file(state, key.key_id).unlink(missing_ok=True)
    return signing_key


def revoke_signing_key(state: Path, key_id: str) -> SigningKey:
    """Revoke a key: none of its reports is valid any more, whenever it was signed. Its private file is deleted.

    Raises:
        Refused: there is no such key.
    """
    make_folder(state)
    with locked(state):
        now, keys = datetime.now(UTC).replace(microsecond=0), signing_keys(state)
        key = next((key for key in keys if key.key_id == key_id), None)
        if key is None:
            raise Refused(
                f"{key_id!r} is not a signing key; signing keys on record: "
                f"{', '.join(key.key_id for key in keys) or 'none'}"
            )
        revoked_key = key.model_copy(update={"revoked_at": now, "signs_until": key.signs_until or now})
        _write(state, _SigningKeys(keys=tuple(revoked_key if entry is key else entry for entry in keys)))
        _private_file(state, key_id).unlink(missing_ok=True)
    return revoked_key


def key_id_of(public: Ed25519PublicKey) -> str:
    """Return the id of a public key: the first 32 hexadecimal digits of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:32]


class Signer:
    """Signs statements with the present key, and follows changes of the keys.

    Args:
        state: the detector's folder.
    """

    def __init__(self, state: Path) -> None:
        self._state, self._file, self._read = state, f"{state}/{_SigningKeys.file}", (0, 0)
        self._now: tuple[SigningKey, Callable[[bytes], bytes]] | None = None

    def sign(self, state: Callable[[str], Statement | PageStatement]) -> SignedReport:
        """Sign a statement, and return the report.

        state: makes the statement from the signing key's id.

        Raises:
            Refused: no key signs now, or the clock went back.
            SecretError: the file of the key cannot be read.
        """
        key, sign = self._key()
        statement = state(key.key_id)
        if datetime.fromisoformat(statement.time) < key.signs_from:
            raise Refused(
                f"the clock says {statement.time}, but the signing key was made at {key.signs_from}: set the clock"
            )
        text = canonical(statement.model_dump(mode="json"))
        return SignedReport(statement=text, signature=base64.b64encode(sign(text.encode())).decode())

    def _key(self) -> tuple[SigningKey, Callable[[bytes], bytes]]:
        file_version = _changed(self._file)
        if self._now is None or file_version != self._read:
            current = [key for key in signing_keys(self._state) if key.signs_until is None]
            if not current:
                raise Refused(f"{self._state}: no key can sign reports now; make one with `brickscan serve key new`")
            file = _private_file(self._state, current[-1].key_id)
            private = load_pem_private_key(read_private_file(file), None)
            if not isinstance(private, Ed25519PrivateKey) or key_id_of(private.public_key()) != current[-1].key_id:
                raise SecretError(
                    f"secret file {file}: is not the signing key on record; restore it, or make a new one"
                )
            self._now, self._read = (current[-1], private.sign), file_version
        return self._now


def _changed(path: str) -> tuple[int, int]:
    """Return values that change with a file."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _private_file(state: Path, key_id: str) -> Path:
    return state / f"signing-{key_id}.pem"


def tokens(state: Path) -> tuple[ExpertToken, ...]:
    """Return every token that was issued, oldest first.

    Raises:
        Refused: the list cannot be read.
    """
    return _read(state, _Tokens).tokens


def issue_token(state: Path, expert: str, until: datetime) -> tuple[str, ExpertToken]:
    """Issue a new token and return it with its record. The token itself is stored nowhere.

    Raises:
        Refused: it would have ended already, or the expert has no name.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    if until <= now:
        raise Refused(f"--until {until:%Y-%m-%d}: is in the past; give a later day")
    if not expert.strip() or len(expert) > 200 or not expert.isprintable():
        raise Refused("--for: a name of 1 to 200 printable characters is needed")
    token = secrets.token_urlsafe(32)
    record = ExpertToken(
        token_id=secrets.token_hex(4), expert=expert.strip(), sha256=_digest(token), issued_at=now, until=until
    )
    make_folder(state)
    with locked(state):
        _write(state, _Tokens(tokens=(*tokens(state), record)))
    return token, record


def revoke_token(state: Path, token_id: str) -> ExpertToken:
    """End a token now.

    Raises:
        Refused: there is no such token.
    """
    make_folder(state)
    with locked(state):
        now, records = datetime.now(UTC).replace(microsecond=0), tokens(state)
        token = next((entry for entry in records if entry.token_id == token_id), None)
        if token is None:
            raise Refused(f"{token_id!r} is not the id of a token; `brickscan serve token list` shows the ids")
        revoked_token = token.model_copy(update={"revoked_at": token.revoked_at or now})
        _write(state, _Tokens(tokens=tuple(revoked_token if entry is token else entry for entry in records)))
    return revoked_token


def expert_of(state: Path, token: str) -> str | None:
    """Return the name of the expert with this token. None: it is unknown, has ended or was revoked.

    Raises:
        Refused: as `tokens`.
    """
    now, digest = datetime.now(UTC), _digest(token)
    for entry in tokens(state):
        if entry.sha256 == digest and entry.revoked_at is None and now < entry.until:
            return entry.expert
    return None


def _digest(token: str) -> str:
    return hashlib.sha256(b"brickscan detector token\n" + token.encode(errors="replace")).hexdigest()

"""Opened keys: the secret is read where it is used, and checked against the commitment on record."""

from pathlib import Path
from typing import TYPE_CHECKING

from scanner.errors import SecretError
from scanner.registry.secrets import read_secret
from scanner.storage.locations import is_uri
from schemas.registry import MasterKey

if TYPE_CHECKING:
    from scanner.watermark import Format, Watermark


def check_secret(folder: Path | str, key: MasterKey) -> bytes:
    """Check that a key can be opened here, by its commitment alone; returns its key bytes.

    Raises:
        SecretError: the secret cannot be read, or is not the one that the key's commitment was made for.
    """
    from scanner.watermark.formats import format_of

    found = format_of(key)
    key_bytes = read_secret_of(found, key.secret, folder)
    if commitment_of(key_bytes, found) != key.commitment:
        raise SecretError(
            f"key {key.key_id!r}: the secret at {key.secret} does not fit the recorded commitment "
            f"{str(key.commitment)[:16]}…; another secret lies there now, or its format or parameters were edited"
        )
    return key_bytes


def open_key(folder: Path | str, key: MasterKey) -> "Watermark":
    """The watermark of a key, ready to score or mark: its secret is read here, where it is used.

    Raises:
        SecretError: as `check_secret` does, and as `opened` does.
    """
    from scanner.watermark.formats import format_of

    return opened(format_of(key), check_secret(folder, key), f"key {key.key_id!r}: the secret at {key.secret}")


def opened(made_for: "Format", key_bytes: bytes, what: str) -> "Watermark":
    """A format opened with a secret; the error says what was wrong.

    Raises:
        SecretError: the secret is no key of the format.
    """
    try:
        return made_for.open(key_bytes)
    except ValueError as error:
        raise SecretError(f"{what} can be none of format {made_for.name!r}: {error}") from None


def tokenizer_path(folder: Path | str, key: MasterKey) -> Path | str:
    """Path or URI of the key's tokenizer.json; a relative path starts at the registry's folder."""
    if is_uri(folder) and not Path(key.tokenizer.file).is_absolute():
        return f"{folder}/{key.tokenizer.file}"
    return Path(folder) / key.tokenizer.file


def read_secret_of(made_for: "Format", reference: str, folder: Path | str) -> bytes:
    """The secret of a format's key. It may be a published one where nobody is ever named. Raises SecretError."""
    return read_secret(
        reference, folder, made_for.secret_bytes, guessable=made_for.basis().assumed, instead=made_for.if_guessed
    )


def commitment_of(key_bytes: bytes, made_for: "Format") -> str | None:
    """The commitment to publish, as hex text. None where the format has none, since it would be an offline oracle."""
    from scanner.watermark.format import Commits

    return made_for.commitment(key_bytes).hex() if isinstance(made_for, Commits) else None

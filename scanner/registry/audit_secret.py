"""The audit secret of a registry: decoy keys are drawn from it. It is made beside the first key's own secret."""

import os
from pathlib import Path

from pydantic import ValidationError

from scanner.errors import Refused, SecretError
from scanner.registry.keys_file import change_registry
from scanner.registry.secrets import new_secret_file, read_secret, secret_path
from schemas.registry import Registry
from schemas.words import VERSION

_DECOYS = "decoys.secret"
AUDIT_SECRET = f"file:secrets/{_DECOYS}"
"""Reference to the audit secret, unless the first key's own secret lies elsewhere."""


def set_audit_secret(folder: Path | str, secret: str | None = None) -> str:
    """Name the secret that the audits of scans draw decoy keys from. Returns its reference.

    Args:
        folder: the registry's folder.
        secret: as for `new_key`.

    Raises:
        Refused: there is no registry, or the reference is not valid; SecretError: the secret cannot be read or made.
    """
    changed = change_registry(
        folder, lambda registry: registry.model_copy(update={"audit_secret": _audit_secret(Path(folder), secret)})
    )
    return str(changed.audit_secret)


def audit_secret_beside(folder: Path, reference: str) -> str | None:
    """An audit secret beside the file of a key's secret. None when that is in the environment or read-only."""
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
    """A reference to an existing secret; a file that does not exist is made."""
    reference = AUDIT_SECRET if secret is None else secret
    try:
        Registry(version=VERSION, audit_secret=reference)
    except ValidationError:
        raise Refused("audit secret: a reference is needed, 'file:PATH' or 'env:NAME', not the secret itself") from None
    path = secret_path(reference, folder)
    if path is None or os.path.lexists(path):
        read_secret(reference, folder)
    else:
        new_secret_file(path)
    return reference

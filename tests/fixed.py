"""Secrets that are the same in every run, so that a test draws the same numbers under them."""

import hashlib
from pathlib import Path


def fix_secrets(registry: Path, *key_ids: str) -> None:
    """Write the secrets of keys to come, and the audit's, where `new_key` looks before it makes one."""
    folder = registry / "secrets"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (*(f"{key_id}.key" for key_id in key_ids), "decoys.secret"):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(hashlib.sha256(name.encode()).hexdigest() + "\n")

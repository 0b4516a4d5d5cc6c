"""Secrets that are the same in every run: what a test draws under them, it draws again."""

import hashlib
from pathlib import Path


def fix_secrets(registry: Path, *key_ids: str) -> None:
    """Lay secrets where `new_key` looks before it makes one: those of some keys to come, and the audit's."""
    folder = registry / "secrets"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (*(f"{key_id}.key" for key_id in key_ids), "decoys.secret"):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(hashlib.sha256(name.encode()).hexdigest() + "\n")

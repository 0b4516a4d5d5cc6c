"""Which files and folders a process brings to the disk."""

import os

import pytest


def watch_syncs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that gets the path of each file and folder that is synced from now on."""
    synced, sync = set[str](), os.fsync

    def watch(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    return synced

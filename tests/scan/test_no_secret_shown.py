"""A scan that works and two that are refused: no form of a key in anything that people can see, Ray's logs included."""

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scanner.registry import load_registry, open_key
from tests import reference


def forms(registry: Path) -> dict[str, bytes]:
    """Secrets and sub-keys as raw bytes, hexadecimal, base64 and decimal words."""
    found = {}
    for key in load_registry(registry).keys:
        secret = bytes.fromhex((registry / "secrets" / f"{key.key_id}.key").read_text())
        sub_keys = reference.sub_keys(secret, open_key(registry, key).label)
        streams = np.array(sub_keys.chacha, "<u4").tobytes() + sub_keys.sip
        for what, raw in (("secret", secret), ("sub-keys", streams)):
            words = np.frombuffer(raw[:16], "<u4").tolist()
            found |= {
                f"{key.key_id} {what} raw": raw,
                f"{key.key_id} {what} hex": raw.hex().encode(),
                f"{key.key_id} {what} HEX": raw.hex().upper().encode(),
                f"{key.key_id} {what} base64": base64.b64encode(raw)[:40],
                f"{key.key_id} {what} words": ", ".join(map(str, words)).encode(),
                f"{key.key_id} {what} numpy": " ".join(map(str, words)).encode(),
            }
    return found


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps logs and sockets; its name is short, since those of sockets must be."""
    folder = Path(tempfile.mkdtemp(prefix="bs-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run(night, ray_folder: Path) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "jobs.scan", "--config", str(night.config)],
        capture_output=True,
        check=False,
        env={**os.environ, "RAY_TMPDIR": str(ray_folder), "HOME": str(night.folder), "RAY_ADDRESS": ""},
    )


def test_no_form_of_a_key_is_shown(night, own_registry, plain, ray_folder):
    wanted = forms(own_registry)
    night.write("a", [plain(60, i) for i in range(20)])
    done = run(night, ray_folder)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    shown = [done.stdout, done.stderr]

    night.write("b", [plain(60, i) for i in range(20)])
    quarantine = Path(night.results) / "quarantine"
    shutil.rmtree(quarantine)
    quarantine.write_text("in the way")
    done = run(night, ray_folder)
    assert done.returncode == 2
    shown += [done.stdout, done.stderr]

    (own_registry / "secrets" / "green.key").write_text("00" * 32)
    done = run(night, ray_folder)
    assert done.returncode == 2
    shown += [done.stdout, done.stderr]

    secrets = own_registry / "secrets"
    files = [
        file
        for folder in (night.folder, own_registry, ray_folder)
        for file in folder.rglob("*")
        if file.is_file() and secrets not in file.parents
    ]
    assert any(ray_folder in file.parents for file in files), "Ray wrote its logs elsewhere: nothing was looked at"
    shown += [file.read_bytes() for file in files]
    for name, form in wanted.items():
        assert not any(form in text for text in shown), name

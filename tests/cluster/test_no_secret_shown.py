"""Refused scans: no form of a key in anything that people can see. A whole scan: test_submitted_scan.py."""

import base64
import json
import os
import pickle
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from jobs.scan import module
from tests.support.command_line import call
from tests.support.encodings import found
from tests.support.submitted import secrets_of

WAYS = {
    "raw": bytes,
    "repr": lambda secret: repr(secret).encode(),
    "pickle": lambda secret: pickle.dumps({"key": secret}),
    "hex": lambda secret: secret.hex().encode(),
    "upper hex": lambda secret: secret.hex().upper().encode(),
    "hex with colons": lambda secret: secret.hex(":").encode(),
    "hex list": lambda secret: str(list(map(hex, secret))).encode(),
    "base64": base64.b64encode,
    "base64 url": base64.urlsafe_b64encode,
    "base64 within": lambda secret: base64.b64encode(b"key=" + secret + b";"),
    "byte list": lambda secret: json.dumps(list(secret)).encode(),
    "words": lambda secret: repr(np.frombuffer(secret, "<u4")).encode(),
    "big words": lambda secret: str(np.frombuffer(secret, ">u4").tolist()).encode(),
    "longs": lambda secret: str(np.frombuffer(secret, "<u8")).encode(),
    "big longs": lambda secret: str(np.frombuffer(secret, ">u8").tolist()).encode(),
    "hex words": lambda secret: " ".join(f"{word:08x}" for word in np.frombuffer(secret, "<u4")).encode(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_planted_key_is_found_in_any_form(way):
    secret = bytes(byte | 16 for byte in random.Random(1).randbytes(64))  # hex() gives each byte two digits
    other = random.Random(2).randbytes(64)
    noise = random.Random(3).randbytes(5000)
    shown = {"log": noise + b" 17 " + WAYS[way](secret) + b" " + noise, "clean": noise}
    assert {(where, name) for where, name, _ in found({"it": secret, "other": other}, shown)} == {("log", "it")}


@pytest.mark.parametrize("way", ["raw", "hex", "base64 within", "byte list", "words"])
def test_a_part_of_a_key_is_found(way):
    secret = bytes(range(30, 62))
    assert found({"it": secret}, {"log": b"... " + WAYS[way](secret[8:20]) + b" ..."})


@pytest.mark.costly
def test_refused_scans_show_no_key(night, own_registry, plain):
    secrets = secrets_of(own_registry)
    night.write("a", [plain(60, i) for i in range(3)])
    path = own_registry / "secrets" / "green.key"
    secret = path.read_text()
    shown = {}
    for name, text, mode in (
        ("cut", secret[:30], 0o600),
        ("no text", secret.strip() + "zz", 0o600),
        ("pattern", secret[:16] * 4, 0o600),
        ("open", secret, 0o644),
        ("another", random.Random(4).randbytes(32).hex(), 0o600),
    ):
        path.write_text(text)
        path.chmod(mode)
        code, out, err = call("--config", night.config, command=module)
        assert code == 2
        assert "secret" in err
        shown |= {f"{name}: output": out.encode(), f"{name}: errors": err.encode()}
    done = subprocess.run(
        [sys.executable, "-m", "jobs.scan", "--config", str(night.config)],
        capture_output=True,
        check=False,
        env={**os.environ, "HOME": str(night.folder)},
    )
    assert done.returncode == 2
    shown |= {"process: output": done.stdout, "process: errors": done.stderr}
    shutil.rmtree(own_registry / "secrets")
    shown |= {str(file): file.read_bytes() for file in night.folder.rglob("*") if file.is_file()}
    assert found(secrets, shown) == set()

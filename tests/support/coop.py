"""A ROOST Coop that signs its posts, by RFC 8017 in plain arithmetic, which shares no code with the verifier."""

import base64
import hashlib
import json
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

SHA256_INFO = bytes.fromhex("3031300d060960864801650304020105000420")
"""DER of DigestInfo for SHA-256 up to the digest (RFC 8017, 9.2, note 1)."""

WEBHOOK = """\
[export.coop]
url = "https://coop.example"
token = "file:token"
item_type = "post"
reporter_type = "system"
[export.coop.webhook]
key = "file:coop.pem"
confirmed = ["a-yes"]
quoted = ["a-quote", "a-quote-2"]
dismissed = ["a-no"]
"""
"""Sections of scan.toml; the public key lies beside it as coop.pem."""


class Coop:
    """One organisation's key pair, and its signed posts (docs/api/actions.md of roostorg/coop)."""

    def __init__(self, bits: int = 2048) -> None:
        key = generate_private_key(65537, bits)
        self.public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        numbers = key.private_numbers()
        self._d, self._n, self._length = numbers.d, numbers.public_numbers.n, bits // 8

    def signature(self, body: bytes) -> str:
        told = SHA256_INFO + hashlib.sha256(body).digest()
        padded = b"\x00\x01" + b"\xff" * (self._length - 3 - len(told)) + b"\x00" + told
        signed = pow(int.from_bytes(padded, "big"), self._d, self._n)
        return base64.b64encode(signed.to_bytes(self._length, "big")).decode()


@cache
def coop() -> Coop:
    """The Coop of all tests of a process: drawing a key takes a tenth of a second."""
    return Coop()


def action(about: str, act: str, by: str | None = "mod@example.com", note: str | None = None, **more: Any) -> bytes:
    """Body of a callback as Coop's documentation has it, about an item of type `post`."""
    told = {
        "item": {"id": about, "typeId": "post", "typeName": "Post"},
        "action": {"id": act},
        "policies": [{"id": "p1", "name": "Spam", "penalty": "MEDIUM"}],
        "rules": [],
        "custom": {},
        "creator": {"id": "u1", "typeId": "user"},
    }
    told |= {} if by is None else {"actorEmail": by}
    told |= {} if note is None else {"actorNote": note}
    return json.dumps(told | more).encode()

"""Signatures of ROOST Coop's posts: RSASSA-PKCS1-v1_5 with SHA-256 over the body, byte for byte.

Source: docs/development/api-auth.md of roostorg/coop, 2026. Nothing here is secret: a verifier holds the public key.
"""

import base64
import binascii

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from scanner.errors import Refused

LEAST_BITS = 2048
"""Fewest bits of a key, as many as Coop's keys have."""


class Signatures:
    """Tells signed bodies from others.

    Args:
        pem: the public key.
        where: names the key in messages.

    Raises:
        Refused: the text is not an RSA public key of LEAST_BITS.
    """

    def __init__(self, pem: bytes, where: str) -> None:
        asked = (
            "copy Coop's webhook signature verification key (Settings, API Keys), which begins with BEGIN PUBLIC KEY"
        )
        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise Refused(f"{where}: holds no public key as PEM; {asked}") from None
        if not isinstance(key, RSAPublicKey) or key.key_size < LEAST_BITS:
            raise Refused(f"{where}: holds no RSA key of {LEAST_BITS} bits or more; {asked}")
        self._key = key

    def holds(self, signature: str, body: bytes) -> bool:
        """Whether the holder of the private key signed a body; signature: base64, as in the request's header."""
        try:
            self._key.verify(base64.b64decode(signature, validate=True), body, PKCS1v15(), SHA256())
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True

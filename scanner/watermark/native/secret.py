"""Derive the sub-keys of a label from the master key, and commitments (SPEC §1, SPEC_3 §1).

This file does not import numba: a server that marks text derives its keys here, and importing numba would end it.
"""

import hashlib
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_SECRET_BYTES, MAX_SECRET_BYTES = 16, 64

_BEACON_PREFIX = b"brickscan-beacon-v3"


class SubKeys(NamedTuple):
    """The sub-keys that draw one label's streams. They are as secret as the master key, and no repr shows them.

    chacha: uint32[8].
    sip: uint64[2].
    """

    chacha: NDArray[np.uint32]
    sip: NDArray[np.uint64]

    def __repr__(self) -> str:
        return "SubKeys(…)"


class SeedKey(NamedTuple):
    """The key that draws the seeds of a label of version 3. It is as secret as the master key, and no repr shows it.

    words: uint32[8].
    """

    words: NDArray[np.uint32]

    def __repr__(self) -> str:
        return "SeedKey(…)"


def label(
    method: str, window: int, gamma: Fraction | None = None, groups: int | None = None, seeds: int | None = None
) -> str:
    """Return the text that separates the streams of a key's uses, such as `greenlist;h=4;gamma=1/4`.

    SPEC §1 and SPEC_3 §1 state it.
    """
    text = f"{method};h={window}"
    if gamma is not None:
        text += f";gamma={gamma.numerator}/{gamma.denominator}"
    if groups is not None:
        text += f";groups={groups}"
    return text if seeds is None else f"{text};seeds={seeds}"


def derive(secret: bytes, label: str) -> SubKeys:
    """Return the sub-keys of a master key for one label of version 1 (SPEC §1).

    Raises:
        ValueError: the secret does not have 16 to 64 bytes.
    """
    digest = _keyed_hash(secret, 48, "watermark-v1", label)
    return SubKeys(
        np.frombuffer(digest[:32], "<u4").astype(np.uint32), np.frombuffer(digest[32:], "<u8").astype(np.uint64)
    )


def derive_seed_key(secret: bytes, label: str) -> SeedKey:
    """Return the key of the seeds of a master key for one label of version 3 (SPEC_3 §1).

    Raises:
        ValueError: the secret does not have 16 to 64 bytes.
    """
    return SeedKey(np.frombuffer(_keyed_hash(secret, 32, "watermark-v3", label), "<u4").astype(np.uint32))


def window_key(window: int, seeds: int) -> NDArray[np.uint64]:
    """Return the public key of the windows' hashes, that of N and then that of N': uint64[4] (SPEC_3 §1).

    Args:
        window: h.
        seeds: n, of 2^n seeds.
    """
    digest = hashlib.blake2b(f"h={window};seeds={seeds}".encode("ascii"), digest_size=32, person=b"windows-v3").digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def beacon_of_digest(record_sha256: bytes, value: bytes) -> bytes:
    """Return R from the SHA-256 of a public record, 32 bytes, and the value of the beacon it names (SPEC_3 §2)."""
    return hashlib.sha256(_BEACON_PREFIX + record_sha256 + value).digest()


def commitment(secret: bytes, label: str, version: int = 1) -> bytes:
    """Return 32 bytes to publish when a key is made. They prove later that it was not chosen after the text (SPEC §1).

    Raises:
        ValueError: the secret does not have 16 to 64 bytes.
    """
    return _keyed_hash(secret, 32, f"commitment-v{version}", label)


def _keyed_hash(secret: bytes, size: int, person: str, label: str) -> bytes:
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ValueError(f"a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes; this one has {len(secret)}")
    return hashlib.blake2b(label.encode("ascii"), key=secret, digest_size=size, person=person.encode()).digest()


def planes_of(gamma: Fraction) -> int:
    """Return the number of planes in a block: a power of two for the b binary digits of γ = n / 2^b (SPEC §1)."""
    bits = gamma.denominator.bit_length() - 1
    return 1 << (bits - 1).bit_length()


def rule_of(gamma: Fraction) -> tuple[int, int, int]:
    """Return n, b and planes of γ = n / 2^b, as kernels take them."""
    return gamma.numerator, gamma.denominator.bit_length() - 1, planes_of(gamma)

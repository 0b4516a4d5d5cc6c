"""Proofs of both versions of the native watermark (SPEC §1, §3; SPEC_2 §1, §2).

SipHash-2-4 and ChaCha8 in plain numpy, one lane a scored position.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.proof import counted_positions, log10_binomial, log10_gamma

Words = NDArray[np.uint32]
Nonces = NDArray[np.uint64]

_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_SIP_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def _rotated32(x: Words, bits: int) -> Words:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _rotated64(x: Nonces, bits: int) -> Nonces:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _sip_rounds(v: list[Nonces], rounds: int) -> None:
    for _ in range(rounds):
        for a, b, bits in ((0, 1, 13), (2, 3, 16)):
            v[a] = v[a] + v[b]
            v[b] = _rotated64(v[b], bits) ^ v[a]
        v[0] = _rotated64(v[0], 32)
        for a, b, bits in ((2, 1, 17), (0, 3, 21)):
            v[a] = v[a] + v[b]
            v[b] = _rotated64(v[b], bits) ^ v[a]
        v[2] = _rotated64(v[2], 32)


def siphash24(key: bytes, windows: Words) -> Nonces:
    """Return the SipHash-2-4 (Aumasson and Bernstein 2012) of each window's tokens, 4 bytes each: uint64[P].

    Args:
        key: 16 bytes.
        windows: uint32[P, h].
    """
    lanes, width = windows.shape
    k = [int.from_bytes(key[i : i + 8], "little") for i in (0, 8)] * 2
    v = [np.full(lanes, start ^ half, np.uint64) for start, half in zip(_SIP_START, k, strict=True)]
    tokens = [windows[:, i].astype(np.uint64) for i in range(width)]
    last = np.full(lanes, (4 * width % 256) << 56, np.uint64)
    words = [tokens[i] | (tokens[i + 1] << np.uint64(32)) for i in range(0, width - 1, 2)]
    for word in [*words, (last | tokens[-1]) if width % 2 else last]:
        v[3] = v[3] ^ word
        _sip_rounds(v, 2)
        v[0] = v[0] ^ word
    v[2] = v[2] ^ np.uint64(0xFF)
    _sip_rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def chacha8(key: bytes, counters: Nonces, nonces: Nonces) -> list[Words]:
    """Return one ChaCha block of 8 rounds a lane: 16 words, each uint32[P].

    Args:
        key: 32 bytes.
        counters: 64 bits each, uint64[P].
        nonces: 64 bits each, uint64[P].
    """
    words = np.frombuffer(key, "<u4").astype(np.uint32)
    return chacha8_of_each(np.broadcast_to(words[:, None], (8, len(nonces))), counters, nonces)


def chacha8_of_each(keys: Words, counters: Nonces, nonces: Nonces) -> list[Words]:
    """Return one ChaCha block of 8 rounds a lane, each under a key of its own: 16 words, each uint32[P].

    Args:
        keys: their words as rows, uint32[8, P].
        counters: 64 bits each, uint64[P].
        nonces: 64 bits each, uint64[P].
    """
    constants = np.frombuffer(b"expand 32-byte k", "<u4").astype(np.uint32)
    start = [np.full(len(nonces), constant, np.uint32) for constant in constants] + list(keys)
    for values in (counters, nonces):
        start += [values.astype(np.uint32), (values >> np.uint64(32)).astype(np.uint32)]
    s = list(start)
    for _ in range(4):
        for a, b, c, d in _COLUMNS + _DIAGONALS:
            for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = s[x] + s[y]
                s[z] = _rotated32(s[z] ^ s[x], bits)
    return [x + y for x, y in zip(s, start, strict=True)]


def _of_group(nonces: Nonces) -> NDArray[np.bool_]:
    """Say which windows make steps that a group shares (SPEC_2 §2)."""
    return np.asarray(((nonces >> np.uint64(32)) * np.uint64(3)) >> np.uint64(32) == 0)


class _Proof(ABC):
    """What both marks share: their sub-keys, and the words that tokens meet. Its repr shows nothing of them.

    version: 1, where message m reads entry x + m for token x, or 2, where it reads entry x·2^32 + m (SPEC_2 §1).
    groups: B of version 2, whose messages read the number of a group or of a user instead of m; None: no groups.
    """

    def __init__(self, secret: bytes, label: str, version: int, window: int, groups: int | None = None) -> None:
        person = f"watermark-v{version}".encode("ascii")
        digest = hashlib.blake2b(label.encode("ascii"), key=secret, digest_size=48, person=person).digest()
        self._chacha, self._sip = HiddenValue(digest[:32]), HiddenValue(digest[32:])
        self._version, self._window, self._groups = version, window, groups

    def scores(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        _, _, terms = self._each(tokens, messages, dedup, common_places)
        return terms.shape[1], [math.fsum(message_terms) for message_terms in terms.tolist()]

    def user_evidence(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float], int] | None:
        """See scanner.watermark.format.ProvesUserEvidence: scores of the user steps, among the users of a group."""
        if self._groups is None:
            return None
        _, nonces, terms = self._each(tokens, messages, dedup, common_places)
        user_terms = terms[:, ~_of_group(nonces)]
        return user_terms.shape[1], [math.fsum(message_terms) for message_terms in user_terms.tolist()], self._groups

    def parts(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_] | None, int]:
        places, nonces, terms = self._each(tokens, messages, dedup, common_places)
        is_user_step = None if self._groups is None else ~_of_group(nonces)
        return places, terms, is_user_step, self._groups or 1

    def _each(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int]
    ) -> tuple[NDArray[np.int64], Nonces, NDArray[np.float64]]:
        """Return the P scored positions, their nonces, and what each adds to each of M messages: float64[M, P]."""
        ids, window = tokens.tolist(), self._window
        window_places = range(window, len(ids))
        contexts = [tuple(ids[t - window : t]) for t in window_places]
        indices = counted_positions(window_places, contexts, ids[window:], dedup, common_places)
        places = np.array([window_places[i] for i in indices], np.int64)
        nonces = siphash24(self._sip.value, tokens[places[:, None] + np.arange(-window, 0)])
        first = tokens[places].astype(np.uint64) << np.uint64(0 if self._version == 1 else 32)
        numbers = np.stack([self._numbers(nonces, message) for message in messages])
        entries = (first + numbers).ravel()  # message by message, side by side
        return places, nonces, self._terms(np.tile(nonces, len(messages)), entries).reshape(len(messages), -1)

    def _numbers(self, nonces: Nonces, message: int) -> Nonces:
        """Return the number that a message reads at each position: uint64[P]."""
        if self._groups is None:
            return np.full(len(nonces), message, np.uint64)
        group, user = divmod(message, self._groups)
        return np.where(_of_group(nonces), np.uint64(group), np.uint64(group * 2**16 + user))

    @abstractmethod
    def _terms(self, nonces: Nonces, entries: Nonces) -> NDArray[np.float64]:
        """Return what each position adds to the score of a message."""

    def _words(self, nonces: Nonces, planes: int, digits: int, index: Nonces) -> list[Words]:
        """Return word `index` of the first `digits` planes, where `planes` of them lie side by side in a block."""
        height = 16 // planes
        if self._version == 1:  # sixteen blocks at a time hold a word each, then the next
            group, r = np.divmod(index, np.uint64(16 * height))
            row, lane_of_group = np.divmod(r, np.uint64(16))
            counters = np.uint64(16) * group + lane_of_group
        else:  # one block after the other
            counters, row = np.divmod(index, np.uint64(height))
        blocks, lane = np.stack(chacha8(self._chacha.value, counters, nonces)), np.arange(len(nonces))
        return [blocks[plane * height + row.astype(np.int64), lane] for plane in range(digits)]


class GreenListProof(_Proof):
    """The proof of the green list."""

    def __init__(
        self, secret: bytes, label: str, version: int, window: int, gamma: Fraction, groups: int | None = None
    ) -> None:
        super().__init__(secret, label, version, window, groups)
        self._gamma = gamma

    def _terms(self, nonces: Nonces, entries: Nonces) -> NDArray[np.float64]:
        digits = self._gamma.denominator.bit_length() - 1
        planes = next(power for power in (1, 2, 4, 8) if power >= digits)
        number = np.zeros(len(entries), np.int64)
        for word in self._words(nonces, planes, digits, entries // np.uint64(32)):  # most significant first
            number = 2 * number + ((word >> (entries % np.uint64(32)).astype(np.uint32)) & np.uint32(1))
        return (number < self._gamma.numerator).astype(np.float64)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return log10_binomial(round(score), scored, self._gamma)


class GumbelProof(_Proof):
    """The proof of the Gumbel mark."""

    def _terms(self, nonces: Nonces, entries: Nonces) -> NDArray[np.float64]:
        (words,) = self._words(nonces, 1, 1, entries)
        return np.array([-math.log1p(-word / 2**32) for word in words.tolist()])

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return log10_gamma(score, scored)

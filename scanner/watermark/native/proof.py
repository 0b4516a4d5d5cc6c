"""Prove both versions of the native watermark (SPEC §1, §3; SPEC_3 §1, §3).

SipHash-2-4 and ChaCha8 are in plain numpy, one lane for each scored position.
"""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple, Self

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
    """Return one ChaCha block of 8 rounds for each lane: 16 words, each uint32[P].

    Args:
        key: 32 bytes.
        counters: 64 bits each, uint64[P].
        nonces: 64 bits each, uint64[P].
    """
    words = np.frombuffer(key, "<u4").astype(np.uint32)
    return chacha8_of_each(np.broadcast_to(words[:, None], (8, len(nonces))), counters, nonces)


def chacha8_of_each(keys: Words, counters: Nonces, nonces: Nonces) -> list[Words]:
    """Return one ChaCha block of 8 rounds for each lane, under a key of its own: 16 words, each uint32[P].

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


class _Steps(NamedTuple):
    """The inputs of the draws of P steps. Its repr shows no key.

    nonces: uint64[P].
    keys: their words as rows, uint32[8, P]. If all steps have the same key, it is as secret as the master key.
    is_shared: bool[P], whether a step is a group step.
    """

    nonces: Nonces
    keys: Words
    is_shared: NDArray[np.bool_]

    def __repr__(self) -> str:
        return f"{len(self.nonces)} steps"

    def times(self, count: int) -> "_Steps":
        """Return the steps `count` times, one after the other."""
        return _Steps(np.tile(self.nonces, count), np.tile(self.keys, count), np.tile(self.is_shared, count))


class _Proof(ABC):
    """The common part of all marks: the words of tokens, and their terms. Its repr shows nothing of the key."""

    _window: int
    _groups: int | None = None
    _shift: ClassVar[int]
    """Bits between a token and the number that it is read under: message m reads entry x·2^shift + m for token x."""

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
        _, is_shared, terms = self._each(tokens, messages, dedup, common_places)
        user_terms = terms[:, ~is_shared]
        return user_terms.shape[1], [math.fsum(message_terms) for message_terms in user_terms.tolist()], self._groups

    def parts(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_] | None, int]:
        places, is_shared, terms = self._each(tokens, messages, dedup, common_places)
        return places, terms, None if self._groups is None else ~is_shared, self._groups or 1

    def _each(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
        """Return the P scored positions, whether each is a group step, and its terms for each of M messages: [M, P]."""
        ids, window = tokens.tolist(), self._window
        window_places = range(window, len(ids))
        contexts = [tuple(ids[t - window : t]) for t in window_places]
        indices = counted_positions(window_places, contexts, ids[window:], dedup, common_places)
        places = np.array([window_places[i] for i in indices], np.int64)
        places = places[~self._are_shown(tokens[places[:, None] + np.arange(-window, 0)])]
        steps = self._steps(tokens[places[:, None] + np.arange(-window, 0)])
        first = tokens[places].astype(np.uint64) << np.uint64(self._shift)
        numbers = np.stack([self._numbers(steps.is_shared, message) for message in messages])
        entries = (first + numbers).ravel()  # message by message, side by side
        return places, steps.is_shared, self._terms(steps.times(len(messages)), entries).reshape(len(messages), -1)

    def _are_shown(self, windows: Words) -> NDArray[np.bool_]:
        """Return which windows, uint32[P, h], have a shown seed: bool[P]."""
        return np.zeros(len(windows), np.bool_)

    @abstractmethod
    def _steps(self, windows: Words) -> _Steps:
        """Return the steps after windows, uint32[P, h]."""

    def _numbers(self, is_shared: NDArray[np.bool_], message: int) -> Nonces:
        """Return the number that a message reads at each position: uint64[P]."""
        if self._groups is None:
            return np.full(len(is_shared), message, np.uint64)
        group, user = divmod(message, self._groups)
        return np.where(is_shared, np.uint64(group), np.uint64(group * 2**16 + user))

    @abstractmethod
    def _terms(self, steps: _Steps, entries: Nonces) -> NDArray[np.float64]:
        """Return the term of each position for the score of a message."""

    @abstractmethod
    def _place(self, height: int, index: Nonces) -> tuple[Nonces, Nonces]:
        """Return counter and row of the block that holds word `index` of a plane of `height` words."""

    def _words(self, steps: _Steps, planes: int, digits: int, index: Nonces, first_block: int = 0) -> list[Words]:
        """Return word `index` of the first `digits` planes. A block holds `planes` planes side by side."""
        height = 16 // planes
        counters, row = self._place(height, index)
        blocks = np.stack(chacha8_of_each(steps.keys, counters + np.uint64(first_block), steps.nonces))
        lane = np.arange(len(index))
        return [blocks[plane * height + row.astype(np.int64), lane] for plane in range(digits)]

    def _number_at(self, steps: _Steps, planes: int, digits: int, entries: Nonces, first_block: int = 0) -> Words:
        """Return the integer whose binary digits are at each entry of the planes, most significant first."""
        number = np.zeros(len(entries), np.uint32)
        for word in self._words(steps, planes, digits, entries // np.uint64(32), first_block):
            number = number * np.uint32(2) + ((word >> (entries % np.uint64(32)).astype(np.uint32)) & np.uint32(1))
        return number


class _Version1(_Proof):
    """Steps of version 1. They share one key (SPEC §1)."""

    _shift = 0

    def __init__(self, secret: bytes, label: str, window: int) -> None:
        digest = hashlib.blake2b(label.encode("ascii"), key=secret, digest_size=48, person=b"watermark-v1").digest()
        self._chacha, self._sip = HiddenValue(digest[:32]), HiddenValue(digest[32:])
        self._window = window

    def _steps(self, windows: Words) -> _Steps:
        nonces = siphash24(self._sip.value, windows)
        key = np.frombuffer(self._chacha.value, "<u4").astype(np.uint32)
        return _Steps(nonces, np.tile(key[:, None], len(nonces)), np.zeros(len(nonces), np.bool_))

    def _place(self, height: int, index: Nonces) -> tuple[Nonces, Nonces]:
        group, r = np.divmod(index, np.uint64(16 * height))  # sixteen blocks at a time hold a word each, then the next
        row, lane = np.divmod(r, np.uint64(16))
        return np.uint64(16) * group + lane, row


class _Version3(_Proof):
    """Steps of version 3. Each has a key of its own (SPEC_3 §1).

    groups: B. Messages then read the number of a group or of a user instead of m. None: no groups.
    beacon: R, 32 bytes.
    """

    _shift = 32

    def __init__(self, secret: bytes, label: str, window: int, groups: int | None, beacon: bytes) -> None:
        seeds = int(label.rpartition("=")[2])
        public = hashlib.blake2b(f"h={window};seeds={seeds}".encode(), digest_size=32, person=b"windows-v3").digest()
        seed_key = hashlib.blake2b(label.encode(), key=secret, digest_size=32, person=b"watermark-v3").digest()
        self._seed_key, self._public, self._beacon, self._seeds = HiddenValue(seed_key), public, beacon, seeds
        self._window, self._groups = window, groups
        self._shown = HiddenValue(frozenset[int]())

    def leave_out(self, buckets: NDArray[np.int64]) -> Self:
        """See LeavesOut."""
        other = copy.copy(self)
        other._shown = HiddenValue(frozenset(buckets.tolist()))
        return other

    def _are_shown(self, windows: Words) -> NDArray[np.bool_]:
        nonces = siphash24(self._public[:16], windows).tolist()
        return np.array([nonce >> 64 - self._seeds in self._shown.value for nonce in nonces], np.bool_)

    def _steps(self, windows: Words) -> _Steps:
        first, second = siphash24(self._public[:16], windows), siphash24(self._public[16:], windows)
        seeds = chacha8(self._seed_key.value, np.zeros_like(first), first >> np.uint64(64 - self._seeds))[:8]
        keys = np.stack(seeds) ^ np.frombuffer(self._beacon, "<u4").astype(np.uint32)[:, None]
        keys[0] ^= second.astype(np.uint32)
        keys[1] ^= (second >> np.uint64(32)).astype(np.uint32)
        return _Steps(first, keys, keys[7].astype(np.uint64) * np.uint64(3) >> np.uint64(32) == 0)

    def _place(self, height: int, index: Nonces) -> tuple[Nonces, Nonces]:
        counters, row = np.divmod(index, np.uint64(height))  # one block after the other
        return counters, row


class _GreenList(_Proof):
    """Terms and law of a green list."""

    _gamma: Fraction

    def _terms(self, steps: _Steps, entries: Nonces) -> NDArray[np.float64]:
        digits = self._gamma.denominator.bit_length() - 1
        planes = next(power for power in (1, 2, 4, 8) if power >= digits)
        number = self._number_at(steps, planes, digits, entries)
        return (number < self._gamma.numerator).astype(np.float64)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return log10_binomial(round(score), scored, self._gamma)


class _Gumbel(_Proof):
    """Terms and law of a Gumbel mark."""

    def _terms(self, steps: _Steps, entries: Nonces) -> NDArray[np.float64]:
        return np.array([-math.log1p(-word / 2**32) for word in self._draws(steps, entries).tolist()])

    def _draws(self, steps: _Steps, entries: Nonces) -> Words:
        """Return the draw w of each entry: uint32[P]."""
        (words,) = self._words(steps, 1, 1, entries)
        return words

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return log10_gamma(score, scored)


class GreenListProof(_GreenList, _Version1):
    """The proof of the green list of version 1."""

    def __init__(self, secret: bytes, label: str, window: int, gamma: Fraction) -> None:
        super().__init__(secret, label, window)
        self._gamma = gamma


class GumbelProof(_Gumbel, _Version1):
    """The proof of the Gumbel mark of version 1."""


class GreenListProof3(_GreenList, _Version3):
    """The proof of the green list of version 3."""

    def __init__(
        self, secret: bytes, label: str, window: int, gamma: Fraction, groups: int | None, beacon: bytes
    ) -> None:
        super().__init__(secret, label, window, groups, beacon)
        self._gamma = gamma


class GumbelProof3(_Gumbel, _Version3):
    """The proof of the Gumbel mark of version 3."""

    def _draws(self, steps: _Steps, entries: Nonces) -> Words:
        words = super()._draws(steps, entries)
        if self._groups is None:
            return words
        return self._number_at(steps, 8, 8, entries, 2**63) * np.uint32(2**24) + (words >> np.uint32(8))

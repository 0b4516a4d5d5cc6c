"""Prove SGLang's marks by MurmurHash3 (x86, 32 bits) in numpy, one lane for each scored position."""

import hmac
import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.proof import ONE_SUM, KeyWeights, counted_positions, floored, log10_gamma

Words = NDArray[np.uint32]


def _times(x: Words, factor: int) -> Words:
    return x * np.uint32(factor)


def _rotated(x: Words, bits: int) -> Words:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def murmur3(columns: Sequence[Words]) -> Words:
    """Return MurmurHash3_x86_32, seed 0, of each lane's words: uint32[P]."""
    h = np.zeros(len(columns[0]), np.uint32)
    for column in columns:
        h = _times(_rotated(h ^ _times(_rotated(_times(column, 0xCC9E2D51), 15), 0x1B873593), 13), 5)
        h = h + np.uint32(0xE6546B64)
    h = h ^ np.uint32(4 * len(columns))
    h = _times(h ^ (h >> np.uint32(16)), 0x85EBCA6B)
    h = _times(h ^ (h >> np.uint32(13)), 0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


class SglangProof:
    """The proof of one key's mark, or of the mark of two keys of which a coin selects one at each context.

    Its repr shows nothing of them.

    secret: 8 bytes of each key, big-endian.
    width: of the context.
    share: share of the contexts that the first of two keys marks.
    bits: no p-value is below 2^-bits.
    """

    def __init__(self, secret: bytes, width: int, share: float, bits: int) -> None:
        self._keys = HiddenValue([int.from_bytes(secret[i : i + 8], "big") for i in range(0, len(secret), 8)])
        self._width, self._share, self._bits = width, share, bits

    def scores(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath."""
        places, terms = self.terms_of_keys(tokens, messages, dedup, common_places)
        return len(places), [math.fsum(message_terms) for message_terms in terms[:, 0].tolist()]

    @property
    def weights(self) -> KeyWeights:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys. There is one sum, of the key that a coin selects."""
        return ONE_SUM

    def terms_of_keys(
        self, tokens: Words, messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """See scanner.watermark.by_levels.ProvesTermsOfKeys."""
        width = self._width
        targets = tokens[width:]
        if not len(targets):
            return np.empty(0, np.int64), np.empty((len(messages), 1, 0))
        hashes = murmur3([tokens[i : len(tokens) - width + i] for i in range(width)])
        places = range(width, len(tokens))
        indices = np.array(counted_positions(places, hashes.tolist(), targets.tolist(), dedup, common_places), np.int64)
        terms = [self._terms(self._of(message), hashes[indices], targets[indices]) for message in messages]
        return indices + width, np.array(terms).reshape(len(messages), 1, len(indices))

    def _of(self, message: int) -> list[int]:
        return self._keys.value

    def _terms(self, keys: list[int], contexts: Words, targets: Words) -> list[float]:
        """Return the term of each position under the keys of a message."""
        halves = [np.full(len(targets), half, np.uint32) for key in keys for half in (key % 2**32, key >> 32)]
        draws = [murmur3([*halves[i : i + 2], contexts, targets]) for i in range(0, len(halves), 2)]
        chosen_draws = draws[0]
        if len(keys) == 2:
            chosen_draws = np.where(murmur3([*halves, contexts]) < int(self._share * 2**32), *draws)
        return [-math.log1p(-draw / 2**32) for draw in chosen_draws.tolist()]

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return floored(log10_gamma(score, scored), self._bits)


class SglangUsersProof(SglangProof):
    """The proof of marks with a key for each message, derived from a master key."""

    def __init__(self, secret: bytes, width: int, bits: int) -> None:
        super().__init__(b"", width, 1.0, bits)
        self._master = HiddenValue(secret)

    def _of(self, message: int) -> list[int]:
        data = b"brickscan sglang user key v1" + message.to_bytes(8, "big")
        return [int.from_bytes(hmac.digest(self._master.value, data, "sha256")[:8], "big")]

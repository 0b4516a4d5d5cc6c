"""Prove SBW's mark in plain Python, one position after the other."""

from collections.abc import Collection, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.proof import counted_positions, floored, log10_binomial
from scanner.watermark.stacks.plain_draws import philox, signed


def hashed(number: int) -> int:
    """Return the package's hash of a number's low 32 bits, as a signed number of 32 bits."""

    def fold(i: int) -> int:
        return (i + 2**31) % 2**32 - 2**31

    i = fold(number + 1)
    i = fold(i - (i << 6))
    i = i ^ (i >> 17)
    i = fold(i - (i << 9))
    i = fold(i ^ (i << 4))
    i = fold(i - (i << 3))
    i = fold(i ^ (i << 10))
    return i ^ (i >> 15)


class SbwProof:
    """The proof of a hash key's mark. Its repr shows nothing of the key.

    seeding: selfhash, minhash or additive.
    below: how many numbers of 31 bits are green.
    """

    def __init__(self, secret: bytes, seeding: str, width: int, below: int) -> None:
        self._key, self._seeding, self._below = HiddenValue(int.from_bytes(secret, "big")), seeding, below
        self._before = width - (seeding == "selfhash")
        self._of_nothing = hashed(0) % 2**32 if seeding == "minhash" else 0

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath. The mark has one message."""
        ids, window = tokens.tolist(), self._before
        streams = {t: self._stream(ids[t - window : t + 1]) for t in range(window, len(ids))}
        places = [t for t, stream in streams.items() if stream % 2**32 != self._of_nothing]
        low = [streams[t] % 2**32 for t in places]
        scored_places = [
            places[i] for i in counted_positions(places, low, [ids[t] for t in places], dedup, common_places)
        ]
        green = sum(self._word(streams[t], ids[t]) % 2**31 < self._below for t in scored_places)
        return len(scored_places), [float(green)] * len(messages)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return floored(log10_binomial(int(score), scored, Fraction(self._below, 2**31)), 32)

    def _stream(self, window: list[int]) -> int:
        """Return the key of Philox made of the tokens before the last one, or of all of them.

        It is a signed number of 64 bits.
        """
        key = self._key.value
        if self._seeding == "additive":
            return signed(key * sum(window[:-1]))
        if self._seeding == "minhash":
            return min(hashed(key * token) for token in window[:-1])
        return min(signed(key * hashed(token) * hashed(window[-1])) for token in window)

    @staticmethod
    def _word(stream: int, token: int) -> int:
        zero = np.zeros(1, np.uint64)
        low, high = (np.array([half], np.uint64) for half in (stream % 2**32, (stream >> 32) % 2**32))
        words = philox([np.array([token // 4], np.uint64), zero, zero, zero], low, high)
        return int(words[token % 4][0])

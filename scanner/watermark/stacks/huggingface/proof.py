"""Prove transformers' green lists in plain Python, one scored position after the other."""

from collections.abc import Collection, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.proof import counted_positions, floored, log10_binomial
from scanner.watermark.stacks.plain_draws import shuffled, signed

_MOD = 2**64 - 1
_TABLE_ENTRIES = 1_000_003


class KgwProof:
    """The proof of a hashing key's mark. Its repr shows nothing of the key."""

    def __init__(self, secret: bytes, seeding: str, width: int, size: int, green: int) -> None:
        self._key, self._left, self._width = HiddenValue(int.from_bytes(secret, "big")), seeding == "lefthash", width
        self._size, self._green = size, green
        self._table = HiddenValue([] if self._left else shuffled(self._key.value, _TABLE_ENTRIES, _TABLE_ENTRIES))

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath. The mark has one message."""
        ids, window = tokens.tolist(), self._width if self._left else self._width - 1
        places = range(window, len(ids))
        seeds = [self._seed(ids[t - window : t + 1]) % 2**32 for t in places]
        keyless = {t for t, seed in zip(places, seeds, strict=True) if self._left and seed == 0}
        indices = counted_positions(places, seeds, ids[window:], dedup, keyless.union(common_places))
        lists = {seed: set(shuffled(seed, self._size, self._green)) for seed in {seeds[i] for i in indices}}
        return len(indices), [float(sum(ids[places[i]] in lists[seeds[i]] for i in indices))] * len(messages)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        return floored(log10_binomial(int(score), scored, Fraction(self._green, self._size)), 32)

    def _seed(self, window: list[int]) -> int:
        if self._left:
            return self._key.value * window[-2] % _MOD
        entries = [self._table.value[token % _TABLE_ENTRIES] + 1 for token in window]
        return min(signed(self._key.value * entry * entries[-1]) for entry in entries) % _MOD

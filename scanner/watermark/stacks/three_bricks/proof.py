"""Prove the marks of the paper's code in plain Python, one scored position after the other."""

import math
from collections.abc import Collection, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.hidden_value import HiddenValue
from scanner.watermark.proof import counted_positions, floored, log10_binomial, log10_gamma
from scanner.watermark.stacks.plain_draws import shuffled, signed, words

_MOD = 2**64 - 1
_TABLE_ENTRIES = 1_000_003


class ThreeBricksProof:
    """The proof of the mark of a seed and a salt. Without green tokens it is the Gumbel mark.

    Its repr shows nothing of them.
    """

    def __init__(self, secret: bytes, window: int, seeding: str, table_seed: int, size: int, green: int) -> None:
        self._key = HiddenValue((int.from_bytes(secret[:8], "big"), int.from_bytes(secret[8:], "big")))
        self._window, self._seeding, self._size, self._green = window, seeding, size, green
        self._table = [] if seeding == "hash" else shuffled(table_seed, _TABLE_ENTRIES, _TABLE_ENTRIES)

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, common_places: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.ProofPath."""
        ids, h = tokens.tolist(), self._window
        places = range(h + 1, len(ids))
        seeds = [self._seed(ids[t - h : t]) % 2**32 for t in places]
        no_draws = {t for t, seed in zip(places, seeds, strict=True) if ids[t] >= self._size or not self._keyed(seed)}
        indices = counted_positions(places, seeds, ids[h + 1 :], dedup, no_draws.union(common_places))
        sums = np.zeros((len(messages), len(indices)))
        for n, i in enumerate(indices):
            entries = [(ids[places[i]] + message) % self._size for message in messages]
            if self._green:
                green = set(shuffled(seeds[i], self._size, self._green))
                sums[:, n] = [token in green for token in entries]
            else:
                draws = words(seeds[i], self._size)
                sums[:, n] = [-math.log1p(-(draws[token] % 2**24) / 2**24) for token in entries]
        return len(indices), [math.fsum(row) for row in sums]

    def _keyed(self, seed: int) -> bool:
        """Return whether a window's seed changes with the key."""
        return (
            seed != self._table[0] if self._table else seed >= self._size or self._seed([0] * self._window) % _MOD > 0
        )

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.ProofPath."""
        if self._green:
            return floored(log10_binomial(int(score), scored, Fraction(self._green, self._size)), 32)
        return floored(log10_gamma(score, scored), 32)

    def _seed(self, window: list[int]) -> int:
        seed, salt = self._key.value
        if self._seeding == "hash":
            for token in window:
                seed = (seed * salt + token) % _MOD
            return seed
        if self._seeding == "min":
            return min(self._table[signed(salt * token) % _TABLE_ENTRIES] for token in window)
        return self._table[signed(salt * (sum(window) if self._seeding == "additive" else window[0])) % _TABLE_ENTRIES]

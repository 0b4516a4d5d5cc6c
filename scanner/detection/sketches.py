"""Sketches of texts, by which near-duplicates are recognised without their tokens (MinHash, Broder 1997).

Two texts agree in a place of their sketches with a probability of |A∩B|/|A∪B|, A and B being their sets of n-grams.
"""

import numpy as np
from numpy.typing import NDArray

PLACES = 64
"""Places of a sketch, 4 bytes each."""

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # constants of splitmix64
_STEP = np.uint64(0x9E3779B97F4A7C15)
_SEEDS = (np.arange(1, PLACES + 1, dtype=np.uint64) * _STEP)[:, None]


def sketch(ids: NDArray[np.uint32], context: int) -> bytes | None:
    """PLACES · 4 bytes of a text's tokens, uint32[T]; None where it has none.

    Args:
        ids: its tokens.
        context: how many previous tokens a key reads with a token; n-grams have one token more, and at most T.
    """
    if not len(ids):
        return None
    n = min(context + 1, len(ids))
    grams = np.zeros(len(ids) - n + 1, np.uint64)
    for place in range(n):
        grams = _mixed(grams ^ ids[place : place + len(grams)].astype(np.uint64))
    least = _mixed(np.unique(grams)[None, :] ^ _SEEDS).min(axis=1)
    return bytes((least >> np.uint64(32)).astype("<u4").tobytes())


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A permutation of 64 bits (splitmix64's)."""
    value = value + _STEP
    value = (value ^ (value >> np.uint64(30))) * _MIX[0]
    value = (value ^ (value >> np.uint64(27))) * _MIX[1]
    return value ^ (value >> np.uint64(31))

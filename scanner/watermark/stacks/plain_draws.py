"""Draw from generators that several stacks use, in plain Python and numpy. Proofs are made of these draws.

The Mersenne Twister is numpy's own. numpy seeds it as torch's CPU generator does if the seed is one number of 32 bits,
as old versions did. Philox4x32-10 draws many lanes at once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[np.uint64]
_32 = np.uint64(32)
_MASK = np.uint64(2**32 - 1)


def words(seed: int, count: int) -> list[int]:
    """Return the first words of the generator."""
    draws: list[int] = np.random.RandomState(seed % 2**32).randint(0, 2**32, count, np.uint32).tolist()
    return draws


def shuffled(seed: int, size: int, steps: int) -> list[int]:
    """Return the first values of a permutation of `size` values, after `steps` swaps."""
    values = list(range(size))
    for i, word in enumerate(words(seed, steps)):
        j = i + word % (size - i)
        values[i], values[j] = values[j], values[i]
    return values[:steps]


def signed(number: int) -> int:
    """Return the number as signed 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def philox(counter: Sequence[Lanes], low: Lanes, high: Lanes) -> list[Lanes]:
    """Return Philox4x32-10 (Salmon et al. 2011) of each lane: four words of 32 bits, held in 64."""
    c = list(counter)
    for number in range(10):
        k0, k1 = (low + np.uint64(number * 0x9E3779B9)) & _MASK, (high + np.uint64(number * 0xBB67AE85)) & _MASK
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> _32) ^ c[1] ^ k0, q & _MASK, (p >> _32) ^ c[3] ^ k1, p & _MASK]
    return c

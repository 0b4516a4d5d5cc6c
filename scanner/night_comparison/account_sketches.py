"""About how many distinct accounts posted: a sketch of each shard, from which one of a night is made (HyperLogLog).

A register holds the most zeros that the digest of one of its accounts begins with, so the registers of a night are the
largest of those of its shards (Flajolet, Fusy, Gandouet and Meunier, 2007).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

REGISTERS = 256
"""Registers of a sketch: the standard error of a number is 1.04 / √256, 6.5 %."""

_BITS = 53
"""First bits of a digest whose zeros are counted, as many as a float holds; the last ones choose its register."""


def sketch_of(digests: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the sketch of accounts by their digests: uint8[REGISTERS]."""
    registers = np.zeros(REGISTERS, np.uint8)
    bits = digests.view(np.uint64) >> np.uint64(64 - _BITS)
    _, length = np.frexp(bits.astype(np.float64))  # of the binary number
    np.maximum.at(registers, digests.view(np.uint64) % np.uint64(REGISTERS), (_BITS + 1 - length).astype(np.uint8))
    return registers


def estimate_accounts(sketches: Iterable[bytes]) -> float:
    """Estimate how many distinct accounts several sketches have together."""
    rows = [np.frombuffer(sketch, np.uint8) for sketch in sketches]
    registers = np.max(rows, axis=0) if rows else np.zeros(REGISTERS, np.uint8)
    estimate = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / float(np.sum(2.0 ** -registers.astype(np.float64)))
    empty = int(np.count_nonzero(registers == 0))
    # few accounts leave registers empty, which tell better how many they are
    return REGISTERS * float(np.log(REGISTERS / empty)) if estimate <= 2.5 * REGISTERS and empty else estimate

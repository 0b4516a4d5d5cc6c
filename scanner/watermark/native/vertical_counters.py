"""Add bits many at a time in vertical counters: one word holds bit l of the counts of many numbers.

Example: numbers 0, 1 and 2 have the counts 3, 1 and 2. The word of bit 0 is 011 (numbers 1 and 0), the word of bit 1 is
101 (numbers 2 and 0).
"""

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel


@kernel
def add3(a: uint64, b: uint64, c: uint64) -> tuple[uint64, uint64]:
    """Return sum and carry of three bits, in 64 places."""
    half = a ^ b
    return half ^ c, (a & b) | (half & c)


@kernel
def bit_length(number: int) -> int:
    """Return how many binary digits a number of 0 or more has."""
    bits = 0
    while number >> bits:
        bits += 1
    return bits


@kernel
def first_bits(words: NDArray[np.uint64], count: int) -> None:
    """Set the first `count` bits of the words, and no others."""
    words[:] = 0
    words[: count >> 6] = ~uint64(0)
    if count & 63:
        words[count >> 6] = (uint64(1) << uint64(count & 63)) - uint64(1)


@kernel
def largest(counters: NDArray[np.uint64], candidates: NDArray[np.uint64]) -> tuple[int, int]:
    """Return the largest count among the candidates and the first place that has it. Narrow the candidates to those."""
    largest = 0
    for level in range(counters.shape[0] - 1, -1, -1):
        common_bits = uint64(0)
        for w in range(len(candidates)):
            common_bits |= candidates[w] & counters[level, w]
        if common_bits:
            largest |= 1 << level
            for w in range(len(candidates)):
                candidates[w] &= counters[level, w]
    for w in range(len(candidates)):
        if candidates[w]:
            bit = 0
            while not (candidates[w] >> uint64(bit)) & uint64(1):
                bit += 1
            return largest, 64 * w + bit
    return largest, -1


@kernel
def at_least(
    counters: NDArray[np.uint64], critical: int, valid: NDArray[np.uint64], passing: NDArray[np.uint64]
) -> np.int64:
    """Count the valid vertical counters that are critical or more.

    They are compared bit by bit, from the last bit up.
    """
    if critical >> len(counters):
        return np.int64(0)
    passing[:] = valid
    for level in range(len(counters)):
        if (critical >> level) & 1:
            for w in range(len(passing)):
                passing[w] &= counters[level, w]
        else:
            for w in range(len(passing)):
                passing[w] |= counters[level, w]
    total = np.int64(0)
    for w in range(len(passing)):
        total += _ones(passing[w] & valid[w])
    return total


@kernel
def _ones(x: uint64) -> np.int64:
    x = x - ((x >> uint64(1)) & uint64(0x5555555555555555))
    x = (x & uint64(0x3333333333333333)) + ((x >> uint64(2)) & uint64(0x3333333333333333))
    x = (x + (x >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * uint64(0x0101010101010101)) >> uint64(56))

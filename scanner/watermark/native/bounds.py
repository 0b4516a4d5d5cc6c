"""An upper bound on every message's Gumbel score, from the leading bits of its draws: who can still be best?

−log2(1−r) = 32 − log2(2^32 − w), and the bits of a float are a logarithm to base 2 that runs straight between powers of
two, below the true one by up to 0.0861. Sums of these bits therefore bound every score from above, at a quarter of the
cost of the logarithm itself, and only the few messages whose bound reaches an exact score need theirs.
"""

import math

import numpy as np
from numpy import float32, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import GROUP, LANES, chacha8_group

LONGEST = 2048
"""Most positions for which the bound is used: sums fit 32 bits, and few messages reach an exact score by mistake."""

TILE = 8192
"""Messages that are summed at a time: their sums stay in the first-level cache."""

TOGETHER = 4
"""Groups whose bits are added by one loop."""

PER_LN2 = 2.0**11 / math.log(2.0)  # units of the sums in one ln 2
MOST_OF_A_TERM = (127 + 32) << 11  # a term at log2(2^32 − w) = −127


@kernel
def _add_bits(draws: NDArray[np.uint32], sums: NDArray[np.uint32]) -> None:
    """Add to sums the exponent and 11 bits of the fraction of (2^32 − w) as a float, which is at most one too small."""
    for i in range(len(draws)):
        rest = float32(uint32(~draws[i] | uint32(1)))
        sums[i] += uint32(rest.view(np.uint32) >> uint32(12))


@kernel
def sum_bits(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first_message: int,
    sums: NDArray[np.uint32],
) -> None:
    """Sums of one document under a tile of messages; the larger a score, the smaller its sum.

    Args:
        key: uint32[8].
        ids: uint32[T], scored tokens, T ≤ LONGEST.
        nonces: uint64[T].
        first_message: of the tile.
        sums: uint32[GROUP + messages + GROUP], written; message first_message + i at GROUP + i, the rest is waste.
    """
    block = np.empty(TOGETHER * GROUP, np.uint32)
    messages = len(sums) - 2 * GROUP
    sums[:] = uint32(0)
    for t in range(len(ids)):
        start = int(ids[t]) + first_message
        first, stop = start // GROUP, (start + messages - 1) // GROUP + 1
        at = GROUP - (start - first * GROUP)
        for begin in range(first, stop, TOGETHER):
            groups = min(TOGETHER, stop - begin)
            for group in range(groups):
                out = block[group * GROUP : (group + 1) * GROUP]
                chacha8_group(key, uint64((begin + group) * LANES), nonces[t], out)
            _add_bits(block[: groups * GROUP], sums[at : at + groups * GROUP])
            at += groups * GROUP


@kernel
def largest_sum_of(score: float, scored: int) -> int:
    """A message whose sum is larger than this has a smaller score than `score`, over so many positions.

    Cutting off bits makes a sum smaller and the bound larger, as it may. A conversion rounds up by 2^-24 at most, far
    less than one unit over all positions; 1e-9 is more than double-precision sums can miss.
    """
    return int(scored * MOST_OF_A_TERM - score * (1.0 - 1e-9) * PER_LN2) + 2

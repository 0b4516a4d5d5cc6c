"""Bounds of Gumbel scores by sums that a device takes: who can be among the best is scored exactly on the CPU.

−ln(1−r) = ln 2 · (32 − log2 v), v = 2^32 − w. A thread multiplies the v of its numbers in 32-bit floats, moves the
exponent of every fourth product into an integer, and at the end reads off the leading bits of a logarithm to base 2
that runs straight between powers of two, and so below the true one. Every v is made smaller, never larger: ~w | 1 is v
or v − 1. Only two roundings a token can make a product larger, by 2^-24 each: the integer's to a float, and the
product's. Together they are less than 2^-22 units of log2 a token, which is added.

So a sum bounds its number's score from above. The numbers of the smallest sums are scored exactly, in double precision.
A number whose bound lies below the smallest of these scores is beaten by all of them. The remaining numbers are scored
exactly as well.
"""

import math

import numpy as np
from numpy.typing import NDArray

LONGEST = 1 << 22
"""Most positions of a document: sums fit 31 bits, and double-precision sums miss by less than 1e-9 of themselves."""

FRACTION = 3
"""Binary digits of a sum after the point."""

SUMS_BYTES = 1 << 30
"""Bytes of sums of all messages that are held at a time, for as many documents as fit."""


def bound(sums: NDArray[np.integer], scored: NDArray[np.int64]) -> NDArray[np.float64]:
    """The score that no message exceeds, by its sum and the scored positions."""
    return math.log(2.0) * (scored * (32.0 + 2.0**-22) - sums * 2.0**-FRACTION)


def limit(reached: NDArray[np.float64], scored: NDArray[np.int64]) -> NDArray[np.int64]:
    """Largest sum of a message whose score can be as large as `reached`: int64[D].

    1e-9 is more than the error of two double-precision sums of LONGEST terms.
    """
    most = scored * (32.0 + 2.0**-22) - reached * ((1.0 - 1e-9) / math.log(2.0))
    return np.ceil(most * 2.0**FRACTION).astype(np.int64) + 1

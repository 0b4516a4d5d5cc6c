"""γ as kernels take it. Plain Python."""

from typing import NamedTuple


class GreenRule(NamedTuple):
    """γ = n / 2^bits in lowest terms, and how many planes a block carries (SPEC §1)."""

    n: int
    bits: int
    planes: int

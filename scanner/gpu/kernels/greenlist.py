"""Green bits of many numbers a word, and vertical counters of them."""

import triton
import triton.language as tl


@triton.jit
def below(block, k: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, HEIGHT: tl.constexpr):
    """Green bits of word k: where the integer whose digits stand in the planes is < N (odd), from the last digit up."""
    out = ~block[(BITS - 1) * HEIGHT + k]
    for q in tl.static_range(1, BITS):
        plane = ~block[(BITS - 1 - q) * HEIGHT + k]
        if (N >> q) & 1:
            out = plane | out
        else:
            out = plane & out
    return out


@triton.jit
def _add3(a, b, c):
    half = a ^ b
    return half ^ c, (a & b) | (half & c)


@triton.jit
def add_rows(counters, r0, r1, r2, r3, LEVELS: tl.constexpr):
    """Add four rows of bits into vertical counters: carry-save adders, then the carry ripples up."""
    ones, a = _add3(counters[0], r0, r1)
    ones, b = _add3(ones, r2, r3)
    twos, carry = _add3(counters[1], a, b)
    added = (ones, twos)
    for level in tl.static_range(2, LEVELS):
        old = counters[level]
        added = added + (old ^ carry,)
        carry = old & carry
    return added

"""Compute torch's CPU generator, with which several stacks draw their marks, and arithmetic of their seeds.

It is MT19937 (M. Matsumoto, T. Nishimura 1998) as torch runs it, with torch's `randperm` and `randint`. It is seeded by
32 bits: torch takes the low bits of a longer seed. CUDA's generator gives other numbers, so these functions cannot read
text that was marked on a GPU with such a seed.
"""

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel

STATE_WORDS = 624
"""Number of words of the generator's state."""

_M = 397


@kernel
def seeded(seed: uint32, state: NDArray[np.uint32]) -> None:
    """Fill a state, uint32[STATE_WORDS], from a seed. `turned` comes before its first word."""
    state[0] = seed
    for i in range(1, STATE_WORDS):
        last = uint32(state[i - 1])
        state[i] = uint32(uint32(1812433253) * uint32(last ^ uint32(last >> uint32(30))) + uint32(i))


@inlined
def _twist(high: uint32, low: uint32, word_ahead: uint32) -> uint32:
    y = uint32(uint32(high & uint32(0x80000000)) | uint32(low & uint32(0x7FFFFFFF)))
    odd_mask = uint32(uint32(0) - uint32(y & uint32(1)))
    return uint32(uint32(word_ahead ^ uint32(y >> uint32(1))) ^ uint32(odd_mask & uint32(0x9908B0DF)))


@kernel
def turned(state: NDArray[np.uint32]) -> None:
    """Turn a state into that of the next STATE_WORDS words."""
    for i in range(STATE_WORDS - _M):
        state[i] = _twist(state[i], state[i + 1], state[i + _M])
    for i in range(STATE_WORDS - _M, STATE_WORDS - 1):
        state[i] = _twist(state[i], state[i + 1], state[i + _M - STATE_WORDS])
    state[STATE_WORDS - 1] = _twist(state[STATE_WORDS - 1], state[0], state[_M - 1])


@inlined
def tempered(word: uint32) -> uint32:
    """Return the word that the generator outputs for a word of its state."""
    y = uint32(word ^ uint32(word >> uint32(11)))
    y = uint32(y ^ uint32(uint32(y << uint32(7)) & uint32(0x9D2C5680)))
    y = uint32(y ^ uint32(uint32(y << uint32(15)) & uint32(0xEFC60000)))
    return uint32(y ^ uint32(y >> uint32(18)))


@kernel
def first_words(seed: uint32, out: NDArray[np.uint32]) -> None:
    """Write the first words of a seed: fill uint32[n]."""
    state = np.empty(STATE_WORDS, np.uint32)
    seeded(seed, state)
    for begin in range(0, len(out), STATE_WORDS):
        turned(state)
        for i in range(min(STATE_WORDS, len(out) - begin)):
            out[begin + i] = tempered(state[i])


@kernel
def word_at(seed: uint32, place: int) -> uint32:
    """Return the word at a place of a seed's sequence."""
    state = np.empty(STATE_WORDS, np.uint32)
    seeded(seed, state)
    for _ in range(place // STATE_WORDS + 1):
        turned(state)
    return tempered(state[place % STATE_WORDS])


@kernel
def is_among_first(seed: uint32, value: int, size: int, first: int) -> bool:
    """Return whether a value is among the first `first` values of torch's randperm(size).

    The shuffle swaps place i with place i + word mod (size − i), and then place i is done. One value is followed
    through the swaps, so no permutation is written.
    """
    state = np.empty(STATE_WORDS, np.uint32)
    seeded(seed, state)
    place = uint32(value)
    for begin in range(0, first, STATE_WORDS):
        turned(state)
        for k in range(min(STATE_WORDS, first - begin)):
            i = uint32(begin + k)
            partner = uint32(i + tempered(state[k]) % uint32(uint32(size) - i))
            if partner == place:
                return True
            if i == place:
                place = partner
    return False


@kernel
def first_of_permutation(seed: uint32, first: int, identity: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    """Write the first values of torch's randperm.

    Args:
        seed: of the generator.
        first: number of values.
        identity: 0 … size−1, int32[size]. It is changed meanwhile, and is the identity again afterwards.
        out: int32[first], written.
    """
    state = np.empty(STATE_WORDS, np.uint32)
    swaps = np.empty(first, np.int32)
    seeded(seed, state)
    size = len(identity)
    for begin in range(0, first, STATE_WORDS):
        turned(state)
        for k in range(min(STATE_WORDS, first - begin)):
            i = begin + k
            partner = i + np.int64(tempered(state[k]) % uint32(size - i))
            swaps[i] = partner
            element = identity[partner]
            identity[partner] = identity[i]
            identity[i] = element
            out[i] = element
    for i in range(first):
        identity[swaps[i]] = swaps[i]
        identity[i] = i


def permutation(seed: int, size: int) -> NDArray[np.int32]:
    """Return torch.randperm(size) of a CPU generator with that seed: int32[size]."""
    out = np.empty(size, np.int32)
    # the last place is the one left, as a last swap with itself would give too
    first_of_permutation(uint32(seed & 0xFFFFFFFF), size, np.arange(size, dtype=np.int32), out)
    return out


def bits(seed: int, count: int) -> NDArray[np.uint8]:
    """Return torch.randint(0, 2, (count,)) of a CPU generator with that seed: uint8[count]."""
    words = np.empty(count, np.uint32)
    first_words(uint32(seed & 0xFFFFFFFF), words)
    return (words & 1).astype(np.uint8)


@inlined
def product_mod(a: uint64, b: uint64, plus: uint64) -> uint64:
    """Return (a·b + plus) mod (2^64 − 1)."""
    low, half = uint64(0xFFFFFFFF), uint64(32)
    al, ah, bl, bh = a & low, a >> half, b & low, b >> half
    ll, lh, hl, hh = al * bl, al * bh, ah * bl, ah * bh
    middle = (ll >> half) + (lh & low) + (hl & low)
    lower = (ll & low) | (middle << half)
    upper = hh + (lh >> half) + (hl >> half) + (middle >> half)
    out = lower  # 2^64 is 1 here, so the upper half is added, and so is the carry of each addition
    for addend in (upper, plus):
        total = out + addend
        out = total + uint64(1) if total < addend else total
    return uint64(0) if out == uint64(0xFFFFFFFFFFFFFFFF) else out

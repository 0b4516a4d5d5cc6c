"""Generators of random numbers that other stacks draw their marks with: torch's Mersenne Twister, and vLLM's Philox.

**MT19937** (M. Matsumoto, T. Nishimura 1998) as torch's CPU generator runs it, and what its `randperm` and `randint`
make of its words. It is seeded by 32 bits: torch takes the low bits of a longer seed. CUDA's generator gives other
numbers, so text that was marked on a GPU by such a seed cannot be read by these.

**Philox4x32-10**, vLLM's function `philox4x32-10-v1`: a word of 32 bits for a key, a context and a token. It is a
counter-based generator (J. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011). vLLM takes in the context
four tokens at a time, and then the token; tokens that a context lacks are words 0xFFFFFFFF. The vocabulary's size does
not enter, and four neighbouring tokens share one call.
"""

import math

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel

STATE_WORDS = 624
"""Words of the generator's state."""

_M = 397


@kernel
def seeded(seed: uint32, state: NDArray[np.uint32]) -> None:
    """Fill a state, uint32[STATE_WORDS], from a seed; `turned` comes before its first word."""
    state[0] = seed
    for i in range(1, STATE_WORDS):
        last = uint32(state[i - 1])
        state[i] = uint32(uint32(1812433253) * uint32(last ^ uint32(last >> uint32(30))) + uint32(i))


@inlined
def _twist(high: uint32, low: uint32, far: uint32) -> uint32:
    y = uint32(uint32(high & uint32(0x80000000)) | uint32(low & uint32(0x7FFFFFFF)))
    odd = uint32(uint32(0) - uint32(y & uint32(1)))
    return uint32(uint32(far ^ uint32(y >> uint32(1))) ^ uint32(odd & uint32(0x9908B0DF)))


@kernel
def turned(state: NDArray[np.uint32]) -> None:
    """The state of the next STATE_WORDS words."""
    for i in range(STATE_WORDS - _M):
        state[i] = _twist(state[i], state[i + 1], state[i + _M])
    for i in range(STATE_WORDS - _M, STATE_WORDS - 1):
        state[i] = _twist(state[i], state[i + 1], state[i + _M - STATE_WORDS])
    state[STATE_WORDS - 1] = _twist(state[STATE_WORDS - 1], state[0], state[_M - 1])


@inlined
def tempered(word: uint32) -> uint32:
    """The word that the generator gives out for a word of its state."""
    y = uint32(word ^ uint32(word >> uint32(11)))
    y = uint32(y ^ uint32(uint32(y << uint32(7)) & uint32(0x9D2C5680)))
    y = uint32(y ^ uint32(uint32(y << uint32(15)) & uint32(0xEFC60000)))
    return uint32(y ^ uint32(y >> uint32(18)))


@kernel
def first_words(seed: uint32, out: NDArray[np.uint32]) -> None:
    """The first words of a seed: fills uint32[n]."""
    state = np.empty(STATE_WORDS, np.uint32)
    seeded(seed, state)
    for begin in range(0, len(out), STATE_WORDS):
        turned(state)
        for i in range(min(STATE_WORDS, len(out) - begin)):
            out[begin + i] = tempered(state[i])


@kernel
def word_at(seed: uint32, place: int) -> uint32:
    """The word at a place of a seed's sequence."""
    state = np.empty(STATE_WORDS, np.uint32)
    seeded(seed, state)
    for _ in range(place // STATE_WORDS + 1):
        turned(state)
    return tempered(state[place % STATE_WORDS])


@kernel
def is_among_first(seed: uint32, value: int, size: int, first: int) -> bool:
    """Whether a value is among the first so many of torch's randperm(size).

    The shuffle swaps place i with place i + word mod (size − i), so that place i is done. One value is followed through
    the swaps: no permutation is written down.
    """
    state = np.empty(STATE_WORDS, np.uint32)
    seeded(seed, state)
    place = uint32(value)
    for begin in range(0, first, STATE_WORDS):
        turned(state)
        for k in range(min(STATE_WORDS, first - begin)):
            i = uint32(begin + k)
            other = uint32(i + tempered(state[k]) % uint32(uint32(size) - i))
            if other == place:
                return True
            if i == place:
                place = other
    return False


@kernel
def first_of_permutation(seed: uint32, first: int, identity: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    """The first values of torch's randperm: fills int32[first].

    identity: 0 … size−1, int32[size]; changed meanwhile, and the identity again afterwards. out: int32[first].
    """
    state = np.empty(STATE_WORDS, np.uint32)
    swaps = np.empty(first, np.int32)
    seeded(seed, state)
    size = len(identity)
    for begin in range(0, first, STATE_WORDS):
        turned(state)
        for k in range(min(STATE_WORDS, first - begin)):
            i = begin + k
            other = i + np.int64(tempered(state[k]) % uint32(size - i))
            swaps[i] = other
            here = identity[other]
            identity[other] = identity[i]
            identity[i] = here
            out[i] = here
    for i in range(first):
        identity[swaps[i]] = swaps[i]
        identity[i] = i


def permutation(seed: int, size: int) -> NDArray[np.int32]:
    """torch.randperm(size) of a CPU generator with that seed: int32[size]."""
    out = np.empty(size, np.int32)
    # its last place is left over, which a last swap with itself says too
    first_of_permutation(uint32(seed & 0xFFFFFFFF), size, np.arange(size, dtype=np.int32), out)
    return out


def bits(seed: int, count: int) -> NDArray[np.uint8]:
    """torch.randint(0, 2, (count,)) of a CPU generator with that seed: uint8[count]."""
    words = np.empty(count, np.uint32)
    first_words(uint32(seed & 0xFFFFFFFF), words)
    return (words & 1).astype(np.uint8)


@inlined
def product_mod(a: uint64, b: uint64, plus: uint64) -> uint64:
    """(a·b + plus) mod (2^64 − 1)."""
    low, half = uint64(0xFFFFFFFF), uint64(32)
    al, ah, bl, bh = a & low, a >> half, b & low, b >> half
    ll, lh, hl, hh = al * bl, al * bh, ah * bl, ah * bh
    middle = (ll >> half) + (lh & low) + (hl & low)
    lower = (ll & low) | (middle << half)
    upper = hh + (lh >> half) + (hl >> half) + (middle >> half)
    out = lower  # 2^64 is 1 here, so the upper half is added, and so is the carry of each addition
    for more in (upper, plus):
        total = out + more
        out = total + uint64(1) if total < more else total
    return uint64(0) if out == uint64(0xFFFFFFFFFFFFFFFF) else out


LANES_AT_A_TIME = 256
"""Lanes that are worked on at a time: their state stays in the first-level cache."""

MISSING_TOKEN = 0xFFFFFFFF
"""Word that stands for a token that a context lacks."""

_CONTEXT, _TOKEN = 0x574D4358, 0x574D544B  # ASCII WMCX and WMTK, big-endian


@inlined
def _round(c: tuple[uint32, uint32, uint32, uint32], k0: uint32, k1: uint32) -> tuple[uint32, uint32, uint32, uint32]:
    p, q = uint64(c[0]) * uint64(0xD2511F53), uint64(c[2]) * uint64(0xCD9E8D57)
    return (
        uint32(uint32(q >> uint64(32)) ^ c[1] ^ k0),
        uint32(q),
        uint32(uint32(p >> uint64(32)) ^ c[3] ^ k1),
        uint32(p),
    )


@inlined
def _philox(c: tuple[uint32, uint32, uint32, uint32], k0: uint32, k1: uint32) -> tuple[uint32, uint32, uint32, uint32]:
    """Philox4x32-10 of one counter, straight-line so that a loop over lanes becomes vector instructions."""
    a, b = uint32(0x9E3779B9), uint32(0xBB67AE85)
    c = _round(c, k0, k1)
    c = _round(c, uint32(k0 + a), uint32(k1 + b))
    c = _round(c, uint32(k0 + uint32(2) * a), uint32(k1 + uint32(2) * b))
    c = _round(c, uint32(k0 + uint32(3) * a), uint32(k1 + uint32(3) * b))
    c = _round(c, uint32(k0 + uint32(4) * a), uint32(k1 + uint32(4) * b))
    c = _round(c, uint32(k0 + uint32(5) * a), uint32(k1 + uint32(5) * b))
    c = _round(c, uint32(k0 + uint32(6) * a), uint32(k1 + uint32(6) * b))
    c = _round(c, uint32(k0 + uint32(7) * a), uint32(k1 + uint32(7) * b))
    c = _round(c, uint32(k0 + uint32(8) * a), uint32(k1 + uint32(8) * b))
    return _round(c, uint32(k0 + uint32(9) * a), uint32(k1 + uint32(9) * b))


@inlined
def stream_word(seed: uint64, place: uint32) -> uint32:
    """The word at a place of the stream that Philox4x32-10 makes of a key alone, four words a call."""
    zero = uint32(0)
    o = _philox((uint32(place >> uint32(2)), zero, zero, zero), uint32(seed), uint32(seed >> uint64(32)))
    low = o[1] if place & uint32(1) else o[0]
    high = o[3] if place & uint32(1) else o[2]
    return high if place & uint32(2) else low


@kernel
def words_of_lanes(
    key: uint64,
    context: NDArray[np.uint32],
    width: int,
    tokens: NDArray[np.uint32],
    state: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """The word of each lane's context and token.

    Args:
        key: 64 bits.
        context: uint32[4 · ⌈width/4⌉, L], oldest token first; filler in what is beyond `width` (see `fill_up`).
        width: of the context.
        tokens: uint32[L].
        state: uint32[4, L], written over.
        out: uint32[L], the result.
    """
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    k0, k1, lanes = uint32(key), uint32(key >> uint64(32)), len(out)
    s0[:lanes], s1[:lanes], s2[:lanes], s3[:lanes] = uint32(_CONTEXT), uint32(width), uint32(0), uint32(0)
    for at in range(0, width, 4):
        c0, c1, c2, c3 = context[at], context[at + 1], context[at + 2], context[at + 3]
        for i in range(lanes):
            counter = uint32(s0[i] ^ c0[i]), uint32(s1[i] ^ c1[i]), uint32(s2[i] ^ c2[i]), uint32(s3[i] ^ c3[i])
            s0[i], s1[i], s2[i], s3[i] = _philox(counter, uint32(k0 ^ uint32(at)), k1)
    for i in range(lanes):
        counter = uint32(tokens[i] >> uint32(2)), s0[i], s1[i], s2[i]
        o = _philox(counter, uint32(k0 ^ s3[i]), uint32(k1 ^ uint32(_TOKEN)))
        low = o[1] if tokens[i] & uint32(1) else o[0]
        high = o[3] if tokens[i] & uint32(1) else o[2]
        out[i] = high if tokens[i] & uint32(2) else low


@kernel
def fill_up(context: NDArray[np.uint32], width: int) -> None:
    """Write the filler of each lane beyond `width`: its place in the block of four decides it."""
    for row in range(width, len(context)):
        context[row] = uint32(0xFFFFFFFF - (row & 3))


@kernel
def words_of_positions(
    key: uint64, ids: NDArray[np.uint32], offsets: NDArray[np.int64], index: NDArray[np.int64], width: int
) -> NDArray[np.uint32]:
    """The word that each scored token meets under one key: uint32[P].

    Args:
        key: 64 bits.
        ids: uint32[N], flat tokens.
        offsets: int64[D+1], where each document begins and ends.
        index: int64[P], positions in ids.
        width: of the context.
    """
    out = np.empty(len(index), np.uint32)
    context, state = (
        np.empty((-(-width // 4) * 4, LANES_AT_A_TIME), np.uint32),
        np.empty((4, LANES_AT_A_TIME), np.uint32),
    )
    tokens = np.empty(LANES_AT_A_TIME, np.uint32)
    fill_up(context, width)
    begin, end = 0, 0  # of the document
    for start in range(0, len(index), LANES_AT_A_TIME):
        lanes = min(LANES_AT_A_TIME, len(index) - start)
        for i in range(lanes):
            place = index[start + i]
            if not begin <= place < end:
                d = np.searchsorted(offsets, place, side="right")
                begin, end = offsets[d - 1], offsets[d]
            tokens[i] = ids[place]
            first = place - width
            for j in range(width):
                context[j, i] = ids[first + j] if first + j >= begin else uint32(MISSING_TOKEN)
        words_of_lanes(key, context, width, tokens, state, out[start : start + lanes])
    return out


@kernel
def term(word: uint32) -> float:
    """−ln(1−k/2^24) of the word's 24 bits k: the lower end of its cell, so never more than an exact draw's term."""
    return -math.log((16777216.0 - float(uint32(word >> uint32(8)))) * 2.0**-24)


@kernel
def terms_of(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """The term of each word: float64[P]."""
    out = np.empty(len(words))
    for p in range(len(words)):
        out[p] = term(words[p])
    return out


@kernel
def sum_terms(words: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Σ −ln(1−k/2^24) of each document's words, in their order: float64[D] for uint32[P] and offsets int64[D+1]."""
    sums = np.zeros(len(offsets) - 1)
    for d in range(len(sums)):
        total = 0.0
        for p in range(offsets[d], offsets[d + 1]):
            total += term(words[p])
        sums[d] = total
    return sums

"""Compute vLLM's function `philox4x32-10-v1`: a word of 32 bits for a key, a context and a token, and its term.

vLLM processes the context four tokens at a time, and then the token. Tokens that a context lacks are words 0xFFFFFFFF.
The vocabulary's size has no effect, and four neighbouring tokens share one call.
"""

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.stacks.philox import philox
from scanner.watermark.stacks.shared import term

LANES_AT_A_TIME = 256
"""Number of lanes that are worked on at a time. Their state fits the first-level cache."""

MISSING_TOKEN = 0xFFFFFFFF
"""Word for a token that a context lacks."""

_CONTEXT, _TOKEN = 0x574D4358, 0x574D544B  # ASCII WMCX and WMTK, big-endian


@kernel
def words_of_lanes(
    key: uint64,
    context: NDArray[np.uint32],
    width: int,
    tokens: NDArray[np.uint32],
    state: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """Write the word of each lane's context and token.

    Args:
        key: 64 bits.
        context: uint32[4 · ⌈width/4⌉, L], oldest token first, with filler beyond `width` (see `fill_up`).
        width: of the context.
        tokens: uint32[L].
        state: uint32[4, L], overwritten.
        out: uint32[L], the result.
    """
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    k0, k1, lanes = uint32(key), uint32(key >> uint64(32)), len(out)
    s0[:lanes], s1[:lanes], s2[:lanes], s3[:lanes] = uint32(_CONTEXT), uint32(width), uint32(0), uint32(0)
    for row in range(0, width, 4):
        c0, c1, c2, c3 = context[row], context[row + 1], context[row + 2], context[row + 3]
        for i in range(lanes):
            counter = uint32(s0[i] ^ c0[i]), uint32(s1[i] ^ c1[i]), uint32(s2[i] ^ c2[i]), uint32(s3[i] ^ c3[i])
            s0[i], s1[i], s2[i], s3[i] = philox(counter, uint32(k0 ^ uint32(row)), k1)
    for i in range(lanes):
        counter = uint32(tokens[i] >> uint32(2)), s0[i], s1[i], s2[i]
        o = philox(counter, uint32(k0 ^ s3[i]), uint32(k1 ^ uint32(_TOKEN)))
        low = o[1] if tokens[i] & uint32(1) else o[0]
        high = o[3] if tokens[i] & uint32(1) else o[2]
        out[i] = high if tokens[i] & uint32(2) else low


@kernel
def fill_up(context: NDArray[np.uint32], width: int) -> None:
    """Write the filler of each lane beyond `width`. Its place in the block of four decides the filler."""
    for row in range(width, len(context)):
        context[row] = uint32(0xFFFFFFFF - (row & 3))


@kernel
def words_of_positions(
    key: uint64, ids: NDArray[np.uint32], offsets: NDArray[np.int64], index: NDArray[np.int64], width: int
) -> NDArray[np.uint32]:
    """Return the word of each scored token under one key: uint32[P].

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
def terms_of(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return the term of each word: float64[P]."""
    out = np.empty(len(words))
    for p in range(len(words)):
        out[p] = term(words[p])
    return out


@kernel
def sum_terms(words: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Σ −ln(1−k/2^24) of each document's words, in their order: float64[D].

    Args:
        words: uint32[P].
        offsets: int64[D+1].
    """
    sums = np.zeros(len(offsets) - 1)
    for d in range(len(sums)):
        total = 0.0
        for p in range(offsets[d], offsets[d + 1]):
            total += term(words[p])
        sums[d] = total
    return sums

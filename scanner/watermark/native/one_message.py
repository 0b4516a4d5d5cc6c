"""One message a document: its green positions, or its Gumbel score, everything but the text in the first-level cache.

One pass over the scored positions, CHUNK at a time: nonces, entries, blocks, scores.
"""

import math

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK
from scanner.watermark.native.streams import (
    blocks_of_messages,
    blocks_of_words,
    end_of_key,
    messages_of_positions,
    row_of_word,
    steps_of_positions,
)

NO_TERMS = np.empty(0)
"""An empty array in the place of what each position adds, where nobody needs it."""


@kernel
def below(n: int, bits: int, apart: int, block: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """Where the integer whose binary digits stand in planes, `apart` words apart, is < n: one bit an entry.

    For as many words as `out` has. From the last digit up: less = not p, or less where p equals n's digit. n is odd, so
    its last digit is 1.
    """
    for q in range(bits - 1, -1, -1):
        plane = block[q * apart : q * apart + len(out)]
        if q == bits - 1:
            for i in range(len(out)):
                out[i] = ~plane[i]
        elif (n >> (bits - 1 - q)) & 1:
            for i in range(len(out)):
                out[i] = ~plane[i] | out[i]
        else:
            for i in range(len(out)):
                out[i] = ~plane[i] & out[i]


@kernel
def count_green(
    chacha: NDArray[np.uint32],
    sip: NDArray[np.uint64],
    whose: NDArray[np.int64],
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    messages: NDArray[np.int64],
    window: int,
    rule: tuple[int, int, int],
    version: int,
    terms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Green positions of each document under its message. One block a position: it holds all planes of a word.

    chacha, sip: uint32[K, 8] and uint64[K, 2], of K keys; whose: int64[D], which of them each document is read with.
    terms: float64[P], written: 1 where a position is green, else 0; NO_TERMS: none is written.
    """
    n, bits, planes = rule
    height = 16 // planes
    counts = np.zeros(len(offsets) - 1, np.int64)
    hashed, scratch, nonces = np.zeros(2, np.int64), np.empty(6 * CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
    tokens, entries, places = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    greens, green = np.empty(16 * CHUNK, np.uint32), np.empty(CHUNK, np.uint8)
    p, d, of_key = 0, 0, 0
    while p < len(index):
        while offsets[d + 1] <= p:
            d += 1
        if d >= of_key:  # documents before it have the key of this one
            of_key = end_of_key(whose, d)
            hashed[:] = 0
        end = min(p + CHUNK, offsets[of_key])
        lanes = end - p
        steps_of_positions(sip[whose[d]], ids, index[p:end], window, hashed, scratch, nonces, tokens)
        messages_of_positions(offsets, messages, p, end, d, entries)
        blocks_of_messages(chacha[whose[d]], version, nonces, tokens[:lanes], entries, 5, height, inputs, block, places)
        below(n, bits, height * CHUNK, block, greens[: height * CHUNK])
        for i in range(lanes):
            green[i] = uint32(greens[uint64(places[i])] >> uint32(entries[i] & 31)) & uint32(1)
        if len(terms):
            for i in range(lanes):
                terms[p + i] = green[i]
        while p < end:
            stop = min(offsets[d + 1], end)
            for one in green[lanes - (end - p) : lanes - (end - stop)]:
                counts[d] += one
            p = max(p, stop)
            d += p < end
    return counts


@kernel
def term(draw: uint32) -> float:
    """−ln(1−r), r = w/2^32. 2^32 − w is exact in double precision, so the logarithm is good to its last bit."""
    return -math.log((4294967296.0 - float(draw)) * 2.0**-32)


@kernel
def log_term(draw: uint32) -> float:
    """ln r, r = w/2^32."""
    return math.log(float(draw) * 2.0**-32) if draw else -math.inf


@kernel
def draws_of_chunk(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    entries: NDArray[np.int64],
    inputs: NDArray[np.uint32],
    block: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """Draw of entry j of each nonce's vector, one block each."""
    blocks_of_words(key, nonces, entries, 16, inputs, block)
    for i in range(len(entries)):
        out[i] = block[row_of_word(entries[i], 16) * uint64(CHUNK) + uint64(i)]


@kernel
def score_under(
    chacha: NDArray[np.uint32],
    sip: NDArray[np.uint64],
    whose: NDArray[np.int64],
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    messages: NDArray[np.int64],
    window: int,
    unweighted: bool,
    version: int,
    terms: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Score of each document under its message, summed in the order of positions: Σ −ln(1−r), or unweighted Σ ln r.

    chacha, sip, whose: as of `count_green`.
    terms: float64[P], written: what each position adds; NO_TERMS: none is written.
    """
    sums = np.zeros(len(offsets) - 1)
    hashed, scratch, nonces = np.zeros(2, np.int64), np.empty(6 * CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
    tokens, entries, places = np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64), np.empty(CHUNK, np.int64)
    added = np.empty(CHUNK)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    p, d, of_key = 0, 0, 0
    while p < len(index):
        while offsets[d + 1] <= p:
            d += 1
        if d >= of_key:  # documents before it have the key of this one
            of_key = end_of_key(whose, d)
            hashed[:] = 0
        end = min(p + CHUNK, offsets[of_key])
        lanes = end - p
        steps_of_positions(sip[whose[d]], ids, index[p:end], window, hashed, scratch, nonces, tokens)
        messages_of_positions(offsets, messages, p, end, d, entries)
        blocks_of_messages(chacha[whose[d]], version, nonces, tokens[:lanes], entries, 0, 16, inputs, block, places)
        for i in range(lanes):
            draw = block[uint64(places[i])]
            added[i] = log_term(draw) if unweighted else term(draw)
        if len(terms):
            terms[p:end] = added[:lanes]
        while p < end:
            stop = min(offsets[d + 1], end)
            total = sums[d]
            for one in added[lanes - (end - p) : lanes - (end - stop)]:
                total += one
            sums[d] = total
            p = max(p, stop)
            d += p < end
    return sums

"""Score by the green-list mark of Kirchenbauer et al. (paper, Modification of the Distribution; SPEC §1 to §3).

For one message, one block of the stream is computed for each position, many positions side by side. For all messages,
one word holds the bits of 64 messages. Words are shifted by the token id and added into vertical counters by carry-save
adders, so nothing of size tokens × messages is ever stored.
"""

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_group
from scanner.watermark.native.keyed import BestMessages, GreenListMark, below
from scanner.watermark.native.streams import ScoredSteps, blocks_of_words, row_of_word
from scanner.watermark.native.version1 import Version1Mark
from scanner.watermark.native.vertical_counters import add3, bit_length, first_bits, largest

GREENLIST_TILE = 1 << 18
"""Largest number of messages that are counted at a time. Their counters fit the second-level cache."""

POSITIONS_A_PASS = 8
"""Number of positions that one pass of the carry-save adders takes."""


class GreenList(GreenListMark, Version1Mark):
    """The green list of version 1. Arguments and errors are those of GreenListMark, without groups."""

    method = "greenlist"

    def _added(self, nonces: NDArray[np.uint64], entries: NDArray[np.int64]) -> NDArray[np.int64]:
        return _greens_at(self._keys.chacha, nonces, entries, *self._rule)

    def _best_two(self, steps: ScoredSteps, count: int) -> BestMessages:
        return BestMessages(*_best_two(self._keys.chacha, *steps, count, *self._rule))

    def green(self, nonces: NDArray[np.uint64], starts: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """Return entries start … start+count−1 of the secret vector of each step: bool[R, count]. True means green."""
        out = np.empty((len(nonces), count), np.bool_)
        _green_runs(self._keys.chacha, nonces, np.asarray(starts, np.int64), *self._rule, out)
        return out


@kernel
def _greens_at(
    key: NDArray[np.uint32], nonces: NDArray[np.uint64], entries: NDArray[np.int64], n: int, bits: int, planes: int
) -> NDArray[np.int64]:
    """Return 1 where an entry of a nonce's vector is green, else 0: int64[P] for uint64[P] and int64[P]."""
    height, green = 16 // planes, np.empty(len(entries), np.int64)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    greens = np.empty(16 * CHUNK, np.uint32)
    for begin in range(0, len(entries), CHUNK):
        chunk = entries[begin : begin + CHUNK]
        words = chunk >> 5
        blocks_of_words(key, nonces[begin:], words, height, inputs, block)
        below(n, bits, height * CHUNK, block, greens[: height * CHUNK])
        for i in range(len(chunk)):
            word = greens[row_of_word(words[i], height) * uint64(CHUNK) + uint64(i)]
            green[begin + i] = uint32(word >> uint32(chunk[i] & 31)) & uint32(1)
    return green


@kernel
def _green_strip(
    key: NDArray[np.uint32],
    nonce: uint64,
    start: int,
    stop: int,
    n: int,
    bits: int,
    planes: int,
    strip: NDArray[np.uint32],
) -> int:
    """Write green bits of the whole groups that hold entries start … stop−1. Return the first written entry."""
    height = 16 // planes
    width = height * LANES
    block = np.empty(16 * LANES, np.uint32)
    first = start // (32 * width)
    last = (stop - 1) // (32 * width)
    for group in range(first, last + 1):
        chacha8_group(key, uint64(group * LANES), nonce, block)
        below(n, bits, width, block, strip[(group - first) * width : (group - first + 1) * width])
    return first * 32 * width


@kernel
def _green_runs(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    starts: NDArray[np.int64],
    n: int,
    bits: int,
    planes: int,
    out: NDArray[np.bool_],
) -> None:
    count = out.shape[1]
    strip = np.empty(strip_words(count, planes), np.uint32)
    for r in range(len(nonces)):
        offset = starts[r] - _green_strip(key, nonces[r], starts[r], starts[r] + count, n, bits, planes, strip)
        for i in range(count):
            out[r, i] = (strip[(offset + i) >> 5] >> np.uint32((offset + i) & 31)) & np.uint32(1) != 0


@kernel
def strip_words(entries: int, planes: int) -> int:
    """Return how many words hold the groups of any run of `entries` entries, plus a 64-bit word for the shift.

    It is even.
    """
    width = 16 // planes * LANES
    return (entries // (32 * width) + 2) * width + 2


@kernel
def _shift_into(strip: NDArray[np.uint64], offset: int, row: NDArray[np.uint64]) -> None:
    """Write bits offset, offset+1, … of the strip, from the first bit of the row on."""
    bits = uint64(offset & 63)
    words = strip[offset >> 6 :]  # a slice, so that no index can be negative: the compiler makes a vector loop
    for w in range(len(row)):
        row[w] = (words[w] >> bits) | ((words[w + 1] << uint64(1)) << (uint64(63) - bits))


@kernel
def _add_rows(rows: NDArray[np.uint64], counters: NDArray[np.uint64], carry: NDArray[np.uint64]) -> None:
    """Add eight rows of bits into vertical counters: a tree of carry-save adders, then the carries ripple up."""
    for w in range(counters.shape[1]):
        ones, twos, fours = counters[0, w], counters[1, w], counters[2, w]
        ones, a = add3(ones, rows[0, w], rows[1, w])
        ones, b = add3(ones, rows[2, w], rows[3, w])
        twos, c = add3(twos, a, b)
        ones, a = add3(ones, rows[4, w], rows[5, w])
        ones, b = add3(ones, rows[6, w], rows[7, w])
        twos, d = add3(twos, a, b)
        fours, carry[w] = add3(fours, c, d)
        counters[0, w], counters[1, w], counters[2, w] = ones, twos, fours
    for level in range(3, counters.shape[0]):
        for w in range(counters.shape[1]):
            word = counters[level, w]
            counters[level, w] = word ^ carry[w]
            carry[w] &= word


@kernel
def count_tile(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    rule: tuple[int, int, int],
    first_message: int,
    strip: NDArray[np.uint32],
    rows: NDArray[np.uint64],
    counters: NDArray[np.uint64],
    carry: NDArray[np.uint64],
) -> None:
    """Write the green counts of one document under the tile of messages that begins at first_message."""
    n, bits, planes = rule
    messages = 64 * counters.shape[1]
    counters[:] = 0
    for t in range(len(ids)):
        start = int(ids[t]) + first_message
        begin = _green_strip(key, nonces[t], start, start + messages, n, bits, planes, strip)
        _shift_into(strip.view(np.uint64), start - begin, rows[t % POSITIONS_A_PASS])
        if t % POSITIONS_A_PASS == POSITIONS_A_PASS - 1:
            _add_rows(rows, counters, carry)
    if len(ids) % POSITIONS_A_PASS:
        rows[len(ids) % POSITIONS_A_PASS :] = 0
        _add_rows(rows, counters, carry)


@kernel
def _messages_of_tile(
    counters: NDArray[np.uint64], valid: int, candidates: NDArray[np.uint64]
) -> tuple[int, int, int, int]:
    """Return best and second best of the first `valid` messages of a tile: count, place, count, place. −1: none."""
    first_bits(candidates, valid)
    best, place = largest(counters, candidates)
    first_bits(candidates, valid)
    candidates[place >> 6] &= ~(uint64(1) << uint64(place & 63))
    second, second_place = largest(counters, candidates)
    return best, place, second, second_place


@kernel
def _best_two(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    count: int,
    n: int,
    bits: int,
    planes: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    documents = len(offsets) - 1
    message, score = np.zeros(documents, np.int64), np.full(documents, -1, np.int64)
    second, second_score = np.full(documents, -1, np.int64), np.full(documents, -1, np.int64)
    tiles = (count + GREENLIST_TILE - 1) // GREENLIST_TILE
    width = ((count + tiles - 1) // tiles + 63) // 64
    strip = np.zeros(strip_words(64 * width, planes), np.uint32)
    rows, carry, candidates = (
        np.empty((POSITIONS_A_PASS, width), np.uint64),
        np.empty(width, np.uint64),
        np.empty(width, np.uint64),
    )
    counters = np.empty((levels(offsets), width), np.uint64)
    for d in range(documents):
        begin, end = offsets[d], offsets[d + 1]
        used_counters = counters[: max(3, bit_length(end - begin))]
        for first in range(0, count, 64 * width):
            count_tile(
                key, ids[begin:end], nonces[begin:end], (n, bits, planes), first, strip, rows, used_counters, carry
            )
            a, a_place, b, b_place = _messages_of_tile(used_counters, min(64 * width, count - first), candidates)
            # tiles come in the order of messages, so only a strictly larger count replaces an earlier one
            for value, place in ((a, a_place), (b, b_place)):
                if place >= 0 and value > score[d]:
                    second[d], second_score[d] = (message[d] if score[d] >= 0 else -1), score[d]
                    message[d], score[d] = first + place, value
                elif place >= 0 and value > second_score[d]:
                    second[d], second_score[d] = first + place, value
    return message, score, second, np.maximum(second_score, 0)


@kernel
def levels(offsets: NDArray[np.int64]) -> int:
    """Return how many vertical counters hold the counts of the longest document. The adders need a minimum number."""
    longest = 0
    for d in range(len(offsets) - 1):
        longest = max(longest, offsets[d + 1] - offsets[d])
    return max(3, bit_length(longest))

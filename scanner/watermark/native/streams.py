"""Compute the streams of the native watermark, from sub-keys to blocks and runs of a step's secret vector (SPEC §1).

Most positions of a text are scored, so windows are hashed for CHUNK consecutive tokens. They are then in order, and no
lane has to collect its own. Blocks are computed for CHUNK positions at a time, so that all data stays in the cache.

In version 3 (SPEC_3 §1) each token has a run of numbers of its own, and every run begins with a block. So nothing has
to be shifted: lane i of a vector is step i (`begin_run`).

Kernels take these arguments:

- key: uint32[8], or for SipHash uint64[2].
- ids: uint32[N], flat tokens.
- window: h.
- places: int64[L], positions in ids, L ≤ CHUNK.
- nonces: uint64[L], one a lane.
- tokens: x, int64[L], one a lane.
- bits: log2 of the count of numbers in a block.
- height: P of SPEC §1, words of a plane in a block, a power of two.
- inputs: uint32[4 · CHUNK], scratch.
- scratch: uint64[6 · CHUNK].
- out: written. Kernels write the first L entries, or for blocks uint32[16 · CHUNK].
"""

from typing import NamedTuple

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_lanes, siphash_lanes
from scanner.watermark.native.secret import SubKeys
from scanner.watermark.positions import Positions, Tokens


def window_nonces(
    sub_keys: SubKeys, ids: NDArray[np.uint32], index: NDArray[np.int64], window: int
) -> NDArray[np.uint64]:
    """Return the nonce of each position: uint64[P]. It is SipHash-2-4 of the `window` tokens before it (SPEC §1).

    Args:
        sub_keys: of the label.
        ids: uint32[N], flat tokens.
        index: int64[P], ascending. Each has `window` tokens of its document before it.
        window: 0 to 16.
    """
    return nonces_of_positions(sub_keys.sip, ids, index, window)


def nonces_of_windows(sub_keys: SubKeys, windows: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the nonces of separate windows: uint64[R] for uint32[R, h] (SPEC §1)."""
    return nonces_of_columns(sub_keys.sip, np.ascontiguousarray(windows.T, np.uint32))


@kernel
def nonces_of_columns(key: NDArray[np.uint64], columns: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the SipHash-2-4 of each column of tokens under a key, uint64[2]: uint64[R] for uint32[h, R]."""
    count, lanes = columns.shape
    nonces = np.empty(lanes, np.uint64)
    scratch = np.empty(5 * CHUNK, np.uint64)
    tokens = columns.ravel()
    for begin in range(0, lanes, CHUNK):
        siphash_lanes(key, tokens[begin:], lanes, count, scratch, nonces[begin : begin + CHUNK])
    return nonces


def stream_word(sub_keys: SubKeys, nonce: int, planes: int, plane: int, i: int) -> int:
    """Return word i of one plane of a stream, computed on its own (SPEC §1)."""
    height = 16 // planes
    group, r = divmod(i, LANES * height)
    counter = LANES * group + r % LANES
    block = chacha8_block(sub_keys.chacha, counter, nonce)
    return int(block[plane * height + r // LANES])


def chacha8_block(key: NDArray[np.uint32], counter: int, nonce: int) -> NDArray[np.uint32]:
    """Return one ChaCha8 block: uint32[16] for a key of uint32[8], a 64-bit counter and a 64-bit nonce."""
    out, inputs = np.empty(16 * CHUNK, np.uint32), np.zeros(4 * CHUNK, np.uint32)
    inputs[::CHUNK] = np.array([counter, nonce], np.uint64).view(np.uint32)
    chacha8_lanes(key, inputs, 1, out)
    return out[::CHUNK].copy()


@kernel
def end_of_chunk(index: NDArray[np.int64], p: int) -> int:
    """Return one past the last scored position of the chunk that begins at position p: p < end ≤ p + CHUNK."""
    stop, limit = index[p] + CHUNK, min(p + CHUNK, len(index))
    end = p + 1
    while end < limit and index[end - 1] < index[end] < stop:
        end += 1
    return end


@kernel
def nonces_of_chunk(
    key: NDArray[np.uint64],
    ids: NDArray[np.uint32],
    places: NDArray[np.int64],
    window: int,
    scratch: NDArray[np.uint64],
    out: NDArray[np.uint64],
) -> None:
    """Write the window nonces of one chunk (SPEC §1)."""
    run = scratch[5 * CHUNK : 5 * CHUNK + places[-1] + 1 - places[0]]
    siphash_lanes(key, ids[places[0] - window :], 1, window, scratch, run)
    for i in range(len(places)):
        out[i] = run[places[i] - places[0]]


@kernel
def nonces_of_positions(
    key: NDArray[np.uint64], ids: NDArray[np.uint32], index: NDArray[np.int64], window: int
) -> NDArray[np.uint64]:
    """Return the window nonces of scored positions: uint64[P] for int64[P] (SPEC §1)."""
    nonces = np.empty(len(index) + CHUNK, np.uint64)
    scratch = np.empty(6 * CHUNK, np.uint64)
    p = 0
    while p < len(index):
        end = end_of_chunk(index, p)
        nonces_of_chunk(key, ids, index[p:end], window, scratch, nonces[p:])
        p = end
    return nonces[: len(index)]


@kernel
def blocks_of_words(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    words: NDArray[np.int64],
    height: int,
    inputs: NDArray[np.uint32],
    out: NDArray[np.uint32],
) -> None:
    """Write the block that holds word i of a stream (SPEC §1), a lane for each nonce and word.

    Word i of plane q is then at CHUNK · (q · height + row_of_word(i, height)) + lane of out. words: int64[L].
    """
    shift = 4
    while LANES * height >> shift > 1:
        shift += 1
    for i in range(len(words)):
        counter = ((words[i] >> shift) << 4) | (words[i] & 15)
        inputs[i], inputs[CHUNK + i] = uint32(counter), uint32(counter >> 32)
        inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = (uint32(nonces[i]), uint32(nonces[i] >> uint64(32)))
    chacha8_lanes(key, inputs, len(words), out)


@kernel
def row_of_word(word: int, height: int) -> uint64:
    """Return the row of word i of a stream in its plane of a block.

    The result is unsigned, because an index then needs no look at its sign.
    """
    return uint64((word >> 4) & (height - 1))


@kernel
def log2(power: int) -> int:
    """Return log2 of a power of two."""
    bits = 0
    while power >> bits > 1:
        bits += 1
    return bits


class ScoredSteps(NamedTuple):
    """Scored positions of D documents, document by document and in order.

    ids: tokens, uint32[P].
    nonces: of their windows, uint64[P].
    offsets: int64[D+1].
    """

    ids: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    offsets: NDArray[np.int64]

    @property
    def scored(self) -> NDArray[np.int64]:
        """Return the number of scored positions of each document: int64[D]."""
        return self.offsets[1:] - self.offsets[:-1]


def steps_of(tokens: Tokens, positions: Positions, nonces: NDArray[np.uint64]) -> ScoredSteps:
    """Return all scored positions, with the nonces of their windows."""
    return ScoredSteps(tokens.ids[positions.index], nonces, positions.offsets)


@kernel
def begin_run(
    ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, bits: int, inputs: NDArray[np.uint32]
) -> None:
    """Write counters and nonces of the blocks that hold number `first` of each step's run, for `chacha8_lanes`.

    Args:
        ids: uint32[L], L ≤ CHUNK.
        nonces: uint64[L] or more.
        first: the first number of a block.
        bits: log2 of the count of numbers in a block.
        inputs: uint32[4 · CHUNK], written.
    """
    low, high, block = uint32(32 - bits), uint32(bits), uint32(first >> bits)
    for i in range(len(ids)):
        inputs[i], inputs[CHUNK + i] = uint32(ids[i] << low) | block, uint32(ids[i] >> high)
        inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = (uint32(nonces[i]), uint32(nonces[i] >> uint64(32)))


@kernel
def next_block(inputs: NDArray[np.uint32]) -> None:
    """Go on to the next block in each lane. A run ends before the lower word of its counter overflows."""
    for i in range(CHUNK):
        inputs[i] += uint32(1)

"""Implement the two ciphers of SPEC §1 as numba kernels: SipHash-2-4 over windows of tokens, ChaCha8 over counters.

Both work on many independent lanes at once. The rounds are straight-line code on scalars, so the compiler turns the
loop over lanes into vector instructions. The body of a block is written in that loop itself (inline), because it is too
large for the compiler to inline, and ten times slower when called. Every value is cast back to its width at once,
because numba otherwise widens it.
"""

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel

LANES = 16
"""Number of blocks computed side by side: one interleaving group of SPEC §1, and one 512-bit vector of words."""

WORDS_A_GROUP = 16 * LANES
"""Words in a group of interleaved blocks."""

CHUNK = 256
"""Number of positions that are worked on at a time. Their state fits the first-level cache."""

FEW_LANES = 64
"""Largest number of lanes that go through all rounds at once. More lanes go in four passes."""


@kernel
def _quarter_round(a: uint32, b: uint32, c: uint32, d: uint32) -> tuple[uint32, uint32, uint32, uint32]:
    a = uint32(a + b)
    d = uint32(d ^ a)
    d = uint32(uint32(d << uint32(16)) | uint32(d >> uint32(16)))
    c = uint32(c + d)
    b = uint32(b ^ c)
    b = uint32(uint32(b << uint32(12)) | uint32(b >> uint32(20)))
    a = uint32(a + b)
    d = uint32(d ^ a)
    d = uint32(uint32(d << uint32(8)) | uint32(d >> uint32(24)))
    c = uint32(c + d)
    b = uint32(b ^ c)
    b = uint32(uint32(b << uint32(7)) | uint32(b >> uint32(25)))
    return a, b, c, d


@kernel
def _diagonals(x: tuple[uint32, ...]) -> tuple[uint32, ...]:
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = x
    x0, x5, xa, xf = _quarter_round(x0, x5, xa, xf)
    x1, x6, xb, xc = _quarter_round(x1, x6, xb, xc)
    x2, x7, x8, xd = _quarter_round(x2, x7, x8, xd)
    x3, x4, x9, xe = _quarter_round(x3, x4, x9, xe)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf


@kernel
def _double_round(x: tuple[uint32, ...]) -> tuple[uint32, ...]:
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = x
    x0, x4, x8, xc = _quarter_round(x0, x4, x8, xc)
    x1, x5, x9, xd = _quarter_round(x1, x5, x9, xd)
    x2, x6, xa, xe = _quarter_round(x2, x6, xa, xe)
    x3, x7, xb, xf = _quarter_round(x3, x7, xb, xf)
    return _diagonals((x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf))


@inlined
def _start(key: tuple[uint32, ...], c0: uint32, c1: uint32, n0: uint32, n1: uint32) -> tuple[uint32, ...]:
    """Return the start of a ChaCha block: counter (low, high word) in words 12 and 13, nonce in words 14 and 15."""
    return (
        uint32(0x61707865), uint32(0x3320646E), uint32(0x79622D32), uint32(0x6B206574),
        key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7],
        c0, c1, n0, n1,
    )  # fmt: skip


@inlined
def _sum(x: tuple[uint32, ...], s: tuple[uint32, ...]) -> tuple[uint32, ...]:
    return (
        x[0] + s[0], x[1] + s[1], x[2] + s[2], x[3] + s[3], x[4] + s[4], x[5] + s[5], x[6] + s[6], x[7] + s[7],
        x[8] + s[8], x[9] + s[9], x[10] + s[10], x[11] + s[11], x[12] + s[12], x[13] + s[13], x[14] + s[14],
        x[15] + s[15],
    )  # fmt: skip


@inlined
def _block(key: tuple[uint32, ...], c0: uint32, c1: uint32, n0: uint32, n1: uint32) -> tuple[uint32, ...]:
    s = _start(key, c0, c1, n0, n1)
    return _sum(_double_round(_double_round(_double_round(_double_round(s)))), s)


@inlined
def three_columns(key: tuple[uint32, ...], c1: uint32, n0: uint32, n1: uint32) -> tuple[uint32, ...]:
    """Return columns 1, 2 and 3 after the first half of round one.

    Blocks share them if their counters share a high word.
    """
    s = _start(key, uint32(0), c1, n0, n1)
    x1, x5, x9, xd = _quarter_round(s[1], s[5], s[9], s[13])
    x2, x6, xa, xe = _quarter_round(s[2], s[6], s[10], s[14])
    x3, x7, xb, xf = _quarter_round(s[3], s[7], s[11], s[15])
    return x1, x5, x9, xd, x2, x6, xa, xe, x3, x7, xb, xf


@inlined
def block_after(
    key: tuple[uint32, ...], shared: tuple[uint32, ...], c0: uint32, c1: uint32, n0: uint32, n1: uint32
) -> tuple[uint32, ...]:
    """Return a ChaCha8 block. A tenth of its work is done: `shared`, from `three_columns` of the same key and words."""
    s = _start(key, c0, c1, n0, n1)
    x1, x5, x9, xd, x2, x6, xa, xe, x3, x7, xb, xf = shared
    x0, x4, x8, xc = _quarter_round(s[0], s[4], s[8], s[12])
    x = _diagonals((x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf))
    return _sum(_double_round(_double_round(_double_round(x))), s)


@kernel
def _store(block: tuple[uint32, ...], out: NDArray[np.uint32], w: int, i: int) -> None:
    """Write word k of a block to out[w·k + i].

    Callers pass a constant w, so the compiler knows that rows do not overlap.
    """
    out[i], out[w + i], out[2 * w + i], out[3 * w + i] = block[0], block[1], block[2], block[3]
    out[4 * w + i], out[5 * w + i], out[6 * w + i], out[7 * w + i] = block[4], block[5], block[6], block[7]
    out[8 * w + i], out[9 * w + i], out[10 * w + i], out[11 * w + i] = block[8], block[9], block[10], block[11]
    out[12 * w + i], out[13 * w + i], out[14 * w + i], out[15 * w + i] = block[12], block[13], block[14], block[15]


@kernel
def chacha8_group(key: NDArray[np.uint32], counter: uint64, nonce: uint64, out: NDArray[np.uint32]) -> None:
    """Write LANES blocks of consecutive counters under one nonce.

    Args:
        key: uint32[8].
        counter: counter of lane 0, a multiple of LANES.
        nonce: of all blocks.
        out: uint32[16 · LANES], written: word k of lane i is at LANES · k + i.
    """
    k = (key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7])  # scalars stay in registers
    c0, c1, n0, n1 = uint32(counter), uint32(counter >> uint64(32)), uint32(nonce), uint32(nonce >> uint64(32))
    for lane in range(LANES):
        _store(_block(k, uint32(c0 + uint32(lane)), c1, n0, n1), out, LANES, lane)


@kernel
def _load(state: NDArray[np.uint32], w: int, i: int) -> tuple[uint32, ...]:
    """Return the sixteen words of a lane, as `_store` wrote them."""
    return (
        state[i], state[w + i], state[2 * w + i], state[3 * w + i], state[4 * w + i], state[5 * w + i],
        state[6 * w + i], state[7 * w + i], state[8 * w + i], state[9 * w + i], state[10 * w + i],
        state[11 * w + i], state[12 * w + i], state[13 * w + i], state[14 * w + i], state[15 * w + i],
    )  # fmt: skip


@kernel
def chacha8_lanes(key: NDArray[np.uint32], inputs: NDArray[np.uint32], lanes: int, out: NDArray[np.uint32]) -> None:
    """Write one block for each lane, with its own counter and nonce.

    All values here have 32 bits, because a single 64-bit value in the loop would halve the lanes of a vector. One block
    is a long chain of steps, and each step waits for the previous one. More than FEW_LANES lanes go through it in four
    passes of a double round each. These are short enough that the machine works on several vectors at a time.

    Args:
        key: uint32[8].
        inputs: uint32[4 · CHUNK]: low words of the counters, their high words, low words of the nonces, their high
            words, CHUNK each.
        lanes: number of lanes. Lanes beyond, up to CHUNK, may be computed from any values that are there.
        out: uint32[16 · CHUNK], written: word k of lane i is at CHUNK · k + i.
    """
    k = (key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7])
    if lanes <= FEW_LANES:
        for begin in range(0, lanes, LANES):
            x, y = inputs[begin:], out[begin:]
            for lane in range(LANES):
                block = _block(k, x[lane], x[CHUNK + lane], x[2 * CHUNK + lane], x[3 * CHUNK + lane])
                _store(block, y, CHUNK, lane)
        return
    stop = (lanes + 2 * LANES - 1) // (2 * LANES) * (2 * LANES)  # whole vectors
    for i in range(stop):
        s = _start(k, inputs[i], inputs[CHUNK + i], inputs[2 * CHUNK + i], inputs[3 * CHUNK + i])
        _store(_double_round(s), out, CHUNK, i)
    for i in range(stop):
        _store(_double_round(_load(out, CHUNK, i)), out, CHUNK, i)
    for i in range(stop):
        _store(_double_round(_load(out, CHUNK, i)), out, CHUNK, i)
    for i in range(stop):
        s = _start(k, inputs[i], inputs[CHUNK + i], inputs[2 * CHUNK + i], inputs[3 * CHUNK + i])
        _store(_sum(_double_round(_load(out, CHUNK, i)), s), out, CHUNK, i)


@inlined
def _keyed_start(inputs: NDArray[np.uint32], i: int) -> tuple[uint32, ...]:
    """Return the start of lane i's block. `inputs` is as in `chacha8_keyed_lanes`."""
    key = (
        inputs[i], inputs[CHUNK + i], inputs[2 * CHUNK + i], inputs[3 * CHUNK + i],
        inputs[4 * CHUNK + i], inputs[5 * CHUNK + i], inputs[6 * CHUNK + i], inputs[7 * CHUNK + i],
    )  # fmt: skip
    counter_and_nonce = inputs[8 * CHUNK + i], inputs[9 * CHUNK + i], inputs[10 * CHUNK + i], inputs[11 * CHUNK + i]
    return _start(key, counter_and_nonce[0], counter_and_nonce[1], counter_and_nonce[2], counter_and_nonce[3])


@kernel
def chacha8_keyed_lanes(inputs: NDArray[np.uint32], lanes: int, out: NDArray[np.uint32]) -> None:
    """Write one block for each lane, with its own key, counter and nonce, as `chacha8_lanes` does under one key.

    Args:
        inputs: uint32[12 · CHUNK]: words 0 to 7 of the keys, low words of the counters, their high words, low words of
            the nonces, their high words, CHUNK each.
        lanes: number of lanes. Lanes beyond, up to CHUNK, may be computed from any values that are there.
        out: uint32[16 · CHUNK], written: word k of lane i is at CHUNK · k + i.
    """
    if lanes <= FEW_LANES:
        for begin in range(0, lanes, LANES):
            x, y = inputs[begin:], out[begin:]
            for lane in range(LANES):
                s = _keyed_start(x, lane)
                _store(_sum(_double_round(_double_round(_double_round(_double_round(s)))), s), y, CHUNK, lane)
        return
    stop = (lanes + 2 * LANES - 1) // (2 * LANES) * (2 * LANES)  # whole vectors
    for i in range(stop):
        _store(_double_round(_keyed_start(inputs, i)), out, CHUNK, i)
    for i in range(stop):
        _store(_double_round(_load(out, CHUNK, i)), out, CHUNK, i)
    for i in range(stop):
        _store(_double_round(_load(out, CHUNK, i)), out, CHUNK, i)
    for i in range(stop):
        _store(_sum(_double_round(_load(out, CHUNK, i)), _keyed_start(inputs, i)), out, CHUNK, i)


@kernel
def chacha8_run(
    key: NDArray[np.uint32], low: uint32, high: uint32, nonce: uint64, blocks: int, out: NDArray[np.uint32]
) -> None:
    """Write blocks of consecutive counters under one key and nonce. They share a tenth of the work.

    Args:
        key: uint32[8].
        low: low word of the first counter. That of the last one does not overflow.
        high: high word of all counters.
        nonce: of all blocks.
        blocks: number of blocks. The number computed is rounded up to a multiple of LANES, at most CHUNK.
        out: uint32[16 · CHUNK], written: word k of block i is at CHUNK · k + i.
    """
    k = (key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7])
    n0, n1 = uint32(nonce), uint32(nonce >> uint64(32))
    shared = three_columns(k, high, n0, n1)
    for begin in range(0, blocks, LANES):
        first, y = uint32(low + uint32(begin)), out[begin:]
        for lane in range(LANES):
            _store(block_after(k, shared, uint32(first + uint32(lane)), high, n0, n1), y, CHUNK, lane)


@kernel
def _rotate(x: uint64, bits: int) -> uint64:
    return uint64(uint64(x << uint64(bits)) | uint64(x >> uint64(64 - bits)))


@kernel
def _sip_round(a: uint64, b: uint64, c: uint64, d: uint64) -> tuple[uint64, uint64, uint64, uint64]:
    a = uint64(a + b)
    b = uint64(_rotate(b, 13) ^ a)
    a = _rotate(a, 32)
    c = uint64(c + d)
    d = uint64(_rotate(d, 16) ^ c)
    a = uint64(a + d)
    d = uint64(_rotate(d, 21) ^ a)
    c = uint64(c + b)
    b = uint64(_rotate(b, 17) ^ c)
    c = _rotate(c, 32)
    return a, b, c, d


@kernel
def _absorb(low: NDArray[np.uint32], high: NDArray[np.uint32], state: NDArray[np.uint64]) -> None:
    """Add one 8-byte word for each lane, made of two tokens, to the state by two SipHash rounds."""
    for i in range(len(low)):
        w = uint64(uint64(low[i]) | uint64(uint64(high[i]) << uint64(32)))
        a, b, c, d = (state[i], state[CHUNK + i], state[2 * CHUNK + i], uint64(state[3 * CHUNK + i] ^ w))
        a, b, c, d = _sip_round(a, b, c, d)
        a, b, c, d = _sip_round(a, b, c, d)
        state[i], state[CHUNK + i], state[2 * CHUNK + i], state[3 * CHUNK + i] = (uint64(a ^ w), b, c, d)


@kernel
def _finish(last: NDArray[np.uint64], state: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """Add the last word of each lane to the state, and write the hash after the four rounds that end SipHash."""
    for i in range(len(out)):
        w = last[i]
        a, b, c, d = (state[i], state[CHUNK + i], state[2 * CHUNK + i], uint64(state[3 * CHUNK + i] ^ w))
        a, b, c, d = _sip_round(a, b, c, d)
        a, b, c, d = _sip_round(a, b, c, d)
        a, c = uint64(a ^ w), uint64(c ^ uint64(0xFF))
        a, b, c, d = _sip_round(a, b, c, d)
        a, b, c, d = _sip_round(a, b, c, d)
        a, b, c, d = _sip_round(a, b, c, d)
        a, b, c, d = _sip_round(a, b, c, d)
        out[i] = uint64(uint64(a ^ b) ^ uint64(c ^ d))


@kernel
def siphash_lanes(
    key: NDArray[np.uint64],
    tokens: NDArray[np.uint32],
    stride: int,
    count: int,
    scratch: NDArray[np.uint64],
    out: NDArray[np.uint64],
) -> None:
    """Write the SipHash-2-4 of `count` tokens (4 little-endian bytes each) for each lane.

    Token k of lane i is tokens[stride · k + i]. With a stride of 1 the lanes are the windows that begin at each place
    of a text.

    Args:
        key: uint64[2].
        tokens: uint32.
        stride: distance between a lane's tokens.
        count: number of tokens in a lane.
        scratch: uint64[5 · CHUNK].
        out: uint64[L], L ≤ CHUNK, written.
    """
    lanes = len(out)
    last = scratch[4 * CHUNK : 4 * CHUNK + lanes]
    scratch[:lanes] = key[0] ^ uint64(0x736F6D6570736575)
    scratch[CHUNK : CHUNK + lanes] = key[1] ^ uint64(0x646F72616E646F6D)
    scratch[2 * CHUNK : 2 * CHUNK + lanes] = key[0] ^ uint64(0x6C7967656E657261)
    scratch[3 * CHUNK : 3 * CHUNK + lanes] = key[1] ^ uint64(0x7465646279746573)
    for k in range(0, count - 1, 2):
        _absorb(tokens[stride * k : stride * k + lanes], tokens[stride * (k + 1) : stride * (k + 1) + lanes], scratch)
    # the last word: a left-over token, and the length in bytes in the top byte
    length = uint64(uint64(4 * count) << uint64(56))
    last[:] = length
    if count % 2 == 1:
        last_tokens = tokens[stride * (count - 1) : stride * (count - 1) + lanes]
        for i in range(lanes):
            last[i] = uint64(length | uint64(last_tokens[i]))
    _finish(last, scratch, out)

"""Bounds of the Gumbel scores of a tile of messages: products of floats (why they are bounds: scanner.gpu.gumbel)."""

import triton
import triton.language as tl

from scanner.gpu.kernels.ciphers import chacha8, load_key


@triton.jit(do_not_specialize=["first", "count", "items", "tiles"])
def sum_logarithms(
    key,
    ids,
    nonces,
    begins,
    ends,
    strips,
    sums,
    first,
    count,
    items,
    tiles,
    GROUPS: tl.constexpr,
    FRACTION: tl.constexpr,
    STEP: tl.constexpr,
):
    """Σ log2 v of every message, from below, in units of 2^-FRACTION.

    key … ends: a Batch; strips: int16[programs, 2 · STEP · WORDS + WIDTH], scratch; sums: int32[D, count], written.
    first: added to every message; items: documents · tiles.
    """
    WIDTH: tl.constexpr = 256
    WORDS: tl.constexpr = GROUPS * WIDTH
    VALID: tl.constexpr = WORDS - WIDTH
    ONE: tl.constexpr = 127 << 23  # the float 1
    START: tl.constexpr = 63 << 23  # 2^-64: four factors of up to 2^32 neither overflow nor underflow
    k = load_key(key)
    lane, row, word = tl.arange(0, GROUPS * 16), tl.arange(0, STEP), tl.arange(0, WORDS)
    strip = strips + tl.program_id(0).to(tl.int64) * (2 * STEP * WORDS + WIDTH)
    written = strip + ((lane // 16) * WIDTH + lane % 16)[None, :] + (row * WORDS)[:, None]
    read = strip + word
    half = 0
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        document, tile = item // tiles, item % tiles
        begin, end = tl.load(begins + document), tl.load(ends + document)
        tile_first = tile.to(tl.int64) * VALID
        zero = (word ^ word).to(tl.uint32)
        exponents = zero
        bits = zero + START
        for t in range(begin, end, STEP):
            on = t + row < end
            entry = tl.load(ids + t + row, mask=on, other=0).to(tl.uint32, bitcast=True).to(tl.int64)
            n0 = tl.load(nonces + 2 * (t + row), mask=on, other=0).to(tl.uint32, bitcast=True)
            n1 = tl.load(nonces + 2 * (t + row) + 1, mask=on, other=0).to(tl.uint32, bitcast=True)
            group = ((entry + (first + tile_first)) // WIDTH).to(tl.uint32)
            block = chacha8(k, lane.to(tl.uint32)[None, :] + 16 * group[:, None], n0[:, None], n1[:, None])
            kept = tl.where(on, 0xFFFFFFFF, 0).to(tl.uint32)[:, None]  # other rows count as v = 1
            for i in tl.static_range(16):
                v = (~block[i] | 1).to(tl.float32).to(tl.uint32, bitcast=True)
                cut = ((v - ONE) >> 13) & kept
                tl.store(written + (half + 16 * i), cut.to(tl.uint16).to(tl.int16, bitcast=True))
            # A thread is past this point once all threads have written one half, and so have read the other half.
            tl.debug_barrier()
            product = bits.to(tl.float32, bitcast=True)
            for r in tl.static_range(STEP):
                x = tl.load(ids + t + r, mask=t + r < end, other=0).to(tl.uint32, bitcast=True).to(tl.int64)
                # words from VALID on reach past the row, into others: they belong to no message of this tile
                at = read + (half + r * WORDS + ((x + (first + tile_first)) % WIDTH).to(tl.int32))
                v = (tl.load(at).to(tl.uint16, bitcast=True).to(tl.uint32) << 13) + ONE
                product = product * v.to(tl.float32, bitcast=True)
            half = STEP * WORDS - half
            bits = product.to(tl.uint32, bitcast=True)
            exponents += (bits >> 23) - 63
            bits = (bits & 0x7FFFFF) | START
        total = (exponents << FRACTION) + ((bits & 0x7FFFFF) >> (23 - FRACTION))
        message = tile_first + word
        at = sums + document.to(tl.int64) * count + message
        tl.store(at, total.to(tl.int32, bitcast=True), mask=(word < VALID) & (message < count))

"""Green counts of a tile of messages, bit-sliced, and the best two of them (scanner.gpu.greenlist)."""

import triton
import triton.language as tl

from scanner.gpu.kernels.ciphers import chacha8, load_key


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


@triton.jit
def _largest(counters, candidates, word, LEVELS: tl.constexpr):
    """Largest count among the candidate bits, and the first place that has it; 2^31 − 1 where there is none."""
    largest = tl.max(word, axis=0) * 0
    for level in tl.static_range(LEVELS):
        found = candidates & counters[LEVELS - 1 - level]
        some = tl.max((found != 0).to(tl.int32), axis=0)
        candidates = tl.where(some > 0, found, candidates)
        largest = 2 * largest + some
    lowest = (candidates & (~candidates + 1)).to(tl.float32).to(tl.int32, bitcast=True)  # 2^bit
    place = tl.where(candidates != 0, 32 * word + (lowest >> 23) - 127, 2147483647)
    return largest, tl.min(place, axis=0)


@triton.jit(do_not_specialize=["first", "count", "items", "tiles"])
def count_green(
    key,
    ids,
    nonces,
    begins,
    ends,
    strips,
    best,
    first,
    count,
    items,
    tiles,
    N: tl.constexpr,
    BITS: tl.constexpr,
    PLANES: tl.constexpr,
    GROUPS: tl.constexpr,
    LEVELS: tl.constexpr,
    STEP: tl.constexpr,
):
    """Best and second best of each tile as count · 2^32 + 2^32 − 1 − message, −1 where there is none.

    key … ends: a Batch; strips: int32[programs, 2 · STEP · WORDS + WIDTH], scratch; best: int64[items, 2], written.
    first: added to every message; count: of messages; items: documents · tiles. The rest: a Rule and a Tiling.
    """
    HEIGHT: tl.constexpr = 16 // PLANES
    WIDTH: tl.constexpr = 16 * HEIGHT  # words of a group
    WORDS: tl.constexpr = GROUPS * WIDTH
    VALID: tl.constexpr = WORDS - WIDTH
    k = load_key(key)
    lane = tl.arange(0, GROUPS * 16)
    word = tl.arange(0, WORDS)
    strip = strips + tl.program_id(0).to(tl.int64) * (2 * STEP * WORDS + WIDTH)
    row = tl.arange(0, STEP)
    written = strip + ((lane // 16) * WIDTH + lane % 16)[None, :] + (row * WORDS)[:, None]
    read = strip + word
    half = 0
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        document, tile = item // tiles, item % tiles
        begin, end = tl.load(begins + document), tl.load(ends + document)
        tile_first = tile.to(tl.int64) * (32 * VALID)
        zero = (word ^ word).to(tl.uint32)
        counters = (zero,)
        for _ in tl.static_range(LEVELS - 1):
            counters = counters + (zero,)
        for t in range(begin, end, STEP):
            on = t + row < end
            entry = tl.load(ids + t + row, mask=on, other=0).to(tl.uint32, bitcast=True).to(tl.int64)
            n0 = tl.load(nonces + 2 * (t + row), mask=on, other=0).to(tl.uint32, bitcast=True)
            n1 = tl.load(nonces + 2 * (t + row) + 1, mask=on, other=0).to(tl.uint32, bitcast=True)
            group = ((entry + (first + tile_first)) // (32 * WIDTH)).to(tl.uint32)
            block = chacha8(k, lane.to(tl.uint32)[None, :] + 16 * group[:, None], n0[:, None], n1[:, None])
            kept = tl.where(on, -1, 0)[:, None]
            for i in tl.static_range(HEIGHT):
                green = below(block, i, N, BITS, HEIGHT).to(tl.int32, bitcast=True) & kept
                tl.store(written + (half + 16 * i), green)
            # A thread is past this point once all threads have written one half, and so have read the other half.
            tl.debug_barrier()
            rows = ()
            for r in tl.static_range(STEP):
                entry = tl.load(ids + t + r, mask=t + r < end, other=0).to(tl.uint32, bitcast=True).to(tl.int64)
                entry += first + tile_first
                by = (entry % 32).to(tl.uint64)
                # words from VALID on reach past the row, into others: they belong to no message of this tile
                at = read + (half + r * WORDS + ((entry // 32) % WIDTH).to(tl.int32))
                low, high = tl.load(at).to(tl.uint32, bitcast=True), tl.load(at + 1).to(tl.uint32, bitcast=True)
                pair = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
                rows = rows + ((pair >> by).to(tl.uint32),)
            half = STEP * WORDS - half
            counters = add_rows(counters, rows[0], rows[1], rows[2], rows[3], LEVELS)
        messages = tl.minimum(count - tile_first, 32 * VALID).to(tl.int32)
        bits = tl.minimum(tl.maximum(messages - 32 * word, 0), 32)
        candidates = tl.where(bits > 0, tl.full(bits.shape, 0xFFFFFFFF, tl.uint32) >> (32 - bits).to(tl.uint32), 0)
        score, place = _largest(counters, candidates, word, LEVELS)
        taken = tl.where(word == place // 32, (zero + 1) << (place % 32).to(tl.uint32), 0)
        candidates = candidates & ~taken
        second, second_place = _largest(counters, candidates, word, LEVELS)
        tl.store(best + 2 * item, score.to(tl.int64) * 4294967296 + (4294967295 - tile_first - place))
        packed = second.to(tl.int64) * 4294967296 + (4294967295 - tile_first - second_place)
        tl.store(best + 2 * item + 1, tl.where(messages > 1, packed, -1))

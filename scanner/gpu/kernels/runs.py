"""Scores of all numbers of runs in streams of version 2: green counts, and bounds of Gumbel's sums (scanner.gpu.runs).

A thread has a block of a run, one step after another, and where a run has fewer blocks than a warp has threads, several
take turns at its steps. Every run begins with a block, so that nothing is shifted and threads share nothing until their
counts are added up.
"""

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
def _run(begins, ends, firsts, tiles, STEPS: tl.constexpr, BLOCKS: tl.constexpr):
    """Which run a program has, its steps, its blocks and their places in a stream, and zeros for each thread."""
    run, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    block = tile * BLOCKS + tl.arange(0, BLOCKS)
    place = (tl.load(firsts + run) + block).to(tl.uint32)
    step = tl.arange(0, STEPS)
    zero = ((step ^ step)[:, None] + (block ^ block)[None, :]).to(tl.uint32)
    return run.to(tl.int64), tl.load(begins + run), tl.load(ends + run), block, place, zero


@triton.jit
def _blocks(k, ids, nonces, at, end, place, SHIFT: tl.constexpr):
    """Which steps there are, and for each of them the blocks at these places of its token's run."""
    on = at < end
    token = tl.load(ids + at, mask=on, other=0).to(tl.uint32, bitcast=True)
    n0 = tl.load(nonces + 2 * at, mask=on, other=0).to(tl.uint32, bitcast=True)
    n1 = tl.load(nonces + 2 * at + 1, mask=on, other=0).to(tl.uint32, bitcast=True)
    counter = (token << (32 - SHIFT))[:, None] | place[None, :]
    return on[:, None], chacha8(k, counter, n0[:, None], n1[:, None], (token >> SHIFT)[:, None])


@triton.jit
def _store_rows(out, rows, block, blocks, ROWS: tl.constexpr):
    """Write rows of 32-bit words, `blocks` apart, by one store: compiling takes time for each store's whole history."""
    place = tl.arange(0, ROWS)[:, None]
    words = tl.zeros((ROWS, block.shape[0]), tl.uint32)
    for row in tl.static_range(ROWS):
        words = tl.where(place == row, rows[row].to(tl.uint32)[None, :], words)
    within = (block < blocks)[None, :]
    tl.store(out + place * blocks + block[None, :], words.to(tl.int32, bitcast=True), mask=within)


@triton.jit(do_not_specialize=["blocks", "tiles"])
def count_runs(
    key, ids, nonces, begins, ends, firsts, out, blocks, tiles,
    N: tl.constexpr, BITS: tl.constexpr, PLANES: tl.constexpr, SHIFT: tl.constexpr, LEVELS: tl.constexpr,
    FIELD: tl.constexpr, STEPS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Green steps of each number: several counts a word, FIELD bits each.

    key … ends: a Batch, a document for each run; firsts: int32[R], the first block; blocks: of a run; tiles: programs a
    run; LEVELS: digits of a count, FIELD at most. out: int32[R, HEIGHT, FIELD, blocks], written: field f of
    [r, i, s, b] is the count of number 32 · (b · HEIGHT + i) + f · FIELD + s.
    """
    HEIGHT: tl.constexpr = 16 // PLANES
    ONES: tl.constexpr = 0xFFFFFFFF // ((1 << FIELD) - 1)  # the lowest bit of each field
    k = load_key(key)
    run, begin, end, block, place, zero = _run(begins, ends, firsts, tiles, STEPS, BLOCKS)
    step = tl.arange(0, STEPS)
    counters = ()
    for _ in tl.static_range(HEIGHT * LEVELS):
        counters = counters + (zero,)
    for t in range(begin, end, 4 * STEPS):
        rows = ()
        for r in tl.static_range(4):
            on, found = _blocks(k, ids, nonces, t + r * STEPS + step, end, place, SHIFT)
            kept = tl.where(on, 0xFFFFFFFF, 0).to(tl.uint32)
            for i in tl.static_range(HEIGHT):
                rows = rows + (below(found, i, N, BITS, HEIGHT) & kept,)
        added = ()
        for i in tl.static_range(HEIGHT):
            sums = ()
            for level in tl.static_range(LEVELS):
                sums = sums + (counters[i * LEVELS + level],)
            added = added + add_rows(
                sums, rows[i], rows[HEIGHT + i], rows[2 * HEIGHT + i], rows[3 * HEIGHT + i], LEVELS
            )
        counters = added
    for i in tl.static_range(HEIGHT):
        totals = ()
        for s in tl.static_range(FIELD):
            fields = zero
            for level in tl.static_range(LEVELS):
                fields += ((counters[i * LEVELS + level] >> s) & ONES) << level
            totals = totals + (tl.sum(fields, axis=0),)
        _store_rows(out + (run * HEIGHT + i) * FIELD * blocks, totals, block, blocks, FIELD)


@triton.jit(do_not_specialize=["blocks", "tiles"])
def sum_runs(
    key, ids, nonces, begins, ends, firsts, out, blocks, tiles,
    FRACTION: tl.constexpr, STEPS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Σ log2 v of each number, from below, in units of 2^-FRACTION; why they are bounds: scanner.gpu.runs.

    Arguments as for count_runs. out: int32[R, 16, blocks], written: [r, i, b] is the sum of number 16 · b + i.
    """
    START: tl.constexpr = 63 << 23  # 2^-64: four factors of up to 2^32 neither overflow nor underflow
    k = load_key(key)
    run, begin, end, block, place, zero = _run(begins, ends, firsts, tiles, STEPS, BLOCKS)
    step = tl.arange(0, STEPS)
    exponents, bits = (), ()
    for _ in tl.static_range(16):
        exponents = exponents + (zero,)
        bits = bits + (zero + START,)
    for t in range(begin, end, 4 * STEPS):
        products = ()
        for i in tl.static_range(16):
            products = products + (bits[i].to(tl.float32, bitcast=True),)
        for r in tl.static_range(4):
            on, found = _blocks(k, ids, nonces, t + r * STEPS + step, end, place, 4)
            longer = ()
            for i in tl.static_range(16):
                v = tl.where(on, (~found[i] | 1).to(tl.float32), 1.0)
                longer = longer + (products[i] * v,)
            products = longer
        higher, rest = (), ()
        for i in tl.static_range(16):
            product = products[i].to(tl.uint32, bitcast=True)
            higher = higher + (exponents[i] + ((product >> 23) - 63),)
            rest = rest + ((product & 0x7FFFFF) | START,)
        exponents, bits = higher, rest
    totals = ()
    for i in tl.static_range(16):
        total = (exponents[i] << FRACTION) + ((bits[i] & 0x7FFFFF) >> (23 - FRACTION))
        totals = totals + (tl.sum(total, axis=0),)
    _store_rows(out + run * 16 * blocks, totals, block, blocks, 16)

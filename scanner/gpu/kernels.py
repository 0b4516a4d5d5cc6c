"""Define kernels in Triton: two ciphers, scores of all numbers of runs, and secret vectors.

Only constants are annotated.

ChaCha with 8 rounds and SipHash-2-4 (SPEC §1) stay in registers. Tensors may have any shape, with a block or a hash for
each entry.

In runs of version 3 (scanner.gpu.runs), a thread computes one block of a run, step after step, each step under its own
key. If a run has fewer blocks than a warp has threads, several threads share its steps. Every run begins with a block,
so nothing is shifted, and threads share nothing until their counts are added up.
"""

import triton
import triton.language as tl


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def load_key(key):
    """Load the eight words of a ChaCha key (int32[8]) as a tuple."""
    k0, k1, k2, k3 = tl.load(key), tl.load(key + 1), tl.load(key + 2), tl.load(key + 3)
    k4, k5, k6, k7 = tl.load(key + 4), tl.load(key + 5), tl.load(key + 6), tl.load(key + 7)
    return (
        k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True), k2.to(tl.uint32, bitcast=True),
        k3.to(tl.uint32, bitcast=True), k4.to(tl.uint32, bitcast=True), k5.to(tl.uint32, bitcast=True),
        k6.to(tl.uint32, bitcast=True), k7.to(tl.uint32, bitcast=True),
    )  # fmt: skip


@triton.jit
def chacha8(key, counter, n0, n1, high=None):
    """Compute blocks of the stream: a tuple of 16 uint32 tensors with the shape of `counter`.

    Args:
        key: from load_key.
        counter: uint32, the low word.
        n0: uint32, low word of the nonces, with counter's shape or broadcast to it.
        n1: uint32, high word of the nonces, likewise.
        high: uint32, the counter's high word. In version 1 it is always 0, with tokens of 32 bits and messages of 31.
    """
    none = counter ^ counter
    s0, s1, s2, s3 = none + 0x61707865, none + 0x3320646E, none + 0x79622D32, none + 0x6B206574
    s4, s5, s6, s7 = none + key[0], none + key[1], none + key[2], none + key[3]
    s8, s9, sa, sb = none + key[4], none + key[5], none + key[6], none + key[7]
    sc, sd, se, sf = counter, none, none + n0, none + n1
    if high is not None:
        sd = none + high
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, xa, xb, xc, xd, xe, xf = s8, s9, sa, sb, sc, sd, se, sf
    for _ in tl.static_range(4):
        x0, x4, x8, xc = _quarter_round(x0, x4, x8, xc)
        x1, x5, x9, xd = _quarter_round(x1, x5, x9, xd)
        x2, x6, xa, xe = _quarter_round(x2, x6, xa, xe)
        x3, x7, xb, xf = _quarter_round(x3, x7, xb, xf)
        x0, x5, xa, xf = _quarter_round(x0, x5, xa, xf)
        x1, x6, xb, xc = _quarter_round(x1, x6, xb, xc)
        x2, x7, x8, xd = _quarter_round(x2, x7, x8, xd)
        x3, x4, x9, xe = _quarter_round(x3, x4, x9, xe)
    return (
        x0 + s0, x1 + s1, x2 + s2, x3 + s3, x4 + s4, x5 + s5, x6 + s6, x7 + s7,
        x8 + s8, x9 + s9, xa + sa, xb + sb, xc + sc, xd + sd, xe + se, xf + sf,
    )  # fmt: skip


@triton.jit
def _rotate64(x, by: tl.constexpr):
    return (x << by) | (x >> (64 - by))


@triton.jit
def _sip_round(a, b, c, d):
    a = a + b
    b = _rotate64(b, 13) ^ a
    a = _rotate64(a, 32)
    c = c + d
    d = _rotate64(d, 16) ^ c
    a = a + d
    d = _rotate64(d, 21) ^ a
    c = c + b
    b = _rotate64(b, 17) ^ c
    c = _rotate64(c, 32)
    return a, b, c, d


@triton.jit
def siphash(key, tokens, WINDOW: tl.constexpr):
    """Compute SipHash-2-4 of WINDOW tokens (4 little-endian bytes each): one uint64.

    Args:
        key: int64[2].
        tokens: pointer to int64, the window's first token.
        WINDOW: number of tokens.
    """
    k0, k1 = tl.load(key).to(tl.uint64, bitcast=True), tl.load(key + 1).to(tl.uint64, bitcast=True)
    a, b = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    c, d = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    for pair in tl.static_range(WINDOW // 2 + 1):
        word = k0 ^ k0
        if 2 * pair < WINDOW:
            word = tl.load(tokens + 2 * pair).to(tl.uint64) & 0xFFFFFFFF
        if 2 * pair + 1 < WINDOW:
            word = word | (tl.load(tokens + 2 * pair + 1).to(tl.uint64) << 32)
        if pair == WINDOW // 2:  # the length in bytes, in the top byte of the last word
            word = word | ((4 * WINDOW) << 56)
        d = d ^ word
        a, b, c, d = _sip_round(a, b, c, d)
        a, b, c, d = _sip_round(a, b, c, d)
        a = a ^ word
    c = c ^ 0xFF
    for _ in tl.static_range(4):
        a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d


@triton.jit
def below(block, k: tl.constexpr, N: tl.constexpr, BITS: tl.constexpr, HEIGHT: tl.constexpr):
    """Return green bits of word k: where the integer with the planes' digits is < N (odd), from the last digit up."""
    out = ~block[(BITS - 1) * HEIGHT + k]
    for q in tl.static_range(1, BITS):
        plane = ~block[(BITS - 1 - q) * HEIGHT + k]
        if (N >> q) & 1:
            out = plane | out
        else:
            out = plane & out
    return out


@triton.jit
def _load_step(ids, nonces, keys, at, on, count):
    """Load token, N as two words, and key of steps `at` of a Batch of `count` steps.

    Steps that are not on get zeros.
    """
    token = tl.load(ids + at, mask=on, other=0).to(tl.uint32, bitcast=True)
    n0 = tl.load(nonces + 2 * at, mask=on, other=0).to(tl.uint32, bitcast=True)
    n1 = tl.load(nonces + 2 * at + 1, mask=on, other=0).to(tl.uint32, bitcast=True)
    key = ()
    for word in tl.static_range(8):
        words = tl.load(keys + word * count.to(tl.int64) + at, mask=on, other=0)
        key = key + (words.to(tl.uint32, bitcast=True),)
    return token, n0, n1, key


@triton.jit
def _leading_ones(block, k: tl.constexpr, on):
    """Return the leading ones of word k's 32 numbers, where a step is on, as four rows of bits, the last digit first.

    The eight planes of a block have two words each, next to each other.
    """
    a = tl.where(on, block[k], 0)
    b = a & block[2 + k]
    c = b & block[4 + k]
    d = c & block[6 + k]
    e = d & block[8 + k]
    f = e & block[10 + k]
    g = f & block[12 + k]
    h = g & block[14 + k]
    twos = b ^ d ^ f ^ h
    return a ^ c ^ e ^ g ^ twos, twos, d ^ h, h


@triton.jit
def _added(counters, first: tl.constexpr, rows, LEVELS: tl.constexpr):
    """Add four rows of bits to LEVELS vertical counters from `first` on. Return these counters."""
    sums = ()
    carry = rows[0] ^ rows[0]
    for level in tl.static_range(LEVELS):
        old = counters[first + level]
        if level < 4:
            half = old ^ rows[level]
            sums = sums + (half ^ carry,)
            carry = (old & rows[level]) | (half & carry)
        else:
            sums = sums + (old ^ carry,)
            carry = old & carry
    return sums


@triton.jit(do_not_specialize=["count", "blocks", "tiles"])
def count_runs(
    ids, nonces, keys, begins, ends, firsts, out, count, blocks, tiles,
    LEVELS: tl.constexpr, STEPS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Count the rough score of each number of runs (SPEC_3 §4) in vertical counters: word l has bit l of 32 counts.

    Args:
        ids: ids of a Batch.
        nonces: nonces of a Batch.
        keys: keys of a Batch.
        begins: int32[R], each run's first step.
        ends: int32[R], one past its last step.
        firsts: int32[R], its first block.
        out: int32[R, STEPS, LEVELS, 2, blocks], written, for `spread_counts`.
        count: number of steps of the Batch.
        blocks: number of blocks of a run.
        tiles: number of programs for a run.
        LEVELS: number of binary digits that no score exceeds, four or more.
        STEPS: number of steps that a program computes side by side.
        BLOCKS: number of blocks that a program computes.
    """
    run, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    begin, end = tl.load(begins + run), tl.load(ends + run)
    block = tile * BLOCKS + tl.arange(0, BLOCKS)
    place = (tl.load(firsts + run) + block).to(tl.uint32)
    step = tl.arange(0, STEPS)
    counters = ()
    for _ in tl.static_range(2 * LEVELS):
        counters = counters + (tl.zeros((STEPS, BLOCKS), tl.uint32),)
    for t in range(begin, end, STEPS):
        on = t + step < end
        token, n0, n1, words = _load_step(ids, nonces, keys, t + step, on, count)
        key = ()
        for word in tl.static_range(8):
            key = key + (words[word][:, None],)
        low, high = (token << 26)[:, None] | place[None, :], ((token >> 6) | 0x80000000)[:, None]  # 64 numbers a block
        found = chacha8(key, low, n0[:, None], n1[:, None], high)
        longer = ()
        for k in tl.static_range(2):
            longer = longer + _added(counters, k * LEVELS, _leading_ones(found, k, on[:, None]), LEVELS)
        counters = longer
    lane = (run.to(tl.int64) * STEPS + step) * LEVELS
    for k in tl.static_range(2):
        for level in tl.static_range(LEVELS):
            row = ((lane + level) * 2 + k) * blocks
            words = counters[k * LEVELS + level].to(tl.int32, bitcast=True)
            tl.store(out + row[:, None] + block[None, :], words, mask=(block < blocks)[None, :])


@triton.jit(do_not_specialize=["blocks"])
def spread_counts(
    counters, out, blocks, LEVELS: tl.constexpr, STEPS: tl.constexpr, AT_ONCE: tl.constexpr
):  # fmt: skip
    """Write counts as whole numbers, summed over the steps that were counted side by side.

    Args:
        counters: from `count_runs`.
        out: int32[R, blocks, 64], written.
        blocks: number of blocks of a run.
        LEVELS: as in `count_runs`.
        STEPS: as in `count_runs`.
        AT_ONCE: number of words that a program turns into numbers.
    """
    words = 2 * blocks
    run, word = tl.program_id(0).to(tl.int64), tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    bit = tl.arange(0, 32)
    totals = tl.zeros((AT_ONCE, 32), tl.int32)
    for lane in range(STEPS):
        for level in tl.static_range(LEVELS):
            row = ((run * STEPS + lane) * LEVELS + level) * words
            digits = tl.load(counters + row + word, mask=word < words, other=0)
            totals += ((digits[:, None] >> bit[None, :]) & 1) << level
    number = run * words * 32 + (word % blocks * 2 + word // blocks) * 32
    tl.store(out + number[:, None] + bit[None, :], totals, mask=(word < words)[:, None])


@triton.jit
def _vector_blocks(
    sip, key, windows, starts,
    WIDTH: tl.constexpr, ENTRIES: tl.constexpr, WINDOW: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Compute the blocks of one row and chunk, and the place in the row's vector of each block's first entry."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    nonce = siphash(sip, windows + row * WINDOW, WINDOW)
    start = tl.load(starts + row)
    first = start // (WIDTH * ENTRIES) + chunk * GROUPS
    lane = tl.arange(0, GROUPS * 16)
    counter = lane.to(tl.uint32) + 16 * first.to(tl.uint32)
    block = chacha8(load_key(key), counter, nonce.to(tl.uint32), (nonce >> 32).to(tl.uint32))
    place = (first * WIDTH + (lane // 16) * WIDTH + lane % 16) * ENTRIES - start
    return block, place


@triton.jit(do_not_specialize=["count"])
def green_entries(
    sip, key, windows, starts, strips, out, count,
    N: tl.constexpr, BITS: tl.constexpr, PLANES: tl.constexpr, WINDOW: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Write whether entries start … start+count−1 of each row's vector are green: 1 or 0.

    Args:
        sip: int64[2].
        key: int32[8].
        windows: int64[R, h].
        starts: int64[R].
        strips: int32[R, chunks · WORDS], scratch.
        out: int8[R, count], written.
        count: number of entries of a row.
        N: n of the GreenRule.
        BITS: bits of the GreenRule.
        PLANES: planes of the GreenRule.
        WINDOW: h.
        GROUPS: number of groups of blocks that a program computes.
    """
    HEIGHT: tl.constexpr = 16 // PLANES
    WORDS: tl.constexpr = GROUPS * 16 * HEIGHT
    AT_ONCE: tl.constexpr = 256
    block, place = _vector_blocks(sip, key, windows, starts, 16 * HEIGHT, 32, WINDOW, GROUPS)
    first = tl.min(place, axis=0)
    strip = strips + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * WORDS
    word = ((place - first) // 32).to(tl.int32)
    for i in tl.static_range(HEIGHT):
        tl.store(strip + (word + 16 * i), below(block, i, N, BITS, HEIGHT).to(tl.int32, bitcast=True))
    tl.debug_barrier()
    row = out + tl.program_id(0).to(tl.int64) * count
    for begin in range(0, 32 * WORDS, AT_ONCE):
        bit = begin + tl.arange(0, AT_ONCE)
        green = (tl.load(strip + bit // 32) >> (bit % 32)) & 1
        entry = first + bit
        tl.store(row + entry, green.to(tl.int8), mask=(entry >= 0) & (entry < count))


@triton.jit(do_not_specialize=["count"])
def draw_entries(
    sip, key, windows, starts, out, count, WINDOW: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """Write draws start … start+count−1 of each row's vector to out, int32[R, count]. Arguments as in green_entries."""
    block, place = _vector_blocks(sip, key, windows, starts, 256, 1, WINDOW, GROUPS)
    row = out + tl.program_id(0).to(tl.int64) * count
    for i in tl.static_range(16):
        entry = place + 16 * i
        tl.store(row + entry, block[i].to(tl.int32, bitcast=True), mask=(entry >= 0) & (entry < count))


STEP_WORDS = tl.constexpr(11)
"""Words of a step in memory: eight of its key, two of N, the lower one first, and the number that is read there."""


@triton.jit(do_not_specialize=["users"])
def open_steps(
    window_key, secrets, windows, messages, steps, users,
    SEEDS: tl.constexpr, GROUPED: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Write each row's step of version 3 to `steps`, int32[R, STEP_WORDS] (SPEC_3 §1). A program has one row.

    Args:
        window_key: int64[4].
        secrets: int32[16], the seed key and then R.
        windows: int64[R, h].
        messages: int64[R].
        steps: written.
        users: B if GROUPED.
        SEEDS: n, of 2^n seeds.
        GROUPED: whether messages are in groups.
        WINDOW: h.
    """
    row = tl.program_id(0)
    nonce = siphash(window_key, windows + row * WINDOW, WINDOW)
    second = siphash(window_key + 2, windows + row * WINDOW, WINDOW)
    bucket = (nonce >> (64 - SEEDS)).to(tl.uint32)
    none = bucket ^ bucket
    seed, beacon = chacha8(load_key(secrets), none, bucket, none), load_key(secrets + 8)
    step = steps + row * STEP_WORDS
    tl.store(step, (seed[0] ^ beacon[0] ^ second.to(tl.uint32)).to(tl.int32, bitcast=True))
    tl.store(step + 1, (seed[1] ^ beacon[1] ^ (second >> 32).to(tl.uint32)).to(tl.int32, bitcast=True))
    for word in tl.static_range(2, 8):
        tl.store(step + word, (seed[word] ^ beacon[word]).to(tl.int32, bitcast=True))
    tl.store(step + 8, nonce.to(tl.uint32).to(tl.int32, bitcast=True))
    tl.store(step + 9, (nonce >> 32).to(tl.uint32).to(tl.int32, bitcast=True))
    number = tl.load(messages + row)
    if GROUPED:
        is_shared = ((seed[7] ^ beacon[7]).to(tl.uint64) * 3) >> 32 == 0
        number = tl.where(is_shared, number // users, number // users * 65536 + number % users)
    tl.store(step + 10, number.to(tl.uint32).to(tl.int32, bitcast=True))


@triton.jit
def _of_step(steps, wanted, count, AT_ONCE: tl.constexpr):
    """Return a program's step and its number, its tokens, their places in rows of `count`, and which are wanted."""
    row = tl.program_id(0)
    step = steps + row * STEP_WORDS
    token = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    place = row.to(tl.int64) * count + token
    on = tl.load(wanted + place, mask=token < count, other=0) != 0
    number = tl.load(step + 10).to(tl.uint32, bitcast=True).to(tl.int64)
    return step, number, token, place, on


@triton.jit
def _load_opened(step):
    """Load N as two words, and the key, of a step that `open_steps` wrote."""
    n0 = tl.load(step + 8).to(tl.uint32, bitcast=True)
    n1 = tl.load(step + 9).to(tl.uint32, bitcast=True)
    return n0, n1, load_key(step)


@triton.jit
def _entry_block(key, n0, n1, token, number, SHIFT: tl.constexpr, TOP: tl.constexpr):
    """Return the blocks in which tokens read numbers. A block has 2^SHIFT numbers, and TOP is added to high words."""
    counter = (token.to(tl.int64) << (32 - SHIFT)) | (number >> SHIFT)
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32) | TOP
    return chacha8(key, low, n0, n1, high)


@triton.jit
def _draw(key, n0, n1, token, number, DIGITS: tl.constexpr, WORDS: tl.constexpr):
    """Return draws (SPEC_3 §1).

    DIGITS: whether they begin with eight digits from planes.
    WORDS: whether they also have digits from a word.
    """
    if WORDS:
        block = _entry_block(key, n0, n1, token, number, 4, 0)
        draw = block[0]
        for k in tl.static_range(1, 16):
            draw = tl.where(number % 16 == k, block[k], draw)
    if DIGITS:
        planes = _entry_block(key, n0, n1, token, number, 6, 0x80000000)
        digits = planes[0] ^ planes[0]
        for q in tl.static_range(8):
            word = tl.where((number >> 5) % 2 == 1, planes[2 * q + 1], planes[2 * q])
            digits = digits | (((word >> (number % 32).to(tl.uint32)) & 1) << (31 - q))
        if WORDS:
            draw = digits | (draw >> 8)
        else:
            draw = digits
    return draw


@triton.jit(do_not_specialize=["count", "pairs"])
def draws_at(ids, nonces, keys, places, numbers, out, count, pairs, AT_ONCE: tl.constexpr):
    """Write draws under labels with groups to out, int32[pairs].

    Args:
        ids: ids of a Batch.
        nonces: nonces of a Batch.
        keys: keys of a Batch.
        places: int32[pairs], the step of each pair.
        numbers: int64[pairs], the number that is read there.
        out: written.
        count: number of steps of the Batch.
        pairs: number of pairs.
        AT_ONCE: number of pairs that a program computes.
    """
    pair = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    on = pair < pairs
    at, number = tl.load(places + pair, mask=on, other=0), tl.load(numbers + pair, mask=on, other=0)
    token, n0, n1, key = _load_step(ids, nonces, keys, at, on, count)
    tl.store(out + pair, _draw(key, n0, n1, token, number, True, True).to(tl.int32, bitcast=True), mask=on)


@triton.jit(do_not_specialize=["count"])
def green_of_steps(
    steps, wanted, out, count,
    N: tl.constexpr, BITS: tl.constexpr, PLANES: tl.constexpr, SHIFT: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Write whether the wanted tokens 0 … count−1 are green at each row's step: 1 or 0.

    Args:
        steps: from `open_steps`.
        wanted: int8[R, count].
        out: int8[R, count], written.
        count: number of tokens of a row.
        N: n of the GreenRule.
        BITS: bits of the GreenRule.
        PLANES: planes of the GreenRule.
        SHIFT: log2 of the entries of a block.
        AT_ONCE: number of tokens that a program computes.
    """
    HEIGHT: tl.constexpr = 16 // PLANES
    step, number, token, place, on = _of_step(steps, wanted, count, AT_ONCE)
    bit = tl.zeros((AT_ONCE,), tl.uint32)
    if tl.max(on.to(tl.int32), axis=0) > 0:
        n0, n1, key = _load_opened(step)
        block = _entry_block(key, n0, n1, token, number, SHIFT, 0)
        word = (number >> 5) % HEIGHT
        green = below(block, 0, N, BITS, HEIGHT)
        for k in tl.static_range(1, HEIGHT):
            green = tl.where(word == k, below(block, k, N, BITS, HEIGHT), green)
        bit = tl.where(on, (green >> (number % 32).to(tl.uint32)) & 1, 0)
    tl.store(out + place, bit.to(tl.int8), mask=token < count)


@triton.jit(do_not_specialize=["count"])
def draws_of_steps(steps, wanted, out, count, DIGITS: tl.constexpr, WORDS: tl.constexpr, AT_ONCE: tl.constexpr):
    """Write draws of wanted tokens to out, int32[R, count], and 0 for others. See green_of_steps and `_draw`."""
    step, number, token, place, on = _of_step(steps, wanted, count, AT_ONCE)
    draw = tl.zeros((AT_ONCE,), tl.uint32)
    if tl.max(on.to(tl.int32), axis=0) > 0:
        n0, n1, key = _load_opened(step)
        draw = tl.where(on, _draw(key, n0, n1, token, number, DIGITS, WORDS), 0)
    tl.store(out + place, draw.to(tl.int32, bitcast=True), mask=token < count)

"""Secret vectors of a step's rows, from their windows (scanner.gpu.vectors)."""

import triton
import triton.language as tl

from scanner.gpu.kernels.ciphers import chacha8, load_key, siphash
from scanner.gpu.kernels.runs import below


@triton.jit
def _blocks(
    sip, key, windows, starts,
    WIDTH: tl.constexpr, ENTRIES: tl.constexpr, WINDOW: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Blocks of one row and chunk, and where the first entry of each one's first word stands in the row's vector."""
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
    """Green (1) or not (0), entries start … start+count−1 of each row's vector.

    sip: int64[2]; key: int32[8]; windows: int64[R, h]; starts: int64[R]; strips: int32[R, chunks · WORDS], scratch;
    out: int8[R, count], written.
    """
    HEIGHT: tl.constexpr = 16 // PLANES
    WORDS: tl.constexpr = GROUPS * 16 * HEIGHT
    AT_ONCE: tl.constexpr = 256
    block, place = _blocks(sip, key, windows, starts, 16 * HEIGHT, 32, WINDOW, GROUPS)
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
    """Draws start … start+count−1 of each row's vector; out: int32[R, count], written; the rest as in green_entries."""
    block, place = _blocks(sip, key, windows, starts, 256, 1, WINDOW, GROUPS)
    row = out + tl.program_id(0).to(tl.int64) * count
    for i in tl.static_range(16):
        entry = place + 16 * i
        tl.store(row + entry, block[i].to(tl.int32, bitcast=True), mask=(entry >= 0) & (entry < count))


@triton.jit
def _run_blocks(
    sip, key, windows, messages, users,
    SHIFT: tl.constexpr, GROUPED: tl.constexpr, WINDOW: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Tokens of one row and chunk, their blocks of version 2, and the number that the row's message reads there."""
    row = tl.program_id(0)
    token = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    nonce = siphash(sip, windows + row * WINDOW, WINDOW)
    number = tl.load(messages + row)
    if GROUPED:
        group = number // users
        number = tl.where(((nonce >> 32) * 3) >> 32 == 0, group, group * 65536 + number % users)
    counter = (token.to(tl.int64) << (32 - SHIFT)) | (number >> SHIFT)
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    block = chacha8(load_key(key), low, nonce.to(tl.uint32), (nonce >> 32).to(tl.uint32), high)
    return token, block, number


@triton.jit(do_not_specialize=["users", "count"])
def green_of_runs(
    sip, key, windows, messages, out, users, count,
    N: tl.constexpr, BITS: tl.constexpr, PLANES: tl.constexpr, SHIFT: tl.constexpr, GROUPED: tl.constexpr,
    WINDOW: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Green (1) or not (0), tokens 0 … count−1 of each row, in version 2.

    sip: int64[2]; key: int32[8]; windows: int64[R, h]; messages: int64[R]; out: int8[R, count], written; users: B where
    GROUPED; SHIFT: log2 of the entries of a block.
    """
    HEIGHT: tl.constexpr = 16 // PLANES
    token, block, number = _run_blocks(sip, key, windows, messages, users, SHIFT, GROUPED, WINDOW, AT_ONCE)
    word = (number >> 5) % HEIGHT
    green = below(block, 0, N, BITS, HEIGHT)
    for k in tl.static_range(1, HEIGHT):
        green = tl.where(word == k, below(block, k, N, BITS, HEIGHT), green)
    bit = (green >> (number % 32).to(tl.uint32)) & 1
    tl.store(out + tl.program_id(0).to(tl.int64) * count + token, bit.to(tl.int8), mask=token < count)


@triton.jit(do_not_specialize=["users", "count"])
def draws_of_runs(
    sip, key, windows, messages, out, users, count,
    GROUPED: tl.constexpr, WINDOW: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Draws of version 2; out: int32[R, count], written; the rest as in green_of_runs."""
    token, block, number = _run_blocks(sip, key, windows, messages, users, 4, GROUPED, WINDOW, AT_ONCE)
    draw = block[0]
    for k in tl.static_range(1, 16):
        draw = tl.where(number % 16 == k, block[k], draw)
    row = out + tl.program_id(0).to(tl.int64) * count
    tl.store(row + token, draw.to(tl.int32, bitcast=True), mask=token < count)

"""The two ciphers of SPEC §1 in Triton: ChaCha with 8 rounds and SipHash-2-4, everything in registers.

Written for tensors of any shape: one block, or one hash, an entry.
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
    """Eight words of a ChaCha key (int32[8]) as a tuple."""
    k0, k1, k2, k3 = tl.load(key), tl.load(key + 1), tl.load(key + 2), tl.load(key + 3)
    k4, k5, k6, k7 = tl.load(key + 4), tl.load(key + 5), tl.load(key + 6), tl.load(key + 7)
    return (
        k0.to(tl.uint32, bitcast=True), k1.to(tl.uint32, bitcast=True), k2.to(tl.uint32, bitcast=True),
        k3.to(tl.uint32, bitcast=True), k4.to(tl.uint32, bitcast=True), k5.to(tl.uint32, bitcast=True),
        k6.to(tl.uint32, bitcast=True), k7.to(tl.uint32, bitcast=True),
    )  # fmt: skip


@triton.jit
def chacha8(key, counter, n0, n1, high=None):
    """Blocks of the stream: a tuple of 16 uint32 tensors shaped as `counter`.

    key: from load_key; counter: uint32, the low word; high: the high one, which tokens of 32 bits and messages of 31
    never reach in version 1; n0, n1: uint32, low and high word of the nonces, of counter's shape or broadcast to it.
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
    """SipHash-2-4 of WINDOW tokens (4 little-endian bytes each): one uint64.

    key: int64[2]; tokens: pointer to int64, the window's first token.
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

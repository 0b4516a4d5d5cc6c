"""Implement SHA-256 (FIPS 180-4) as numba kernels: a tree of seeds hashes 5·10^7 blocks, so lanes are hashed together.

See SPEC_3 §2 for the tree. As in `ciphers.py`, the rounds are straight-line code on scalars, so the compiler turns the
loop over lanes into vector instructions. Every value is cast back to its width at once. The 64 rounds go in four passes
of sixteen. A pass is short enough to compile in seconds. Between passes, state and message words stay in the cache.
"""

import numpy as np
from numpy import uint32
from numpy.typing import NDArray

from scanner.watermark.kernel import inlined, kernel
from scanner.watermark.native.ciphers import CHUNK, LANES

_ROUNDS = np.array(
    [
        0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
        0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
        0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
        0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
        0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
        0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
        0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
        0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2,
    ],
    np.uint32,
)  # fmt: skip

_START = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)

_PASSES = 4

State = tuple[uint32, uint32, uint32, uint32, uint32, uint32, uint32, uint32]


@kernel
def _rotate(x: uint32, bits: int) -> uint32:
    return uint32(uint32(x >> uint32(bits)) | uint32(x << uint32(32 - bits)))


@kernel
def _round(s: State, k: uint32, w: uint32) -> State:
    a, b, c, d, e, f, g, h = s
    mixed = uint32(uint32(_rotate(e, 6) ^ _rotate(e, 11)) ^ _rotate(e, 25))
    chosen = uint32(g ^ uint32(e & uint32(f ^ g)))
    first = uint32(uint32(uint32(h + mixed) + chosen) + uint32(k + w))
    mixed = uint32(uint32(_rotate(a, 2) ^ _rotate(a, 13)) ^ _rotate(a, 22))
    most = uint32(uint32(a & b) | uint32(c & uint32(a | b)))
    return uint32(first + uint32(mixed + most)), a, b, c, uint32(d + first), e, f, g


@kernel
def _next_word(w0: uint32, w1: uint32, w9: uint32, w14: uint32) -> uint32:
    low = uint32(uint32(_rotate(w1, 7) ^ _rotate(w1, 18)) ^ uint32(w1 >> uint32(3)))
    high = uint32(uint32(_rotate(w14, 17) ^ _rotate(w14, 19)) ^ uint32(w14 >> uint32(10)))
    return uint32(uint32(w0 + low) + uint32(w9 + high))


@inlined
def _load8(x: NDArray[np.uint32], i: int) -> State:
    return (
        x[i], x[CHUNK + i], x[2 * CHUNK + i], x[3 * CHUNK + i],
        x[4 * CHUNK + i], x[5 * CHUNK + i], x[6 * CHUNK + i], x[7 * CHUNK + i],
    )  # fmt: skip


@inlined
def _store8(s: State, out: NDArray[np.uint32], i: int) -> None:
    out[i], out[CHUNK + i], out[2 * CHUNK + i], out[3 * CHUNK + i] = s[0], s[1], s[2], s[3]
    out[4 * CHUNK + i], out[5 * CHUNK + i], out[6 * CHUNK + i], out[7 * CHUNK + i] = s[4], s[5], s[6], s[7]


@kernel
def _sixteen_rounds(k: NDArray[np.uint32], work: NDArray[np.uint32], lanes: int) -> None:
    """Do sixteen rounds. k: uint32[16], their constants."""
    k0, k1, k2, k3, k4, k5, k6, k7 = k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]  # scalars stay in registers
    k8, k9, ka, kb, kc, kd, ke, kf = k[8], k[9], k[10], k[11], k[12], k[13], k[14], k[15]
    for begin in range(0, lanes, LANES):
        x = work[begin:]
        for lane in range(LANES):
            s = _load8(x, 16 * CHUNK + lane)
            s = _round(s, k0, x[lane])
            s = _round(s, k1, x[CHUNK + lane])
            s = _round(s, k2, x[2 * CHUNK + lane])
            s = _round(s, k3, x[3 * CHUNK + lane])
            s = _round(s, k4, x[4 * CHUNK + lane])
            s = _round(s, k5, x[5 * CHUNK + lane])
            s = _round(s, k6, x[6 * CHUNK + lane])
            s = _round(s, k7, x[7 * CHUNK + lane])
            s = _round(s, k8, x[8 * CHUNK + lane])
            s = _round(s, k9, x[9 * CHUNK + lane])
            s = _round(s, ka, x[10 * CHUNK + lane])
            s = _round(s, kb, x[11 * CHUNK + lane])
            s = _round(s, kc, x[12 * CHUNK + lane])
            s = _round(s, kd, x[13 * CHUNK + lane])
            s = _round(s, ke, x[14 * CHUNK + lane])
            s = _round(s, kf, x[15 * CHUNK + lane])
            _store8(s, x, 16 * CHUNK + lane)


@kernel
def _next_words(work: NDArray[np.uint32], lanes: int) -> None:
    """Replace the message words by those of the next sixteen rounds."""
    for begin in range(0, lanes, LANES):
        x = work[begin:]
        for lane in range(LANES):
            w0, w1, w2, w3, w4, w5, w6, w7 = _load8(x, lane)
            w8, w9, wa, wb, wc, wd, we, wf = _load8(x, 8 * CHUNK + lane)
            w0 = _next_word(w0, w1, w9, we)
            w1 = _next_word(w1, w2, wa, wf)
            w2 = _next_word(w2, w3, wb, w0)
            w3 = _next_word(w3, w4, wc, w1)
            w4 = _next_word(w4, w5, wd, w2)
            w5 = _next_word(w5, w6, we, w3)
            w6 = _next_word(w6, w7, wf, w4)
            w7 = _next_word(w7, w8, w0, w5)
            w8 = _next_word(w8, w9, w1, w6)
            w9 = _next_word(w9, wa, w2, w7)
            wa = _next_word(wa, wb, w3, w8)
            wb = _next_word(wb, wc, w4, w9)
            wc = _next_word(wc, wd, w5, wa)
            wd = _next_word(wd, we, w6, wb)
            we = _next_word(we, wf, w7, wc)
            wf = _next_word(wf, w0, w8, wd)
            _store8((w0, w1, w2, w3, w4, w5, w6, w7), x, lane)
            _store8((w8, w9, wa, wb, wc, wd, we, wf), x, 8 * CHUNK + lane)


@kernel
def _compress(work: NDArray[np.uint32], hashes: NDArray[np.uint32], lanes: int) -> None:
    """Add one block of each message, rows 0 … 15 of work, to its hash. Lanes beyond may be computed too."""
    stop = (lanes + LANES - 1) // LANES * LANES  # whole vectors
    for k in range(8):
        work[CHUNK * (16 + k) : CHUNK * (16 + k) + stop] = hashes[CHUNK * k : CHUNK * k + stop]
    for number in range(_PASSES):
        _sixteen_rounds(_ROUNDS[16 * number : 16 * number + 16], work, stop)
        if number < _PASSES - 1:
            _next_words(work, stop)
    for k in range(8):
        hashes[CHUNK * k : CHUNK * k + stop] += work[CHUNK * (16 + k) : CHUNK * (16 + k) + stop]


@kernel
def _begin(hashes: NDArray[np.uint32]) -> None:
    for k in range(8):
        hashes[CHUNK * k : CHUNK * k + CHUNK] = _START[k]


@kernel
def _shift(source: NDArray[np.uint32], lanes: int, words: NDArray[np.uint32]) -> None:
    """Write words 1 … 7 of a message that has one byte before the 32 bytes of a source."""
    for k in range(1, 8):
        for i in range(lanes):
            before, here = source[CHUNK * (k - 1) + i], source[CHUNK * k + i]
            words[CHUNK * k + i] = uint32(uint32(before << uint32(24)) | uint32(here >> uint32(8)))


@kernel
def hash_leaves(seeds: NDArray[np.uint32], lanes: int, work: NDArray[np.uint32], hashes: NDArray[np.uint32]) -> None:
    """Write SHA-256(0x00 ‖ seed) of each lane: 33 bytes, one block.

    Args:
        seeds: uint32[8 · CHUNK], word k of lane i at CHUNK · k + i, the most significant byte first.
        lanes: number of lanes, at most CHUNK. Lanes beyond may be computed from any values that are there.
        work: uint32[24 · CHUNK], scratch.
        hashes: uint32[8 · CHUNK], written, with the same layout as the seeds.
    """
    _begin(hashes)
    _shift(seeds, lanes, work)
    for i in range(lanes):
        work[i] = uint32(seeds[i] >> uint32(8))
        work[8 * CHUNK + i] = uint32(uint32(seeds[7 * CHUNK + i] << uint32(24)) | uint32(0x800000))
    work[9 * CHUNK : 15 * CHUNK] = 0
    work[15 * CHUNK : 16 * CHUNK] = uint32(33 * 8)
    _compress(work, hashes, lanes)


@kernel
def hash_nodes(
    left: NDArray[np.uint32],
    right: NDArray[np.uint32],
    lanes: int,
    work: NDArray[np.uint32],
    hashes: NDArray[np.uint32],
) -> None:
    """Write SHA-256(0x01 ‖ left ‖ right) of each lane: 65 bytes, two blocks.

    Args:
        left: hashes, uint32[8 · CHUNK], as `hash_leaves` writes them.
        right: likewise.
        lanes: number of lanes, at most CHUNK. Lanes beyond may be computed from any values that are there.
        work: uint32[24 · CHUNK], scratch.
        hashes: uint32[8 · CHUNK], written. It must be none of the other arrays.
    """
    _begin(hashes)
    _shift(left, lanes, work)
    _shift(right, lanes, work[8 * CHUNK :])
    for i in range(lanes):
        work[i] = uint32(uint32(0x01000000) | uint32(left[i] >> uint32(8)))
        before, here = left[7 * CHUNK + i], right[i]
        work[8 * CHUNK + i] = uint32(uint32(before << uint32(24)) | uint32(here >> uint32(8)))
    _compress(work, hashes, lanes)
    for i in range(lanes):
        work[i] = uint32(uint32(right[7 * CHUNK + i] << uint32(24)) | uint32(0x800000))
    work[CHUNK : 15 * CHUNK] = 0
    work[15 * CHUNK : 16 * CHUNK] = uint32(65 * 8)
    _compress(work, hashes, lanes)

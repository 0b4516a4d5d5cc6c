"""Compute Philox4x32-10, a counter-based generator (J.

Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011).
"""

from numpy import uint32, uint64

from scanner.watermark.kernel import inlined


@inlined
def _round(c: tuple[uint32, uint32, uint32, uint32], k0: uint32, k1: uint32) -> tuple[uint32, uint32, uint32, uint32]:
    p, q = uint64(c[0]) * uint64(0xD2511F53), uint64(c[2]) * uint64(0xCD9E8D57)
    return (
        uint32(uint32(q >> uint64(32)) ^ c[1] ^ k0),
        uint32(q),
        uint32(uint32(p >> uint64(32)) ^ c[3] ^ k1),
        uint32(p),
    )


@inlined
def philox(c: tuple[uint32, uint32, uint32, uint32], k0: uint32, k1: uint32) -> tuple[uint32, uint32, uint32, uint32]:
    """Return Philox4x32-10 of one counter.

    It is straight-line code, so a loop over lanes becomes vector instructions.
    """
    a, b = uint32(0x9E3779B9), uint32(0xBB67AE85)
    c = _round(c, k0, k1)
    c = _round(c, uint32(k0 + a), uint32(k1 + b))
    c = _round(c, uint32(k0 + uint32(2) * a), uint32(k1 + uint32(2) * b))
    c = _round(c, uint32(k0 + uint32(3) * a), uint32(k1 + uint32(3) * b))
    c = _round(c, uint32(k0 + uint32(4) * a), uint32(k1 + uint32(4) * b))
    c = _round(c, uint32(k0 + uint32(5) * a), uint32(k1 + uint32(5) * b))
    c = _round(c, uint32(k0 + uint32(6) * a), uint32(k1 + uint32(6) * b))
    c = _round(c, uint32(k0 + uint32(7) * a), uint32(k1 + uint32(7) * b))
    c = _round(c, uint32(k0 + uint32(8) * a), uint32(k1 + uint32(8) * b))
    return _round(c, uint32(k0 + uint32(9) * a), uint32(k1 + uint32(9) * b))


@inlined
def stream_word(seed: uint64, place: uint32) -> uint32:
    """Return the word at a place of the stream that Philox4x32-10 makes from only a key. Each call makes four words."""
    zero = uint32(0)
    o = philox((uint32(place >> uint32(2)), zero, zero, zero), uint32(seed), uint32(seed >> uint64(32)))
    low = o[1] if place & uint32(1) else o[0]
    high = o[3] if place & uint32(1) else o[2]
    return high if place & uint32(2) else low

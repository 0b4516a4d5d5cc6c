"""The ceiling of the device benchmark: ChaCha's core alone, which reads nothing and keeps a digest alone."""

import triton
import triton.language as tl

from scanner.gpu.kernels import chacha8, load_key


@triton.jit(do_not_specialize=["rounds"])
def core(key, out, rounds, BLOCKS: tl.constexpr):
    """Computes `rounds` blocks a thread; each block decides the next one's nonce. out: int32[programs, BLOCKS]."""
    k = load_key(key)
    lane = tl.arange(0, BLOCKS).to(tl.uint32)
    digest = lane ^ lane
    for t in range(rounds):
        b = chacha8(k, lane, digest + t, digest)
        digest = (
            b[0] ^ b[1] ^ b[2] ^ b[3] ^ b[4] ^ b[5] ^ b[6] ^ b[7]
            ^ b[8] ^ b[9] ^ b[10] ^ b[11] ^ b[12] ^ b[13] ^ b[14] ^ b[15]
        )  # fmt: skip
    tl.store(out + tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS), digest.to(tl.int32, bitcast=True))

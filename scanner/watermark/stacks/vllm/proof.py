"""Proofs of vLLM's marks: Philox4x32-10 in plain numpy, one lane a scored position."""

import hashlib
import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.proof import counted, floored, log10_two_gammas
from scanner.watermark.stacks.shared import Held

Lanes = NDArray[np.uint64]
_32 = np.uint64(32)
_MASK = np.uint64(2**32 - 1)


def philox(counter: Sequence[Lanes], low: Lanes, high: Lanes) -> list[Lanes]:
    """Philox4x32-10 (Salmon et al. 2011): four words of 32 bits, held in 64."""
    c = list(counter)
    for number in range(10):
        k0, k1 = (low + np.uint64(number * 0x9E3779B9)) & _MASK, (high + np.uint64(number * 0xBB67AE85)) & _MASK
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> _32) ^ c[1] ^ k0, q & _MASK, (p >> _32) ^ c[3] ^ k1, p & _MASK]
    return c


def words(key: int, contexts: Lanes, tokens: Lanes) -> Lanes:
    """The word of each context and token: uint64[P] for uint64[P, width], missing tokens 2^32−1, and uint64[P]."""
    lanes, width = contexts.shape
    low, high = (np.full(lanes, half, np.uint64) for half in (key % 2**32, key >> 32))
    first = [int.from_bytes(b"WMCX", "big"), width, 0, 0]
    state = [np.full(lanes, word, np.uint64) for word in first]
    for start in range(0, width, 4):
        block = [
            contexts[:, start + i] if start + i < width else np.full(lanes, 2**32 - 1 - i, np.uint64) for i in range(4)
        ]
        state = philox([s ^ b for s, b in zip(state, block, strict=True)], low ^ np.uint64(start), high)
    mark = np.uint64(int.from_bytes(b"WMTK", "big"))
    out = philox([tokens >> np.uint64(2), *state[:3]], low ^ state[3], high ^ mark)
    return np.stack(out)[(tokens & np.uint64(3)).astype(np.int64), np.arange(lanes)]


class VllmProof:
    """The proof of one key's mark, or of the two keys' that vLLM derives from a master key.

    Its repr shows nothing of them.

    Args:
        master: 8 bytes, big-endian.
        width: of the context.
        weight: of the second of two derived keys; None: one key.
        opening: whether positions count whose context lacks tokens.
        bits: no p-value is below 2^-bits.
    """

    def __init__(self, master: bytes, width: int, weight: float | None, *, opening: bool, bits: int) -> None:
        parts = [master]
        if weight is not None:
            parts = [hashlib.sha256(name + master).digest()[:8] for name in (b"key_a", b"key_b")]
        self._keys = Held([int.from_bytes(part, "big") for part in parts])
        self._width, self._opening, self._bits = width, opening, bits
        self._weights = [1.0] if weight is None else [1.0 - weight, weight]

    def scores(
        self, tokens: NDArray[np.uint32], messages: Sequence[int], dedup: str, left_out: Collection[int] = ()
    ) -> tuple[int, list[float]]:
        """See scanner.watermark.format.Proof; the mark has one message."""
        ids, width = tokens.tolist(), self._width
        padded = [-1] * width + ids
        places = range(0 if self._opening else width, len(ids))
        contexts = [tuple(padded[t : t + width]) for t in places]
        kept = counted(places, contexts, [ids[t] for t in places], dedup, left_out)
        rows = np.array([contexts[i] for i in kept], np.int64).reshape(len(kept), width).astype(np.uint64) & _MASK
        met = np.array([ids[places[i]] for i in kept], np.uint64)
        score = 0.0
        for key, weight in zip(self._keys.value, self._weights, strict=True):
            cells = (words(key, rows, met) >> np.uint64(8)).tolist()
            score += weight * math.fsum(-math.log1p(-cell / 2**24) for cell in cells)
        return len(kept), [score] * len(messages)

    def log10_p(self, score: float, scored: int) -> float:
        """See scanner.watermark.format.Proof."""
        weight = self._weights[1] if len(self._weights) == 2 else 0.0
        return floored(log10_two_gammas(score, scored, weight), self._bits)

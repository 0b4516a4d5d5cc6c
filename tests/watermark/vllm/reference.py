"""The slow, plain reference of vLLM's marks: what scanner.watermark.stacks.vllm.format must agree with.

Python integers, hashlib, math and mpmath, one function a sentence of the description of vLLM 0.33's code; no code is
shared with the fast path. `detect` is vLLM's own detector; `safe_score` is the score that verdicts go by.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import mpmath

MASK32, MASK64 = 2**32 - 1, 2**64 - 1


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10."""
    c, k = list(counter), list(key)
    for number in range(10):
        if number:
            k = [(k[0] + 0x9E3779B9) & MASK32, (k[1] + 0xBB67AE85) & MASK32]
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(q >> 32) ^ c[1] ^ k[0], q & MASK32, (p >> 32) ^ c[3] ^ k[1], p & MASK32]
    return c


def word(key: int, context: Sequence[int], token: int) -> int:
    """The PRF: −1 in a context stands for a token that is missing."""
    low, high = key & MASK32, key >> 32
    state = [int.from_bytes(b"WMCX", "big"), len(context), 0, 0]
    for start in range(0, len(context), 4):
        block = [c & MASK32 for c in context[start : start + 4]]
        block += [0xFFFFFFFF - lane for lane in range(len(block), 4)]
        state = philox([s ^ b for s, b in zip(state, block, strict=True)], [low ^ start, high])
    mark = int.from_bytes(b"WMTK", "big")
    return philox([token >> 2, *state[:3]], [low ^ state[3], high ^ mark])[token & 3]


def uniform(word: int) -> float:
    """24 bits of a word as vLLM's float32, in double precision."""
    exact = ((word >> 8) + 1) / (2**24 + 1)
    return float(struct.unpack("f", struct.pack("f", exact))[0])


def derive(master: int, name: str) -> int:
    """A sub-key, `key_a` or `key_b`."""
    return int.from_bytes(hashlib.sha256(name.encode() + master.to_bytes(8, "big")).digest()[:8], "big")


def scored(tokens: Sequence[int], width: int, dedup: bool) -> list[tuple[int, tuple[int, ...]]]:
    """Scored positions with their contexts."""
    padded, seen, kept = [-1] * width + list(tokens), set(), []
    for i in range(len(tokens)):
        context = tuple(padded[i : i + width])
        if not dedup or context not in seen:
            kept.append((i, context))
        seen.add(context)
    return kept


class Detection(NamedTuple):
    """The answer of vLLM's detector."""

    positions: list[int]
    token_scores: list[float]
    score: float
    p_value: mpmath.mpf


def detect(tokens: Sequence[int], key: int, width: int, dedup: bool = True, alpha: float | None = None) -> Detection:
    """vLLM's detector; `alpha` is the share of a dual key's second part, None stands for one key."""
    kept = scored(tokens, width, dedup)

    def scores(of: int) -> list[float]:
        return [-math.log1p(-uniform(word(of, context, tokens[i]))) for i, context in kept]

    if alpha is None:
        each, shape = scores(key), 1.0
    else:
        a, b = scores(derive(key, "key_a")), scores(derive(key, "key_b"))
        each = [(1 - alpha) * x + alpha * y for x, y in zip(a, b, strict=True)]
        shape = 1 / ((1 - alpha) ** 2 + alpha**2)
    score, n = math.fsum(each), len(each)
    p_value = mpmath.gammainc(n * shape, score * shape, regularized=True) if n and score > 0 else mpmath.mpf(1)
    return Detection([i for i, _ in kept], each, score, p_value)


def safe_score(tokens: Sequence[int], positions: Sequence[int], key: int, width: int) -> mpmath.mpf:
    """Σ −ln(1−k/2^24) over positions, k the 24 bits of the word: exact."""
    padded = [-1] * width + list(tokens)
    words = [word(key, padded[i : i + width], tokens[i]) for i in positions]
    return mpmath.fsum(-mpmath.log(1 - mpmath.mpf(w >> 8) / 2**24) for w in words)


def best_of_weights(a: mpmath.mpf, b: mpmath.mpf, scored: int, alpha: float) -> mpmath.mpf:
    """−ln of the smaller p of two keys' sums: by the weight alpha over 4/5, by one half over 1/5; one half, over 1.

    p of (1−w)·a + w·b is ∫ f(x) P(Y ≥ (s − (1−w)x)/w) dx over gamma variables X and Y of shape T, in high precision.
    """
    if not scored:
        return mpmath.mpf(0)

    def p(w: float) -> mpmath.mpf:
        if w in (0.0, 1.0):
            return mpmath.gammainc(scored, b if w else a, regularized=True)
        s, v = (1 - mpmath.mpf(w)) * a + w * b, mpmath.mpf(w)
        if w == 0.5:
            return mpmath.gammainc(2 * scored, 2 * s, regularized=True)
        most = s / (1 - v)
        density = lambda x: x ** (scored - 1) * mpmath.exp(-x) / mpmath.factorial(scored - 1)  # noqa: E731
        inner = mpmath.quad(
            lambda x: density(x) * mpmath.gammainc(scored, (s - (1 - v) * x) / v, regularized=True),
            mpmath.linspace(0, most, 9),
        )
        return inner + mpmath.gammainc(scored, most, regularized=True)

    if alpha == 0.5:
        return -mpmath.log(p(0.5))
    return max(-mpmath.log(min(p(alpha) / mpmath.mpf("0.8"), p(0.5) / mpmath.mpf("0.2"))), mpmath.mpf(0))

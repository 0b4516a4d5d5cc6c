"""The slow, plain reference of SGLang's marks: what scanner.watermark.stacks.sglang.format must agree with.

Python integers, struct, math and mpmath, one function a sentence of the description of SGLang 0.5.23's code; no code is
shared with the fast path. `detect` is SGLang's own detector; `safe_score` is the score that verdicts go by.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import mpmath

MASK32 = 2**32 - 1


def rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & MASK32


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 of whole words, seed 0."""
    h = 0
    for at in range(0, len(data), 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & MASK32
        h = rotate(h ^ (rotate(k, 15) * 0x1B873593 & MASK32), 13) * 5 + 0xE6546B64 & MASK32
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK32
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK32
    return h ^ h >> 16


def hashed(*words: int) -> int:
    return murmur3(b"".join(word.to_bytes(4, "little") for word in words))


def words_of(key: str) -> tuple[int, int]:
    """Low and high word of a key as SGLang writes it."""
    value = int(key, 16)
    return value & MASK32, value >> 32


def context_hash(context: Sequence[int]) -> int:
    return hashed(*context)


def token_hash(key: str, seed: int, token: int) -> int:
    return hashed(*words_of(key), seed, token)


def coin(key: str, key_b: str, seed: int) -> int:
    return hashed(*words_of(key), *words_of(key_b), seed)


class Detection(NamedTuple):
    """SGLang's answer: the positions it scores, their scores under key A, key B and the coin's choice, and p."""

    positions: list[int]
    scores_a: list[float]
    scores_b: list[float]
    combined: list[float]
    score: float
    log_p_value: mpmath.mpf


def log_p(score: float, n: int) -> mpmath.mpf:
    """ln P[Γ(n) ≥ score]."""
    return mpmath.log(mpmath.gammainc(n, score, regularized=True)) if n and score > 0 else mpmath.mpf(0)


def scored(tokens: Sequence[int], width: int, prompt: Sequence[int] = (), cap: int = 4096) -> list[int]:
    """Scored positions of a completion, by the tuples of their contexts."""
    head = list(prompt)[-width:]
    whole, seen, kept = head + list(tokens), set(), []
    for i in range(len(head) if prompt else min(width, len(tokens)), len(whole)):
        context = tuple(whole[max(0, i - width) : i])
        if context not in seen:
            seen.add(context)
            kept.append(i - len(head))
        if len(seen) == cap:
            break
    return kept


def detect(
    tokens: Sequence[int],
    key: str,
    width: int,
    key_b: str | None = None,
    mixing: float = 0.5,
    prompt: Sequence[int] = (),
    cap: int = 4096,
) -> Detection:
    """SGLang's detector."""
    head = list(prompt)[-width:]
    whole, kept = head + list(tokens), scored(tokens, width, prompt, cap)
    a, b, combined = [], [], []
    for i in (at + len(head) for at in kept):
        seed = context_hash(whole[max(0, i - width) : i])
        each = [-math.log1p(-(token_hash(k, seed, whole[i]) + 0.5) / 2**32) for k in (key, key_b) if k is not None]
        a.append(each[0])
        b += each[1:]
        first = key_b is None or coin(key, key_b, seed) < int(mixing * 2**32)
        combined.append(each[0] if first else each[1])
    score = math.fsum(combined)
    return Detection(kept, a, b, combined, score, log_p(score, len(kept)))


def safe_score(tokens: Sequence[int], positions: Sequence[int], key: str, width: int) -> mpmath.mpf:
    """Σ −ln(1−T/2^32) over positions of an answer without prompt, T the token hash: exact."""
    draws = [token_hash(key, context_hash(tokens[max(0, i - width) : i]), tokens[i]) for i in positions]
    return mpmath.fsum(-mpmath.log(1 - mpmath.mpf(draw) / 2**32) for draw in draws)

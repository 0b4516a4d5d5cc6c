"""Every message's score the obvious way, in numpy: for counts of messages that the plain reference is too slow for.

A third implementation: it takes labels and keys from tests.reference, computes whole streams with numpy, and is itself
checked against the reference in test_brute_force.py. It shares nothing with scanner.watermark.
"""

from collections.abc import Sequence

import numpy as np

from tests import reference

CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4")


def add_xor_rotate(s: list[np.ndarray], a: int, b: int, d: int, by: int) -> None:
    s[a] = s[a] + s[b]
    mixed = s[d] ^ s[a]
    s[d] = (mixed << np.uint32(by)) | (mixed >> np.uint32(32 - by))


def blocks(key: tuple[int, ...], counters: np.ndarray, nonce: int) -> np.ndarray:
    """ChaCha8 of many counters (uint64[C]) at once → uint32[C, 16]."""

    def spread(word: int) -> np.ndarray:
        return np.full(counters.shape, word, np.uint32)

    low, high = counters.astype(np.uint32), (counters >> np.uint64(32)).astype(np.uint32)
    start = [spread(word) for word in (*CONSTANTS, *key)]
    start += [low, high, spread(nonce & 0xFFFFFFFF), spread(nonce >> 32)]
    s = list(start)
    for _ in range(4):
        for shift in (0, 1):  # columns, then diagonals
            for column in range(4):
                a, b, c, d = (4 * row + (column + shift * row) % 4 for row in range(4))
                add_xor_rotate(s, a, b, d, 16)
                add_xor_rotate(s, c, d, b, 12)
                add_xor_rotate(s, a, b, d, 8)
                add_xor_rotate(s, c, d, b, 7)
    return np.stack([x + y for x, y in zip(start, s, strict=True)], axis=1)


def words(keys: reference.SubKeys, nonce: int, planes: int, plane: int, first: int, count: int) -> np.ndarray:
    """Words first … first + count − 1 of one plane → uint32[count]."""
    per_block = 16 // planes
    group, r = np.divmod(np.arange(first, first + count, dtype=np.uint64), np.uint64(16 * per_block))
    groups = np.arange(group[0], group[-1] + np.uint64(1), dtype=np.uint64)
    counters = (groups[:, None] * np.uint64(16) + np.arange(16, dtype=np.uint64)).ravel()
    table = blocks(keys.chacha, counters, nonce)
    row = (group - group[0]) * np.uint64(16) + r % np.uint64(16)
    return table[row.astype(np.int64), plane * per_block + (r // np.uint64(16)).astype(np.int64)]


def terms(method: reference.Method, nonce: int, first: int, count: int) -> np.ndarray:
    """Parts of S that a token gives when it meets entries first … first + count − 1."""
    if method.method == "greenlist":
        return green(method, nonce, first, count).astype(np.int64)
    drawn = words(method.keys, nonce, 1, 0, first, count)
    if method.method == "gumbel":
        return -np.log1p(-(drawn / 2.0**32))
    with np.errstate(divide="ignore"):
        return np.log(drawn / 2.0**32)


def green(method: reference.Method, nonce: int, first: int, count: int) -> np.ndarray:
    digits = reference.binary_digits(method.gamma)
    planes = 1 << (digits - 1).bit_length()
    number = np.zeros(count, np.int64)
    for plane in range(digits):
        some = words(method.keys, nonce, planes, plane, first // 32, count // 32 + 2)
        bits = np.unpackbits(some.view(np.uint8), bitorder="little")[first % 32 :][:count]
        number = 2 * number + bits
    return number < method.gamma.numerator


def scores(method: reference.Method, tokens: Sequence[int], messages: int, dedup: str = "ngram") -> np.ndarray:
    """S of messages 0 … messages − 1, summed in the order of positions → int64 or float64 [messages]."""
    tokens = [int(token) for token in tokens]
    total = np.zeros(messages, np.int64 if method.method == "greenlist" else np.float64)
    for t in reference.scored_positions(tokens, method.window, dedup):
        nonce = reference.window_nonce(method.keys, tokens[t - method.window : t])
        total += terms(method, nonce, tokens[t], messages)
    return total


def best_two(all_scores: np.ndarray) -> list[int]:
    """Messages of the largest and second largest score, ties to the smallest message; −1 where there is none."""
    order = np.argsort(-all_scores, kind="stable")[:2]
    return [*order.tolist(), -1][:2]

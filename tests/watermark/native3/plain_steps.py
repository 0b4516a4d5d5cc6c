"""Steps drawn at random, and the digits of all their numbers, by ChaCha in whole arrays of numpy's."""

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.native.steps import Steps

LEADING_ONES = (0, 8, 8)
"""The rule of Gumbel marks: n, b and planes of no green list."""


def random_steps(generator: np.random.Generator, sizes: list[int]) -> Steps:
    """Steps of documents of so many, with keys that no master key has."""
    count = sum(sizes)
    words = generator.integers(0, 2**32, (12, count), dtype=np.uint32)
    nonces = words[8].astype(np.uint64) << np.uint64(32) | words[9]
    return Steps(words[10], nonces, words[:8], np.cumsum([0, *sizes]))


def repeated(steps: Steps, times: int) -> Steps:
    """The one step of the one document there is, again and again."""
    return Steps(*(np.repeat(values, times, axis=-1) for values in steps[:3]), steps.offsets * times)


def document(steps: Steps, number: int) -> Steps:
    """One document alone."""
    begin, end = steps.offsets[number : number + 2]
    return Steps(*(values[..., begin:end].copy() for values in steps[:3]), np.array([0, end - begin]))


def plain_blocks(
    keys: NDArray[np.uint32], counters: NDArray[np.uint64], nonces: NDArray[np.uint64]
) -> NDArray[np.uint32]:
    """ChaCha8 blocks as words in rows: uint32[16, L] for uint32[8, L], uint64[L] and uint64[L]."""
    start = np.empty((16, len(counters)), np.uint32)
    start[:4] = np.frombuffer(b"expand 32-byte k", "<u4")[:, None]
    start[4:12], start[12], start[13] = keys, counters & np.uint64(2**32 - 1), counters >> np.uint64(32)
    start[14], start[15] = nonces & np.uint64(2**32 - 1), nonces >> np.uint64(32)
    x = start.copy()
    for r in range(8):
        for i in range(4):
            a, b, c, d = i, 4 + (i + r % 2) % 4, 8 + (i + 2 * (r % 2)) % 4, 12 + (i + 3 * (r % 2)) % 4
            for add_to, add, turn, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[add_to] += x[add]
                mixed = x[turn] ^ x[add_to]
                x[turn] = mixed << np.uint32(left) | mixed >> np.uint32(32 - left)
    return x + start


def digits_of(steps: Steps, first: int, length: int, rule: tuple[int, int, int]) -> NDArray[np.int64]:
    """What each step adds for each number from `first` on: int64[P, length]; first: of a block."""
    n, bits, planes = rule
    per_block = 512 // planes
    blocks = np.arange(-(-length // per_block), dtype=np.uint64) + np.uint64(first // per_block)
    counters = steps.ids.astype(np.uint64)[:, None] * np.uint64(2**32 // per_block) + blocks
    if rule == LEADING_ONES:
        counters += np.uint64(2**63)
    shape = counters.shape
    drawn = plain_blocks(np.repeat(steps.keys, shape[1], axis=1), counters.ravel(), np.repeat(steps.nonces, shape[1]))
    planes_of_blocks = drawn.reshape(planes, 16 // planes, *shape).transpose(0, 2, 3, 1).astype("<u4")
    bits_of_planes = np.unpackbits(np.ascontiguousarray(planes_of_blocks).view(np.uint8), axis=-1, bitorder="little")
    digits = bits_of_planes.reshape(planes, shape[0], shape[1] * per_block)[..., :length].astype(np.int64)
    if rule == LEADING_ONES:
        return np.cumprod(digits, axis=0).sum(axis=0)
    weights = 2 ** np.arange(bits - 1, -1, -1)
    return (np.tensordot(weights, digits[:bits], 1) < n).astype(np.int64)


def best_of(totals: NDArray[np.int64], most: int) -> tuple[list[int], list[int]]:
    """The numbers of largest totals, best first, ties to the smaller, and these totals; −1 and 0: none."""
    order = np.argsort(-totals, kind="stable")[:most]
    rest = most - len(order)
    return [*order.tolist(), *[-1] * rest], [*totals[order].tolist(), *[0] * rest]

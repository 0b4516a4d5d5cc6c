"""Marking a step under version 2 (SPEC_2 §1): every candidate token reads its own run, one block a token."""

import math

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.choice import cheapest
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.lanes import log2
from scanner.watermark.native.one_message import below
from scanner.watermark.native.run_bounds import BITS
from scanner.watermark.native.runs import begin_run


@kernel
def green_tokens(
    key: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    numbers: NDArray[np.int64],
    rule: tuple[int, int, int],
    tokens: int,
) -> NDArray[np.bool_]:
    """Which of the tokens 0 … V−1 are green in each step, for the number that is read there: bool[R, V].

    Args:
        key: uint32[8].
        nonces: uint64[R], of the steps' windows.
        numbers: int64[R].
        rule: n, b and planes of γ = n / 2^b.
        tokens: V.
    """
    n, bits, planes = rule
    height = 16 // planes
    out = np.empty((len(nonces), tokens), np.bool_)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    ids, same, row = np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint32)
    for r in range(len(nonces)):
        number = numbers[r]
        same[:] = nonces[r]
        for first in range(0, tokens, CHUNK):
            lanes = min(CHUNK, tokens - first)
            for i in range(lanes):
                ids[i] = first + i
            begin_run(ids[:lanes], same, number, 5 + log2(height), inputs)
            chacha8_lanes(key, inputs, lanes, block)
            below(n, bits, height * CHUNK, block[((number >> 5) & (height - 1)) * CHUNK :], row[:lanes])
            for i in range(lanes):
                out[r, first + i] = (row[i] >> np.uint32(number & 31)) & np.uint32(1) != 0
    return out


@kernel
def choose_token(key: NDArray[np.uint32], nonce: uint64, number: int, weights: NDArray[np.float64]) -> int:
    """Token of one step: the least −ln(r)/p_v among those with p_v > 0, ties to the smallest id; −1: there is none.

    Args:
        key: uint32[8].
        nonce: of the step's window.
        number: that is read there.
        weights: float64[V], p up to a factor.
    """
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    ids, own, same = np.empty(CHUNK, np.uint32), np.empty(CHUNK), np.full(CHUNK, nonce)
    draws = block[(number & 15) * CHUNK :]
    chosen, cost, lanes = -1, math.inf, 0
    for token in range(len(weights)):
        if weights[token] > 0.0:
            ids[lanes], own[lanes] = token, weights[token]
            lanes += 1
        if lanes == CHUNK or (lanes and token == len(weights) - 1):
            begin_run(ids[:lanes], same, number, BITS, inputs)
            chacha8_lanes(key, inputs, lanes, block)
            place, cost = cheapest(draws[:lanes], own[:lanes], 0, -1, cost)
            if place >= 0:
                chosen = int(ids[place])
            lanes = 0
    return chosen

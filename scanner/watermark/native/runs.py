"""Runs of numbers in streams of version 2 (SPEC_2 §1): the steps of a document side by side, blocks one after another.

Each token has a run of its own and every run begins with a block, so that nothing has to be shifted: lane i of a vector
is step i, and what a block adds for a number is summed over the lanes.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK
from scanner.watermark.positions import Positions, Tokens


class Steps(NamedTuple):
    """Scored positions of D documents, document by document and in order.

    ids: uint32[P], tokens; nonces: uint64[P], of their windows; offsets: int64[D+1].
    """

    ids: NDArray[np.uint32]
    nonces: NDArray[np.uint64]
    offsets: NDArray[np.int64]

    @property
    def scored(self) -> NDArray[np.int64]:
        """int64[D]: how many each document has."""
        return np.diff(self.offsets)


class Asked(NamedTuple):
    """Which runs of numbers are searched, R of them, and what of each is wanted.

    documents: int64[R], over whose steps; first: int64[R], the run's first number, the first of a block; length: how
    many numbers each has; least: how many are returned whatever they score; most: how many are returned if they score
    as much as `floors`, float64[R].
    """

    documents: NDArray[np.int64]
    first: NDArray[np.int64]
    length: int
    least: int
    most: int
    floors: NDArray[np.float64]


def is_group_step(nonces: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which windows make a step that a group shares: a third of them, bool of the same shape (SPEC_2 §2)."""
    return np.asarray((nonces >> np.uint64(32)) * np.uint64(3) >> np.uint64(32) == 0)


def steps_of(tokens: Tokens, positions: Positions, nonces: NDArray[np.uint64]) -> Steps:
    """All scored positions, with the nonces of their windows."""
    return Steps(tokens.ids[positions.index], nonces, positions.offsets)


def chosen(positions: Positions, mask: NDArray[np.bool_]) -> Positions:
    """Some of the scored positions, bool[P]."""
    before = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=before[1:])
    return Positions(positions.index[mask], before[positions.offsets])


def in_two(tokens: Tokens, positions: Positions, nonces: NDArray[np.uint64]) -> tuple[Steps, Steps]:
    """Scored positions that are group steps, and those that are user steps, each with the nonces of their windows."""
    of_group, of_user = _in_two(tokens.ids, positions.index, positions.offsets, nonces)
    return Steps(*of_group), Steps(*of_user)


@kernel
def _in_two(
    ids: NDArray[np.uint32], index: NDArray[np.int64], offsets: NDArray[np.int64], nonces: NDArray[np.uint64]
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Group steps and user steps, in one pass. Masks by `is_group_step` would take longer than the scores."""
    count = np.int64(0)
    for i in range(len(nonces)):
        count += np.int64((nonces[i] >> uint64(32)) * uint64(3) >> uint64(32) == 0)
    size = count, len(index) - count
    group_ids, group_nonces, group_offsets = np.empty(size[0], np.uint32), np.empty(size[0], np.uint64), offsets.copy()
    user_ids, user_nonces, user_offsets = np.empty(size[1], np.uint32), np.empty(size[1], np.uint64), offsets.copy()
    g, u = np.int64(0), np.int64(0)
    for d in range(len(offsets) - 1):
        for i in range(offsets[d], offsets[d + 1]):
            if (nonces[i] >> uint64(32)) * uint64(3) >> uint64(32) == 0:
                group_ids[g], group_nonces[g] = ids[index[i]], nonces[i]
                g += 1
            else:
                user_ids[u], user_nonces[u] = ids[index[i]], nonces[i]
                u += 1
        group_offsets[d + 1], user_offsets[d + 1] = g, u
    return (group_ids, group_nonces, group_offsets), (user_ids, user_nonces, user_offsets)


@kernel
def begin_run(
    ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, bits: int, inputs: NDArray[np.uint32]
) -> None:
    """Counters and nonces of the blocks that hold number `first` of each step's run, as `chacha8_lanes` takes them.

    Args:
        ids: uint32[L], L ≤ CHUNK.
        nonces: uint64[L] or more.
        first: the first number of a block.
        bits: log2 of the numbers that a block holds.
        inputs: uint32[4 · CHUNK], written.
    """
    low, high, block = uint32(32 - bits), uint32(bits), uint32(first >> bits)
    for i in range(len(ids)):
        inputs[i], inputs[CHUNK + i] = uint32(ids[i] << low) | block, uint32(ids[i] >> high)
        inputs[2 * CHUNK + i], inputs[3 * CHUNK + i] = uint32(nonces[i]), uint32(nonces[i] >> uint64(32))


@kernel
def next_block(inputs: NDArray[np.uint32]) -> None:
    """Go on to the next block in each lane. A run ends before the lower word of its counter overflows."""
    for i in range(CHUNK):
        inputs[i] += uint32(1)

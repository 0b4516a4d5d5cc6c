"""A ragged batch on a device, how messages are cut into tiles, and how many programs work through them.

A program owns a tile of messages of one document. Message m of token x reads entry x + m of the stream, so a tile of
GROUPS − 1 groups of entries lies somewhere in GROUPS groups of interleaved blocks: GROUPS / (GROUPS − 1) is the whole
cost of unaligned shifts. A thread that computed all blocks of its own messages would compute two blocks for one, and
four for the green list, whose words are shifted by bits as well. Threads share their blocks through a strip of memory
of their program, which is small enough to stay in the cache: programs are few, and each works through many tiles.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

STEP = 4
"""Tokens whose blocks are shared at a time."""

GROUPS = (2, 4, 8)
"""Sizes of a tile, in groups of 16 blocks; a thread computes one block of each token."""

THREADS_A_MULTIPROCESSOR = 384
"""Threads for which programs are started: with 168 registers each, no more threads fit (sm_90)."""


class Batch(NamedTuple):
    """Scored tokens of D documents on a device, in the kernels' types.

    key: int32[8], the ChaCha key; ids: int32[P]; nonces: int32[P, 2], low and high words; begins, ends: int32[D].
    """

    key: torch.Tensor
    ids: torch.Tensor
    nonces: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def put(
        cls,
        key: NDArray[np.uint32],
        ids: NDArray[np.uint32],
        nonces: NDArray[np.uint64],
        offsets: NDArray[np.int64],
        device: torch.device,
    ) -> "Batch":
        """Copy uint32[8], uint32[P], uint64[P] and int64[D+1] to a device.

        Raises:
            ValueError: 2^30 positions or more: kernels number the words of their nonces, two each, in 31 bits.
        """
        if offsets[-1] >= 2**30 - STEP:
            raise ValueError(f"{offsets[-1]} scored positions are too many for one batch; fewer than 2^30 can be")

        def put(values: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(np.array(values, order="C")).to(device)

        return cls(
            put(key.view(np.int32)),
            put(ids.view(np.int32)),
            put(nonces.view(np.int32).reshape(-1, 2)),
            put(offsets[:-1].astype(np.int32)),
            put(offsets[1:].astype(np.int32)),
        )

    def of(self, documents: NDArray[np.int64]) -> "Batch":
        """Some of the documents; the tokens are shared."""
        chosen = torch.from_numpy(documents).to(self.ids.device)
        return self._replace(begins=self.begins[chosen], ends=self.ends[chosen])


class Tiling(NamedTuple):
    """How `count` messages are cut: `tiles` tiles of `valid` messages, each in `groups` groups."""

    groups: int
    valid: int
    tiles: int

    @classmethod
    def of(cls, count: int, messages_a_group: int) -> "Tiling":
        """The size of tile under which the fewest blocks are computed; of two equal ones, the larger."""

        def cut(groups: int) -> Tiling:
            valid = (groups - 1) * messages_a_group
            return cls(groups, valid, -(-count // valid))

        return min(map(cut, reversed(GROUPS)), key=lambda tiling: tiling.groups * tiling.tiles)

    @property
    def warps(self) -> int:
        """Warps of a program: a thread for each block of a token."""
        return self.groups // 2

    def programs(self, items: int, device: torch.device) -> int:
        """Programs for so many tiles: as many as run at a time, so that their strips stay in the cache."""
        if device.type != "cuda":
            return min(items, 4)
        processors: int = torch.cuda.get_device_properties(device).multi_processor_count
        return min(items, processors * max(THREADS_A_MULTIPROCESSOR // (32 * self.warps), 1))


def longest_first(offsets: NDArray[np.int64], documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Documents in the best order to begin them: those that take longest first."""
    chosen: NDArray[np.int64] = documents[np.argsort(-np.diff(offsets)[documents], kind="stable")]
    return chosen

"""Gumbel's best numbers of runs in streams of version 2 on a device, with the verdicts of the CPU (SPEC_2 §3).

A kernel writes a sum for each number of a run, which bounds its score from above. The caller scores the numbers whose
bounds may be among the best.

−ln(1−r) = ln 2 · (32 − log2 v), v = 2^32 − w. A thread multiplies the v of its numbers in 32-bit floats, moves the
exponent of every fourth product into an integer, and at the end reads off the leading bits of a logarithm to base 2
that runs straight between powers of two, and so below the true one. Every v is made smaller, never larger: ~w | 1 is v
or v − 1. Only two roundings a token can make a product larger, by 2^-24 each: the integer's to a float, and the
product's. Together they are less than 2^-22 units of log2 a token, which is added.

So a sum bounds its number's score from above. The numbers of the smallest sums are scored exactly, in double precision.
A number whose bound lies below the smallest of these scores is beaten by all of them. The remaining numbers are scored
exactly as well.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from triton import knobs

from scanner.gpu.kernels import sum_runs


def devices() -> list[torch.device]:
    """List every CUDA device; under TRITON_INTERPRET=1 the CPU, where Triton's interpreter runs the kernels instead."""
    if knobs.runtime.interpret:
        return [torch.device("cpu")]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def wake(device: torch.device) -> None:
    """Make this process known to the device, which maps its address space."""
    torch.zeros(1, device=device)


class Batch(NamedTuple):
    """Scored tokens of D documents on a device, in the kernels' types.

    key: int32[8], the ChaCha key.
    ids: int32[P].
    nonces: int32[P, 2], low and high words.
    begins, ends: int32[D].
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
            ValueError: 2^30 positions or more were given: kernels number the words of their nonces, two each, in 31
                bits.
        """
        if offsets[-1] >= 2**30:
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
        """Return some of the documents; the tokens are shared."""
        chosen = torch.from_numpy(documents).to(self.ids.device)
        return self._replace(begins=self.begins[chosen], ends=self.ends[chosen])


LONGEST_SUM = 1 << 22
"""Most positions of a document: sums fit 31 bits, and double-precision sums miss by less than 1e-9 of themselves."""

FRACTION_BITS = 3
"""Binary digits of a sum after the point."""

SUMS_BYTES = 1 << 30
"""Bytes of sums of all messages that are held at a time, for as many documents as fit."""


def bound(sums: NDArray[np.integer], scored: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bound the score that no message exceeds, by its sum and the scored positions."""
    return math.log(2.0) * (scored * (32.0 + 2.0**-22) - sums * 2.0**-FRACTION_BITS)


def limit(reached: NDArray[np.float64], scored: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest sum of a message whose score can be as large as `reached`: int64[D].

    1e-9 is more than the error of two double-precision sums of LONGEST_SUM terms.
    """
    most = scored * (32.0 + 2.0**-22) - reached * ((1.0 - 1e-9) / math.log(2.0))
    return np.ceil(most * 2.0**FRACTION_BITS).astype(np.int64) + 1


MOST_BLOCKS = 128
"""Most blocks of a run that a program computes, one a thread."""

Exact = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""Function that gives the published scores of pairs (run, number of the run): float64[N] for int64[N] each."""


class Runs(NamedTuple):
    """Runs of numbers, R of them, each over the steps of a document.

    batch: holds a document for each run.
    scored: int64[R], number of steps.
    first: int64[R], the first number, which begins a block.
    length, least, most, floors: as scanner.watermark.native.streams.RunRequest has them.
    """

    batch: Batch
    scored: NDArray[np.int64]
    first: NDArray[np.int64]
    length: int
    least: int
    most: int
    floors: NDArray[np.float64]

    def select(self, chosen: NDArray[np.int64]) -> "Runs":
        """Return the chosen runs, int64[C]."""
        return self._replace(
            batch=self.batch.of(chosen),
            scored=self.scored[chosen],
            first=self.first[chosen],
            floors=self.floors[chosen],
        )

    def parts(self, chosen: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield the chosen runs, as many at a time as fit in memory at some 32 bytes a number."""
        room = max(SUMS_BYTES // (32 * self.length), 1)
        return (chosen[begin : begin + room] for begin in range(0, len(chosen), room))


def best_sums(runs: Runs, exact: Exact) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the numbers of largest scores of each run, best first, ties to the smaller, and the scores: [R, most] each.

    −1 and 0 where there are fewer.
    """
    shape = len(runs.scored), runs.most
    numbers, scores = np.full(shape, -1, np.int64), np.zeros(shape)
    least = min(max(runs.least, 1), runs.length)
    for chosen in runs.parts(np.arange(len(runs.scored))):
        part = runs.select(chosen)
        sums = all_sums(part)
        smallest = sums.topk(least, dim=1, largest=False, sorted=False).indices.cpu().numpy()
        reached = exact(np.repeat(chosen, least), smallest.ravel()).reshape(-1, least).min(axis=1)
        most = np.minimum(limit(np.minimum(reached, part.floors), part.scored), 2**31 - 1).astype(np.int32)
        found = (sums <= torch.from_numpy(most).to(sums.device)[:, None]).nonzero().cpu().numpy()
        row, number = found[:, 0], found[:, 1]
        score = exact(chosen[row], number)
        ranked = np.lexsort((number, -score, row))  # by run, then score, then number
        row, number, score = row[ranked], number[ranked], score[ranked]
        place = np.arange(len(row)) - np.searchsorted(row, np.arange(len(chosen)))[row]
        above = (place < part.most) & ((place < part.least) | (score >= part.floors[row]))
        numbers[chosen[row[above]], place[above]] = number[above]
        scores[chosen[row[above]], place[above]] = score[above]
    return numbers, scores


def all_sums(runs: Runs) -> torch.Tensor:
    """Compute each number's sum: int32[R, length], on the batch's device. The larger a score, the smaller its sum."""
    shape = _Shape.of(runs)
    sums = torch.empty((len(runs.scored), 16, shape.blocks), dtype=torch.int32, device=runs.batch.ids.device)
    sum_runs[(len(runs.scored) * shape.tiles,)](
        *runs.batch, shape.firsts, sums, shape.blocks, shape.tiles,
        FRACTION=FRACTION_BITS, STEPS=shape.steps, BLOCKS=shape.lanes,
        num_warps=shape.warps, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return sums.transpose(1, 2).reshape(len(runs.scored), -1)[:, : runs.length]


class _Shape(NamedTuple):
    """How runs are cut.

    blocks: of a run.
    lanes: blocks of a program.
    steps: side by side in a program.
    tiles: programs a run.
    firsts: int32[R], the first block of each run.
    """

    blocks: int
    lanes: int
    steps: int
    tiles: int
    firsts: torch.Tensor

    @classmethod
    def of(cls, runs: Runs) -> "_Shape":
        """Return a shape of a warp at least: where the blocks do not fill a warp, several steps go side by side."""
        blocks = -(-runs.length // 16)
        lanes = min(1 << (blocks - 1).bit_length(), MOST_BLOCKS)
        firsts = torch.from_numpy((runs.first >> 4).astype(np.int32)).to(runs.batch.ids.device)
        return cls(blocks, lanes, max(32 // lanes, 1), -(-blocks // lanes), firsts)

    @property
    def warps(self) -> int:
        """Warps of a program: a thread for each block of a step."""
        return self.lanes * self.steps // 32

"""Find numbers with the largest rough scores on a device, and compute draws, as the CPU would (SPEC_3 §1, §4).

A kernel counts the score of each number of a run, over steps with a key of their own, and torch finds the largest.
Scores are whole numbers, so a device and a CPU agree in every one. They also agree in draws. The logarithms of draws
are left to the CPU, because its values are published.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from triton import knobs

from scanner.gpu.kernels import count_runs, draws_at, spread_counts


def devices() -> list[torch.device]:
    """List every CUDA device. Under TRITON_INTERPRET=1 list the CPU, where Triton's interpreter runs the kernels."""
    if knobs.runtime.interpret:
        return [torch.device("cpu")]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def wake(device: torch.device) -> None:
    """Register this process with the device, which maps its address space."""
    torch.zeros(1, device=device)


class Batch(NamedTuple):
    """Steps on a device, in the kernels' types. Their keys are secret, and the repr shows none.

    ids: int32[P].
    nonces: int32[P, 2], low and high words.
    keys: int32[8, P].
    """

    ids: torch.Tensor
    nonces: torch.Tensor
    keys: torch.Tensor

    def __repr__(self) -> str:
        return f"Batch({len(self.ids)} steps)"

    @classmethod
    def put(
        cls, ids: NDArray[np.uint32], nonces: NDArray[np.uint64], keys: NDArray[np.uint32], device: torch.device
    ) -> "Batch":
        """Copy uint32[P], uint64[P] and uint32[8, P] to a device.

        Raises:
            ValueError: there are 2^28 steps or more. Scores of up to 8 a step have 31 bits.
        """
        if len(ids) >= 2**28:
            raise ValueError(f"{len(ids)} steps are too many for one batch; the limit is below 2^28")

        def put(values: NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(np.array(values, order="C")).to(device)

        return cls(
            put(ids.view(np.int32)),
            put(nonces.view(np.int32).reshape(-1, 2)),
            put(np.ascontiguousarray(keys).view(np.int32)),
        )


SUMS_BYTES = 1 << 30
"""Bytes of memory for scores of all numbers at a time. As many runs are scored together as fit."""

BYTES_A_NUMBER = 96

MOST_BLOCKS = 128
"""Most blocks of a run that a program computes, one a thread."""

WORDS_A_PROGRAM = 32
"""Number of words of counters that a program turns into 32 numbers each."""

PAIRS_A_PROGRAM = 128
"""Number of draws that a program computes, one a thread."""

NUMBERS_A_BLOCK = 64
"""Number of numbers whose eight digits are in a block."""

_NUMBERS = 1 << 16


class Runs(NamedTuple):
    """R runs of numbers, each over steps of a batch.

    begins, ends: int64[R], the steps.
    first: int64[R], the first number. It begins a block.
    length: count of numbers of each run, 2^16 at most.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    first: NDArray[np.int64]
    length: int

    def select(self, begin: int, end: int) -> "Runs":
        """Return runs begin … end−1."""
        rows = slice(begin, end)
        return self._replace(begins=self.begins[rows], ends=self.ends[rows], first=self.first[rows])


def best_rough(batch: Batch, runs: Runs, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the numbers with the largest rough scores of each run, counted from 0, and the scores.

    The best comes first, and ties go to the smaller number. Both are int64[R, most]. Missing entries are −1 and 0.
    """
    shape = len(runs.begins), most
    numbers, scores = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
    at_once, count = max(SUMS_BYTES // (BYTES_A_NUMBER * runs.length), 1), min(most, runs.length)
    for begin in range(0, shape[0], at_once):
        sums = rough_scores(batch, runs.select(begin, begin + at_once)).long()
        places = torch.arange(runs.length, device=sums.device)
        ranked = (sums * _NUMBERS + (_NUMBERS - 1 - places)).topk(count, dim=1).values.cpu().numpy()
        numbers[begin : begin + at_once, :count] = _NUMBERS - 1 - ranked % _NUMBERS
        scores[begin : begin + at_once, :count] = ranked // _NUMBERS
    return numbers, scores


def rough_scores(batch: Batch, runs: Runs) -> torch.Tensor:
    """Compute each number's rough score: int32[R, length], on the batch's device."""
    device, rows = batch.ids.device, len(runs.begins)
    blocks = -(-runs.length // NUMBERS_A_BLOCK)
    lanes = min(1 << (blocks - 1).bit_length(), MOST_BLOCKS)
    steps, tiles = max(32 // lanes, 1), -(-blocks // lanes)  # a warp at least, filled by several steps side by side
    highest = 8 * int((runs.ends - runs.begins).max(initial=0))
    levels = max(-(-highest.bit_length() // 4) * 4, 4)  # only multiples of 4, because each size is compiled
    begins, ends, firsts = (
        torch.from_numpy(values.astype(np.int32)).to(device)
        for values in (runs.begins, runs.ends, runs.first // NUMBERS_A_BLOCK)
    )
    words = 2 * blocks
    counters = torch.empty((rows, steps, levels, words), dtype=torch.int32, device=device)
    count_runs[(rows * tiles,)](
        *batch, begins, ends, firsts, counters, len(batch.ids), blocks, tiles,
        LEVELS=levels, STEPS=steps, BLOCKS=lanes, num_warps=lanes * steps // 32, num_stages=1,
    )  # fmt: skip
    out = torch.empty((rows, 32 * words), dtype=torch.int32, device=device)
    spread_counts[(rows, -(-words // WORDS_A_PROGRAM))](
        counters, out, blocks, LEVELS=levels, STEPS=steps, AT_ONCE=WORDS_A_PROGRAM, num_warps=1
    )
    return out[:, : runs.length]


def draws_of(batch: Batch, places: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Compute the draws that steps at places, int64[N], meet under numbers, int64[N], with groups: uint32[N]."""
    device, count = batch.ids.device, len(places)
    out = torch.empty(count, dtype=torch.int32, device=device)
    if count:
        at, read = torch.from_numpy(places.astype(np.int32)).to(device), torch.from_numpy(numbers).to(device)
        draws_at[(-(-count // PAIRS_A_PROGRAM),)](
            *batch, at, read, out, len(batch.ids), count, AT_ONCE=PAIRS_A_PROGRAM, num_warps=PAIRS_A_PROGRAM // 32
        )
    return out.cpu().numpy().view(np.uint32)

"""Marking on a device: the secret vectors of a step's rows, and Gumbel's choice among them (SPEC §1, §2).

From the windows to the vectors in one launch. The integers are those of the CPU; the choice is in double precision.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu.greenlist import Rule
from scanner.gpu.kernels.vectors import draw_entries, green_entries

GROUPS = 2
"""Groups of blocks that a program computes, one block a thread."""


class Vectors:
    """Secret vectors of one key on one device. Its sub-keys are as secret as the master key; its repr shows nothing.

    Args:
        chacha: uint32[8].
        sip: uint64[2].
        device: where the vectors are wanted.
    """

    def __init__(self, chacha: NDArray[np.uint32], sip: NDArray[np.uint64], device: torch.device) -> None:
        self._key = torch.from_numpy(chacha.view(np.int32).copy()).to(device)
        self._sip = torch.from_numpy(sip.view(np.int64).copy()).to(device)

    def green(self, windows: torch.Tensor, messages: torch.Tensor, count: int, rule: Rule) -> torch.Tensor:
        """Which of the tokens 0 … count−1 are green: int8[R, count].

        Args:
            windows: int64[R, h], the tokens before the step, contiguous.
            messages: int64[R].
            count: size of the vocabulary.
            rule: γ and the planes.
        """
        rows, device = len(windows), windows.device
        chunks = _chunks(count, 8192 // rule.planes)
        out = torch.empty((rows, count), dtype=torch.int8, device=device)
        strips = torch.empty(rows * chunks * GROUPS * (256 // rule.planes), dtype=torch.int32, device=device)
        green_entries[(rows, chunks)](
            self._sip, self._key, windows, messages, strips, out, count,
            N=rule.n, BITS=rule.bits, PLANES=rule.planes, WINDOW=windows.shape[1], GROUPS=GROUPS,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def draws(self, windows: torch.Tensor, messages: torch.Tensor, count: int) -> torch.Tensor:
        """Draws of the tokens 0 … count−1, uint32 in int32[R, count]; arguments as for `green`."""
        out = torch.empty((len(windows), count), dtype=torch.int32, device=windows.device)
        draw_entries[(len(windows), _chunks(count, 256))](
            self._sip, self._key, windows, messages, out, count,
            WINDOW=windows.shape[1], GROUPS=GROUPS, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        return out


def _chunks(count: int, entries_a_group: int) -> int:
    """Programs a row: the groups that hold any run of so many entries."""
    return -(-(count + entries_a_group - 1) // (GROUPS * entries_a_group))


def minus_ln_r(draws: torch.Tensor) -> torch.Tensor:
    """−ln r of draws as marking uses it, exact near r = 1 (SPEC §2): float64 for uint32 in int32, of the same shape."""
    w = (draws.long() & 0xFFFFFFFF).double()
    high = -torch.log1p((w - 4294967295.5) * 2.0**-32)
    return torch.where(draws < 0, high, -torch.log((w + 0.5) * 2.0**-32))


def weights(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Probabilities over that of the most probable token, 0 for what is cut: float64[B, V] (scanner.watermark.cut).

    Top-k, then top-p: the smallest set of most probable tokens that holds at least top_p of what top-k left. Tokens as
    probable as the last one kept are kept as well.
    """
    own = logits.float()
    w = torch.exp((own - own.amax(dim=1, keepdim=True)).double() / temperature)
    if 0 < top_k < w.shape[1]:
        w = w.where(w >= w.topk(top_k, dim=1).values[:, -1:], 0.0)
    if top_p < 1.0:
        ordered = w.sort(dim=1, descending=True).values
        held = ordered.cumsum(dim=1)
        last = (held < top_p * held[:, -1:]).sum(dim=1, keepdim=True)
        w = w.where(w >= ordered.gather(1, last), 0.0)
    return w


def choose(draws: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The token of least −ln(r)/weight of each row, ties to the smallest id: int64[B] for [B, V] both."""
    cost = torch.where(weights > 0, minus_ln_r(draws) / weights, torch.inf)
    return cost.argmin(dim=1)  # the first of the least

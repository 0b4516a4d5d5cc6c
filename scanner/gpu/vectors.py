"""Marking on a device: the secret vectors of a step's rows, from their windows in one launch (SPEC §1, SPEC_2 §1).

The integers are those of the CPU.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu.kernels import draw_entries, draws_of_runs, green_entries, green_of_runs
from scanner.gpu.plain import GreenRule

GROUPS = 2
"""Groups of blocks that a program computes, one block a thread."""

TOKENS = 512
"""Tokens that a program computes in version 2, four blocks a thread: they share the hash of their window."""


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

    def green(self, windows: torch.Tensor, messages: torch.Tensor, count: int, rule: GreenRule) -> torch.Tensor:
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

    def green_runs(
        self, windows: torch.Tensor, messages: torch.Tensor, groups: int | None, rule: GreenRule, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Which tokens are green in version 2: int8[R, V].

        Args:
            windows: as for `green`.
            messages: as for `green`.
            groups: B; None: no groups.
            rule: as for `green`.
            wanted: bool[R, V], the tokens that matter; unused here, since all are computed.
        """
        rows, count = wanted.shape
        out = torch.empty((rows, count), dtype=torch.int8, device=windows.device)
        green_of_runs[(rows, -(-count // TOKENS))](
            self._sip, self._key, windows, messages, out, groups or 1, count,
            N=rule.n, BITS=rule.bits, PLANES=rule.planes, SHIFT=10 - rule.planes.bit_length(),
            GROUPED=groups is not None, WINDOW=windows.shape[1], AT_ONCE=TOKENS, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def draw_runs(
        self, windows: torch.Tensor, messages: torch.Tensor, groups: int | None, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Draws of version 2, uint32 in int32[R, V]; arguments as for `green_runs`."""
        rows, count = wanted.shape
        out = torch.empty((rows, count), dtype=torch.int32, device=windows.device)
        draws_of_runs[(rows, -(-count // TOKENS))](
            self._sip, self._key, windows, messages, out, groups or 1, count,
            GROUPED=groups is not None, WINDOW=windows.shape[1], AT_ONCE=TOKENS, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
        return out


def _chunks(count: int, entries_a_group: int) -> int:
    """Programs a row: the groups that hold any run of so many entries."""
    return -(-(count + entries_a_group - 1) // (GROUPS * entries_a_group))

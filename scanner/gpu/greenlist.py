"""All-message scores of the green list on a device: counts equal the CPU's exactly (SPEC §1, §3).

Green bits of 32 messages a word, shifted by the token, are added into vertical counters by carry-save adders. Best and
second best of each tile are found in the counters, and the best of all tiles on the device too.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu.batch import STEP, Batch, Tiling, longest_first
from scanner.gpu.gamma import Rule
from scanner.gpu.kernels.greenlist import count_green

LEVELS = (8, 12, 16, 25)
"""Digits of the counters: documents of fewer than 2^8 tokens, 2^12, … are counted together."""

REGISTERS = 168
"""Most registers of a thread while counters are short: three programs of four warps then fit a multiprocessor."""

_LOW = 0xFFFFFFFF


def best_two(
    batch: Batch, offsets: NDArray[np.int64], count: int, rule: Rule, first: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Best and second best of the messages first … first+count−1: largest count, ties to the smallest message.

    Args:
        batch: scored tokens on a device.
        offsets: int64[D+1], where each document's scored tokens begin and end.
        count: how many messages, 1 to 2^31.
        rule: γ and the planes of the stream.
        first: the first message.

    Returns:
        message, score, second message (−1 when there is none), its score (0 then): int64[D] each.
    """
    documents = len(offsets) - 1
    found = np.full((documents, 2), -1, np.int64)
    digits = np.array([int(length).bit_length() for length in np.diff(offsets).tolist()], np.int64)
    for fewer, levels in zip((-1, *LEVELS), LEVELS, strict=False):
        chosen = longest_first(offsets, np.flatnonzero((digits > fewer) & (digits <= levels)))
        if len(chosen):
            found[chosen] = _launch(batch.of(chosen), count, rule, first, levels).cpu().numpy()
    score, message = found >> 32, _LOW - (found & _LOW) + first
    none = found < 0
    score[none], message[none] = 0, -1
    return message[:, 0], score[:, 0], message[:, 1], score[:, 1]


def _launch(batch: Batch, count: int, rule: Rule, first: int, levels: int) -> torch.Tensor:
    """Packed best and second best of each document: int64[D, 2], on the device."""
    device, documents = batch.ids.device, len(batch.begins)
    width = 256 // rule.planes
    tiling = Tiling.of(count, 32 * width)
    items = documents * tiling.tiles
    programs = tiling.programs(items, device)
    strips = torch.empty(programs * (2 * STEP * tiling.groups * width + width), dtype=torch.int32, device=device)
    best = torch.empty((documents, 2 * tiling.tiles), dtype=torch.int64, device=device)
    count_green[(programs,)](
        *batch, strips, best, first, count, items, tiling.tiles,
        N=rule.n, BITS=rule.bits, PLANES=rule.planes, GROUPS=tiling.groups, LEVELS=levels, STEP=STEP,
        num_warps=tiling.warps, num_stages=1, enable_fp_fusion=False,
        maxnreg=REGISTERS if levels == LEVELS[0] and rule.planes > 1 else None,
    )  # fmt: skip
    return best.topk(2, dim=1).values

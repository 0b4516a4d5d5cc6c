"""A shortlist of Gumbel scores on a device: every message that can be best or second best, each with a proven bound.

−ln(1−r) = ln 2 · (32 − log2 v), v = 2^32 − w. A thread multiplies the v of its messages in 32-bit floats, moves the
exponent of every fourth product into an integer, and at the end reads off the leading bits of a logarithm to base 2
that runs straight between powers of two, and so below the true one. Every v is made smaller, never larger: ~w | 1 is v
or v − 1, and its fraction is cut to 10 bits, so that a strip holds 16 bits a draw. Only two roundings a token can make
a product larger, by 2^-24 each: the integer's to a float, and the product's. Together they are less than 2^-22 units of
log2 a token, which is added.

So a sum bounds its message's score from above, on average by 0.0007 units of log2 a token and 0.06 at the end. The two
messages of the smallest sums are scored exactly, in double precision. A message whose bound lies below the smaller of
these two scores is beaten by both. The remaining messages are scored exactly as well, by the caller's function.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.gpu.batch import STEP, Batch, Tiling, longest_first
from scanner.gpu.kernels.gumbel import sum_logarithms

LONGEST = 1 << 22
"""Most positions of a document: sums fit 31 bits, and double-precision sums miss by less than 1e-9 of themselves."""

FRACTION = 3
"""Binary digits of a sum after the point."""

SUMS_BYTES = 1 << 30
"""Bytes of sums of all messages that are held at a time, for as many documents as fit."""

Exact = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
"""Function that gives the published scores of pairs (document, message): float64[N] for int64[N] each."""


def all_sums(batch: Batch, count: int, first: int = 0) -> torch.Tensor:
    """Sums of the messages first … first+count−1 under each document: int32[D, count], on the batch's device.

    The larger a score, the smaller its sum. No document may have more than LONGEST positions.
    """
    device, documents = batch.ids.device, len(batch.begins)
    tiling = Tiling.of(count, 256)
    items = documents * tiling.tiles
    programs = tiling.programs(items, device)
    strips = torch.empty(programs * (2 * STEP * tiling.groups + 1) * 256, dtype=torch.int16, device=device)
    sums = torch.empty((documents, count), dtype=torch.int32, device=device)
    sum_logarithms[(programs,)](
        *batch, strips, sums, first, count, items, tiling.tiles,
        GROUPS=tiling.groups, FRACTION=FRACTION, STEP=STEP,
        num_warps=tiling.warps, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return sums


def bound(sums: NDArray[np.integer], scored: NDArray[np.int64]) -> NDArray[np.float64]:
    """The score that no message exceeds, by its sum and the scored positions."""
    return math.log(2.0) * (scored * (32.0 + 2.0**-22) - sums * 2.0**-FRACTION)


def limit(reached: NDArray[np.float64], scored: NDArray[np.int64]) -> NDArray[np.int64]:
    """Largest sum of a message whose score can be as large as `reached`: int64[D].

    1e-9 is more than the error of two double-precision sums of LONGEST terms.
    """
    most = scored * (32.0 + 2.0**-22) - reached * ((1.0 - 1e-9) / math.log(2.0))
    return np.ceil(most * 2.0**FRACTION).astype(np.int64) + 1


def best_two(
    batch: Batch, offsets: NDArray[np.int64], count: int, exact: Exact, first: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Best and second best of the messages first … first+count−1: largest exact score, ties to the smallest message.

    Args:
        batch: scored tokens on a device.
        offsets: int64[D+1], where each document's scored tokens begin and end; at most LONGEST each.
        count: how many messages, 2 or more.
        exact: scores pairs of document and message.
        first: the first message.

    Returns:
        message, score, second message, its score: [D] each.
    """
    documents = len(offsets) - 1
    messages, scores = np.empty((documents, 2), np.int64), np.empty((documents, 2))
    order = longest_first(offsets, np.arange(documents))
    room = max(SUMS_BYTES // (4 * count), 1)
    for begin in range(0, documents, room):
        chosen = order[begin : begin + room]
        scored = np.diff(offsets)[chosen]
        sums = all_sums(batch.of(chosen), count, first)
        smallest = sums.topk(2, dim=1, largest=False, sorted=False).indices.cpu().numpy()
        reached = exact(np.repeat(chosen, 2), smallest.ravel() + first).reshape(-1, 2).min(axis=1)
        most = np.minimum(limit(reached, scored), 2**31 - 1).astype(np.int32)
        # without a scored position all messages tie: the first two are enough
        most[scored == 0] = -1
        found = (sums <= torch.from_numpy(most).to(sums.device)[:, None]).nonzero().cpu().numpy()
        none = np.flatnonzero(scored == 0)
        rows = np.concatenate([found[:, 0], np.repeat(none, 2)])
        candidates = np.concatenate([found[:, 1], np.tile([0, 1], len(none))]) + first
        of_candidates = exact(chosen[rows], candidates)
        ranked = np.lexsort((candidates, -of_candidates, rows))  # by document, then score, then message
        starts = np.searchsorted(rows[ranked], np.arange(len(chosen)))
        for place in (0, 1):
            messages[chosen, place] = candidates[ranked[starts + place]]
            scores[chosen, place] = of_candidates[ranked[starts + place]]
    return messages[:, 0], scores[:, 0], messages[:, 1], scores[:, 1]

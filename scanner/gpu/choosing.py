"""Gumbel's choice of a token on any device, in double precision (SPEC §2). Needs torch alone."""

from typing import NamedTuple

import torch


def minus_ln_r(draws: torch.Tensor) -> torch.Tensor:
    """−ln r of draws as marking uses it, exact near r = 1 (SPEC §2): float64 for uint32 in int32, of the same shape."""
    w = (draws.long() & 0xFFFFFFFF).double()
    high = -torch.log1p((w - 4294967295.5) * 2.0**-32)
    return torch.where(draws < 0, high, -torch.log((w + 0.5) * 2.0**-32))


def weights(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Probabilities over that of the most probable token, 0 for what is cut: float64[B, V] (scanner.watermark.cut).

    Top-k, then top-p: the smallest set of most probable tokens that holds at least top_p of what top-k left. Tokens
    exactly as probable as the last token kept are kept too.
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


class Sampling(NamedTuple):
    """How each row is sampled: float64[B], except for the last two fields.

    top_k: 0 keeps all tokens, int64[B]; top_p: 1 keeps all; min_p: least share of the most probable token, 0 keeps all;
    cuts: whether any row has a top_k or top_p, which the host knows without asking the device.
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    cuts: bool


def weights_of_rows(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
    """As `weights`, with a temperature, min-p, top-k and top-p for each row: float64[B, V]."""
    own = logits.float()
    w = torch.exp((own - own.amax(dim=1, keepdim=True)).double() / how.temperature[:, None])
    w = w.where(w >= how.min_p[:, None], 0.0)
    if not how.cuts:
        return w
    ordered = w.sort(dim=1, descending=True).values
    least_place = torch.where(how.top_k > 0, how.top_k, w.shape[1]).clamp(max=w.shape[1]) - 1
    of_top_k = ordered.gather(1, least_place[:, None])
    ordered = ordered.where(ordered >= of_top_k, 0.0)
    held = ordered.cumsum(dim=1)
    least_place = (held < how.top_p[:, None] * held[:, -1:]).sum(dim=1)
    of_top_p = ordered.gather(1, least_place[:, None])
    return w.where(w >= torch.where(how.top_p[:, None] < 1.0, of_top_p, of_top_k), 0.0)


def choose(draws: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The token of least −ln(r)/weight of each row, ties to the smallest id: int64[B] for [B, V] both."""
    cost = torch.where(weights > 0, minus_ln_r(draws) / weights, torch.inf)
    return cost.argmin(dim=1)  # the first of equal costs

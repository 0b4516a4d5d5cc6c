"""Logits in, marked logits out: all rows of a step at once, on the device that holds them (SPEC §2, SPEC_2 §1).

A green list adds δ to green tokens, and vLLM samples as always. Gumbel applies each row's temperature, min-p, top-k and
top-p, chooses the token, and makes all others impossible: whatever vLLM does then, this token comes out.
"""

import math
from typing import TYPE_CHECKING

import torch

from brickscan_vllm.served_key import ServedKey
from scanner.gpu.choosing import Sampling, choose, weights_of_rows
from scanner.gpu.gamma import Rule
from scanner.gpu.plain import PlainVectors

if TYPE_CHECKING:
    from scanner.gpu.vectors import Vectors

AT_ONCE = 1 << 23
"""Logits whose weights are computed at a time: 64 MiB for each of a few copies."""

BELOW = 30.0
"""Distance below the largest logit, and δ more, at which a token is not written: e^-30 of the largest's chance."""

SURE = 0.999
"""Probability from which a token comes whatever is marked, as under a grammar, or a temperature near 0."""


class Marker:
    """Marks the rows of a step under one key on one device.

    Args:
        key: the key that marks.
        device: the logits' device.
    """

    def __init__(self, key: ServedKey, device: torch.device) -> None:
        self._key, self._vectors = key, _vectors(key, device)
        self.window, self.is_green_list = key.window, key.rule is not None

    def __repr__(self) -> str:
        return f"Marker({self._key.label})"

    def mark(
        self, logits: torch.Tensor, windows: torch.Tensor, messages: torch.Tensor, on: torch.Tensor, how: Sampling
    ) -> torch.Tensor:
        """Mark the rows that are on, in place.

        Args:
            logits: float32[R, V], written.
            windows: int64[R, h], the tokens before each row's step; any values where the row is not on.
            messages: int64[R].
            on: bool[R].
            how: sampling of each row; a green list needs none of it.

        Returns:
            bool[R]: rows in which one token is as good as sure, so that a mark shows nothing.
        """
        forced = torch.empty(len(logits), dtype=torch.bool, device=logits.device)
        step = max(AT_ONCE // logits.shape[1], 1)
        for begin in range(0, len(logits), step):
            rows = slice(begin, begin + step)
            some = windows[rows].contiguous(), messages[rows].contiguous(), on[rows, None]
            if self._key.rule is not None:
                forced[rows] = self._add_delta(self._key.rule, logits[rows], *some)
            else:
                own = Sampling(how.temperature[rows], how.top_p[rows], how.min_p[rows], how.top_k[rows], how.cuts)
                forced[rows] = self._leave_one(logits[rows], *some, own)
        return forced

    def _add_delta(
        self, rule: Rule, logits: torch.Tensor, windows: torch.Tensor, messages: torch.Tensor, on: torch.Tensor
    ) -> torch.Tensor:
        """Add δ to the green tokens of rows that are on."""
        key, delta = self._key, self._key.delta
        least = logits.amax(dim=1, keepdim=True) - delta
        forced = (logits >= least + math.log1p(-SURE)).sum(dim=1) == 1
        if key.version == 1:
            green = self._vectors.green(windows, messages, logits.shape[1], rule)
        else:
            wanted = on & (logits >= least - BELOW)
            green = self._vectors.green_runs(windows, messages, key.groups, rule, wanted)
        logits.add_((green & on).to(logits), alpha=delta)
        return forced

    def _leave_one(
        self, logits: torch.Tensor, windows: torch.Tensor, messages: torch.Tensor, on: torch.Tensor, how: Sampling
    ) -> torch.Tensor:
        """Set 0 for the chosen token of each row that is on, and −∞ for all others. Other rows stay as they are."""
        weights = weights_of_rows(logits, how)
        if self._key.version == 1:
            draws = self._vectors.draws(windows, messages, logits.shape[1])
        else:
            draws = self._vectors.draw_runs(windows, messages, self._key.groups, on & (weights > 0))
        token = choose(draws, weights)[:, None]
        logits.masked_fill_(on, -torch.inf)
        logits.scatter_(1, token, logits.gather(1, token).masked_fill(on, 0.0))
        return weights.sum(dim=1) * SURE < 1.0  # weights are relative to the largest one


def _vectors(key: ServedKey, device: torch.device) -> "PlainVectors | Vectors":
    """The key's vectors: by Triton on a GPU that has it, else by torch alone, with the same integers."""
    if device.type == "cuda":
        try:
            from scanner.gpu.vectors import Vectors
        except ImportError:
            pass
        else:
            return Vectors(key.sub_keys.chacha, key.sub_keys.sip, device)
    return PlainVectors(key.sub_keys.chacha, key.sub_keys.sip, device)

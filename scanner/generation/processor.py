"""Marking one step of generation: logits processors for `model.generate`, a message per row, exact to SPEC §2.

`generate` runs custom processors after its own penalties and before temperature, top-k and top-p. So the green list
adds its bias in the right place and leaves sampling to `generate`; Gumbel does temperature, top-k and top-p itself,
chooses the token, and returns scores under which that token wins whatever `generate` does next.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import LogitsProcessor

from scanner.errors import Refused
from scanner.watermark import GreenList, Gumbel, minus_ln_r

_Floats = npt.NDArray[np.float64]
_Ids = npt.NDArray[np.int64]


class _Marking(LogitsProcessor):
    """Which rows of a batch are marked at a step, and the nonces of their windows; the methods below do the rest."""

    def __init__(
        self,
        mark: GreenList | Gumbel,
        messages: Sequence[int],
        prompt_lengths: Sequence[int],
        prompt_width: int | None = None,
        *,
        skip_used_windows: bool = False,
    ) -> None:
        if len(prompt_lengths) != len(messages):
            raise Refused(
                f"{len(messages)} messages but {len(prompt_lengths)} prompt lengths; both need one entry for each row"
            )
        self._mark = mark
        self._messages = np.asarray(messages, dtype=np.int64)
        lengths = np.asarray(prompt_lengths, dtype=np.int64)
        self._width = int(lengths.max(initial=0)) if prompt_width is None else prompt_width
        self._padding = self._width - lengths
        self._skip_used = skip_used_windows
        if (self._messages < 0).any():
            raise Refused(f"message {self._messages.min()} is negative; messages count from 0")
        if (lengths < 0).any() or (self._padding < 0).any():
            raise Refused(f"prompt lengths {lengths.tolist()} do not lie between 0 and prompt_width = {self._width}")

    def _nonces(self, input_ids: torch.Tensor) -> tuple[_Ids, npt.NDArray[np.uint64]]:
        """The rows to mark at this step, int64[R], and the nonce of each one's window, uint64[R]."""
        ids = input_ids.cpu().numpy().astype(np.uint32)
        rows, width = ids.shape
        if rows != len(self._messages):
            raise Refused(
                f"{rows} rows are generated but {len(self._messages)} messages were given; a message is needed for each"
                " row (repeat it for num_return_sequences), and beam search cannot be marked"
            )
        if width < self._width:
            raise Refused(f"the sequences have {width} tokens, less than the prompts' {self._width}; pass input_ids")
        h = self._mark.window
        chosen = self._padding + h <= width
        if not chosen.any():
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        windows = np.lib.stride_tricks.sliding_window_view(ids, h, axis=1)  # [B, width − h + 1, h], the last is now's
        if self._skip_used and width > self._width:
            first = max(self._width - h, 0)  # the window of the completion's first step starts here
            earlier = (windows[:, first:-1] == windows[:, -1:]).all(axis=2)
            full = np.arange(first, first + earlier.shape[1]) >= self._padding[:, None]
            chosen &= ~(earlier & full).any(axis=1)
        marked = np.flatnonzero(chosen)
        return marked, self._mark.window_nonces(np.ascontiguousarray(windows[marked, -1]))


class GreenListProcessor(_Marking):
    """Adds δ to the logits of green tokens (Kirchenbauer et al.; SPEC §2), before temperature, top-k and top-p.

    For sampling with any temperature, top-k and top-p, or greedily:
    `model.generate(**batch, do_sample=True, logits_processor=[GreenListProcessor(mark, messages, lengths, delta=2)])`.

    Args:
        mark: The key's green list; its window is h.
        messages: The message of each row.
        prompt_lengths: Tokens of each row's prompt, left padding not counted. Processors do not see the attention
            mask; a row is marked once it has h tokens of its own.
        prompt_width: Width of the left-padded prompts; None: that of the longest.
        delta: δ, in logits, more than 0.
        skip_used_windows: Leave a window that this completion has used before unmarked (SPEC §2, option).

    Raises:
        Refused: arguments that do not fit each other; when called, a batch of another size (beam search).
    """

    def __init__(
        self,
        mark: GreenList,
        messages: Sequence[int],
        prompt_lengths: Sequence[int],
        prompt_width: int | None = None,
        *,
        delta: float,
        skip_used_windows: bool = False,
    ) -> None:
        super().__init__(mark, messages, prompt_lengths, prompt_width, skip_used_windows=skip_used_windows)
        check_delta(delta)
        self._green, self._delta = mark, delta

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Logits [B, |V|] with δ added to the green tokens of each marked row; `scores` itself is not changed."""
        rows, nonces = self._nonces(input_ids)
        green = self._green.green(nonces, self._messages[rows], scores.shape[1])
        bias = torch.zeros_like(scores)
        bias[torch.from_numpy(rows)] = self._delta * torch.from_numpy(green).to(scores)
        return scores + bias  # type: ignore[return-value]


class GumbelProcessor(_Marking):
    """Chooses the token of smallest −ln(r)/p (Aaronson et al.; SPEC §2), p being what would have been sampled from.

    Temperature, top-k and top-p belong here, not to `generate`, which is best called with `do_sample=False`; with
    sampling the same tokens come out, since one token has score 0 and all others −∞. A row that is not marked at a step
    (fewer than h tokens so far) is sampled from p with this processor's own generator.

    Args:
        mark: The key's Gumbel watermark; its window is h.
        messages, prompt_lengths, prompt_width, skip_used_windows: As for GreenListProcessor.
        temperature: Divides the logits, more than 0 (as it nears 0 the text becomes greedy and carries no mark).
        top_k: Keep the k most probable tokens; 0 keeps all.
        top_p: Keep the most probable tokens that add up to this much, more than 0; 1 keeps all.
        seed: For the tokens that are sampled without the mark.

    Raises:
        Refused: arguments that do not fit each other; when called, a batch of another size (beam search).
    """

    def __init__(
        self,
        mark: Gumbel,
        messages: Sequence[int],
        prompt_lengths: Sequence[int],
        prompt_width: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        skip_used_windows: bool = False,
    ) -> None:
        super().__init__(mark, messages, prompt_lengths, prompt_width, skip_used_windows=skip_used_windows)
        check_sampling(temperature, top_k, top_p)
        self._gumbel, self._temperature, self._top_k, self._top_p = mark, temperature, top_k, top_p
        self._random = np.random.default_rng(seed)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores [B, |V|] that are 0 for the token chosen in each row and −∞ for every other."""
        rows, nonces = self._nonces(input_ids)
        p = probabilities(scores.double().cpu().numpy(), self._temperature, self._top_k, self._top_p)
        chosen = np.empty(len(p), dtype=np.int64)
        chosen[rows] = self._choose(p[rows], nonces, self._messages[rows])
        unmarked = np.delete(np.arange(len(p)), rows)
        chosen[unmarked] = [self._random.choice(p.shape[1], p=p[row]) for row in unmarked]
        out = torch.full_like(scores, -torch.inf)
        return out.scatter_(1, torch.from_numpy(chosen).to(scores.device)[:, None], 0.0)  # type: ignore[return-value]

    def _choose(self, p: _Floats, nonces: npt.NDArray[np.uint64], messages: npt.NDArray[np.int64]) -> _Ids:
        """The token of smallest −ln(r)/p in each row, int64[R]; ties go to the smallest id."""
        possible = p > 0
        cost = np.full(p.shape, np.inf)
        cost[possible] = minus_ln_r(self._gumbel.draws(nonces, messages, p.shape[1])[possible]) / p[possible]
        chosen: _Ids = cost.argmin(axis=1)
        return chosen


def probabilities(logits: _Floats, temperature: float, top_k: int, top_p: float) -> _Floats:
    """What `generate` samples from under these parameters, in double precision.

    As in transformers: temperature first, then top-k, then top-p of what is left: the smallest set of most probable
    tokens that holds at least top_p. Tokens as probable as the last one kept are kept as well, so the order of a sort
    decides nothing.

    Args:
        logits: float64 [B, |V|]; −∞ where a token is forbidden.
        temperature: As for GumbelProcessor.
        top_k: Also; 0 keeps all.
        top_p: Also; 1 keeps all.

    Returns:
        float64 [B, |V|], each row adding up to 1.
    """
    p: _Floats = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    if 0 < top_k < p.shape[1]:
        p[p < np.partition(p, -top_k, axis=1)[:, [-top_k]]] = 0.0
    p /= p.sum(axis=1, keepdims=True)
    if top_p < 1:
        ascending = np.sort(p, axis=1)
        left_out = (ascending.cumsum(axis=1) <= 1.0 - top_p)[:, :-1].sum(axis=1, keepdims=True)
        p[p < np.take_along_axis(ascending, left_out, axis=1)] = 0.0
        p /= p.sum(axis=1, keepdims=True)
    return p


def check_delta(delta: float) -> None:
    """Refuse a bias that marks nothing.

    Raises:
        Refused: with the value and what is allowed.
    """
    if not 0 < delta < float("inf"):
        raise Refused(f"delta = {delta} does not mark text; a number above 0 is needed, for example 2.0")


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Refuse sampling parameters under which there is nothing to sample.

    Raises:
        Refused: naming the parameter, its value and what is allowed.
    """
    if not 0 < temperature < float("inf"):
        raise Refused(f"temperature = {temperature} is not allowed; a number above 0 is needed")
    if top_k < 0:
        raise Refused(f"top_k = {top_k} is not allowed; 0 (keep all tokens) or more is needed")
    if not 0 < top_p <= 1:
        raise Refused(f"top_p = {top_p} is not allowed; a number above 0 and at most 1 (keep all tokens) is needed")

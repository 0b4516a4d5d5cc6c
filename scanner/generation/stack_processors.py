"""Choosing a token as vLLM and SGLang choose it under their own marks: for trials, canaries and comparisons.

Both take the token of smallest −ln(u)/p, where u is its keyed draw and p the distribution without the mark. They differ
in the context that the draw depends on, and in which contexts they mark. They are computed in double precision, where
the stacks take float32. So another token comes out now and then, which is marked alike.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from scanner.errors import Refused
from scanner.generation.processor import OneBatch, check_sampling, sampling_weights
from scanner.watermark import Tokens
from scanner.watermark.positions import Positions
from scanner.watermark.stacks.sglang.format import Sglang, centre, seeds_of
from scanner.watermark.stacks.sglang.user_keys import SglangUsers
from scanner.watermark.stacks.vllm.format import Vllm, uniforms

_Ids = NDArray[np.int64]
Mark = TypeVar("Mark")

VLLM_HISTORY = 8192
"""`deduplicate_contexts_max_history`: how many positions back vLLM looks for a context."""

SGLANG_MARKED = 4096
"""Most positions that SGLang marks in a request."""


class _StackProcessor(OneBatch, Generic[Mark]):
    """Chooses each row's token under its own message. A row whose context was met before is sampled without the mark.

    Args:
        mark: an opened key of the stack.
        messages: the message of each row; 0 where the mark carries none.
        prompt_lengths: tokens of each row's prompt, left padding not counted; at least 1.
        prompt_width: width of the left-padded prompts; None: the longest prompt's.
        temperature, top_k, top_p: as of GumbelProcessor; call `generate` with do_sample=False.
        seed: for tokens that are sampled without the mark, and for the choice between vLLM's two keys.
        skip_used_windows: the stacks always do, so both values mean the same.
        vocabulary: how many tokens the key's tokenizer knows; None: not checked.

    Raises:
        Refused: arguments that do not fit each other; when called, a batch of another size, or logits for more tokens.
    """

    def __init__(
        self,
        mark: Mark,
        messages: Sequence[int],
        prompt_lengths: Sequence[int],
        prompt_width: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        skip_used_windows: bool = True,
        vocabulary: int | None = None,
    ) -> None:
        check_sampling(temperature, top_k, top_p)
        if len(messages) != len(prompt_lengths):
            raise Refused(f"{len(messages)} messages but {len(prompt_lengths)} prompt lengths; a row needs one of each")
        self._width = max(prompt_lengths, default=0) if prompt_width is None else prompt_width
        self._paddings = [self._width - length for length in prompt_lengths]
        if min(self._paddings, default=0) < 0 or min(prompt_lengths, default=1) < 1:
            raise Refused(f"prompt lengths {list(prompt_lengths)} are not all within 1 and prompt_width {self._width}")
        self._mark, self._messages = mark, messages
        self._sampling = temperature, top_k, top_p
        self._random = np.random.default_rng(seed)
        self._vocabulary = vocabulary

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores [B, |V|] that are 0 for the token chosen in each row and −∞ for every other."""
        if len(input_ids) != len(self._paddings):
            raise Refused(f"{len(input_ids)} rows are generated but {len(self._paddings)} messages were given")
        if self._vocabulary is not None and scores.shape[1] > self._vocabulary:
            raise Refused(
                f"the model writes {scores.shape[1]} different tokens, but the key's tokenizer knows {self._vocabulary}"
            )
        ids, logits = input_ids.cpu().numpy(), scores.float().cpu().numpy()
        chosen = [self._choose(row, ids[row, pad:], logits[row]) for row, pad in enumerate(self._paddings)]
        token = torch.tensor(chosen, device=scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)  # type: ignore[return-value]

    def _choose(self, row: int, before: _Ids, logits: NDArray[np.float32]) -> int:
        """The token of a row after its prompt and completion so far."""
        weights = sampling_weights(logits, *self._sampling)
        prompt = self._width - self._paddings[row]
        context = self._context(before, prompt)
        if context is None:
            return int(self._random.choice(len(weights), p=weights / weights.sum()))
        candidates = np.flatnonzero(weights)
        documents = np.empty((len(candidates), len(context) + 1), np.uint32)
        documents[:, :-1], documents[:, -1] = context, candidates
        offsets = np.arange(len(candidates) + 1) * documents.shape[1]
        ends = Positions(offsets[1:] - 1, np.arange(len(candidates) + 1))
        draws = self._draws(row, Tokens(documents.ravel(), offsets), ends)
        return int(candidates[np.argmin(-np.log(draws) / weights[candidates])])  # a tie goes to the smallest id

    @abstractmethod
    def _context(self, before: _Ids, prompt: int) -> _Ids | None:
        """The tokens that the next token's draw depends on, or None where it is not marked."""

    @abstractmethod
    def _draws(self, row: int, tokens: Tokens, ends: Positions) -> NDArray[np.float64]:
        """The draw u of the last token of each document; a document is a context and a token."""


class VllmProcessor(_StackProcessor[Vllm]):
    """vLLM's rule: contexts of the completion alone, shorter at its start, each marked once (`single_turn`)."""

    def _context(self, before: _Ids, prompt: int) -> _Ids | None:
        width = self._mark.width
        padded = np.concatenate([np.full(width, -1), before[prompt:]])
        windows = np.lib.stride_tricks.sliding_window_view(padded, width)
        if (windows[:-1][-VLLM_HISTORY:] == windows[-1]).all(axis=1).any():
            return None
        return before[prompt:][-width:]

    def _draws(self, row: int, tokens: Tokens, ends: Positions) -> NDArray[np.float64]:
        words = self._mark.words(tokens, ends)
        second = len(words) == 2 and self._random.random() < self._mark.weight
        return uniforms(words[second])


class SglangProcessor(_StackProcessor[Sglang | SglangUsers]):
    """SGLang's rule: contexts go over into the prompt, and each hash of a context is marked once."""

    def _context(self, before: _Ids, prompt: int) -> _Ids | None:
        ids = np.append(before, 0).astype(np.uint32)  # with a token for the place that is to be written
        places = np.arange(prompt, len(ids))
        hashes = seeds_of(ids, np.array([0, len(ids)]), places, self._mark.width)
        met = set(hashes[:-1].tolist())
        if int(hashes[-1]) in met or len(met) >= SGLANG_MARKED:
            return None
        return before[-self._mark.width :]

    def _draws(self, row: int, tokens: Tokens, ends: Positions) -> NDArray[np.float64]:
        mark = self._mark
        one = mark.of_user(self._messages[row]) if isinstance(mark, SglangUsers) else mark
        return centre(one.draws(tokens, ends))

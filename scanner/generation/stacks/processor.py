"""Define the common part of other stacks' processors: choose the token of smallest −ln(u)/p, where u is its keyed draw.

p is the distribution without the mark. The stacks differ in the context that a draw depends on, and in the contexts
that they mark. Processors compute in double precision, while the stacks use float32. So they choose another token now
and then. It carries the same mark.
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

Ids = NDArray[np.int64]
Mark = TypeVar("Mark")


class StackProcessor(OneBatch, Generic[Mark]):
    """Chooses each row's token under its own message. A row is sampled without the mark if its context was met before.

    Args:
        mark: an opened key of the stack.
        messages: the message of each row. 0 if the mark carries none.
        prompt_lengths: number of tokens in each row's prompt, without left padding, at least 1.
        prompt_width: width of the left-padded prompts. None: the longest prompt's.
        temperature, top_k, top_p: as in GumbelProcessor. Call `generate` with do_sample=False.
        seed: for tokens that are sampled without the mark, and for the choice between vLLM's two keys.
        skip_used_windows: the stacks always skip them, so both values mean the same.
        vocabulary: number of tokens that the key's tokenizer knows. None: not checked.

    Raises:
        Refused: the arguments do not fit each other. When called: the batch has another size, or there are logits for
            more tokens.
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
        self.mark, self.messages = mark, messages
        self._sampling = temperature, top_k, top_p
        self.random = np.random.default_rng(seed)
        self._vocabulary = vocabulary

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return scores [B, |V|]: 0 for the token chosen in each row, and −∞ for every other."""
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

    def _choose(self, row: int, before: Ids, logits: NDArray[np.float32]) -> int:
        weights = sampling_weights(logits, *self._sampling)
        prompt = self._width - self._paddings[row]
        context = self.context_of(before, prompt)
        if context is None:
            return int(self.random.choice(len(weights), p=weights / weights.sum()))
        candidates = np.flatnonzero(weights)
        documents = np.empty((len(candidates), len(context) + 1), np.uint32)
        documents[:, :-1], documents[:, -1] = context, candidates
        offsets = np.arange(len(candidates) + 1) * documents.shape[1]
        ends = Positions(offsets[1:] - 1, np.arange(len(candidates) + 1))
        draws = self.draw(row, Tokens(documents.ravel(), offsets), ends)
        return int(candidates[np.argmin(-np.log(draws) / weights[candidates])])  # a tie goes to the smallest id

    @abstractmethod
    def context_of(self, before: Ids, prompt: int) -> Ids | None:
        """Return the tokens that the next token's draw depends on. None where it is not marked."""

    @abstractmethod
    def draw(self, row: int, tokens: Tokens, ends: Positions) -> NDArray[np.float64]:
        """Return the draw u of the last token of each document. A document is a context and a token."""

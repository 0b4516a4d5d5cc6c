"""Completing prompts, marked with a message a prompt or not at all, also as vLLM and SGLang choose tokens.

Their marks serve trials, canaries and comparisons. Both take the token of smallest −ln(u)/p, where u is its keyed draw
and p the distribution without the mark. They differ in the context that the draw depends on, and in which contexts they
mark. They are computed in double precision, where the stacks take float32. So another token comes out now and then,
which is marked alike.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor, LogitsProcessorList

from scanner.errors import Refused
from scanner.generation.model import LocalModel
from scanner.generation.processor import (
    GreenListProcessor,
    GumbelProcessor,
    OneBatch,
    RowsProcessor,
    check_delta,
    check_prompts,
    check_sampling,
    sampling_weights,
)
from scanner.watermark import Tokens, Watermark
from scanner.watermark.format import format_name
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
        second = len(words) == 2 and self._random.random() < self._mark.alpha
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


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled. The defaults are those of the paper's experiments (three bricks, sections 4 and 6).

    Raises:
        Refused: a value that is not allowed, by name.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 0.95  # 1: all tokens
    delta: float = 3.0  # δ of the green list, in logits
    skip_used_windows: bool = False  # leave a window that the completion has used before unmarked

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p)
        check_delta(self.delta)
        if self.max_new_tokens < 1:
            raise Refused(f"max_new_tokens = {self.max_new_tokens} is not allowed; 1 or more is needed")


class Completion(NamedTuple):
    """A model's answer: the text without prompt and control tokens, and how many tokens it took."""

    text: str
    tokens: int  # the end of the turn left out


class Marking(NamedTuple):
    """How a format marks text: its processor, and whether that samples itself or leaves it to `generate`."""

    processor: Callable[..., LogitsProcessor]
    samples: bool


MARKING: Mapping[str, Marking] = {
    "greenlist": Marking(GreenListProcessor, samples=False),
    "gumbel": Marking(GumbelProcessor, samples=True),
    "greenlist-v2": Marking(GreenListProcessor, samples=False),
    "gumbel-v2": Marking(GumbelProcessor, samples=True),
    "vllm-gumbel": Marking(VllmProcessor, samples=True),
    "vllm-dual-key": Marking(VllmProcessor, samples=True),
    "sglang-one-key": Marking(SglangProcessor, samples=True),
    "sglang-two-keys": Marking(SglangProcessor, samples=True),
    "sglang-user-keys": Marking(SglangProcessor, samples=True),
}
"""Formats that text can be marked with, and how."""


def marking_of(mark: Watermark) -> Marking:
    """How a watermark marks text. Raises Refused: no text can be marked with it."""
    name = format_name(mark.label)
    if name not in MARKING:
        raise Refused(f"{mark.label}: no text can be marked with this format; those that can: {', '.join(MARKING)}")
    return MARKING[name]


def complete(
    model: LocalModel,
    prompts: Sequence[str],
    sampling: Sampling,
    seed: int,
    mark: Watermark | Sequence[Watermark] | None = None,
    messages: Sequence[int] = (),
    watch: Callable[[int], object] | None = None,
) -> list[Completion]:
    """Complete a batch of prompts, marked for a message each or, with no `mark`, unmarked.

    The same arguments give the same text on the same machine and versions. A Gumbel mark decides every token by key,
    window and message: there the seed does not matter.
    seed: of everything random; torch's global generator is left as it was. mark: one for all prompts or one for each,
    all of one method, with a message for each prompt. watch: called before each token, with the number of tokens of
    each completion.

    Raises:
        Refused: a prompt without tokens, too short for the key's window or too long for the model; marks that do not
            fit the prompts; and whatever the processors refuse.
    """
    ids, attention = model.encode(prompts)
    lengths = attention.sum(dim=1).tolist()
    marks = mark if isinstance(mark, Sequence) else [] if mark is None else [mark]
    check_prompts(
        lengths, max((one.rule.context for one in marks), default=0), sampling.max_new_tokens, model.positions
    )
    processors, how = _marking(model, mark, messages, lengths, ids.shape[1], sampling, seed)
    if watch:
        processors.append(_TokenWatch(watch, ids.shape[1]))
    device = model.model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.inference_mode():
        torch.manual_seed(seed)
        written = model.model.generate(  # type: ignore[operator]
            input_ids=ids.to(device),
            attention_mask=attention.to(device),
            logits_processor=processors,
            max_new_tokens=sampling.max_new_tokens,
            pad_token_id=model.pad_id,
            **how,
        )
    return [_completion(model, row) for row in written[:, ids.shape[1] :].tolist()]


class _TokenWatch(LogitsProcessor):
    """Leaves the scores as they are, and calls `watch` with the number of tokens after the prompt."""

    def __init__(self, watch: Callable[[int], object], width: int) -> None:
        self._watch, self._width = watch, width

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self._watch(input_ids.shape[1] - self._width)
        return scores


def _marking(
    model: LocalModel,
    mark: Watermark | Sequence[Watermark] | None,
    messages: Sequence[int],
    lengths: list[int],
    width: int,
    sampling: Sampling,
    seed: int,
) -> tuple[LogitsProcessorList, dict[str, Any]]:
    """Processors of a batch, and how `generate` is to sample after them."""
    if isinstance(mark, Sequence):
        return _marking_each(model, mark, messages, lengths, width, sampling, seed)
    how: dict[str, Any] = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    checks: dict[str, Any] = {"vocabulary": model.vocabulary, "skip_used_windows": sampling.skip_used_windows}
    if mark is None:
        return LogitsProcessorList(), how | {"do_sample": True}
    marking = marking_of(mark)
    strength = {"seed": seed, **how} if marking.samples else {"delta": sampling.delta}
    processor = marking.processor(mark, messages, lengths, width, **checks, **strength)
    return LogitsProcessorList([processor]), {"do_sample": False} if marking.samples else how | {"do_sample": True}


def _marking_each(
    model: LocalModel,
    marks: Sequence[Watermark],
    messages: Sequence[int],
    lengths: list[int],
    width: int,
    sampling: Sampling,
    seed: int,
) -> tuple[LogitsProcessorList, dict[str, Any]]:
    """As `_marking`, with a watermark for each row: rows of one watermark are marked together."""
    if not len(marks) == len(messages) == len(lengths):
        raise Refused(f"{len(marks)} marks and {len(messages)} messages for {len(lengths)} prompts; give one of each")
    if len({type(mark) for mark in marks}) > 1:
        raise Refused("the rows of a batch are marked with one method; put those of the other into another batch")
    rows_of: dict[int, list[int]] = {}
    for row, mark in enumerate(marks):
        rows_of.setdefault(id(mark), []).append(row)
    groups, how = [], dict[str, Any]()
    for rows in rows_of.values():
        those = [messages[row] for row in rows], [lengths[row] for row in rows]
        processors, how = _marking(model, marks[rows[0]], *those, width, sampling, seed + rows[0])
        groups.append((rows, processors))
    return LogitsProcessorList([RowsProcessor(groups)]), how


def _completion(model: LocalModel, tokens: list[int]) -> Completion:
    end = next((i for i, token in enumerate(tokens) if token in model.eos_ids), len(tokens))
    return Completion(model.decode(tokens[:end]), end)

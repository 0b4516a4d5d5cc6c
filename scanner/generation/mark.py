"""Complete prompts: unmarked, or marked with a message for each prompt, also as other stacks choose tokens.

Marks of other stacks serve trials, canaries and comparisons.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from scanner.errors import Refused
from scanner.generation.model import LocalModel
from scanner.generation.processor import (
    GreenListProcessor,
    GumbelProcessor,
    Marking,
    RowsProcessor,
    check_delta,
    check_prompts,
    check_sampling,
)
from scanner.generation.stacks import (
    sglang,
    vllm,
)
from scanner.watermark import Watermark
from scanner.watermark.format import format_name


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled.

    The defaults are those of the paper's experiments (three bricks, sections 4 and 6).

    Raises:
        Refused: a value is not allowed. The message names it.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 0.95  # 1: all tokens
    delta: float = 3.0  # δ of the green list, in logits
    skip_used_windows: bool = False  # leave a window unmarked if the completion has used it before

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p)
        check_delta(self.delta)
        if self.max_new_tokens < 1:
            raise Refused(f"max_new_tokens = {self.max_new_tokens} is not allowed; 1 or more is needed")


class Completion(NamedTuple):
    """A model's answer: the text without prompt and control tokens, and its number of tokens."""

    text: str
    tokens: int  # without the end of the turn


MARKING: Mapping[str, Marking] = {
    "greenlist": Marking(GreenListProcessor, samples=False),
    "gumbel": Marking(GumbelProcessor, samples=True),
    "greenlist-v3": Marking(GreenListProcessor, samples=False),
    "gumbel-v3": Marking(GumbelProcessor, samples=True),
    **vllm.MARKING,
    **sglang.MARKING,
}
"""Formats that text can be marked with, with the processor of each."""


def marking_of(mark: Watermark) -> Marking:
    """Return the way a watermark marks text.

    Raises:
        Refused: no text can be marked with it.
    """
    name = format_name(mark.label)
    if name not in MARKING:
        raise Refused(
            f"{mark.label}: brickscan cannot mark text with this format; formats that it can mark with: "
            f"{', '.join(MARKING)}"
        )
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
    """Complete a batch of prompts, marked for a message each. Without `mark` they stay unmarked.

    The same arguments give the same text on the same machine and versions. For a Gumbel mark, key, window and message
    decide every token, so the seed does not matter.

    Args:
        model: the model.
        prompts: a prompt for each completion.
        sampling: the way completions are sampled.
        seed: seed of everything random. torch's global generator is left unchanged.
        mark: one for all prompts or one for each, all of one method.
        messages: a message for each prompt, if there is a mark.
        watch: called before each token, with the number of tokens of each completion.

    Raises:
        Refused: a prompt has no tokens, is too short for the key's window or too long for the model. Or marks do not
            fit the prompts, or a processor refuses.
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
    """Make the processors of a batch, and the options for sampling by `generate` after them."""
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
    """Make processors as `_marking` does, with a watermark for each row. Rows of one watermark are marked together."""
    if not len(marks) == len(messages) == len(lengths):
        raise Refused(
            f"{len(marks)} marks and {len(messages)} messages for {len(lengths)} prompts; give one of each per prompt"
        )
    if len({type(mark) for mark in marks}) > 1:
        raise Refused("all rows of a batch are marked with one method; put rows of the other method into another batch")
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

"""Mark one step of generation: logits processors for `model.generate`, with a message for each row.

Specified in SPEC §2 and SPEC_3 §1, §4. `generate` runs custom processors after its penalties and before temperature,
top-k and top-p. The green list therefore only adds its bias and leaves sampling to `generate`. Gumbel does temperature,
top-k and top-p itself and chooses the token. It returns scores under which that token wins, whatever `generate` does
next.

A processor serves one batch, and each row keeps its place until the batch ends. Rows may use several keys
(`RowsProcessor`).
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from scanner.errors import Refused
from scanner.watermark import GreenList, Gumbel, cut
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel, Version3Mark

if TYPE_CHECKING:
    from scanner.gpu.vectors import SeededVectors, Vectors


def sampling_weights(
    logits: npt.NDArray[np.float32], temperature: float, top_k: int, top_p: float
) -> npt.NDArray[np.float64]:
    """Compute the weights to sample a token by: float64[V], probabilities divided by the largest one.

    logits: float32[V].
    """
    weights: npt.NDArray[np.float64] = np.subtract(logits, logits.max(), dtype=np.float64)
    weights /= temperature
    np.exp(weights, out=weights)
    cut(weights, top_k, top_p)
    return weights


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Refuse sampling parameters that leave nothing to sample.

    Raises:
        Refused: the message names the parameter, its value and the allowed range.
    """
    if not 0 < temperature < float("inf"):
        raise Refused(f"temperature = {temperature} is not allowed; a number above 0 is needed")
    if top_k < 0:
        raise Refused(f"top_k = {top_k} is not allowed; 0 (keep all tokens) or more is needed")
    if not 0 < top_p <= 1:
        raise Refused(f"top_p = {top_p} is not allowed; a number above 0 and at most 1 (keep all tokens) is needed")


class OneBatch(LogitsProcessor):
    """Base of the processors. It refuses the continuous batching of transformers, which asks each processor."""

    @property
    def supports_continuous_batching(self) -> NoReturn:  # type: ignore[override]
        """Refuse when transformers asks, before anything is generated.

        After the answer False, transformers would drop the mark. Without an answer, it would put the mark on wrong
        rows.

        Raises:
            Refused: always.
        """
        raise Refused(
            f"{type(self).__name__}: continuous batching moves requests between rows, so one request would get the "
            "mark of another; call model.generate on whole batches, or serve the model with brickscan-vllm"
        )


_Ids = npt.NDArray[np.int64]

_LOG_PROBABILITIES = 1e-3
"""A row whose sum of exponentials is this close to 1 holds log-probabilities. The logits of a model practically never
have such a sum.
"""


class _Marking(OneBatch):
    """Find the rows of a batch to mark at a step, and the nonces of their windows. Subclasses mark them."""

    def __init__(
        self,
        mark: GreenList | Gumbel | Version3Mark,
        messages: Sequence[int],
        prompt_lengths: Sequence[int],
        prompt_width: int | None,
        skip_used_windows: bool,
        key_messages: int | None,
        vocabulary: int | None,
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
        self._on_device: tuple[Vectors | SeededVectors, torch.Tensor] | None = None
        self._vocabulary = vocabulary
        if (self._messages < 0).any():
            raise Refused(f"message {self._messages.min()} is negative; messages count from 0")
        if key_messages is not None and (self._messages >= key_messages).any():
            raise Refused(f"message {self._messages.max()}: the key has messages 0 to {key_messages - 1}")
        if (self._padding < 0).any():
            raise Refused(f"prompt lengths {lengths.tolist()} are more than prompt_width = {self._width}")
        check_prompts(lengths.tolist(), mark.window)

    def _nonces(self, input_ids: torch.Tensor) -> tuple[_Ids, npt.NDArray[np.uint64]]:
        """Return the rows to mark at this step, int64[R], and the nonce of each row's window: uint64[R].

        A key of version 3 has two nonces a window: uint64[R, 2].
        """
        self._check_rows(*input_ids.shape)
        ids = input_ids.cpu().numpy().astype(np.uint32)
        rows, width = ids.shape
        h = self._mark.window
        windows = np.lib.stride_tricks.sliding_window_view(ids, h, axis=1)  # [B, width − h + 1, h], the last is now's
        chosen = np.ones(rows, np.bool_)
        if self._skip_used and width > self._width:
            first = max(self._width - h, 0)  # the window of the completion's first step starts here
            chosen = ~(windows[:, first:-1] == windows[:, -1:]).all(axis=2).any(axis=1)
        marked = np.flatnonzero(chosen)
        nonces = self._mark.window_nonces(np.ascontiguousarray(windows[marked, -1]))
        if isinstance(self._mark, Version3Mark):  # a reader of a claim can mark the windows of its seeds (SPEC_3 §4)
            unshown = ~self._mark.are_shown(nonces)
            marked, nonces = marked[unshown], nonces[unshown]
        return marked, nonces

    def _stays_on(self, device: torch.device) -> bool:
        """Return whether a step is marked on the device that holds its logits.

        The search for used windows and the check for shown seeds need the host.
        """
        leaves_out = isinstance(self._mark, Version3Mark) and self._mark.leaves_out_any
        return device.type == "cuda" and not self._skip_used and not leaves_out

    def _vectors(self, input_ids: torch.Tensor) -> tuple["Vectors | SeededVectors", torch.Tensor, torch.Tensor]:
        """Return the key's vectors on the device of the ids, each row's window, int64[B, h], and message, int64[B]."""
        from scanner.gpu.marks import vectors_of

        rows, width = input_ids.shape
        self._check_rows(rows, width)
        if self._on_device is None or self._on_device[1].device != input_ids.device:
            self._mark.check_messages(self._messages)
            messages = torch.from_numpy(self._messages).to(input_ids.device)
            self._on_device = vectors_of(self._mark, input_ids.device), messages
        return self._on_device[0], input_ids[:, width - self._mark.window :].contiguous(), self._on_device[1]

    def _check_rows(self, rows: int, width: int) -> None:
        if isinstance(self._mark, Version3Mark):
            self._mark.check_lease()
        if rows != len(self._messages):
            raise Refused(
                f"{rows} rows are generated but {len(self._messages)} messages were given; a message is needed for each"
                " row (repeat it for num_return_sequences, and for num_beams; Gumbel cannot mark beam search)"
            )
        if width < self._width:
            raise Refused(f"the sequences have {width} tokens, less than the prompts' {self._width}; pass input_ids")

    def _check(self, scores: torch.Tensor) -> None:
        """Refuse logits that allow no choice of a token, and tokens that the key's tokenizer could not read back."""
        if self._vocabulary is not None and scores.shape[1] > self._vocabulary:
            raise Refused(
                f"the model writes {scores.shape[1]} different tokens, but the key's tokenizer knows "
                f"{self._vocabulary}: other tokens could not be read back. Is it this model's tokenizer? If the "
                f"model's table is only padded, call model.resize_token_embeddings({self._vocabulary})"
            )
        highest = scores.amax(dim=1)  # NaN wherever a row holds NaN
        wrong = torch.nonzero(~torch.isfinite(highest))
        if len(wrong):
            row = int(wrong[0])
            raise Refused(
                f"the logits of row {row} have a largest value of {float(highest[row])}; finite ones are needed: the"
                " model overflowed (try float32 or bfloat16), or another processor forbade every token"
            )


class GreenListProcessor(_Marking):
    """Add δ to the logits of green tokens (Kirchenbauer et al., SPEC §2), before temperature, top-k and top-p.

    It works with sampling at any temperature, top-k and top-p, with greedy decoding and with beams (repeat messages and
    lengths for each beam):

    Args:
        mark: The key's green list. Its window is h.
        messages: The message of each row.
        prompt_lengths: Tokens of each row's prompt without left padding, at least 1 and at least h.
        prompt_width: Width of the left-padded prompts. None: the length of the longest prompt.
        delta: δ, in logits, more than 0.
        skip_used_windows: Leave a window that this completion has used before unmarked (SPEC §2, option).
        key_messages: M, how many messages the key has. None: not checked.
        vocabulary: How many tokens the key's tokenizer knows. None: not checked.

    Raises:
        Refused: arguments that do not fit each other or the key. When called: a batch of another size, logits for
            more tokens than `vocabulary`, or logits that are NaN or infinite.
    """

    def __init__(
        self,
        mark: GreenList | Version3GreenList,
        messages: Sequence[int],
        prompt_lengths: Sequence[int],
        prompt_width: int | None = None,
        *,
        delta: float,
        skip_used_windows: bool = False,
        key_messages: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        super().__init__(mark, messages, prompt_lengths, prompt_width, skip_used_windows, key_messages, vocabulary)
        check_delta(delta)
        self._green, self._delta = mark, delta

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return logits [B, |V|] with δ added to the green tokens of each marked row. `scores` is left unchanged."""
        if self._stays_on(scores.device):
            self._check(scores)
            return scores + self._delta * self._green_on_device(input_ids, scores).to(scores)  # type: ignore[return-value]
        rows, nonces = self._nonces(input_ids)
        self._check(scores)
        green = self._green.green(nonces, self._messages[rows], scores.shape[1])
        bias = torch.zeros_like(scores)
        bias[torch.from_numpy(rows)] = self._delta * torch.from_numpy(green).to(scores)
        return scores + bias  # type: ignore[return-value]

    def _green_on_device(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        from scanner.gpu.marks import rule_of

        vectors, windows, messages = self._vectors(input_ids)
        return vectors.green(windows, messages, scores > -torch.inf, rule_of(self._green))


class GumbelProcessor(_Marking):
    """Choose the token of smallest −ln(r)/p (Aaronson et al., SPEC §2), where p is the distribution without the mark.

    Temperature, top-k and top-p are set here, not in `generate`. Call `generate` with `do_sample=False`. With sampling
    it gives the same tokens, because one token has score 0 and all others −∞. A row that is not marked at a step
    (skip_used_windows) is sampled from p with this processor's own generator.

    Args:
        mark: The key's Gumbel watermark. Its window is h.
        messages, prompt_lengths, prompt_width, skip_used_windows, key_messages, vocabulary: As for GreenListProcessor.
        temperature: Divides the logits, more than 0 (as it nears 0 the text becomes greedy and carries no mark).
        top_k: Keep the k most probable tokens. 0 keeps all.
        top_p: Keep the most probable tokens that add up to this much, more than 0. 1 keeps all.
        seed: For the tokens that are sampled without the mark.

    Raises:
        Refused: arguments that do not fit each other or the key. When called: everything that GreenListProcessor
            refuses, and beam search.
    """

    def __init__(
        self,
        mark: Gumbel | Version3Gumbel,
        messages: Sequence[int],
        prompt_lengths: Sequence[int],
        prompt_width: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        skip_used_windows: bool = False,
        key_messages: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        super().__init__(mark, messages, prompt_lengths, prompt_width, skip_used_windows, key_messages, vocabulary)
        check_sampling(temperature, top_k, top_p)
        self._gumbel, self._temperature, self._top_k, self._top_p = mark, temperature, top_k, top_p
        self._random = np.random.default_rng(seed)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return scores [B, |V|]: 0 for the token chosen in each row, −∞ for all others. `scores` is left unchanged."""
        self._check_rows(*input_ids.shape)
        self._check(scores)
        self._refuse_beams(input_ids, scores)
        if self._stays_on(scores.device):
            token = self._choose_on_device(input_ids, scores)[:, None]
        else:
            rows, nonces = self._nonces(input_ids)
            chosen = self._choose(scores.float().cpu().numpy(), dict(zip(rows.tolist(), nonces, strict=True)))
            token = torch.from_numpy(chosen).to(scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)  # type: ignore[return-value]

    def _choose_on_device(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        from scanner.gpu.vectors import weights

        vectors, windows, messages = self._vectors(input_ids)
        return vectors.choose(windows, messages, weights(scores, self._temperature, self._top_k, self._top_p))

    def _choose(self, logits: npt.NDArray[np.float32], nonces: dict[int, Any]) -> _Ids:
        """Choose the token of each row: int64[B]. Rows without a nonce are sampled.

        It goes row by row, because one row fits the cache.
        """
        chosen = np.empty(len(logits), np.int64)
        for row, of_row in enumerate(logits):
            weights = sampling_weights(of_row, self._temperature, self._top_k, self._top_p)
            if row in nonces:
                chosen[row] = self._gumbel.choose(nonces[row], int(self._messages[row]), weights)
            else:
                chosen[row] = self._random.choice(len(weights), p=weights / weights.sum())
        return chosen

    def _refuse_beams(self, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        """Refuse beam search where it can be noticed: the first scores are log-probabilities, and rows begin equal."""
        if input_ids.shape[1] != self._width or not (input_ids[1:] == input_ids[:-1]).all(dim=1).any():
            return
        if scores.float().logsumexp(dim=1).abs().max() < _LOG_PROBABILITIES:
            raise Refused(
                "the first rows are equal and their scores are log-probabilities, as in beam search: it compares whole"
                " sequences, while the Gumbel watermark decides each token; call generate with num_beams=1"
            )


def check_prompts(lengths: Sequence[int], window: int, new_tokens: int = 0, positions: int | None = None) -> None:
    """Refuse prompts that are empty, too long for the model, or shorter than the window (first steps stay unmarked).

    Raises:
        Refused: the message names the row, its length and the required length.
    """
    for row, length in enumerate(lengths):
        if length < 1:
            raise Refused(f"prompt {row} (of 0 to {len(lengths) - 1}) has no tokens; leave empty prompts out")
        if length < window:
            raise Refused(
                f"prompt {row} (of 0 to {len(lengths) - 1}) has {length} tokens, fewer than the window of {window}: "
                "its first steps could not be marked; lengthen it, or use a key with a smaller window"
            )
    longest = max(lengths, default=0)
    if positions is not None and longest + new_tokens > positions:
        raise Refused(
            f"prompt {lengths.index(longest)} (of 0 to {len(lengths) - 1}) has {longest} tokens, and these and"
            f" max_new_tokens = {new_tokens} do not fit the model's {positions} positions; shorten one of them"
        )


def check_delta(delta: float) -> None:
    """Refuse a bias that marks nothing.

    Raises:
        Refused: the message names the value and the allowed range.
    """
    if not 0 < delta < float("inf"):
        raise Refused(f"delta = {delta} does not mark text; a number above 0 is needed, for example 2.0")


class RowsProcessor(OneBatch):
    """Give each group of rows to its own processors.

    Args:
        groups: the places of rows, and the processors for these rows. Each row is in at most one group.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[int], LogitsProcessorList]]) -> None:
        self._groups = [(torch.tensor(list(rows)), processors) for rows, processors in groups]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return scores [B, |V|] after the processors of each row. `scores` is left unchanged."""
        out = scores.clone()
        for rows, processors in self._groups:
            at = rows.to(scores.device)
            out[at] = processors(input_ids[at], scores[at])  # type: ignore[arg-type]
        return out  # type: ignore[return-value]


class Marking(NamedTuple):
    """The processor of a format, and whether it samples itself or leaves sampling to `generate`."""

    processor: Callable[..., LogitsProcessor]
    samples: bool

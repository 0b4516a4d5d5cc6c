"""A model's view of a text: the probability of each token given those before it, batched, on the model's device."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from scanner.generation.model import LocalModel
from scanner.generation.sampling import check_sampling, sampling_weights

BATCH_TOKENS = 2048
"""Tokens that go through the model at a time, padding included."""

LONGEST = 2048
"""Tokens that the model sees at a time. A longer text is cut, and each part sees half as many tokens before it."""

ROWS = 128
"""Rows of logits that are looked at together."""


def token_log_probabilities(
    model: LocalModel,
    texts: Sequence[ArrayLike],
    contexts: Sequence[Sequence[int]] | None = None,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> list[NDArray[np.float64]]:
    """ln p of every token of some texts, as it would be sampled with these parameters.

    Args:
        model: A local model.
        texts: Token ids of its tokenizer.
        contexts: Tokens before each text when it was written, such as the prompt in its chat template; None: unknown.
        temperature: As for marking (GumbelProcessor).
        top_k: As for marking.
        top_p: As for marking.

    Returns:
        For each text float64 of its length: −∞ for tokens that top-k or top-p leaves out, NaN for a first token without
        any context, which the model cannot judge.

    Raises:
        Refused: sampling parameters that cannot be right.
    """
    check_sampling(temperature, top_k, top_p)
    before = [()] * len(texts) if contexts is None else contexts
    whole = [np.concatenate([context, text]).astype(np.int64) for context, text in zip(before, texts, strict=True)]
    found = [np.full(len(ids), np.nan) for ids in whole]
    longest = min(LONGEST, getattr(model.model.config, "max_position_embeddings", LONGEST))
    parts = [(d, *part) for d, ids in enumerate(whole) for part in _parts(len(ids), len(before[d]), longest)]
    for batch in _batches(parts):
        rows = [whole[d][begin:end] for d, begin, _, end in batch]
        for (d, begin, first, end), logits in zip(batch, _logits(model, rows), strict=True):
            targets = whole[d][first:end]
            # the logits at a place are for the token after it
            found[d][first:end] = _of(logits[first - begin - 1 : end - begin - 1], targets, temperature, top_k, top_p)
    return [ids[len(context) :] for ids, context in zip(found, before, strict=True)]


def _parts(length: int, context: int, longest: int) -> Iterator[tuple[int, int, int]]:
    """(begin, first, end) of parts that the model sees as a whole; each gives ln p of tokens first … end−1."""
    first = max(context, 1)
    while first < length:
        begin = max(0, first - longest // 2) if length > longest else 0
        end = min(length, begin + longest)
        yield begin, first, end
        first = end


def _batches(parts: list[tuple[int, int, int, int]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """Parts of like length together, at most BATCH_TOKENS with padding, or a single one."""
    batch: list[tuple[int, int, int, int]] = []
    for part in sorted(parts, key=lambda part: part[3] - part[1]):
        if batch and (len(batch) + 1) * (part[3] - part[1]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def _logits(model: LocalModel, rows: Sequence[NDArray[np.int64]]) -> torch.Tensor:
    """Logits [B, W, |V|] of rows that are padded on the right, where no other token can see the padding."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), model.pad_id)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.from_numpy(row)
        mask[i, : len(row)] = 1
    device = model.model.device
    with torch.inference_mode():
        return model.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits  # type: ignore[no-any-return]


def _of(
    logits: torch.Tensor, targets: NDArray[np.int64], temperature: float, top_k: int, top_p: float
) -> NDArray[np.float64]:
    """ln p of one token for each row of logits."""
    out = np.empty(len(targets))
    for start in range(0, len(targets), ROWS):
        some, own = logits[start : start + ROWS].float(), targets[start : start + ROWS]
        if top_k or top_p < 1:
            weights = (sampling_weights(row, temperature, top_k, top_p) for row in some.cpu().numpy())
            with np.errstate(divide="ignore"):
                out[start : start + len(own)] = [np.log(w[v] / w.sum()) for w, v in zip(weights, own, strict=True)]
            continue
        scaled = some.double() / temperature
        at = torch.from_numpy(own).to(scaled.device)[:, None]
        out[start : start + len(own)] = (scaled.gather(1, at)[:, 0] - scaled.logsumexp(1)).cpu().numpy()
    return out

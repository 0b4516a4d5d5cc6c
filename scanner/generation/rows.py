"""Rows of a batch under processors of their own: several keys in one call of `model.generate`."""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessorList

from scanner.generation.one_batch import OneBatch


class RowsProcessor(OneBatch):
    """Gives each group of rows to its processors.

    Args:
        groups: Places of rows, and the processors of these rows; each row stands in at most one group.
    """

    def __init__(self, groups: Sequence[tuple[Sequence[int], LogitsProcessorList]]) -> None:
        self._groups = [(torch.tensor(list(rows)), processors) for rows, processors in groups]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores [B, |V|] after each row's processors; `scores` itself is not changed."""
        out = scores.clone()
        for rows, processors in self._groups:
            at = rows.to(scores.device)
            out[at] = processors(input_ids[at], scores[at])  # type: ignore[arg-type]
        return out  # type: ignore[return-value]

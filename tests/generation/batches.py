"""Batches of random ids and logits, as `generate` hands them to a processor."""

import numpy as np
import torch

from tests.generation.conftest import VOCABULARY

SECRET = bytes(range(32))
SAMPLING = [(1.0, 0, 1.0), (0.8, 0, 0.95), (1.3, 7, 1.0), (0.7, 20, 0.6)]
LENGTHS = [9, 5, 6, 4]  # tokens of each prompt; all four are padded to 9


def batch(seed: int, extra: int = 0) -> tuple[torch.Tensor, list[list[int]], torch.Tensor]:
    """Left-padded ids with `extra` generated tokens, each row's own tokens, and logits."""
    random = np.random.default_rng(seed)
    ids = random.integers(3, VOCABULARY, (len(LENGTHS), max(LENGTHS) + extra))
    own = [row[max(LENGTHS) - length :].tolist() for row, length in zip(ids, LENGTHS, strict=True)]
    for row, length in zip(ids, LENGTHS, strict=True):
        row[: max(LENGTHS) - length] = 0
    logits = torch.from_numpy(random.normal(0, 2, (len(LENGTHS), VOCABULARY)).astype(np.float32))
    return torch.from_numpy(ids), own, logits

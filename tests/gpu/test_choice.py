"""Gumbel's choice in torch against that of the CPU: the same tokens are left, the same one is chosen."""

import numpy as np
import pytest
import torch

from scanner.gpu.vectors import choose, minus_ln_r, weights
from scanner.watermark import cheapest, cut
from scanner.watermark import minus_ln_r as cpu_minus_ln_r

SAMPLING = [(1.0, 0, 1.0), (0.8, 0, 0.95), (1.3, 7, 1.0), (0.7, 20, 0.6), (1.0, 3, 1e-9), (0.1, 0, 0.999999)]


def logits(seed: int) -> np.ndarray:
    """Some rows with many ties, one with forbidden tokens."""
    generator = np.random.default_rng(seed)
    own = generator.normal(0, 3, (6, 500)).astype(np.float32)
    own[1] = own[1].round()
    own[2] = 0
    own[3, ::2] = -np.inf
    return own


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SAMPLING)
def test_the_same_tokens_are_left(temperature, top_k, top_p):
    for seed in range(10):
        found = weights(torch.from_numpy(logits(seed)), temperature, top_k, top_p).numpy()
        for row, own in zip(found, logits(seed), strict=True):
            wanted = np.exp((own - own.max()).astype(np.float64) / temperature)
            cut(wanted, top_k, top_p)
            np.testing.assert_allclose(row, wanted, rtol=1e-14)


def test_the_same_token_is_chosen():
    generator = np.random.default_rng(2)
    for seed in range(20):
        draws = generator.integers(0, 2**32, (6, 500), dtype=np.uint32)
        draws[4, 100:110] = 2**32 - 1  # ties go to the smallest id
        w = weights(torch.from_numpy(logits(seed)), 1.0, 50, 0.95)
        found = choose(torch.from_numpy(draws.view(np.int32)), w)
        for row in range(6):
            token, _ = cheapest(draws[row], w[row].numpy(), 0, -1, np.inf)
            assert found[row] == token


def test_the_cost_is_exact_near_one():
    edges = np.array([0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1], np.uint32)
    some = np.concatenate([edges, np.random.default_rng(3).integers(0, 2**32, 10_000, dtype=np.uint32)])
    found = minus_ln_r(torch.from_numpy(some.view(np.int32))).numpy()
    np.testing.assert_allclose(found, cpu_minus_ln_r(some), rtol=1e-14)

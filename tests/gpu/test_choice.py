"""Gumbel's choice in torch against the CPU's: the same tokens are left, and the same one is chosen."""

import numpy as np
import pytest
import torch

from scanner.gpu.vectors import RowSampling, choose, minus_ln_r, weights, weights_of_rows
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


def test_rows_are_sampled_each_in_its_own_way():
    for seed in range(10):
        own = torch.from_numpy(logits(seed))
        temperature, top_k, top_p = (torch.tensor(c, dtype=torch.float64) for c in zip(*SAMPLING, strict=True))
        how = RowSampling(temperature, top_p, torch.zeros_like(top_p), top_k.long(), True)
        found = weights_of_rows(own, how)
        for row, one in enumerate(SAMPLING):
            assert torch.equal(found[row], weights(own[row : row + 1], *one)[0])


def test_min_p_leaves_out_what_is_less_likely_by_so_much():
    own = torch.from_numpy(logits(1))
    least = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0, 0.01], dtype=torch.float64)
    one = torch.ones(6, dtype=torch.float64)
    found = weights_of_rows(own, RowSampling(one, one, least, torch.zeros(6, dtype=torch.int64), False))
    whole = weights(own, 1.0, 0, 1.0)
    assert torch.equal(found, torch.where(whole >= least[:, None], whole, 0.0))
    assert ((found > 0).sum(dim=1) >= 1).all()


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

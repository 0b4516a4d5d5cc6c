"""torch's CPU generator, with torch as the oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.kernel import kernel
from scanner.watermark.stacks.mersenne_twister import (
    bits,
    first_of_permutation,
    first_words,
    is_among_first,
    permutation,
    product_mod,
    word_at,
)

SEEDS = [0, 1, 17, 2**31, 2**32 - 1]
NUMBERS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 2, 2**64 - 1])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_permutations_and_bits_are_torchs(seed):
    for size in (2, 5, 623, 1000, 49152):
        wanted = torch.randperm(size, generator=generator(seed)).tolist()
        assert permutation(seed, size).tolist() == wanted, size
    assert permutation(seed + 2**32, 1000).tolist() == permutation(seed, 1000).tolist()
    assert bits(seed, 2000).tolist() == torch.randint(0, 2, (2000,), generator=generator(seed)).tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_words_one_by_one_and_together(seed):
    words = np.empty(1500, np.uint32)
    first_words(np.uint32(seed), words)
    assert [int(word_at(np.uint32(seed), i)) for i in (0, 623, 624, 1499)] == words[[0, 623, 624, 1499]].tolist()


def test_who_is_among_the_first_of_a_permutation_is_followed_without_writing_it_down():
    for size, first in ((1000, 250), (700, 699), (50, 1)):
        identity, out = np.arange(size, dtype=np.int32), np.empty(first, np.int32)
        for seed in range(5):
            first_of_permutation(np.uint32(seed), first, identity, out)
            assert (identity == np.arange(size)).all()
            assert out.tolist() == permutation(seed, size)[:first].tolist()
            followed = {value for value in range(size) if is_among_first(np.uint32(seed), value, size, first)}
            assert followed == set(out.tolist())


@kernel
def _product(a: np.uint64, b: np.uint64, plus: np.uint64) -> np.uint64:
    return product_mod(a, b, plus)


@given(a=NUMBERS, b=NUMBERS, plus=NUMBERS)
def test_products_mod_2_to_the_64_less_1(a, b, plus):
    assert int(_product(np.uint64(a), np.uint64(b), np.uint64(plus))) == (a * b + plus) % (2**64 - 1)

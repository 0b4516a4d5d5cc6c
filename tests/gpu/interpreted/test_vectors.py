"""Secret vectors from windows, on the interpreted device, against the plain reference."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from scanner.gpu.marks import rule_of
from scanner.gpu.vectors import PlainVectors, SeededVectors, Vectors
from tests import reference
from tests.gpu import seeded
from tests.gpu.interpreted.sides import CPU
from tests.watermark.pairs import greenlist, gumbel

STARTS = [0, 31, 8191, 2**31 - 2]
TOKENS = 530  # more than one program of the kernel computes
BOTH = pytest.mark.parametrize("kind", [Vectors, PlainVectors])


def rows(window: int) -> torch.Tensor:
    ids = np.random.default_rng(window).integers(0, 2**32, (len(STARTS), window))
    return torch.from_numpy(ids.astype(np.int64))


@BOTH
@pytest.mark.parametrize("window", [0, 1, 4, 5, 16])
def test_draws(window, kind):
    pair, windows = gumbel(window), rows(window)
    keys = pair.fast.sub_keys
    found = kind(keys.chacha, keys.sip, CPU).draws(windows, torch.tensor(STARTS), 300).numpy().view(np.uint32)
    for row, start in enumerate(STARTS):
        nonce = reference.window_nonce(pair.plain.keys, windows[row].tolist())
        wanted = [reference.draw(pair.plain.keys, nonce, start + v) for v in range(300)]
        assert found[row].tolist() == wanted


@BOTH
@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(3, 8), Fraction(1, 2), Fraction(77, 256)], ids=str)
def test_green_tokens(gamma, kind):
    pair, windows = greenlist(3, gamma), rows(3)
    keys = pair.fast.sub_keys
    vectors = kind(keys.chacha, keys.sip, CPU)
    wanted = torch.ones((len(STARTS), 1100), dtype=torch.bool)
    found = vectors.green(windows, torch.tensor(STARTS), wanted, rule_of(pair.fast))
    for row, start in enumerate(STARTS):
        nonce = reference.window_nonce(pair.plain.keys, windows[row].tolist())
        wanted = [reference.is_green(pair.plain.keys, nonce, start + v, gamma) for v in range(1100)]
        assert found[row].bool().tolist() == wanted


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize(("width", "seeds"), [(0, 28), (1, 4), (4, 24)])
def test_draws_of_version_3(width, seeds, groups):
    if width or not groups:
        seeded.check_draws(SeededVectors, groups, width, seeds, TOKENS)


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("gamma", seeded.RULES, ids=str)
def test_green_tokens_of_version_3(gamma, groups):
    seeded.check_green(SeededVectors, gamma, groups, TOKENS)


@pytest.mark.parametrize("groups", [None, 40])
def test_the_chosen_token_of_version_3(groups):
    seeded.check_choice(SeededVectors, groups, TOKENS)


def test_known_answers_of_version_3():
    assert seeded.check_known_answers(SeededVectors, 5_000) == 48

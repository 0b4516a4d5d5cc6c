"""Secret vectors from windows, on the interpreted device, against the plain reference."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from scanner.gpu.marks import rule_of
from scanner.gpu.vectors import Vectors
from tests import reference
from tests.gpu.interpreted.sides import CPU
from tests.watermark.pairs import greenlist, gumbel

STARTS = [0, 31, 8191, 2**31 - 2]


def rows(window: int) -> torch.Tensor:
    ids = np.random.default_rng(window).integers(0, 2**32, (len(STARTS), window))
    return torch.from_numpy(ids.astype(np.int64))


@pytest.mark.parametrize("window", [0, 1, 4, 5, 16])
def test_draws(window):
    pair, windows = gumbel(window), rows(window)
    keys = pair.fast.sub_keys
    found = Vectors(keys.chacha, keys.sip, CPU).draws(windows, torch.tensor(STARTS), 300).numpy().view(np.uint32)
    for row, start in enumerate(STARTS):
        nonce = reference.window_nonce(pair.plain.keys, windows[row].tolist())
        wanted = [reference.draw(pair.plain.keys, nonce, start + v) for v in range(300)]
        assert found[row].tolist() == wanted


@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(3, 8), Fraction(1, 2), Fraction(77, 256)], ids=str)
def test_green_tokens(gamma):
    pair, windows = greenlist(3, gamma), rows(3)
    keys = pair.fast.sub_keys
    vectors = Vectors(keys.chacha, keys.sip, CPU)
    found = vectors.green(windows, torch.tensor(STARTS), 1100, rule_of(pair.fast))
    for row, start in enumerate(STARTS):
        nonce = reference.window_nonce(pair.plain.keys, windows[row].tolist())
        wanted = [reference.is_green(pair.plain.keys, nonce, start + v, gamma) for v in range(1100)]
        assert found[row].bool().tolist() == wanted

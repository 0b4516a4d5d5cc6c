"""Marking a step on the device that holds the logits, here the interpreted one, against marking it on the CPU."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from scanner.generation import GreenListProcessor, GumbelProcessor
from scanner.watermark import GreenList, Gumbel

SECRET = bytes(range(32))
MESSAGES, LENGTHS, VOCABULARY = [0, 17, 2**31 - 2], [5, 3, 4], 700


@pytest.fixture
def step(monkeypatch):
    """Ids, logits, and a switch that has the CPU's tensors marked as a device's would be."""
    random = np.random.default_rng(4)
    ids = torch.from_numpy(random.integers(0, VOCABULARY, (3, 7)))
    logits = torch.from_numpy(random.normal(0, 3, (3, VOCABULARY)).astype(np.float32))

    def mark(processor):
        host = processor(ids, logits)
        monkeypatch.setattr(processor, "_stays_on", lambda device: True)
        monkeypatch.setattr(processor, "_nonces", None)  # the host's path is not taken
        return host, processor(ids, logits), processor(ids, logits)

    return mark


@pytest.mark.parametrize("window", [0, 3])
def test_green_list(step, window):
    mark = GreenList(SECRET, window, Fraction(3, 8))
    host, device, again = step(GreenListProcessor(mark, MESSAGES, LENGTHS, delta=2.5))
    assert torch.equal(host, device)
    assert torch.equal(host, again)


@pytest.mark.parametrize("how", [{}, {"temperature": 0.7, "top_k": 40, "top_p": 0.9}])
def test_gumbel(step, how):
    host, device, again = step(GumbelProcessor(Gumbel(SECRET, 2), MESSAGES, LENGTHS, **how))
    assert torch.equal(host, device)
    assert torch.equal(host, again)

"""Marking a step on the device that holds the logits, here the interpreted one, against marking it on the CPU."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from scanner.generation import GreenListProcessor, GumbelProcessor
from scanner.watermark import GreenList, Gumbel
from scanner.watermark.native.version3_marks import Version3GreenList, Version3Gumbel

SECRET = bytes(range(32))
MESSAGES, LENGTHS, VOCABULARY = [0, 17, 2**31 - 2], [5, 3, 4], 700


@pytest.fixture
def step(monkeypatch):
    """A function that marks one step on the host, then twice on a device's path, there with the CPU's tensors."""
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


@pytest.mark.parametrize("groups", [None, 50_000])
def test_version_3(step, groups):
    green, gumbel = Version3GreenList(SECRET, 3, Fraction(3, 8), groups), Version3Gumbel(SECRET, 2, groups)
    processors = [GreenListProcessor(green, MESSAGES, LENGTHS, delta=2.5), GumbelProcessor(gumbel, MESSAGES, LENGTHS)]
    for processor in processors:
        host, device, again = step(processor)
        assert torch.equal(host, device)
        assert torch.equal(host, again)


def test_a_message_that_a_key_of_version_3_does_not_have(step):
    with pytest.raises(ValueError, match="message 2147483646 is out of range"):
        step(GumbelProcessor(Version3Gumbel(SECRET, 2, 40), MESSAGES, LENGTHS))
    processor = GumbelProcessor(Version3Gumbel(SECRET, 2, 40), MESSAGES, LENGTHS)
    with pytest.raises(ValueError, match="message 2147483646 is out of range"):
        processor._choose_on_device(torch.zeros((3, 7), dtype=torch.int64), torch.zeros((3, VOCABULARY)))

"""Secret vectors from windows, on the interpreted device, against the plain reference."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from scanner.gpu.marks import rule_of
from scanner.gpu.vectors import PlainVectors, Vectors
from scanner.watermark.native import secret
from tests import reference, reference2
from tests.gpu.interpreted.sides import CPU
from tests.watermark.pairs import greenlist, gumbel

STARTS = [0, 31, 8191, 2**31 - 2]
MESSAGES = [0, 31, 1599, 777]  # messages of a key with 40 groups
SECRET = bytes(range(32))
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
    found = vectors.green(windows, torch.tensor(STARTS), 1100, rule_of(pair.fast))
    for row, start in enumerate(STARTS):
        nonce = reference.window_nonce(pair.plain.keys, windows[row].tolist())
        wanted = [reference.is_green(pair.plain.keys, nonce, start + v, gamma) for v in range(1100)]
        assert found[row].bool().tolist() == wanted


def vectors_of(kind, plain):
    keys = secret.derive(SECRET, plain.label, 2)
    return kind(keys.chacha, keys.sip, CPU)


def wanted_of(plain, windows, tokens):
    """Row, nonce and the entries of all tokens, for each row, by the reference."""
    for row, message in enumerate(MESSAGES):
        nonce = reference.window_nonce(plain.keys, windows[row].tolist())
        number = plain.number(message, plain.groups is not None and reference2.is_group_step(nonce))
        yield row, nonce, [reference2.entry(token, number) for token in range(tokens)]


@BOTH
@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("window", [1, 4])
def test_draws_of_version_2(window, groups, kind):
    plain = reference2.Method("gumbel", SECRET, window, None, groups)
    all_of_them = torch.ones((len(MESSAGES), TOKENS), dtype=torch.bool)
    found = vectors_of(kind, plain).draw_runs(rows(window), torch.tensor(MESSAGES), groups, all_of_them)
    for row, nonce, entries in wanted_of(plain, rows(window), TOKENS):
        wanted = [reference2.stream_word(plain.keys, nonce, 1, 0, entry) for entry in entries]
        assert found[row].numpy().view(np.uint32).tolist() == wanted


@BOTH
@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("gamma", [Fraction(1, 4), Fraction(3, 8), Fraction(1, 2), Fraction(77, 256)], ids=str)
def test_green_tokens_of_version_2(gamma, groups, kind):
    plain = reference2.Method("greenlist", SECRET, 3, gamma, groups)
    rule = rule_of(greenlist(3, gamma).fast)
    all_of_them = torch.ones((len(MESSAGES), TOKENS), dtype=torch.bool)
    found = vectors_of(kind, plain).green_runs(rows(3), torch.tensor(MESSAGES), groups, rule, all_of_them)
    for row, nonce, entries in wanted_of(plain, rows(3), TOKENS):
        wanted = [reference2.is_green(plain.keys, nonce, entry, gamma) for entry in entries]
        assert found[row].bool().tolist() == wanted

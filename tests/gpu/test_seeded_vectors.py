"""Vectors of version 3 in torch alone, which servers without Triton mark by, against reference and known answers."""

import numpy as np
import pytest
import torch

from scanner.gpu.vectors import PlainSeededVectors, choose
from tests import reference3
from tests.gpu import seeded


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize(("width", "seeds"), [(1, 4), (4, 24)])
def test_draws(width, seeds, groups):
    seeded.check_draws(PlainSeededVectors, groups, width, seeds, 100)


def test_a_window_of_no_tokens():
    seeded.check_draws(PlainSeededVectors, None, 0, 28, 50)


@pytest.mark.parametrize("groups", [None, 40])
@pytest.mark.parametrize("gamma", seeded.RULES, ids=str)
def test_green_tokens(gamma, groups):
    seeded.check_green(PlainSeededVectors, gamma, groups, 100)


@pytest.mark.parametrize("groups", [None, 40])
def test_the_chosen_token(groups):
    seeded.check_choice(PlainSeededVectors, groups, 150)


def test_steps_show_no_key():
    plain = reference3.Method("gumbel", seeded.SECRET, 2, None, 40, 12, seeded.BEACON)
    windows = torch.arange(6).reshape(3, 2)
    steps = PlainSeededVectors(seeded.source(plain), seeded.CPU)._open(windows, torch.arange(3))
    assert repr(steps) == "3 steps"


def test_known_answers():
    assert seeded.check_known_answers(PlainSeededVectors, 200_000) == 56


def test_what_the_first_digits_rule_out_is_not_drawn_in_full_and_never_chosen(monkeypatch):
    """400 choices, the same as among all draws: weights of all shapes, and tokens that weigh the same."""
    plain = reference3.Method("gumbel", seeded.SECRET, 2, None, 40, 12, seeded.BEACON)
    vectors, random = PlainSeededVectors(seeded.source(plain), seeded.CPU), np.random.default_rng(8)
    drawn, draws_of = [], vectors._draws

    def watched(steps, wanted, digits, words):
        if words:
            drawn.append(wanted)
        return draws_of(steps, wanted, digits, words)

    for power in (0.0, 0.1, 1.0, 8.0):
        windows = torch.from_numpy(random.integers(0, 50_000, (100, 2)))
        messages = torch.from_numpy(random.integers(0, 1600, 100))
        weights = torch.from_numpy(random.exponential(1.0, (100, 300)) ** power)
        weights[:, ::7] = 0.0
        wanted = choose(vectors.draws(windows, messages, weights > 0), weights)
        monkeypatch.setattr(vectors, "_draws", watched)
        assert torch.equal(vectors.choose(windows, messages, weights), wanted)
        monkeypatch.undo()
    in_full = torch.cat(drawn).sum(dim=1)
    assert in_full.min() >= 1
    assert in_full.double().mean() < 20  # of 257 a row


def test_a_row_in_which_nothing_can_be_written_gets_some_token():
    plain = reference3.Method("gumbel", seeded.SECRET, 2, None, 40, 12, seeded.BEACON)
    vectors = PlainSeededVectors(seeded.source(plain), seeded.CPU)
    found = vectors.choose(seeded.windows(2), torch.tensor(seeded.MESSAGES), torch.zeros((4, 30)).double())
    assert ((found >= 0) & (found < 30)).all()


def test_its_repr_shows_no_secret():
    plain = reference3.Method("gumbel", seeded.SECRET, 2, None, 40, 12, seeded.BEACON)
    source = seeded.source(plain)
    shown = repr(source) + repr(PlainSeededVectors(source, seeded.CPU))
    assert shown == "SeedSource(2^12 seeds)PlainSeededVectors(SeedSource(2^12 seeds))"
    assert not any(str(word) in shown for word in source.seed_key)

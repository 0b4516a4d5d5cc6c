"""Surprise of characters from a model's tokens, and levels of a key's tokens from that, against plain sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.level_laws import LEVELS, STEPS_A_NAT, levels_of, of_characters


@st.composite
def tokenised(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Where tokens begin, several at one character included, and how many characters there are."""
    characters = draw(st.integers(1, 30))
    begins = sorted(draw(st.lists(st.integers(0, characters), max_size=12)))  # a few tokenizers have tokens of nothing
    return np.array([0, *begins], np.int64), characters


def plain_range(begins: np.ndarray, i: int, characters: int) -> range:
    end = begins[i + 1] if i + 1 < len(begins) else characters
    return range(begins[i], max(end, begins[i] + 1))


@given(tokenised(), st.integers(0, 2**32))
def test_a_token_s_surprise_is_shared_out_over_its_characters(text: tuple[np.ndarray, int], seed: int) -> None:
    begins, characters = text
    surprise = np.random.default_rng(seed).exponential(1.0, len(begins))
    shared = [0.0] * characters
    for i, of_token in enumerate(surprise):
        of_its = plain_range(begins, i, characters)
        for c in of_its if begins[i] < characters else ():
            shared[c] += of_token / len(of_its)
    steps = of_characters(surprise, begins, characters)
    for c in range(characters):  # rounding of running sums: half a step, however many characters
        if max(shared) * STEPS_A_NAT < 250:
            assert abs(int(steps[: c + 1].sum()) - STEPS_A_NAT * math.fsum(shared[: c + 1])) <= 0.5 + 1e-6


@given(tokenised(), st.integers(0, 2**32))
def test_levels_follow_from_the_chance_of_a_token_s_characters(text: tuple[np.ndarray, int], seed: int) -> None:
    begins, characters = text
    steps = np.random.default_rng(seed).integers(0, 20, characters).astype(np.uint8)
    for i, level in enumerate(levels_of(steps, begins).tolist()):
        p = math.exp(-sum(int(steps[c]) for c in plain_range(begins, i, characters) if c < characters) / STEPS_A_NAT)
        assert level == pytest.approx(LEVELS * (1 - math.sqrt(p)), abs=0.5 + 1e-9)


def test_what_a_model_holds_to_be_impossible_spoils_nothing_after_it() -> None:
    begins = np.array([0, 3, 5, 6])
    steps = of_characters(np.array([1.0, np.inf, np.inf, 2.0]), begins, 10)
    assert steps[3:6].tolist() == [255] * 3
    assert steps[:3].sum() == STEPS_A_NAT
    assert steps[6:].sum() == 2 * STEPS_A_NAT


def test_what_stands_after_a_reading_counts_nothing() -> None:
    begins = np.array([0, 2, 4, 8])
    assert levels_of(np.full(4, 200, np.uint8), begins).tolist() == [LEVELS, LEVELS, 0, 0]


def test_what_is_foregone_counts_nothing_and_what_nobody_expects_counts_most() -> None:
    begins = np.array([0, 4, 9])
    steps = of_characters(np.array([0.0, 1e-3, 40.0]), begins, 12)
    assert levels_of(steps, begins).tolist() == [0, 0, LEVELS]
    assert of_characters(np.zeros(0), np.zeros(0, np.int64), 0).tolist() == []

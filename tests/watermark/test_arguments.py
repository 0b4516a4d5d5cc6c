"""Arguments that cannot be right are refused in words, before any number comes out."""

from fractions import Fraction

import pytest

from scanner.watermark import GreenList, Gumbel, batch_tokens, scored_positions

SECRET = bytes(range(32))
TOKENS = batch_tokens([[1, 2, 3]])
MARKS = [GreenList(SECRET, 1, Fraction(1, 4)), Gumbel(SECRET, 1)]


@pytest.mark.parametrize("mark", MARKS, ids=["greenlist", "gumbel"])
def test_messages_out_of_range(mark):
    positions = scored_positions(TOKENS, 1, "ngram")
    with pytest.raises(ValueError, match="at least 1"):
        mark.best_two(TOKENS, positions, 0)
    with pytest.raises(ValueError, match="message -1"):
        mark.score(TOKENS, positions, -1)


@pytest.mark.parametrize("gamma", [0.25, Fraction(1, 3), Fraction(1, 512), Fraction(0), Fraction(1), Fraction(5, 4)])
def test_gamma(gamma):
    with pytest.raises(ValueError, match="gamma"):
        GreenList(SECRET, 1, gamma)


@pytest.mark.parametrize("window", [-1, 17])
def test_window(window):
    with pytest.raises(ValueError, match="0 to 16"):
        Gumbel(SECRET, window)


@pytest.mark.parametrize("size", [0, 15, 65])
def test_secret(size):
    with pytest.raises(ValueError, match="16 to 64 bytes"):
        Gumbel(bytes(size), 4)


def test_dedup():
    with pytest.raises(ValueError, match="ngram, context, none"):
        scored_positions(TOKENS, 1, "token")

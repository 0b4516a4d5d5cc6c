"""Comparison of numbers that were computed in two ways."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.detection.rounding import ROUNDING, nearly_equal


@pytest.mark.seconds
@given(st.floats(-1e4, 1e4))
def test_an_infinite_number_is_like_itself_and_no_other(other):
    """An edited row may hold −∞ as log10 p, next to which any number differs by no more than a share of it."""
    for endless in (math.inf, -math.inf, math.nan):
        assert not nearly_equal(endless, other)
        assert not nearly_equal(other, endless)
    assert nearly_equal(-math.inf, -math.inf)
    assert not nearly_equal(-math.inf, math.inf)


@pytest.mark.parametrize("number", [-299.0, -8.0, 0.0, 1.0, 1e6])
def test_rounding_is_allowed_and_no_more(number):
    size = max(1.0, abs(number))
    assert nearly_equal(number, number + 0.5 * ROUNDING * size)
    assert not nearly_equal(number, number + 3.0 * ROUNDING * size)

"""The Z-test's p-value against mpmath's normal tail, in both tails and far below what a double can hold."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from scanner.watermark import log10_z
from tests.watermark.mpmath_oracle import assert_right

SCORES = [-40.0, -9.0, -3.0, -1e-3, 0.0, 1e-3, 0.5, 2.0, 5.9, 6.1, 20.0, 29.999, 30.0, 37.0, 60.0, 1e4]


@pytest.mark.parametrize("scored", [1, 256, 100_000])
@pytest.mark.parametrize(("mean", "variance"), [(0.25, 0.1875), (1.0, 1.0)])
def test_against_mpmath(scored, mean, variance):
    scores = [scored * mean + z * math.sqrt(scored * variance) for z in SCORES]
    for got, score in zip(log10_z(scores, scored, mean, variance), scores, strict=True):
        with mpmath.workdps(50):
            # Z from the doubles that were given, so that only the tail is compared
            z = (mpmath.mpf(score) - scored * mpmath.mpf(mean)) / mpmath.sqrt(scored * mpmath.mpf(variance))
            assert_right(got, mpmath.log10(mpmath.erfc(z / mpmath.sqrt(2)) / 2))


def test_never_underflows_and_falls():
    log10_p = log10_z(np.linspace(0, 1e6, 5000), 1000, 1.0, 1.0)
    assert np.isfinite(log10_p).all()
    assert (np.diff(log10_p) <= 0).all()
    assert log10_p[-1] < -1e8


def test_no_positions_give_one():
    assert log10_z([0, 5], [0, 0], 1.0, 1.0).tolist() == [0, 0]
    assert log10_z(np.zeros((2, 3)), 4, float(Fraction(1, 4)), 0.1875).shape == (2, 3)

"""1 − (1 − p)^N in log space (SPEC §3, messages and keys), against mpmath at 50 digits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.watermark.pvalues import log10_any_of
from tests import reference
from tests.watermark.strategies import many

LOG10_PS = [
    -300_000,
    -5000,
    -324,
    -300,
    -100.5,
    -20,
    -16,
    -12,
    -9.3,
    -6,
    -3,
    -1,
    -0.30103,
    -1e-3,
    -1e-9,
    -1e-16,
    -1e-300,
]
TESTS = [1, 2, 3, 100, 1000, 100_000, 10**6, 10**9, 10**12]


def test_looks_together_pass_at_most_at_the_rate():
    """Two looks of half of the rate pass at 1 − (1 − α)^(1/2) each, and together at α at most where they share draws.

    Green tokens of A + B and of B + C, of 40 each. The chances of the looks alone add up to more than α.
    """
    alpha, counts = 0.05, np.arange(21)
    limit = -np.expm1(np.log1p(-alpha) / 2)
    assert 10.0 ** log10_any_of(np.log10(limit), 1, 2) == pytest.approx(alpha)
    assert 2 * limit == pytest.approx(0.0506, abs=1e-4)
    some = np.array([math.comb(20, k) for k in counts]) / 2.0**20
    for least in range(20, 32):
        tail = np.array([some[max(least - b, 0) :].sum() for b in counts])
        alone, together = some @ tail, some @ (1 - (1 - tail) ** 2)
        assert together <= 1 - (1 - alone) ** 2 <= 2 * alone


def assert_right(log10_p: float, tests: int, got: float) -> None:
    wanted = reference.log10_any_of(log10_p, tests)
    assert got <= 0
    assert abs(mpmath.mpf(float(got)) - wanted) <= max(1e-9 * abs(wanted), mpmath.mpf("1e-300")), (got, float(wanted))


@pytest.mark.parametrize("tests", TESTS)
def test_from_one_to_the_smallest_p(tests):
    for log10_p, got in zip(LOG10_PS, log10_any_of(LOG10_PS, tests).tolist(), strict=True):
        assert_right(log10_p, tests, got)


@many
@given(st.one_of(st.floats(-400, 0), st.floats(-300_000, -300), st.floats(-1, 0)), st.integers(1, 10**12))
def test_anywhere(log10_p, tests):
    assert_right(log10_p, tests, log10_any_of([log10_p], [tests])[0])


@many
@given(st.floats(-16, -2), st.floats(-8, 8))
def test_where_the_correction_bends(log10_p, off):
    """Around p·N = 1 neither N·p nor 1 comes close to the answer."""
    tests = max(1, round(10 ** min(12, max(0, off - log10_p))))
    assert_right(log10_p, tests, log10_any_of([log10_p], [tests])[0])


def test_certain_stays_certain():
    assert log10_any_of([0.0, 0.0], [1, 10**12]).tolist() == [0, 0]


def test_one_test_changes_nothing():
    np.testing.assert_allclose(log10_any_of(LOG10_PS, 1), LOG10_PS, rtol=1e-12)


def test_more_tests_never_make_it_smaller():
    got = np.stack([log10_any_of(LOG10_PS, tests) for tests in TESTS])
    assert (np.diff(got, axis=0) >= 0).all()
    assert (got >= np.array(LOG10_PS) * (1 + 1e-12)).all()


def test_never_more_than_bonferroni():
    for tests in TESTS:
        assert (log10_any_of(LOG10_PS, tests) <= np.minimum(0, np.array(LOG10_PS) + math.log10(tests)) + 1e-9).all()


def test_messages_then_keys_is_one_correction_of_their_product():
    one = log10_any_of(log10_any_of(LOG10_PS, 1000), 7)
    np.testing.assert_allclose(one, log10_any_of(LOG10_PS, 7000), rtol=1e-9, atol=1e-300)


def test_shapes():
    assert log10_any_of(np.full((2, 3), -5.0), [1, 2, 3]).shape == (2, 3)
    assert float(log10_any_of(-5.0, 1)) == log10_any_of([-5.0], [1])[0]

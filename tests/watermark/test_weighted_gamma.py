"""The law of two weighted gamma sums: against its series in 60 digits, its definition, and draws."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from scanner.watermark.laws import Gamma, WeightedGamma, log10_weighted_gamma
from tests.watermark.mpmath_oracle import series

SCALES = (1e-6, 0.01, 0.5, 0.9, 1.0, 1.1, 1.5, 3.0, 6.0, 16.0)


def convolution(s: float, n: int, a: float) -> mpmath.mpf:
    """∫ density of Y · P(X ≥ (s − aY)/(1 − a)): the definition; log10."""
    with mpmath.workdps(40):
        s, a = mpmath.mpf(s), mpmath.mpf(a)

        def density(y):
            return mpmath.exp(-y) * y ** (n - 1) / mpmath.factorial(n - 1)

        def both(y):
            return density(y) * mpmath.gammainc(n, (s - a * y) / (1 - a), regularized=True)

        cuts = [s / a * mpmath.mpf(i) / 16 for i in range(17)]
        return mpmath.log10(mpmath.quad(both, cuts) + mpmath.gammainc(n, s / a, regularized=True))


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("n", [1, 2, 5, 20, 100])
def test_against_the_series_in_60_digits(n):
    for a in (0.05, 0.1, 0.3, 0.49):
        for scale in SCALES:
            got, wanted = float(log10_weighted_gamma(scale * n, n, a)), series(scale * n, n, a)
            assert abs(got - wanted) <= 1e-11 * max(1, abs(wanted)), (n, a, scale)


@pytest.mark.seconds
@pytest.mark.parametrize("n", [1, 4, 12])
def test_against_the_definition(n):
    for a in (0.1, 0.6):
        for scale in (0.5, 2.5):
            got = float(log10_weighted_gamma(scale * n, n, a))
            assert got == pytest.approx(float(convolution(scale * n, n, a)), abs=1e-9), (n, a, scale)


def test_small_weights_and_long_texts():
    """Where most terms are summed, p falls with the score and stays near the normal law in its middle."""
    for n, a in ((300, 0.01), (30_000, 0.1), (1_000_000, 0.1), (5_000, 0.4999)):
        s = n * (1 + np.array([-6.0, -1, 0, 1, 3, 8, 20]) * np.sqrt(((1 - a) ** 2 + a**2) / n))
        p = log10_weighted_gamma(s, n, a)
        assert (np.diff(p) < 0).all()
        # near its middle the law is normal up to the Edgeworth correction
        z = (s - n) / np.sqrt(n * ((1 - a) ** 2 + a**2))
        assert np.abs(p - stats.norm.logsf(z) / np.log(10))[1:4].max() < 0.2 / np.sqrt(n) + 2e-3


def test_one_key_alone_and_equal_weights():
    s, n = np.array([3.0, 20.0, 80.0]), np.array([5, 20, 20])
    assert (log10_weighted_gamma(s, n, 0.0) == Gamma().log10_p(s, n)).all()
    assert (log10_weighted_gamma(s, n, 1.0) == Gamma().log10_p(s, n)).all()
    assert (log10_weighted_gamma(s, n, 0.5) == Gamma().log10_p(2 * s, 2 * n)).all()


def test_the_keys_are_exchangeable():
    for a in (0.1, 0.25, 0.4):
        assert log10_weighted_gamma(30.0, 20, a) == pytest.approx(log10_weighted_gamma(30.0, 20, 1 - a), rel=1e-12)


def test_nothing_scored_and_no_score():
    assert log10_weighted_gamma([0.0, 0.0, 1e-300, 1e-12], [0, 5, 5, 1], 0.1).tolist() == [0.0, 0.0, 0.0, 0.0]


def test_draws():
    """Two million draws at n = 5: observed against expected, five standard errors (1 in 1.7 million by chance each)."""
    rng = np.random.default_rng(7)
    draws, law = 2_000_000, WeightedGamma(0.1)
    score = 0.9 * rng.gamma(5, size=draws) + 0.1 * rng.gamma(5, size=draws)
    for s in (4.0, 8.0, 11.0, 14.0):
        p = 10 ** float(law.log10_p(s, 5))
        assert abs((score >= s).mean() - p) < 5.1 * np.sqrt(p * (1 - p) / draws), s


def test_the_moment_match_is_too_small():
    """Where a = 0.1 and n = 20, vLLM's p-value is 1.5 times too small at 1e-6, and 3.1 times at 1e-12."""
    spread = 0.9**2 + 0.1**2
    for reported, factor in ((1e-6, 1.5), (1e-12, 3.1)):
        with mpmath.workdps(30):
            s = mpmath.findroot(
                lambda s, p=reported: mpmath.log(mpmath.gammainc(20 / spread, s / spread, regularized=True) / p),
                (20.0 - 2.0 * np.log10(reported), 30.0 - 3.0 * np.log10(reported)),
                solver="secant",
            )
        true = 10 ** float(log10_weighted_gamma(float(s), 20, 0.1))
        assert true / reported == pytest.approx(factor, rel=0.04)


@pytest.mark.seconds
def test_weights_that_are_refused():
    for weight in (-0.1, 0.001, 0.9999, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"give 0, 1, or 0.01 to 0.99"):
            log10_weighted_gamma(1.0, 1, weight)

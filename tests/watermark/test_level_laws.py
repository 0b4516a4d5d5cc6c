"""Laws of sums by levels: against partial fractions in hundreds of digits, exact fractions, and simulated draws."""

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanner.watermark import log10_greenlist, log10_gumbel
from scanner.watermark.level_laws import LEVELS, log10_greenlist_levels, log10_gumbel_levels, most_added
from scanner.watermark.proof import ln_tail
from tests.watermark.mpmath_oracle import gumbel_tail

VALUES = np.arange(LEVELS + 1)
COUNTS = st.lists(st.integers(0, 9), min_size=LEVELS + 1, max_size=LEVELS + 1)


def greenlist_tail(score: int, counts: list[int], values: list[int], gamma: Fraction) -> Fraction:
    """P(Σ v·x ≥ s), token by token, in exact fractions."""
    law = {0: Fraction(1)}
    for n, v in zip(counts, values, strict=True):
        for _ in range(n):
            added = dict.fromkeys([*law, *(s + v for s in law)], Fraction(0))
            for s, p in law.items():
                added[s] += p * (1 - gamma)
                added[s + v] += p * gamma
            law = added
    return sum((p for s, p in law.items() if s >= score), Fraction(0))


def assert_never_too_small(log10_p: float, exact: mp.mpf, within: float = 1e-9) -> None:
    """The relative error of p is at least 0 and at most `within`."""
    error = (mp.mpf(log10_p) - mp.log10(exact)) * mp.ln(10)
    assert -1e-15 * abs(log10_p) * 3 <= error <= within


@pytest.mark.costly
@settings(max_examples=40)
@given(COUNTS, st.floats(0.05, 12.0))
def test_gumbel_is_that_of_partial_fractions_and_never_too_small(counts: list[int], of_mean: float) -> None:
    score = max(of_mean * float(np.dot(counts, VALUES)), 0.1)
    found = log10_gumbel_levels([score], [counts], VALUES)[0]
    with mp.workdps(250):
        if np.dot(counts, VALUES):
            assert_never_too_small(found, gumbel_tail(mp.mpf(score), counts, VALUES.tolist()))
        else:
            assert found == 0.0


@pytest.mark.costly
@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 5), min_size=LEVELS + 1, max_size=LEVELS + 1),
    st.floats(0.0, 1.0),
    st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(3, 256)]),
)
def test_greenlist_is_that_of_exact_fractions_and_never_too_small(
    counts: list[int], of_largest: float, gamma: Fraction
) -> None:
    score = int(of_largest * np.dot(counts, VALUES))
    found = log10_greenlist_levels([score], [counts], VALUES, gamma)[0]
    exact = greenlist_tail(score, counts, VALUES.tolist(), gamma)
    with mp.workdps(60):
        assert_never_too_small(found, mp.mpf(exact.numerator) / exact.denominator)


@pytest.mark.parametrize("tokens", [1, 40, 3_000, 100_000])
@pytest.mark.parametrize("level", [1, 5, 8])
def test_one_level_has_the_law_of_the_plain_sum(tokens: int, level: int) -> None:
    counts = np.zeros(LEVELS + 1)
    counts[level], counts[0] = tokens, 7
    for score in np.array([0.5, 1.01, 1.5, 3.0]) * tokens:
        plain = log10_gumbel(score, tokens)
        assert log10_gumbel_levels([level * score], [counts], VALUES)[0] == pytest.approx(plain, rel=1e-9, abs=1e-9)
        green = min(int(score), tokens)
        plain = log10_greenlist(green, tokens, Fraction(1, 4))
        found = log10_greenlist_levels([level * green], [counts], VALUES, Fraction(1, 4))[0]
        assert found == pytest.approx(plain, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("tokens", [50, 1_000, 4_000])
def test_gumbel_at_one_level_is_never_too_small(tokens: int) -> None:
    for level in (1, 3, 7):
        scores = level * (tokens + np.sqrt(tokens) * np.arange(2.0, 8.0, 0.4))
        counts = np.tile(tokens * (level == VALUES), (len(scores), 1))
        for score, log10_p in zip(scores, log10_gumbel_levels(scores, counts, VALUES), strict=True):
            with mp.workdps(50):
                exact = mp.log10(series_tail(tokens, mp.mpf(score) / level))
                assert exact <= log10_p <= exact + 1e-9


def series_tail(tokens: int, x: mp.mpf) -> mp.mpf:
    """P(a sum of exponentials of mean 1 ≥ x) = e^−x Σ x^k/k!, k below their number."""
    term = total = mp.exp(-x)
    for k in range(1, tokens):
        term *= x / k
        total += term
    return total


@pytest.mark.costly
def test_tails_fall_smoothly_however_long_the_text() -> None:
    """In a text of 20,000 tokens, between scores of p = 1 and p = 10^-5000: no digit is lost at any scale."""
    counts = np.random.default_rng(1).multinomial(20_000, np.full(LEVELS + 1, 1.0 / (LEVELS + 1)))[None]
    mean = float((counts * VALUES).sum())
    for log10_p in (
        log10_gumbel_levels(mean * np.linspace(0.9, 3.0, 200), np.repeat(counts, 200, 0), VALUES),
        log10_greenlist_levels(
            np.rint(mean / 4.0 * np.linspace(0.9, 3.0, 60)), np.repeat(counts, 60, 0), VALUES, Fraction(1, 4)
        ),
    ):
        slopes = np.diff(log10_p)
        assert (slopes <= 1e-9).all()
        assert (np.diff(slopes) <= 0.02 * np.abs(slopes[:-1]) + 1e-6).all()  # log-concave, but for whole scores
        assert log10_p[-1] < -3000.0


def long_gumbel_tail(score: float, counts: list[int], values: list[float]) -> mp.mpf:
    """The series of the law in 60 digits: exponentials of the least mean, so many of them."""
    with mp.workdps(60):
        of = [mp.mpf(v) for v in values]
        base = min(of)
        first, x = sum(counts), mp.mpf(score) / base
        tail = mp.gammainc(first, x, regularized=True)
        step = mp.exp(first * mp.log(x) - x - mp.loggamma(first + 1))
        chance = mp.exp(sum(n * mp.log(base / v) for n, v in zip(counts, of, strict=True)))
        total, of_values, k = chance * tail, [mp.mpf(0)] * len(of), 0
        term = last = total
        while term >= last or term > total * mp.mpf(10) ** -25:
            k += 1
            of_values = [(1 - base / v) * (chance + one) for v, one in zip(of, of_values, strict=True)]
            chance = sum(n * one for n, one in zip(counts, of_values, strict=True)) / k
            tail += step
            step *= x / (first + k)
            last, term = term, chance * tail
            total += term
        return total


@pytest.mark.costly
@pytest.mark.parametrize(
    ("counts", "values"),
    [
        ([2_000, 500], [1.0, 8.0]),
        ([1_500, 700], [7.0, 8.0]),
        ([300] * 8, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ([150] * 6, [0.1, 0.4, 0.8, 0.9, 3.6, 7.2]),  # of two keys that count one tenth and nine
        ([1, 4_000], [1.0, 5.0]),
    ],
)
def test_gumbel_in_long_texts_is_never_too_small(counts: list[int], values: list[float]) -> None:
    """Thousands of steps, whose rounding adds up."""
    mean = float(np.dot(counts, values))
    for of_mean in (0.97, 1.05, 1.3):
        found = log10_gumbel_levels([of_mean * mean], [counts], values)[0]
        with mp.workdps(60):
            assert_never_too_small(found, long_gumbel_tail(of_mean * mean, counts, values))


@pytest.mark.parametrize("tokens", [pytest.param(3, marks=pytest.mark.costly), 16, 60, 200, 1_000, 8_000])
def test_the_slow_path_of_proofs_agrees(tokens: int) -> None:
    """By transforms, which share nothing with the series: texts of any mixture of levels, scores of any size."""
    rng = np.random.default_rng(tokens)
    for shape in (0.3, 1.0, 5.0):
        counts = rng.multinomial(tokens, rng.dirichlet(np.full(LEVELS + 1, shape)))
        of_all = float(np.dot(counts, VALUES))
        for of_mean in (0.5, 0.9, 1.0, 1.1, 1.5, 2.5, 3.9):
            found = log10_gumbel_levels([of_mean * of_all], [counts], VALUES)[0]
            slow = ln_tail(of_mean * of_all, counts.tolist(), None) / np.log(10.0)
            assert found == pytest.approx(slow, rel=1e-9, abs=1e-9)
            green = int(of_mean * of_all / 4.0)
            found = log10_greenlist_levels([green], [counts], VALUES, Fraction(1, 4))[0]
            slow = ln_tail(green, counts.tolist(), Fraction(1, 4)) / np.log(10.0)
            assert found == pytest.approx(slow, rel=1e-9, abs=1e-9)


@pytest.mark.costly
@pytest.mark.parametrize("weights", [(1.0,), (0.9, 0.1), (0.51, 0.49), (0.5, 0.5)])
@pytest.mark.parametrize("tokens", [3, 2_000, 65_536])
def test_what_is_added_for_rounding_is_bounded(weights: tuple[float, ...], tokens: int) -> None:
    """The slow path adds nothing. One low level among high ones makes the longest series."""
    alike, one_low, spread = np.zeros(9, np.int64), np.zeros(9, np.int64), np.random.default_rng(1)
    alike[8], one_low[[1, 8]] = tokens, (1, tokens - 1)
    room, values = most_added(tokens, len(weights), min(weights)), np.outer(weights, VALUES).ravel()
    for of_levels in (alike, one_low, spread.multinomial(tokens, np.full(9, 1 / 9))):
        counts = np.tile(of_levels, len(weights))
        for deviations in (0.5, 3.0, 6.0, 20.0):
            score = float(counts @ values + deviations * np.sqrt(counts @ values**2))
            stated = -np.log(10.0) * log10_gumbel_levels([score], [counts], values)[0]
            exact = -ln_tail(score, counts.tolist(), None, values.tolist())
            assert -1e-9 * max(1.0, exact) <= exact - stated <= room + 1e-9 * max(1.0, exact)


def test_sums_that_cannot_be() -> None:
    assert log10_greenlist_levels([37], [[0, 0, 0, 0, 0, 0, 0, 0, 4]], VALUES, Fraction(1, 4))[0] == -np.inf
    assert log10_greenlist_levels([32], [[3, 0, 0, 0, 0, 0, 0, 0, 4]], VALUES, Fraction(1, 4))[0] == pytest.approx(
        4 * np.log10(0.25)
    )
    nothing = np.zeros((1, LEVELS + 1))
    assert log10_gumbel_levels([3.0], nothing, VALUES)[0] == 0.0
    assert log10_greenlist_levels([0], nothing, VALUES, Fraction(1, 4))[0] == 0.0

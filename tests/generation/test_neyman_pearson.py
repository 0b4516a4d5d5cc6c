"""The Neyman-Pearson score and its Chernoff bound: against exact laws, simulation, and the score's own dependence."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from scanner.watermark import log10_gumbel, log10_gumbel_log
from scanner.watermark.native.gumbel import sum_scores
from scanner.watermark.native.keyed import terms_of
from tests.generation.neyman_pearson import log10_chernoff, neyman_pearson

LN10 = math.log(10)


def exact_log10_p(score: float, weights: list[float]) -> float:
    """log10 P(Σ w E ≤ −score) for distinct weights: a sum of exponentials, in 200 digits (its terms cancel)."""
    with mpmath.workdps(200):
        rates = [1 / mpmath.mpf(w) for w in weights]
        total = mpmath.mpf(0)
        for i, rate in enumerate(rates):
            factor = mpmath.mpf(1)
            for j, other in enumerate(rates):
                if j != i:
                    factor *= other / (other - rate)
            total += factor * -mpmath.expm1(rate * mpmath.mpf(score))
        return float(mpmath.log10(total))


@pytest.mark.parametrize("scored", [1, 2, 5, 20, 300])
@pytest.mark.parametrize("weight", [1e-9, 0.3, 4.0, 1e8])
def test_the_bound_lies_above_the_exact_law_of_equal_weights(scored: int, weight: float) -> None:
    """Equal weights have the law of the unweighted score; Chernoff costs a factor of about √(2πT) at most."""
    for share in (0.999, 0.9, 0.5, 0.1, 1e-3, 1e-12):
        score = -scored * weight * share
        bound = log10_chernoff(score, np.full(scored, weight))
        exact = float(log10_gumbel_log(score / weight, scored))
        assert exact <= bound <= min(exact + 0.5 * math.log10(2 * math.pi * scored) + 0.05, 0)


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_lies_above_the_exact_law_of_different_weights(seed: int) -> None:
    generator = np.random.default_rng(seed)
    weights = 1 / generator.beta(0.5, 0.5, 4 + seed).clip(1e-4, 1 - 1e-4) - 1
    for share in (0.9, 0.3, 0.01, 1e-6):
        score = -share * weights.sum()
        bound, exact = log10_chernoff(score, weights), exact_log10_p(score, weights.tolist())
        assert exact <= bound <= 0
        if exact < -1:
            assert bound < exact + 1.5


@pytest.mark.parametrize("share", [1 - 1e-6, 0.7, 0.02, 1e-8])
def test_the_solution_is_the_best_and_rounded_up(share: float) -> None:
    """The bound is never below the minimum in 60 digits, and above it by rounding alone."""
    weights = 1 / np.random.default_rng(5).beta(0.4, 0.4, 400).clip(1e-9, 1 - 1e-12) - 1
    score = -share * weights.sum()
    with mpmath.workdps(60):
        own, reach = [mpmath.mpf(w) for w in weights], -mpmath.mpf(score)

        def slope(log_c: mpmath.mpf) -> mpmath.mpf:
            c = mpmath.exp(log_c)
            return sum(w / (1 + c * w) for w in own) / reach - 1

        low, high = mpmath.mpf(-60), mpmath.mpf(60)
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) > 0 else (low, middle)
        c = mpmath.exp(low)
        least = float((c * reach - sum(mpmath.log1p(c * w) for w in own)) / mpmath.log(10))
    assert least <= log10_chernoff(score, weights) <= least + 1e-9 + 1e-9 * abs(least)


def null_batch(documents: int, scored: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of a key that marked nothing, probabilities as a model gives them (many near 1, some tiny), offsets."""
    generator = np.random.default_rng(seed)
    draws = generator.integers(0, 2**32, documents * scored, dtype=np.uint32)
    log_p = np.log(generator.beta(0.45, 0.35, documents * scored).clip(1e-9, 1))
    return draws, log_p, np.arange(0, documents * scored + 1, scored)


@pytest.mark.costly
@pytest.mark.parametrize(("scored", "documents"), [(1, 40_000), (3, 40_000), (30, 40_000)])
def test_null_texts_are_at_or_above_their_p(scored: int, documents: int) -> None:
    """Share of null texts with p ≤ α: at most α, by one-sided exact binomial tests; error rate 1e-4 together."""
    found = neyman_pearson(*null_batch(documents, scored, scored))
    for alpha in (0.3, 0.1, 0.01, 1e-3):
        hits = int((found.log10_p <= math.log10(alpha)).sum())
        assert stats.binomtest(hits, documents, alpha, alternative="greater").pvalue > 1e-4 / 12, alpha


def test_the_bound_against_p_by_monte_carlo() -> None:
    """12 tokens, 400,000 simulated null scores: the bound lies above p's 99.99 % limit, within a factor of 30."""
    generator = np.random.default_rng(11)
    weights = 1 / generator.beta(0.5, 0.5, 12).clip(0.01, 0.99) - 1
    scores = -(generator.exponential(size=(400_000, 12)) * weights).sum(axis=1)
    for quantile in (0.9, 0.99, 0.999, 0.9999):
        score = float(np.quantile(scores, quantile))
        p = stats.binomtest(int((scores >= score).sum()), len(scores)).proportion_ci(0.9999)
        assert p.high <= 10 ** log10_chernoff(score, weights) <= 30 * p.low


def test_what_says_nothing_is_dropped() -> None:
    draws = np.array([2**31, 2**32 - 1, 7, 0, 2**30], np.uint32)
    log_p = np.array([0.0, math.log(0.2), -np.inf, np.nan, -1e-3])
    found = neyman_pearson(draws, log_p, np.array([0, 4, 5, 5]))
    assert found.used.tolist() == [1, 1, 0]
    assert found.score[0] == pytest.approx(4 * math.log1p(-(2**-32)), rel=1e-12)
    assert found.score[2] == 0
    assert found.log10_p[0] == pytest.approx(float(log10_gumbel_log(math.log1p(-(2**-32)), 1)) + 1 / LN10, abs=1e-6)
    assert found.log10_p[1:].tolist() == [0, 0]  # a score below its mean; no tokens


def test_a_draw_of_0_says_nothing() -> None:
    found = neyman_pearson(np.array([0, 2**32 - 1], np.uint32), np.log([0.5, 0.5]), np.array([0, 2]))
    assert found.score[0] == -np.inf
    assert found.log10_p[0] == 0


def test_no_score_is_0() -> None:
    with pytest.raises(ValueError, match="every draw gives less"):
        log10_chernoff(0.0, np.ones(3))


def test_it_reads_a_mark_better_than_the_main_score_and_worse_when_probabilities_are_wrong() -> None:
    """On 2,000 texts of 60 marked tokens (R = U^p) true probabilities lower p-values much; shuffled ones raise them."""
    generator = np.random.default_rng(3)
    p = generator.beta(0.5, 0.4, (2000, 60)).clip(1e-6, 1)
    draws = np.minimum(generator.random((2000, 60)) ** p * 2**32, 2**32 - 1).astype(np.uint32).ravel()
    offsets = np.arange(0, 120_001, 60)
    main = log10_gumbel(sum_scores(draws, offsets), 60)
    right = neyman_pearson(draws, np.log(p).ravel(), offsets).log10_p
    wrong = neyman_pearson(draws, np.log(generator.permutation(p.ravel())), offsets).log10_p
    assert np.median(right) < np.median(main) - 3
    assert np.median(wrong) > np.median(main)


@pytest.mark.costly
def test_the_three_scores_use_the_same_draws() -> None:
    """Second scores are no independent evidence: where the main score's p is small, theirs is too, even for null texts.

    400,000 null texts of 128 tokens; where the main score has p ≤ 1e-3, the share with p ≤ 0.01 by ln r would be 0.01
    for independent scores. Its lower 99.99 % limit lies above 0.3 (about 0.43 is found).
    """
    draws = np.random.default_rng(1).integers(0, 2**32, 400_000 * 128, dtype=np.uint32)
    offsets = np.arange(0, len(draws) + 1, 128)
    main = log10_gumbel(sum_scores(draws, offsets), 128)
    unweighted = log10_gumbel_log(np.add.reduceat(terms_of(draws, unweighted=True), offsets[:-1]), 128)
    flagged = main <= -3
    assert stats.binomtest(int(flagged.sum()), len(main), 1e-3).pvalue > 1e-4
    both = int((flagged & (unweighted <= -2)).sum())
    low = stats.binomtest(both, int(flagged.sum())).proportion_ci(0.9999).low
    assert low > 0.3, f"{both} of {int(flagged.sum())}"

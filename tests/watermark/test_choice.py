"""The Gumbel choice has the laws that the paper proves, over keys drawn anew for every token (appendix; SPEC §2).

Each test uses fixed seeds; its stated error rate is the chance that a right program fails for another seed.
"""

import numpy as np
import pytest
from scipy import special, stats

from scanner.watermark import Gumbel

KEYS = 30_000
P = np.array([0.44, 0.24, 0.12, 0.08, 0.05, 0.04, 0.02, 0.009, 0.001])
PLACES = np.array([0, 7, 255, 256, 257, 300, 511, 600, 640])  # their ids in a vocabulary that spans three groups
VOCABULARY = 641


@pytest.fixture(scope="module")
def chosen() -> tuple[np.ndarray, np.ndarray]:
    """Index and r of the chosen token, each time under a fresh key and message."""
    generator = np.random.default_rng(20_231)
    secrets = generator.bytes(32 * KEYS)
    messages = generator.integers(0, 100_000, KEYS)
    weights = np.zeros(VOCABULARY)
    weights[PLACES] = P
    tokens, draws = np.empty(KEYS, np.int64), np.empty(KEYS, np.uint32)
    for i in range(KEYS):
        mark = Gumbel(secrets[32 * i : 32 * i + 32], 1)
        nonces = mark.window_nonces(np.array([[i]], np.uint32))
        tokens[i] = mark.choose(nonces[0], int(messages[i]), weights)
        draws[i] = mark.draws(nonces, messages[i : i + 1] + tokens[i], 1)[0, 0]
    return np.searchsorted(PLACES, tokens), draws


def test_the_choice_follows_p(chosen) -> None:
    """Chi-square over 30,000 keys and 9 tokens; error rate 1e-4."""
    counts = np.bincount(chosen[0], minlength=len(P))
    assert counts.sum() == KEYS
    assert stats.chisquare(counts, P * KEYS).pvalue > 1e-4


def test_r_of_the_chosen_token_follows_its_beta_law(chosen) -> None:
    """Paper, corollary: R ~ Beta(1/p, 1) given the token. Kolmogorov-Smirnov, 9 tests; error rate 1e-4 together."""
    which, draws = chosen
    for k, p in enumerate(P):
        r = (draws[which == k] + 0.5) / 2**32
        assert stats.kstest(r, lambda r, p=p: r ** (1 / p)).pvalue > 1e-4 / len(P), p


def test_the_expected_score_respects_the_papers_bound(chosen) -> None:
    """Given the probabilities of the chosen tokens: E S = Σ H(1/p) ≥ T + (π²/6 − 1) H_T, V S ≤ T π²/6.

    Per token (T = 1), the means within 4.7 standard errors, and over 300 texts of 100 tokens; error rate below 1e-4
    together.
    """
    which, draws = chosen
    terms = -np.log1p(-draws.astype(np.float64) / 2**32)
    for k, p in enumerate(P):
        own = terms[which == k]
        mean = special.digamma(1 / p + 1) + np.euler_gamma  # the harmonic number of 1/p
        variance = special.polygamma(1, 1) - special.polygamma(1, 1 + 1 / p)
        bound = 1 - (np.pi**2 / 6 - 1) * p * np.log(p)
        assert mean >= bound  # the paper's proposition itself
        assert variance <= np.pi**2 / 6
        assert abs(own.mean() - mean) < 4.7 * np.sqrt(variance / len(own)), p
        assert own.mean() > bound - 4.7 * np.sqrt(variance / len(own)), p
    texts, of_text = terms.reshape(-1, 100), P[which].reshape(-1, 100)
    excess = texts.sum(axis=1) - 100 + (np.pi**2 / 6 - 1) * (of_text * np.log(of_text)).sum(axis=1)
    assert excess.mean() > 0
    spread = texts.sum(axis=1) - (special.digamma(1 / of_text + 1) + np.euler_gamma).sum(axis=1)
    assert spread.var() < 100 * np.pi**2 / 6

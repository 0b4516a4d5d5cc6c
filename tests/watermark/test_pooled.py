"""Posts of an account as one text, and their evidence over nights, against plain loops; evidence seldom errs."""

import math
import re
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from scanner.audit.statistics.judgement import binomial_limits
from scanner.watermark.laws import GREEN_SHARES, TERM_RATES, Binomial, Gamma, NegativeGamma
from scanner.watermark.native.version2_marks import Version2GreenList
from scanner.watermark.pooled_posts import MARKED_SHARES, by_post, log10_evidence, pooled_positions
from scanner.watermark.positions import WholeWindows
from tests.bench.accounts import null
from tests.watermark.pairs import SECRET, batch_tokens

GREEN = Binomial(Fraction(1, 4))
POSTS = [[1, 2, 3, 4, 5], [1, 2, 3, 9], [], [7], [2, 3, 4, 8], [1, 2, 3, 4], [6, 6, 6, 6, 6]]
ACCOUNTS = np.array([0, 3, 3, 7])


def plain_pooled(window: int) -> list[list[int]]:
    """Scored places in all posts: the n-gram is new to the account, and its window lies in one post."""
    found = []
    for first, last in pairwise(ACCOUNTS.tolist()):
        begin = sum(map(len, POSTS[:first]))
        text = [token for post in POSTS[first:last] for token in post]
        within = [i for post in POSTS[first:last] for i in range(len(post))]
        seen, kept = set(), []
        for i in range(window, len(text)):
            gram = tuple(text[i - window : i + 1])
            if gram not in seen and within[i] >= window:
                kept.append(begin + i)
            seen.add(gram)
        found.append(kept)
    return found


@pytest.mark.parametrize("window", [0, 1, 2])
def test_what_posts_repeat_counts_once_for_their_account(window):
    posts = batch_tokens(POSTS)
    positions = pooled_positions(WholeWindows(window), window, posts, ACCOUNTS, "ngram")
    of_accounts = [
        positions.index[a:b].tolist() for a, b in zip(positions.offsets, positions.offsets[1:], strict=False)
    ]
    assert of_accounts == plain_pooled(window)
    of_posts = by_post(positions, posts)
    assert of_posts.scored.sum() == len(positions.index)
    for post, (a, b) in enumerate(pairwise(of_posts.offsets)):
        assert ((posts.offsets[post] <= of_posts.index[a:b]) & (of_posts.index[a:b] < posts.offsets[post + 1])).all()


def test_posts_together_score_what_they_score_one_by_one():
    mark, generator = Version2GreenList(SECRET, 2, Fraction(1, 4)), np.random.default_rng(1)
    posts = batch_tokens([generator.integers(50_000, size=20) for _ in range(30)])
    accounts = np.array([0, 10, 30])
    positions = pooled_positions(mark.rule, 2, posts, accounts, "ngram")
    whole = mark.score(posts._replace(offsets=posts.offsets[accounts]), positions, 3)
    assert whole.tolist() == np.add.reduceat(mark.score(posts, by_post(positions, posts), 3), accounts[:-1]).tolist()


def plain_evidence(law, posts: list[tuple[int, float, int]]) -> float:
    """Largest log10 evidence at the end of any night, by one product for each strength and share."""
    most, so_far = 0.0, []
    for i, (night, score, scored) in enumerate(posts):
        so_far.append((score, scored))
        if i + 1 == len(posts) or posts[i + 1][0] != night:
            products = []
            for strength in GREEN_SHARES if isinstance(law, Binomial) else TERM_RATES:
                for share in MARKED_SHARES:
                    product = 1.0
                    for s, t in so_far:
                        if isinstance(law, Binomial):
                            green = 0.25 + 0.75 * strength
                            ratio = stats.binom.pmf(s, t, green) / stats.binom.pmf(s, t, 0.25)
                        else:
                            ratio = stats.gamma.pdf(s, t, scale=1 / strength) / stats.gamma.pdf(s, t) if t else 1.0
                        product *= 1 - share + share * ratio
                    products.append(product)
            most = max(most, math.log10(sum(products) / len(products)))
    return most


@pytest.mark.parametrize("law", [GREEN, Gamma()])
def test_evidence_is_that_of_plain_products(law):
    generator = np.random.default_rng(2)
    posts, accounts = [], [0]
    for size, strength in ((1, 0.25), (9, 0.25), (20, 0.6), (4, 0.9)):
        scored = generator.integers(0, 30, size)
        score = generator.binomial(scored, strength) if law is GREEN else generator.gamma(scored) * 2 * strength
        posts.append(list(zip(np.sort(generator.integers(0, 5, size)), score, scored, strict=True)))
        accounts.append(accounts[-1] + size)
    nights, score, scored = (np.array(column) for column in zip(*(row for of in posts for row in of), strict=True))
    found = log10_evidence(law, score, scored, np.array(accounts), nights)
    assert found == pytest.approx([plain_evidence(law, of) for of in posts], rel=1e-9, abs=1e-12)
    assert found.max() > 2


def test_a_law_without_ratios_has_no_evidence():
    found = log10_evidence(NegativeGamma(), np.array([-1.0]), np.array([9]), np.array([0, 1]), np.array([0]))
    assert found.tolist() == [0.0]


def test_ratios_have_mean_one():
    scores = np.arange(41)
    ratios = np.exp(GREEN.log_ratios(scores, np.full(41, 40)))
    assert stats.binom.pmf(scores, 40, 0.25) @ ratios == pytest.approx(np.ones(len(GREEN_SHARES)))
    for i in range(len(TERM_RATES)):

        def weighed(score: float, i: int = i) -> float:
            return float(stats.gamma.pdf(score, 5) * np.exp(Gamma().log_ratios([score], [5])[0, i]))

        assert integrate.quad(weighed, 0, 400, limit=200)[0] == pytest.approx(1)
    assert (Gamma().log_ratios([0.0], [0]) == 0).all()


NIGHTS, ALPHA, TRIALS = 100, 0.01, 4_000


def ever(times: int) -> int:
    """How many of TRIALS unmarked accounts reach 1/ALPHA in NIGHTS of two posts, each post counted `times` times."""
    scored = np.full(2 * NIGHTS * TRIALS, 30)
    score = np.random.default_rng(3).binomial(scored, 0.25)
    score, scored = np.repeat(score, times), np.repeat(scored, times)
    accounts = np.arange(TRIALS + 1) * 2 * NIGHTS * times
    nights = np.tile(np.repeat(np.arange(NIGHTS), 2 * times), TRIALS)
    return int((log10_evidence(GREEN, score, scored, accounts, nights) >= -math.log10(ALPHA)).sum())


def test_evidence_that_is_looked_at_every_night_seldom_errs():
    assert binomial_limits(ever(1), TRIALS, 0.001).low <= ALPHA


def test_the_bench_of_accounts_simulates_as_many_as_it_states():
    for line in null(20):
        hits, accounts = re.search(r"(\d+) of (\d+):", line).groups()
        assert int(hits) <= int(accounts) == 20


@pytest.mark.costly
def test_a_night_that_counts_twice_is_seen():
    assert binomial_limits(ever(2), TRIALS, 0.001).low > ALPHA

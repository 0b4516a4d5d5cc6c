"""Evidence over the posts of an account, simulated and on real texts: `python -m tests.bench.accounts`.

Null: unmarked accounts with two posts of 30 tokens a night, tested after each of a hundred nights. The figure is how
many ever reach a level, by the e-process and by a pooled score that is tested every night. Power: accounts of 200 posts
of 30 tokens, a tenth of them marked, found at 1e-6 by the e-process, by the pooled score, and by any single post. All
draws follow the law of a green list with γ = 1/4.
"""

import argparse
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scanner.audit.statistics.judgement import binomial_limits
from scanner.watermark.laws import Binomial
from scanner.watermark.pooled_posts import log10_evidence
from scanner.watermark.rule import corrected, passes

LAW = Binomial(Fraction(1, 4))
ALPHA, RATE = 0.01, 1e-6
NIGHTS, POSTS_A_NIGHT, TOKENS = 100, 2, 30
AT_ONCE = 10_000
"""Accounts that are simulated at a time."""


def share(hits: int, tests: int) -> str:
    """Hits, tests and their ratio with its 95 % limits, in words."""
    limits = binomial_limits(hits, tests, 0.025)
    return f"{hits} of {tests}: {hits / tests:.4f} ({limits.low:.4f} to {limits.high:.4f})"


def _evidence(score: NDArray[np.int64], posts_a_night: int) -> NDArray[np.float64]:
    """Largest log10 e of accounts by the scores of their posts, int64[A, P]."""
    accounts, posts = score.shape
    nights = np.tile(np.arange(posts) // posts_a_night, accounts)
    scored = np.full(score.size, TOKENS)
    return log10_evidence(LAW, score.ravel(), scored, np.arange(accounts + 1) * posts, nights)


def null(accounts: int) -> Iterator[str]:
    """Lines on how often unmarked accounts are ever taken for marked."""
    random, by_evidence, by_pooled = np.random.default_rng(1), 0, 0
    scored = np.arange(1, NIGHTS + 1) * POSTS_A_NIGHT * TOKENS
    for begin in range(0, accounts, AT_ONCE):
        score = random.binomial(TOKENS, 0.25, (min(AT_ONCE, accounts - begin), NIGHTS * POSTS_A_NIGHT))
        by_evidence += int((_evidence(score, POSTS_A_NIGHT) >= -np.log10(ALPHA)).sum())
        pooled = score.cumsum(axis=1)[:, POSTS_A_NIGHT - 1 :: POSTS_A_NIGHT]
        by_pooled += int(passes(LAW.log10_p(pooled, scored[None, :]), ALPHA).any(axis=1).sum())
    yield f"{NIGHTS} nights, ever at {ALPHA}, e-process: {share(by_evidence, accounts)}"
    yield f"{NIGHTS} nights, ever at {ALPHA}, pooled score looked at every night: {share(by_pooled, accounts)}"


def power(accounts: int) -> Iterator[str]:
    """Lines on how many accounts are found when a tenth of 200 posts is marked, by the marked posts' share of green."""
    random, posts = np.random.default_rng(2), 200
    for green in (0.5, 0.6, 0.75):
        marked = random.random((accounts, posts)) < 0.1
        score = random.binomial(TOKENS, np.where(marked, green, 0.25))
        by_evidence = int((_evidence(score, posts) >= -np.log10(RATE)).sum())
        by_pooled = int(passes(LAW.log10_p(score.sum(axis=1), posts * TOKENS), RATE).sum())
        of_posts = corrected(LAW.log10_p(score, TOKENS).min(axis=1), 1, posts)
        by_posts = int(passes(of_posts, RATE).sum())
        yield f"{green:.0%} green, at {RATE:g}: e-process {share(by_evidence, accounts)}"
        yield f"{green:.0%} green, at {RATE:g}: pooled {share(by_pooled, accounts)}"
        yield f"{green:.0%} green, at {RATE:g}: any post, corrected for all {share(by_posts, accounts)}"


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--null", type=float, default=0, help="accounts that nobody marked")
    parser.add_argument("--power", type=int, default=0, help="accounts of which a tenth is marked")
    asked = parser.parse_args()
    for lines in (null(int(asked.null)) if asked.null else (), power(asked.power) if asked.power else ()):
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()

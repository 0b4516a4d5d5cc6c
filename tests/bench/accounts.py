"""Accounts of which a tenth of the posts is marked, simulated: `python -m tests.bench.accounts`.

The figure is how many accounts of 200 posts of 30 tokens are found at 1e-6 by the pooled score, and by any single post.
All draws follow the law of a green list with γ = 1/4.
"""

import argparse
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from scanner.audit.statistics.judgement import binomial_limits
from scanner.watermark.laws import Binomial
from scanner.watermark.rule import corrected, passes

LAW = Binomial(Fraction(1, 4))
RATE, TOKENS = 1e-6, 30


def share(hits: int, tests: int) -> str:
    """Hits, tests and their ratio with its 95 % limits, in words."""
    limits = binomial_limits(hits, tests, 0.025)
    return f"{hits} of {tests}: {hits / tests:.4f} ({limits.low:.4f} to {limits.high:.4f})"


def power(accounts: int) -> Iterator[str]:
    """Lines on how many accounts are found when a tenth of 200 posts is marked, by the marked posts' share of green."""
    random, posts = np.random.default_rng(2), 200
    for green in (0.5, 0.6, 0.75):
        marked = random.random((accounts, posts)) < 0.1
        score = random.binomial(TOKENS, np.where(marked, green, 0.25))
        by_pooled = int(passes(LAW.log10_p(score.sum(axis=1), posts * TOKENS), RATE).sum())
        of_posts = corrected(LAW.log10_p(score, TOKENS).min(axis=1), 1, posts)
        by_posts = int(passes(of_posts, RATE).sum())
        yield f"{green:.0%} green, at {RATE:g}: pooled {share(by_pooled, accounts)}"
        yield f"{green:.0%} green, at {RATE:g}: any post, corrected for all {share(by_posts, accounts)}"


def main() -> None:
    """Print how many are found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--power", type=int, default=2_000, help="accounts of which a tenth is marked")
    for line in power(parser.parse_args().power):
        print(line, flush=True)


if __name__ == "__main__":
    main()

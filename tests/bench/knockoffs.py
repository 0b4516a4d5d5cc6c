"""Size and power of ranks of users' messages among nobody's: `python -m tests.bench.knockoffs [--nights N]`.

Nights are drawn text by text. Scores are normal, of variance 1; a share of the variance is the message's own in all
texts, as from n-grams that all texts have in common. Stand-ins are dealt out by clusters, as for keys without groups. A
night is counted and judged as a scan does it. Beside the size stands the power against shifts of users' scores, in
standard deviations: a small shift in all texts, or a large one in a few.
"""

import argparse
import time

import numpy as np

from scanner.audit.in_every_scan.reserved import CLUSTERS, KNOCKOFFS_A_MESSAGE, RankCounts, count_ranks
from scanner.audit.statistics.hits import ClusterSums
from scanner.audit.statistics.judgement import binomial_limits, counts, judge
from schemas.words import AuditVerdict

STAND_INS = 100
"""Stand-ins of a cluster: a key of 65,536 messages has so many reserved ones in each."""


def night(
    generator: np.random.Generator, texts: int, users: int, common: float, shift: float = 0.0, share: float = 1.0
) -> RankCounts:
    """Ranks in one night.

    Args:
        generator: source of all random numbers.
        texts: number of texts.
        users: number of users with a message.
        common: share of a score's variance that a message has in all texts alike.
        shift: what users' messages score more, in standard deviations.
        share: share of the texts that have the shift.
    """
    cluster = generator.integers(CLUSTERS, size=users)
    of_user, of_other = (generator.normal(size=size) * np.sqrt(common) for size in (users, (CLUSTERS, STAND_INS)))
    whose, alone = generator.integers(users, size=texts), np.sqrt(1 - common)
    own = of_user[whose] + alone * generator.normal(size=texts) + shift * (generator.random(texts) < share)
    which = (generator.integers(STAND_INS, size=texts)[:, None] + np.arange(KNOCKOFFS_A_MESSAGE)) % STAND_INS
    others = of_other[cluster[whose][:, None], which] + alone * generator.normal(size=which.shape)
    return RankCounts((own[:, None] > others).sum(axis=1), np.full(texts, KNOCKOFFS_A_MESSAGE), cluster[whose])


def alarms(ranked: RankCounts, held: int, error: float) -> bool:
    """Whether the audit calls the ranks of a night too small."""
    found = False
    told = count_ranks(ranked, held)
    for hits, tests, chance in told.values():
        n, h, e = (np.bincount(ranked.cluster, part, CLUSTERS) for part in (tests, hits, tests * chance))
        there = n > 0
        sums = (n.sum(), h.sum(), e.sum(), h @ h, h @ e, e @ e, there.sum())
        (said,) = judge(counts(ClusterSums(*(np.array([float(part)]) for part in sums))), error / len(told))
        found |= said.verdict == AuditVerdict.TOO_SMALL
    return found


def rate(nights: int, error: float, seed: int, held: int, *how: float) -> tuple[float, float, float]:
    """Share of nights with an alarm, and its 95 % limits. how: arguments of `night` after `users`."""
    generator = np.random.default_rng(seed)
    hits = sum(alarms(night(generator, *_TEXTS, held, *how), held, error) for _ in range(nights))
    return hits / nights, *binomial_limits(hits, nights, 0.025)


_TEXTS = (5000,)


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=1000)
    given = parser.parse_args()
    began = time.process_time()
    print(f"{_TEXTS[0]:,} texts, {given.nights:,} nights a line; alarms with limits (95 %)")
    for held in (40, 1000, 100_000):
        for common in (0.0, 0.1, 0.5):
            share, low, high = rate(given.nights, 0.05, 1, held, common)
            print(f"{held:7,} users, {common:.0%} in common, error 0.05: {share:.4f} ({low:.4f} to {high:.4f})")
    for shift, of_texts in ((0.03, 1.0), (0.05, 1.0), (0.1, 1.0), (0.2, 1.0), (3.0, 0.01), (3.0, 0.02), (3.0, 0.05)):
        share, low, high = rate(given.nights, 0.001, 2, 1000, 0.1, shift, of_texts)
        print(
            f"  1,000 users, error 0.001, {shift} SD in {of_texts:.0%} of texts: {share:.3f} ({low:.3f} to {high:.3f})"
        )
    print(f"{time.process_time() - began:.0f} CPU s")


if __name__ == "__main__":
    main()

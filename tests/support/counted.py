"""Counts of an audit whose rate is known."""

import numpy as np

from scanner.audit.statistics.hits import cluster_sums

THRESHOLDS = (0.1, 0.01)


def sums(factor: float):
    """Counts of 400 clusters of 1,000 tests, whose rate is the threshold times a factor."""
    chance = np.tile(THRESHOLDS, (400, 1))
    hits = np.random.default_rng(7).binomial(1000, chance * factor)
    return cluster_sums(hits, np.full(400, 1000), chance)

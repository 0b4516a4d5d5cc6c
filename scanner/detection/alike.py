"""Comparison of numbers that were computed in two ways."""

import math

ROUNDING = 1e-9
"""Largest relative difference between two ways to add up floats, in scores and log10 p. Below p = 1e-300, where less is
promised, a hundred times as much is allowed.
"""


def same(a: float | None, b: float | None) -> bool:
    """Whether two numbers are alike, or both are missing."""
    return a is b if a is None or b is None else alike(a, b)


def alike(a: float, b: float) -> bool:
    """Whether two numbers are the same up to ROUNDING; an infinite one is like itself alone."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b
    size = max(1.0, abs(a), abs(b))
    return abs(a - b) <= (ROUNDING if min(a, b) >= -300.0 else 100.0 * ROUNDING) * size

"""Compare numbers that were computed in two ways: equal except for the rounding of sums of floats."""

import math

ROUNDING = 1e-9
"""Largest relative difference between two ways to add up floats, in scores and log10 p.

Below p = 1e-300, where less is promised, a hundred times as much is allowed.
"""


def equal_numbers(a: float | None, b: float | None, more: float = 0.0) -> bool:
    """Return whether two numbers are nearly equal, or both are missing. `more` is as in `nearly_equal`."""
    return a is b if a is None or b is None else nearly_equal(a, b, more)


def nearly_equal(a: float, b: float, more: float = 0.0) -> bool:
    """Return whether two numbers differ by at most ROUNDING plus `more`. An infinite number equals only itself."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b
    size = max(1.0, abs(a), abs(b))
    return abs(a - b) <= (ROUNDING if min(a, b) >= -300.0 else 100.0 * ROUNDING) * size + more

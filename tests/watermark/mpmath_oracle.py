"""p-values against what mpmath computes."""

import math

import mpmath

DEEPEST = -300  # the precision is promised down to p = 1e-300; below, log10 p stays finite and monotone


def assert_right(got: float, wanted: mpmath.mpf) -> None:
    assert got <= 0
    error = abs(mpmath.mpf(float(got)) - wanted)
    if wanted >= DEEPEST:
        assert error <= max(1e-9 * abs(wanted), mpmath.mpf("1e-300")), (got, float(wanted))
    else:
        assert math.isfinite(got)
        assert error <= 1e-7 * abs(wanted), (got, float(wanted))

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


def series(s, n: int, a) -> mpmath.mpf:
    """The law of two weighted sums by its series, term by term from N = n on, in 60 digits; log10."""
    with mpmath.workdps(60):
        s, a = mpmath.mpf(s), mpmath.mpf(a)
        q, x, big, total = a / (1 - a), s / a, n, mpmath.mpf(0)
        tail = mpmath.gammainc(2 * n, x, regularized=True)
        step, power = mpmath.exp(-x) * x ** (2 * n) / mpmath.factorial(2 * n), q**n
        while power > total * mpmath.mpf(10) ** -40 or big < 2 * n / q:
            total += power * tail
            tail += step
            step *= x / (n + big + 1)
            power *= (1 - q) * big / (big - n + 1)
            big += 1
        return mpmath.log10(total)


def gumbel_tail(score: float, counts: list[int], values: list[float]) -> mpmath.mpf:
    """P(Σ v·x ≥ s) by partial fractions of the moment generating function: a sum of alternating gamma tails."""
    terms = [(mpmath.mpf(n), mpmath.mpf(v)) for n, v in zip(counts, values, strict=True) if n and v]
    total = mpmath.mpf(0)
    for n, v in terms:
        others = [(m, 1 - u / v, u / v) for m, u in terms if u != v]
        powers = [mpmath.mpf(1)]
        for m, constant, _ in others:
            powers[0] *= constant**-m
        for k in range(1, int(n)):
            ln_derivative = [-sum(m * u / c * (-u / c) ** j for m, c, u in others) for j in range(k)]
            powers.append(sum(ln_derivative[j] * powers[k - 1 - j] for j in range(k)) / k)
        x = score / v
        below = [mpmath.exp(-x)]
        for j in range(1, int(n)):
            below.append(below[-1] * x / j)
        tails = [sum(below[:j]) for j in range(1, int(n) + 1)]
        total += sum(g * tails[int(n) - 1 - k] for k, g in enumerate(powers))
    return total

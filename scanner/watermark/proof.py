"""Define the common part of proofs of flags: the positions that count, and tails of the laws in 30 digits (SPEC §3).

A proof computes the score of one text and its p-value once more. Its slow path shares no code with the scoring of
texts: this file and those of the formats (`native/proof.py`, `stacks/*/proof.py`) import nothing of ours except each
other and the module that hides secrets. So an error would have to be made twice. Ciphers are plain numpy over the
positions of one text, and p-values are sums of positive terms in mpmath. Laws of sums by levels are tilted so that
their mean is the score. A transform then gives them with full precision, however small the tail.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from fractions import Fraction
from itertools import count
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln  # type: ignore[import-untyped]

DECIMAL_DIGITS = 30
_ENOUGH = 20  # digits of a sum; smaller terms are left out

Term = Any
"""A number of mpmath, which has no type annotations."""

# also defined in scanner.watermark.by_levels, because a proof imports nothing from the scoring code
KeyWeights = tuple[tuple[tuple[float, ...], float], ...]
"""Weights of a mark's keys by which its sums are added up, and the share of the error of each choice of weights."""

ONE_SUM: KeyWeights = (((1.0,), 1.0),)
"""Weights of a mark that has one sum."""


def first_of_each(units: Iterable[Hashable]) -> list[int]:
    """Return the places of the units that did not occur before."""
    first: dict[Hashable, int] = {}
    for place, unit in enumerate(units):
        first.setdefault(unit, place)
    return list(first.values())


def units(contexts: Sequence[Hashable], tokens: Sequence[int], dedup: str) -> Iterable[Hashable]:
    """Return the unit that counts once, at each of P positions, by the choice of repeats that are left out.

    Args:
        contexts: contexts of the P positions, as the format tells them apart.
        tokens: tokens at these positions.
        dedup: `ngram`, `context` or `none`.
    """
    return {"ngram": zip(contexts, tokens, strict=True), "context": contexts, "none": range(len(tokens))}[dedup]


def counted_positions(
    places: Sequence[int],
    contexts: Sequence[Hashable],
    tokens: Sequence[int],
    dedup: str,
    common_places: Collection[int],
) -> list[int]:
    """List the numbers of the P positions that count: no repeats (see `units`), no places that are left out.

    Args:
        places: places of the P positions in the text.
        contexts: as for `units`.
        tokens: as for `units`.
        dedup: as for `units`.
        common_places: places that a filter leaves out.
    """
    return [i for i in first_of_each(units(contexts, tokens, dedup)) if places[i] not in common_places]


def log10_binomial(score: int, scored: int, gamma: Fraction) -> float:
    """Compute log10 P(Binomial(T, γ) ≥ S)."""
    if score <= 0:
        return 0.0
    with mpmath.workdps(DECIMAL_DIGITS):
        share = mpmath.mpf(gamma.numerator) / gamma.denominator
        odds = share / (1 - share)

        def chance(k: int) -> Term:
            return mpmath.binomial(scored, k) * share**k * (1 - share) ** (scored - k)

        if score > scored * gamma:
            return _log10(_sum(chance(score), (odds * (scored - k) / (k + 1) for k in range(score, scored))))
        fewer = _sum(chance(score - 1), (k / odds / (scored - k + 1) for k in range(score - 1, 0, -1)))
        return _log10(1 - fewer)


def log10_gamma(score: float, scored: int) -> float:
    """Compute log10 P(a sum of T exponential variables ≥ S), which is P(Poisson(S) < T)."""
    if scored == 0 or score <= 0:
        return 0.0
    with mpmath.workdps(DECIMAL_DIGITS):
        return _log10(_poisson_below(mpmath.mpf(score), scored))


def log10_two_gammas(score: float, scored: int, weight: float) -> float:
    """Compute log10 P((1−a)·X + a·Y ≥ S), X and Y sums of T exponential variables.

    An exponential variable of mean 1−a is a sum of those of mean a, and their number is geometric. So N of them replace
    the T, and the probability is Σ P(N)·P(Poisson(S/a) < T+N).
    """
    lighter = min(weight, 1.0 - weight)
    if lighter == 0.0:
        return log10_gamma(score, scored)
    if lighter == 0.5:
        return log10_gamma(2.0 * score, 2 * scored)
    if scored == 0 or score <= 0:
        return 0.0
    low, high = _where_it_matters(score, scored, lighter)
    with mpmath.workdps(DECIMAL_DIGITS):
        a = mpmath.mpf(lighter)
        q, x = a / (1 - a), mpmath.mpf(score) / a
        below, step = _poisson_below(x, scored + low), _poisson(x, scored + low)
        ways = mpmath.loggamma(low) - mpmath.loggamma(scored) - mpmath.loggamma(low - scored + 1)
        chance = mpmath.exp(ways + scored * mpmath.log(q) + (low - scored) * mpmath.log1p(-q))  # of the number `low`
        total, none_more = mpmath.mpf(0), 1 - q
        for n in range(low, high + 1):
            total += chance * below
            below += step
            step *= x / (scored + n + 1)
            chance *= none_more * n / (n - scored + 1)
        return min(0.0, _log10(total))


def _where_it_matters(score: float, scored: int, a: float) -> tuple[int, int]:
    """Return the first and last number whose term is at least 10^-22 of the largest, by double-precision logarithms."""
    q, x = a / (1.0 - a), score / a
    peak = max(x, scored / q)
    k = np.arange(scored + int(peak + 20.0 * math.sqrt(peak) / q))  # far beyond the largest term
    log_below = np.logaddexp.accumulate(k * math.log(x) - x - gammaln(k + 1.0))[2 * scored - 1 : -1]
    n = np.arange(scored, scored + len(log_below))
    log_chance = gammaln(n) - gammaln(scored) - gammaln(n - scored + 1.0) + (n - scored) * math.log1p(-q)
    terms = log_chance + log_below
    matter = np.flatnonzero(terms >= terms.max() - 22.0 * math.log(10.0))
    return int(n[matter[0]]), int(n[matter[-1]])


SHORTEST_PART = 24
"""Number of scored positions of the shortest part of a document that is tested."""


def windows_of(scored: int) -> set[tuple[int, int]]:
    """Return begin and end (exclusive) of every window of a document of T scored positions, and of the whole document.

    Windows have 24·√2^i positions, rounded up, less than T. One begins after each quarter of that length, rounded down,
    and a last one ends with the document.
    """
    windows = {(0, scored)}
    square = SHORTEST_PART**2
    while (length := math.isqrt(square - 1) + 1) < scored:
        windows |= {(begin, begin + length) for begin in range(0, scored - length, length // 4)}
        windows.add((scored - length, scored))
        square *= 2
    return windows


def log10_any_of(log10_p: float, tests: float) -> float:
    """Compute log10(1 − (1 − p)^tests)."""
    if log10_p >= 0.0 or tests == 1:
        return min(log10_p, 0.0)
    with mpmath.workdps(DECIMAL_DIGITS):
        none = tests * mpmath.log1p(-mpmath.power(10, mpmath.mpf(log10_p)))
        return _log10(-mpmath.expm1(none))


def floored(log10_p: float, bits: int) -> float:
    """Return log10 p, or log10 of 2^-bits where p is smaller."""
    with mpmath.workdps(DECIMAL_DIGITS):
        return max(log10_p, float(-bits * mpmath.log10(2)))


def _poisson(mean: Term, k: int) -> Term:
    return mpmath.exp(k * mpmath.log(mean) - mean - mpmath.loggamma(k + 1))


def _poisson_below(mean: Term, shape: int) -> Term:
    """Compute P(Poisson(mean) < shape), from the smaller tail."""
    if shape <= mean:
        return _sum(_poisson(mean, shape - 1), (k / mean for k in range(shape - 1, 0, -1)))
    return 1 - _sum(_poisson(mean, shape), (mean / k for k in count(shape + 1)))


def _sum(first: Term, ratios: Iterable[Term]) -> Term:
    """Compute first·(1 + r1 + r1·r2 + …) for decreasing ratios."""
    total = term = first
    least = mpmath.mpf(10) ** -_ENOUGH
    for ratio in ratios:
        term *= ratio
        total += term
        if ratio < 1 and term < total * (1 - ratio) * least:
            break
    return total


def _log10(value: Term) -> float:
    return float(mpmath.log10(value))


_NEGLIGIBLE = 1e-17
_MOST_NODES = 2**22


def ln_tail(
    score: float, counts: Sequence[int], gamma: Fraction | None, values_of: Sequence[float] | None = None
) -> float:
    """Compute ln P(Σ v·x ≥ score). counts[i] of the x have the value values_of[i]. 0 where no token counts.

    Args:
        score: the sum to reach.
        counts: how many x have each value.
        gamma: chance that an x is 1. None: each x is exponential, of mean 1.
        values_of: v, 0 or more, whole numbers if there is a gamma. None: the places 0, 1, ….
    """
    counting = [(v, n) for v, n in zip(values_of or range(len(counts)), counts, strict=True) if v and n]
    values, n = np.array(counting, np.float64).reshape(-1, 2).T
    if not len(n) or score <= 0.0:
        return 0.0
    return _ln_exponential(score, values, n) if gamma is None else _ln_binary(round(score), values, n, float(gamma))


def _ln_exponential(score: float, values: NDArray[np.float64], n: NDArray[np.float64]) -> float:
    """Compute ln of P(S ≥ s) = e^(K(t)−ts)/π · ∫ Re[φ_t(u) e^(−ius)/(t+iu)] du from 0, t the tilt, by equal steps."""
    # Steps of h also count S at s + 2πk/h, where the tilted law is negligible.
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # sums by levels alone need it

    if n.sum() == 1.0:
        return -score / float(values[0])

    def slope(t: float) -> float:
        return float((n * values / (1.0 - t * values)).sum()) - score - 1.0 / t

    top = 1.0 / float(values.max())
    t = brentq(slope, top * 1e-12, top * (1.0 - 1e-12), xtol=1e-300, rtol=1e-14)
    width = math.sqrt(float((n * (values / (1.0 - t * values)) ** 2).sum()) + 1.0 / t**2)
    step = 2.0 * math.pi / (45.0 * width)
    total, node_count, block = 0.5 / t, 0, 1 << 12
    while node_count < _MOST_NODES:
        u = step * np.arange(node_count + 1, node_count + block + 1)
        log_ratio = -(n[:, None] * np.log1p(-1j * u * values[:, None] / (1.0 - t * values[:, None]))).sum(axis=0)
        terms = (np.exp(log_ratio - 1j * u * score) / (t + 1j * u)).real
        total += float(terms.sum())
        node_count += block
        if np.exp(log_ratio[-1].real) < _NEGLIGIBLE:
            break
    log_moment = -float((n * np.log1p(-t * values)).sum())
    return log_moment - float(t) * score + math.log(total * step / math.pi)


def _ln_binary(score: int, values: NDArray[np.float64], n: NDArray[np.float64], gamma: float) -> float:
    """Compute ln P(S ≥ s) from the whole law of the tilted sum, by one transform over as many frequencies as values."""
    from scipy.optimize import brentq

    largest = int((n * values).sum())
    if score > largest:
        return -math.inf
    if score == largest:
        return float(n.sum()) * math.log(gamma)

    def mean(t: float) -> float:
        odds = gamma * np.exp(t * values)
        return float((n * values * odds / (1.0 - gamma + odds)).sum())

    t = 0.0
    if mean(0.0) < score:
        high = 1.0
        while mean(high) < score and high < 64.0:
            high *= 2.0
        t = brentq(lambda t: mean(t) - score, 0.0, high, rtol=1e-14)
    size = 1 << (largest + 1).bit_length()
    odds = gamma * np.exp(t * values)
    share = odds / (1.0 - gamma + odds)
    turn = np.exp(-2j * np.pi * (np.arange(size // 2 + 1)[:, None] * values % size) / size)
    log_function = (n * np.log1p(share * (turn - 1.0))).sum(axis=1)
    law = np.clip(np.fft.irfft(np.exp(log_function), size), 0.0, None)
    scores = np.arange(score, largest + 1)
    log_moment = float((n * np.log1p(gamma * np.expm1(t * values))).sum())
    return log_moment - float(t) * score + math.log(float((law[scores] * np.exp(-t * (scores - score))).sum()))

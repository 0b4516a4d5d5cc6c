"""The Neyman-Pearson score of the Gumbel watermark, for whoever can ask the model (paper, Advanced Detection Schemes).

S = Σ (1/p_t − 1) ln r_t, where p_t is the model's probability of the token at t. Under H0 each −(1/p_t − 1) ln r_t is
exponential of rate λ_t = p_t/(1 − p_t), so P(S ≥ s) ≤ exp(−c s) Π λ_t/(λ_t + c) for *every* c ≥ 0 (Chernoff). The best
c solves Σ 1/(λ_t + c) = −s. A solver that misses it gives a larger bound, never one that is too small.

It is computed from the draws that the main score reads, so it is no independent evidence.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.pvalues import LN10

_ROUNDING = 1e-13
"""Relative rounding of the exponent's terms, which is added to the bound; sums in double precision miss by far less."""

_LEAST_WEIGHT = 1e-100
"""Least 1/p − 1 of a token that is not taken for probability 1; above its inverse a token is taken for probability 0.
"""

_CLOSE = 1e-7
"""Precision of ln c: the exponent is flat at its least, so that an error of this size changes it by less than T ·
1e-14.
"""


class Weighted(NamedTuple):
    """Scores of D documents. used: int64[D], tokens that count; score, log10_p: float64[D]."""

    used: NDArray[np.int64]
    score: NDArray[np.float64]
    log10_p: NDArray[np.float64]


def neyman_pearson(draws: NDArray[np.uint32], log_p: NDArray[np.float64], offsets: NDArray[np.int64]) -> Weighted:
    """Score documents, with an upper bound on the p-value of each under H0.

    The probabilities may come from any model and context: they are functions of the text alone, so under H0 they leave
    the draws uniform, and the bound holds; a wrong model only costs power. Tokens of probability 1 say nothing and are
    dropped, as are those of probability 0 or NaN (unknown), which the model cannot have written.

    Args:
        draws: uint32[P], w of each scored token; r = w/2^32, so that no score exceeds that of an exact uniform.
        log_p: float64[P], ln p of each scored token, at most 0.
        offsets: int64[D+1], where each document's scored tokens begin and end.

    Returns:
        Scores at most 0 (−∞ where a draw is 0) and bounds at most 0, 0 where the score says nothing.
    """
    with np.errstate(divide="ignore"):
        log_r = np.log(draws * 2.0**-32)
    documents = len(offsets) - 1
    found = Weighted(np.zeros(documents, np.int64), np.zeros(documents), np.zeros(documents))
    for d in range(documents):
        part = slice(offsets[d], offsets[d + 1])
        of_part = log_p[part]
        with np.errstate(over="ignore"):
            weights = np.expm1(-of_part)  # 1/p − 1, without cancellation near p = 1
        kept = (weights > _LEAST_WEIGHT) & (weights < 1.0 / _LEAST_WEIGHT)  # also leaves out NaN
        found.used[d] = kept.sum()
        found.score[d] = float((weights[kept] * log_r[part][kept]).sum())
        found.log10_p[d] = log10_chernoff(found.score[d], weights[kept])
    return found


def log10_chernoff(score: float, weights: NDArray[np.float64]) -> float:
    """Upper bound on log10 P(Σ w_t ln u_t ≥ score), u_t independent and uniform (paper, Advanced Detection Schemes).

    Args:
        score: at most 0.
        weights: float64[T], w_t = 1/λ_t, finite and above 0.

    Returns:
        At most 0: log10 of the bound, 0 where the score is no better than its mean −Σ w_t, and where there is none.

    Raises:
        ValueError: a score of 0 or more, which no draw gives.
    """
    reach = -score
    if not len(weights) or reach >= weights.sum() * (1.0 - 1e-12):
        return 0.0
    if reach <= 0.0:
        raise ValueError(f"score {score} is not below 0; every draw gives less")
    best = min(_exponent(math.exp(c), reach, weights) for c in _log_solution(reach, weights))
    return min(best / LN10, 0.0)


def _exponent(c: float, reach: float, weights: NDArray[np.float64]) -> float:
    """ln of the bound at c, rounded up."""
    lost = float(np.log1p(c * weights).sum())
    return c * reach - lost + _ROUNDING * (c * reach + lost)


def _log_solution(reach: float, weights: NDArray[np.float64]) -> tuple[float, float]:
    """Ends of an interval that holds ln c, c the root of Σ w/(1 + c w) = reach, by halving: the sum falls as c grows.

    The sum lies below Σ w and below T/c, and above Σ w/(1 + c max w); these give the first interval.
    """
    low = math.log((weights.sum() / reach - 1.0) / weights.max()) - 1.0
    high = math.log(len(weights) / reach) + 1.0
    while high - low > _CLOSE:
        middle = 0.5 * (low + high)
        c = math.exp(middle)
        if float((weights / (1.0 + c * weights)).sum()) > reach:
            low = middle
        else:
            high = middle
    return low, high

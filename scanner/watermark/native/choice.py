"""Choosing one token a step for the Gumbel watermark (SPEC §2): cut to top-k and top-p, then the least −ln(r)/p.

Nothing is sorted but one bin of tokens of nearly the same probability, and a logarithm is taken only for the few tokens
that −ln r ≥ 1 − r leaves in the race: a step costs a few nanoseconds a token of the vocabulary.
"""

import math

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import GROUP, LANES, chacha8_group

_ONE = np.float64(1.0).view(np.int64)
_FINE = 49  # low bits that a bin leaves out: eight bins between powers of two
_BINS = 512  # down to 2^-64 of the most probable token; the last holds what is less probable
_SLACK = 1.0 - 1e-12  # far more than the rounding of the bound below


def minus_ln_r(draws: NDArray[np.uint32]) -> NDArray[np.float64]:
    """−ln r of draws w as marking uses it, r = (w + 1/2)/2^32; exact near r = 1, where a 32-bit r is 1 (SPEC §2).

    Args:
        draws: uint32, any shape.

    Returns:
        float64 of the same shape, above 0.
    """
    return _each_minus_ln_r(draws.flatten()).reshape(draws.shape)


@kernel
def _each_minus_ln_r(draws: NDArray[np.uint32]) -> NDArray[np.float64]:
    out = np.empty(len(draws))
    for i in range(len(draws)):
        out[i] = _minus_ln_r_of(draws[i])
    return out


@kernel
def _minus_ln_r_of(draw: uint32) -> float:
    if draw >= uint32(2**31):
        return -math.log1p(-(4294967295.5 - float(draw)) * 2.0**-32)
    return -math.log((float(draw) + 0.5) * 2.0**-32)


@kernel
def cut(weights: NDArray[np.float64], top_k: int, top_p: float) -> None:
    """Set to 0, in place, the weights that top-k and then top-p leave out.

    As in transformers, top-p is the smallest set of most probable tokens that holds at least top_p of what top-k left.
    Tokens exactly as probable as the last token kept are kept too, so the order of a sort decides nothing.

    Args:
        weights: float64[V], probabilities over that of the most probable token, so that the largest is 1.
        top_k: tokens to keep; 0 keeps all.
        top_p: share to keep, above 0; 1 keeps all.
    """
    if 0 < top_k < len(weights):
        _keep_from(weights, _threshold(weights, True, float(top_k)))
    if top_p < 1.0:
        _keep_from(weights, _threshold(weights, False, top_p))


@kernel
def _keep_from(weights: NDArray[np.float64], least: float) -> None:
    for v in range(len(weights)):
        if weights[v] < least:
            weights[v] = 0.0


@kernel
def _bin(weight: float) -> int:
    """The bin of a weight: larger weights have smaller bins."""
    place = (_ONE - np.float64(weight).view(np.int64)) >> _FINE
    return int(place) if place < _BINS else _BINS - 1


@kernel
def _threshold(weights: NDArray[np.float64], counting: bool, wanted: float) -> float:
    """Least weight that is kept.

    The kept tokens are `wanted` many (counting), or hold the share `wanted` of all weight.
    """
    held = np.zeros(_BINS)
    for v in range(len(weights)):
        held[_bin(weights[v])] += 1.0 if counting else weights[v]
    need = wanted if counting else wanted * held[::-1].sum()
    kept, place = 0.0, 0
    while place < _BINS - 1 and kept + held[place] < need:
        kept += held[place]
        place += 1
    among = np.sort(np.array([weight for weight in weights if _bin(weight) == place]))
    for i in range(len(among) - 1, 0, -1):
        kept += 1.0 if counting else among[i]
        if kept >= need:
            return float(among[i])
    return float(among[0]) if len(among) else 0.0


@kernel
def cheapest(
    draws: NDArray[np.uint32], weights: NDArray[np.float64], first: int, chosen: int, cost: float
) -> tuple[int, float]:
    """The token of least cost −ln(r)/weight among tokens of weight above 0 and the token chosen before.

    Args:
        draws: uint32[n], of tokens first … first+n−1.
        weights: float64[n], of the same.
        first: see draws.
        chosen: the token chosen before; −1 at the beginning. A tie leaves it.
        cost: its cost; inf at the beginning.

    Returns:
        token and cost after these.
    """
    for i in range(len(draws)):
        # −ln r ≥ 1 − r: most tokens are out without a logarithm
        rest = (4294967295.5 - float(draws[i])) * (2.0**-32 * _SLACK)
        if rest < cost * weights[i]:
            of_row = _minus_ln_r_of(draws[i]) / weights[i]
            if of_row < cost:
                chosen, cost = first + i, of_row
    return chosen, cost


@kernel
def choose(key: NDArray[np.uint32], nonce: uint64, message: int, weights: NDArray[np.float64]) -> int:
    """Token of one step: the least −ln(r_{v+m})/p_v among those with p_v > 0, ties to the smallest id (SPEC §2).

    Args:
        key: uint32[8].
        nonce: of the step's window.
        message: m ≥ 0.
        weights: float64[V], p up to a factor.

    Returns:
        The token, −1 when every weight is 0.
    """
    draws = np.empty(GROUP, np.uint32)
    chosen, cost = -1, math.inf
    stop = message + len(weights)
    for group in range(message // GROUP, (stop - 1) // GROUP + 1):
        first, last = max(message, group * GROUP), min(stop, (group + 1) * GROUP)
        some = weights[first - message : last - message]
        if some.max() == 0.0:
            continue
        chacha8_group(key, uint64(group * LANES), nonce, draws)
        chosen, cost = cheapest(
            draws[first - group * GROUP : last - group * GROUP], some, first - message, chosen, cost
        )
    return chosen

"""Marking one step, slowly: from SPEC §2 and the definitions of temperature, top-k and top-p, a token at a time."""

from collections.abc import Sequence
from fractions import Fraction

import mpmath

from tests import reference


def biased(
    secret: bytes,
    window: int,
    gamma: Fraction,
    delta: float,
    previous: Sequence[int],
    message: int,
    logits: list[float],
) -> list[float]:
    """Logits of a step with δ added to green tokens; unchanged with fewer than h previous tokens."""
    if len(previous) < window:
        return logits
    keys = reference.sub_keys(secret, reference.label("greenlist", window, gamma))
    nonce = reference.window_nonce(keys, previous[len(previous) - window :])
    return [x + delta * reference.is_green(keys, nonce, v + message, gamma) for v, x in enumerate(logits)]


def distribution(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[mpmath.mpf]:
    """Probability with which each token is sampled, 0 for every token that is cut off."""
    weights = [mpmath.exp(mpmath.mpf(x) / temperature) for x in logits]
    order = sorted(range(len(weights)), key=lambda v: -weights[v])
    if top_k:
        order = order[:top_k]
    total = sum(weights[v] for v in order)
    kept, mass = [], mpmath.mpf(0)
    for v in order:
        kept.append(v)
        mass += weights[v] / total
        if mass >= top_p:
            break
    rest = sum(weights[v] for v in kept)
    return [weights[v] / rest if v in set(kept) else mpmath.mpf(0) for v in range(len(weights))]


def chosen(draws: Sequence[int], p: Sequence[mpmath.mpf]) -> int:
    """The token of smallest −ln(r)/p among those with p > 0; the first of several."""
    costs = {v: reference.minus_ln_r(w) / p[v] for v, w in enumerate(draws) if p[v] > 0}
    return min(costs, key=lambda v: (costs[v], v))


def gumbel_token(
    secret: bytes, window: int, previous: Sequence[int], message: int, p: Sequence[mpmath.mpf]
) -> int | None:
    """The token of a step under a Gumbel mark; None when the step is not marked."""
    if len(previous) < window:
        return None
    keys = reference.sub_keys(secret, reference.label("gumbel", window))
    nonce = reference.window_nonce(keys, previous[len(previous) - window :])
    return chosen([reference.draw(keys, nonce, v + message) for v in range(len(p))], p)

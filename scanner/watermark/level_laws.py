"""Compute the laws of weighted sums Σ v·x. v is the value of a token's level, x is the token's own term.

Levels depend only on the text. Under H0 the x therefore stay independent draws of the law of an unweighted score. The
law of the sum depends on how many scored tokens have each level, and on nothing else in the text.

**Gumbel**: x is exponential of mean 1. An exponential of mean v is a sum of exponentials of mean b ≤ v. Their number is
geometric with success b/v. With b the least value that counts, the sum has N exponentials of mean b, at least n:

    P(S ≥ s) = Σ_N P(N) · Q(N, s/b),   Q(k, x) = Γ(k, x)/Γ(k),
    k·P(N = n+k) = Σ_v n_v Σ_{0 < j ≤ k} (1 − b/v)^j · P(N = n+k−j).

All terms are positive, so nothing cancels. They are log-concave in N, so the omitted rest is less than a geometric
series.

**Green list**: x = 1 with chance γ. Binomial laws are tilted so that the mean of the sum is s, cut where they are
negligible, and convolved. The part that was cut off counts as if it reached s.

Both laws add a bound on the rounding of their sums, so no p-value is too small.

**Levels** come from a language model's prediction of the text. The surprise of a token is −ln p̂, where p̂ is the
chance that the model gave it. It is divided among the token's characters and stored in steps, one byte a character. The
levels of any tokenizer's tokens follow from these bytes alone, so proofs and replays need no model. Only the order of
tokens by p̂ matters, not p̂ itself (docs/concepts/weighted-evidence.md).
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.pvalues import LN10, _log_binomial, _log_poisson, _log_upper_gamma

LEVELS = 8
"""Number of levels above 0. A token of level v counts v times, a token of level 0 does not count."""

_ROUNDING = 2.0**-50
"""Relative rounding of a sum for each added term, and of a logarithm for each unit of its size.

It is four times the loss of double precision.
"""

_ROUNDING_OF_A_STEP = 2.0**-52
"""Relative rounding for each step of the series of exponential sums, where the errors of the steps add up.

It is twice the loss of double precision in a step's (values + 8) operations. It also holds for each token and each unit
of x of Q(n, x), because the logarithm of Q is a difference of terms of that size.
"""

_LARGE = 1e100  # a running product is scaled when it is above this, or below its inverse
_NOTHING = 1e-17  # share of a sum below which the rest is bounded instead of added
_STEEPEST = 60.0  # largest tilt times the largest value: beyond it the sum is at its largest


def log10_gumbel_levels(score: ArrayLike, counts: ArrayLike, values: ArrayLike) -> NDArray[np.float64]:
    """Compute log10 P(Σ v·x ≥ S) for exponential x of mean 1. 0 where no token counts.

    Args:
        score: S ≥ 0, float64[D].
        counts: how many tokens have each value, integers [D, L].
        values: v, float64[L], 0 or more.

    Returns:
        float64[D]. p is never too small, and too large by at most the share `most_added`.
    """
    s, n = np.asarray(score, np.float64), np.asarray(counts, np.float64)
    return _each_gumbel(s, n, np.asarray(values, np.float64))


def log10_greenlist_levels(
    score: ArrayLike, counts: ArrayLike, values: ArrayLike, gamma: Fraction
) -> NDArray[np.float64]:
    """Compute log10 P(Σ v·x ≥ S) for x that are 1 with chance γ, else 0. 0 where no token counts.

    Args:
        score: S, whole numbers, float64[D].
        counts: how many tokens have each value, integers [D, L].
        values: v, whole numbers of 0 or more, [L].
        gamma: γ.

    Returns:
        float64[D]. −∞ beyond the largest sum. p is never too small, with a relative error below 1e-9 for up to 100,000
        tokens.
    """
    s, n = np.asarray(score, np.float64), np.asarray(counts, np.float64)
    return _each_greenlist(s, n, np.asarray(values, np.int64), float(gamma))


def most_added(scored: int, keys: int, least_weight: float) -> float:
    """Bound the amount that these laws add to ln p. They add it so that rounding makes no p too small.

    Twice the largest mean over the least value bounds the size of each logarithm, and half of the number of steps in
    the series of exponential sums. For larger sums, the added amount is far below 1e-9 of ln p.

    Args:
        scored: number of tokens that count.
        keys: number of keys whose sums are added up.
        least_weight: smallest weight of a key, above 0. The weights of all keys add up to 1.
    """
    return _ROUNDING_OF_A_STEP * (2 * LEVELS * (keys + 1) + 7) * 2.0 * LEVELS * scored / least_weight


@kernel
def _each_gumbel(s: NDArray[np.float64], n: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        counting = (n[i] > 0.0) & (values > 0.0)
        if counting.any() and s[i] > 0.0:
            out[i] = min(_log_gumbel_tail(s[i], n[i][counting], values[counting]) / LN10, 0.0)
    return out


@kernel
def _log_gumbel_tail(s: float, n: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Compute ln P(Σ v·x ≥ s), for s > 0 and all n and v above 0."""
    base = float(values.min())
    x, failure = s / base, 1.0 - base / values
    first = float(n.sum())
    log_chance, log_tail = float((n * np.log(base / values)).sum()), _log_upper_gamma(first, x)
    log_scale = log_chance + log_tail
    rounding = _ROUNDING * (4.0 - log_chance - log_tail) + _ROUNDING_OF_A_STEP * (first + x)
    # in units of the first term: `chance` of N, `tail` of Q, `step` by which Q grows, `value_sums` the sums over j
    chance, tail, step = 1.0, 1.0, math.exp(_log_poisson(first, x) - log_tail)
    value_sums = np.zeros(len(n))
    total, term, last, k = 1.0, 1.0, 1.0, 0.0
    if failure.max() == 0.0:
        return log_scale + rounding
    while term >= last or term > _NOTHING * total * ((last - term) / last):
        k += 1.0
        last, added = term, 0.0
        for v in range(len(n)):
            value_sums[v] = failure[v] * (chance + value_sums[v])
            added += n[v] * value_sums[v]
        chance = added / k
        tail += step
        step *= x / (first + k)
        term = chance * tail
        total += term
        if chance > _LARGE or chance < 1.0 / _LARGE:
            log_scale += math.log(chance)
            value_sums /= chance
            total, term, last, chance = total / chance, term / chance, last / chance, 1.0
        if tail > _LARGE:
            log_scale += math.log(tail)
            step /= tail
            total, term, last, tail = total / tail, term / tail, last / tail, 1.0
    rounding += _ROUNDING_OF_A_STEP * (len(n) + 8.0) * k
    return log_scale + math.log(total + term * (term / (last - term))) + rounding


@kernel
def _each_greenlist(
    s: NDArray[np.float64], n: NDArray[np.float64], values: NDArray[np.int64], gamma: float
) -> NDArray[np.float64]:
    out = np.zeros(len(s))
    for i in range(len(s)):
        counting = (n[i] > 0.0) & (values > 0)
        if counting.any() and s[i] > 0.0:
            out[i] = min(_log_greenlist_tail(s[i], n[i][counting], values[counting], gamma) / LN10, 0.0)
    return out


@kernel
def _log_greenlist_tail(s: float, n: NDArray[np.float64], values: NDArray[np.int64], gamma: float) -> float:
    """Compute ln P(Σ v·x ≥ s), for s > 0 and all n and v above 0."""
    largest = (n * values).sum()
    if s > largest:
        return -math.inf
    if s == largest:
        return float(n.sum()) * math.log(gamma) * (1.0 - 2.0**-50)
    tilt = _tilt(s, n, values, gamma)
    begin, law, cut_mass, log_moments = 0, np.ones(1), 0.0, 0.0
    for v in range(len(n)):
        moment = math.log1p(gamma * math.expm1(tilt * values[v]))
        log_moments += n[v] * moment
        share = gamma * math.exp(tilt * values[v] - moment)
        low, value_law, value_cut_mass = _middle(n[v], share)
        begin, law = begin + low * values[v], _convolved(law, value_law, values[v])
        cut_mass += value_cut_mass
    place, total = int(s) - begin, cut_mass
    for i in range(max(place, 0), len(law)):
        total += law[i] * math.exp(-tilt * (i - place))
    if total <= 0.0:
        return -math.inf
    rounding = _ROUNDING * (8.0 + log_moments + tilt * s + n.sum())
    log_tail: float = log_moments - tilt * s + math.log(total) + rounding
    return log_tail


@kernel
def _tilt(s: float, n: NDArray[np.float64], values: NDArray[np.int64], gamma: float) -> float:
    """Find the tilt under which the mean is s, by bisection. 0 if the mean is at least s without a tilt.

    Any tilt gives a valid law.
    """
    low, high = 0.0, _STEEPEST / values.max()
    for _ in range(60):
        middle, mean = 0.5 * (low + high), 0.0
        for v in range(len(n)):
            power = gamma * math.exp(middle * values[v])
            mean += n[v] * values[v] * power / (1.0 - gamma + power)
        if mean < s:
            low = middle
        else:
            high = middle
    return low if low > 1e-9 else 0.0


@kernel
def _middle(n: float, share: float) -> tuple[int, NDArray[np.float64], float]:
    """Return the part of a binomial law that is not negligible.

    Returns:
        Its first count.
        The chances from this count on.
        A bound on the chances that were cut off.
    """
    # Away from the mode, the chances fall by growing factors: the cut-off rest is less than a geometric series.
    mode = min(math.floor((n + 1.0) * share), n)
    top = math.exp(_log_binomial(mode, n, share))
    odds = share / (1.0 - share)
    low, low_chance, last_low_chance = mode, top, top
    while low > 0.0 and low_chance > _NOTHING * top:
        last_low_chance, low_chance = low_chance, low_chance * low / ((n - low + 1.0) * odds)
        low -= 1.0
    cut_mass = low_chance * low_chance / (last_low_chance - low_chance) if low > 0.0 else 0.0
    high, high_chance, last_high_chance = mode, top, top
    while high < n and high_chance > _NOTHING * top:
        last_high_chance, high_chance = high_chance, high_chance * (n - high) * odds / (high + 1.0)
        high += 1.0
    cut_mass += high_chance * high_chance / (last_high_chance - high_chance) if high < n else 0.0
    law = np.empty(int(high - low) + 1)
    law[int(mode - low)] = top
    for k in range(int(mode - low), 0, -1):
        law[k - 1] = law[k] * (low + k) / ((n - low - k + 1.0) * odds)
    for k in range(int(mode - low), len(law) - 1):
        law[k + 1] = law[k] * (n - low - k) * odds / (low + k + 1.0)
    return int(low), law, cut_mass


@kernel
def _convolved(law: NDArray[np.float64], value_law: NDArray[np.float64], value: int) -> NDArray[np.float64]:
    out = np.zeros(len(law) + (len(value_law) - 1) * value)
    for k in range(len(value_law)):
        beyond, chance = out[k * value :], value_law[k]
        for i in range(len(law)):
            beyond[i] += law[i] * chance
    return out


STEPS_A_NAT = 16
"""Steps of surprise in one nat. A character has at most 255 steps, p̂ = 1e-7."""

MOST_SURPRISE = 100.0
"""Largest surprise of a token that counts: p̂ = 4e-44. A model may rule out a token that texts have nevertheless."""

CHARACTERS_READ = 2**16
"""Number of characters of a text that a model reads, a minute of one core. Later characters do not count."""


def of_characters(surprise: NDArray[np.float64], begins: NDArray[np.int64], characters: int) -> NDArray[np.uint8]:
    """Return the steps of surprise of each character of a text, uint8[C].

    A token ends where the next one begins. If several tokens begin at one character, each of them has that character.

    Args:
        surprise: −ln p̂ of the model's tokens, float64[N], 0 or more. ∞ counts as MOST_SURPRISE.
        begins: the character at which each token begins, int64[N], in order.
        characters: C.
    """
    ends = np.maximum(np.append(begins[1:], characters), begins + 1)
    edges, density = np.zeros(characters + 2), np.minimum(surprise, MOST_SURPRISE) / (ends - begins)
    np.add.at(edges, begins, density)
    np.add.at(edges, ends, -density)
    total = np.maximum.accumulate(np.cumsum(np.cumsum(edges)[:characters]))
    return np.asarray(np.minimum(np.diff(np.rint(STEPS_A_NAT * total), prepend=0.0), 255), np.uint8)


def levels_of(steps: NDArray[np.uint8], begins: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Compute the levels of a key's tokens: uint8[N].

    A level is LEVELS · (1 − √p̂), rounded, with p̂ of the token's characters. For example, p̂ = 0.9 gives level 0, 0.25
    gives 4, and 0.01 gives 7.

    Args:
        steps: of each character, uint8[C]. Tokens that begin after them have level 0.
        begins: as for `of_characters`, of the key's tokens.
    """
    total = np.concatenate([[0.0], np.cumsum(steps, dtype=np.float64)]) / STEPS_A_NAT
    ends = np.minimum(np.maximum(np.append(begins[1:], len(steps)), begins + 1), len(steps))
    surprise = total[ends] - total[np.minimum(begins, len(steps))]
    return np.asarray(np.rint(LEVELS * -np.expm1(-surprise / 2.0)), np.uint8)

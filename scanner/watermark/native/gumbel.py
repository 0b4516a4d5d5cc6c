"""Score and mark by the Gumbel watermark of Aaronson et al. (paper, Modification of the Sampling; SPEC §1 to §3).

Published scores are sums in double precision, in order of position, by the one-message path only. In a search, all
messages are first bounded (`sum_bits`). In long documents they are instead summed in integers, each term from a short
polynomial with a proven error. Every message that could still be best or second best is then scored again by the
one-message path.

Marking chooses one token a step (SPEC §2): it cuts to top-k and top-p, then takes the smallest −ln(r)/p. Only one bin
of tokens with nearly the same probability is sorted. A logarithm is taken only for the few tokens that −ln r ≥ 1 − r
does not rule out. So a step costs a few nanoseconds for each token of the vocabulary.
"""

import math
from typing import ClassVar

import numpy as np
from numpy import float32, int32, uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.laws import Law, NegativeGamma
from scanner.watermark.native.ciphers import CHUNK, LANES, WORDS_A_GROUP, chacha8_group
from scanner.watermark.native.keyed import BestMessages, GumbelMark, term, terms_of
from scanner.watermark.native.streams import ScoredSteps, blocks_of_words, row_of_word
from scanner.watermark.native.version1 import Version1Mark
from scanner.watermark.positions import Positions, Tokens

_ONE = np.float64(1.0).view(np.int64)
_FINE = 49  # low bits that a bin leaves out: eight bins between powers of two
_BINS = 512  # down to 2^-64 of the most probable token; the last bin holds all less probable ones
_SLACK = 1.0 - 1e-12  # far more than the rounding of the bound below


def minus_ln_r(draws: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return −ln r of draws w as marking uses it, r = (w + 1/2)/2^32 (SPEC §2): float64 of the same shape, above 0.

    It is exact near r = 1, where a 32-bit r would be 1. draws: uint32, any shape.
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

    As in transformers, top-p is the smallest set of most probable tokens that holds at least top_p of the rest after
    top-k. Tokens exactly as probable as the last kept token are kept too, so the order of a sort decides nothing.

    Args:
        weights: float64[V], probabilities divided by that of the most probable token, so the largest is 1.
        top_k: 0 keeps all.
        top_p: above 0. 1 keeps all.
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
    """Return the bin of a weight. Larger weights have smaller bins."""
    place = (_ONE - np.float64(weight).view(np.int64)) >> _FINE
    return int(place) if place < _BINS else _BINS - 1


@kernel
def _threshold(weights: NDArray[np.float64], counting: bool, amount: float) -> float:
    """Return the least weight that is kept.

    Args:
        weights: float64[V], at most 1.
        counting: whether `amount` is a number of tokens. Else it is a share of all weight.
        amount: how much is kept.
    """
    bin_totals = np.zeros(_BINS)
    for v in range(len(weights)):
        bin_totals[_bin(weights[v])] += 1.0 if counting else weights[v]
    need = amount if counting else amount * bin_totals[::-1].sum()
    total, place = 0.0, 0
    while place < _BINS - 1 and total + bin_totals[place] < need:
        total += bin_totals[place]
        place += 1
    bin_weights = np.sort(np.array([weight for weight in weights if _bin(weight) == place]))
    for i in range(len(bin_weights) - 1, 0, -1):
        total += 1.0 if counting else bin_weights[i]
        if total >= need:
            return float(bin_weights[i])
    return float(bin_weights[0]) if len(bin_weights) else 0.0


@kernel
def cheapest(
    draws: NDArray[np.uint32], weights: NDArray[np.float64], first: int, chosen: int, cost: float
) -> tuple[int, float]:
    """Return the token of least cost −ln(r)/weight, and its cost.

    It is one of the tokens of weight above 0, or the token chosen before, which wins a tie.

    Args:
        draws: uint32[n], of tokens first … first+n−1.
        weights: float64[n], of the same tokens.
        first: their first id.
        chosen: the token chosen before, −1 at the beginning.
        cost: its cost, ∞ at the beginning.
    """
    for i in range(len(draws)):
        # −ln r ≥ 1 − r = (2^32 − 1/2 − w)/2^32: most tokens are out without a logarithm
        bound = (4294967295.5 - float(draws[i])) * (2.0**-32 * _SLACK)
        if bound < cost * weights[i]:
            token_cost = _minus_ln_r_of(draws[i]) / weights[i]
            if token_cost < cost:
                chosen, cost = first + i, token_cost
    return chosen, cost


@kernel
def choose(key: NDArray[np.uint32], nonce: uint64, message: int, weights: NDArray[np.float64]) -> int:
    """Return the token of one step: the least −ln(r_{v+m})/p_v among those with p_v > 0 (SPEC §2).

    Args:
        key: uint32[8].
        nonce: of the step's window.
        message: m ≥ 0.
        weights: float64[V], p up to a factor.

    Returns:
        The token. Ties go to the smallest id. −1 if every weight is 0.
    """
    draws = np.empty(WORDS_A_GROUP, np.uint32)
    token, cost = -1, math.inf
    stop = message + len(weights)
    for group in range(message // WORDS_A_GROUP, (stop - 1) // WORDS_A_GROUP + 1):
        first, last = max(message, group * WORDS_A_GROUP), min(stop, (group + 1) * WORDS_A_GROUP)
        group_weights = weights[first - message : last - message]
        if group_weights.max() == 0.0:
            continue
        chacha8_group(key, uint64(group * LANES), nonce, draws)
        token, cost = cheapest(
            draws[first - group * WORDS_A_GROUP : last - group * WORDS_A_GROUP],
            group_weights,
            first - message,
            token,
            cost,
        )
    return token


LONGEST_BOUNDED = 2048
"""Largest number of positions for which the bound is used.

Up to this number, sums fit 32 bits, and few messages reach an exact score by mistake.
"""

BOUND_TILE = 8192
"""Number of messages that are summed at a time. Their sums fit the first-level cache."""

GROUPS_A_LOOP = 4
"""Number of groups whose bits are added by one loop."""

_PER_LN2 = 2.0**11 / math.log(2.0)  # units of the sums in one ln 2
MOST_OF_A_TERM = (127 + 32) << 11  # a term at log2(2^32 − w) = −127

GUMBEL_TILE = 4096
"""Number of messages that are summed at a time. Their sums fit the first-level cache."""

TERM_ERROR = 16
"""Largest error of an approximate term, in units of ln 2 / 2^23. No draw reaches it (test_gumbel_terms)."""

SUM_UNIT = math.log(2.0) / 2**23
"""Size of one unit in the integer sums of Gumbel terms."""

TERMS_OF_32_BITS = 15
"""Number of terms whose sum fits 32 bits. Each is at most 2^28 units."""

# log2(1+f) = f + f(1−f) q(f) for 0 ≤ f ≤ 1: q by Chebyshev fit, error below 1.5e-6
_Q0, _Q1, _Q2 = float32(0.4426888535372961), float32(-0.27820167313290567), float32(0.19666100261241318)
_Q3, _Q4, _Q5 = float32(-0.13144653928966485), float32(0.06407293987417571), float32(-0.015125446952598732)


class Gumbel(GumbelMark, Version1Mark):
    """The Gumbel mark of version 1. Arguments and errors are those of GumbelMark, without groups."""

    method = "gumbel"

    def _added(self, nonces: NDArray[np.uint64], entries: NDArray[np.int64]) -> NDArray[np.float64]:
        return terms_of(draws_at(self._keys.chacha, nonces, entries), self._unweighted)

    def _best_two(self, steps: ScoredSteps, count: int) -> BestMessages:
        return BestMessages(*_best_two(self._keys.chacha, *steps, count))

    def draws(self, nonces: NDArray[np.uint64], starts: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
        """Return draws start … start+count−1 of the secret vector of each step: uint32[R, count] (SPEC §1)."""
        out = np.empty((len(nonces), count), np.uint32)
        _draw_runs(self._keys.chacha, nonces, np.asarray(starts, np.int64), out)
        return out

    def choose(self, nonce: np.uint64, message: int, weights: NDArray[np.float64]) -> int:
        """Return the token to write at a step: the one of least −ln(r)/p. −1 if every weight is 0 (SPEC §2).

        Args:
            nonce: of the step's window.
            message: m.
            weights: float64[V], the probabilities up to a factor.
        """
        return choose(self._keys.chacha, nonce, message, weights)

    def draws_of(self, tokens: Tokens, positions: Positions, messages: NDArray[np.int64] | int) -> NDArray[np.uint32]:
        """Return the draw of each scored token under its document's message: uint32[P]."""
        entries = self._entries(tokens, positions, messages)
        return draws_at(self._keys.chacha, self._nonces(tokens, positions), entries)


class LogGumbel(Gumbel):
    """The unweighted score Σ ln r over the same streams (paper, Simplified Score Function). It has only one message."""

    law: Law = NegativeGamma()
    _unweighted: ClassVar[bool] = True


@kernel
def sum_scores(draws: NDArray[np.uint32], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Σ −ln(1−r) of each run of draws, in their order: float64[D] for uint32[P] and offsets int64[D+1]."""
    sums = np.zeros(len(offsets) - 1)
    for d in range(len(sums)):
        for p in range(offsets[d], offsets[d + 1]):
            sums[d] += term(draws[p])
    return sums


@kernel
def draws_at(key: NDArray[np.uint32], nonces: NDArray[np.uint64], entries: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the draw of one entry of each nonce's vector: uint32[P] for uint64[P] and int64[P] (SPEC §1)."""
    draws = np.empty(len(entries), np.uint32)
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    for begin in range(0, len(entries), CHUNK):
        chunk = entries[begin : begin + CHUNK]
        blocks_of_words(key, nonces[begin:], chunk, 16, inputs, block)
        for i in range(len(chunk)):
            draws[begin + i] = block[row_of_word(chunk[i], 16) * uint64(CHUNK) + uint64(i)]
    return draws


@kernel
def _draw_runs(
    key: NDArray[np.uint32], nonces: NDArray[np.uint64], starts: NDArray[np.int64], out: NDArray[np.uint32]
) -> None:
    count = out.shape[1]
    block = np.empty(WORDS_A_GROUP, np.uint32)
    for r in range(len(nonces)):
        stop = starts[r] + count
        for group in range(starts[r] // WORDS_A_GROUP, (stop - 1) // WORDS_A_GROUP + 1):
            chacha8_group(key, uint64(group * LANES), nonces[r], block)
            first, last = max(starts[r], group * WORDS_A_GROUP), min(stop, (group + 1) * WORDS_A_GROUP)
            out[r, first - starts[r] : last - starts[r]] = block[
                first - group * WORDS_A_GROUP : last - group * WORDS_A_GROUP
            ]


@kernel
def approximate_terms(draws: NDArray[np.uint32], scratch: NDArray[np.float32], terms: NDArray[np.uint32]) -> None:
    """Write −ln(1−r) of each draw in units of ln 2 / 2^23. The error is at most TERM_ERROR, the value at most 2^28.

    2^32 − w is rounded to a 32-bit float. The bits of the float are a logarithm to base 2 that is linear between powers
    of two. A polynomial in the fraction corrects the rest.
    """
    for i in range(len(draws)):
        scratch[i] = float32(~draws[i]) + float32(1.0)
    bits = scratch.view(np.uint32)
    for i in range(len(draws)):
        f = float32(uint32(bits[i] & uint32(0x7FFFFF))) * float32(2.0**-23)
        q = _Q0 + f * (_Q1 + f * (_Q2 + f * (_Q3 + f * (_Q4 + f * _Q5))))
        correction = int32(f * (float32(1.0) - f) * q * float32(2.0**23))
        terms[i] = uint32(uint32(0x4F800000) - bits[i]) - uint32(correction)


@kernel
def sum_tile(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first_message: int,
    strip: NDArray[np.uint32],
    sums: NDArray[np.int64],
) -> None:
    """Write approximate scores of one document, in units, under the messages of a tile."""
    block, scratch = np.empty(WORDS_A_GROUP, np.uint32), np.empty(WORDS_A_GROUP, np.float32)
    partial = np.zeros(len(sums), np.uint32)
    sums[:] = 0
    for t in range(len(ids)):
        start = int(ids[t]) + first_message
        first_group = start // WORDS_A_GROUP
        for group in range(first_group, (start + len(sums) - 1) // WORDS_A_GROUP + 1):
            chacha8_group(key, uint64(group * LANES), nonces[t], block)
            place = (group - first_group) * WORDS_A_GROUP
            approximate_terms(block, scratch, strip[place : place + WORDS_A_GROUP])
        shifted = strip[start - first_group * WORDS_A_GROUP :]
        for m in range(len(sums)):
            partial[m] += shifted[m]
        if t % TERMS_OF_32_BITS == TERMS_OF_32_BITS - 1 or t == len(ids) - 1:
            for m in range(len(sums)):
                sums[m] += np.int64(partial[m])
                partial[m] = 0


@kernel
def _shortlist(sums: NDArray[np.int64], scored: int) -> NDArray[np.int64]:
    """Return every message that can be best or second best in double precision."""
    # A sum of T approximate terms is wrong by at most T · TERM_ERROR units. The published double-precision sum is wrong
    # by far less, T · S · 2^-50. Two messages reach the second-largest approximate sum. Both beat every message more
    # than twice the bound below it.
    best, second = np.int64(-1), np.int64(-1)
    for m in range(len(sums)):
        if sums[m] > best:
            best, second = sums[m], best
        elif sums[m] > second:
            second = sums[m]
    bound = scored * TERM_ERROR + 1 + np.int64(scored * float(best) * 2.0**-50)
    return np.flatnonzero(sums >= second - 2 * bound)


@kernel
def _best_two(
    key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], offsets: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    documents = len(offsets) - 1
    message, score = np.zeros(documents, np.int64), np.zeros(documents)
    second, second_score = np.full(documents, 1 if count > 1 else -1, np.int64), np.zeros(documents)
    strip = np.empty(GUMBEL_TILE + 2 * WORDS_A_GROUP, np.uint32)
    sums, bit_sums = np.empty(0, np.int64), np.empty(0, np.uint32)
    for d in range(documents):
        begin, end = offsets[d], offsets[d + 1]
        scored, steps = ids[begin:end], nonces[begin:end]
        if begin == end:
            continue
        if end - begin <= LONGEST_BOUNDED:
            if not len(bit_sums):
                bit_sums = np.empty(count, np.uint32)
            candidates = _shortlist_by_bounds(key, scored, steps, bit_sums)
        else:
            if not len(sums):
                sums = np.empty(count, np.int64)
            for first in range(0, count, GUMBEL_TILE):
                sum_tile(key, scored, steps, first, strip, sums[first : first + GUMBEL_TILE])
            candidates = _shortlist(sums, end - begin)
        best, runner_up = -1.0, -1.0
        for m in candidates:
            exact = score_of(key, scored, steps, m)
            # messages come in order, so only a strictly larger score replaces an earlier one
            if exact > best:
                second[d], runner_up = (message[d] if best >= 0.0 else -1), best
                message[d], best = m, exact
            elif exact > runner_up:
                second[d], runner_up = m, exact
        score[d], second_score[d] = best, max(runner_up, 0.0)
    return message, score, second, second_score


@kernel
def score_of(key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], m: int) -> float:
    """Compute the score of one message over one document's scored tokens, by the one-message path."""
    offsets = np.array([0, len(ids)], np.int64)
    score: float = sum_scores(draws_at(key, nonces, ids.astype(np.int64) + m), offsets)[0]
    return score


@kernel
def _add_bits(draws: NDArray[np.uint32], sums: NDArray[np.uint32]) -> None:
    """Add to sums the exponent and 11 bits of the fraction of (2^32 − w) as a float.

    Each addend is at most one too small.
    """
    for i in range(len(draws)):
        # ~w is 2^32 − 1 − w, and its last bit is set so that it is never 0
        complement = float32(uint32(~draws[i] | uint32(1)))
        sums[i] += uint32(complement.view(np.uint32) >> uint32(12))


@kernel
def sum_bits(
    key: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    first_message: int,
    sums: NDArray[np.uint32],
) -> None:
    """Write sums of one document under a tile of messages. The larger a score, the smaller its sum.

    The bits of a float are a logarithm to base 2 that is linear between powers of two, and below the true one by up to
    0.0861. So sums of the bits of R = 2^32 − w bound every score from above, at a quarter of a logarithm's cost.

    Args:
        key: uint32[8].
        ids: uint32[T], scored tokens, T ≤ LONGEST_BOUNDED.
        nonces: uint64[T].
        first_message: first message of the tile.
        sums: uint32[WORDS_A_GROUP + messages + WORDS_A_GROUP], written. Message first_message + i is at WORDS_A_GROUP +
            i, and the rest has no meaning.
    """
    block = np.empty(GROUPS_A_LOOP * WORDS_A_GROUP, np.uint32)
    messages = len(sums) - 2 * WORDS_A_GROUP
    sums[:] = uint32(0)
    for t in range(len(ids)):
        start = int(ids[t]) + first_message
        first, stop = start // WORDS_A_GROUP, (start + messages - 1) // WORDS_A_GROUP + 1
        place = WORDS_A_GROUP - (start - first * WORDS_A_GROUP)
        for begin in range(first, stop, GROUPS_A_LOOP):
            groups = min(GROUPS_A_LOOP, stop - begin)
            for group in range(groups):
                out = block[group * WORDS_A_GROUP : (group + 1) * WORDS_A_GROUP]
                chacha8_group(key, uint64((begin + group) * LANES), nonces[t], out)
            _add_bits(block[: groups * WORDS_A_GROUP], sums[place : place + groups * WORDS_A_GROUP])
            place += groups * WORDS_A_GROUP


@kernel
def largest_sum_of(score: float, scored: int) -> int:
    """Return the largest sum that a message with this score can have, over so many positions.

    A message with a larger sum has a smaller score. Cutting off bits makes a sum smaller and the bound larger, which is
    safe. A conversion rounds up by at most 2^-24, far less than one unit over all positions. 1e-9 is more than the
    error of double-precision sums.
    """
    return int(scored * MOST_OF_A_TERM - score * (1.0 - 1e-9) * _PER_LN2) + 2


@kernel
def _shortlist_by_bounds(
    key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], sums: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Return every message that can be best or second best in double precision."""
    # The two messages of smallest sums are scored exactly. The second-best score of all is at least the smaller of
    # these two. So no message whose bound is below that can have it.
    tile = np.empty(BOUND_TILE + 2 * WORDS_A_GROUP, np.uint32)
    for first in range(0, len(sums), BOUND_TILE):
        messages = min(BOUND_TILE, len(sums) - first)
        tile_sums = tile[: messages + 2 * WORDS_A_GROUP]
        sum_bits(key, ids, nonces, first, tile_sums)
        sums[first : first + messages] = tile_sums[WORDS_A_GROUP : WORDS_A_GROUP + messages]
    a, b = (0, 1) if sums[0] <= sums[1] else (1, 0)
    for m in range(2, len(sums)):
        if sums[m] < sums[b]:
            a, b = (m, a) if sums[m] < sums[a] else (a, m)
    second_score = min(score_of(key, ids, nonces, a), score_of(key, ids, nonces, b))
    return np.flatnonzero(sums <= largest_sum_of(second_score, len(ids)))

"""Very many scores of unmarked text: all messages of a document, under a key that is drawn for that document alone.

Fresh keys make documents independent draws of the law, whatever the corpus repeats. The scores are those of the
kernels that a scan searches with; here they are compared with critical scores instead of being searched for the largest
one. Nothing of the size of the messages is kept.

Under a key with groups, what group steps add for any group and what user steps add for any user make a score that has
the law of a message's, since no two of these numbers read one entry. So G groups and V users give G·V scores at the
price of G + V. Those that share a group or a user are dependent: a document is one cluster.

Kernels take chacha, uint32[D, 8], of keys of their own; n, b and planes of γ = n / 2^b as `rule`; critical scores,
[D, J].
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.format import Hits
from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, WORDS_A_GROUP, chacha8_lanes
from scanner.watermark.native.green_runs import at_least, bit_length, count_run, first_bits, levels_of, words_of
from scanner.watermark.native.greenlist import GREENLIST_TILE, POSITIONS_A_PASS, count_tile, levels, strip_words
from scanner.watermark.native.gumbel import GUMBEL_TILE, SUM_UNIT, TERM_ERROR, approximate_terms, score_of, sum_tile
from scanner.watermark.native.gumbel_runs import BITS, score_of_number
from scanner.watermark.native.secret import SubKeys, derive, rule_of
from scanner.watermark.native.streams import ScoredSteps, begin_run, in_two, next_block, steps_of, window_nonces
from scanner.watermark.positions import Positions, Tokens
from schemas.registry import MOST_NUMBERS


class FreshKeys(NamedTuple):
    """Separate sub-keys for each of D documents.

    chacha: uint32[D, 8].
    sip: uint64[D, 2].
    version: of the watermark.
    """

    chacha: NDArray[np.uint32]
    sip: NDArray[np.uint64]
    version: int

    def __repr__(self) -> str:
        return f"FreshKeys({len(self.chacha)} documents)"


def keys_of(secrets: Sequence[bytes], label: str, version: int = 1) -> FreshKeys:
    """Return the sub-keys that secrets have for a label of a version (SPEC §1)."""
    chacha, sip = np.empty((len(secrets), 8), np.uint32), np.empty((len(secrets), 2), np.uint64)
    for i, secret in enumerate(secrets):
        chacha[i], sip[i] = derive(secret, label, version)
    return FreshKeys(chacha, sip, version)


def count_hits(
    keys: FreshKeys,
    tokens: Tokens,
    positions: Positions,
    window: int,
    gamma: Fraction | None,
    messages: int,
    critical: NDArray[np.float64],
    groups: bool = False,
) -> Hits:
    """Count, for each document under its own key, the messages 0 … messages−1 whose score is critical or more.

    Args:
        keys: of D documents.
        tokens: of these documents.
        positions: their scored positions.
        window: h.
        gamma: share of green tokens; None: the Gumbel score, which near a critical one is computed in double precision.
        messages: how many.
        critical: float64[D, J], whole numbers of a green list, or ∞.
        groups: whether these messages are users of group 0, who share its group steps (SPEC_2 §2).
    """
    nonces = _nonces(keys, tokens, positions, window)
    if not groups:
        return _hits(keys, steps_of(tokens, positions, nonces), gamma, messages, critical)
    # what group steps add, once, then what users need beside it: of real numbers off in the last bit, perhaps
    shared, users = in_two(tokens, positions, nonces)
    base = _hits(keys, shared, gamma, 1, critical).first
    shortfall = np.maximum(critical - base[:, None], 0)  # type: ignore[operator]
    user_hits = _hits(keys, users, gamma, messages, shortfall)
    return Hits(user_hits.hits, base + user_hits.first)  # type: ignore[operator]


def _hits(
    keys: FreshKeys, steps: ScoredSteps, gamma: Fraction | None, messages: int, critical: NDArray[np.float64]
) -> Hits:
    if gamma is None:
        return Hits(*_gumbel_hits(keys.chacha, keys.version, steps, messages, critical))
    return Hits(*_greenlist_hits(keys.chacha, keys.version, steps, messages, rule_of(gamma), _whole(critical)))


def pair_hits(
    keys: FreshKeys,
    tokens: Tokens,
    positions: Positions,
    window: int,
    gamma: Fraction | None,
    groups: int,
    critical: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Count, for each document under its own key of version 2, the pairs of groups and users that score high.

    The arguments are as of `count_hits`, for B groups. The result is int64[D, J], of as many pairs as `Paired` says.
    """
    shared, users = in_two(tokens, positions, _nonces(keys, tokens, positions, window))
    size = Paired.of(groups)
    if gamma is None:
        return _gumbel_pairs(keys.chacha, shared, users, size, critical)
    return _greenlist_pairs(keys.chacha, shared, users, size, rule_of(gamma), _whole(critical))


def _whole(critical: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.where(np.isfinite(critical), critical, np.iinfo(np.int64).max // 2).astype(np.int64)


def _nonces(keys: FreshKeys, tokens: Tokens, positions: Positions, window: int) -> NDArray[np.uint64]:
    """Return the nonces of all scored positions, those of a document under its own key: uint64[P]."""
    nonces = np.empty(len(positions.index), np.uint64)
    for d, (chacha, sip) in enumerate(zip(keys.chacha, keys.sip, strict=True)):
        document = slice(positions.offsets[d], positions.offsets[d + 1])
        nonces[document] = window_nonces(SubKeys(chacha, sip), tokens.ids, positions.index[document], window)
    return nonces


@kernel
def _greenlist_hits(
    chacha: NDArray[np.uint32],
    version: int,
    steps: ScoredSteps,
    count: int,
    rule: tuple[int, int, int],
    critical: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return hits and scores of message 0 of D documents, each under a key of its own: int64[D, J], int64[D]."""
    documents = len(steps.offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents, np.int64)
    tiles = (count + GREENLIST_TILE - 1) // GREENLIST_TILE
    width = words_of((count + tiles - 1) // tiles, rule) // 2
    strip = np.zeros(strip_words(64 * width, rule[2]), np.uint32)
    rows, carry, valid = (
        np.empty((POSITIONS_A_PASS, width), np.uint64),
        np.empty(width, np.uint64),
        np.empty(width, np.uint64),
    )
    passing = np.empty(width, np.uint64)
    counters = np.empty((levels(steps.offsets), width), np.uint64)
    for d in range(documents):
        begin, end = steps.offsets[d], steps.offsets[d + 1]
        ids, nonces = steps.ids[begin:end], steps.nonces[begin:end]
        used_counters = counters[: max(3, bit_length(len(ids)))]
        for first in range(0, count, 64 * width):
            if version == 1:
                count_tile(chacha[d], ids, nonces, rule, first, strip, rows, used_counters, carry)
            else:
                count_run(chacha[d], ids, nonces, first, rule, used_counters.view(np.uint32))
            first_bits(valid, min(64 * width, count - first))
            for j in range(critical.shape[1]):
                hits[d, j] += at_least(used_counters, critical[d, j], valid, passing)
            if first == 0:
                for level in range(len(used_counters)):
                    first_score[d] += np.int64(used_counters[level, 0] & uint64(1)) << level
    return hits, first_score


@kernel
def _gumbel_hits(
    chacha: NDArray[np.uint32], version: int, steps: ScoredSteps, count: int, critical: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return hits and scores of message 0 as `_greenlist_hits` does, of Gumbel scores: int64[D, J], float64[D].

    critical: float64[D, J].
    """
    documents = len(steps.offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents)
    strip, sums = np.empty(GUMBEL_TILE + 2 * WORDS_A_GROUP, np.uint32), np.empty(GUMBEL_TILE, np.int64)
    for d in range(documents):
        begin, end = steps.offsets[d], steps.offsets[d + 1]
        ids, nonces = steps.ids[begin:end], steps.nonces[begin:end]
        first_score[d] = _score_of(version, chacha[d], ids, nonces, 0)
        for first in range(0, count, GUMBEL_TILE):
            tile = sums[: min(GUMBEL_TILE, count - first)]
            if version == 1:
                sum_tile(chacha[d], ids, nonces, first, strip, tile)
            else:
                sum_run(chacha[d], ids, nonces, first, sums[: _whole_blocks(len(tile))])
            for j in range(critical.shape[1]):
                if critical[d, j] == np.inf:
                    continue
                sure_limit, possible_limit = _around(critical[d, j], len(ids))
                hit_count, possible_count = np.int64(0), np.int64(0)
                for m in range(len(tile)):
                    hit_count += np.int64(tile[m] >= sure_limit)
                    possible_count += np.int64(tile[m] >= possible_limit)
                if possible_count > hit_count:
                    for place in np.flatnonzero((tile >= possible_limit) & (tile < sure_limit)):
                        score = _score_of(version, chacha[d], ids, nonces, int(first + place))
                        hit_count += np.int64(score >= critical[d, j])
                hits[d, j] += hit_count
    return hits, first_score


@kernel
def _score_of(
    version: int, key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], message: int
) -> float:
    """Compute the published score of one message over one document's scored tokens."""
    if version == 1:
        return score_of(key, ids, nonces, message)
    return score_of_number(key, ids, nonces, message)


@kernel
def _around(limit: float, scored: int) -> tuple[np.int64, np.int64]:
    """Return the sums around a limit from which on, and below which, the exact score is surely on their side of it."""
    bound = scored * TERM_ERROR + 1.0 + limit / SUM_UNIT * scored * 2.0**-50
    return np.int64(limit / SUM_UNIT + bound) + 1, np.int64(limit / SUM_UNIT - bound)


@kernel
def _whole_blocks(count: int) -> int:
    """Return the numbers of the blocks that hold `count` numbers."""
    return ((count - 1) >> BITS) + 1 << BITS


@kernel
def sum_run(
    key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, sums: NDArray[np.int64]
) -> None:
    """Write sums as `gumbel_runs.bound_run` does, but scores to within TERM_ERROR a step, in units of ln 2 / 2^23."""
    inputs, block = np.empty(4 * CHUNK, np.uint32), np.empty(16 * CHUNK, np.uint32)
    scratch, terms = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.uint32)
    sums[:] = 0
    for p in range(0, len(ids), CHUNK):
        lanes = min(CHUNK, len(ids) - p)
        begin_run(ids[p : p + lanes], nonces[p : p + lanes], first, BITS, inputs)
        for b in range(len(sums) >> BITS):
            chacha8_lanes(key, inputs, lanes, block)
            next_block(inputs)
            for k in range(1 << BITS):
                approximate_terms(block[k * CHUNK : k * CHUNK + lanes], scratch, terms)
                total = np.int64(0)
                for i in range(lanes):
                    total += np.int64(terms[i])
                sums[(b << BITS) + k] += total


PAIRED_GROUPS, PAIRED_USERS = 512, 2048
"""Most groups, and about how many users, that are paired in each document. These give decoys of all messages the power
that 100,000 messages scored one by one have, down to 1e-6, and more below (`make audit-power`).
"""


class Paired(NamedTuple):
    """The pairs of the first groups with users of the first groups.

    groups: how many groups are paired.
    runs: how many groups the users are of.
    length: how many users of each of these groups are paired, the first ones.
    """

    groups: int
    runs: int
    length: int

    @classmethod
    def of(cls, groups: int) -> "Paired":
        """Return the pairs of a key with B groups."""
        length = min(groups, PAIRED_USERS)
        return cls(min(groups, PAIRED_GROUPS), min(groups, -(-PAIRED_USERS // length)), length)

    @property
    def pairs(self) -> int:
        """How many pairs of a group and a user these are."""
        return self.groups * self.runs * self.length


@kernel
def _greenlist_pairs(
    chacha: NDArray[np.uint32],
    shared: ScoredSteps,
    users: ScoredSteps,
    size: Paired,
    rule: tuple[int, int, int],
    critical: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Count pairs of a group and a user whose scores add up to a critical one, of D documents: int64[D, J]."""
    hits = np.zeros(critical.shape, np.int64)
    group_counts, user_counts = np.empty(size.groups, np.int64), np.empty(size.runs * size.length, np.int64)
    group_bits = np.empty((levels_of(shared.offsets), words_of(size.groups, rule)), np.uint32)
    user_bits = np.empty((levels_of(users.offsets), words_of(size.length, rule)), np.uint32)
    for d in range(len(hits)):
        begin, end = shared.offsets[d], shared.offsets[d + 1]
        count_run(chacha[d], shared.ids[begin:end], shared.nonces[begin:end], 0, rule, group_bits)
        _counts_of(group_bits, group_counts)
        begin, end = users.offsets[d], users.offsets[d + 1]
        for g in range(size.runs):
            count_run(chacha[d], users.ids[begin:end], users.nonces[begin:end], g * MOST_NUMBERS, rule, user_bits)
            _counts_of(user_bits, user_counts[g * size.length : (g + 1) * size.length])
        group_counts.sort()
        user_counts.sort()
        for j in range(critical.shape[1]):
            hits[d, j] = reaching(group_counts, user_counts, critical[d, j])
    return hits


@kernel
def _gumbel_pairs(
    chacha: NDArray[np.uint32], shared: ScoredSteps, users: ScoredSteps, size: Paired, critical: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Count pairs as `_greenlist_pairs` does, those near a critical score in double precision.

    critical: float64[D, J].
    """
    hits = np.zeros(critical.shape, np.int64)
    group_scores, user_scores = np.empty(size.groups, np.int64), np.empty(size.runs * size.length, np.int64)
    group_sums = np.empty(_whole_blocks(size.groups), np.int64)
    user_sums = np.empty(_whole_blocks(size.length), np.int64)
    for d in range(len(hits)):
        begin, end = shared.offsets[d], shared.offsets[d + 1]
        group_ids, group_nonces, scored = shared.ids[begin:end], shared.nonces[begin:end], end - begin
        sum_run(chacha[d], group_ids, group_nonces, 0, group_sums)
        group_scores[:] = group_sums[: size.groups]
        begin, end = users.offsets[d], users.offsets[d + 1]
        user_ids, user_nonces, scored = users.ids[begin:end], users.nonces[begin:end], scored + end - begin
        for g in range(size.runs):
            sum_run(chacha[d], user_ids, user_nonces, g * MOST_NUMBERS, user_sums)
            user_scores[g * size.length : (g + 1) * size.length] = user_sums[: size.length]
        group, user = np.argsort(group_scores), np.argsort(user_scores)
        sorted_group_scores, sorted_user_scores = group_scores[group], user_scores[user]
        for j in range(critical.shape[1]):
            limit = critical[d, j]
            if limit == np.inf:
                continue
            sure_limit, possible_limit = _around(limit, scored)
            hits[d, j] = reaching(sorted_group_scores, sorted_user_scores, sure_limit)
            if reaching(sorted_group_scores, sorted_user_scores, possible_limit) == hits[d, j]:
                continue
            for i in range(size.groups):
                low, high = np.searchsorted(
                    sorted_user_scores, np.array([possible_limit, sure_limit]) - sorted_group_scores[i]
                )
                for v in user[low:high]:
                    number = v // size.length * MOST_NUMBERS + v % size.length
                    score = score_of_number(chacha[d], group_ids, group_nonces, group[i])
                    score += score_of_number(chacha[d], user_ids, user_nonces, number)
                    hits[d, j] += np.int64(score >= limit)
    return hits


@kernel
def _counts_of(counters: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
    """Write vertical counters as whole numbers."""
    for i in range(len(counts)):
        counts[i] = 0
        for level in range(len(counters)):
            counts[i] += np.int64((counters[level, i >> 5] >> np.uint32(i & 31)) & np.uint32(1)) << level


@kernel
def reaching(shared: NDArray[Any], users: NDArray[Any], least: np.int64 | float) -> np.int64:
    """Count the sums of one number of each array, both sorted, that are `least` or more."""
    pair_count, place = np.int64(0), len(users)
    for score in shared:
        while place > 0 and users[place - 1] + score >= least:
            place -= 1
        pair_count += np.int64(len(users) - place)
    return pair_count

"""Very many scores of unmarked text under version 2, for nulls.py: the kernels of its search, and none kept.

Under a key with groups, what group steps add for any group and what user steps add for any user make a score that has
the law of a message's, since no two of these numbers read one entry. So G groups and V users give G·V scores at the
price of G + V. Those that share a group or a user are dependent: a document is one cluster.
"""

from typing import NamedTuple

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.green_runs import at_least, count_run, first_bits, levels_of, words_of
from scanner.watermark.native.gumbel import TERM_ERROR, UNIT, approximate_terms
from scanner.watermark.native.gumbel_runs import BITS, score_of_number
from scanner.watermark.native.streams import ScoredSteps, begin_run, next_block
from schemas.registry import MOST_NUMBERS


@kernel
def greenlist_hits(
    chacha: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    count: int,
    rule: tuple[int, int, int],
    critical: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hits and scores of message 0 of D documents, each under a key of its own: int64[D, J], int64[D].

    Args:
        chacha: uint32[D, 8].
        ids: uint32[P], scored tokens.
        nonces: uint64[P].
        offsets: int64[D+1].
        count: of messages.
        rule: n, b and planes of γ = n / 2^b.
        critical: int64[D, J].
    """
    documents = len(offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents, np.int64)
    counters = np.empty((levels_of(offsets), words_of(count, rule)), np.uint32)
    valid, passing = np.empty(counters.shape[1] // 2, np.uint64), np.empty(counters.shape[1] // 2, np.uint64)
    first_bits(valid, count)
    for d in range(documents):
        begin, end = offsets[d], offsets[d + 1]
        count_run(chacha[d], ids[begin:end], nonces[begin:end], 0, rule, counters)
        pairs = counters.view(np.uint64)
        for j in range(critical.shape[1]):
            hits[d, j] = at_least(pairs, critical[d, j], valid, passing)
        for level in range(len(pairs)):
            first_score[d] += np.int64(pairs[level, 0] & uint64(1)) << level
    return hits, first_score


@kernel
def gumbel_hits(
    chacha: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    count: int,
    critical: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Hits and scores of message 0 of D documents, each under a key of its own: int64[D, J], float64[D].

    Args:
        chacha: uint32[D, 8].
        ids: uint32[P], scored tokens.
        nonces: uint64[P].
        offsets: int64[D+1].
        count: of messages.
        critical: float64[D, J].
    """
    documents = len(offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents)
    sums = np.empty(((count - 1) >> BITS) + 1 << BITS, np.int64)
    for d in range(documents):
        begin, end = offsets[d], offsets[d + 1]
        ids_of_user, nonces_of_user, scored = ids[begin:end], nonces[begin:end], end - begin
        first_score[d] = score_of_number(chacha[d], ids_of_user, nonces_of_user, 0)
        sum_run(chacha[d], ids_of_user, nonces_of_user, 0, sums)
        for j in range(critical.shape[1]):
            limit = critical[d, j]
            if limit == np.inf:
                continue
            # beyond this distance an approximate sum is on the same side as the exact one
            bound = scored * TERM_ERROR + 1.0 + limit / UNIT * scored * 2.0**-50
            surely, perhaps = np.int64(limit / UNIT + bound) + 1, np.int64(limit / UNIT - bound)
            for number in range(count):
                if sums[number] >= surely:
                    hits[d, j] += 1
                elif sums[number] >= perhaps:
                    score = score_of_number(chacha[d], ids_of_user, nonces_of_user, number)
                    hits[d, j] += np.int64(score >= limit)
    return hits, first_score


@kernel
def sum_run(
    key: NDArray[np.uint32], ids: NDArray[np.uint32], nonces: NDArray[np.uint64], first: int, sums: NDArray[np.int64]
) -> None:
    """Like `bound_run`, but scores to within TERM_ERROR a step, in units of ln 2 / 2^23."""
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
    """The first so many groups, and the users of so many groups, of each the first `length`."""

    groups: int
    runs: int
    length: int

    @classmethod
    def of(cls, groups: int) -> "Paired":
        """The pairs of a key with B groups."""
        length = min(groups, PAIRED_USERS)
        return cls(min(groups, PAIRED_GROUPS), min(groups, -(-PAIRED_USERS // length)), length)

    @property
    def pairs(self) -> int:
        """How many pairs of a group and a user these are."""
        return self.groups * self.runs * self.length


@kernel
def greenlist_pairs(
    chacha: NDArray[np.uint32],
    shared: ScoredSteps,
    users: ScoredSteps,
    size: Paired,
    rule: tuple[int, int, int],
    critical: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Pairs of a group and a user whose scores add up to a critical one, of D documents under keys of their own.

    Args:
        chacha: uint32[D, 8].
        shared: group steps.
        users: user steps.
        size: which groups and users.
        rule: n, b and planes of γ = n / 2^b.
        critical: int64[D, J].

    Returns:
        int64[D, J].
    """
    hits = np.zeros(critical.shape, np.int64)
    of_group, of_user = np.empty(size.groups, np.int64), np.empty(size.runs * size.length, np.int64)
    group_bits = np.empty((levels_of(shared.offsets), words_of(size.groups, rule)), np.uint32)
    user_bits = np.empty((levels_of(users.offsets), words_of(size.length, rule)), np.uint32)
    for d in range(len(hits)):
        begin, end = shared.offsets[d], shared.offsets[d + 1]
        count_run(chacha[d], shared.ids[begin:end], shared.nonces[begin:end], 0, rule, group_bits)
        _counts_of(group_bits, of_group)
        begin, end = users.offsets[d], users.offsets[d + 1]
        for g in range(size.runs):
            count_run(chacha[d], users.ids[begin:end], users.nonces[begin:end], g * MOST_NUMBERS, rule, user_bits)
            _counts_of(user_bits, of_user[g * size.length : (g + 1) * size.length])
        of_group.sort()
        of_user.sort()
        for j in range(critical.shape[1]):
            hits[d, j] = _reaching(of_group, of_user, critical[d, j])
    return hits


@kernel
def gumbel_pairs(
    chacha: NDArray[np.uint32], shared: ScoredSteps, users: ScoredSteps, size: Paired, critical: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Like `greenlist_pairs`; pairs near a critical score are computed in double precision. critical: float64[D, J]."""
    hits = np.zeros(critical.shape, np.int64)
    of_group, of_user = np.empty(size.groups, np.int64), np.empty(size.runs * size.length, np.int64)
    group_sums = np.empty(((size.groups - 1) >> BITS) + 1 << BITS, np.int64)
    user_sums = np.empty(((size.length - 1) >> BITS) + 1 << BITS, np.int64)
    for d in range(len(hits)):
        begin, end = shared.offsets[d], shared.offsets[d + 1]
        group_ids, group_nonces, scored = shared.ids[begin:end], shared.nonces[begin:end], end - begin
        sum_run(chacha[d], group_ids, group_nonces, 0, group_sums)
        of_group[:] = group_sums[: size.groups]
        begin, end = users.offsets[d], users.offsets[d + 1]
        user_ids, user_nonces, scored = users.ids[begin:end], users.nonces[begin:end], scored + end - begin
        for g in range(size.runs):
            sum_run(chacha[d], user_ids, user_nonces, g * MOST_NUMBERS, user_sums)
            of_user[g * size.length : (g + 1) * size.length] = user_sums[: size.length]
        group, user = np.argsort(of_group), np.argsort(of_user)
        of_groups, of_users = of_group[group], of_user[user]
        for j in range(critical.shape[1]):
            limit = critical[d, j]
            if limit == np.inf:
                continue
            # beyond this distance an approximate sum is on the same side as the exact one
            bound = scored * TERM_ERROR + 1.0 + limit / UNIT * scored * 2.0**-50
            surely, perhaps = np.int64(limit / UNIT + bound) + 1, np.int64(limit / UNIT - bound)
            hits[d, j] = _reaching(of_groups, of_users, surely)
            if _reaching(of_groups, of_users, perhaps) == hits[d, j]:
                continue
            for i in range(size.groups):
                low, high = np.searchsorted(of_users, np.array([perhaps, surely]) - of_groups[i])
                for v in user[low:high]:
                    number = v // size.length * MOST_NUMBERS + v % size.length
                    score = score_of_number(chacha[d], group_ids, group_nonces, group[i])
                    score += score_of_number(chacha[d], user_ids, user_nonces, number)
                    hits[d, j] += np.int64(score >= limit)
    return hits


@kernel
def _counts_of(counters: NDArray[np.uint32], counts: NDArray[np.int64]) -> None:
    """Vertical counters as whole numbers."""
    for i in range(len(counts)):
        counts[i] = 0
        for level in range(len(counters)):
            counts[i] += np.int64((counters[level, i >> 5] >> np.uint32(i & 31)) & np.uint32(1)) << level


@kernel
def _reaching(shared: NDArray[np.int64], users: NDArray[np.int64], least: np.int64) -> np.int64:
    """How many sums of one number of each array, both sorted, are `least` or more."""
    reaching, place = np.int64(0), len(users)
    for score in shared:
        while place > 0 and users[place - 1] + score >= least:
            place -= 1
        reaching += np.int64(len(users) - place)
    return reaching

"""Compute very many scores of unmarked text under version 3, each document under a key that is drawn for it only.

Fresh keys make documents independent draws of the law, even if the corpus repeats itself
(scanner.watermark.native.nulls does the same for version 1). Windows have public hashes. All keys share these, so they
are computed once.

Under a key with groups, the group steps' sum for any group plus the user steps' sum for any user is a score with the
law of a message's score, because no two of these numbers read the same entry. So G groups and V users give G·V scores
at the price of G + V. Scores that share a group or a user are dependent, so a document is one cluster.

Kernels take the steps of D documents, field by field, and critical scores, float64[D, J], ∞ where nothing counts.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.format import Hits
from scanner.watermark.kernel import kernel
from scanner.watermark.native import secret
from scanner.watermark.native.secret import rule_of
from scanner.watermark.native.step_draws import BITS, count_run, rounding, score_of, sum_run, whole_blocks
from scanner.watermark.native.steps import SeedKeys, Steps, hash_positions, in_two, step_keys
from scanner.watermark.positions import Positions, Tokens
from schemas.registry import MOST_NUMBERS


def steps_under(
    secrets: Sequence[bytes], label: str, beacon: bytes, seeds: int, tokens: Tokens, positions: Positions, window: int
) -> Steps:
    """Return the steps of D documents, each under a master key of its own.

    Args:
        secrets: one for each document.
        label: label of the keys.
        beacon: R, 32 bytes.
        seeds: n.
        tokens: of the documents.
        positions: their scored positions.
        window: h.
    """
    words = np.stack([secret.derive_seed_key(one, label).words for one in secrets])
    beacons = np.broadcast_to(np.frombuffer(beacon, "<u4").astype(np.uint32), words.shape).copy()
    hashes = hash_positions(secret.window_key(window, seeds), tokens.ids, positions.index, window)
    keys = step_keys(SeedKeys(words, beacons, seeds), np.arange(len(words)), positions.offsets, hashes)
    return Steps(tokens.ids[positions.index], hashes.nonces, keys, positions.offsets)


def count_hits(
    steps: Steps, gamma: Fraction | None, messages: int, critical: NDArray[np.float64], in_groups: bool
) -> Hits:
    """Count, for each document, the messages 0 … messages−1 whose score is critical or more.

    Args:
        steps: of D documents.
        gamma: share of green tokens. None: the Gumbel score.
        messages: number of messages.
        critical: float64[D, J].
        in_groups: whether these messages are users of group 0, who share its group steps.
    """
    if not in_groups:
        return _hits(steps, gamma, messages, critical, False)
    # the group steps' sum once, then the scores that users need in addition: as real numbers, perhaps off in the last
    # bit
    shared, users = in_two(steps)
    base = _hits(shared, gamma, 1, critical, True).first
    user_hits = _hits(users, gamma, messages, np.maximum(critical - base[:, None], 0), True)  # type: ignore[operator]
    return Hits(user_hits.hits, base + user_hits.first)  # type: ignore[operator]


def _hits(steps: Steps, gamma: Fraction | None, messages: int, critical: NDArray[np.float64], in_groups: bool) -> Hits:
    if gamma is None:
        return Hits(*_gumbel_hits(*steps, messages, in_groups, critical))
    return Hits(*_green_hits(*steps, messages, rule_of(gamma), critical))


def pair_hits(steps: Steps, gamma: Fraction | None, groups: int, critical: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count, for each document, the pairs of groups and users that score high: int64[D, J]. `Paired` lists the pairs.

    Args:
        steps: of D documents.
        gamma: share of green tokens. None: the Gumbel score.
        groups: B.
        critical: float64[D, J].
    """
    shared, users = in_two(steps)
    size = Paired.of(groups)
    if gamma is None:
        return _gumbel_pairs(*shared, *users, size, critical)
    return _green_pairs(*shared, *users, size, rule_of(gamma), critical)


@kernel
def _green_hits(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    count: int,
    rule: tuple[int, int, int],
    critical: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return hits and counts of message 0 of D documents: int64[D, J], int64[D]."""
    hits, first_count = np.zeros(critical.shape, np.int64), np.zeros(len(critical), np.int64)
    counts = np.empty(_numbers_in_blocks(count, rule), np.int64)
    for d in range(len(critical)):
        count_run(ids, nonces, keys, offsets[d], offsets[d + 1], 0, rule, counts)
        first_count[d] = counts[0]
        for j in range(critical.shape[1]):
            for m in range(count):
                hits[d, j] += np.int64(counts[m] >= critical[d, j])
    return hits, first_count


@kernel
def _numbers_in_blocks(count: int, rule: tuple[int, int, int]) -> int:
    """Return how many numbers a green list's blocks have that hold the first `count` numbers."""
    per_block = 32 * (16 // rule[2])
    return (count + per_block - 1) // per_block * per_block


@kernel
def _gumbel_hits(
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    count: int,
    in_groups: bool,
    critical: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return hits and scores of message 0 of D documents: int64[D, J], float64[D]."""
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(len(critical))
    sums = np.empty(whole_blocks(count, BITS))
    for d in range(len(critical)):
        begin, end = offsets[d], offsets[d + 1]
        first_score[d] = score_of(ids, nonces, keys, begin, end, 0, in_groups)
        sum_run(ids, nonces, keys, begin, end, 0, in_groups, sums)
        for j in range(critical.shape[1]):
            if critical[d, j] == np.inf:
                continue
            room = rounding(end - begin, critical[d, j])
            for m in range(count):
                if sums[m] > critical[d, j] + room:
                    hits[d, j] += 1
                elif sums[m] >= critical[d, j] - room:
                    score = score_of(ids, nonces, keys, begin, end, m, in_groups)
                    hits[d, j] += np.int64(score >= critical[d, j])
    return hits, first_score


PAIRED_GROUPS, PAIRED_USERS = 512, 2048
"""Largest number of groups, and approximate number of users, that are paired in each document.

With these, decoys of all messages have the power of 100,000 messages scored one by one, down to 1e-6, and more below
(`make audit-power`).
"""


class Paired(NamedTuple):
    """The pairs of the first groups with users of the first groups.

    groups: number of paired groups.
    runs: number of groups that the users belong to.
    length: number of paired users in each of these groups, the first ones.
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
        """Return the number of pairs of a group and a user."""
        return self.groups * self.runs * self.length


@kernel
def _green_pairs(
    shared_ids: NDArray[np.uint32],
    shared_nonces: NDArray[np.uint64],
    shared_keys: NDArray[np.uint32],
    shared_offsets: NDArray[np.int64],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    size: Paired,
    rule: tuple[int, int, int],
    critical: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Count pairs of a group and a user whose counts add up to a critical one, of D documents: int64[D, J]."""
    hits = np.zeros(critical.shape, np.int64)
    group_counts = np.empty(_numbers_in_blocks(size.groups, rule), np.int64)
    run_counts = np.empty(_numbers_in_blocks(size.length, rule), np.int64)
    user_counts = np.empty(size.runs * size.length, np.int64)
    for d in range(len(hits)):
        begin, end = shared_offsets[d], shared_offsets[d + 1]
        count_run(shared_ids, shared_nonces, shared_keys, begin, end, 0, rule, group_counts)
        for g in range(size.runs):
            count_run(ids, nonces, keys, offsets[d], offsets[d + 1], g * MOST_NUMBERS, rule, run_counts)
            user_counts[g * size.length : (g + 1) * size.length] = run_counts[: size.length]
        sorted_group_counts, sorted_user_counts = np.sort(group_counts[: size.groups]), np.sort(user_counts)
        for j in range(critical.shape[1]):
            if critical[d, j] < np.inf:
                hits[d, j] = reaching(sorted_group_counts, sorted_user_counts, np.int64(np.ceil(critical[d, j])))
    return hits


@kernel
def _gumbel_pairs(
    shared_ids: NDArray[np.uint32],
    shared_nonces: NDArray[np.uint64],
    shared_keys: NDArray[np.uint32],
    shared_offsets: NDArray[np.int64],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    keys: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    size: Paired,
    critical: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Count pairs as `_green_pairs` does. Pairs near a critical score are computed in double precision."""
    hits = np.zeros(critical.shape, np.int64)
    group_sums = np.empty(whole_blocks(size.groups, BITS))
    run_sums = np.empty(whole_blocks(size.length, BITS))
    user_sums = np.empty(size.runs * size.length)
    for d in range(len(hits)):
        shared_begin, shared_end, begin, end = shared_offsets[d], shared_offsets[d + 1], offsets[d], offsets[d + 1]
        sum_run(shared_ids, shared_nonces, shared_keys, shared_begin, shared_end, 0, True, group_sums)
        for g in range(size.runs):
            sum_run(ids, nonces, keys, begin, end, g * MOST_NUMBERS, True, run_sums)
            user_sums[g * size.length : (g + 1) * size.length] = run_sums[: size.length]
        group, user = np.argsort(group_sums[: size.groups]), np.argsort(user_sums)
        sorted_groups, sorted_users = group_sums[group], user_sums[user]
        for j in range(critical.shape[1]):
            limit = critical[d, j]
            if limit == np.inf:
                continue
            room = rounding(shared_end - shared_begin + end - begin, limit)
            around_limit = np.array([limit - room, limit + room])
            if reaching(sorted_groups, sorted_users, around_limit[0]) == reaching(
                sorted_groups, sorted_users, around_limit[1]
            ):
                hits[d, j] = reaching(sorted_groups, sorted_users, limit)
                continue
            for i in range(size.groups):
                low, high = np.searchsorted(sorted_users, around_limit - sorted_groups[i])
                hits[d, j] += len(user) - high
                for v in user[low:high]:
                    number = v // size.length * MOST_NUMBERS + v % size.length
                    score = score_of(shared_ids, shared_nonces, shared_keys, shared_begin, shared_end, group[i], True)
                    score += score_of(ids, nonces, keys, begin, end, number, True)
                    hits[d, j] += np.int64(score >= limit)
    return hits


@kernel
def reaching(shared: NDArray[Any], users: NDArray[Any], least: np.int64 | float) -> np.int64:
    """Count the sums of one number of each array, both sorted, that are `least` or more."""
    pair_count, place = np.int64(0), len(users)
    for score in shared:
        while place > 0 and users[place - 1] + score >= least:
            place -= 1
        pair_count += np.int64(len(users) - place)
    return pair_count

"""Very many scores of unmarked text: all messages of a document, under a key that is drawn for that document alone.

Fresh keys make documents independent draws of the law, whatever the corpus repeats. The scores are those of the
kernels that a scan searches with; here they are compared with critical scores instead of being searched for the largest
one. Nothing of the size of the messages is kept.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.format import Hits
from scanner.watermark.kernel import kernel
from scanner.watermark.native import run_nulls
from scanner.watermark.native.green_runs import at_least, bit_length, first_bits
from scanner.watermark.native.greenlist import ROWS, count_tile, levels, strip_words
from scanner.watermark.native.greenlist import TILE as GREENLIST_TILE
from scanner.watermark.native.gumbel import GROUP, TERM_ERROR, UNIT, draws_at, sum_scores, sum_tile
from scanner.watermark.native.gumbel import TILE as GUMBEL_TILE
from scanner.watermark.native.secret import SubKeys, derive, planes_of
from scanner.watermark.native.streams import chosen, in_two, is_group_step, window_nonces
from scanner.watermark.positions import Positions, Tokens


class FreshKeys(NamedTuple):
    """Separate sub-keys for each of D documents: chacha uint32[D, 8], sip uint64[D, 2]; the watermark's version."""

    chacha: NDArray[np.uint32]
    sip: NDArray[np.uint64]
    version: int

    def __repr__(self) -> str:
        return f"FreshKeys({len(self.chacha)} documents)"


def keys_of(secrets: Sequence[bytes], label: str, version: int = 1) -> FreshKeys:
    """The sub-keys that secrets have for a label of a version (SPEC §1)."""
    chacha, sip = np.empty((len(secrets), 8), np.uint32), np.empty((len(secrets), 2), np.uint64)
    for i, secret in enumerate(secrets):
        chacha[i], sip[i] = derive(secret, label, version)
    return FreshKeys(chacha, sip, version)


def greenlist_hits(
    keys: FreshKeys,
    tokens: Tokens,
    positions: Positions,
    window: int,
    gamma: Fraction,
    messages: int,
    critical: NDArray[np.float64],
    groups: bool = False,
) -> Hits:
    """Count, for each document under its own key, the messages 0 … messages−1 whose score is critical or more.

    Args:
        keys: one for each of the D documents.
        tokens: of the D documents.
        positions: which are scored, for that window.
        window: h.
        gamma: share of green tokens.
        messages: how many are scored.
        critical: float64[D, J], whole numbers or ∞.
        groups: whether these messages are users of group 0, who share its group steps (SPEC_2 §2).
    """
    rule, whole = _rule(gamma), _whole(critical)
    ids, nonces = tokens.ids[positions.index], _nonces(keys, tokens, positions, window)
    count = run_nulls.greenlist_hits if keys.version == 2 else _greenlist_hits

    def counted(ids: Any, nonces: Any, offsets: Any, messages: int, critical: Any) -> Hits:  # noqa: ANN401 - arrays
        return Hits(*count(keys.chacha, ids, nonces, offsets, messages, rule, critical))

    if groups:
        return _of_group_0(counted, ids, nonces, positions.offsets, messages, whole)
    return counted(ids, nonces, positions.offsets, messages, whole)


def gumbel_hits(
    keys: FreshKeys,
    tokens: Tokens,
    positions: Positions,
    window: int,
    messages: int,
    critical: NDArray[np.float64],
    groups: bool = False,
) -> Hits:
    """Like `greenlist_hits`, for the Gumbel score; scores near a critical one are computed in double precision."""
    ids, nonces = tokens.ids[positions.index], _nonces(keys, tokens, positions, window)
    count = run_nulls.gumbel_hits if keys.version == 2 else _gumbel_hits

    def counted(ids: Any, nonces: Any, offsets: Any, messages: int, critical: Any) -> Hits:  # noqa: ANN401 - arrays
        return Hits(*count(keys.chacha, ids, nonces, offsets, messages, critical))

    if groups:
        return _of_group_0(counted, ids, nonces, positions.offsets, messages, critical)
    return counted(ids, nonces, positions.offsets, messages, critical)


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

    Args:
        keys: one for each of the D documents.
        tokens: of the D documents.
        positions: which are scored, for that window.
        window: h.
        gamma: share of green tokens; None: the Gumbel score.
        groups: B.
        critical: float64[D, J], whole numbers of a green list, or ∞.

    Returns:
        int64[D, J], of as many pairs as `Paired` says.
    """
    shared, users = in_two(tokens, positions, _nonces(keys, tokens, positions, window))
    size = run_nulls.Paired.of(groups)
    if gamma is None:
        return run_nulls.gumbel_pairs(keys.chacha, shared, users, size, critical)
    return run_nulls.greenlist_pairs(keys.chacha, shared, users, size, _rule(gamma), _whole(critical))


def _of_group_0(
    counted: Callable[..., Hits],
    ids: NDArray[np.uint32],
    nonces: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    messages: int,
    critical: NDArray[Any],
) -> Hits:
    """What group steps add, once, then what users need beside it: of real numbers off in the last bit, perhaps."""
    every, of_group = Positions(np.arange(len(ids)), offsets), is_group_step(nonces)
    shared, users = chosen(every, of_group), chosen(every, ~of_group)
    base = counted(ids[of_group], nonces[of_group], shared.offsets, 1, critical).first
    rest = np.maximum(critical - base[:, None], 0)
    found = counted(ids[~of_group], nonces[~of_group], users.offsets, messages, rest)
    return Hits(found.hits, base + found.first)  # type: ignore[operator]


def _rule(gamma: Fraction) -> tuple[int, int, int]:
    """n, b and planes of γ = n / 2^b."""
    return gamma.numerator, gamma.denominator.bit_length() - 1, planes_of(gamma)


def _whole(critical: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.where(np.isfinite(critical), critical, np.iinfo(np.int64).max // 2).astype(np.int64)


def _nonces(keys: FreshKeys, tokens: Tokens, positions: Positions, window: int) -> NDArray[np.uint64]:
    """Nonces of all scored positions, those of a document under its own key: uint64[P]."""
    nonces = np.empty(len(positions.index), np.uint64)
    for d, (chacha, sip) in enumerate(zip(keys.chacha, keys.sip, strict=True)):
        users = slice(positions.offsets[d], positions.offsets[d + 1])
        nonces[users] = window_nonces(SubKeys(chacha, sip), tokens.ids, positions.index[users], window)
    return nonces


@kernel
def _greenlist_hits(
    chacha: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    all_nonces: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    count: int,
    rule: tuple[int, int, int],
    critical: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    documents = len(offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents, np.int64)
    tiles = (count + GREENLIST_TILE - 1) // GREENLIST_TILE
    width = ((count + tiles - 1) // tiles + 63) // 64
    strip = np.zeros(strip_words(64 * width, rule[2]), np.uint32)
    rows, carry, valid = np.empty((ROWS, width), np.uint64), np.empty(width, np.uint64), np.empty(width, np.uint64)
    passing = np.empty(width, np.uint64)
    counters = np.empty((levels(offsets), width), np.uint64)
    for d in range(documents):
        scored, nonces = ids[offsets[d] : offsets[d + 1]], all_nonces[offsets[d] : offsets[d + 1]]
        used = counters[: max(3, bit_length(len(scored)))]
        for first in range(0, count, 64 * width):
            count_tile(chacha[d], scored, nonces, rule, first, strip, rows, used, carry)
            first_bits(valid, min(64 * width, count - first))
            for j in range(critical.shape[1]):
                hits[d, j] += at_least(used, critical[d, j], valid, passing)
            if first == 0:
                for level in range(len(used)):
                    first_score[d] += np.int64(used[level, 0] & uint64(1)) << level
    return hits, first_score


@kernel
def _gumbel_hits(
    chacha: NDArray[np.uint32],
    ids: NDArray[np.uint32],
    all_nonces: NDArray[np.uint64],
    offsets: NDArray[np.int64],
    count: int,
    critical: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    documents = len(offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents)
    strip, sums = np.empty(GUMBEL_TILE + 2 * GROUP, np.uint32), np.empty(GUMBEL_TILE, np.int64)
    whole = np.zeros(2, np.int64)
    for d in range(documents):
        scored, nonces = ids[offsets[d] : offsets[d + 1]], all_nonces[offsets[d] : offsets[d + 1]]
        whole[1] = len(scored)
        first_score[d] = sum_scores(draws_at(chacha[d], nonces, scored.astype(np.int64)), whole)[0]
        for first in range(0, count, GUMBEL_TILE):
            tile = sums[: min(GUMBEL_TILE, count - first)]
            sum_tile(chacha[d], scored, nonces, first, strip, tile)
            for j in range(critical.shape[1]):
                limit = critical[d, j]
                if limit == math.inf:
                    continue
                # beyond this distance an approximate sum is on the same side as the exact one
                bound = len(scored) * TERM_ERROR + 1.0 + limit / UNIT * len(scored) * 2.0**-50
                surely, perhaps = np.int64(limit / UNIT + bound) + 1, np.int64(limit / UNIT - bound)
                above, near = np.int64(0), np.int64(0)
                for m in range(len(tile)):
                    above += np.int64(tile[m] >= surely)
                    near += np.int64(tile[m] >= perhaps)
                if near > above:
                    for place in np.flatnonzero((tile >= perhaps) & (tile < surely)):
                        entries = scored.astype(np.int64) + (first + place)
                        above += np.int64(sum_scores(draws_at(chacha[d], nonces, entries), whole)[0] >= limit)
                hits[d, j] += above
    return hits, first_score

"""Compute very many scores of unmarked text under version 1: all messages of a document, under a key drawn for it only.

Fresh keys make documents independent draws of the law, even if the corpus repeats itself. The scores are those of the
kernels that a scan searches with. Here they are compared with critical scores, while a scan searches for the largest
one. No array has the size of the messages.

Kernels take these arguments:

- chacha: uint32[D, 8], of D separate keys.
- rule: n, b and planes of γ = n / 2^b.
- critical: critical scores, [D, J].
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.format import Hits
from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import WORDS_A_GROUP
from scanner.watermark.native.greenlist import GREENLIST_TILE, POSITIONS_A_PASS, count_tile, levels, strip_words
from scanner.watermark.native.gumbel import GUMBEL_TILE, SUM_UNIT, TERM_ERROR, score_of, sum_tile
from scanner.watermark.native.secret import SubKeys, derive, rule_of
from scanner.watermark.native.streams import ScoredSteps, steps_of, window_nonces
from scanner.watermark.native.vertical_counters import at_least, bit_length, first_bits
from scanner.watermark.positions import Positions, Tokens


class FreshKeys(NamedTuple):
    """Separate sub-keys for each of D documents.

    chacha: uint32[D, 8].
    sip: uint64[D, 2].
    """

    chacha: NDArray[np.uint32]
    sip: NDArray[np.uint64]

    def __repr__(self) -> str:
        return f"FreshKeys({len(self.chacha)} documents)"


def keys_of(secrets: Sequence[bytes], label: str) -> FreshKeys:
    """Return the sub-keys that secrets have for a label (SPEC §1)."""
    chacha, sip = np.empty((len(secrets), 8), np.uint32), np.empty((len(secrets), 2), np.uint64)
    for i, secret in enumerate(secrets):
        chacha[i], sip[i] = derive(secret, label)
    return FreshKeys(chacha, sip)


def count_hits(
    keys: FreshKeys,
    tokens: Tokens,
    positions: Positions,
    window: int,
    gamma: Fraction | None,
    messages: int,
    critical: NDArray[np.float64],
) -> Hits:
    """Count, for each document under its own key, the messages 0 … messages−1 whose score is critical or more.

    Args:
        keys: of D documents.
        tokens: of these documents.
        positions: their scored positions.
        window: h.
        gamma: share of green tokens. None: the Gumbel score. Near a critical score it is computed in double precision.
        messages: number of messages.
        critical: float64[D, J], whole numbers for a green list, or ∞.
    """
    steps = steps_of(tokens, positions, _nonces(keys, tokens, positions, window))
    if gamma is None:
        return Hits(*_gumbel_hits(keys.chacha, steps, messages, critical))
    return Hits(*_greenlist_hits(keys.chacha, steps, messages, rule_of(gamma), _whole(critical)))


def _whole(critical: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.where(np.isfinite(critical), critical, np.iinfo(np.int64).max // 2).astype(np.int64)


def _nonces(keys: FreshKeys, tokens: Tokens, positions: Positions, window: int) -> NDArray[np.uint64]:
    """Return the nonces of all scored positions, each under the key of its document: uint64[P]."""
    nonces = np.empty(len(positions.index), np.uint64)
    for d, (chacha, sip) in enumerate(zip(keys.chacha, keys.sip, strict=True)):
        document = slice(positions.offsets[d], positions.offsets[d + 1])
        nonces[document] = window_nonces(SubKeys(chacha, sip), tokens.ids, positions.index[document], window)
    return nonces


@kernel
def _greenlist_hits(
    chacha: NDArray[np.uint32],
    steps: ScoredSteps,
    count: int,
    rule: tuple[int, int, int],
    critical: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return hits and scores of message 0 of D documents, each under a key of its own: int64[D, J], int64[D]."""
    documents = len(steps.offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents, np.int64)
    tiles = (count + GREENLIST_TILE - 1) // GREENLIST_TILE
    width = ((count + tiles - 1) // tiles + 63) // 64
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
            count_tile(chacha[d], ids, nonces, rule, first, strip, rows, used_counters, carry)
            first_bits(valid, min(64 * width, count - first))
            for j in range(critical.shape[1]):
                hits[d, j] += at_least(used_counters, critical[d, j], valid, passing)
            if first == 0:
                for level in range(len(used_counters)):
                    first_score[d] += np.int64(used_counters[level, 0] & uint64(1)) << level
    return hits, first_score


@kernel
def _gumbel_hits(
    chacha: NDArray[np.uint32], steps: ScoredSteps, count: int, critical: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return hits and scores of message 0 as `_greenlist_hits` does, but of Gumbel scores: int64[D, J], float64[D].

    critical: float64[D, J].
    """
    documents = len(steps.offsets) - 1
    hits, first_score = np.zeros(critical.shape, np.int64), np.zeros(documents)
    strip, sums = np.empty(GUMBEL_TILE + 2 * WORDS_A_GROUP, np.uint32), np.empty(GUMBEL_TILE, np.int64)
    for d in range(documents):
        begin, end = steps.offsets[d], steps.offsets[d + 1]
        ids, nonces = steps.ids[begin:end], steps.nonces[begin:end]
        first_score[d] = score_of(chacha[d], ids, nonces, 0)
        for first in range(0, count, GUMBEL_TILE):
            tile = sums[: min(GUMBEL_TILE, count - first)]
            sum_tile(chacha[d], ids, nonces, first, strip, tile)
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
                        score = score_of(chacha[d], ids, nonces, int(first + place))
                        hit_count += np.int64(score >= critical[d, j])
                hits[d, j] += hit_count
    return hits, first_score


@kernel
def _around(limit: float, scored: int) -> tuple[np.int64, np.int64]:
    """Return two sums around a limit.

    From the first on, the exact score is surely at least the limit. Below the second it is surely less.
    """
    bound = scored * TERM_ERROR + 1.0 + limit / SUM_UNIT * scored * 2.0**-50
    return np.int64(limit / SUM_UNIT + bound) + 1, np.int64(limit / SUM_UNIT - bound)

"""Very many scores of unmarked text under version 2, for nulls.py: the kernels of its search, and none kept."""

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, chacha8_lanes
from scanner.watermark.native.counters import at_least, first_bits
from scanner.watermark.native.green_runs import count_run, levels_of, words_of
from scanner.watermark.native.gumbel import TERM_ERROR, UNIT, approximate_terms
from scanner.watermark.native.gumbel_runs import score_of_number
from scanner.watermark.native.run_bounds import BITS
from scanner.watermark.native.runs import begin_run, next_block


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
        own_ids, own_nonces, scored = ids[begin:end], nonces[begin:end], end - begin
        first_score[d] = score_of_number(chacha[d], own_ids, own_nonces, 0)
        sum_run(chacha[d], own_ids, own_nonces, 0, sums)
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
                    score = score_of_number(chacha[d], own_ids, own_nonces, number)
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

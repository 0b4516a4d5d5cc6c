"""Compute full scores of a few numbers under a Gumbel label with groups, and bounds on them (SPEC_3 §1, §4).

A draw is w = c·2^24 + (f >> 8), with eight digits c from planes and a word f from another block. c alone bounds a term,
with half the draws and without a logarithm. For large c the bounds are far apart, so these few draws are drawn in full.
Most numbers are neither the best of their row nor rare by their bounds, and need no exact score.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy import uint32, uint64
from numpy.typing import NDArray

from scanner.watermark.kernel import kernel
from scanner.watermark.native.ciphers import CHUNK, LANES, chacha8_keyed_lanes
from scanner.watermark.native.keyed import term
from scanner.watermark.native.rough_runs import BLOCK_OF_DIGITS, BLOCK_OF_DRAWS, fill_lanes, write_counters
from scanner.watermark.native.steps import Steps
from scanner.watermark.positions import Ranges, offsets_of

_FIRST_FULL = 254
"""Smallest c of draws that are drawn in full for bounds."""

_UNIT = 2.0**-20
"""Unit of bounds while they are added up.

The sum over a chunk's terms stays below 2^32, because −ln(1 − 254/256) < 5.
"""

_SLACK = 1e-9
"""Upper bound on the rounding of a sum, relative to it."""


class _Scratch(NamedTuple):
    """Arrays of one call. They are made outside of the kernels, because compiling np.empty takes seconds.

    inputs: uint32[12 · CHUNK].
    block: uint32[16 · CHUNK + LANES].
    segments: int64[CHUNK, 5], as in `fill_lanes`.
    digits: uint32[CHUNK + LANES], the eight digits of each lane's draw.
    """

    inputs: NDArray[np.uint32]
    block: NDArray[np.uint32]
    segments: NDArray[np.int64]
    digits: NDArray[np.uint32]

    @classmethod
    def make(cls) -> Self:
        """Make the arrays."""
        return cls(
            np.zeros(12 * CHUNK, np.uint32),
            np.empty(16 * CHUNK + LANES, np.uint32),
            np.empty((CHUNK, 5), np.int64),
            np.empty(CHUNK + LANES, np.uint32),
        )


class _Full(NamedTuple):
    """Draws that wait to be drawn in full, at most CHUNK.

    places: int64[3, CHUNK], step, number and bound of each.
    draws: uint32[CHUNK], the draws, of which only the digits are known.
    inputs: uint32[12 · CHUNK].
    block: uint32[16 · CHUNK].
    """

    places: NDArray[np.int64]
    draws: NDArray[np.uint32]
    inputs: NDArray[np.uint32]
    block: NDArray[np.uint32]

    @classmethod
    def make(cls) -> Self:
        """Make the arrays."""
        return cls(
            np.zeros((3, CHUNK), np.int64),
            np.zeros(CHUNK, np.uint32),
            np.zeros(12 * CHUNK, np.uint32),
            np.empty(16 * CHUNK, np.uint32),
        )


def _bounds_of_terms() -> NDArray[np.uint64]:
    """Return bounds on the term of a draw for each c below _FIRST_FULL, in _UNIT: uint64[256], the upper one first."""
    c = np.arange(_FIRST_FULL)
    low = np.maximum(np.floor(-np.log1p(-c / 256.0) / _UNIT) - 1, 0)
    high = np.ceil(-np.log1p(-(c + 1) / 256.0) / _UNIT) + 1
    bounds = np.zeros(256, np.uint64)
    bounds[:_FIRST_FULL] = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return bounds


class _Asked(NamedTuple):
    """Numbers whose scores over R ranges of D documents are bounded, at most F.

    They belong to A requests, one after another.

    first: int64[A, D+1], the ranges of each document in a request.
    begin, end: int64[R], the steps of each range.
    place: int64[R+1], the numbers of each range.
    numbers: int64[F]. −1: none.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    place: NDArray[np.int64]
    numbers: NDArray[np.int64]


class _Entries(NamedTuple):
    """Numbers of one document whose scores over ranges are bounded, at most E, listed by their block.

    begin, end: int64[E], the steps of each.
    number: int64[E].
    bound: int64[E], the place of its bound.
    following: int64[E], the next one in its block. −1: none.
    first: int64[blocks], the first one in each block. −1: none.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    number: NDArray[np.int64]
    bound: NDArray[np.int64]
    following: NDArray[np.int64]
    first: NDArray[np.int64]


def bounds_of_scores(
    steps: Steps, *asked: tuple[Ranges, NDArray[np.int64]]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return bounds on the results of `exact_scores`, from below and above.

    A block of digits is drawn once for all ranges of a document that need it, whichever request they belong to.

    Args:
        steps: of D documents.
        asked: requests. Each has R ranges of the documents, and numbers of groups, int64[R, most], each below 2^16,
            with −1 for none. R and most may differ between requests.

    Returns:
        For each request, float64[R, most] both. −∞ where there is no number.
    """
    counts = np.array([len(ranges.begin) for ranges, _ in asked])
    all_asked = _Asked(
        np.stack([ranges.first for ranges, _ in asked]) + (np.cumsum(counts) - counts)[:, None],
        np.concatenate([ranges.begin for ranges, _ in asked]),
        np.concatenate([ranges.end for ranges, _ in asked]),
        offsets_of(np.repeat([numbers.shape[1] for _, numbers in asked], counts)),
        np.concatenate([numbers.ravel() for _, numbers in asked]),
    )
    of_documents = np.diff(all_asked.place[all_asked.first]).sum(axis=0)
    most = int(of_documents.max(initial=0))
    blocks = 1 + (int(all_asked.numbers.max(initial=0)) >> BLOCK_OF_DIGITS)
    entries = _Entries(*(np.empty(size, np.int64) for size in (most, most, most, most, most, blocks)))
    sums = np.zeros((2, len(all_asked.numbers)), np.int64)
    _add_bounds(steps, all_asked, entries, _bounds_of_terms(), _Scratch.make(), _Full.make(), sums)
    found, first = [], 0
    for _, numbers in asked:
        bounds = sums[:, first : first + numbers.size].reshape(2, *numbers.shape) * _UNIT
        low, high = np.where(numbers >= 0, bounds, -np.inf)
        found.append((low * (1.0 - _SLACK) - _SLACK, high * (1.0 + _SLACK) + _SLACK))
        first += numbers.size
    return found


@kernel
def _list_entries(asked: _Asked, document: int, entries: _Entries) -> tuple[int, int]:
    """List the numbers of a document. Return the first step of its ranges, and one past the last."""
    entries.first[:] = -1
    count, first_step, stop_step = 0, np.iinfo(np.int64).max, 0
    for request in range(len(asked.first)):
        for r in range(asked.first[request, document], asked.first[request, document + 1]):
            begin, end = asked.begin[r], asked.end[r]
            first_step, stop_step = min(first_step, begin), max(stop_step, end)
            for bound in range(asked.place[r], asked.place[r + 1]):
                number = asked.numbers[bound]
                if number >= 0:
                    block = number >> BLOCK_OF_DIGITS
                    entries.begin[count], entries.end[count] = begin, end
                    entries.number[count], entries.bound[count] = number, bound
                    entries.following[count], entries.first[block] = entries.first[block], count
                    count += 1
    return first_step, stop_step


@kernel
def _add_bounds(
    steps: Steps,
    asked: _Asked,
    entries: _Entries,
    of_terms: NDArray[np.uint64],
    scratch: _Scratch,
    full: _Full,
    bounds: NDArray[np.int64],
) -> None:
    """Add bounds on the requested scores, in _UNIT, to int64[2, F]."""
    inputs, block, segments, digits = scratch
    first_step, stop_step, no_number = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    waiting = 0
    for d in range(asked.first.shape[1] - 1):
        p, document_end = _list_entries(asked, d, entries)
        while p < document_end:
            first_step[0], stop_step[0] = p, min(p + CHUNK, document_end)
            _, lanes, _, _ = fill_lanes(
                steps, first_step, stop_step, no_number, BLOCK_OF_DIGITS, True, 0, 0, inputs, segments
            )
            for e in entries.first:
                needed = e
                while needed >= 0 and (entries.begin[needed] >= p + lanes or entries.end[needed] <= p):
                    needed = entries.following[needed]
                if needed < 0:
                    continue
                number = entries.number[needed]
                write_counters(steps.ids, uint64(p), number, BLOCK_OF_DIGITS, True, uint64(0), uint64(lanes), inputs)
                chacha8_keyed_lanes(inputs, lanes, block)
                while needed >= 0:
                    number, bound = entries.number[needed], entries.bound[needed]
                    begin, end = max(entries.begin[needed] - p, 0), min(entries.end[needed] - p, lanes)
                    needed = entries.following[needed]
                    if begin >= end:
                        continue
                    _digits_of_lanes(block, number, uint64(begin), uint64(end - begin), digits)
                    both = uint64(0)
                    for i in range(uint64(begin), uint64(end)):
                        c = digits[i]
                        both += of_terms[c]
                        if c >= uint32(_FIRST_FULL):
                            full.places[0, waiting], full.places[1, waiting] = p + np.int64(i), number
                            full.places[2, waiting], full.draws[waiting] = bound, c << uint32(24)
                            waiting += 1
                            if waiting == CHUNK:
                                _add_full(steps, full, waiting, bounds)
                                waiting = 0
                    bounds[0, bound] += np.int64(both & uint64(0xFFFFFFFF))
                    bounds[1, bound] += np.int64(both >> uint64(32))
            p += lanes
    _add_full(steps, full, waiting, bounds)


@kernel
def _digits_of_lanes(
    block: NDArray[np.uint32], number: int, lane: uint64, size: uint64, digits: NDArray[np.uint32]
) -> None:
    """Write the eight digits c of a number in `size` lanes. block: uint32[16 · CHUNK + LANES], of digits."""
    word, bit = uint64(((number >> 5) & 1) * CHUNK) + lane, uint32(number & 31)
    for v in range(uint64(0), size, uint64(LANES)):  # whole vectors: the surplus is overwritten later
        for i in range(v, v + uint64(LANES)):
            c = uint32(0)
            for q in range(uint64(8)):
                c = uint32(c << uint32(1)) | (uint32(block[uint64(2 * CHUNK) * q + word + i] >> bit) & uint32(1))
            digits[lane + i] = c


@kernel
def _add_full(steps: Steps, full: _Full, count: int, bounds: NDArray[np.int64]) -> None:
    """Draw the waiting draws in full, and add their terms to both bounds."""
    places, draws, inputs, block = full
    for i in range(uint64(count)):
        step = uint64(places[0, i])
        for w in range(uint64(8)):
            inputs[w * uint64(CHUNK) + i] = steps.keys[w, step]
        nonce = steps.nonces[step]
        inputs[uint64(10 * CHUNK) + i] = uint32(nonce)
        inputs[uint64(11 * CHUNK) + i] = uint32(nonce >> uint64(32))
        write_counters(steps.ids, step, places[1, i], BLOCK_OF_DRAWS, False, uint64(i), uint64(1), inputs)
    chacha8_keyed_lanes(inputs, count, block)
    for i in range(uint64(count)):
        word = block[uint64((places[1, i] & 15) * CHUNK) + i]
        units = np.int64(term(draws[i] | uint32(word >> uint32(8))) / _UNIT)
        bounds[0, places[2, i]] += units - 1
        bounds[1, places[2, i]] += units + 2


def exact_scores(
    steps: Steps, begin: NDArray[np.int64], end: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return Σ −ln(1−r) over the draws w = c·2^24 + (f >> 8) of steps (SPEC_3 §1), in order of position.

    Args:
        steps: of any documents.
        begin: int64[R], the first step of each row.
        end: int64[R], one past the last.
        numbers: int64[R, most], each below 2^32. −1: none.

    Returns:
        float64[R, most]. 0 where there is no number.
    """
    is_number = numbers >= 0
    rows, _ = np.nonzero(is_number)
    scores, sums = np.zeros(numbers.shape), np.zeros(len(rows))
    _add_exact(steps, begin[rows], end[rows], numbers[is_number], _Scratch.make(), sums)
    scores[is_number] = sums
    return scores


@kernel
def _add_exact(
    steps: Steps,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    numbers: NDArray[np.int64],
    scratch: _Scratch,
    sums: NDArray[np.float64],
) -> None:
    """Add the scores of numbers, int64[R], over steps begin … end−1, int64[R] both, to sums, float64[R]."""
    inputs, block, segments, digits = scratch
    run, step = 0, 0
    while run < len(begin):
        count, lanes, next_run, next_step = fill_lanes(
            steps, begin, end, numbers, BLOCK_OF_DIGITS, True, run, step, inputs, segments
        )
        chacha8_keyed_lanes(inputs, lanes, block)
        for s in range(count):
            r, lane, size = segments[s, 0], uint64(segments[s, 1]), uint64(segments[s, 2])
            _digits_of_lanes(block, numbers[r], lane, size, digits)
            first = uint64(begin[r] + (step if s == 0 else 0))
            write_counters(steps.ids, first, numbers[r], BLOCK_OF_DRAWS, False, lane, size, inputs)
        chacha8_keyed_lanes(inputs, lanes, block)
        for s in range(count):
            r, lane, size = segments[s, 0], uint64(segments[s, 1]), uint64(segments[s, 2])
            row = uint64((numbers[r] & 15) * CHUNK)
            total = sums[r]
            for i in range(lane, lane + size):
                total += term(uint32(digits[i] << uint32(24)) | uint32(block[row + i] >> uint32(8)))
            sums[r] = total
        run, step = next_run, next_step

"""Define ragged batches of tokens, the positions of them that are scored, and n-grams that are left out of scoring.

Repeats are found by comparing the tuples themselves. A hash finds their place in a table. Its key is drawn anew in
every process, so no text can be written that makes the search slow. Two tuples meet in Σ key[i]·token[i] mod 2^64 with
probability at most 2^-33 over the draw of the key (multilinear hashing; Carter and Wegman 1979). The sum is then mixed.

Signatures, licences and templates give the same draws to every text that contains them. So hits under one key come
together: they vary more than chance, although each p-value holds. A filter leaves such positions out. It depends only
on earlier texts, never on a key, so the law of the other positions is unchanged.

The sketch is a count-min sketch (Cormode and Muthukrishnan 2005) whose counters count distinct texts. Each cell has 64
bits, and a text sets one of them, chosen by its digest (linear counting, Whang 1990). A copy of a text sets the same
bit. So sketches are merged by OR, and learning anything twice changes nothing: a shard, a night, a killed scan.
"""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy import uint64
from numpy.typing import ArrayLike, NDArray

from scanner.watermark.kernel import kernel

Dedup = Literal["ngram", "context", "none"]

WIDEST_WINDOW = 64
"""Widest window of any format."""

WINDOWS_HASHED_TOGETHER = 256
"""Number of windows that are hashed at a time. Their hashes fit the first-level cache."""

_PLACE_KEY = np.frombuffer(os.urandom(8 * (WIDEST_WINDOW + 1)), np.uint64)
_MIX = uint64(0x9FB21C651E98DF25)

TABLE_FACTOR = 4
"""Places in the table for each window. At most a quarter is taken, so a search seldom meets another window."""


class Tokens(NamedTuple):
    """A ragged batch of D documents: flat token ids, and where each document begins and ends.

    ids: uint32[N].
    offsets: int64[D+1], from 0 to N.
    """

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class Positions:
    """The scored positions of a batch, document by document and in order.

    index: int64[P], places in Tokens.ids.
    offsets: int64[D+1], from 0 to P.
    """

    index: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @functools.cached_property
    def scored(self) -> NDArray[np.int64]:
        """Return T, the number of scored positions of each document: int64[D]."""
        return self.offsets[1:] - self.offsets[:-1]  # np.diff takes five times as long for few documents


class PositionRule(Protocol):
    """The positions that a format scores, and the tokens that decide their draws.

    Equal rules compare equal and hash alike.

    A draw counts once. A repeat brings no new draw, and counting it would make p too small. So a rule that leaves out
    repeats compares the token and the seed that the format itself computes.
    """

    @property
    def context(self) -> int:
        """Return the least number of tokens before a scored position. Marked text needs them in its prompt."""

    def positions(self, tokens: Tokens, dedup: Dedup) -> Positions:
        """Return the scored positions of a batch. `dedup` says which repeats are left out."""

    def ngram(self, tokens: Tokens, place: int) -> tuple[int, ...]:
        """Return the tokens that decide the draw of a scored position, itself last."""


@dataclass(frozen=True)
class WholeWindows:
    """The last `window` tokens and the token itself decide.

    A position without a whole window before it is not scored.
    """

    window: int

    @property
    def context(self) -> int:
        """Return the window."""
        return self.window

    def positions(self, tokens: Tokens, dedup: Dedup) -> Positions:
        """See PositionRule."""
        return scored_positions(tokens, self.window, dedup)

    def ngram(self, tokens: Tokens, place: int) -> tuple[int, ...]:
        """See PositionRule."""
        return tuple(tokens.ids[place - self.window : place + 1].tolist())


@runtime_checkable
class LeavesOutShown(Protocol):
    """A rule that leaves out positions with shown seeds (SPEC_3 §4)."""

    @property
    def with_shown(self) -> PositionRule:
        """Return the rule that does not leave them out."""


def rule_with_shown(rule: PositionRule) -> PositionRule:
    """Return the rule that leaves out no position because its seed was shown. It is most often the rule itself."""
    return rule.with_shown if isinstance(rule, LeavesOutShown) else rule


def reach_of(rule: PositionRule) -> int:
    """Return the number of previous tokens that the format hashes.

    Some formats hash fewer at the start of a text. This is the full number.
    """
    return max(rule.context, int(getattr(rule, "width", 0)))


def offsets_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return where each of n consecutive runs begins, and where the last one ends: int64[n+1], from 0."""
    offsets = np.zeros(np.size(lengths) + 1, np.int64)
    np.add.accumulate(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


class Ranges(NamedTuple):
    """Ranges of D documents among the positions, or steps, of all of them. Ranges may overlap.

    first: int64[D+1]. Of W ranges, document d has first[d] … first[d+1]−1.
    begin, end: int64[W].
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    @property
    def length(self) -> NDArray[np.int64]:
        """Return the length of each range: int64[W]."""
        return self.end - self.begin

    @property
    def whose(self) -> NDArray[np.int64]:
        """Return the document of each range: int64[W]."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def where(self, mask: NDArray[np.bool_]) -> "Ranges":
        """Return the ranges where a mask, bool[W], is true."""
        return Ranges(offsets_of(mask)[self.first], self.begin[mask], self.end[mask])

    def of(self, which: NDArray[np.int64]) -> "Ranges":
        """Return some of the ranges, int64[R], each as if of a document of its own.

        A range may be chosen several times.
        """
        return Ranges(np.arange(len(which) + 1), self.begin[which], self.end[which])


def select_documents(tokens: Tokens, documents: NDArray[np.int64] | Sequence[int]) -> Tokens:
    """Return the given documents of a batch, int64[d], in that order."""
    index = np.asarray(documents, np.int64)
    return Tokens(*runs_of(tokens.ids, tokens.offsets[index], np.diff(tokens.offsets)[index]))


def select_positions(positions: Positions, documents: NDArray[np.int64] | Sequence[int]) -> Positions:
    """Return the scored positions of the given documents, int64[d], in that order, still as places in the whole batch.

    No copy is made if the documents are all of the batch in order.
    """
    document_count = len(positions.offsets) - 1
    if len(documents) == document_count and np.array_equal(documents, np.arange(document_count)):
        return positions
    index = np.asarray(documents, np.int64)
    return Positions(*runs_of(positions.index, positions.offsets[index], positions.scored[index]))


def positions_where(positions: Positions, mask: NDArray[np.bool_]) -> Positions:
    """Return the scored positions where a mask, bool[P], is true."""
    return Positions(positions.index[mask], offsets_of(mask)[positions.offsets])


def spread_out(positions: Positions, most: int) -> Positions:
    """Return at most `most` positions of each document, evenly spaced and in order."""
    scored = positions.scored
    counts = np.minimum(scored, most)
    numbers = consecutive_positions(np.zeros(len(counts), np.int64), counts)
    places = numbers.index * np.repeat(scored, counts) // np.repeat(counts, counts)
    return Positions(positions.index[np.repeat(positions.offsets[:-1], counts) + places], numbers.offsets)


def consecutive_positions(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Positions:
    """Return the places in a batch of runs with the given begins and lengths, int64[D] both."""
    offsets = offsets_of(lengths)
    return Positions(_places_of_runs(begins, offsets), offsets)


@kernel
def _places_of_runs(begins: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    places = np.empty(offsets[-1], np.int64)
    for d in range(len(begins)):
        for i in range(offsets[d], offsets[d + 1]):
            places[i] = begins[d] + i - offsets[d]
    return places


def runs_of(
    values: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return runs of values, one after another, and their offsets there. Begins and lengths are int64[R]."""
    offsets = offsets_of(lengths)
    out = np.empty(offsets[-1], values.dtype)
    _copy_runs(values, begins, offsets, out)
    return out, offsets


@kernel
def _copy_runs(values: NDArray[Any], begins: NDArray[np.int64], offsets: NDArray[np.int64], out: NDArray[Any]) -> None:
    first = 0
    for i in range(len(begins)):
        end = begins[i] + offsets[i + 1] - offsets[i]
        if i + 1 < len(begins) and begins[i + 1] == end:  # runs that follow each other are copied together
            continue
        begin, place = uint64(begins[first]), uint64(offsets[first])
        for k in range(uint64(offsets[i + 1]) - place):  # slices take twice as long where runs are short
            out[place + k] = values[begin + k]
        first = i + 1


def batch_tokens(documents: list[list[int]]) -> Tokens:
    """Flatten lists of token ids."""
    ids = np.array([token for document in documents for token in document], np.uint32)
    return Tokens(ids, offsets_of([*map(len, documents)]))


def join_batches(parts: Sequence[Tokens]) -> Tokens:
    """Join several batches, at least one, in order. A single batch is not copied."""
    if len(parts) == 1:
        return parts[0]
    ids, lengths = [part.ids for part in parts], [np.diff(part.offsets) for part in parts]
    return Tokens(np.concatenate(ids), offsets_of(np.concatenate(lengths)))


def scored_positions(tokens: Tokens, window: int, dedup: Dedup) -> Positions:
    """List positions with a whole window before them, without repeats.

    Source: SPEC §3; paper, Rectifying the Detection Scores.

    Args:
        tokens: of the batch.
        window: h, 0 to 64.
        dedup: `ngram` leaves out a (window, token) tuple that occurred before in the document, `context` a window that
            did, `none` nothing.

    Raises:
        ValueError: dedup is another name.

    Example: tokens 1, 2, 1, 3, 1, 2 with a window of 1. `none` returns places 1 to 5. `ngram` returns 1 to 4, because
    (1, 2) came before. `context` returns 1, 2 and 4, because window 1 came before.
    """
    if dedup not in ("ngram", "context", "none"):
        raise ValueError(f"dedup {dedup!r} is unknown; allowed: ngram, context, none")
    if dedup == "none":
        return consecutive_positions(tokens.offsets[:-1] + window, np.maximum(np.diff(tokens.offsets) - window, 0))
    width = window + 1 if dedup == "ngram" else window
    longest = int(np.diff(tokens.offsets).max(initial=1))
    # an empty table for the longest document, in the narrowest integers that hold a place in the batch
    places: type[np.signedinteger[Any]] = np.int32 if len(tokens.ids) < 2**31 else np.int64
    table = np.full(1 << (TABLE_FACTOR * longest - 1).bit_length(), -1, places)
    return Positions(*_first_occurrences(tokens.ids, tokens.offsets, window, width, _PLACE_KEY, table))


def with_opening(tokens: Tokens, whole: Positions, window: int, first: int) -> Positions:
    """Return positions with a whole window before them, preceded by positions whose window lacks tokens.

    The number of lacking tokens tells the place of such a window, so it never occurs twice in a document.

    Args:
        tokens: of the batch.
        whole: the positions that have a whole window.
        window: h.
        first: the first position of each document to return, 0 to h.
    """
    heads = np.maximum(np.minimum(np.diff(tokens.offsets), window) - first, 0)
    offsets = offsets_of(heads + whole.scored)
    places = np.arange(heads.sum()) - np.repeat(np.cumsum(heads) - heads, heads)
    at_head = np.zeros(offsets[-1], bool)
    at_head[np.repeat(offsets[:-1], heads) + places] = True
    index = np.empty(offsets[-1], np.int64)
    index[at_head] = np.repeat(tokens.offsets[:-1] + first, heads) + places
    index[~at_head] = whole.index
    return Positions(index, offsets)


@kernel
def _same(ids: NDArray[np.uint32], a: int, b: int, width: int) -> bool:
    for i in range(uint64(width)):  # unsigned, as below: numba skips the test for a negative index
        if ids[uint64(a) + i] != ids[uint64(b) + i]:
            return False
    return True


@kernel
def _hash_windows(ids: NDArray[np.uint32], width: int, key: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """Hash the `width` tokens from each place on: out[i] for ids[i] … ids[i+width−1]."""
    lanes = len(out)
    out[:] = uint64(0)
    for k in range(width):
        column, factor = ids[k : k + lanes], key[k]
        for i in range(lanes):
            out[i] += uint64(factor * uint64(column[i]))
    for i in range(lanes):
        out[i] = uint64(uint64(out[i] ^ uint64(out[i] >> uint64(32))) * _MIX)


@kernel
def _first_occurrences(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    window: int,
    width: int,
    key: NDArray[np.uint64],
    table: NDArray[np.signedinteger[Any]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keep the positions whose tuple of `width` tokens, from `window` before them, is new in its document."""
    # A table with open addressing holds the place where each tuple first began. Documents come in order, so entries of
    # earlier documents are recognised by their places, and nothing needs to be cleared.
    occurrences = np.empty(len(ids), np.int64)
    occurrence_offsets = np.zeros(len(offsets), np.int64)
    hashes = np.empty(WINDOWS_HASHED_TOGETHER, np.uint64)
    hashed_from, hashed_to = 0, 0
    count = 0
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1] - window
        next_one = begin
        bits = 1
        while (1 << bits) < TABLE_FACTOR * (end - begin):
            bits += 1
        mask, shift = uint64((1 << bits) - 1), uint64(64 - bits)
        while next_one < end:
            if next_one >= hashed_to:
                hashed_from, hashed_to = next_one, min(next_one + WINDOWS_HASHED_TOGETHER, len(ids) - window)
                _hash_windows(ids[next_one:], width, key, hashes[: hashed_to - hashed_from])
            run = hashes[next_one - hashed_from : end - hashed_from]  # as many of the document's as are hashed
            for i in range(uint64(len(run))):
                first = next_one + np.int64(i)
                slot = run[i] >> shift
                place = table[slot]
                while place >= begin and not _same(ids, place, first, width):
                    slot = (slot + uint64(1)) & mask
                    place = table[slot]
                if place < begin:
                    table[slot] = first
                    occurrences[uint64(count)] = first + window
                    count += 1
            next_one += len(run)
        occurrence_offsets[d + 1] = count
    return occurrences[:count], occurrence_offsets

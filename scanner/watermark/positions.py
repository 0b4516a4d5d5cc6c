"""Ragged batches of tokens, and which of their positions are scored (SPEC §3).

Repeats are found by comparing the tuples themselves. A hash under a key that is drawn anew in every process finds the
place, so that no text can be written that makes the search slow.
"""

import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.ciphers import siphash_tokens
from scanner.watermark.kernel import kernel

Dedup = Literal["ngram", "context", "none"]

_PLACE_KEY = np.frombuffer(os.urandom(16), np.uint64)


class Tokens(NamedTuple):
    """A ragged batch of D documents: flat token ids and where each document begins and ends.

    ids: uint32[N]; offsets: int64[D+1], from 0 to N.
    """

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class Positions:
    """The scored positions of a batch, document by document and in order.

    index: int64[P], places in Tokens.ids; offsets: int64[D+1], from 0 to P.
    """

    index: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def scored(self) -> NDArray[np.int64]:
        """int64[D]: how many positions of each document are scored (T)."""
        return np.diff(self.offsets)


def ragged(documents: list[list[int]]) -> Tokens:
    """Flatten lists of token ids."""
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    return Tokens(np.array([token for document in documents for token in document], np.uint32), offsets)


def scored_positions(tokens: Tokens, window: int, dedup: Dedup) -> Positions:
    """Positions with a whole window before them, less the repeats (SPEC §3; paper, Rectifying the Detection Scores).

    Args:
        tokens: the batch.
        window: h, 0 to 16.
        dedup: `ngram` leaves out a (window, token) tuple that occurred before in the document, `context` a window that
            did, `none` nothing.

    Raises:
        ValueError: another name for dedup.
    """
    if dedup not in ("ngram", "context", "none"):
        raise ValueError(f"dedup {dedup!r} is unknown; allowed: ngram, context, none")
    index, offsets = _with_whole_window(tokens.offsets, window)
    if dedup == "none":
        return Positions(index, offsets)
    width = window + 1 if dedup == "ngram" else window
    places = np.empty(len(index), np.uint64)
    siphash_tokens(_PLACE_KEY, tokens.ids, index - window, width, places)
    return Positions(*_first_occurrences(tokens.ids, index, offsets, window, width, places))


def _with_whole_window(offsets: NDArray[np.int64], window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = np.maximum(np.diff(offsets) - window, 0)
    kept = np.zeros(len(offsets), np.int64)
    np.cumsum(lengths, out=kept[1:])
    shift = np.repeat(offsets[:-1] + window - kept[:-1], lengths)
    return np.arange(kept[-1], dtype=np.int64) + shift, kept


@kernel
def _same(ids: NDArray[np.uint32], a: int, b: int, width: int) -> bool:
    for i in range(width):
        if ids[a + i] != ids[b + i]:
            return False
    return True


@kernel
def _first_occurrences(
    ids: NDArray[np.uint32],
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    window: int,
    width: int,
    places: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keep the positions whose tuple of `width` tokens, from `window` before them, is new in its document.

    A table with open addressing, at most half full, cleared for every document.
    """
    kept = np.empty(len(index), np.int64)
    kept_offsets = np.zeros(len(offsets), np.int64)
    longest = 0
    for d in range(len(offsets) - 1):
        longest = max(longest, offsets[d + 1] - offsets[d])
    size = 2
    while size < 2 * longest:
        size *= 2
    table = np.empty(size, np.int64)
    count = 0
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        size = 2
        while size < 2 * (end - begin):
            size *= 2
        table[:size] = -1
        for p in range(begin, end):
            first = index[p] - window
            slot = np.int64(places[p] & np.uint64(size - 1))
            while table[slot] >= 0 and not _same(ids, table[slot], first, width):
                slot = (slot + 1) & (size - 1)
            if table[slot] < 0:
                table[slot] = first
                kept[count] = index[p]
                count += 1
        kept_offsets[d + 1] = count
    return kept[:count].copy(), kept_offsets

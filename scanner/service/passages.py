"""An index in memory of keyed sketches: which passages share most hashes with another, and how alike two passages are.

As a table of SQLite, it took most of a charge.
"""

import numpy as np
from numpy.typing import NDArray

from scanner.detection.sketches import MOST_GRAMS
from scanner.watermark.kernel import inlined, kernel

FEWEST_SHARED = 4
"""Fewest hashes that near-duplicates share."""

_ONE_IN = np.uint64(4)
"""One in so many hashes of a sketch is indexed, by its last bits: the index takes 16 bytes and more for each."""

_NOBODY = 0
"""Number of a passage that was taken out."""

_END = -1
"""Place that no entry has, behind the last of a chain."""


class PassageIndex:
    """Numbers of passages, from 1 and below 2^32, by indexed hashes of their keyed sketches.

    Entries whose hashes end alike are a chain, a passage's entries a run; those that were taken out go when there is no
    room for more. No chain is walked to take a passage out: a hash that all texts share has one of all passages.
    """

    def __init__(self) -> None:
        self._used, self._begins = 0, dict[int, int]()
        self._hashes, self._passages = np.empty(0, np.uint64), np.empty(0, np.uint32)
        self._make_room(1024)

    def __len__(self) -> int:
        """Number of entries."""
        return int(np.count_nonzero(self._passages[: self._used]))

    def add(self, passage: int, grams: NDArray[np.uint64]) -> None:
        """Take up a passage, which is not there, with its keyed sketch."""
        added = indexed(grams)
        if self._used + len(added) > len(self._hashes):
            self._make_room(len(added))
        begin, self._used = self._used, self._used + len(added)
        self._hashes[begin : self._used], self._passages[begin : self._used] = added, passage
        self._begins[passage] = begin
        _chain(self._hashes, begin, self._used, self._heads, self._following)

    def remove(self, passage: int) -> None:
        """Take out a passage, where it is there."""
        begin = self._begins.pop(passage, None)
        if begin is not None:
            run = self._passages[begin : begin + MOST_GRAMS]
            run[run == passage] = _NOBODY

    def most_alike(self, grams: NDArray[np.uint64], most: int) -> list[int]:
        """Passages that share most indexed hashes with a keyed sketch; of equal ones, those of higher numbers first."""
        found = _by_shared(indexed(grams), self._hashes, self._passages, self._heads, self._following)
        return [int(passage) for passage in found[:most].tolist()]

    def _make_room(self, more: int) -> None:
        """Leave out what was taken out, and have room for so many entries more, and a quarter of all."""
        kept = self._passages[: self._used] != _NOBODY
        before = np.append(0, np.cumsum(kept, dtype=np.int64))
        begins = before[np.fromiter(self._begins.values(), np.int64)].tolist()
        self._begins, self._used = dict(zip(self._begins, begins, strict=True)), int(before[-1])
        room = self._used + more + self._used // 4
        hashes, passages = np.empty(room, np.uint64), np.empty(room, np.uint32)
        hashes[: self._used] = self._hashes[: len(kept)][kept]
        passages[: self._used] = self._passages[: len(kept)][kept]
        self._hashes, self._passages, self._following = hashes, passages, np.empty(room, np.int32)
        self._heads = np.full(1 << (room // 2).bit_length(), _END, np.int32)
        _chain(hashes, 0, self._used, self._heads, self._following)


def compile_index() -> None:
    """Compile, or load, what an index takes, so that no text waits for it."""
    index, grams = PassageIndex(), np.frombuffer(bytes(8), "<u8")
    index.add(1, grams)
    index.most_alike(grams, 1)
    index.remove(1)
    containments(grams, grams, np.array([1]))
    containments(grams.copy(), grams, np.array([1]))


def indexed(grams: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hashes of a keyed sketch by which it is found."""
    kept: NDArray[np.uint64] = grams[grams % _ONE_IN == 0]
    return kept


@inlined
def _chain_of(value: np.uint64, heads: NDArray[np.int32]) -> np.int64:
    """Place of a hash's chain, by its last bits: a sketch has small hashes, so that their first ones say less."""
    return np.int64((value // _ONE_IN) % np.uint64(len(heads)))


@kernel
def _chain(
    hashes: NDArray[np.uint64], begin: int, end: int, heads: NDArray[np.int32], following: NDArray[np.int32]
) -> None:
    """Put entries at the beginnings of their chains."""
    for entry in range(begin, end):
        chain = _chain_of(hashes[entry], heads)
        following[entry] = heads[chain]
        heads[chain] = entry


@kernel
def _by_shared(
    wanted: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
    passages: NDArray[np.uint32],
    heads: NDArray[np.int32],
    following: NDArray[np.int32],
) -> NDArray[np.uint64]:
    """Every passage with one of the hashes: by how many of them, then by its number, descending."""
    found, count = np.empty(1024, np.uint64), 0
    for value in wanted:
        entry = heads[_chain_of(value, heads)]
        while entry != _END:
            if hashes[entry] == value and passages[entry] != _NOBODY:
                if count == len(found):
                    found = np.concatenate((found, found))
                found[count] = passages[entry]
                count += 1
            entry = following[entry]
    found = np.sort(found[:count])
    ranks, kinds, begin = np.empty(count, np.uint64), 0, 0
    for end in range(1, count + 1):
        if end == count or found[end] != found[begin]:
            ranks[kinds] = np.uint64(end - begin) << np.uint64(32) | found[begin]
            kinds, begin = kinds + 1, end
    return np.sort(ranks[:kinds])[::-1] & np.uint64(2**32 - 1)


@kernel
def containments(one: NDArray[np.uint64], others: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of the smaller passage's n-grams that the other holds, of a passage and each of others, by keyed sketches.

    0 with few shared hashes. others: their sketches, one behind the other; sizes: hashes of each, 1 at least.
    """
    found, end = np.zeros(len(sizes)), 0
    for place in range(len(sizes)):
        other = others[end : end + sizes[place]]
        end += sizes[place]
        shared = at = at_other = 0
        while at < len(one) and at_other < len(other):
            value, other_value = one[at], other[at_other]
            shared += value == other_value
            at += value <= other_value
            at_other += other_value <= value
        if shared >= FEWEST_SHARED:  # both sketches are complete up to the smaller of the last hashes of full ones
            last = one[-1] if len(one) == MOST_GRAMS else np.uint64(2**64 - 1)
            last = min(last, other[-1]) if len(other) == MOST_GRAMS else last
            smaller = min(np.searchsorted(one, last, "right"), np.searchsorted(other, last, "right"))
            found[place] = shared / smaller
    return found

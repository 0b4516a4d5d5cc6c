"""The n-grams that many texts hold: a sketch that learns them, and the positions of texts without them.

A sketch has cells of 64 bits. A text sets one bit, by its digest, in two cells of each of its n-grams, so that a cell's
bits count distinct texts, roughly and never too few. N-grams are hashed under a key, so that no table tells which there
were.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from scanner.ngram_filter.proof import find_common_places
from scanner.watermark.kernel import kernel
from scanner.watermark.positions import WIDEST_WINDOW, Positions, Tokens

CELLS_AN_NGRAM = 2
"""Cells of an n-gram; it counts as common where all of them are full enough."""

CELLS_OF_A_ROW = 1 << 23
"""Cells of a row, a power of 2: a sketch has 128 MiB, a filter 2 MiB."""

BITS_A_CELL = 64
"""Bits of a cell."""

MOST_NGRAMS = 1 << 25
"""N-grams that a sketch should learn at most: four a cell. With more, n-grams of few texts begin to pass for common."""

LEAST_REACH = 2
"""Fewest previous tokens that a filtered key reads: of shorter n-grams nearly all are common."""

_FILTER_MIX = (uint64(0xBF58476D1CE4E5B9), uint64(0x94D049BB133111EB))  # constants of splitmix64


def hash_key(secret: bytes) -> NDArray[np.uint64]:
    """Return the key under which n-grams are hashed, uint64[WIDEST_WINDOW + 2], so that no table tells what they were.

    Args:
        secret: never the secret of a watermark.
    """
    return np.frombuffer(hashlib.shake_256(secret).digest(8 * (WIDEST_WINDOW + 2)), "<u8").astype(np.uint64)


class Sketch:
    """Counts how many distinct texts hold each n-gram of reach + 1 tokens, roughly and never too few.

    Args:
        reach: how many previous tokens an n-gram has.
        cells: uint64[CELLS_AN_NGRAM, CELLS_OF_A_ROW]; None: nothing is learnt yet.
    """

    def __init__(self, reach: int, cells: NDArray[np.uint64] | None = None) -> None:
        self.reach = reach
        self.cells = np.zeros((CELLS_AN_NGRAM, CELLS_OF_A_ROW), np.uint64) if cells is None else cells

    def learn(self, key: NDArray[np.uint64], tokens: Tokens, texts: NDArray[np.uint8]) -> None:
        """Count the n-grams of D texts.

        Args:
            key: as hash_key makes it.
            tokens: of the texts.
            texts: uint8[D], the bit of each by its digest, below BITS_A_CELL.
        """
        _learn(tokens.ids, tokens.offsets, self.reach, key, texts, self.cells)

    def merge(self, other: "Sketch") -> "Sketch":
        """Return a sketch of what this one and another of the same reach have learnt."""
        return Sketch(self.reach, self.cells | other.cells)

    def common(self, texts: int) -> NDArray[np.uint8]:
        """Return the n-grams that about so many distinct texts hold, or more.

        The result is uint8[CELLS_AN_NGRAM, CELLS_OF_A_ROW / 8].
        """
        return np.packbits(np.bitwise_count(self.cells) >= least_bits(texts), axis=1, bitorder="little")


def least_bits(texts: int) -> int:
    """Return how many bits of a cell so many distinct texts set on average."""
    return round(BITS_A_CELL * (1.0 - (1.0 - 1.0 / BITS_A_CELL) ** texts))


@dataclass(frozen=True)
class CommonNgrams:
    """The n-grams of reach + 1 tokens that are left out of scoring.

    key: as hash_key makes it, shown in no repr and never pickled.
    common: as Sketch.common makes it.
    """

    reach: int
    key: NDArray[np.uint64] = field(repr=False)
    common: NDArray[np.uint8] = field(repr=False)

    def without(self, tokens: Tokens, positions: Positions, documents: NDArray[np.bool_] | None = None) -> Positions:
        """Return the positions whose n-gram is not common. A position with fewer than `reach` tokens before it stays.

        Args:
            tokens: of D documents.
            positions: of these documents.
            documents: bool[D], the documents that are looked at, all positions of others stay; None: all of them.
        """
        where = tokens.ids, tokens.offsets, positions.index, positions.offsets
        chosen = np.ones(len(positions.scored), np.bool_) if documents is None else documents
        return Positions(*_without(*where, chosen, self.reach, self.key, self.common))

    def __reduce__(self) -> NoReturn:
        raise TypeError("CommonNgrams has a key and is never pickled; open the filter again where it is needed")

    def places(self, ids: NDArray[np.uint32]) -> frozenset[int]:
        """Find the places of a text that are left out, by the slow path of proofs."""
        return find_common_places(ids.tolist(), *self.plain)

    @functools.cached_property
    def plain(self) -> tuple[int, Sequence[int], Sequence[bytes]]:
        """Reach, key and common cells as plain values, as `find_common_places` takes them."""
        return self.reach, self.key.tolist(), [row.tobytes() for row in self.common]


def common_in(
    texts: Iterable[tuple[Tokens, NDArray[np.uint64]]], reach: int, key: NDArray[np.uint64], common_from: int
) -> NDArray[np.uint8]:
    """Find the n-grams that so many distinct texts hold, as Sketch.common gives them.

    Args:
        texts: tokens, with a number of each text by its digest.
        reach: how many previous tokens an n-gram has.
        key: as hash_key makes it.
        common_from: fewest distinct texts that hold a common n-gram.
    """
    sketch = Sketch(reach)
    for tokens, numbers in texts:
        sketch.learn(key, tokens, (numbers % np.uint64(BITS_A_CELL)).astype(np.uint8))
    return sketch.common(common_from)


@kernel
def _hash(ids: NDArray[np.uint32], end: int, reach: int, key: NDArray[np.uint64]) -> np.uint64:
    """Hash of the n-gram that ends at a place: multilinear, then mixed as splitmix64 does."""
    h = key[0]
    for i in range(reach + 1):
        h += uint64(key[i + 1] * uint64(ids[end - reach + i]))
    h = uint64(uint64(h ^ uint64(h >> uint64(30))) * _FILTER_MIX[0])
    h = uint64(uint64(h ^ uint64(h >> uint64(27))) * _FILTER_MIX[1])
    return uint64(h ^ uint64(h >> uint64(31)))


@kernel
def _learn(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    reach: int,
    key: NDArray[np.uint64],
    texts: NDArray[np.uint8],
    cells: NDArray[np.uint64],
) -> None:
    for d in range(len(offsets) - 1):
        bit, last = uint64(uint64(1) << uint64(texts[d])), uint64(cells.shape[1] - 1)
        for end in range(offsets[d] + reach, offsets[d + 1]):
            h = _hash(ids, end, reach, key)
            for row in range(CELLS_AN_NGRAM):
                cells[row, np.int64((h >> uint64(32 * row)) & last)] |= bit


@kernel
def _without(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    index: NDArray[np.int64],
    bounds: NDArray[np.int64],
    documents: NDArray[np.bool_],
    reach: int,
    key: NDArray[np.uint64],
    common: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    kept, kept_bounds = np.empty(len(index), np.int64), np.zeros(len(bounds), np.int64)
    count, last = 0, uint64(8 * common.shape[1] - 1)
    for d in range(len(bounds) - 1):
        for p in range(bounds[d], bounds[d + 1]):
            everywhere = documents[d] and index[p] - offsets[d] >= reach
            if everywhere:
                h = _hash(ids, index[p], reach, key)
                for row in range(CELLS_AN_NGRAM):
                    cell = np.int64((h >> uint64(32 * row)) & last)
                    everywhere = everywhere and (common[row, cell >> 3] >> (cell & 7)) & 1 == 1
            if not everywhere:
                kept[count] = index[p]
                count += 1
        kept_bounds[d + 1] = count
    return kept[:count], kept_bounds

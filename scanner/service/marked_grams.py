"""How often n-grams of marked text were asked about: counts in one file of a fixed size, which no caller can fill.

Counts stand in the places of a keyed hash (a count-min sketch, Cormode and Muthukrishnan 2005). Two n-grams may share a
place, so that a count may be too high and is never too low. Both rows must err for a count to be wrong.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scanner.detection.sketches import ONE_GRAM_IN

_PLACES = 2**23
"""Places of a row, a byte each; with 20,000 marked texts of 2 KB in a window, 1 in 2 of them is taken."""

_STEPS = (ONE_GRAM_IN, ONE_GRAM_IN * _PLACES)
"""What a hash is divided by for its place in each row: rows take other bits of it."""


class MarkedGrams:
    """Counts of n-grams by their keyed hash, up to 255. They survive a restart.

    Args:
        file: made where there is none.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, file: Path) -> None:
        with file.open("ab") as out:  # with all its room at once: a full disk would end the process at a write
            os.posix_fallocate(out.fileno(), 0, len(_STEPS) * _PLACES)
        self._rows = np.memmap(file, np.uint8, "r+", shape=(len(_STEPS), _PLACES))

    def counts(self, grams: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return how often each n-gram was added, uint8[G]."""
        counts: NDArray[np.uint8] = np.min([self._rows[row, places] for row, places in self._places(grams)], axis=0)
        return counts

    def add(self, grams: NDArray[np.uint64]) -> None:
        """Add n-grams, each of which is there once."""
        counts = self.counts(grams)
        next_counts = counts + (counts < np.iinfo(np.uint8).max)
        for row, places in self._places(grams):
            self._rows[row, places] = np.maximum(self._rows[row, places], next_counts)

    def clear(self) -> None:
        """Forget all."""
        self._rows[:] = 0
        self._rows.flush()

    def _places(self, grams: NDArray[np.uint64]) -> list[tuple[int, NDArray[np.int64]]]:
        return [
            (row, (grams // np.uint64(step) % np.uint64(_PLACES)).astype(np.int64)) for row, step in enumerate(_STEPS)
        ]

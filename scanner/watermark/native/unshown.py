"""Leave out positions of version 3 whose bucket was shown (SPEC_3 §4), because anybody can mark these windows."""

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scanner.watermark.native.secret import window_key
from scanner.watermark.native.steps import buckets_of
from scanner.watermark.native.streams import nonces_of_positions
from scanner.watermark.positions import Dedup, Positions, Tokens, WholeWindows, positions_where


@dataclass(frozen=True)
class UnshownWindows(WholeWindows):
    """Whole windows whose bucket was not shown. Its repr names no bucket.

    seeds: n, of 2^n seeds.
    shown: buckets, int64 in ascending order, as bytes. They tell rules apart.
    """

    seeds: int
    shown: bytes = field(repr=False)

    @property
    def with_shown(self) -> WholeWindows:
        """See scanner.watermark.positions.LeavesOutShown."""
        return WholeWindows(self.window)

    def positions(self, tokens: Tokens, dedup: Dedup) -> Positions:
        """See PositionRule."""
        whole = super().positions(tokens, dedup)
        nonces = nonces_of_positions(window_key(self.window, self.seeds)[:2], tokens.ids, whole.index, self.window)
        return positions_where(whole, ~self.is_shown[buckets_of(nonces, self.seeds)])

    @functools.cached_property
    def is_shown(self) -> NDArray[np.bool_]:
        """Return whether each bucket was shown: bool[2^n]."""
        is_shown = np.zeros(1 << self.seeds, np.bool_)
        is_shown[np.frombuffer(self.shown, np.int64)] = True
        return is_shown

"""Define the interface for n-grams that scoring and proofs leave out. None are, unless a filter is turned on.

The filter itself has a folder of its own, scanner.ngram_filter. This file does not depend on it.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scanner.watermark import Positions, Tokens
from scanner.watermark.positions import PositionRule
from schemas.words import Dedup


class LeftOut(Protocol):
    """The n-grams that are left out, in tokens of one tokenizer, by the draws of one rule."""

    def without(self, tokens: Tokens, positions: Positions, documents: NDArray[np.bool_] | None = None) -> Positions:
        """Return the positions that count.

        documents: bool[D], the documents to look at. None: all of them.
        """

    def places(self, ids: NDArray[np.uint32]) -> frozenset[int]:
        """Find the places of a text that are left out, by a slow path that shares no code with `without`."""


class NgramFilter(Protocol):
    """The n-grams that a scan leaves out, in tokens of every tokenizer."""

    def of(self, tokenizer: str, rule: PositionRule) -> LeftOut | None:
        """Return the n-grams that a rule leaves out in tokens of a tokenizer, given by its SHA-256. None: none."""


class _NoFilter:
    def of(self, tokenizer: str, rule: PositionRule) -> None:
        return None


NO_FILTER: NgramFilter = _NoFilter()


def counted_positions(
    ngram_filter: NgramFilter, tokenizer: str, rule: PositionRule, tokens: Tokens, dedup: Dedup
) -> Positions:
    """Return the scored positions of a batch by a rule, without those that the filter leaves out."""
    positions, left_out = rule.positions(tokens, dedup), ngram_filter.of(tokenizer, rule)
    return positions if left_out is None else left_out.without(tokens, positions)


def places_left_out(left_out: LeftOut | None, ids: NDArray[np.uint32]) -> frozenset[int]:
    """Find the places of a text that are left out, by the slow path of proofs."""
    return frozenset() if left_out is None else left_out.places(ids)

"""The filter of a scan: common n-grams of each tokenizer and window, left out of scoring."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.sketches import reach_of
from scanner.watermark import Positions, Tokens
from scanner.watermark.ngram_filter import CommonNgrams
from scanner.watermark.positions import Dedup, PositionRule


class Filter(NamedTuple):
    """The n-grams that a scan leaves out, by the SHA-256 of their tokenizer and by how far they reach."""

    common: Mapping[tuple[str, int], CommonNgrams]

    def of(self, tokenizer: str, rule: PositionRule) -> CommonNgrams | None:
        """The n-grams that a rule leaves out in tokens of a tokenizer, by its SHA-256; None: it leaves out none."""
        return self.common.get((tokenizer, reach_of(rule)))

    def positions(self, tokenizer: str, rule: PositionRule, tokens: Tokens, dedup: Dedup) -> Positions:
        """The scored positions of a batch by a rule, without common n-grams."""
        return self.left_of(rule.positions(tokens, dedup), tokenizer, rule, tokens)

    def left_of(self, positions: Positions, tokenizer: str, rule: PositionRule, tokens: Tokens) -> Positions:
        """Those of a rule's positions in a batch whose n-gram is not common."""
        common = self.of(tokenizer, rule)
        return positions if common is None else common.without(tokens, positions)


NO_FILTER = Filter({})


def plainly_left_out(common: CommonNgrams | None, ids: NDArray[np.uint32]) -> frozenset[int]:
    """Places of a text that are left out, by the slow path that shares no code with the first."""
    from scanner.watermark.proof import common_places  # flags alone need mpmath

    return frozenset() if common is None else common_places(ids.tolist(), *common.plain)

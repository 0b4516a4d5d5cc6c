"""Test whether decoys are distinct. Keys that draw alike are one key, and their p-values are no independent draws.

If all decoys of a scan shared one key, the scan would still count as many hits as the law expects, on average over
keys, whatever this key does on its traffic. So some decoys of each piece of work draw for the same tokens, and each
pair that draws alike is counted. The least draw of each piece is stored too, so that pieces can be compared.

Example: three decoys of a piece draw 0110…, 1010… and 0110… for the same tokens. That is one pair of three, and the
piece's least draw is 0110….
"""

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations

import numpy as np

from scanner.audit.statistics.hits import ClusterSums
from scanner.watermark import Positions, Tokens, Watermark
from scanner.watermark.format import Format, JoinsKeys
from scanner.watermark.laws import Law
from scanner.watermark.positions import offsets_of, positions_where, reach_of

DECOY_KEYS = "decoy_keys"
"""Kind of rows of AUDIT_COUNTS and AUDITS on pairs of decoys."""

DECOYS_A_PIECE = 32
"""Largest number of decoys of each kind of key in a piece of work that are compared."""

PROBES = 128
"""Number of tokens for which decoys draw, each after other tokens and in a text of its own.

For a green list with γ = 1/4, 128 draws are equal under two keys with a chance of 1e-26.
"""


class DecoyDraws:
    """Draws of the first decoys of one kind of key in a piece of work.

    chance: chance that two of them draw alike.
    """

    def __init__(self, form: Format) -> None:
        self.chance, self._draws = chance_of_alike(form), list[bytes]()

    def add(self, marks: Sequence[Watermark]) -> None:
        """Have opened decoys draw, as long as fewer than DECOYS_A_PIECE are compared."""
        few = marks[: DECOYS_A_PIECE - len(self._draws)]
        if few:
            self._draws += draws_of(few)

    @property
    def least(self) -> bytes:
        """Return the least digest of any decoy's draws."""
        return min(self._draws)

    def compare(self) -> ClusterSums:
        """Compare all pairs of decoys. A hit is a pair that draws alike. Each sum is [1]."""
        return pair_sums(
            math.comb(len(self._draws), 2),
            sum(a == b for a, b in combinations(self._draws, 2)),
            self.chance,
        )


def pair_sums(pairs: int, alike: int, chance: float) -> ClusterSums:
    """Sum pairs, each of which is a cluster, and pairs that draw alike, given the chance of this: each [1]."""
    sums = pairs, alike, pairs * chance, alike, alike * chance, pairs * chance * chance, pairs
    return ClusterSums(*(np.array([float(part)]) for part in sums))


def draws_of(marks: Sequence[Watermark]) -> list[bytes]:
    """Return digests of the draws of K marks of one format for the same tokens. Equal digests mean equal draws."""
    tokens, positions = _probes(marks[0], len(marks))
    joined = marks[0].join_marks(marks, tokens.offsets[:-1:PROBES]) if isinstance(marks[0], JoinsKeys) else None
    if joined is not None:
        scores = np.asarray(joined.score(tokens, positions, 0)).reshape(len(marks), PROBES)
    else:
        tokens, positions = _probes(marks[0], 1)
        scores = np.stack([mark.score(tokens, positions, 0) for mark in marks])
    return [hashlib.blake2b(row.astype(np.float64).tobytes(), digest_size=16).digest() for row in scores]


@cache
def chance_of_alike(form: Format) -> float:
    """Return the chance that two keys of a format draw alike: they are the same, or differ in no probe."""
    law = form.law()
    return 2.0 ** -form.basis().bits + (_equal_draws(law) ** PROBES if law is not None and law.discrete else 0.0)


def _equal_draws(law: Law) -> float:
    """Return the chance that two draws of a law of whole numbers are equal."""
    scores = np.arange(min(float(law.largest(1)), 4096.0) + 2.0)
    reached = np.append(10.0 ** law.log10_p(scores[:-1], np.ones(len(scores) - 1)), 0.0)
    return float((np.diff(reached) ** 2).sum())


def _probes(mark: Watermark, times: int) -> tuple[Tokens, Positions]:
    """Return PROBES texts of distinct last tokens, `times` times, and the last position of each."""
    length = reach_of(mark.rule) + 1
    ids = np.random.default_rng(0).integers(256, size=(PROBES, length), dtype=np.uint32)
    ids[:, -1] = np.arange(PROBES)
    tokens = Tokens(np.tile(ids.ravel(), times), offsets_of(np.full(PROBES * times, length)))
    positions = mark.rule.positions(tokens, "none")
    is_last = np.zeros(len(tokens.ids), np.bool_)
    is_last[tokens.offsets[1:] - 1] = True
    return tokens, positions_where(positions, is_last[positions.index])

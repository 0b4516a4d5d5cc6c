"""Decoys of all messages of a key with groups, in nights that are simulated document by document.

A document has scores of groups and of users, each drawn from the Gumbel law over a third and two thirds of its
positions, and its hits are the pairs of both that reach a score (scanner.watermark.native.nulls). Scores are whole
multiples of STEP, whose law is known exactly; between two of them hits are interpolated.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from scanner.audit.statistics.hits import DEEP_THRESHOLDS, ClusterSums
from scanner.audit.statistics.judgement import ENOUGH_HITS, design_effect, few_clusters
from scanner.watermark.kernel import kernel
from scanner.watermark.native.step_nulls import Paired

SCORED, GROUP_STEPS = 200, 67
STEP = 0.5
CELL = 40
"""Documents whose counts are kept together."""

_GUIDES = 4096
_LEVELS = (0.3, 1e-16)


class Nights(NamedTuple):
    """Hits of some nights of equal size.

    chance: α[J] of `DEEP_THRESHOLDS`; law: P(a pair scores as much), float64[K], falling; hits, squares: of pairs, and
    of the pairs of each document squared, float64[nights, K]; documents: of a night; pairs: of a document.
    """

    law: NDArray[np.float64]
    hits: NDArray[np.float64]
    squares: NDArray[np.float64]
    documents: int
    pairs: int
    chance: NDArray[np.float64] = np.array(DEEP_THRESHOLDS)

    @property
    def tests(self) -> float:
        """Scores of a night."""
        return float(self.documents * self.pairs)

    def together(self, cells: int, nights: int) -> "Nights":
        """Nights of so many cells each.

        Where there are too few cells for these nights, they are drawn with replacement, and scaled so that their mean
        is the law's: a night would else show how far that of the cells happens to be from it.
        """
        most = len(self.hits) // cells
        if most >= nights:
            hits, squares = (
                part[: nights * cells].reshape(nights, cells, -1).sum(axis=1) for part in (self.hits, self.squares)
            )
        else:
            random = np.random.default_rng(cells)
            drawn = [random.multinomial(cells, np.full(len(self.hits), 1 / len(self.hits))) for _ in range(nights)]
            mean = self.hits.mean(axis=0)
            scale = np.divide(self.law * self.tests, mean, out=np.ones_like(mean), where=mean > 0)
            hits, squares = (np.array(drawn) @ part * scale for part in (self.hits, self.squares))
        return self._replace(hits=hits, squares=squares, documents=cells * self.documents)

    def at(self, law: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Hits and their squares where p-values are at or below the levels as often as a law has it: [nights, J]."""
        place = np.clip(np.searchsorted(-self.law, -law), 1, len(self.law) - 1)
        low, high = self.law[place], self.law[place - 1]
        weight = np.clip((law - low) / (high - low), 0, 1)
        hits, squares = (
            part[:, place] + weight * (part[:, place - 1] - part[:, place]) for part in (self.hits, self.squares)
        )
        return hits, squares

    def seen(self, law: NDArray[np.float64], risk: float) -> int:
        """Number of nights in which any level is too small, as `judge` has it with one level's part of the error."""
        hits, squares = self.at(law)
        each = self.pairs * self.chance
        filled = np.broadcast_to(self.documents * each, hits.shape)
        tests, clusters = np.full(hits.shape, self.tests), np.full(hits.shape, float(self.documents))
        sums = ClusterSums(tests, hits, filled, squares, hits * each, filled * each, clusters)
        own, carried = np.maximum(design_effect(sums), 1.0), np.ones(len(hits))
        too_small = np.zeros(len(hits), np.bool_)
        for j in range(len(self.chance)):
            carried = np.where(hits[:, j] >= ENOUGH_HITS, own[:, j], carried)
            effect = np.maximum(carried, own[:, j]) * few_clusters(self.documents, risk)
            many, of = hits[:, j] / effect, self.tests / effect
            tail = np.where(many > 0, special.betainc(many, of - many + 1, self.chance[j]), 1.0)
            too_small |= tail <= risk
        return int(too_small.sum())


def simulate(cells: int, groups: int, seed: int) -> Nights:
    """Count the hits of cells of CELL documents each, under decoys of a key of so many groups."""
    paired = Paired.of(groups)
    of_group, of_user = _chances(GROUP_STEPS), _chances(SCORED - GROUP_STEPS)
    law = np.cumsum(np.convolve(of_group, of_user)[::-1])[::-1]
    first, last = (int(np.searchsorted(-law, -level)) for level in _LEVELS)
    tables = tuple(_guided(chances) for chances in (of_group, of_user))
    hits, squares = _count(cells, (paired.groups, paired.runs * paired.length), tables, (first, last), seed)
    return Nights(law[first:last], hits, squares, CELL, paired.pairs)


def _chances(scored: int) -> NDArray[np.float64]:
    """P(a score over T positions is in each step): float64[N]."""
    edges = np.arange(0, scored + 14 * np.sqrt(scored) + 60, STEP)
    above = stats.gamma.sf(edges, scored)
    return np.append(-np.diff(above), above[-1])


def _guided(chances: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    below = np.cumsum(chances)
    below[-1] = 2.0
    return below, np.searchsorted(below, np.arange(_GUIDES) / _GUIDES).astype(np.int64)


@kernel
def _draw(count: int, below: NDArray[np.float64], guide: NDArray[np.int64], drawn: NDArray[np.int64]) -> None:
    """How many of so many scores fall into each step."""
    drawn[:] = 0
    for _ in range(count):
        number = np.random.random()  # noqa: NPY002 - numba knows no other
        step = guide[int(number * len(guide))]
        while below[step] < number:
            step += 1
        drawn[step] += 1


@kernel
def _count(cells, size, tables, kept, seed):  # type: ignore[no-untyped-def]
    np.random.seed(seed)  # noqa: NPY002
    (of_group, group_guide), (of_user, user_guide) = tables
    first, last = kept
    hits, squares = np.zeros((cells, last - first)), np.zeros((cells, last - first))
    groups, users = np.zeros(len(of_group), np.int64), np.zeros(len(of_user), np.int64)
    pairs = np.zeros(len(groups) + len(users), np.int64)
    for cell in range(cells):
        for _ in range(CELL):
            _draw(size[0], of_group, group_guide, groups)
            _draw(size[1], of_user, user_guide, users)
            pairs[:] = 0
            for i in range(len(groups)):
                if groups[i]:
                    for j in range(len(users)):
                        pairs[i + j] += groups[i] * users[j]
            reaching = 0
            for i in range(len(pairs) - 1, first - 1, -1):
                reaching += pairs[i]
                if i < last:
                    hits[cell, i - first] += reaching
                    squares[cell, i - first] += float(reaching) * reaching
    return hits, squares

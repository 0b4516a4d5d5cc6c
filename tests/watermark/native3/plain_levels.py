"""Searches of version 3 by levels, in plain loops over the reference: what the fast path must agree with.

Laws come from exact counts, or from partial fractions in 250 digits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import mpmath

from tests.reference3 import GROUPS_DRAWN_IN_FULL, Method, Step
from tests.watermark.mpmath_oracle import gumbel_tail

DIGITS = 250
LEVELS = 9
"""Levels 0 to 8."""


@dataclass(frozen=True)
class LevelCandidate:
    """A message of one document whose tokens count by levels: p over all steps, and over the user steps alone."""

    message: int
    log10_p: float
    log10_p_user: float


class PlainLevels:
    """A search under a key with groups. levels: of each token of the document."""

    def __init__(self, method: Method, levels: Sequence[int]) -> None:
        self.method, self.levels = method, levels

    def sum_of(self, steps: Iterable[Step], number: int) -> int | float:
        """What the steps add, each as often as the level of its token says."""
        return sum(self.levels[step.place] * self.method.term(step, number) for step in steps)

    def rough_sum_of(self, steps: Iterable[Step], number: int) -> int:
        return sum(self.levels[step.place] * self.method.rough_term(step, number) for step in steps)

    def best_rough(self, steps: Sequence[Step], first: int, length: int, most: int) -> list[int]:
        """Numbers of largest rough sum, best first, ties to the smaller."""
        sums = {number: self.rough_sum_of(steps, number) for number in range(first, first + length)}
        return sorted(sums, key=lambda number: (-sums[number], number))[:most]

    def log10_p(self, score: float, steps: Iterable[Step]) -> float:
        """The law of a sum over such steps."""
        levels = [self.levels[step.place] for step in steps]
        if not any(levels) or score <= 0:
            return 0.0
        with mpmath.workdps(DIGITS):
            if self.method.method == "gumbel":
                counts = [levels.count(level) for level in range(LEVELS)]
                return float(mpmath.log10(gumbel_tail(mpmath.mpf(score), counts, list(range(LEVELS)))))
            return float(mpmath.log10(self.chance_of_greens(int(score), levels)))

    def chance_of_greens(self, score: int, levels: Sequence[int]) -> mpmath.mpf:
        """P(Σ level · green ≥ s): for each sum the number of ways, of all that there are."""
        n, whole = self.method.gamma.numerator, self.method.gamma.denominator
        ways = {0: 1}
        for level in levels:
            more: dict[int, int] = {}
            for total, count in ways.items():
                more[total] = more.get(total, 0) + count * (whole - n)
                more[total + level] = more.get(total + level, 0) + count * n
            ways = more
        return mpmath.mpf(sum(count for total, count in ways.items() if total >= score)) / whole ** len(levels)

    def search(self, tokens: Sequence[int]) -> list[LevelCandidate]:
        """The candidates of a document, best first."""
        groups, steps = self.method.groups, self.method.steps(tokens)
        of_group, of_user = [s for s in steps if s.of_group], [s for s in steps if not s.of_group]
        sums = {
            group: self.sum_of(of_group, group) for group in self.best_rough(of_group, 0, groups, GROUPS_DRAWN_IN_FULL)
        }
        bound = -float(mpmath.log10(groups)) + 1e-9
        found = []
        for place, group in enumerate(sorted(sums, key=lambda group: (-sums[group], group))):
            if place > 0 and self.log10_p(sums[group], of_group) > bound:
                break
            (number,) = self.best_rough(of_user, group * 2**16, groups, 1)
            own = self.sum_of(of_user, number)
            p, p_user = self.log10_p(sums[group] + own, steps), self.log10_p(own, of_user)
            found.append(LevelCandidate(group * groups + number % 2**16, p, p_user))
        return sorted(found, key=lambda one: (one.log10_p, one.message))

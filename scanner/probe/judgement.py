"""Decide what a server does from the evidence of all hypotheses on all classes. Numbers in, decisions out.

A mark is claimed by a p-value that is corrected for the whole page. All other statements are comparisons:

1. Which hypothesis is true? Hypotheses share draws: a green list of half of the vocabulary contains the list of its
   quarter, so answers with one mark score under the other too. The true hypothesis has the smallest p. The stated
   configuration is named unless another has a p that is MARGIN decades smaller. If the stated one is not claimed, the
   claimed hypothesis with the smallest p is named.
2. How does a key of two parts mark? The share of each part in the evidence shows it.
3. Do some layers of a key mark nothing? The run of layers behind the middle shows it: evidence falls from run to run in
   the same proportion. If it ends suddenly, so do the layers.
4. Is a class unmarked? It is called so if a mark half as strong as the marks that are found would have been found with
   chance SURE. Half, because text under a JSON schema has fewer choices than prose and carries less of a mark.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.audit.statistics.judgement import Limits, binomial_limits, binomial_tail
from scanner.probe.evidence import HALF, Evidence, tokens_needed

PAGE_RATE = 0.01
"""Rate at which a page claims a mark that does not exist, over all its tests together."""

MARGIN = 3.0
"""Decades of p by which another configuration must beat the stated one to be named."""

SURE = 0.975
"""Chance with which a mark would have been found in answers that are called unmarked."""

RISK = 0.025
"""Risk of each of the two limits of an interval."""

WEAK = 0.1
"""Strength of a token, in standard deviations, that marked answers are assumed to have if none are found."""

LEAST_LAYERS = 5.0
"""Least expected strength of the run of layers behind the middle. Below it, nothing is said about this run."""

NOT_FOUND = 0.05
"""An answer with a p above this does not show a mark by itself."""

BY_CHANCE = 1e-3
"""If chance gives so many answers without a mark less often than this, some answers are unmarked."""

DEVIATIONS = 3.3
"""Number of standard deviations within which the share of a part agrees with the stated one."""


class Named(NamedTuple):
    """The hypothesis that answers are marked by.

    place: place of the hypothesis. None: none is claimed.
    alike: places of other claimed hypotheses with a p within MARGIN decades of the smallest. If the stated
        configuration is named, only those with a smaller p than its own.
    """

    place: int | None
    alike: tuple[int, ...] = ()


def claimed(evidence: Evidence) -> bool:
    """Return whether a mark is claimed."""
    return bool(evidence.log10_p_page <= math.log10(PAGE_RATE))


def name_hypothesis(evidence: Sequence[Evidence], eligible: Sequence[bool]) -> Named:
    """Name the hypothesis that answers are marked by.

    Args:
        evidence: of each hypothesis on the same answers. The first one is the stated configuration.
        eligible: whether each is a whole configuration and not a part of one.
    """
    places = [place for place, found in enumerate(evidence) if claimed(found) and eligible[place]]
    if not places:
        return Named(None)
    best = min(places, key=lambda place: evidence[place].log10_p)
    near = [place for place in places if evidence[place].log10_p <= evidence[best].log10_p + MARGIN]
    chosen = 0 if 0 in near else best
    smaller = [place for place in near if evidence[place].log10_p < evidence[chosen].log10_p or chosen == best]
    return Named(chosen, tuple(place for place in smaller if place != chosen))


class PartShare(NamedTuple):
    """The share of the evidence that the second of two parts has.

    share: share of the sum of both parts.
    half_width: half the width of its interval.
    """

    share: float
    half_width: float

    def agrees(self, stated: float) -> bool:
        """Return whether a stated share is within the interval."""
        return abs(self.share - stated) <= self.half_width


def part_share(first: Evidence, second: Evidence) -> PartShare | None:
    """Return the share of the second part of a key. None if both parts together have too little evidence.

    The excess of a part is its score minus its number of tokens. The score of a token has a variance of at most π²/6
    under a Gumbel mark.
    """
    excess = first.score - first.scored, second.score - second.scored
    deviation = math.sqrt(math.pi**2 / 6.0 * max(first.scored, second.scored, 1))
    total = sum(excess)
    if total <= 2.0 * DEVIATIONS * deviation:
        return None
    return PartShare(excess[1] / total, DEVIATIONS * deviation / total)


def layers_end(first: Evidence, before: Evidence, after: Evidence, steps: tuple[float, float]) -> bool | None:
    """Return whether the layers of a key end at its middle. None if there are too few tokens to tell.

    They end there if the run behind the middle shows no mark, or has less than half of its expected strength. Its p
    alone would not do: for one key of twenty it would be small by chance, however many tokens there are.

    Args:
        first: evidence of the first run of layers.
        before: evidence of the run before the middle.
        after: evidence of the run behind the middle.
        steps: number of layers from the first run to the run before the middle, and from there to the run behind it.
    """
    if min(first.strength, before.strength) <= 0.0:
        return None
    proportion = min(before.strength / first.strength, 1.0)
    expected = before.strength * proportion ** (steps[1] / max(steps[0], 1.0))
    if expected < LEAST_LAYERS:
        return None
    return bool(after.strength < max(special.ndtri(1.0 - NOT_FOUND), HALF * expected))


class State(NamedTuple):
    """The decision on a class.

    name: marked, unmarked or cannot tell.
    tokens_lacking: further scored tokens that are needed to decide. 0 where it is decided.
    """

    name: str
    tokens_lacking: int


def state_of(evidence: Evidence, tests: int, strength_a_root: float | None) -> State:
    """Decide whether a class is marked.

    Args:
        evidence: of the named hypothesis on it.
        tests: number of tests of the page. A search for messages adds to it.
        strength_a_root: z divided by the root of the tokens, of marked classes. None: no class is marked.
    """
    if claimed(evidence):
        return State("marked", 0)
    assumed = WEAK if strength_a_root is None else HALF * strength_a_root
    needed = tokens_needed(assumed, math.log10(PAGE_RATE / tests), SURE)
    lacking = math.ceil(needed - evidence.scored)
    return State("unmarked", 0) if lacking <= 0 else State("cannot tell", lacking)


def limits_of(hits: int, of: int) -> Limits:
    """Return the exact limits of a share at 95 % (Clopper and Pearson). 0 and 1 if `of` is 0."""
    return binomial_limits(hits, of, RISK) if of else Limits(0.0, 1.0)


class Share(NamedTuple):
    """A share with its exact limits at 95 %."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, of: int) -> "Share":
        """Return the share `hits` / `of` with its limits."""
        return cls(hits / of if of else 0.0, *limits_of(hits, of))

    def beyond(self, by_chance: float) -> "Share":
        """Return the part of a share that exceeds chance: (s − c) / (1 − c), at least 0."""
        return Share(*(max(0.0, (value - by_chance) / (1.0 - by_chance)) for value in self))


def unmarked_share(log10_p: NDArray[np.float64], scored: NDArray[np.int64], strength: float) -> Share | None:
    """Return the share of unmarked answers in a class that is marked as a whole. None: all answers are marked.

    Of unmarked answers, all but a share of NOT_FOUND have a p above NOT_FOUND. In a class that is all marked, fewer
    have. Their expected number is taken from a cautious model: all answers are marked half as strongly as the class is
    on average, and this average includes unmarked answers. A share is returned only if clearly more answers
    (BY_CHANCE) have such a p.

    Args:
        log10_p: of each answer, float64[A].
        scored: int64[A].
        strength: of the class.
    """
    weak = log10_p > math.log10(NOT_FOUND)
    by_answer = HALF * strength * np.sqrt(scored / max(int(scored.sum()), 1))
    level = float(special.ndtri(1.0 - NOT_FOUND))
    expected = float(special.ndtr(level - by_answer).mean()) if len(scored) else 0.0
    hits = int(weak.sum())
    if not hits or binomial_tail(hits, len(weak), max(expected, 1e-12)) > BY_CHANCE:
        return None
    share = Share.of(hits, len(weak))
    return Share(*(min(1.0, value / (1.0 - NOT_FOUND)) for value in share))


def strength_a_root_of(evidence: Iterable[Evidence]) -> float | None:
    """Return the median strength of marked classes, divided by the root of their tokens. None: none is marked."""
    rates = [found.strength / math.sqrt(found.scored) for found in evidence if claimed(found)]
    return float(np.median(rates)) if rates else None

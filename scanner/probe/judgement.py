"""From the evidence of all hypotheses on all classes to what a server does. Numbers in, decisions out.

A mark is claimed by a p-value that is corrected for the whole page. What is said besides compares:

1. Hypotheses share draws: a list of half of the vocabulary holds the list of its quarter, and answers that carry one
   mark score under the other too. The true one has the smallest p. So the stated configuration stands unless another
   has a p that is MARGIN decades smaller; without a claim for it, the smallest p of those claimed counts.
2. A key of two parts is told by the share of the evidence that each part has.
3. Layers of a key that mark nothing are told by the run behind the middle: evidence falls from run to run in the same
   proportion, and where it ends at once, the layers do.
4. That something is unmarked is said where it would have been found with chance SURE if it were marked half as strongly
   as what is found: text of a JSON schema has less to choose from than prose, and carries less of a mark.
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
"""Rate at which a page claims a mark that is not there: all its tests together."""

MARGIN = 3.0
"""Decades of p by which another configuration must beat the stated one."""

SURE = 0.975
"""Chance with which something would have been found that is said to be unmarked."""

RISK = 0.025
"""Risk of each of two limits."""

WEAK = 0.1
"""Strength of a token, in standard deviations, that is assumed of marked answers where nothing is found."""

LEAST_LAYERS = 5.0
"""Strength that the run of layers behind the middle must be expected to have before it is said to mark nothing."""

NOT_FOUND = 0.05
"""p above which an answer by itself does not show a mark."""

BY_CHANCE = 1e-3
"""Chance below which so many answers without a mark are not for lack of strength."""

DEVIATIONS = 3.3
"""Standard deviations within which the share of a part agrees with the stated one."""


class Named(NamedTuple):
    """Which hypothesis answers are marked by.

    place: of the hypothesis; None: none is claimed.
    alike: others that are claimed too, by their places: whose p is within MARGIN decades of the smallest, and of the
        stated configuration those whose p is smaller.
    """

    place: int | None
    alike: tuple[int, ...] = ()


def claimed(evidence: Evidence) -> bool:
    """Return whether a mark is claimed."""
    return bool(evidence.log10_p_page <= math.log10(PAGE_RATE))


def name_hypothesis(evidence: Sequence[Evidence], eligible: Sequence[bool]) -> Named:
    """Name the hypothesis that answers are marked by.

    Args:
        evidence: of each hypothesis on the same answers; the first one is the stated configuration.
        eligible: which are configurations of their own, and no part of one.
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
    """How much of the evidence the second one of two parts has.

    share: of both; half_width: of its interval.
    """

    share: float
    half_width: float

    def agrees(self, stated: float) -> bool:
        """Return whether a stated share lies within the interval."""
        return abs(self.share - stated) <= self.half_width


def part_share(first: Evidence, second: Evidence) -> PartShare | None:
    """Return the share of the second part of a key; None where both together have too little evidence.

    A part's excess is its score less one a token; a token's score varies by π²/6 at most under a Gumbel mark.
    """
    excess = first.score - first.scored, second.score - second.scored
    deviation = math.sqrt(math.pi**2 / 6.0 * max(first.scored, second.scored, 1))
    total = sum(excess)
    if total <= 2.0 * DEVIATIONS * deviation:
        return None
    return PartShare(excess[1] / total, DEVIATIONS * deviation / total)


def layers_end(first: Evidence, before: Evidence, after: Evidence, steps: tuple[float, float]) -> bool | None:
    """Say whether the layers of a key end at its middle; None where too few tokens tell.

    Args:
        first: of the first run of layers.
        before: of the run before the middle.
        after: of the run behind the middle.
        steps: layers from the first run to the one before the middle, and from there to the one behind it.
    """
    if min(first.strength, before.strength) <= 0.0:
        return None
    proportion = min(before.strength / first.strength, 1.0)
    expected = before.strength * proportion ** (steps[1] / max(steps[0], 1.0))
    if expected < LEAST_LAYERS:
        return None
    return bool(after.strength < special.ndtri(1.0 - NOT_FOUND))


class State(NamedTuple):
    """What is said of a class.

    name: marked, unmarked or cannot tell.
    tokens_lacking: scored tokens that lack until it can be told; 0 where it is.
    """

    name: str
    tokens_lacking: int


def state_of(evidence: Evidence, tests: int, strength_a_root: float | None) -> State:
    """Say whether a class is marked.

    Args:
        evidence: of the named hypothesis on it.
        tests: of the page, which a message's search adds to.
        strength_a_root: z over the root of the tokens, of what is marked; None: nothing is.
    """
    if claimed(evidence):
        return State("marked", 0)
    assumed = WEAK if strength_a_root is None else HALF * strength_a_root
    needed = tokens_needed(assumed, math.log10(PAGE_RATE / tests), SURE)
    lacking = math.ceil(needed - evidence.scored)
    return State("unmarked", 0) if lacking <= 0 else State("cannot tell", lacking)


def limits_of(hits: int, of: int) -> Limits:
    """Return the exact limits of a share at 95 % (Clopper and Pearson); 0 and 1 of nothing."""
    return binomial_limits(hits, of, RISK) if of else Limits(0.0, 1.0)


class Share(NamedTuple):
    """A share with its exact limits at 95 %."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, of: int) -> "Share":
        """Return the share of so many hits."""
        return cls(hits / of if of else 0.0, *limits_of(hits, of))

    def beyond(self, by_chance: float) -> "Share":
        """Return the share beyond what chance alone gives: (s − c) / (1 − c), at least 0."""
        return Share(*(max(0.0, (value - by_chance) / (1.0 - by_chance)) for value in self))


def unmarked_share(log10_p: NDArray[np.float64], scored: NDArray[np.int64], strength: float) -> Share | None:
    """Return the share of a class's answers without the mark that the class as a whole carries; None: all carry it.

    Of unmarked answers all but NOT_FOUND have a p above it. Marked ones must not have so many: expected are as many as
    of answers that are all marked half as strongly as the class is on average, unmarked ones included.

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
    """Return the median strength over the root of the tokens among what is marked; None: nothing is."""
    rates = [found.strength / math.sqrt(found.scored) for found in evidence if claimed(found)]
    return float(np.median(rates)) if rates else None

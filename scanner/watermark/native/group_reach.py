"""How often a search with groups finds a message of unmarked text that has a small p-value (SPEC_2 §3).

It looks into the group of the largest group score, and into those whose group score is as rare as one in B or rarer.
So a message with a small p is found if its group is one of these, which depends on how much of its score came from
group steps.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.watermark.laws import Law, least_score

_LENGTHS = 24  # numbers of positions between which the share that is found is interpolated
_SPLITS = 7  # numbers of group steps that stand for all of them
_SCORES = 200  # parts of the range of group scores, where scores are real numbers


def found_chance(law: Law, groups: int, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability that one message has a p-value at or below p and is in a group that is looked into: float64[U, J].

    At most eight groups are looked into, which takes nothing from it that could be measured.

    Args:
        law: of the scores.
        groups: B.
        scored: T, int64[U], each above 0.
        p: of the message alone, float64[J], between 0 and 1.
    """
    between = np.geomspace(float(scored.min()), float(scored.max()), _LENGTHS)
    lengths = np.unique(np.round(between).astype(np.int64))
    passes = np.stack([least_score(law, lengths, float(np.log10(one))) for one in p], axis=1)
    shares = np.array([_share(law, groups, int(t), least) for t, least in zip(lengths, passes, strict=True)])
    share = np.stack([np.interp(np.log(scored), np.log(lengths), of_p) for of_p in shares.T], axis=1)
    return np.asarray(share * _attained(law, scored, p), np.float64)


def _attained(law: Law, scored: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest attainable p at or below each p, 0 where there is none: float64[U, J]."""
    if not law.discrete:
        return np.broadcast_to(p, (len(scored), len(p)))
    least = np.stack([least_score(law, scored, float(np.log10(one))) for one in p], axis=1)
    attained = 10.0 ** law.log10_p(np.minimum(least, scored[:, None]), scored[:, None])
    return np.where(least <= scored[:, None], attained, 0.0)


def _share(law: Law, groups: int, scored: int, passes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the messages that score so much over T positions whose group is looked into: float64[J]."""
    spread = 3 * np.sqrt(scored * 2 / 9)
    splits = np.unique(np.clip(np.round(np.linspace(scored / 3 - spread, scored / 3 + spread, _SPLITS)), 0, scored))
    weights = special.bdtr(splits, scored, 1 / 3) - special.bdtr(splits - 1, scored, 1 / 3)
    found, all_of_them = np.zeros(len(passes)), np.zeros(len(passes))
    for of_group, weight in zip(splits.astype(np.int64).tolist(), weights.tolist(), strict=True):
        score, chance, looked_into = _group_scores(law, groups, of_group, float(passes.max()))
        rest = np.maximum(passes[None, :] - score[:, None], 0)
        of_user = np.where(rest > law.largest(scored - of_group), 0, 10.0 ** law.log10_p(rest, scored - of_group))
        found += weight * (chance * looked_into) @ of_user
        all_of_them += weight * chance @ of_user
    return np.divide(found, all_of_them, out=np.ones(len(passes)), where=all_of_them > 0)


def _group_scores(
    law: Law, groups: int, scored: int, most: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Scores of a group over its T_G steps up to some, the chance of each, and that such a group is looked into."""
    if law.discrete or not scored:
        edges = np.arange(scored + 1.0)
        score = edges
    else:
        mean, deviation = scored * law.mean, np.sqrt(scored * law.variance)
        edges = np.linspace(max(0.0, mean - 8 * deviation), min(most, mean + 14 * deviation + 40), _SCORES + 1)
        score = edges + (edges[1] - edges[0]) / 2
    reaches = np.append(10.0 ** law.log10_p(edges, scored), 0.0)
    chance, below = -np.diff(reaches), 1.0 - reaches
    largest = np.diff(below**groups) / groups
    rare = reaches[:-1] <= 10.0**1e-9 / groups
    largest = np.divide(largest, chance, out=np.zeros(len(chance)), where=chance > 0)
    return score, chance, np.where(rare, 1.0, largest)

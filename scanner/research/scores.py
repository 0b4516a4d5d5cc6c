"""Compute figures of texts with a known key and message: scores, shares and means with intervals, and named users.

Texts of one prompt, one key or one user are alike. Their variance is therefore estimated from sums over clusters. With
two clusterings at once it is V₁ + V₂ − V₁₂ (Cameron, Gelbach and Miller, Robust Inference with Multiway Clustering,
2011), and never less than that of either clustering. A share has the limits of Clopper and Pearson at the effective
number of texts (Korn and Graubard 1998; see scanner.audit.statistics.judgement). A mean has Student's limits. The
clustering with the fewest clusters gives the degrees of freedom.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.audit.statistics.judgement import binomial_limits, few_clusters
from scanner.research.units import Setting, key_secret
from scanner.text import Tokenizer
from scanner.watermark import Dedup, Tokens, Watermark, select_documents
from scanner.watermark.format import Basis
from scanner.watermark.native.version3_marks import Version3Mark
from scanner.watermark.rule import KeyFindings, corrected, decide, findings_of, log10_p_of
from scanner.watermark.rule import search as search_key
from schemas.evaluation import FIGURES
from schemas.words import Naming

LIMIT_RISK = 0.025
"""Risk of each limit."""


class MeanEstimate(NamedTuple):
    """A share or mean of n texts with its limits.

    hits: None for a mean.

    With n = 0, value and limits are NaN.
    """

    n: int
    hits: int | None
    value: float
    low: float
    high: float


def share(hits: NDArray[np.bool_], *clusterings: NDArray[Any]) -> MeanEstimate:
    """Estimate the share of texts that are hits.

    If all texts have the same result, the clusters do not show how alike their texts are. The limits are then those of
    n independent texts. A single cluster says nothing about other clusters, and the limits are 0 and 1.

    Args:
        hits: bool[N].
        clusterings: labels of each text, [N], one array or two.
    """
    n, count = len(hits), int(hits.sum())
    if n == 0:
        return MeanEstimate(0, 0, np.nan, np.nan, np.nan)
    effective = effective_texts(hits, *clusterings)
    limits = binomial_limits(count / n * effective, effective, LIMIT_RISK) if effective > 0 else (0.0, 1.0)
    return MeanEstimate(n, count, count / n, *limits)


def effective_texts(hits: NDArray[np.bool_], *clusterings: NDArray[Any]) -> float:
    """Return the number of independent texts that would show the share of hits as well.

    Arguments as for `share`, N ≥ 1.
    """
    n, p = len(hits), float(hits.mean())
    if p in (0.0, 1.0):
        return float(n)
    spread = max(variance_of_mean(hits.astype(np.float64), *clusterings) / (p * (1 - p) / n), 1.0)
    return float(n / (spread * few_clusters(_fewest(clusterings), LIMIT_RISK)))


def mean(values: NDArray[np.float64], *clusterings: NDArray[Any]) -> MeanEstimate:
    """Estimate the mean of one number a text.

    Args:
        values: float64[N].
        clusterings: as for `share`. With a single cluster the limits are infinite.
    """
    n = len(values)
    if n == 0:
        return MeanEstimate(0, None, np.nan, np.nan, np.nan)
    centre, clusters = float(values.mean()), _fewest(clusterings)
    if clusters < 2:
        return MeanEstimate(n, None, centre, -np.inf, np.inf)
    half = float(special.stdtrit(clusters - 1, 1 - LIMIT_RISK)) * variance_of_mean(values, *clusterings) ** 0.5
    return MeanEstimate(n, None, centre, centre - half, centre + half)


def variance_of_mean(values: NDArray[np.float64], *clusterings: NDArray[Any]) -> float:
    """Estimate the variance of the mean over the draw of the clusters, for one or two clusterings.

    It is NaN for a single cluster.
    """
    places = [np.unique(labels, return_inverse=True)[1] for labels in clusterings]
    one_way = [_one_way(values, place) for place in places]
    if len(places) == 1:
        return one_way[0]
    first, second = places
    return max(sum(one_way) - _one_way(values, first * (second.max() + 1) + second), *one_way)


def _one_way(values: NDArray[np.float64], place: NDArray[np.int64]) -> float:
    sums = np.bincount(place, values - values.mean())[np.unique(place)]
    return float((sums**2).sum() * len(sums) / (len(sums) - 1)) / len(values) ** 2 if len(sums) > 1 else np.nan


def _fewest(clusterings: tuple[NDArray[Any], ...]) -> int:
    return min(len(np.unique(labels)) for labels in clusterings)


Figure = dict[str, Any]


def figure(
    experiment: str,
    setting: Setting,
    measure: str,
    estimate: MeanEstimate,
    *,
    clusters: str,
    **more: float | str | None,
) -> Figure:
    """Make a figure.

    Args:
        experiment: robustness or identification.
        setting: how the texts were written.
        measure: name of the measured quantity.
        estimate: the estimate with its limits.
        clusters: the units that are treated as independent.
        more: further columns. Omitted columns are null.
    """
    return dict.fromkeys(FIGURES.names) | {
        "experiment": experiment,
        **setting.columns(),
        "label": setting.format and setting.format.label(),
        "measure": measure,
        "n": estimate.n,
        "hits": estimate.hits,
        "clusters": clusters,
        "value": _finite(estimate.value),
        "low": _finite(estimate.low),
        "high": _finite(estimate.high),
        **more,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


DEDUP: Dedup = "ngram"
"""Repeats that are left out, as in a scan by default (paper, Rectifying the Detection Scores)."""


class OneMessage(NamedTuple):
    """The result of testing one message, for D texts.

    log10_p: float64[D]. 0 if a text is too short.
    scored: number of scored tokens, int64[D].
    """

    log10_p: NDArray[np.float64]
    scored: NDArray[np.int64]


class Search(NamedTuple):
    """The result of searching D texts for M messages, including their own: log10 p of single messages, float64[D].

    own_p: of the text's own message.
    first, second: of the two best other messages. 0 if there is none, or if a text is too short.
    """

    own_p: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    scored: NDArray[np.int64]


class GroupSearch(NamedTuple):
    """The result of searching D texts for their own message and others, in groups: log10 of rates, float64[D] each.

    own_p: p of the text's own message by itself.
    own_named: the smallest rate at which its own message is named.
    other_named: the smallest rate at which any other message is named.
    flagged: the smallest rate at which the text is flagged.

    Values are 0 if there is none, or if a text is too short.
    """

    own_p: NDArray[np.float64]
    own_named: NDArray[np.float64]
    other_named: NDArray[np.float64]
    flagged: NDArray[np.float64]
    scored: NDArray[np.int64]


class NamedShares(NamedTuple):
    """Names given by a scan's rule, bool[D] each: the right user, a wrong one, or no user although the text is flagged.

    Under version 1, no user is named if several messages pass. Under version 3, no user is named if no message passes
    by its own steps, and the right and a wrong user can both be named.
    """

    found: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    ambiguous: NDArray[np.bool_]


def score_one(
    mark: Watermark, tokens: Tokens, message: NDArray[np.int64] | int, min_scored: int, dedup: Dedup = DEDUP
) -> OneMessage:
    """Test each text for one message, or for its own, int64[D], as a scan with a key of one message does."""
    positions = mark.rule.positions(tokens, dedup)
    log10_p = log10_p_of(mark.law, mark.score(tokens, positions, message), positions.scored)
    return OneMessage(np.where(positions.scored >= min_scored, log10_p, 0.0), positions.scored)


def score_each(
    marks: Sequence[Watermark], tokens: Tokens, message: int, min_scored: int, dedup: Dedup = DEDUP
) -> OneMessage:
    """Score texts as `score_one` does, but each with a key of its own."""
    log10_p, scored = np.zeros(len(marks)), np.zeros(len(marks), np.int64)
    for mark in {id(mark): mark for mark in marks}.values():
        rows = np.flatnonzero([other is mark for other in marks])
        log10_p[rows], scored[rows] = score_one(mark, select_documents(tokens, rows), message, min_scored, dedup)
    return OneMessage(log10_p, scored)


def search(mark: Watermark, tokens: Tokens, own_message: NDArray[np.int64], count: int, min_scored: int) -> Search:
    """Search each text for `count` messages: its own, and the smallest others.

    If its own message is below `count`, these are exactly the messages that a scan searches under a key with `count`
    messages. Otherwise its own replaces the last of them. This is as if users without texts were added, as in the
    paper, because all messages are alike. Every text therefore counts for every number of users.

    Args:
        mark: the mark.
        tokens: tokens of D texts.
        own_message: the message that each text was marked for, int64[D].
        count: M, at least 2.
        min_scored: number of scored tokens below which a text is too short.
    """
    positions = mark.rule.positions(tokens, DEDUP)
    enough = positions.scored >= min_scored
    p_of = {name: np.zeros(len(own_message)) for name in ("own_p", "first", "second")}
    for rows, others in ((enough & (own_message < count), count), (enough & (own_message >= count), count - 1)):
        indices = np.flatnonzero(rows)
        if not len(indices):
            continue
        mine = select_documents(tokens, indices)
        places = mark.rule.positions(mine, DEDUP)
        best = search_key(mark, mine, places, others)
        p_own = log10_p_of(mark.law, mark.score(mine, places, own_message[indices]), places.scored)
        p_best, p_second = best.log10_p[:, 0], np.nan_to_num(best.log10_p[:, 1])
        is_first, is_second = best.message[:, 0] == own_message[indices], best.message[:, 1] == own_message[indices]
        p_of["own_p"][indices] = p_own
        p_of["first"][indices] = np.where(is_first, p_second, p_best)
        p_of["second"][indices] = np.where(is_first | is_second, 0.0, p_second)
    return Search(p_of["own_p"], p_of["first"], p_of["second"], positions.scored)


def search_groups(
    mark: Version3Mark, tokens: Tokens, own_message: NDArray[np.int64], groups: int, min_scored: int
) -> GroupSearch:
    """Search each text among the first `groups` groups of a key, with as many users each, by the rules of a scan.

    All groups are alike, and so are all users of a group. Texts of one key therefore count for every smaller number of
    users.

    Args:
        mark: the mark.
        tokens: tokens of D texts.
        own_message: the message that each text was marked for, int64[D], within these groups.
        groups: the key's number of groups, or fewer.
        min_scored: number of scored tokens below which a text is too short.
    """
    positions = mark.rule.positions(tokens, DEDUP)
    enough = positions.scored >= min_scored
    searched = findings_of(mark, mark.search_groups(tokens, positions, groups), positions.scored, groups**2)
    both = np.nan_to_num(np.maximum(searched.log10_p_global, searched.log10_p_own))  # a name requires both
    mine = searched.message == own_message[:, None]
    log10_p = log10_p_of(mark.law, mark.score(tokens, positions, own_message), positions.scored)

    def least(log10_p: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(enough, log10_p.min(axis=1), 0.0)

    return GroupSearch(
        own_p=np.where(enough, log10_p, 0.0),
        own_named=least(np.where(mine, both, 0.0)),
        other_named=least(np.where(mine, 0.0, both)),
        flagged=least(np.nan_to_num(searched.log10_p_global)),
        scored=positions.scored,
    )


def name(
    searched: Search | GroupSearch, count: int, false_positive_rate: float, *, independent: bool = False
) -> NamedShares:
    """Name users of `count` messages by the rule of a scan (scanner.watermark.rule.decide; SPEC §3).

    If a text's own message is one of the two best of all, the third best is unknown. It is not needed, because it
    passes only if the second does.

    Args:
        searched: the texts, as searched.
        count: number of messages.
        false_positive_rate: also used as the misnaming rate.
        independent: whether the mark of one message leaves the scores of other messages unchanged. If so, every message
            that passes may be named.
    """
    if isinstance(searched, GroupSearch):
        limit = np.log10(false_positive_rate)
        named, wrong, flagged = searched.own_named <= limit, searched.other_named <= limit, searched.flagged <= limit
        return NamedShares(named, wrong, flagged & ~named & ~wrong)
    log10_p = np.stack([searched.own_p, searched.first, searched.second], axis=1)
    nothing = np.zeros(log10_p.shape)
    findings = KeyFindings(
        scored=searched.scored,
        correction=np.ones(searched.scored.shape),
        message=np.broadcast_to(np.arange(3), log10_p.shape),  # in the order of Search; the rule needs no real numbers
        score=nothing,
        log10_p=log10_p,
        log10_p_global=corrected(log10_p, count),
        log10_p_own=np.full(log10_p.shape, -np.inf),  # without groups there is no second condition
        independent=independent,
        basis=Basis(bits=256),  # the keys of the experiments are long enough
        p_rank=nothing,
    )
    decision = decide([findings], false_positive_rate)
    right, *others = decision.named[0].T
    return NamedShares(right, np.any(others, axis=0), decision.naming == Naming.AMBIGUOUS)


SCORED_CLASSES: tuple[tuple[int | None, int | None], ...] = ((None, None), (0, 49), (50, 99), (100, 149), (150, None))
"""Ranges of scored tokens whose texts are counted: from, to. The first entry is all texts."""

Searched = TypeVar("Searched", Search, GroupSearch)

FLAG_RATE = 1e-5
"""Rate at which texts are flagged by their own message only, as in Table 2."""


def search_texts(
    setting: Setting,
    seed: str,
    texts: Sequence[str],
    own_message: Sequence[int],
    counts: Sequence[int],
    tokenizer: Tokenizer,
    min_scored: int,
) -> list[Search | GroupSearch]:
    """Search texts for their own message and others.

    Args:
        setting: how the texts were written, under key 0.
        seed: seed of the keys.
        texts: the texts.
        own_message: the message that each text was marked for.
        counts: numbers of messages.
        tokenizer: tokenizer of the mark.
        min_scored: number of scored tokens below which a text is too short to be flagged.

    Returns:
        One search for each number of messages.
    """
    mark, tokens = setting.watermark(key_secret(seed, 0)), tokenizer.encode(texts)
    if mark is None:
        raise ValueError("unmarked texts do not have a user")
    messages = np.array(own_message, np.int64)
    if isinstance(mark, Version3Mark) and mark.groups is not None:
        return [search_groups(mark, tokens, messages, groups_of(count), min_scored) for count in counts]
    return [search(mark, tokens, messages, count, min_scored) for count in counts]


def groups_of(messages: int) -> int:
    """Return the least number of groups, with as many users each, that has room for so many messages."""
    return math.isqrt(messages - 1) + 1


def together(parts: Sequence[Searched]) -> Searched:
    """Join searches of several parts of the texts into one."""
    return type(parts[0])(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def identification_figures(
    setting: Setting,
    searches: Mapping[int, Search | GroupSearch],
    own_message: NDArray[np.int64],
    prompts: NDArray[np.str_],
    false_positive_rates: Sequence[float],
) -> list[Figure]:
    """Compute the figures of one method. Limits count users and prompts, not texts.

    Args:
        setting: how the texts were written.
        searches: searches of D texts, for each number of messages.
        own_message: the message of each text, int64[D]. It identifies the user.
        prompts: the prompt of each text, [D].
        false_positive_rates: rates at which users are named, over all messages together.
    """
    independent = setting.format is not None and not setting.format.can_be_framed()
    rows = []
    for least, limit in SCORED_CLASSES:
        first = next(iter(searches.values()))
        chosen = (first.scored >= (least or 0)) & (first.scored <= (np.inf if limit is None else limit))
        clusters = own_message[chosen], prompts[chosen]
        users, asked = (len(np.unique(labels)) for labels in clusters)
        make = functools.partial(
            figure,
            "identification",
            setting,
            clusters=f"{users} users, {asked} prompts",
            least_scored=least,
            most_scored=limit,
        )
        flagged = share(first.own_p[chosen] <= np.log10(FLAG_RATE), *clusters)
        rows.append(make("flagged", flagged, false_positive_rate=FLAG_RATE, messages=1))
        for count, searched in searches.items():
            for rate in false_positive_rates:
                named = name(searched, count, rate, independent=independent)
                rows += [
                    make(measure, share(hits[chosen], *clusters), false_positive_rate=rate, messages=count)
                    for measure, hits in named._asdict().items()
                ]
    return rows

"""Shares and means with their 95 % intervals, and the rows that keep them.

Shares and means of texts that come in clusters, with 95 % intervals.

Texts of one prompt, one key or one user are alike. Their variance is estimated from sums over clusters; with two
clusterings at once as V₁ + V₂ − V₁₂ (Cameron, Gelbach and Miller, Robust Inference with Multiway Clustering, 2011), and
never below either alone. A share has the limits of Clopper and Pearson at the effective number of texts (Korn and
Graubard 1998; see scanner.audit.statistics.judgement), a mean has Student's limits. The clustering with the fewest
clusters gives the degrees of freedom.

Rows of schemas.evaluation.FIGURES: one measured number each, with its n and its 95 % interval.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from scanner.audit.statistics.judgement import binomial_limits, few_clusters
from scanner.evaluation.units import Setting
from schemas.evaluation import FIGURES

RISK = 0.025
"""Risk of each limit."""


class Estimate(NamedTuple):
    """A share or mean of n texts with its limits; hits is None for a mean. n = 0: value and limits are NaN."""

    n: int
    hits: int | None
    value: float
    low: float
    high: float


def share(hits: NDArray[np.bool_], *clusterings: NDArray[Any]) -> Estimate:
    """Share of texts that are hits.

    Where all texts agree, clusters do not show how alike their texts are, and the limits are for n independent texts. A
    single cluster says nothing about others: then the limits are 0 and 1.

    Args:
        hits: bool[N].
        clusterings: labels of each text, [N], one array or two.
    """
    n, found = len(hits), int(hits.sum())
    if n == 0:
        return Estimate(0, 0, np.nan, np.nan, np.nan)
    p = found / n
    if found in (0, n):
        effective = float(n)
    else:
        spread = max(variance_of_mean(hits.astype(np.float64), *clusterings) / (p * (1 - p) / n), 1.0)
        effective = n / (spread * few_clusters(_fewest(clusterings), RISK))
    limits = binomial_limits(p * effective, effective, RISK) if effective > 0 else (0.0, 1.0)
    return Estimate(n, found, p, *limits)


def mean(values: NDArray[np.float64], *clusterings: NDArray[Any]) -> Estimate:
    """Mean of one number a text.

    Args:
        values: float64[N].
        clusterings: as for `share`; with a single cluster the limits are infinite.
    """
    n = len(values)
    if n == 0:
        return Estimate(0, None, np.nan, np.nan, np.nan)
    centre, clusters = float(values.mean()), _fewest(clusterings)
    if clusters < 2:
        return Estimate(n, None, centre, -np.inf, np.inf)
    half = float(special.stdtrit(clusters - 1, 1 - RISK)) * variance_of_mean(values, *clusterings) ** 0.5
    return Estimate(n, None, centre, centre - half, centre + half)


def variance_of_mean(values: NDArray[np.float64], *clusterings: NDArray[Any]) -> float:
    """Variance of the mean over the draw of the clusters, of one clustering or of two; NaN for a single cluster."""
    places = [np.unique(labels, return_inverse=True)[1] for labels in clusterings]
    one_way = [_one_way(values, place) for place in places]
    if len(places) == 1:
        return one_way[0]
    first, second = places
    return max(sum(one_way) - _one_way(values, first * (second.max() + 1) + second), *one_way)


def _one_way(values: NDArray[np.float64], place: NDArray[np.int64]) -> float:
    rest = np.bincount(place, values - values.mean())[np.unique(place)]
    return float((rest**2).sum() * len(rest) / (len(rest) - 1)) / len(values) ** 2 if len(rest) > 1 else np.nan


def _fewest(clusterings: tuple[NDArray[Any], ...]) -> int:
    return min(len(np.unique(labels)) for labels in clusterings)


Figure = dict[str, Any]


def figure(
    experiment: str, setting: Setting, measure: str, estimate: Estimate, *, clusters: str, **more: float | str | None
) -> Figure:
    """One figure.

    Args:
        experiment: robustness or identification.
        setting: how the texts were written.
        measure: see schemas.evaluation.MEASURES.
        estimate: the measured value with its limits.
        clusters: the units taken for independent.
        more: further columns; omitted columns are null.
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

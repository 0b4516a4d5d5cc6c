"""Rows of schemas.evaluation_tables.FIGURES: one measured number each, with its n and its 95 % interval."""

import math
from typing import Any

from scanner.evaluation.clustered_means import Estimate
from scanner.evaluation.units import Setting
from schemas.evaluation_tables import FIGURES

Figure = dict[str, Any]


def figure(
    experiment: str, setting: Setting, measure: str, estimate: Estimate, *, clusters: str, **more: float | str | None
) -> Figure:
    """One figure.

    Args:
        experiment: robustness or identification.
        setting: how the texts were written.
        measure: see schemas.evaluation_tables.MEASURES.
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

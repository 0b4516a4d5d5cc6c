"""The p-value that people are shown of a flag: where a hash alone speaks, no smaller than its rank among decoys."""

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from scanner.watermark.pvalues import log10_any_of
from scanner.watermark.rule import LEAST_RANK

_BEATEN = 1.0 - pl.col("p_rank").fill_nan(None).fill_null(LEAST_RANK)  # chance of a smaller rank, of one test
_CORRECTED_RANK = 1.0 - _BEATEN.pow(pl.col("correction").fill_null(1.0))

LOG10_P_SHOWN = (
    pl.when(pl.col("basis").fill_null("key") == "key")
    .then("log10_p_global")
    .otherwise(pl.max_horizontal("log10_p_global", _CORRECTED_RANK.log10()))
)
"""log10 of the p-value that people are shown, of rows of schemas.tables.VERDICTS: see `log10_p_shown`."""


def log10_p_shown(row: Mapping[str, Any]) -> float:
    """Return log10 of a flag's p-value for people: where only a hash speaks, no smaller than its rank among decoys.

    The rank is of one key and look, so it is corrected for K as p is: under seven keys, seven texts in 1,000 beat all
    decoys of some key.
    """
    p: float = row["log10_p_global"]
    if row["basis"] in (None, "key"):
        return p
    rank = row.get("p_rank")
    if rank is None or math.isnan(rank):  # as of a flag's further users: nothing is shown beyond the decoys
        rank = LEAST_RANK
    correction = row.get("correction") or 1.0
    return max(p, float(log10_any_of(math.log10(rank), 1, correction)))

"""The worth of a p-value: how many texts reach it by chance, and what it says to somebody who had an opinion before.

A p-value is no probability that a text is unmarked. At most N·p of N texts reach p by chance. Two more things follow.

Let p be the exact p-value of one message of one key, uncorrected. The likelihood ratio of the score rises with the
score, for binomial scores whose odds a mark tilts and for gamma scores whose rate it lowers. So the factor by which the
score multiplies the odds of "marked for this message" against "not marked" is P(score or more | marked) / p or less
(integrate the ratio over the tail), and 1/p at most. It takes a prior for that very message.

No such bound holds for a p-value that is corrected for messages, keys and looks, or pooled: others of them add to the
factor. It has an e-value: a bet of one against chance, fixed before, whose mean is 1 at most where nothing is marked.
That is the average over κ in (0, 1) of the bets κ·p^(κ-1): (1 - p + p·ln p) / (p·(ln p)²) (Vovk and Wang 2021,
E-values: Calibration, combination and applications, section 2).
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from scanner.results.newest import ranges_ever
from scanner.watermark.pvalues import LN10
from scanner.watermark.rule import LEAST_RANK

LEAST_LOG10_P = -128 * math.log10(2.0)
"""log10 of the probability of a key of 128 bits: over the draw of a key no p-value is smaller."""

LOG10_P_SHOWN = (
    pl.when(pl.col("basis").fill_null("key") == "key")
    .then("log10_p_global")
    .otherwise(pl.max_horizontal("log10_p_global", pl.col("p_rank").fill_nan(None).fill_null(LEAST_RANK).log10()))
)
"""log10 of the p-value that people are shown, of rows of schemas.tables.VERDICTS: see `log10_p_shown`."""


def log10_p_shown(row: Mapping[str, Any]) -> float:
    """log10 of a flag's p-value for people: where a hash alone speaks, the larger of it and the rank among decoys."""
    p: float = row["log10_p_global"]
    if row["basis"] in (None, "key"):
        return p
    rank = row.get("p_rank")
    if rank is None or math.isnan(rank):  # as of a flag's further users: nothing is shown beyond the decoys
        rank = LEAST_RANK
    return max(p, math.log10(rank))


def log10_e_value(log10_p: float) -> float:
    """log10 of the e-value of a p-value, corrected or not; p = 1 gives 1/2."""
    x = -log10_p * LN10
    if x < 1e-3:
        return math.log10(0.5 + x / 6.0)
    return (x - 2.0 * math.log(x) + math.log1p(-(1.0 + x) * math.exp(-x))) / LN10


def log10_factor_at_most(row: Mapping[str, Any]) -> float | None:
    """log10 of the most by which a text multiplies the odds that it is marked for the message of its flag.

    None where no exact p-value of the message alone is known: no message is shown, the flag rests on a part that was
    chosen by its score, or the hash alone speaks.
    """
    p, exact = row["log10_p"], row["basis"] in (None, "key")
    if p is None or row["message"] is None or row["unit"] is not None or not exact:
        return None
    return -max(float(p), LEAST_LOG10_P)


def posterior_at_most(log10_factor: float, prior: float) -> float:
    """The bound on the probability that a text is marked for a message.

    Args:
        log10_factor: log10 of the most by which the text multiplies the odds.
        prior: the probability that it is marked for this very message before it was looked at, above 0 and below 1.
    """
    log10_odds = math.log10(prior) - math.log1p(-prior) / LN10 + log10_factor
    return 1.0 / (1.0 + 10.0**-log10_odds) if log10_odds > -300.0 else 0.0


def scored_documents(results: str, scan_ids: Collection[str]) -> dict[str, int]:
    """Documents that each of some scans scored, by scan, so that copies count each; scans that have none are left out.

    Raises:
        Refused: there are no results.
    """
    of_scans = ranges_ever(results).filter(pl.col("scan_id").is_in(list(scan_ids)))
    scored = pl.col("documents") - pl.col("quarantined") - pl.col("too_short") - pl.col("filtered").fill_null(0)
    return dict(
        of_scans.group_by("scan_id").agg(scored.sum().clip(lower_bound=0)).collect(engine="streaming").iter_rows()
    )

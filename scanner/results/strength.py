"""The worth of a p-value: how many texts reach it by chance, and how far it can move a prior opinion.

A p-value is no probability that a text is unmarked. N·p of N texts reach p by chance. Whatever the marked texts are
like, if p is uniform where nothing is marked and its density falls under the mark, the Bayes factor for the mark is at
most 1/(−e·p·ln p) for p < 1/e (Sellke, Bayarri and Berger 2001). Only who states a prior gets a posterior, and that at
most.
"""

import math
from collections.abc import Collection

import polars as pl

from scanner.results.newest import ranges_ever

_LN10 = math.log(10.0)


def bayes_factor_at_most(log10_p: float) -> float:
    """log10 of the bound on the Bayes factor for the mark; 0 where p is 1/e or more, from which nothing follows."""
    ln_p = log10_p * _LN10
    return 0.0 if ln_p >= -1.0 else -(1.0 + ln_p + math.log(-ln_p)) / _LN10


def posterior_at_most(log10_p: float, prior: float) -> float:
    """The bound on the probability that a text holds the mark.

    Args:
        log10_p: log10 of its corrected p-value.
        prior: the probability before the text was looked at, above 0 and below 1.
    """
    log10_odds = math.log10(prior) - math.log1p(-prior) / _LN10 + bayes_factor_at_most(log10_p)
    return 1.0 / (1.0 + 10.0**-log10_odds) if log10_odds > -300.0 else 0.0


def scored_documents(results: str, scan_ids: Collection[str]) -> dict[str, int]:
    """Documents that each of some scans scored, by scan, so that copies count each; scans that have none are left out.

    Raises:
        Refused: there are no results.
    """
    of_scans = ranges_ever(results).filter(pl.col("scan_id").is_in(list(scan_ids)))
    scored = pl.col("documents") - pl.col("quarantined") - pl.col("too_short")
    return dict(
        of_scans.group_by("scan_id").agg(scored.sum().clip(lower_bound=0)).collect(engine="streaming").iter_rows()
    )

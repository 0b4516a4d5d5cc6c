"""The worth of flags' p-values, in words for people: what chance explains, and the most that follows."""

import math
from typing import TYPE_CHECKING

from jobs.flag_words import p_value, power

if TYPE_CHECKING:
    import polars as pl

    from scanner.results.flag_list import FlagList


def with_strength(results: str, found: "FlagList", prior: float | None) -> "FlagList":
    """Rows of flags with three columns more, float64.

    expected_by_chance: how many of the documents that the flag's scan scored reach its p-value by chance;
    log10_bayes_factor_at_most; posterior_at_most, null where no prior is given.
    """
    import polars as pl

    from scanner.results.queries import ask
    from scanner.results.strength import bayes_factor_at_most, posterior_at_most, scored_documents

    rows = found.rows
    scored = ask(results, lambda: scored_documents(results, rows["scan_id"].unique().to_list()))
    p, documents = rows["log10_p_global"].to_list(), [scored.get(scan_id) for scan_id in rows["scan_id"]]
    chance = [None if count is None else count * 10.0**one for count, one in zip(documents, p, strict=True)]
    posterior = [None if prior is None else posterior_at_most(one, prior) for one in p]
    columns: dict[str, list[float | None]] = {
        "expected_by_chance": chance,
        "log10_bayes_factor_at_most": [bayes_factor_at_most(one) for one in p],
        "posterior_at_most": posterior,
    }
    return found._replace(rows=rows.with_columns(pl.Series(name, all_, pl.Float64) for name, all_ in columns.items()))


def least_sure(rows: "pl.DataFrame", prior: float | None) -> list[str]:
    """A sentence on the largest p-value among rows of `with_strength`; empty if there are none."""
    if rows.is_empty():
        return []
    row = rows.sort("log10_p_global").row(-1, named=True)
    chance = row["expected_by_chance"]
    reached = f"{power(math.log10(chance))} documents of its scan are expected to by chance alone; " if chance else ""
    sentence = f"the largest p-value shown is {p_value(row['log10_p_global'])}: {reached}{odds(row['log10_p_global'])}"
    if prior is not None:
        sentence += (
            f"; where {prior:g} was the probability of a mark before, it is {row['posterior_at_most']:.3g} at most"
        )
    return [sentence]


def odds(log10_p: float) -> str:
    """Odds that a p-value can give somebody who had an opinion before."""
    from scanner.results.strength import bayes_factor_at_most

    return f"it multiplies the odds that its text is marked by {power(bayes_factor_at_most(log10_p))} at most"


def odds_in_words(rate: float) -> str:
    """The odds in words, for a flag that is just at a false-positive rate."""
    from scanner.results.strength import bayes_factor_at_most

    factor = power(bayes_factor_at_most(math.log10(rate)))
    return f"a p-value of {rate:g} multiplies the odds of a mark by {factor} at most"

"""The worth of flags' p-values, in words for people: what chance explains, and what follows for a prior opinion."""

import math
from typing import TYPE_CHECKING

from scanner.printable import amount, one_in

if TYPE_CHECKING:
    import polars as pl

    from scanner.results.flag_list import FlagList


def with_strength(results: str, found: "FlagList", prior: float | None) -> "FlagList":
    """Rows of flags with columns more, float64.

    log10_p_shown; expected_by_chance_at_most: how many of the documents that the flag's scan scored reach that p-value
    by chance; log10_e_value; log10_factor_at_most, null where the message has no exact p-value of its own;
    posterior_at_most, null there and where no prior is given.
    """
    import polars as pl

    from scanner.results import strength
    from scanner.results.queries import ask

    rows = found.rows.with_columns(log10_p_shown=strength.LOG10_P_SHOWN)
    scored = ask(results, lambda: strength.scored_documents(results, rows["scan_id"].unique().to_list()))
    p, documents = rows["log10_p_shown"].to_list(), [scored.get(scan_id) for scan_id in rows["scan_id"]]
    factors = [strength.log10_factor_at_most(row) for row in rows.iter_rows(named=True)]
    columns: dict[str, list[float | None]] = {
        "expected_by_chance_at_most": [
            None if count is None else count * 10.0**one for count, one in zip(documents, p, strict=True)
        ],
        "log10_e_value": [strength.log10_e_value(one) for one in p],
        "log10_factor_at_most": factors,
        "posterior_at_most": [
            None if prior is None or one is None else strength.posterior_at_most(one, prior) for one in factors
        ],
    }
    return found._replace(rows=rows.with_columns(pl.Series(name, all_, pl.Float64) for name, all_ in columns.items()))


def least_sure(rows: "pl.DataFrame", prior: float | None) -> list[str]:
    """Sentences on the largest p-value among rows of `with_strength`, and on keys whose hash alone speaks."""
    if rows.is_empty():
        return []
    row = rows.sort("log10_p_shown").row(-1, named=True)
    chance = row["expected_by_chance_at_most"]
    reached = f"{amount(chance)} documents of its scan at most reach it by chance alone; " if chance else ""
    sentence = f"the largest p-value shown is {one_in(row['log10_p_shown'])}: {reached}{bet(row['log10_p_shown'])}"
    posterior = rows["posterior_at_most"].drop_nulls().to_list()
    if prior is not None and posterior:
        sentence += (
            f"; where {prior:g} was the probability before that a text is marked for the very message it is flagged "
            f"for, it is {min(posterior):.3g} at most for the least sure one"
        )
    if (rows["basis"].fill_null("key") != "key").any():
        return [
            sentence,
            "a p-value of a key whose hash alone speaks is shown no smaller than its rank among decoy keys, 1 in 1,000",
        ]
    return [sentence]


def bet(log10_p: float) -> str:
    """The e-value of a p-value, in words."""
    from scanner.results.strength import log10_e_value

    return (
        f"its e-value is {amount(10 ** min(log10_e_value(log10_p), 300.0))}: a bet against chance wins so many stakes"
    )


def bet_in_words(rate: float) -> str:
    """The e-value in words, of a flag that is just at a false-positive rate."""
    from scanner.results.strength import log10_e_value

    least = amount(10 ** log10_e_value(math.log10(rate)))
    return f"a flag's e-value is {least} or more: a bet against chance wins so many stakes"

"""What people are shown of a p-value."""

import json
import math

import numpy as np
import polars as pl
import pytest
from scipy import integrate, stats

from scanner import results
from scanner.printable import amount, at_most, one_in
from scanner.results.shown_p_values import LOG10_P_SHOWN, log10_p_shown
from tests.support.command_line import call


def test_a_hash_alone_is_shown_no_smaller_than_its_rank():
    rows = [
        {"log10_p_global": p, "basis": basis, "p_rank": rank, "correction": correction}
        for p in (-400.0, -12.0, -3.5, -2.0)
        for basis in (None, "key", "key-64-bits", "key-32-bits", "assumed")
        for rank in (None, math.nan, 0.001, 0.5)
        for correction in (None, 1.0, 7.0, 12.5)
    ]
    shown = [log10_p_shown(row) for row in rows]
    kinds = {**dict.fromkeys(("log10_p_global", "p_rank", "correction"), pl.Float64), "basis": pl.String}
    assert pl.DataFrame(rows, schema=kinds).select(LOG10_P_SHOWN).to_series().to_list() == pytest.approx(shown)
    for row, one in zip(rows, shown, strict=True):
        if row["basis"] in (None, "key"):
            assert one == row["log10_p_global"]
        else:
            rank = row["p_rank"] if row["p_rank"] and row["p_rank"] > 0 else 0.001
            any_rank = 1.0 - (1.0 - rank) ** (row["correction"] or 1)
            assert one == pytest.approx(max(row["log10_p_global"], math.log10(any_rank)), abs=1e-9)


def test_people_are_shown_one_notation():
    assert [one_in(one) for one in (0.0, -0.5, -2.0, -6.36, -9.0)] == [
        *("1 in 1", "1 in 3.2", "1 in 100", "1 in 2,300,000", "1 in 1,000,000,000")
    ]
    assert {one_in(one) for one in (-9.01, -38.6, -400.3, -1e9)} == {"less than 1 in a billion"}
    assert [at_most(one) for one in (7e-7, 0.04)] == ["less than 0.001", "at most 0.04"]
    assert [amount(one) for one in (0.0, 7e-7, 0.0012, 0.5, 99.4, 99.7, 1234.5, 2e9)] == [
        *("0", "less than 0.001", "0.0012", "0.5", "99", "100", "1,200", "more than a billion")
    ]


def flagged_again(scored: int, changed: int, p: float, gamma: float | None) -> float:
    """P(p or less again | p or less) when some of the n-grams get new draws; gamma None: a Gumbel key."""
    if gamma is not None:
        s = np.arange(scored + 1)
        least = int(np.argmax(stats.binom.sf(s - 1, scored, gamma) <= p))
        mass = stats.binom.pmf(s, scored, gamma)
        kept = np.arange(scored - changed + 1)
        again = [
            float(
                stats.hypergeom.pmf(kept, scored, x, scored - changed)
                @ stats.binom.sf(least - 1 - kept, changed, gamma)
            )
            for x in s[least:]
        ]
        return float(mass[least:] @ again) / float(mass[least:].sum())
    least = stats.gamma.isf(p, scored)

    def again_at(score: float) -> float:
        part = stats.beta(changed, scored - changed)
        passes = lambda b: part.pdf(b) * stats.gamma.sf(least - score * (1 - b), changed)  # noqa: E731
        return float(integrate.quad(passes, 0, 1, points=[changed / scored], limit=200)[0])

    whole = lambda score: stats.gamma.pdf(score, scored) * again_at(score)  # noqa: E731
    return float(integrate.quad(whole, least, least * 1.5, limit=100)[0]) / p


@pytest.mark.costly
@pytest.mark.seconds
def test_how_often_a_copy_is_flagged_again_is_as_the_page_says():
    """250 scored n-grams of which 5 % are changed, at a false-positive rate of 1e-6."""
    found = [round(flagged_again(250, 12, 1e-6 / m, g), 2) for m in (1, 10**5) for g in (0.25, None)]
    assert found == [0.44, 0.47, 0.30, 0.32]


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_people_are_told(night, own_registry, marked, plain):
    night.write("a", [marked(41, 60, 1), *(plain(60, seed) for seed in range(9)), "too short"])
    night.scan()
    (row,) = results.flagged(night.results).collect().to_dicts()
    code, out, _ = call("flagged", night.config, "--format", "json")
    (told,) = json.loads(out)["rows"]
    assert code == 0
    assert told["log10_p_shown"] == row["log10_p_global"]
    said = " ".join(call("flagged", night.config)[1].split())
    assert "false flags: less than 0.001 of 1 expected, by chance (N·p)" in said
    assert "less than 1 in a billion" in said

"""The strength of a p-value, against exact laws, and its words for people."""

import json
import math

import numpy as np
import polars as pl
import pytest
from scipy import integrate, stats

from scanner import results
from scanner.printable import amount, at_most, one_in
from scanner.results.false_discoveries import (
    LOG10_P_SHOWN,
    log10_e_value,
    log10_factor_at_most,
    log10_p_shown,
    posterior_at_most,
    scored_documents,
)
from tests.support.command_line import call
from tests.support.rows import verdict

TILTS = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
RATES = (0.98, 0.9, 0.7, 0.6, 0.5, 0.2)


def binomial_of(scored: int, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """ln p and, for each alternative of the exponential family, ln of the likelihood ratio, for each score."""
    s = np.arange(1, scored + 1)
    marked = [gamma * math.exp(tilt) / (1 - gamma + gamma * math.exp(tilt)) for tilt in TILTS]
    ratios = [stats.binom.logpmf(s, scored, one) - stats.binom.logpmf(s, scored, gamma) for one in marked]
    return stats.binom.logsf(s - 1, scored, gamma), np.array(ratios)


def gumbel_of(scored: int) -> tuple[np.ndarray, np.ndarray]:
    """The same of sums of exponential terms, whose rate a mark lowers, over a grid of scores."""
    s = scored * np.linspace(0.3, 4.0, 200)
    return stats.gamma.logsf(s, scored), np.array([scored * math.log(rate) + (1 - rate) * s for rate in RATES])


LAWS = [binomial_of(scored, gamma) for scored in (20, 100, 500) for gamma in (0.25, 0.5)]
LAWS += [gumbel_of(scored) for scored in (10, 100, 400)]


def old_bound(ln_p: np.ndarray) -> np.ndarray:
    """ln of 1/(−e·p·ln p), which was called a bound."""
    return -(1.0 + ln_p + np.log(-ln_p))


@pytest.mark.parametrize("law", LAWS)
def test_no_alternative_passes_the_bound_of_a_messages_own_p(law):
    ln_p, ratios = law
    usual = (ln_p < 0) & (ln_p > -80)
    rows = [verdict(0) | {"log10_p": float(one) / math.log(10), "unit": None, "basis": "key"} for one in ln_p[usual]]
    bound = np.array([log10_factor_at_most(row) for row in rows]) * math.log(10)
    assert (ratios[:, usual] <= bound + 1e-9).all()


def test_the_old_formula_was_no_bound():
    excess = []
    for ln_p, ratios in LAWS:
        near = (ln_p < -12) & (ln_p > -16)  # p about 1e-6
        excess.append(float((ratios[:, near] - old_bound(ln_p[near])).max()))
    assert max(excess) > math.log(2)


def test_a_corrected_p_has_no_such_bound():
    """Where 240 keys speak alike, the ratio averaged over them is that of one, and beyond 1/p of the corrected p."""
    ln_p, ratios = gumbel_of(100)
    at = int(np.argmin(np.abs(ln_p - math.log(1e-9))))
    assert ratios[:, at].max() > -(ln_p[at] + math.log(240))


@pytest.mark.parametrize("tests", [1, 24, 10**5])
@pytest.mark.parametrize(("scored", "gamma"), [(20, 0.25), (200, 0.25), (200, 0.5)])
def test_e_values_of_exact_laws_have_a_mean_of_one_at_most(scored, gamma, tests):
    """The largest of so many independent scores, its p corrected for them: summed over all that can happen."""
    s = np.arange(scored + 1)
    below = np.exp(tests * np.log1p(-np.minimum(stats.binom.sf(s, scored, gamma), 1 - 1e-16)))  # P(largest <= s)
    p = -np.expm1(tests * np.log1p(-np.minimum(stats.binom.sf(s - 1, scored, gamma), 1 - 1e-16)))
    mass = np.diff(below, prepend=0.0)
    e = np.array([10 ** log10_e_value(math.log10(max(one, 1e-300))) for one in p])
    assert 0.5 < float(mass @ e) <= 1 + 1e-9


def test_e_values_of_uniform_p_have_a_mean_of_one_and_are_the_formula():
    def weighed(x: float) -> float:  # p = exp(−x)
        return 10 ** log10_e_value(-x / math.log(10)) * math.exp(-x)

    assert integrate.quad(weighed, 0, 700, limit=500)[0] == pytest.approx(1, abs=2e-3)
    for p in (0.999, 0.3, 0.01, 1e-8):
        mixed = integrate.quad(lambda k, p=p: k * p ** (k - 1), 0, 1, limit=500, points=[1e-3, 1e-2, 0.1])[0]
        assert 10 ** log10_e_value(math.log10(p)) == pytest.approx(mixed, rel=1e-6)
    assert 10 ** log10_e_value(0.0) == 0.5
    assert np.diff([log10_e_value(one) for one in np.linspace(-300, 0, 10_000)]).max() < 0


def test_a_posterior_needs_a_prior_and_follows_from_the_odds():
    assert posterior_at_most(6.0, 1e-3) == pytest.approx(1e3 / (1e3 + 1 - 1e-3))
    assert posterior_at_most(0.0, 0.25) == pytest.approx(0.25)
    assert posterior_at_most(400.0, 1e-300) == pytest.approx(1.0)
    assert posterior_at_most(0.0, 1e-307) == 0.0


@pytest.mark.parametrize(
    "unknown",
    [{"message": None}, {"unit": "span"}, {"log10_p": None}, {"basis": "assumed"}, {"basis": "key-64-bits"}],
)
def test_what_has_no_exact_p_of_its_own_has_no_bound(unknown):
    row = verdict(0) | {"message": 3, "unit": None, "log10_p": -8.0, "basis": "key"}
    assert log10_factor_at_most(row) == 8.0
    assert log10_factor_at_most(row | {"log10_p": -400.0}) == pytest.approx(38.53, abs=0.01)  # a key has 128 bits
    assert log10_factor_at_most(row | unknown) is None


def test_a_hash_alone_is_shown_no_smaller_than_its_rank():
    rows = [
        {"log10_p_global": p, "basis": basis, "p_rank": rank, "keys_tested": keys, "tests": tests}
        for p in (-400.0, -12.0, -3.5, -2.0)
        for basis in (None, "key", "key-64-bits", "key-32-bits", "assumed")
        for rank in (None, math.nan, 0.001, 0.5)
        for keys, tests in ((None, None), (1, None), (7, None), (13, 12.5))
    ]
    shown = [log10_p_shown(row) for row in rows]
    reals = dict.fromkeys(("log10_p_global", "p_rank", "tests"), pl.Float64)
    kinds = {**reals, "basis": pl.String, "keys_tested": pl.Int64}
    assert pl.DataFrame(rows, schema=kinds).select(LOG10_P_SHOWN).to_series().to_list() == pytest.approx(shown)
    for row, one in zip(rows, shown, strict=True):
        if row["basis"] in (None, "key"):
            assert one == row["log10_p_global"]
        else:
            rank = row["p_rank"] if row["p_rank"] and row["p_rank"] > 0 else 0.001
            any_rank = 1.0 - (1.0 - rank) ** (row["tests"] or row["keys_tested"] or 1)
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
    assert scored_documents(night.results, [row["scan_id"], "another"]) == {row["scan_id"]: 10}
    code, out, _ = call("flagged", night.config, "--prior", "0.001", "--format", "json")
    (told,) = json.loads(out)["rows"]
    assert code == 0
    assert told["expected_by_chance_at_most"] == pytest.approx(10 * 10 ** row["log10_p_global"])
    assert told["log10_p_shown"] == row["log10_p_global"]
    assert told["log10_e_value"] == pytest.approx(log10_e_value(row["log10_p_global"]))
    assert told["log10_factor_at_most"] == pytest.approx(-row["log10_p"])
    assert told["posterior_at_most"] == pytest.approx(posterior_at_most(-row["log10_p"], 0.001))
    said = " ".join(call("flagged", night.config)[1].split())
    assert "documents of its scan at most reach it by chance alone; its e-value is" in said
    assert said.count("at most") == 1  # nothing of a corrected p is a bound, but for N·p
    assert "less than 1 in a billion" in said
    said = " ".join(call("flagged", night.config, "--prior", "0.001")[1].split())
    assert "where 0.001 was the probability before that a text is marked for the very message" in said

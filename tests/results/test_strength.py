"""The strength of a p-value, against numbers by hand and by simulation, and its words for people."""

import json
import math

import numpy as np
import polars as pl
import pytest

from jobs.flag_words import p_value, power
from scanner import results
from scanner.results.strength import bayes_factor_at_most, posterior_at_most, scored_documents
from tests.support.command_line import call


@pytest.mark.parametrize("p", [0.3, 0.05, 1e-3, 1e-8, 1e-12])
def test_the_bound_is_that_of_its_formula(p):
    assert 10 ** bayes_factor_at_most(math.log10(p)) == pytest.approx(1 / (-math.e * p * math.log(p)))


def test_there_is_no_evidence_in_a_large_p_and_the_bound_does_not_jump():
    assert bayes_factor_at_most(0.0) == bayes_factor_at_most(-0.4) == 0.0
    assert bayes_factor_at_most(math.log10(1 / math.e)) == pytest.approx(0.0, abs=1e-12)
    assert bayes_factor_at_most(-300.0) == pytest.approx(300 - math.log10(math.e * 300 * math.log(10)))


@pytest.mark.parametrize("shape", [0.01, 0.1, 0.5, 0.9])
def test_no_density_of_its_class_passes_the_bound(shape):
    """Under a mark, p is Beta(ξ, 1) with ξ < 1; its Bayes factor at p is the density ξ·p^(ξ−1)."""
    p = np.logspace(-12, -0.5, 200)
    factor = np.log10(shape) + (shape - 1) * np.log10(p)
    assert (factor <= [bayes_factor_at_most(one) + 1e-9 for one in np.log10(p)]).all()


def test_a_posterior_needs_a_prior_and_follows_from_the_odds():
    factor = 10 ** bayes_factor_at_most(-8.0)
    assert posterior_at_most(-8.0, 1e-3) == pytest.approx(factor * 1e-3 / (factor * 1e-3 + 1 - 1e-3))
    assert posterior_at_most(0.0, 0.25) == pytest.approx(0.25)
    assert posterior_at_most(-400.0, 1e-300) == pytest.approx(1.0)
    assert posterior_at_most(0.0, 1e-307) == 0.0


def test_exactness_ends_at_the_keys_entropy():
    assert p_value(-38.6) == p_value(-168.0) == "below 4e-39"
    assert p_value(-38.0) == "1.0e-38"
    assert power(5.3) == "2.0e5"


@pytest.mark.usefixtures("without_ray")
def test_people_are_told(night, own_registry, marked, plain):
    night.write("a", [marked(41, 60, 1), *(plain(60, seed) for seed in range(9)), "too short"])
    night.scan()
    (row,) = results.flagged(night.results).collect().to_dicts()
    assert scored_documents(night.results, [row["scan_id"], "another"]) == {row["scan_id"]: 10}
    code, out, _ = call("flagged", night.config, "--prior", "0.001", "--format", "json")
    (told,) = json.loads(out)["rows"]
    assert code == 0
    assert told["expected_by_chance"] == pytest.approx(10 * 10 ** row["log10_p_global"])
    assert told["log10_bayes_factor_at_most"] == pytest.approx(bayes_factor_at_most(row["log10_p_global"]))
    assert told["posterior_at_most"] == pytest.approx(posterior_at_most(row["log10_p_global"], 0.001))
    _, out, _ = call("flagged", night.config)
    assert "documents of its scan are expected to by chance alone; it multiplies the odds" in " ".join(out.split())
    _, out, _ = call("flagged", night.config, "--prior", "0.001")
    assert "where 0.001 was the probability of a mark before, it is" in " ".join(out.split())
    assert pl.DataFrame([told])["posterior_at_most"].item() <= 1.0

"""`brickscan plan`: its laws against scipy's and simulation, its bound against both, and what the command says."""

import math
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from jobs.plan import plan
from scanner.errors import Refused
from scanner.power import (
    Aim,
    GreenShare,
    GumbelEntropy,
    GumbelProbability,
    NamedToo,
    gumbel_tail,
    gumbel_thresholds,
    probabilities_of,
    share_on_flat_logits,
    tokens_needed,
)
from scanner.watermark import log10_greenlist
from scanner.watermark.native.format import groups_for

AIM = Aim(1e-6, 1000, 3)
GREEN = GreenShare(Fraction(1, 4), 0.55, "")


def test_green_power_is_the_binomial_tail_above_the_least_count_that_passes() -> None:
    one_p = -math.expm1(math.log1p(-AIM.false_positive_rate) / 3000)  # the rate for one message of one key
    for scored in (1, 5, 17, 60, 140, 500):
        passing = [s for s in range(scored + 1) if stats.binom.sf(s - 1, scored, 0.25) <= one_p]
        wanted = stats.binom.sf(passing[0] - 1, scored, 0.55) if passing else 0.0
        assert GREEN.power(np.array([scored]), AIM)[0] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("share", [0.55, 0.7, 0.94])
def test_no_chances_of_the_same_mean_have_less_power_where_it_says_so(share: float) -> None:
    """Hoeffding's extremes: some tokens are always green, some never, and the others with one chance."""
    marked, aim, bounds = GreenShare(Fraction(1, 4), share, ""), Aim(1e-3, 1, 1), Counter[bool]()
    for scored in range(1, 60):
        least = next((s for s in range(scored + 1) if stats.binom.sf(s - 1, scored, 0.25) <= 1e-3), scored + 1)
        said = marked.power(np.array([scored]), aim)[0]
        always, never = (a.ravel() for a in np.indices((scored, scored)))
        alike = (scored * share - always) / np.maximum(scored - always - never, 1)
        there = (always + never < scored) & (alike >= 0) & (alike <= 1)
        power = stats.binom.sf(least - always - 1, scored - always - never, alike)[there]
        bounds[marked.bounds(scored, aim)] += 1
        assert (power >= said - 1e-12).all() or not marked.bounds(scored, aim)
    assert min(bounds[True], bounds[False]) > 0


def test_a_power_above_one_half_alone_bounds_nothing() -> None:
    """All of eleven tokens must be green to pass: ten always are, and one is with chance 0.34."""
    marked, aim = GreenShare(Fraction(1, 2), 0.94, ""), Aim(1.001 * 2.0**-11, 1, 1)
    power = marked.power(np.array([11]), aim)[0]
    assert power == pytest.approx(0.94**11)
    assert power > 0.5 > 11 * 0.94 - 10  # the power with these eleven tokens
    assert not marked.bounds(11, aim)


def test_gumbel_thresholds_pass_and_a_little_less_does_not() -> None:
    scored = np.array([1, 30, 1000])
    least = gumbel_thresholds(scored, AIM)
    one_p = -math.expm1(math.log1p(-AIM.false_positive_rate) / 3000)
    assert least.tolist() == pytest.approx(stats.gamma.isf(one_p, scored).tolist(), rel=1e-8)


@pytest.mark.parametrize("scored", [16, 100, 2000])
def test_the_inversion_gives_the_gamma_law_at_probability_one(scored: int) -> None:
    """Where p = 1 the score is a sum of exponentials, marked or not."""
    for score in stats.gamma.isf([0.999, 0.9, 0.5, 0.1, 1e-4], scored):
        assert gumbel_tail(score, scored, 1.0) == pytest.approx(stats.gamma.sf(score, scored), abs=2e-9)


@pytest.mark.parametrize("probability", [0.02, 0.5, 0.95])
def test_the_inversion_against_simulation(probability: float) -> None:
    """Each tail lies within the 99.999 % interval of 40,000 texts of 40 tokens; error rate 1e-4 in all."""
    uniform = np.random.default_rng(2).random((40_000, 40))
    sums = -np.log1p(-(uniform**probability)).sum(axis=1)
    for quantile in (0.1, 0.5, 0.99):
        score = float(np.quantile(sums, quantile))
        found = stats.binomtest(int((sums >= score).sum()), len(sums)).proportion_ci(1 - 1e-5)
        assert found.low < gumbel_tail(score, 40, probability) < found.high


@pytest.mark.parametrize("entropy", [0.05, 0.2, 0.36])
def test_the_papers_bounds_give_no_more_power_than_there_is(entropy: float) -> None:
    for p in probabilities_of(entropy):
        assert -p * math.log(p) == pytest.approx(entropy)
        for scored in (100, 1000, 5000):
            counts = np.array([scored])
            assert GumbelEntropy(entropy, "").power(counts, AIM) <= GumbelProbability(p, "").power(counts, AIM) + 1e-9


@pytest.mark.parametrize("power", [0.5, 0.99])
@pytest.mark.parametrize(
    "marked", [GREEN, GumbelProbability(0.4, ""), GumbelEntropy(0.3, "")], ids=lambda m: type(m).__name__
)
def test_the_answer_is_the_least_that_lasts(marked, power: float) -> None:
    answer = tokens_needed(marked, AIM, power)
    assert (marked.power(np.arange(answer, answer + 30), AIM) >= power - 1e-9).all()
    assert marked.power(np.array([answer - 1]), AIM)[0] < power


@pytest.mark.parametrize("marked", [GREEN, GumbelProbability(0.4, "")], ids=lambda m: type(m).__name__)
def test_simulated_texts_pass_as_often_as_said(marked) -> None:
    """4,000 texts through the p-values of the scan; error rate 1e-4."""
    answer = tokens_needed(marked, AIM, 0.8)
    passed = marked.passed(answer, AIM, 4000, np.random.default_rng(8))
    assert stats.binomtest(passed, 4000, float(marked.power(np.array([answer]), AIM)[0])).pvalue > 1e-4


def test_flat_logits() -> None:
    assert share_on_flat_logits(Fraction(1, 4), math.log(3)) == pytest.approx(0.5)


def call(*options: str) -> str:
    found = CliRunner().invoke(plan, ["--power", "0.9", "--simulate", "200", *options], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_command_says_what_it_assumes_() -> None:
    green = call("--method", "greenlist", "--delta", "2", "--messages", "10", "--window", "2")
    assert "Assumes: flat logits, where delta 2 makes a share of 0.7112 green" in green
    needed = tokens_needed(
        GreenShare(Fraction(1, 4), share_on_flat_logits(Fraction(1, 4), 2), ""), Aim(1e-6, 10, 1), 0.9
    )
    assert f"10    0.9             {needed}              {needed + 2}   exact" in green
    mean = call("--method", "greenlist", "--green-share", "0.6", "--messages", "1", "--power", "0.5", "--power", "0.51")
    assert "exact or more" in mean
    bound = call("--method", "gumbel", "--entropy", "0.3", "--messages", "1")
    found = re.search(r"at most ([0-9,]+) .*; about ([0-9,]+) if all", bound)
    assert found is not None
    most, about = (int(number.replace(",", "")) for number in found.groups())
    assert most > 3 * about
    needed = [tokens_needed(GumbelProbability(p, ""), Aim(1e-6, 1, 1), 0.9) for p in probabilities_of(0.3)]
    assert about == max(needed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "greenlist"], "needs exactly one of --delta or --green-share"),
        (["--method", "greenlist", "--delta", "1", "--green-share", "0.5"], "exactly one of --delta or --green-share"),
        (["--method", "gumbel", "--delta", "1", "--entropy", "0.2"], "no option of the other method"),
        (["--method", "greenlist", "--green-share", "0.2"], "between gamma = 1/4 and 1"),
        (["--method", "greenlist", "--delta", "1", "--gamma", "1/3"], "--gamma '1/3' is not n/2"),
        (["--method", "gumbel", "--entropy", "0.4"], "below 1/e"),
        (["--method", "gumbel", "--probability", "1"], "--probability 1.0"),
        (["--method", "gumbel", "--entropy", "0.2", "--fpr", "0"], "--fpr 0.0"),
        (["--method", "gumbel", "--probability", "0.999999"], "not reached within 1,048,576 scored tokens"),
    ],
)
def test_refused(options: list[str], words: str) -> None:
    with pytest.raises(Refused, match=words):
        call(*options)


@pytest.mark.parametrize(
    ("share", "scored", "simulated"),
    [(0.5, 200, 0.31), (0.5, 250, 0.58), (0.5, 300, 0.80), (0.6, 150, 0.76), (0.75, 60, 0.50), (0.75, 100, 0.97)],
)
def test_who_is_named_against_the_simulation_of_the_specification(share, scored, simulated) -> None:
    """SPEC_3 §4 simulated 80 to 300 texts a point under a key for 1.05e9 users: 4 standard errors are 0.22."""
    groups = groups_for(1.05e9)
    named = NamedToo(GreenShare(Fraction(1, 4), share, ""), groups, 1e-4)
    (bound,) = named.power(np.array([scored]), Aim(1e-6, groups**2, 1))
    error = math.sqrt(simulated * (1 - simulated) / 80)
    assert simulated - 0.12 - 4 * error < bound < simulated + 4 * error


def test_the_bound_on_names_is_the_plain_sum_and_below_a_simulation_token_by_token() -> None:
    """The simulation deals the steps of 4,000 texts one by one; 5 standard errors, error rate 1e-6."""
    groups, scored, share, rate = 325, 220, 0.5, 1e-3
    aim, own = Aim(1e-6, groups**2, 2), Aim(rate, groups, 2)
    marked = GreenShare(Fraction(1, 4), share, "")
    (bound,) = NamedToo(marked, groups, rate).power(np.array([scored]), aim)
    chances = stats.binom.pmf(np.arange(scored + 1), scored, 2 / 3)
    passes_own = [0.0] + [float(marked.power(np.array([k]), own)[0]) for k in range(1, scored + 1)]
    found = float(marked.power(np.array([scored]), aim)[0])
    assert bound == pytest.approx(max(0.0, found + float(chances @ passes_own) - 1), abs=1e-9)
    generator = np.random.default_rng(16)
    mine = generator.random((4000, scored)) < 2 / 3
    green = generator.random((4000, scored)) < share
    flagged = aim.passes(log10_greenlist(green.sum(axis=1), scored, Fraction(1, 4)))
    by_own = own.passes(log10_greenlist((green & mine).sum(axis=1), mine.sum(axis=1), Fraction(1, 4)))
    simulated = float((flagged & by_own).mean())
    assert bound <= simulated + 5 * math.sqrt(simulated * (1 - simulated) / 4000)
    assert bound > simulated - 0.15
    passed = NamedToo(marked, groups, rate).passed(scored, aim, 2000, np.random.default_rng(17))
    assert abs(passed / 2000 - bound) < 5 * math.sqrt(0.5 / 2000)


def test_the_command_plans_names_of_a_key_in_groups() -> None:
    out = call("--method", "greenlist", "--green-share", "0.6", "--users", "100000", "--misnaming-rate", "1e-4")
    found, named = (line.split() for line in out.splitlines()[-2:])
    assert found[0] == named[0] == "105,625"
    assert named[2:4] == ["at", "most"]
    assert int(named[4]) > int(found[2])
    assert named[-1:] == found[-1:] == ["200"]
    for wrong, words in (
        (("--users", "1e12"), "a key has 1 to"),
        (("--users", "10", "--misnaming-rate", "2"), "--misnaming-rate 2.0 is not allowed"),
    ):
        with pytest.raises(Refused, match=words):
            call("--method", "greenlist", "--green-share", "0.6", *wrong)

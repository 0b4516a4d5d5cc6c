"""What is said of evidence, in numbers made for each case."""

import math

import numpy as np
import pytest
from scipy import stats

from scanner.probe.evidence import Evidence
from scanner.probe.judgement import (
    PAGE_RATE,
    Share,
    layers_end,
    name_hypothesis,
    part_share,
    state_of,
    strength_a_root_of,
    unmarked_share,
)

TESTS = 100


def evidence(log10_p: float, scored: int = 1000, score: float = 0.0) -> Evidence:
    return Evidence(scored, score, 0, log10_p, min(0.0, log10_p + math.log10(TESTS)))


def of_strength(z: float, scored: int = 1000) -> Evidence:
    return evidence(float(stats.norm.logsf(z)) / math.log(10), scored)


def test_nothing_is_named_without_a_claim():
    assert name_hypothesis([evidence(-3.9), evidence(-3.9)], [True, True]).place is None


def test_the_smallest_p_is_named():
    named = name_hypothesis([evidence(-3.0), evidence(-40.0), evidence(-60.0)], [True] * 3)
    assert (named.place, named.alike) == (2, ())


def test_the_stated_configuration_stands_within_the_margin():
    assert name_hypothesis([evidence(-50.0), evidence(-52.9), evidence(-49.0)], [True] * 3) == (0, (1,))
    assert name_hypothesis([evidence(-50.0), evidence(-53.1)], [True, True]).place == 1


def test_what_cannot_be_told_apart_is_said():
    named = name_hypothesis([evidence(0.0), evidence(-40.0), evidence(-41.0)], [True] * 3)
    assert (named.place, named.alike) == (2, (1,))


def test_parts_are_left_out():
    assert name_hypothesis([evidence(0.0), evidence(-40.0)], [True, False]).place is None


def test_share_of_the_second_part():
    found = part_share(evidence(-99.0, 1000, 1900.0), evidence(-9.0, 1000, 1100.0))
    assert found is not None
    assert found.share == pytest.approx(0.1)
    assert found.agrees(0.2)
    assert not found.agrees(0.4)
    assert part_share(evidence(-1.0, 1000, 1010.0), evidence(-1.0, 1000, 1010.0)) is None


@pytest.mark.parametrize(
    ("before", "after", "ends"), [(24.0, 19.0, False), (24.0, 0.4, True), (24.0, 2.5, True), (8.0, 0.4, None)]
)
def test_layers_end(before, after, ends):
    runs = of_strength(30.0), of_strength(before), of_strength(after)
    assert layers_end(*runs, (8.0, 7.0)) is ends


def test_states():
    strength = strength_a_root_of([of_strength(30.0)])
    assert strength == pytest.approx(30.0 / math.sqrt(1000))
    assert state_of(of_strength(30.0), TESTS, strength).name == "marked"
    assert state_of(of_strength(0.0), TESTS, strength).name == "unmarked"
    few = state_of(of_strength(0.0, 50), TESTS, strength)
    assert few.name == "cannot tell"
    # so many more tokens, marked half as strongly, are found in 97.5 of 100 cases
    z = 0.5 * strength * math.sqrt(50 + few.tokens_lacking)
    assert stats.norm.sf(stats.norm.isf(PAGE_RATE / TESTS) - z) == pytest.approx(0.975, abs=1e-3)


def test_a_share_beyond_chance():
    share = Share.of(500, 1000).beyond(0.25)
    assert share.value == pytest.approx(1 / 3)
    low, high = stats.beta.ppf(0.025, 500, 501), stats.beta.ppf(0.975, 501, 500)
    assert share[1:] == pytest.approx(((low - 0.25) / 0.75, (high - 0.25) / 0.75))


def test_shares_of_nothing_and_of_all():
    assert Share.of(0, 0) == (0.0, 0.0, 1.0)
    assert Share.of(5, 5)[2] == 1.0


def answers(marked: int, unmarked: int, z: float, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """p of answers of 200 tokens each, of which some are marked, and the strength of all together."""
    generator = np.random.default_rng(seed)
    strengths = generator.standard_normal(marked + unmarked)
    strengths[:marked] += z
    log10_p = stats.norm.logsf(strengths) / math.log(10)
    return log10_p, np.full(marked + unmarked, 200), float(strengths.sum() / math.sqrt(marked + unmarked))


@pytest.mark.parametrize("z", [4.0, 6.0, 12.0])
def test_answers_that_are_all_marked(z):
    """None of 200 pages says otherwise, where one in 1,000 may."""
    assert not any(unmarked_share(*answers(40, 0, z, seed)) for seed in range(200))


def test_half_of_the_answers():
    """The limits hold the truth in 95 of 100 pages; 165 or fewer of 200 come once in 10^10."""
    shares = [unmarked_share(*answers(20, 20, 12.0, seed)) for seed in range(200)]
    assert all(shares)
    assert sum(share.low <= 0.5 <= share.high for share in shares if share) > 165

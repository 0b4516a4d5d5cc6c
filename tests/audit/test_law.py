"""The law on a little real text: it holds for the exact tests, and every sabotage of it is caught."""

from fractions import Fraction

import numpy as np
import pytest

from scanner.audit.calibration.law_counts import LawCase, cases, law_counts
from scanner.audit.statistics.judgement import counts, judge, uniformity
from scanner.watermark.laws import Normal
from scanner.watermark.native.format import of_the_paper
from tests.audit.corpus import documents_of
from tests.watermark.pairs import format_for, law_of

THRESHOLDS = (1e-1, 1e-2, 1e-3, 1e-4)
ERROR = 0.01
SEED = b"law"
ALL = cases(of_the_paper(["1/4", "77/256"], [0, 1, 4]), ["ngram", "context"], 1024)


def verdicts(case, tokens, law=None):
    found = law_counts(case, tokens, np.arange(len(tokens.offsets) - 1), SEED, THRESHOLDS, law)
    return judge(counts(found.sums), ERROR), found


def test_cases_leave_out_what_cannot_be_tested():
    assert len(ALL) == len({case.name for case in ALL}) == 3 * 5
    assert ALL[0].name == "greenlist;h=0;gamma=1/4;ngram"
    assert {case.format.name for case in ALL} == {"greenlist", "gumbel"}


@pytest.mark.seconds
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_it_holds(case, human):
    judged, found = verdicts(case, documents_of(human, 150, 256))
    assert {row.verdict for row in judged} <= {"holds", "undecided"}
    assert judged[1].verdict == "holds"
    assert found.sums.tests[0] == 150 * 1024
    assert uniformity(found.uniform)[1] > ERROR / len(ALL)
    assert uniformity(1 - found.uniform)[1] > ERROR / len(ALL)


def test_parts_are_the_whole(human):
    tokens, case = documents_of(human, 40, 100), ALL[1]
    whole = law_counts(case, tokens, np.arange(40), SEED, THRESHOLDS)
    offsets, cut = tokens.offsets, tokens.offsets[25]
    first = law_counts(
        case, tokens._replace(ids=tokens.ids[:cut], offsets=offsets[:26]), np.arange(25), SEED, THRESHOLDS
    )
    rest = tokens._replace(ids=tokens.ids[cut:], offsets=offsets[25:] - cut)
    both = first.plus(law_counts(case, rest, np.arange(25, 40), SEED, THRESHOLDS))
    for a, b in zip(both.sums, whole.sums, strict=True):
        assert a == pytest.approx(b)
    assert len(both.uniform) == 40


@pytest.mark.parametrize("gamma", [Fraction(1, 4), None], ids=str)
def test_repeats_that_are_scored_are_caught(gamma, human):
    judged, _ = verdicts(LawCase(format_for(gamma, 1), "none", 4096), documents_of(human, 200, 256))
    assert judged[2].verdict == judged[3].verdict == "too small"


@pytest.mark.parametrize("gamma", [Fraction(1, 4), None], ids=str)
def test_a_z_test_is_caught(gamma, human):
    judged, _ = verdicts(
        LawCase(format_for(gamma, 4), "ngram", 4096), documents_of(human, 200, 64), Normal(law_of(gamma))
    )
    assert judged[3].verdict == "too small"

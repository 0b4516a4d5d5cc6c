"""Wrong names in a little synthetic marked text: they stay below their rates, and sabotage of the rules is seen."""

import numpy as np
import pytest

from scanner.audit.statistics.judgement import counts, judge
from scanner.errors import Refused
from scanner.watermark.native.format import of_the_paper
from tests.bench import wrong_names
from tests.bench.wrong_names import (
    NameQuestion,
    NamesCase,
    names_cases,
    names_counts,
    take_turns,
    write_marked,
)

GROUPS, TEXTS, SEED, ERROR = 100, 600, b"names", 1e-6
RATES = (0.1, 0.01)
FORMATS = of_the_paper(["1/4"], [4], 3, GROUPS)


def judged(case):
    return judge(counts(names_counts(case, TEXTS, 1, SEED, RATES).sums), ERROR)[0].verdict


def test_cases_are_of_every_kind_and_length():
    found = names_cases(FORMATS, GROUPS, [1, 3], [200, 500])
    assert len(found) == len(set(found)) == 2 * 2 * (2 + 1 + 2)
    assert [case.users_in_words for case in found[:5]] == [
        "nobody's",
        "nobody's",
        "1 user",
        "3 users, one group",
        "3 users",
    ]
    assert {case.messages for case in found} == {GROUPS**2}


@pytest.mark.seconds
@pytest.mark.parametrize(
    "case", names_cases(FORMATS, GROUPS, [1, 3], [200]), ids=lambda c: f"{c.format.name} {c.users_in_words}"
)
def test_it_holds(case):
    """Wrong names stay below their rates; and users with enough text are named, or the audit would show nothing."""
    found = names_counts(case, TEXTS, 1, SEED, RATES)
    assert judge(counts(found.sums), ERROR)[0].verdict != "too small"
    assert found.marked == case.users * TEXTS
    assert found.named >= 0.95 * found.marked if case.users == 1 else found.named < found.marked + 1


@pytest.mark.seconds
@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_without_rule_2_strangers_are_named_for_text_that_fits_their_group(how, monkeypatch):
    findings_of = wrong_names.search
    monkeypatch.setattr(
        wrong_names, "search", lambda *a: (said := findings_of(*a))._replace(log10_p_own=np.full_like(said.log10_p, -9))
    )
    assert judged(NamesCase(how, GROUPS, NameQuestion.GROUP, 200)) == "too small"


@pytest.mark.seconds
@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_a_correction_that_is_left_out_is_seen(how, monkeypatch):
    monkeypatch.setattr(wrong_names, "search", lambda *a, search=wrong_names.search: _uncorrected(search(*a)))
    assert judged(NamesCase(how, GROUPS, NameQuestion.UNMARKED, 200)) == "too small"
    assert judged(NamesCase(how, GROUPS, NameQuestion.GROUP, 200)) == "too small"


def _uncorrected(found):
    """Both p-values without their corrections, as if the key had one message and one user."""
    return found._replace(log10_p_global=found.log10_p, log10_p_own=found.log10_p_own - np.log10(GROUPS))


def test_batches_add_up_and_are_the_same_again():
    case = NamesCase(FORMATS[0], GROUPS, NameQuestion.WRONG, 300, 2)
    first, second = (names_counts(case, 40, number, SEED, RATES) for number in (1, 2))
    both = first.plus(second)
    assert both.sums.clusters[0] == 80
    assert both.marked == 160
    assert both.named == first.named + second.named
    again = names_counts(case, 40, 1, SEED, RATES)
    for a, b in zip(first.sums, again.sums, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (again.marked, again.named) == (first.marked, first.named)


@pytest.mark.parametrize("how", of_the_paper(["1/4"], [4], 3, None) + of_the_paper(["1/4"], [4], 3, 20))
def test_a_format_without_these_groups_is_refused(how):
    with pytest.raises(Refused, match="has no 100 groups; give one that has"):
        names_counts(NamesCase(how, GROUPS, NameQuestion.GROUP, 200), 1, 1, SEED, RATES)


@pytest.mark.parametrize("how", FORMATS, ids=lambda how: how.name)
def test_a_text_holds_what_its_mark_favours(how):
    """Each of 180 tokens is the one of eight with the largest score, so the sum is far above its mean."""
    mark, rng = how.open(bytes(range(32))), np.random.default_rng(5)
    [text] = write_marked(mark, np.array([417]), 184, rng)
    [other] = write_marked(mark, np.array([417]), 184, rng, lambda _, choices, best: choices[:, 0])
    p = {}
    for name, ids in (("marked", text), ("other", other)):
        tokens = wrong_names.batch_of([ids])
        positions = mark.rule.positions(tokens, "ngram")
        p[name] = mark.law.log10_p(mark.score(tokens, positions, 417), positions.scored)[0]
    assert p["marked"] < -30
    assert p["other"] > -6


def test_pieces_stand_by_turns():
    texts = [np.full(length, i, np.uint32) for i, length in enumerate((250, 100, 120))]
    runs = [(0, 100), (1, 100), (2, 100), (0, 100), (2, 20), (0, 50)]
    np.testing.assert_array_equal(take_turns(texts), np.concatenate([np.full(n, i) for i, n in runs]))

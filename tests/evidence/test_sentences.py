"""Sentences say no more than a key's entropy and a format's law let anybody say."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from scanner.evidence.explanation import Explanation
from scanner.evidence.sentences import _how_sure, _key, _others, _part, amount
from scanner.evidence.weighing import OwnSaid, PartSaid
from tests.support.rows import verdict


@pytest.mark.parametrize(
    ("log10_p", "basis", "said"),
    [
        (-2.0, "key", "p = 0.01 "),
        (-200.0, "key", "p is below 3e-39 "),
        (-200.0, None, "p is below 3e-39 "),
        (-30.0, "key-64-bits", "p is below 5e-20 "),
        (-30.0, "assumed", "p is not known "),
        (float("nan"), "key", "p is not known "),
    ],
)
def test_a_part_says_what_is_known(log10_p, basis, said):
    assert _part(PartSaid("own", 40, 9, log10_p, log10_p), basis) == f"own words: {said}(9 tokens scored)"


def test_amounts_are_written_out_where_they_are_not_small():
    assert [amount(number) for number in (7e-7, 0.5, 99.4, 99.7, 1000.2)] == ["7e-07", "0.5", "99", "100", "1,000"]


def test_of_a_message_that_is_not_shown_nothing_is_counted():
    for message, said in ((None, False), (3, True)):
        row = verdict(0, message=message)
        around = SimpleNamespace(
            row=row, of_user=None, of_message=(1, 1, 1), of_text=(2, 1, 1), of_account=None, alike=None, copied=None
        )
        assert ("for this message" in _others(around)) is said


def test_how_sure_a_name_is_goes_by_what_the_user_shares_with_nobody():
    """p is corrected for 100 messages of a group and four tests of keys, and no less than the key's entropy allows."""
    for log10_p, said in ((-12.0, "one text in 2.5·10^9 would"), (-60.0, "one text in more than 3.4·10^38 would")):
        scan = {"misnaming_rate": None, "false_positive_rate": 1e-6}
        explained = Explanation(
            **dict.fromkeys(field.name for field in dataclasses.fields(Explanation))
            | {
                "case": SimpleNamespace(
                    row=verdict(0, naming="named", keys_tested=4, basis="key", unit=None), scan=scan
                ),
                "weighed": SimpleNamespace(alone=OwnSaid(55, 100, log10_p)),
            }
        )
        assert explained.log10_p_own == pytest.approx(log10_p + math.log10(400))
        sentence = _how_sure(explained)
        assert said in sentence
        assert "the 100 users of a group share a part of the mark, and 55 scored tokens tell them apart" in sentence
        assert sentence.endswith("this scan asked for one in 1.0·10^6")


def test_nothing_is_said_of_a_name_where_nobody_is_named_or_a_part_names():
    for row in (verdict(0, naming="undecided"), verdict(0, naming="named", unit="span")):
        explained = SimpleNamespace(row=row, weighed=SimpleNamespace(alone=OwnSaid(55, 100, -9.0)))
        assert Explanation.alone.fget(explained) is None


def test_a_key_that_was_chosen_among_several_says_by_what_to_multiply():
    for candidates, said in ((1, ""), (7, "; it was chosen among 7 keys that were tried, so multiply p by 7")):
        admission = SimpleNamespace(holds_down_to=1e-6, candidates=candidates, filter=None)
        key = SimpleNamespace(key_id="k", admission=admission, admitted_by="audit")
        assert _key(SimpleNamespace(key=key)) == f"k: an audit showed that its p-values hold down to 1e-06{said}"
        admission.filter = object()
        filtered = "hold down to 1e-06, where a filter leaves out common n-grams"
        assert _key(SimpleNamespace(key=key)) == f"k: an audit showed that its p-values {filtered}{said}"

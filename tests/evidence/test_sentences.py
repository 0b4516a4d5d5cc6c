"""Sentences say no more than a key's entropy and a format's law let anybody say."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from scanner.evidence.explanation import Explanation, PartFinding, UserEvidenceFinding
from scanner.evidence.sentences import _chance, _how_sure, _key, _others, _part, _proof
from scanner.night_report import line_of
from tests.support.rows import verdict


@pytest.mark.parametrize(
    ("log10_p", "basis", "keys", "said"),
    [
        (-2.0, "key", 7, "1 in 100 texts would do as much by chance "),
        (-200.0, "key", 7, "less than 1 in a billion texts would do as much by chance "),
        (-200.0, None, 7, "less than 1 in a billion texts would do as much by chance "),
        (-30.0, "key-64-bits", 1, "1 in 1,000 texts would do as much by chance "),
        (-30.0, "key-64-bits", 7, "1 in 140 texts would do as much by chance "),
        (-30.0, "assumed", 1, "p is not known "),
        (float("nan"), "key", 1, "p is not known "),
    ],
)
def test_a_part_says_what_is_known(log10_p, basis, keys, said):
    row = verdict(0, basis=basis, correction=keys)
    assert _part(PartFinding("own", 40, 9, log10_p, log10_p), row) == f"own words: {said}(9 tokens scored)"


def test_of_a_message_that_is_not_shown_nothing_is_counted():
    for message, said in ((None, False), (3, True)):
        row = verdict(0, message=message)
        around = SimpleNamespace(
            row=row,
            of_user=None,
            of_message=(1, 1, 1),
            of_text=(2, 1, 1),
            of_account=None,
            near_duplicates=None,
            copied=None,
        )
        assert ("for this message" in _others(around)) is said


def test_how_sure_a_name_is_goes_by_what_the_user_shares_with_nobody():
    """p is corrected for 100 messages of a group and four tests of keys, and no less than the key's entropy allows."""
    for log10_p, said in ((-10.0, "1 in 25,000,000 texts would"), (-60.0, "less than 1 in a billion texts would")):
        scan = {"misnaming_rate": None, "false_positive_rate": 1e-6}
        explained = Explanation(
            **dict.fromkeys(field.name for field in dataclasses.fields(Explanation))
            | {
                "case": SimpleNamespace(
                    row=verdict(0, naming="named", correction=4.0, basis="key", look=None), scan=scan
                ),
                "text_evidence": SimpleNamespace(user_evidence=UserEvidenceFinding(55, 100, log10_p)),
            }
        )
        assert explained.log10_p_own == pytest.approx(log10_p + math.log10(400))
        sentence = _how_sure(explained)
        assert said in sentence
        assert "100 users share a part of this mark, and 55 scored tokens tell them apart" in sentence
        assert "This scan asks for 1 in 1,000,000" in sentence


def test_nothing_is_said_of_a_name_where_nobody_is_named_or_a_part_names():
    for row in (verdict(0, naming="undecided"), verdict(0, naming="named", look="span")):
        explained = SimpleNamespace(
            row=row, text_evidence=SimpleNamespace(user_evidence=UserEvidenceFinding(55, 100, -9.0))
        )
        assert Explanation.user_evidence.fget(explained) is None


def test_a_key_that_was_chosen_among_several_says_by_what_to_multiply():
    for candidates, said in ((1, ""), (7, ". It was chosen from 7 keys that were tried, so multiply p by 7")):
        admission = SimpleNamespace(holds_down_to=1e-6, candidates=candidates, filter=None)
        key = SimpleNamespace(key_id="k", admission=admission, admitted_by="audit")
        assert _key(SimpleNamespace(key=key)).endswith(f"its p-values hold down to 1e-06{said}")
        admission.filter = object()
        filtered = "hold down to 1e-06, with a filter that leaves out common n-grams"
        assert _key(SimpleNamespace(key=key)).endswith(f"its p-values {filtered}{said}")


@pytest.mark.parametrize(
    ("basis", "said"),
    [
        ("key", "less than 1 in a billion unmarked texts would score as high for any of this key's 10"),
        ("key-64-bits", "1 in 1,000 unmarked texts would score as high for any of this key's 10"),
        ("assumed", "anyone can make this mark. Under decoy keys, 1 in 1,000 unmarked texts would score as high"),
    ],
)
def test_a_hash_alone_never_speaks_without_its_rank(basis, said):
    row = verdict(0, "/in/a", "alice", basis=basis, look=None, log10_p_global=-12.0, p_rank=0.001)
    sentence = _chance(SimpleNamespace(row=row))
    assert sentence.startswith(said)
    assert ("By the format's hash" in sentence) is (basis != "key")
    assert ("1 in 1,000" in line_of(row | {"doc_id": "a", "created_at": None})) is (basis != "key")


def test_a_rank_is_corrected_for_keys():
    """A text beats all decoys of some key once in 1,000 for each of seven keys: that is what is said for seven."""
    row = verdict(
        0, "/in/a", "alice", basis="key-64-bits", look=None, log10_p_global=-12.0, p_rank=0.001, correction=7.0
    )
    assert _chance(SimpleNamespace(row=row)).startswith("1 in 140 unmarked texts would score as high")


def test_why_a_flag_was_not_computed_again_is_what_is_so():
    for tokens, said in ((10, "too many flags"), (70_000, "more than 65,536 tokens")):
        assert said in _proof(verdict(0, proof="not drawn", tokens=tokens))
    assert "too many" not in _proof(verdict(0, proof="not drawn", tokens=70_000))

"""Sentences say no more than a key's entropy and a format's law let anybody say."""

from types import SimpleNamespace

import pytest

from scanner.evidence.sentences import _others, _part, amount
from scanner.evidence.weighing import PartSaid
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
        around = SimpleNamespace(row=row, of_message=(1, 1), of_text=(2, 1), of_account=None)
        assert ("for this message" in _others(around)) is said

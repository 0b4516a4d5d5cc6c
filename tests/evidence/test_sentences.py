"""Sentences say no more than a key's entropy and a format's law let anybody say."""

import pytest

from scanner.evidence.sentences import _part, amount
from scanner.evidence.weighing import PartSaid


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

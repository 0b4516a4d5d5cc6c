"""The error about a missing table names the command that makes the table."""

import pytest

from scanner import results
from scanner.errors import Refused


@pytest.mark.parametrize(
    ("question", "advice"),
    [
        (results.verdicts, "run `brickscan scan` first"),
        (results.quarantine, "run `brickscan scan` first"),
        (results.audits, "run `brickscan calibrate` or `brickscan scan` first"),
    ],
)
def test_a_missing_table_is_told_with_what_makes_it(tmp_path, question, advice):
    with pytest.raises(Refused, match=advice):
        question(str(tmp_path))

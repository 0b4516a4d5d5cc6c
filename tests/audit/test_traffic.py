"""What verdicts say about themselves, counted over distinct texts."""

import polars as pl
import pytest

from scanner.audit.in_every_scan.traffic import measure
from schemas.words import Naming
from tests.support.rows import verdict


def rows(*namings: str) -> pl.LazyFrame:
    """Copies of a flagged text, by whom they name."""
    copies = enumerate(namings)
    return pl.LazyFrame([verdict(i, naming=how, flagged=how != "none", log10_p_global=-9.0) for i, how in copies])


@pytest.mark.parametrize("naming", Naming)
def test_a_flag_is_known_to_be_false_where_nobody_held_the_message(naming):
    held_by_nobody = naming in ("reserved", "unallocated", "held_later")
    assert measure(rows(naming), -6.0).unheld == held_by_nobody
    assert measure(rows(naming, "named"), -6.0).unheld == 0  # a copy that existed later
    assert measure(rows(naming, "unallocated"), -6.0).unheld == held_by_nobody


def test_what_has_no_p_value_was_not_tested():
    scored = [verdict(i, text_sha256=bytes([i] * 32), log10_p_global=p) for i, p in enumerate([-1.0, None, None, -2.0])]
    assert measure(pl.LazyFrame(scored), -6.0).texts == 2

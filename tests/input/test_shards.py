from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scanner.input import shards
from scanner.input.columns import Columns
from scanner.input.files import InputFile
from scanner.input.footers import RowGroup
from scanner.input.shards import MAX_ROWS, MAX_TEXT_BYTES, Range, cut, shard_id, verdict_settings
from schemas.registry import MasterKey, TokenizerFile

GROUPS = st.lists(
    st.builds(
        RowGroup,
        st.one_of(st.integers(0, 3), st.integers(0, 3 * MAX_ROWS)),
        st.one_of(st.integers(0, 100), st.integers(0, 5 * MAX_TEXT_BYTES)),
    ),
    max_size=12,
)


@given(GROUPS)
@example([RowGroup(4, 33 * 2**20)])
@example([RowGroup(0, 5 * MAX_TEXT_BYTES), RowGroup(1, 5 * MAX_TEXT_BYTES)])
def test_every_row_once_and_in_order(groups):
    ranges = cut(groups)
    total = sum(group.rows for group in groups)
    assert [row.start for row in ranges] == [0, *(row.stop for row in ranges[:-1])][: len(ranges)]
    assert (ranges[-1].stop if ranges else 0) == total
    assert all(row.stop > row.start for row in ranges)


@given(GROUPS)
def test_limits_hold(groups):
    for rows in cut(groups):
        assert rows.stop - rows.start <= MAX_ROWS
        assert rows.text_bytes <= MAX_TEXT_BYTES or rows.stop - rows.start == 1


@given(GROUPS)
def test_row_groups_within_the_limits_are_whole(groups):
    bounds = {edge for rows in cut(groups) for edge in (rows.start, rows.stop)}
    first = 0
    for group in groups:
        if group.rows <= MAX_ROWS and group.text_bytes <= MAX_TEXT_BYTES:
            assert not any(first < edge < first + group.rows for edge in bounds)
        first += group.rows


@given(GROUPS)
def test_packing_is_greedy(groups):
    """A range of whole row groups has no room for the first group of the next range."""
    small = [group for group in groups if 0 < group.rows <= MAX_ROWS and group.text_bytes <= MAX_TEXT_BYTES]
    first_of = {}
    row = 0
    for group in small:
        first_of[row] = group
        row += group.rows
    ranges = cut(small)
    for before, after in pairwise(ranges):
        group = first_of[after.start]
        rows, text_bytes = before.stop - before.start + group.rows, before.text_bytes + group.text_bytes
        assert rows > MAX_ROWS or text_bytes > MAX_TEXT_BYTES


def test_a_large_row_group_is_cut_evenly():
    assert cut([RowGroup(10, 5), RowGroup(50_000, 100), RowGroup(7, 5)]) == [
        Range(0, 10, 5),
        Range(10, 16_676, 33),
        Range(16_676, 33_343, 33),
        Range(33_343, 50_010, 33),
        Range(50_010, 50_017, 5),
    ]


def test_nothing_gives_nothing():
    assert cut([]) == cut([RowGroup(0, 0)]) == []


KEY = MasterKey(
    key_id="k",
    format="greenlist",
    parameters={"window": 4, "gamma": "1/4"},
    messages=100,
    tokenizer=TokenizerFile(file="t.json", sha256="a" * 64),
    secret="env:SECRET",
    commitment="b" * 64,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
)
FILE = InputFile(path="/in/a.parquet", location="/in", inner="/in/a.parquet", size=10, modified=5)
COLUMNS = Columns("text", "id", None, None)
ROWS = Range(0, 10, 99)


def identity(file=FILE, rows=ROWS, keys=(KEY,), keys_tested=1, dedup="ngram", min_scored=16, columns=COLUMNS):
    return shard_id(file, rows, verdict_settings(keys, keys_tested, dedup, min_scored, columns))


def with_key(**changes):
    return {"keys": (KEY.model_copy(update=changes),)}


def test_a_key_that_comes_later_changes_nothing_for_keys_with_weights():
    weighted = with_key(one_of=4)
    assert identity(**weighted, keys_tested=1) == identity(**weighted, keys_tested=7)
    assert identity(**weighted) != identity(**with_key(one_of=12))


@pytest.mark.parametrize(
    "change",
    [
        {"file": replace(FILE, path="/in/b.parquet")},
        {"file": replace(FILE, size=11)},
        {"file": replace(FILE, modified=6)},
        {"rows": Range(0, 9, 99)},
        {"rows": Range(1, 10, 99)},
        {"rows": None},
        {"keys": (KEY, KEY.model_copy(update={"key_id": "l"}))},
        with_key(key_id="l"),
        with_key(format="gumbel", parameters={"window": 4}),
        with_key(parameters={"window": 3, "gamma": "1/4"}),
        with_key(parameters={"window": 4, "gamma": "1/2"}),
        with_key(messages=101),
        with_key(one_of=4),
        with_key(commitment="c" * 64),
        with_key(tokenizer=TokenizerFile(file="t.json", sha256="c" * 64)),
        {"keys_tested": 2},
        {"dedup": "none"},
        {"min_scored": 17},
        {"columns": COLUMNS._replace(text="body")},
        {"columns": COLUMNS._replace(time="at")},
        {"columns": COLUMNS._replace(time_zone="Europe/Berlin")},
    ],
    ids=str,
)
def test_the_id_follows_what_decides_the_verdicts(change):
    assert identity(**change) != identity()


@pytest.mark.parametrize(
    "change",
    [
        {"file": replace(FILE, location="/in/a.parquet")},
        {"rows": Range(0, 10, 98)},
        with_key(retired_at=datetime(2026, 2, 1, tzinfo=UTC)),
        with_key(secret="file:elsewhere"),
        with_key(tokenizer=TokenizerFile(file="u.json", sha256="a" * 64)),
    ],
    ids=str,
)
def test_the_id_follows_nothing_else(change):
    assert identity(**change) == identity()


def test_the_id_follows_the_version_of_results(monkeypatch):
    before = identity()
    monkeypatch.setattr(shards, "RESULTS_VERSION", shards.RESULTS_VERSION + 1)
    assert identity() != before


def test_the_id_is_the_same_on_every_machine():
    assert identity() == "d713de06535788c091afc8aaf7348db3fc4a689fe9284701430aa5327a31153d"

"""Sorted files: a search finds the same rows as a plain look through all rows."""

import tempfile
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.registry import sorted_files
from scanner.registry.sorted_files import BELOW_ALL_VALUES, LARGEST_VALUE, PartsFolder, SortedRows, merge_sequences

SCHEMA = pa.schema([("value", pa.int64()), ("name", pa.string())])
VALUES = st.lists(st.integers(0, 30), max_size=40).map(sorted)


def table(values):
    return pa.table([values, [f"row {n}" for n in range(len(values))]], schema=SCHEMA)


def sequence(folder, values, size=3):
    """Write values in parts of `size` rows; equal values stay in one part."""
    written, begin = [], 0
    while begin < len(values):
        end = begin + size
        while end < len(values) and values[end] == values[end - 1]:
            end += 1
        written.append(folder.write(table(values).slice(begin, end - begin)))
        begin = end
    return SortedRows(written, folder.open)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as place:
        yield PartsFolder(f"{place}/parts")


@pytest.mark.seconds
@given(values=VALUES, wanted=st.lists(st.integers(-1, 31), max_size=12))
def test_what_is_found_is_what_a_look_through_all_finds(folder, values, wanted):
    for rows in (sequence(folder, values), SortedRows.in_memory(table(values))):
        which, tables = rows.find(np.array(wanted, np.int64))
        found = [row["name"] for part in tables for row in part.to_pylist()]
        pairs = [(w, f"row {n}") for w, value in enumerate(wanted) for n, v in enumerate(values) if v == value]
        assert sorted(zip(which.tolist(), found, strict=True)) == sorted(pairs)
        assert rows.up_to(np.array(wanted, np.int64)).tolist() == [sum(v <= value for v in values) for value in wanted]
        assert rows.rows == len(values)
        assert rows.values().tolist() == values
        for value in wanted:
            hit = rows.find_value(value)
            assert (hit is not None) == (value in values)
            assert hit is None or hit[0]["value"][hit[1]].as_py() == value


@given(values=VALUES, low=st.integers(-1, 31), high=st.integers(-1, 31))
def test_a_range_is_what_lies_in_it(folder, values, low, high):
    found = [row["value"] for part in sequence(folder, values).between(low, high) for row in part.to_pylist()]
    assert found == [value for value in values if low < value <= high]


@pytest.mark.seconds
@given(sequences=st.lists(VALUES, min_size=1, max_size=4))
def test_sequences_are_merged_in_order_into_parts_that_are_not_too_long(folder, sequences):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_files, "PART_ROWS", 8)
        tables = list(merge_sequences([sequence(folder, values) for values in sequences], SCHEMA))
    assert [value for part in tables for value in part["value"].to_pylist()] == sorted(chain(*sequences))
    assert all(0 < len(part) <= 8 for part in tables)
    names = sorted(name for part in tables for name in part["name"].to_pylist())
    assert names == sorted(f"row {n}" for values in sequences for n in range(len(values)))


def test_all_values_are_between_the_ends(folder):
    values = [0, 2**63 - 2]
    assert sum(len(part) for part in sequence(folder, values, 1).between(BELOW_ALL_VALUES, LARGEST_VALUE)) == 2


def test_a_part_that_is_read_from_a_disk_takes_no_memory(folder):
    part = folder.write(table(list(range(100_000))))
    before = pa.total_allocated_bytes()
    rows = PartsFolder(folder.location).open(part).rows
    assert len(rows) == 100_000
    assert pa.total_allocated_bytes() - before < 10_000


def test_a_part_holds_no_byte_of_its_neighbours(folder):
    """Arrow writes a slice with some bytes of the next rows, which could be a name that is erased later."""
    rows = table(list(range(40)))
    for begin in range(0, 40, 4):
        part = folder.write(rows.slice(begin, 4))
        with open(f"{folder.location}/{part.file}", "rb") as file:
            written = file.read()
        found = [n for n in range(10, 40) if f"row {n}".encode() in written]
        assert found == list(range(max(begin, 10), begin + 4))

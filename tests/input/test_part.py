"""Parts of the input: disjoint, together all files, of about equal bytes, and the same whatever else is listed."""

import random
from collections import Counter

import pytest

from scanner.input.files import InputFile
from scanner.input.shards import DriverShare


def files(count: int) -> list[InputFile]:
    sizes = random.Random(count)
    paths = [f"/in/2026-11-20/part-{i:05}.parquet" for i in range(count)]
    return [InputFile(path, path, path, sizes.randint(10**6, 10**8), 1) for path in paths]


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_each_file_is_in_one_part_and_parts_hold_about_equal_bytes(of):
    listed, held = files(3_000), Counter[DriverShare]()
    for file in listed:
        (part,) = [DriverShare(i + 1, of) for i in range(of) if DriverShare(i + 1, of).holds(file)]
        held[part] += file.size
    assert len(held) == of
    assert max(held.values()) < 1.15 * sum(held.values()) / of  # four standard deviations where there are seven


def test_the_part_of_a_file_never_changes():
    """Drivers of two versions may share a night; the numbers are by `sha256sum`, its first 16 digits, modulo 3."""
    found = [
        part.number
        for file in files(12)
        for part in (DriverShare(1, 3), DriverShare(2, 3), DriverShare(3, 3))
        if part.holds(file)
    ]
    assert found == [2, 1, 2, 2, 3, 3, 1, 1, 3, 1, 3, 2]


@pytest.mark.parametrize("text", ["1/1", "2/3", "16/16"])
def test_a_part_is_written_as_it_is_read(text):
    assert str(DriverShare.read(text)) == text


@pytest.mark.parametrize(
    "text", ["", "1", "0/3", "4/3", "1/0", "-1/3", "1/3/5", "1 / 3", "a/b", "1/1000000000000", "١/٣"]
)
def test_a_text_that_names_no_part(text):
    with pytest.raises(ValueError, match="is not a part"):
        DriverShare.read(text)

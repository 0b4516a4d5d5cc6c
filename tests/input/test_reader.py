"""A range of a row group holds the same rows, whether the reader goes on from the last range or reads it alone."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.errors import FileFault
from scanner.input import documents
from scanner.input.columns import Columns
from scanner.input.documents import Reader, Unreadable, read
from scanner.input.files import InputFile, list_files
from tests.support.columns import COLUMNS

ROWS, IN_GROUP = 3000, 2000  # a large row group and a smaller one
MARK = "the text whose page is corrupt"


def written(path: Path, *, corrupt: bool) -> InputFile:
    sizes = np.random.default_rng(0).integers(0, 400, ROWS)
    texts = [f"{row} " + "x" * int(size) for row, size in enumerate(sizes)]
    texts[1500] = MARK
    table = pa.table({"text": texts, "id": [f"id {row}" for row in range(ROWS)]})
    options = {"compression": "none", "use_dictionary": False, "data_page_size": 4096, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=IN_GROUP, **options)
    if corrupt:
        path.write_bytes(path.read_bytes().replace(MARK.encode(), MARK.upper().encode()))
    return list_files([str(path)])[0]


def parts(reader: Reader | None, file: InputFile, columns: Columns, start: int, stop: int) -> list[object]:
    """Parts that reading gave, and the fault with which it ended."""
    found: list[object] = []
    given = (reader.read if reader else read)(file, columns, start, stop)
    try:
        found.extend(part if isinstance(part, Unreadable) else part.to_pydict() for part in given)
    except FileFault as fault:
        found.append((fault.reason, fault.detail))
    return found


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """Number of rows in every batch that a Parquet reader gives; the batches are small."""
    monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 10_000)
    rows: list[int] = []

    class Spy(pq.ParquetFile):
        def iter_batches(self, *arguments, **options):
            for batch in super().iter_batches(*arguments, **options):
                rows.append(len(batch))
                yield batch

    monkeypatch.setattr(pq, "ParquetFile", Spy)
    return rows


def in_order() -> list[tuple[int, int]]:
    return [(begin, begin + 100) for begin in range(0, ROWS, 100)]


def in_any_order() -> list[tuple[int, int]]:
    """Ranges with gaps, repeated, backwards, across row groups, and beyond the last row."""
    random = np.random.default_rng(1)
    begins, lengths = random.integers(0, ROWS, 150), random.choice([1, 30, 100, 600], 150)
    ranges = list(zip(begins.tolist(), (begins + lengths).tolist(), strict=True))
    return [*ranges[:50], *sorted(ranges[50:])]


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("ranges", [in_order(), in_any_order()], ids=["in order", "in any order"])
@pytest.mark.parametrize("corrupt", [False, True], ids=["sound", "corrupt"])
@pytest.mark.usefixtures("decoded")
def test_what_is_read_does_not_depend_on_what_was_read_before(tmp_path, ranges, corrupt):
    file, other = written(tmp_path / "a.parquet", corrupt=corrupt), written(tmp_path / "b.parquet", corrupt=False)
    reader, met = Reader(), 0
    for number, (start, stop) in enumerate(ranges):
        columns = COLUMNS._replace(id="id") if number % 40 == 39 else COLUMNS
        asked = other if number % 25 == 24 else file
        found = parts(reader, asked, columns, start, stop)
        assert found == parts(None, asked, columns, start, stop)
        met += any(isinstance(part, Unreadable) for part in found)
    reader.close()
    assert bool(met) == corrupt


@pytest.mark.parametrize("corrupt", [False, True], ids=["sound", "corrupt"])
def test_a_large_row_group_is_decoded_once(tmp_path, decoded, corrupt):
    file, reader = written(tmp_path / "a.parquet", corrupt=corrupt), Reader()
    for start, stop in in_order():
        parts(reader, file, COLUMNS, start, stop)
    assert sum(decoded) <= ROWS
    once = sum(decoded)
    for start, stop in in_order():
        parts(None, file, COLUMNS, start, stop)
    assert sum(decoded) - once > 5 * ROWS, "alone, each range decodes what is before it"


def test_several_workers_that_share_a_row_group_decode_it_once_each(tmp_path, decoded):
    file, readers = written(tmp_path / "a.parquet", corrupt=False), [Reader(), Reader(), Reader()]
    for number, (start, stop) in enumerate(in_order()):
        parts(readers[number % 3], file, COLUMNS, start, stop)
    assert sum(decoded) <= 3 * ROWS


def test_a_file_that_changed_is_not_read_on(tmp_path):
    path = tmp_path / "a.parquet"
    file, reader = written(path, corrupt=False), Reader()
    parts(reader, file, COLUMNS, 0, 100)
    pq.write_table(pa.table({"text": ["another"]}), path)
    (fault,) = parts(reader, file, COLUMNS, 100, 200)
    assert fault[0] == "changed"


@pytest.mark.usefixtures("decoded")
def test_one_file_is_open_at_a_time_and_none_when_it_was_read_or_left(tmp_path, monkeypatch):
    opened = []
    real = InputFile.open
    monkeypatch.setattr(InputFile, "open", lambda file: opened.append(real(file)) or opened[-1])
    files, reader = [written(tmp_path / f"{name}.parquet", corrupt=False) for name in "ab"], Reader()
    for file in files:
        parts(reader, file, COLUMNS, 0, 100)
        assert [one.closed for one in opened[-1:]] == [False]
    assert [one.closed for one in opened] == [True, False]
    parts(reader, files[1], COLUMNS, 100, ROWS)
    assert all(one.closed for one in opened)
    next(reader.read(files[0], COLUMNS, 0, 500)).validate()
    assert all(one.closed for one in opened), "the iterator was given up"
    parts(reader, files[0], COLUMNS, 0, 100)
    reader.close()
    assert all(one.closed for one in opened)

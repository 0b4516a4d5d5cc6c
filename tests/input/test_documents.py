import datetime
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scanner.errors import FileFault
from scanner.input import documents
from scanner.input.columns import MAX_ID_BYTES, Columns
from scanner.input.documents import Identity, Unreadable, identify, identities, read
from scanner.input.files import InputFile, list_files
from schemas.tables import DOCUMENTS
from tests.support.inspection import inspect

COLUMNS = Columns("text", None, None, None)


def written(path: Path, table: pa.Table, **options) -> InputFile:
    pq.write_table(table, path, **options)
    return list_files([str(path)])[0]


def rows(file: InputFile, columns: Columns = COLUMNS, start: int = 0, stop: int = 1000) -> list[dict]:
    found = []
    stop = min(stop, pq.read_metadata(file.path).num_rows)
    for batch in read(file, columns, start, stop):
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema == DOCUMENTS
        found += batch.to_pylist()
    return found


def fault_of(call) -> FileFault:
    with pytest.raises(FileFault) as fault:
        call()
    return fault.value


TEXT = pa.array(["one", None, "three"])


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_types_of_text(tmp_path, kind):
    file = written(tmp_path / "a.parquet", pa.table({"text": TEXT.cast(kind)}))
    assert [row["text"] for row in rows(file)] == [b"one", None, b"three"]
    assert sum(group.rows for group in inspect(file, COLUMNS)) == 3


def test_a_column_of_nulls_is_a_column_of_text(tmp_path):
    file = written(tmp_path / "a.parquet", pa.table({"text": pa.nulls(3)}))
    inspect(file, COLUMNS)
    assert [row["text"] for row in rows(file)] == [None] * 3


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (pa.array(["a", None, "a"]), ["a", None, "a"]),
        (pa.array([b"a", b"\xff\xed\xa0\x80", b""]), ["a", "\\xff\\xed\\xa0\\x80", ""]),
        (pa.array([1, 2**63, None], pa.uint64()), ["1", str(2**63), None]),
        (pa.array(["u", "v", None]).dictionary_encode(), ["u", "v", None]),
        (pa.array([bytes(16), b"0" * 16, None], pa.uuid()), ["00" * 16, "30" * 16, None]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (
            pa.array([0, None, 0]).view(pa.timestamp("s", "No/Where")),
            ["1970-01-01 00:00:00.000Z", None, "1970-01-01 00:00:00.000Z"],
        ),
        (pa.nulls(3), [None, None, None]),
    ],
    ids=lambda values: str(getattr(values, "type", "")),
)
def test_types_of_ids(tmp_path, values, ids):
    file = written(tmp_path / "a.parquet", pa.table({"text": TEXT, "n": values}))
    columns = Columns("text", "n", "n", None)
    inspect(file, columns)
    assert [row["doc_id"] for row in rows(file, columns)] == ids
    assert [row["account_id"] for row in rows(file, columns)] == ids


UTC = datetime.UTC
DAY = datetime.datetime(2026, 8, 31, tzinfo=UTC)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime.datetime.min.replace(tzinfo=UTC), datetime.datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "times"),
    [
        (pa.array([DAY, None, DAY], pa.timestamp("ns", "UTC")), [DAY, None, DAY]),
        (pa.array([DAY, None, DAY], pa.timestamp("us", "America/New_York")), [DAY, None, DAY]),
        (pa.array([DAY.replace(tzinfo=None)] * 3, pa.timestamp("ms")), [DAY] * 3),
        (pa.array([DAY.date(), None, None], pa.date32()), [DAY, None, None]),
        (pa.array([DAY.date(), None, None], pa.date64()), [DAY, None, None]),
        (pa.array([2**62, -(2**62), None], pa.timestamp("ms")), [LAST.replace(microsecond=999000), FIRST, None]),
        (pa.array([2**62, -(2**62), None], pa.timestamp("us")), [LAST, FIRST, None]),
        (pa.array([2**31 - 1, -(2**31), 0], pa.int32()).view(pa.date32()), [LAST.replace(microsecond=0), FIRST, EPOCH]),
        (pa.array([0, None, 0]).view(pa.timestamp("s", "No/Where")), [EPOCH, None, EPOCH]),
        (pa.nulls(3), [None, None, None]),
    ],
    ids=lambda values: str(getattr(values, "type", "")),
)
def test_types_of_time(tmp_path, values, times):
    file = written(tmp_path / "a.parquet", pa.table({"text": TEXT, "t": values}))
    columns = Columns("text", None, None, "t")
    inspect(file, columns)
    assert [row["created_at"] for row in rows(file, columns)] == times


@pytest.mark.parametrize(
    ("table", "columns", "reason", "detail"),
    [
        ({"body": TEXT}, COLUMNS, "missing_column", r"column 'text' \(text\) is missing; there are: body"),
        ({"text": TEXT}, Columns("text", "id", None, None), "missing_column", r"column 'id' \(id\) is missing"),
        ({"text": pa.array([1, 2, 3])}, COLUMNS, "wrong_type", "is int64; allowed: string or binary"),
        ({"text": pa.array([["a"], [], None])}, COLUMNS, "wrong_type", "allowed: string or binary"),
        ({"text": pa.array([{"text": "a"}] * 3)}, COLUMNS, "wrong_type", "allowed: string or binary"),
    ],
)
def test_columns_that_are_not_there_or_of_another_type(tmp_path, table, columns, reason, detail):
    file = written(tmp_path / "a.parquet", pa.table(table))
    fault = fault_of(lambda: inspect(file, columns))
    assert fault.reason == reason
    assert fault.lasting
    assert re.search(detail, fault.detail)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1], [], None]),
        pa.array([{"a": 1}, None, {"a": 2}]),
        pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
        pa.array([True, False, None]),
    ],
    ids=lambda values: str(values.type),
)
def test_what_has_no_plain_form_is_null_and_costs_no_document(tmp_path, values):
    file = written(tmp_path / "a.parquet", pa.table({"text": TEXT, "odd": values, "id": ["a", "b", "c"]}))
    for columns, left in (
        (Columns("text", "id", "odd", None), "account_id"),
        (Columns("text", "id", None, "odd"), "created_at"),
    ):
        inspect(file, columns)
        found = rows(file, columns)
        if values.type == pa.bool_() and left == "account_id":  # a boolean has a text form
            assert [row["account_id"] for row in found] == ["true", "false", None]
            assert not any(row["unread"] for row in found)
            continue
        assert [(row["doc_id"], row[left], row["unread"]) for row in found] == [(of, None, True) for of in "abc"]
        assert [row["text"] for row in found] == TEXT.cast(pa.binary()).to_pylist()


def test_ids_that_cannot_be_written_are_null_alone(tmp_path):
    """A value without a text form is null alone; an optional column that stands twice is null as a whole."""
    days = pa.array([0, 2**31 - 1, None], pa.int32()).view(pa.date32())
    twice = pa.Table.from_arrays([TEXT, days, TEXT, TEXT], names=["text", "day", "id", "id"])
    file = written(tmp_path / "a.parquet", twice)
    inspect(file, Columns("text", "id", "day", None))
    found = rows(file, Columns("text", None, "day", None))
    assert found[0]["account_id"] == "1970-01-01"
    assert found[2]["account_id"] is None
    assert [row["doc_id"] for row in rows(file, Columns("text", "id", "day", None))] == [None] * 3


def test_an_id_that_is_too_long_is_null(tmp_path):
    ids = pa.array(["x" * MAX_ID_BYTES, "é" * (MAX_ID_BYTES // 2) + "x", None])
    file = written(tmp_path / "a.parquet", pa.table({"text": TEXT, "id": ids.dictionary_encode(), "other": ids}))
    columns = Columns("text", "id", "other", None)
    inspect(file, columns)
    found = rows(file, columns)
    assert [row["doc_id"] for row in found] == [row["account_id"] for row in found] == [ids[0].as_py(), None, None]
    assert [row["unread"] for row in found] == [False, True, False]


def test_a_column_that_stands_twice(tmp_path):
    file = written(tmp_path / "a.parquet", pa.Table.from_arrays([TEXT, TEXT], names=["text", "text"]))
    assert fault_of(lambda: inspect(file, COLUMNS)).reason == "wrong_type"


def test_files_that_are_not_whole_parquet(tmp_path):
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"text": TEXT}), whole)
    data = whole.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    broken_footer = data[: -8 - length] + b"\xff" * length + data[-8:]
    for content, reason in [
        (b"", "not_parquet"),
        (b"PAR1", "truncated"),
        (b"doc_id,text\n1,hello\n", "not_parquet"),
        (data[:-1], "truncated"),
        (data[: len(data) // 2], "truncated"),
        (broken_footer, "unreadable"),
    ]:
        path = tmp_path / "broken.parquet"
        path.write_bytes(content)
        (file,) = list_files([str(path)])
        fault = fault_of(lambda file=file: inspect(file, COLUMNS))
        assert (fault.reason, fault.lasting) == (reason, True), content[:10]


@pytest.mark.parametrize(("head", "tail"), [(b"", b""), (b"PAR1", b""), (b"", b"PAR1"), (b"PAR1", b"\x20\0\0\0PAR1")])
def test_nothing_of_what_a_link_leads_to_is_shown(tmp_path, head, tail):
    """The error about a link to a key of 32 bytes is the same, whatever the key."""
    link, said = tmp_path / "a.parquet", set()
    link.symlink_to("secret")
    for number in range(20):
        (tmp_path / "secret").write_bytes(head + np.random.default_rng(number).bytes(32) + tail)
        said.add(fault_of(lambda: inspect(list_files([str(link)])[0], COLUMNS)).detail)
    assert len(said) == 1, said


def test_storage_that_fails_at_the_footer_is_no_fault_of_the_file(tmp_path, monkeypatch):
    long_footer = pa.table({"text": TEXT}).replace_schema_metadata({"about": "x" * 2**17})  # needs a second read
    file = written(tmp_path / "a.parquet", long_footer)
    assert [group.rows for group in inspect(file, COLUMNS)] == [3]

    class Failing:
        """A source that lets `passing` reads pass and then fails."""

        def __init__(self, source, passing):
            self._source, self._passing = source, passing

        def __enter__(self):
            return self

        def __exit__(self, *_error):
            self._source.close()

        def __getattr__(self, name):
            if name.startswith("read"):
                self._passing -= 1
                if self._passing < 0:
                    raise OSError(5, "Input/output error")
            return getattr(self._source, name)

    opened = InputFile.open
    for passing in range(3):
        monkeypatch.setattr(InputFile, "open", lambda self, passing=passing: Failing(opened(self), passing))
        fault = fault_of(lambda: inspect(file, COLUMNS))
        assert (fault.reason, fault.lasting) == ("io_error", False), passing


def test_metadata_of_row_groups(tmp_path):
    texts = ["x" * 1000 + str(i) for i in range(10)]
    table = pa.table({"other": texts, "text": texts})
    file = written(tmp_path / "a.parquet", table, row_group_size=4, write_statistics=False)
    groups = inspect(file, COLUMNS)
    assert [group.rows for group in groups] == [4, 4, 2]
    assert all(1000 * group.rows < group.text_bytes < 1100 * group.rows for group in groups)
    assert [group.rows for group in inspect(written(tmp_path / "b.parquet", table.slice(0, 0)), COLUMNS)] in ([], [0])


@pytest.mark.parametrize(("start", "stop"), [(0, 1000), (0, 1), (99, 101), (250, 260), (999, 1000), (63, 65)])
def test_a_range_of_rows(tmp_path, start, stop):
    file = written(tmp_path / "a.parquet", pa.table({"text": [str(i) for i in range(1000)]}), row_group_size=100)
    found = rows(file, COLUMNS, start, stop)
    assert [(row["row"], row["text"]) for row in found] == [(i, str(i).encode()) for i in range(start, stop)]


def test_batches_stay_small(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 10_000)
    texts = ["x" * int(size) for size in np.random.default_rng(0).integers(0, 4000, 300)] + ["y" * 50_000, "z"]
    file = written(tmp_path / "a.parquet", pa.table({"text": texts}))
    batches = list(read(file, COLUMNS, 0, len(texts)))
    assert [text.decode() for batch in batches for text in batch["text"].to_pylist()] == texts
    assert len(batches) > 20
    assert all(batch.nbytes < 15_000 or len(batch) == 1 for batch in batches)


LONG, REPEATS = 100_000, 700  # bytes of a value, more than BATCH_TEXT_BYTES below, and the number of rows


def repeated(path: Path, column: str = "text", *, encoding: str | None = None, kind: pa.DataType | None = None):
    """A small file: a null, four short values, and then rows that all hold the same long one, which is no UTF-8."""
    indices = pa.array([None, *(int(i < 5) for i in range(1, REPEATS))], pa.int32())
    values = pa.DictionaryArray.from_arrays(indices, pa.array([b"\xff" + b"x" * LONG, b"short"]))
    columns = {"text": pa.array(["a"] * REPEATS), column: values}
    if encoding or kind:
        columns[column] = values.dictionary_decode().cast(pa.string(), safe=False)
    if kind:
        columns[column] = pa.ExtensionArray.from_storage(kind, columns[column])
    options = {"use_dictionary": False, "column_encoding": {column: encoding}} if encoding else {}
    options |= {"store_schema": kind is not None, "dictionary_pagesize_limit": 2**30, "compression": "zstd"}
    return written(path, pa.table(columns), **options)


@pytest.mark.parametrize(
    "options", [{}, {"encoding": "DELTA_BYTE_ARRAY"}, {"kind": pa.json_()}], ids=["dictionary", "delta", "extension"]
)
def test_a_value_that_is_stored_once_never_fills_the_memory(tmp_path, monkeypatch, options):
    monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 10_000)
    monkeypatch.setattr(documents, "LARGEST_READ", 10 * LONG)
    file = repeated(tmp_path / "a.parquet", **options)
    assert file.size < 100_000
    before = pa.total_allocated_bytes()
    seen, most = [], 0
    for batch in read(file, COLUMNS, 0, REPEATS):
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(batch) == 1 or batch.nbytes <= 10_000
        seen += [
            (row["row"], None if row["text"] is None else (row["text"][:2], len(row["text"])))
            for row in batch.to_pylist()
        ]
    texts = [(b"sh", 5) if i < 5 else (b"\xffx", LONG + 1) for i in range(REPEATS)]
    assert seen == [(i, text if i else None) for i, text in enumerate(texts)]
    assert most < 30 * LONG


def test_a_long_text_that_stands_in_many_rows_is_not_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_READ", 10 * LONG)
    monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 10_000)
    file = repeated(tmp_path / "a.parquet")
    before = pa.total_allocated_bytes()
    batches = list(read(file, COLUMNS, 0, REPEATS))
    assert sum(batch["text"].nbytes > LONG for batch in batches) == REPEATS - 5
    assert pa.total_allocated_bytes() - before < 30 * LONG


def test_long_ids_count_as_long_texts_do(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_READ", 10 * LONG)
    monkeypatch.setattr(documents, "BATCH_TEXT_BYTES", 10_000)
    file = repeated(tmp_path / "a.parquet", "id")
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for batch in read(file, Columns("text", "id", None, None), 0, REPEATS):
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(batch) == 1 or batch.nbytes < 20_000
        count += len(batch)
    assert count == REPEATS
    assert most < 30 * LONG


def test_no_more_rows_are_decoded_together_than_are_asked_for(tmp_path, monkeypatch):
    file = written(tmp_path / "a.parquet", pa.table({"text": ["x" * 1000] * 1000}))
    asked = []

    class Spy(pq.ParquetFile):
        def iter_batches(self, rows, **options):
            asked.append(rows)
            return super().iter_batches(rows, **options)

    monkeypatch.setattr(pq, "ParquetFile", Spy)
    assert len(rows(file, COLUMNS, 5, 6)) == 1
    assert asked == [1]
    monkeypatch.setattr(documents, "LARGEST_READ", 10 * LONG)
    assert len(rows(repeated(tmp_path / "b.parquet"), COLUMNS, REPEATS - 1, REPEATS)) == 1
    assert asked[1:] == [1, documents.MANY_ROWS_AT_A_TIME]  # a look at the dictionary; none of its values is decoded


def test_a_dotted_name_beside_a_nested_one(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_READ", 1)
    nested = pa.array([{"b": "wrong", "c": 1}] * 3)
    file = written(tmp_path / "a.parquet", pa.table({"a": nested, "a.b": TEXT}))
    columns = Columns("a.b", None, None, None)
    inspect(file, columns)
    assert [row["text"] for row in rows(file, columns)] == [b"one", None, b"three"]


def corrupted(tmp_path: Path, group: int, column: str = "text") -> InputFile:
    """Ten row groups of ten rows; in one the pages of one column are overwritten."""
    path = tmp_path / "a.parquet"
    ids = [f"id {i}" for i in range(100)]
    table = pa.table({"text": [f"text {i} " * 50 for i in range(100)], "other": list(range(100)), "id": ids})
    pq.write_table(table, path, row_group_size=10)
    chunk = pq.read_metadata(path).row_group(group).column(table.column_names.index(column))
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    return list_files([str(path)])[0]


def test_a_corrupt_row_group_loses_its_own_rows_only(tmp_path):
    file = corrupted(tmp_path, 3)
    parts = list(read(file, COLUMNS, 25, 60))
    lost = [part for part in parts if isinstance(part, Unreadable)]
    assert [(part.start, part.stop) for part in lost] == [(30, 40)]
    assert "row group 3 is corrupt" in lost[0].detail
    found = [row for part in parts if not isinstance(part, Unreadable) for row in part["row"].to_pylist()]
    assert sorted(found) == [*range(25, 30), *range(40, 60)]


SOUND_AND_CORRUPT = """
import os, sys
from scanner.cluster.machines import limit_memory
from scanner.input.columns import Columns
from scanner.input.documents import Unreadable, read
from scanner.input.files import list_files

with open("/proc/self/statm") as statm:
    limit_memory(int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") + int(sys.argv[2]) * 2**20)
try:
    parts = list(read(list_files([sys.argv[1]])[0], Columns("text", None, None, None), 0, 100))
    print(sum(len(part) for part in parts if not isinstance(part, Unreadable)))
except MemoryError:
    print("out of memory")
"""


@pytest.mark.costly
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("spare", "found"), [(16, "out of memory"), (512, "{rows}")])
def test_rows_are_not_corrupt_because_memory_ran_out(tmp_path, spare, found):
    large = [os.urandom(10**5).hex() for _ in range(100)]
    written(tmp_path / "sound.parquet", pa.table({"text": large}), use_dictionary=False)
    for file, count in ((tmp_path / "sound.parquet", "100"), (Path(corrupted(tmp_path, 3).path), "90")):
        command = [sys.executable, "-c", SOUND_AND_CORRUPT, str(file), str(spare)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert said == found.format(rows=count)


def test_corrupt_columns_that_are_not_read_do_no_harm(tmp_path):
    assert len(rows(corrupted(tmp_path, 3, "other"))) == 100


def test_a_file_that_changes_while_it_is_read(tmp_path):
    file = written(tmp_path / "a.parquet", pa.table({"text": ["x" * 1000] * 5000}), compression="none")
    parts = read(file, COLUMNS, 0, 5000)
    next(parts)
    shutil.copyfile(written(tmp_path / "b.parquet", pa.table({"text": TEXT})).path, file.path)
    assert fault_of(lambda: list(parts)).reason == "changed"


def test_a_file_that_vanishes(tmp_path):
    file = written(tmp_path / "a.parquet", pa.table({"text": TEXT}))
    Path(file.path).unlink()
    assert fault_of(lambda: inspect(file, COLUMNS)).reason == "vanished"
    assert fault_of(lambda: list(read(file, COLUMNS, 0, 3))).reason == "vanished"


def test_a_file_that_cannot_be_opened(tmp_path, monkeypatch):
    file = written(tmp_path / "a.parquet", pa.table({"text": TEXT}))

    def refuse(_self):
        raise FileFault("io_error", "permission denied")

    monkeypatch.setattr(InputFile, "open", refuse)
    assert fault_of(lambda: inspect(file, COLUMNS)).reason == "io_error"
    assert fault_of(lambda: list(read(file, COLUMNS, 0, 3))).reason == "io_error"


def test_whose_the_rows_are_that_cannot_be_read(tmp_path):
    """Ids stand in columns of their own: a corrupt column loses its own values alone."""
    columns = COLUMNS._replace(id="id", account="other")
    for column in ("text", "other", "id"):
        file = corrupted(tmp_path, 3, column)
        wanted = [Identity(f"id {row}", str(row)) for row in range(100)]
        lost = {"text": {}, "other": {"account_id": None}, "id": {"doc_id": None}}[column]
        wanted[30:40] = [one._replace(**lost) for one in wanted[30:40]]
        assert identities(file, columns, 0, 100) == wanted
        digest = None if column == "text" else hashlib.sha256(b"text 35 " * 50).digest()
        assert identify(file, columns, 35) == wanted[35]._replace(text_sha256=digest)
    Path(file.path).unlink()
    assert identify(file, columns, 35) == Identity()

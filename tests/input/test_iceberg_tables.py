"""Iceberg tables of the input: which files and rows are read, by a catalog of this machine."""

import datetime
import os
import re
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.typedef import Record
from pyroaring import BitMap

from scanner.errors import Refused, ScanFailed
from scanner.input.columns import Columns
from scanner.input.documents import read
from scanner.input.files import InputFile, list_files
from scanner.input.tables import NEWEST_TABLES, TableReading
from scanner.storage.locations import filesystem_of
from tests.support.icebergs import NAME, commit_deletes, delete_by_position, make_table, name_catalog, puffin_file
from tests.support.inspection import INSPECTOR
from tests.support.submitted import free_ports

COLUMNS = Columns("text", "doc_id", None, "day")


def every_row() -> BitMap:
    """Every row below 2^32, in some 500 kB."""
    rows = BitMap()
    rows.add_range(0, 2**32)
    rows.run_optimize()
    return rows


def posts(names: str, day: str = "2026-08-31") -> pa.Table:
    return pa.table({"doc_id": list(names), "text": [f"text of {name}" for name in names], "day": [day] * len(names)})


@pytest.fixture
def table(tmp_path, monkeypatch) -> Table:
    """A table of two files, by day; its catalog is found by pyiceberg's own configuration."""
    folder = tmp_path / "a b"
    folder.mkdir()
    name_catalog(folder, monkeypatch)
    made = make_table(posts("a").schema)
    with made.update_spec() as spec:
        spec.add_identity("day")
    made.append(posts("abc"))
    made.append(posts("de", "2026-09-01"))
    return made


def files(reading: TableReading = NEWEST_TABLES) -> list[InputFile]:
    return list_files([NAME], reading=reading)


def documents(reading: TableReading = NEWEST_TABLES) -> list[str]:
    found: list[str] = []
    for file, groups in INSPECTOR.inspect_all(files(reading), COLUMNS):
        assert isinstance(groups, list)
        for part in read(file, COLUMNS, 0, sum(group.rows for group in groups)):
            found += part["doc_id"].to_pylist()
    return sorted(found)


def test_a_table_is_read_at_a_snapshot(table):
    assert documents() == list("abcde")
    first, second = table.snapshots()
    assert documents(TableReading(version=first.snapshot_id)) == list("abc")
    at = datetime.datetime.fromtimestamp(first.timestamp_ms / 1000, datetime.UTC)
    assert documents(TableReading(timestamp=at)) == list("abc")
    (entry, _) = [file.entry for file in files()]
    assert entry is not None
    assert entry.snapshot == (NAME, "Iceberg", second.snapshot_id)
    with pytest.raises(Refused, match="has no snapshot for 7"):
        files(TableReading(version=7))


def test_where_chooses_partitions(table):
    assert documents(TableReading(where="day = '2026-09-01'")) == list("de")
    with pytest.raises(Refused, match="selects single rows of one file"):
        files(TableReading(where="doc_id = 'a'"))
    with pytest.raises(Refused, match="cannot be read"):
        files(TableReading(where="nothing = 1"))
    with pytest.raises(Refused, match="is not a condition in Iceberg's syntax"):
        files(TableReading(where="no such column = 1"))


def test_files_that_replaced_others_know_them_and_since_when(table):
    before = {file.path: file for file in files()}
    assert all(Path(path).exists() for path in before)
    table.delete("doc_id = 'a'")
    assert documents() == list("bcde")
    (changed,) = [file for file in files() if file.path not in before]
    (gone,) = before.keys() - {file.path for file in files()}
    assert changed.entry is not None
    assert changed.entry.parents == {gone}
    assert changed.entry.since == table.snapshots()[0].timestamp_ms * 10**6
    kept = next(file for file in files() if file.path in before)
    assert kept == before[kept.path]


def test_files_that_a_transaction_of_several_snapshots_wrote_know_those_it_removed(table):
    gone = {file.path for file in files()}
    table.overwrite(posts("abcde"))  # a snapshot that deletes, and one that appends
    assert len(table.snapshots()) == 4
    (written,) = files()
    assert written.entry is not None
    assert written.entry.parents == gone
    assert written.entry.since == table.snapshots()[0].timestamp_ms * 10**6
    table.delete("day = '2026-08-31'")
    table.append(posts("f"))  # a transaction of its own
    (appended,) = [file for file in files() if file.entry and not file.entry.parents]
    assert appended.entry is not None
    assert appended.entry.since == table.snapshots()[-1].timestamp_ms * 10**6


def test_files_that_a_rollback_brings_back_know_those_that_took_their_place(table):
    before, snapshot = {file.path: file for file in files()}, table.snapshots()[-1]
    table.overwrite(posts("abcde"))
    (written,) = files()
    with table.manage_snapshots() as change:
        change.rollback_to_snapshot(snapshot.snapshot_id)
    for file in files():
        assert file.entry is not None
        assert file.entry.parents == {written.path, *before}
        assert file.entry.since == table.snapshots()[0].timestamp_ms * 10**6
    assert {file.path for file in files(TableReading(version=snapshot.snapshot_id))} == {*before}


def positions_of(folder: Path, deleted: dict[str, list[int]]) -> DataFile:
    """A file of position deletes, as engines write them."""
    rows = [(path, row) for path, gone in deleted.items() for row in gone]
    file = folder / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [path for path, _ in rows], "pos": [row for _, row in rows]}), file)
    return described(file, DataFileContent.POSITION_DELETES, rows=len(rows))


def described(file: Path, content: DataFileContent, form: FileFormat = FileFormat.PARQUET, rows: int = 3) -> DataFile:
    return DataFile.from_args(
        content=content, file_path=f"file://{file}", file_format=form, partition=Record(), record_count=rows,
        file_size_in_bytes=file.stat().st_size, spec_id=0,
    )  # fmt: skip


def test_snapshots_that_are_their_own_parents_are_refused(table, monkeypatch):
    newest = table.snapshots()[-1].snapshot_id
    looped = [one.model_copy(update={"parent_snapshot_id": newest}) for one in table.snapshots()]
    known = {one.snapshot_id: one for one in looped}
    monkeypatch.setattr(Table, "current_snapshot", lambda _: known[newest])
    monkeypatch.setattr(Table, "snapshot_by_id", lambda _, number: known.get(number))
    with pytest.raises(Refused, match="is its own ancestor"):
        files()


class PlansWith:
    """Plans of a table's scan, each task with these delete files."""

    def __init__(self, deletes: list[DataFile], plan: Any) -> None:
        self.deletes, self.plan = deletes, plan

    def __call__(self, scan: Any) -> list[FileScanTask]:
        return [FileScanTask(task.file, set(self.deletes), task.residual) for task in self.plan(scan)]


def test_delete_files_take_rows_away_and_others_are_refused(table, tmp_path, monkeypatch):
    paths = {Path(file.path).parent.name: f"file://{file.path}" for file in files()}
    before = {file.path: file for file in files()}
    deletes = positions_of(tmp_path, {paths["day=2026-08-31"]: [0, 2], paths["day=2026-09-01"]: [1]})
    plans = PlansWith([deletes], DataScan.plan_files)
    monkeypatch.setattr(DataScan, "plan_files", lambda scan: plans(scan))
    assert documents() == ["b", "d"]
    for file in files():
        assert file != before[file.path]
        assert file.entry is not None
        assert file.path in file.entry.parents  # its other rows were scanned, if it was
    plans.deletes = [positions_of(tmp_path, {paths["day=2026-08-31"]: [-1]})]
    with pytest.raises(Refused, match="deletes row -1 of"):
        files()
    orc = described(tmp_path / "deletes.parquet", DataFileContent.POSITION_DELETES, FileFormat.ORC)
    plans.deletes = [orc]
    with pytest.raises(Refused, match="is neither Parquet nor Puffin"):
        files()


def test_deletion_vectors_take_rows_away_and_those_of_no_file_are_refused(tmp_path, monkeypatch):
    name_catalog(tmp_path, monkeypatch)
    made = make_table(posts("a").schema)
    made.append(posts("abc"))
    delete_by_position(made, ["b"], puffin=True)
    assert documents() == ["a", "c"]
    (task,) = made.scan().plan_files()
    commit_deletes(made, [puffin_file(made, task.file.file_path, [0], named="file:///elsewhere.parquet")])
    with pytest.raises(Refused, match=r"\.puffin lacks the deletion vector of .*\.parquet, which the table lists"):
        files()


BITMAPS = {
    "an upper half": struct.pack("<qI", 1, 2) + BitMap([0]).serialize(),
    "two halves": struct.pack("<qI", 2, 0) + BitMap([0]).serialize() + struct.pack("<I", 9) + BitMap([0]).serialize(),
    "a row": struct.pack("<qI", 1, 0) + BitMap([2**32 - 1]).serialize(),
    "every row": struct.pack("<qI", 1, 0) + every_row().serialize(),
}


@pytest.mark.parametrize("bitmaps", BITMAPS)
def test_a_vector_that_claims_more_rows_than_any_file_has_is_refused(tmp_path, monkeypatch, bitmaps):
    """Read as it stands, 40 bytes take all memory there is."""
    name_catalog(tmp_path, monkeypatch)
    made = make_table(posts("a").schema)
    made.append(posts("abc"))
    (task,) = made.scan().plan_files()
    commit_deletes(made, [puffin_file(made, task.file.file_path, [0], bitmaps=BITMAPS[bitmaps])])
    with pytest.raises(Refused, match="removes rows beyond the 327,680,000 that a file may have"):
        files()


@pytest.fixture
def with_deletes(tmp_path, monkeypatch):
    """Makes a table of five rows of which a file deletes two, and returns that file."""

    def make(puffin: bool) -> Path:
        name_catalog(tmp_path, monkeypatch)
        made = make_table(posts("a").schema)
        made.append(posts("abcde"))
        delete_by_position(made, ["b", "d"], puffin=puffin)
        assert documents() == ["a", "c", "e"]
        (deletes,) = tmp_path.rglob("*vector.puffin" if puffin else "*deletes.parquet")
        return deletes

    return make


@pytest.mark.parametrize("damaged", ["a row", "the number of bitmaps", "the checksum"])
def test_a_damaged_vector_gives_no_deleted_row_back(with_deletes, damaged):
    deletes = with_deletes(True)
    data = deletes.read_bytes()
    vector = struct.pack("<qI", 1, 0)
    place = data.index(vector)
    place += {"a row": len(vector) + 16, "the number of bitmaps": 0, "the checksum": len(vector) + 21}[damaged]
    deletes.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(Refused, match="a deletion vector is damaged"):
        files()


def test_a_delete_file_that_lacks_rows_is_refused(with_deletes):
    deletes = with_deletes(False)
    rows = pq.read_table(deletes)
    pq.write_table(rows.slice(0, 1), deletes)
    with pytest.raises(Refused, match="removes 1 rows, but the table says 2"):
        files()
    names = [name.as_py().replace("file://", "file:") for name in rows["file_path"]]
    pq.write_table(rows.set_column(0, "file_path", pa.array(names)), deletes)
    assert documents() == ["a", "c", "e"]


def test_a_vector_of_another_number_of_rows_is_refused(with_deletes):
    deletes = with_deletes(True)
    deletes.write_bytes(deletes.read_bytes().replace(b'"cardinality": "2"', b'"cardinality": "3"'))
    with pytest.raises(Refused, match="removes 2 rows, but the table says 3"):
        files()


def test_a_vector_that_lacks_rows_of_its_manifest_is_refused(with_deletes):
    """Its own file states the number of rows that it has."""
    deletes = with_deletes(True)
    table = load_catalog("lake").load_table("forum.posts")
    (task,) = table.scan().plan_files()
    fewer = puffin_file(table, task.file.file_path, [1])
    deletes.write_bytes(Path(fewer.file_path.removeprefix("file://")).read_bytes())
    with pytest.raises(Refused, match="removes 1 rows, but the table says 2"):
        files()


@pytest.mark.parametrize("kind", ["*deletes.parquet", "*.avro", "*.metadata.json"])
def test_a_table_with_a_fifo_is_refused(with_deletes, tmp_path, kind):
    """Its reader would wait for ever."""
    with_deletes(False)
    for path in tmp_path.rglob(kind):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(Refused, match="is a FIFO, socket or device"):
        files()


def test_a_store_that_does_not_answer_ends_in_a_sentence(table, monkeypatch):
    def silent(location: str) -> None:
        raise OSError("no such host")

    files()
    monkeypatch.setattr("scanner.input.iceberg_tables._path", lambda uri: f"s3://bucket{uri.removeprefix('file://')}")
    known = filesystem_of
    monkeypatch.setattr(
        "scanner.input.files.filesystem_of", lambda at: silent(at) if at.startswith("s3") else known(at)
    )
    with pytest.raises(ScanFailed, match="cannot be listed: no such host"):
        files()


@pytest.mark.parametrize("where", ["token", "credential", "password in the uri", "query of the uri", "path of the uri"])
def test_no_secret_of_a_catalog_stands_in_an_error(tmp_path, monkeypatch, where):
    """The catalog does not answer, and the client's error has its address."""
    secret, at = "pl/nted s3cret", f"127.0.0.1:{free_ports(1)[0]}"
    written = quote(secret, safe="")
    uris = {
        "password in the uri": f"http://ann:{written}@{at}",
        "query of the uri": f"http://{at}/?token={written}",
        "path of the uri": f"http://{at}/{written}",
    }
    more = {where.upper(): secret if where == "token" else f"ann:{secret}"} if where not in uris else {}
    name_catalog(tmp_path, monkeypatch, TYPE="rest", URI=uris.get(where, f"http://{at}"), **more)
    with pytest.raises((Refused, ScanFailed), match=r"cannot be read: .*127\.0\.0\.1") as error:
        files()
    assert secret not in str(error.value)
    assert written not in str(error.value)
    assert error.value.__cause__ is None

    def repeat(_: object) -> None:
        raise RuntimeError(f"{uris.get(where, secret)} and {secret} do not answer")

    monkeypatch.setattr("scanner.input.iceberg_tables._open", repeat)
    with pytest.raises(ScanFailed, match="do not answer") as error:
        files()
    assert secret not in str(error.value)
    assert written not in str(error.value)


def test_errors_show_paths_of_this_machine(table, tmp_path):
    """The folder of a warehouse is no secret, and without it nobody finds the file that is meant."""
    (manifest, *_) = sorted(tmp_path.rglob("*-m0.avro"))
    manifest.unlink()
    with pytest.raises((Refused, ScanFailed), match=re.escape(str(manifest))):
        files()


def test_what_cannot_be_read_is_refused(table, monkeypatch, tmp_path):
    for named, why in {
        "iceberg:lake": "write iceberg:CATALOG.NAMESPACE.TABLE",
        "iceberg:lake.forum.none": "cannot be read",
        "iceberg:nowhere.forum.posts": "cannot be read",
    }.items():
        with pytest.raises(Refused, match=why):
            list_files([named])

    def equality(scan: DataScan) -> None:
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr(DataScan, "plan_files", equality)
    with pytest.raises(Refused, match="equality deletes"):
        files()

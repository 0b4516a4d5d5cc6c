"""Delta tables of the input: which files and rows are read, under which ids."""

import datetime
import json
import os
import tracemalloc
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from scanner.errors import FileFault, Refused, ScanFailed
from scanner.input.columns import Columns
from scanner.input.deletion_vectors import _stated
from scanner.input.documents import read
from scanner.input.files import find_file, list_files
from scanner.input.shards import cut, shard_id
from scanner.input.tables import NEWEST_TABLES, TableReading, pack_rows, rows_sha256, unpack_rows, values_of_path
from tests.bench.files import log as write_log
from tests.bench.files import memory_of_listing
from tests.support.deltas import claim_rows, delete_by_vector, forget_commits, lose_rows
from tests.support.inspection import INSPECTOR, inspect

COLUMNS = Columns("text", "doc_id", "account", "date")
ACCOUNT = "ann/ö =%"


def posts(names: str, date: str = "2026-08-31", account: str | None = ACCOUNT) -> pa.Table:
    count = len(names)
    columns = {"doc_id": list(names), "text": [f"text of {name}" for name in names]}
    return pa.table({**columns, "date": [date] * count, "account": pa.array([account] * count, pa.string())})


@pytest.fixture
def table(tmp_path) -> Path:
    """Two files by date and account, in a folder whose name is hard to write down."""
    folder = tmp_path / "a b ü=1"
    write_deltalake(folder, posts("abc"), partition_by=["date", "account"])
    write_deltalake(folder, posts("de", "2026-09-01", None), mode="append")
    return folder


def documents(location: Path | str, reading: TableReading = NEWEST_TABLES) -> dict[str, dict]:
    """All documents that would be scanned, by their ids."""
    found = {}
    for file in list_files([str(location)], reading=reading):
        rows = cut(inspect(file, COLUMNS))[-1]
        for part in read(file, COLUMNS, 0, rows.stop):
            found |= {row["doc_id"]: row for row in part.to_pylist()}
    return found


def ids(location: Path) -> dict[str, str]:
    """Ids of shards of whole files, by the files' names."""
    files = list_files([str(location)])
    return {file.path: shard_id(file, cut(inspect(file, COLUMNS))[0], "{}") for file in files}


def test_files_come_from_the_log_and_values_of_partitions_are_columns(table):
    pq.write_table(posts("z"), table / "loose.parquet")
    found = documents(table)
    assert sorted(found) == list("abcde")
    assert found["a"]["account_id"] == ACCOUNT
    assert found["d"]["account_id"] is None
    assert found["d"]["created_at"] == datetime.datetime(2026, 9, 1, tzinfo=datetime.UTC)
    assert not any(row["unread"] for row in found.values())
    assert documents(f"delta:{table}").keys() == found.keys()


def test_a_table_that_two_paths_lead_to_is_read_once(table, tmp_path):
    link = tmp_path / "a link"
    link.symlink_to(table)
    (tmp_path / "upper").symlink_to(tmp_path)
    once = [file.path for file in list_files([str(table)])]
    for other in (link, f"delta:{link}", f"{link}/", tmp_path / "upper" / "a link", f"delta:{table}"):
        assert [file.path for file in list_files([str(other), str(table)])] == once
    assert len(list_files([str(link)])) == 2


@pytest.mark.costly
@pytest.mark.parametrize(
    ("folder", "spelling"),
    [("ann", "./account=ann"), ("ann", "%61ccount=ann"), ("ü", "account=ü"), ("a*", "account=a*")],
)
def test_deleted_rows_of_a_file_with_another_spelling_are_never_read(tmp_path, folder, spelling):
    """Engines escape other characters of paths, and deltalake writes a path that it removes as it would escape it."""
    table = tmp_path / "table"
    write_deltalake(table, posts("abc", account="ann"), partition_by=["account"])
    (table / "account=ann").rename(table / f"account={folder}")
    log = table / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace("account=ann", spelling))
    assert sorted(documents(table)) == list("abc")
    delete_by_vector(table, ["b"])
    assert sorted(documents(table)) == list("ac")
    DeltaTable(table).delete("doc_id = 'a'")
    assert sorted(documents(table)) == ["c"]
    DeltaTable(table).delete("account = 'ann'")
    assert documents(table) == {}


def test_partitions_of_dates_are_chosen_as_dates_are_written(tmp_path):
    for day in (30, 31):
        rows = posts(f"{day % 10}").set_column(2, "date", pa.array([datetime.date(2026, 8, day)]))
        write_deltalake(tmp_path / "table", rows, partition_by=["date"], mode="append")
    for where in ("date = '2026-08-31'", "date > '2026-08-30'", "date in ('2026-08-31')"):
        assert sorted(documents(tmp_path / "table", TableReading(where=where))) == ["1"]


def test_a_table_is_read_at_a_version_or_time(table):
    assert sorted(documents(table, TableReading(version=0))) == list("abc")
    made = DeltaTable(table).history()[-1]["timestamp"]
    between = datetime.datetime.fromtimestamp(made / 1000, datetime.UTC)
    assert sorted(documents(table, TableReading(timestamp=between))) == list("abc")
    with pytest.raises(Refused, match="had no version at"):  # deltalake reads rows that came later
        documents(table, TableReading(timestamp=between - datetime.timedelta(seconds=1)))
    later = between + datetime.timedelta(days=1)
    assert sorted(documents(table, TableReading(timestamp=later))) == list("abcde")
    with pytest.raises(Refused, match="cannot be read at 7"):
        documents(table, TableReading(version=7))


def test_where_chooses_partitions(table):
    assert sorted(documents(table, TableReading(where="date = '2026-09-01'"))) == list("de")
    assert sorted(documents(table, TableReading(where="account is null or date < '2026-01-01'"))) == list("de")
    for where, why in {
        "doc_id = 'a'": "the table is partitioned by: date, account",
        "date =": "cannot be applied",
        "date": "cannot be applied",
        "1 = 1": "does not select partitions",
    }.items():
        with pytest.raises(Refused, match=why):
            documents(table, TableReading(where=where))


def test_deleted_rows_are_never_read(table):
    before = ids(table)
    delete_by_vector(table, ["b"])
    assert sorted(documents(table)) == list("acde")
    delete_by_vector(table, ["c", "d"])
    assert sorted(documents(table)) == list("ae")
    after = ids(table)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


def test_a_commit_that_adds_a_file_changes_no_other_id(table):
    before = ids(table)
    write_deltalake(table, posts("fg"), mode="append")
    after = ids(table)
    assert len(after) == 3
    assert before.items() <= after.items()
    delete_by_vector(table, ["f"])
    assert before.items() <= ids(table).items()


def test_a_file_knows_the_files_that_went_into_it_and_since_when(table):
    first = {file.path: file for file in list_files([str(table)])}
    assert all(file.entry and not file.entry.parents and file.entry.since == 0 for file in first.values())
    DeltaTable(table).update(updates={"text": "'new'"}, predicate="doc_id = 'a'")
    (changed,) = [file for file in list_files([str(table)]) if file.path not in first]
    (gone,) = set(first) - {file.path for file in list_files([str(table)])}
    assert changed.entry is not None
    assert changed.entry.parents == {gone}
    assert changed.entry.since == first[gone].modified < changed.modified
    DeltaTable(table).create_checkpoint()
    for commit in range(3):
        (table / "_delta_log" / f"{commit:020d}.json").unlink()
    made = DeltaTable(table).metadata().created_time * 10**6
    assert {file.entry.since for file in list_files([str(table)]) if file.entry} == {made}  # rows may be as old


def test_a_file_whose_commit_is_gone_may_be_as_old_as_the_table(table):
    write_deltalake(table, posts("f"), mode="append")
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    made = DeltaTable(table).metadata().created_time * 10**6
    assert min(file.entry.since for file in list_files([str(table)]) if file.entry) == made


def test_what_is_not_read_is_refused_by_name(table, tmp_path):
    log = table / "_delta_log" / f"{2:020d}.json"
    first = [json.loads(line) for line in (table / "_delta_log" / f"{0:020d}.json").read_text().splitlines()]
    (described,) = [action["metaData"] for action in first if "metaData" in action]
    mapped = {"metaData": described | {"configuration": {"delta.columnMapping.mode": "name"}}}
    log.write_text(json.dumps(mapped) + "\n" + json.dumps({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}))
    with pytest.raises((Refused, ScanFailed), match=r"[Cc]olumn ?[Mm]apping"):
        list_files([str(table)])
    ours = {"metaData": described | {"configuration": {"brickscan.version": "0"}}}
    log.write_text(json.dumps(ours) + "\n")
    with pytest.raises(Refused, match="is a table of results"):
        list_files([str(table)])
    log.unlink()
    add = {"path": "file:///elsewhere/a.parquet", "partitionValues": {"date": "x", "account": "y"}, "size": 9}
    log.write_text(json.dumps({"add": add | {"modificationTime": 1, "dataChange": True, "stats": "{}"}}) + "\n")
    with pytest.raises(Refused, match="refers to files in another folder"):
        list_files([str(table)])
    with pytest.raises(Refused, match="is not a Delta table"):
        list_files([f"delta:{tmp_path}"])
    with pytest.raises(Refused, match="to one table"):
        list_files([str(table), str(tmp_path)], reading=TableReading(version=0))
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="is not a table; version"):
        list_files([str(tmp_path / "folder")], reading=TableReading(where="date = 'x'"))


@pytest.mark.parametrize("upper", [1, 8, 10**5])
def test_a_vector_that_claims_more_rows_than_memory_holds_ends_in_a_sentence(table, upper):
    delete_by_vector(table, ["b"])
    claim_rows(table, upper)
    with pytest.raises(ScanFailed, match=r"deletion vectors of Delta table .* cannot be read: .* ends by SIGABRT"):
        list_files([str(table)])


def test_a_damaged_vector_ends_in_a_sentence(table):
    delete_by_vector(table, ["b"])
    (vector,) = table.glob("deletion_vector_*.bin")
    vector.write_bytes(vector.read_bytes()[:-8])
    with pytest.raises(ScanFailed, match=r"deletion vectors of Delta table .* cannot be read: "):
        list_files([str(table)])


def test_vectors_of_a_log_that_says_it_has_none_are_honoured(table):
    delete_by_vector(table, ["b"])
    log = table / "_delta_log" / f"{2:020d}.json"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"protocol"' not in line))
    assert "deletionVectors" not in (DeltaTable(table).protocol().reader_features or ())
    assert sorted(documents(table)) == ["a", "c", "d", "e"]


def test_a_table_without_vectors_takes_no_process_to_read_them(table, monkeypatch):
    """It takes as long as a thousand files: each look of `--follow` would pay it."""
    monkeypatch.setattr("scanner.input.deletion_vectors.subprocess", None)
    assert sorted(documents(table)) == list("abcde")


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_vector_that_lacks_rows_of_the_log_gives_no_deleted_row_back(table, forgotten):
    """It is a valid one: a checkpoint says how many it takes away where the commit is gone."""
    delete_by_vector(table, ["b", "c"])
    if forgotten:
        write_deltalake(table, posts("f"), mode="append")
        forget_commits(table)
    assert sorted(documents(table)) == ["a", "d", "e", *"f" * forgotten]
    lose_rows(table)
    with pytest.raises(ScanFailed, match="removes 1 rows, but the log states 2"):
        list_files([str(table)])


def test_checkpoints_of_every_form_say_how_many_rows_vectors_take_away(tmp_path):
    log, table = tmp_path / "_delta_log", str(tmp_path)
    (log / "_sidecars").mkdir(parents=True)
    adds = {f"{n}.parquet": {"path": f"{n}.parquet", "deletionVector": {"cardinality": n}} for n in range(1, 6)}
    adds["none.parquet"] = {"path": "none.parquet", "deletionVector": None}
    half = [[{"add": add} for name, add in adds.items() if (name < "3") == first] for first in (True, False)]
    stated = {f"{n}.parquet": n for n in range(1, 6)}

    def write(name: str, rows: list[dict]) -> None:
        pq.write_table(pa.Table.from_pylist(rows), log / name)

    assert _stated(table, 9) == (-1, {})
    write(f"{1:020d}.checkpoint.parquet", [{"add": {"path": "no vectors yet.parquet"}}])
    assert _stated(table, 9) == (1, {})
    write(f"{2:020d}.checkpoint.{1:010d}.{2:010d}.parquet", half[0])
    assert _stated(table, 9) == (1, {})  # a part lacks
    write(f"{2:020d}.checkpoint.{2:010d}.{2:010d}.parquet", half[1])
    assert _stated(table, 9) == (2, stated)
    for number, side in enumerate(half):
        write(f"_sidecars/{number}.parquet", side)
    sidecars = [{"sidecar": {"path": f"{number}.parquet"}} for number in range(2)]
    write(f"{3:020d}.checkpoint.{uuid.uuid4()}.parquet", sidecars)
    assert _stated(table, 9) == (3, stated)
    lines = [{"add": {"path": "6.parquet", "deletionVector": {"cardinality": 6}}}, *sidecars, {"txn": {}}]
    lines[0] |= {"sidecar": None}  # as some writers spell what a line has not
    (log / f"{4:020d}.checkpoint.{uuid.uuid4()}.json").write_text("\n\n".join(map(json.dumps, lines)))
    assert _stated(table, 9) == (4, stated | {"6.parquet": 6})
    assert _stated(table, 2) == (2, stated)


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["link", "hard link", "folder", "spelling"])
def test_a_file_that_a_log_names_twice_is_read_once(tmp_path, kind):
    table = tmp_path / "table"
    write_deltalake(table, posts("abc"))
    (file,) = list_files([str(table)])
    log = table / "_delta_log" / f"{1:020d}.json"
    (add,) = (
        action["add"]
        for line in (table / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
        if "add" in (action := json.loads(line))
    )
    other = table / "other.parquet"
    if kind == "folder":
        (table / "again").symlink_to(table)
        other = table / "again" / add["path"]
    elif kind == "spelling":
        other = table / f"%70{add['path'][1:]}"
        assert add["path"].startswith("p")
    else:
        (os.link if kind == "hard link" else os.symlink)(file.path, other)
    log.write_text(json.dumps({"add": add | {"path": str(other.relative_to(table))}}) + "\n")
    assert len(DeltaTable(table).file_uris()) == 2
    assert len(list_files([str(table)])) == 1
    assert sorted(documents(table)) == list("abc")
    link = tmp_path / "a link"
    link.symlink_to(table)
    assert len(list_files([str(link)])) == 1
    if kind != "spelling":
        delete_by_vector(table, ["b"])  # by the one path and the other
        assert sorted(documents(table)) == list("ac")
        log.write_text(log.read_text())
        newest = table / "_delta_log" / f"{2:020d}.json"
        lines = [line for line in newest.read_text().splitlines() if str(other.relative_to(table)) not in line]
        newest.write_text("\n".join(lines) + "\n")
        with pytest.raises(Refused, match="are the same file, and its tables delete different rows of"):
            list_files([str(table)])


def test_listed_files_of_a_table_are_no_objects(tmp_path):
    """A million of them would take twice what deltalake takes for the table. So they are made when they are read."""
    write_log(tmp_path, 5000, 1000)
    list_files([str(tmp_path)])  # imports
    tracemalloc.start()
    try:
        files, before = list_files([str(tmp_path)]), pa.total_allocated_bytes()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(files) == 5000
    assert held < 5000 * 60, held
    assert before < 5000 * 200, before
    assert files[1234] == [*files][1234] == files[1234:1235][0]
    assert files[1234].path == f"{tmp_path}/001/part-001234.parquet"


@pytest.mark.long
def test_listing_a_million_files_takes_at_most_twice_the_memory_of_deltalakes_snapshot(tmp_path):
    peaks = memory_of_listing(tmp_path, 10**6)
    assert peaks["brickscan"] <= 2 * peaks["deltalake"], peaks


@pytest.mark.costly
def test_a_vector_in_a_fifo_ends_in_a_sentence(table, tmp_path, monkeypatch):
    """Its reader would wait for ever."""
    monkeypatch.setattr("scanner.input.deletion_vectors.STALL_SECONDS", 2.0)
    delete_by_vector(table, ["b"])
    (vector,) = table.glob("deletion_vector_*.bin")
    vector.unlink()
    os.mkfifo(vector)
    with pytest.raises(ScanFailed, match=r"deletion vectors of .* cannot be read: .* waits for 2 seconds and reads"):
        list_files([str(table)])


HOSTILE = {
    "no time": {"modificationTime": None},
    "a time in words": {"modificationTime": "late"},
    "a path of a number": {"path": 7},
    "a size of nothing": {"size": None},
    "no path": {"path": None},
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_log_that_is_none_ends_in_a_sentence(table, change):
    log = table / "_delta_log" / f"{2:020d}.json"
    add = {
        "path": "date=x/account=y/a.parquet",
        "partitionValues": {"date": "x", "account": "y"},
        "size": 9,
        "stats": "{}",
    }
    add |= {"modificationTime": 1, "dataChange": True} | HOSTILE[change]
    gone = {"path": "never.parquet", "dataChange": True, "deletionTimestamp": 1}
    log.write_text(json.dumps({"add": add}) + "\n" + json.dumps({"remove": gone}) + "\n")
    with pytest.raises((Refused, ScanFailed), match="cannot be read"):
        list_files([str(table)])


@pytest.mark.parametrize("path", ["../../posts.parquet", "a/%2e%2e/%2e%2e/posts.parquet", "/etc/posts.parquet"])
def test_a_log_names_no_file_outside_of_its_folder(table, path):
    log = table / "_delta_log" / f"{2:020d}.json"
    add = {"path": path, "partitionValues": {"date": "x", "account": "y"}, "size": 9, "stats": "{}"}
    log.write_text(json.dumps({"add": add | {"modificationTime": 1, "dataChange": True}}) + "\n")
    with pytest.raises(Refused, match="refers to files in another folder"):
        list_files([str(table)])


@pytest.mark.parametrize("time", [-(2**62), -1, 2**62, 2**63 - 1])
def test_a_time_in_a_log_is_a_time(table, time):
    log = table / "_delta_log" / f"{2:020d}.json"
    add = {"path": "a.parquet", "partitionValues": {"date": "x", "account": "y"}, "size": 9, "stats": "{}"}
    log.write_text(json.dumps({"add": add | {"modificationTime": time, "dataChange": True}}) + "\n")
    (file,) = [file for file in list_files([str(table)]) if file.path.endswith("/a.parquet")]
    assert 0 <= file.modified < 2**63
    assert file.written is None or file.written.year >= 1970


@pytest.mark.parametrize("name", ["_last_checkpoint", f"{2:020d}.json", f"{1:020d}.checkpoint.parquet"])
def test_a_log_with_a_fifo_is_refused(table, name):
    """Its reader would wait for ever."""
    os.mkfifo(table / "_delta_log" / name)
    with pytest.raises(Refused, match=f"{name}' is a FIFO, socket or device"):
        list_files([str(table)])


@pytest.mark.costly
@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_of_a_table_that_links_lead_to_is_read_as_the_tables(table, tmp_path, link):
    """Read as a loose file too, it would give its deleted rows back."""
    delete_by_vector(table, ["b"])
    loose = tmp_path / "a first folder"
    loose.mkdir()
    (changed,) = [file for file in list_files([str(table)]) if file.entry and file.entry.deleted]
    alias = loose / "a.parquet"
    if link is os.symlink:
        named = [*list_files([str(table)])]
        link(changed.path, alias)
        with pytest.raises(Refused, match="is the folder of a Delta table"):
            list_files([str(loose), str(table)])
        assert [*list_files([str(table)])] == named
    else:
        link(changed.path, alias)
        assert list_files([str(loose), str(table)]) == [*list_files([str(table)])]
        assert list_files([str(table), str(loose)]) == [*list_files([str(table)])]


def test_a_path_that_no_disk_has_costs_its_file_alone(table):
    log = table / "_delta_log" / f"{2:020d}.json"
    add = {"path": "a%00b.parquet", "partitionValues": {"date": "x", "account": "y"}, "size": 9, "stats": "{}"}
    log.write_text(json.dumps({"add": add | {"modificationTime": 1, "dataChange": True}}) + "\n")
    answers = [answer for _, answer in INSPECTOR.inspect_all(list_files([str(table)]), COLUMNS)]
    (fault,) = [answer for answer in answers if isinstance(answer, FileFault)]
    assert "the file's status cannot be read" in str(fault)


def test_a_file_that_vacuum_took_is_a_fault(table):
    (gone, _) = list_files([str(table)])
    Path(gone.path).unlink()
    with pytest.raises(FileFault, match="but the file no longer exists"):
        gone.check_unchanged()


def test_values_stand_in_the_names_of_folders(tmp_path):
    """Hive's convention; a column of the file itself comes first."""
    for folder, table in {
        "account=a%20b/date=2026-08-31": pa.table({"text": ["t"], "doc_id": ["1"]}),
        "account=__HIVE_DEFAULT_PARTITION__/date=no day": pa.table({"text": ["t"], "doc_id": ["2"]}),
        "account=path/date=2026-08-31": pa.table({"text": ["t"], "doc_id": ["3"], "account": ["file"]}),
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(table, tmp_path / folder / "1.parquet")
    found = documents(tmp_path)
    assert {name: row["account_id"] for name, row in found.items()} == {"1": "a b", "2": None, "3": "file"}
    assert found["2"]["unread"]
    assert not found["1"]["unread"]
    lone = find_file(str(tmp_path / "account=a%20b/date=2026-08-31/1.parquet"))
    (row,) = read(lone, COLUMNS, 0, 1)
    assert row["account_id"].to_pylist() == ["a b"]
    with pytest.raises(FileFault, match=r"column 'account' .text. is missing"):
        inspect(lone, Columns("account", None, None, None))
    assert values_of_path("x/=y/a=b=c/1.parquet") == (("", "y"), ("a", "b=c"))


def test_names_of_folders_mix_up_no_accounts():
    assert values_of_path("account=ann/date=1/account=ben/1.parquet") == (("date", "1"),)
    assert values_of_path("account=ann/account=ann/1.parquet") == (("account", "ann"),)
    assert values_of_path("account=a%FFb/1.parquet") != values_of_path("account=a%FEb/1.parquet")
    assert values_of_path("account=/1.parquet") == (("account", ""),)
    assert values_of_path("account=a%2Fb%25/account.parquet") == (("account", "a/b%"),)


def test_sets_of_rows_are_packed_and_unpacked():
    rng = np.random.default_rng(0)
    for size in (1, 7, 8, 9, 1000):
        rows = rng.random(size) < 0.1
        packed = pack_rows(rows)
        for start, stop in ((0, size), (3, size + 20), (size, size + 1), (5, 6)):
            padded = np.append(rows, np.zeros(50, bool))
            assert (unpack_rows(packed, start, stop) == padded[start:stop]).all()
        assert rows_sha256(packed) == rows_sha256(pack_rows(np.append(rows, [False] * 100)))

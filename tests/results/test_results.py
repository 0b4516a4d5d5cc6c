import json
import os
import shutil
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from scanner import results
from scanner.errors import Refused, ScanFailed, TableError, in_a_line
from scanner.results import retention
from scanner.results.queries import ask
from scanner.results.retention import erase_user
from scanner.results.scan_list import readiness
from scanner.results.transactions import TableEntry, Tables, append_scan, commit, find_committed, open_tables
from scanner.results.upkeep import compact, vacuum
from scanner.storage import delta
from scanner.storage.data_files import write_file
from scanner.storage.delta import make_table
from scanner.storage.locations import table_uri
from schemas.tables import QUARANTINE, SCANS, VERDICTS
from tests.support.command_line import call
from tests.support.rows import NOW, add, add_scanned, entry, filled, rows_of, verdict
from tests.support.synced import watch_syncs


def test_tables_are_made_once_and_kept(folder):
    add(folder, "one", [verdict(1)])
    open_tables(folder)
    assert rows_of(folder) == [1]
    assert results.exist(folder)


@pytest.mark.parametrize("name", sorted(results.__all__))
def test_every_query_takes_a_path_and_the_file_of_a_configuration(folder, name):
    add(folder, "one", [verdict(1)])
    config = Path(folder).parent / "scan.toml"
    settings = {"version": 2, "registry": "registry", "results": Path(folder).name, "false_positive_rate": 1e-6}
    config.write_text(tomli_w.dumps(settings | {"input": {"paths": ["in"]}}))
    query, more = getattr(results, name), {"table_uri": ["verdicts"]}

    def answer(place: object) -> object:
        try:
            found = query(place, *more.get(name, []))
            return found.collect().to_dicts() if isinstance(found, pl.LazyFrame) else str(found)
        except Refused as refused:
            return str(refused)

    expected = answer(str(folder))
    assert answer(Path(folder)) == expected
    assert answer(str(config)) == answer(config) == expected


def test_dir_shows_the_public_names_alone():
    assert dir(results) == sorted(results.__all__)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be opened or made"):
        open_tables(str(tmp_path / "file" / "results"))


@pytest.mark.parametrize(
    "other",
    [
        VERDICTS.remove(len(VERDICTS) - 1),
        VERDICTS.append(pa.field("to_come", pa.int64())),
        VERDICTS.set(3, pa.field("row", pa.string(), nullable=False)),
        VERDICTS.set(3, VERDICTS.field("row").with_nullable(True)),
    ],
    ids=["one less", "one more", "another kind", "null where there was none"],
)
def test_a_table_of_other_columns_is_refused(tmp_path, other):
    make_table(str(tmp_path / "verdicts"), other, {})
    for write in (open_tables, readiness):
        with pytest.raises(TableError, match="does not have the columns"):
            write(str(tmp_path))


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, "was made before 0.1.0"),
        ("1", "was made before 0.1.0, and is no longer supported"),
        ("3", "has version 3 of a newer"),
    ],
)
def test_a_table_of_another_version_is_refused_by_whoever_opens_it(folder, version, said):
    """Writers, readers and upkeep alike, in one sentence; nothing is changed."""
    uri = table_uri(folder, "verdicts")
    shutil.rmtree(uri)
    properties = {} if version is None else {"brickscan.version": version}
    DeltaTable.create(uri, VERDICTS, configuration=properties, raise_if_key_not_exists=False)
    before = DeltaTable(uri).version()
    writers = (open_tables, readiness, compact, vacuum, partial(erase_user, user_ids=["a"]))
    for opened in (*writers, results.verdicts, lambda results: find_committed(results, "verdicts", ["a"])):
        with pytest.raises(TableError, match=f"^table {uri}: {said}[^;]*; [^;]*$"):
            opened(folder)
    code, _, err = call("migrate", folder)
    assert (code, said in err) == (2, True)
    assert DeltaTable(uri).version() == before


def test_a_file_is_no_part_of_the_table_until_it_is_committed(folder):
    one = entry(folder, "one", [verdict(1), verdict(2)])
    assert rows_of(folder) == []
    assert commit(folder, "verdicts", [one]) == {"one"}
    assert rows_of(folder) == [1, 2]


def test_files_hold_what_was_given(folder):
    rows = [verdict(i, user="u", created_at=NOW) for i in range(5)]
    (file,) = entry(folder, "x", rows).files
    path = Path(table_uri(folder, "verdicts")) / file.name
    assert (file.size, file.rows) == (path.stat().st_size, 5)
    assert pq.read_table(path).schema.equals(VERDICTS)
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"
    assert json.loads(file.stats)["minValues"] == {"path": "/in/a", "row": 0, "log10_p_global": -1.0, "scan_id": "scan"}


def test_nothing_to_write_writes_nothing(folder):
    before = sorted(os.listdir(table_uri(folder, "quarantine")))
    assert write_file(folder, "quarantine", [pa.RecordBatch.from_pylist([], QUARANTINE)]) is None
    assert write_file(folder, "quarantine", []) is None
    assert sorted(os.listdir(table_uri(folder, "quarantine"))) == before


def test_a_disk_that_cannot_be_written_stops_the_scan(folder, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ScanFailed, match="No space left"):
        entry(folder, "x", [verdict(1)])


@pytest.mark.costly
def test_a_commit_is_on_the_disk_before_the_next_is_made(tmp_path, monkeypatch):
    """Else a machine that loses its power could keep verdicts whose flags, committed before them, are lost."""
    synced = watch_syncs(monkeypatch)
    folder = str(tmp_path / "results")
    open_tables(folder)
    tables = Tables(folder)
    retention._keep_for_a_time(tables, "verdicts")
    for number in range(99):  # deltalake writes a checkpoint with version 99
        commit(tables, "verdicts", [TableEntry(f"t{number}", ())])
    logs = Path(table_uri(folder, "verdicts"), "_delta_log")
    names = {path.name for path in logs.iterdir()}
    assert {"_last_checkpoint", f"{99:020d}.checkpoint.parquet", f"{100:020d}.json"} <= names
    assert {str(logs / name) for name in names} | {str(logs), str(logs.parent), folder} <= synced


def test_a_commit_that_may_not_be_on_the_disk_is_no_success_and_no_second_entry(folder, monkeypatch):
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(delta, "sync_to_disk", fail)
        with pytest.raises(ScanFailed, match="Input/output error"):
            add(folder, "one", [verdict(1)])
    assert add(folder, "one", [verdict(1)]) == set()
    assert rows_of(folder) == [1]


def test_a_transaction_enters_once(folder):
    assert add(folder, "one", [verdict(1)]) == {"one"}
    assert add(folder, "one", [verdict(1)]) == set()
    both = [entry(folder, "one", [verdict(1)]), entry(folder, "two", [verdict(2)])]
    assert commit(folder, "verdicts", both) == {"two"}
    assert rows_of(folder) == [1, 2]
    assert find_committed(folder, "verdicts", ["one", "two", "three"]) == {"one", "two"}


def test_a_transaction_without_rows_is_remembered(folder):
    assert commit(folder, "verdicts", [TableEntry("empty", ())]) == {"empty"}
    assert commit(folder, "verdicts", [TableEntry("empty", ())]) == set()
    assert rows_of(folder) == []


def test_transactions_outlive_checkpoints_compaction_and_vacuum(folder):
    for i in range(5):
        add(folder, f"t{i}", [verdict(i)])
    table = DeltaTable(table_uri(folder, "verdicts"))
    table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    DeltaTable(table_uri(folder, "verdicts")).vacuum(0, False, enforce_retention_duration=False, full=True)
    assert add(folder, "t3", [verdict(3)]) == set()
    assert rows_of(folder) == [0, 1, 2, 3, 4]


def test_what_delta_does_with_two_writers_of_one_snapshot(folder):
    """`commit` stands on two facts: Delta accepts a transaction that it knows, and refuses an outdated snapshot."""
    uri = table_uri(folder, "verdicts")

    def write(table: DeltaTable, transaction: str) -> None:
        (file,) = entry(folder, transaction, [verdict(1)]).files
        action = AddAction(file.name, file.size, {}, 0, True, file.stats)
        properties = CommitProperties(max_commit_retries=0, app_transactions=[Transaction(transaction, 1)])
        table.create_write_transaction([action], "append", VERDICTS, commit_properties=properties)

    first, second = DeltaTable(uri), DeltaTable(uri)
    assert first.transaction_version("a") is second.transaction_version("a") is None
    write(first, "a")
    with pytest.raises(CommitFailedError):
        write(second, "a")
    with pytest.raises(CommitFailedError):
        write(second, "b")
    write(DeltaTable(uri), "a")  # without a look-up, the row is there twice
    assert rows_of(folder) == [1, 1]


def test_a_writer_that_comes_between_is_seen(folder, monkeypatch):
    """Another driver commits the same shard after our look-up and before our commit."""
    ours = entry(folder, "one", [verdict(1)])
    theirs = entry(folder, "one", [verdict(1)])
    real = DeltaTable.create_write_transaction
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lambda *a, **k: intrude(*a, **k))

    def intrude(table, *args, **kwargs):
        monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
        assert commit(folder, "verdicts", [theirs]) == {"one"}
        real(table, *args, **kwargs)

    assert commit(folder, "verdicts", [ours]) == set()
    assert rows_of(folder) == [1]


def test_racing_writers_lose_nothing_and_double_nothing(folder):
    """Four drivers, each committing the same twenty shards in its own order, two at a time."""
    won: list[set[str]] = []
    failures: list[BaseException] = []

    def drive(seed: int) -> None:
        try:
            order = sorted(range(20), key=lambda i: (i * (2 * seed + 7)) % 23)
            for pair in zip(order[::2], order[1::2], strict=True):
                entries = [entry(folder, f"shard-{i}", [verdict(i)]) for i in pair]
                won.append(commit(folder, "verdicts", entries))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows_of(folder) == list(range(20))
    assert sorted(i for ids in won for i in ids) == sorted(f"shard-{i}" for i in range(20))


def test_commits_that_always_lose_end(folder, monkeypatch):
    real = DeltaTable.create_write_transaction

    def lose(table, *_args, **_kwargs):
        real(DeltaTable(table.table_uri), [], "append", table.schema())
        raise CommitFailedError("someone else was first")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with pytest.raises(ScanFailed, match="other processes committed first"):
        add(folder, "one", [verdict(1)])


def test_the_newest_verdict_of_a_row_counts(folder):
    old = [verdict(1, user="u", age=2), verdict(2, user="u", age=2), verdict(3, age=2)]
    new = [verdict(1, age=1), verdict(3, user="v", age=1), verdict(1, "/in/b", user="w", age=3)]
    add_scanned(folder, "old", [row | {"shard_id": "old", "scan_id": "old"} for row in old], keys="same")
    for row in new:  # a shard's rows follow each other
        shard = {"shard_id": f"new {row['row']}", "scan_id": "new"}
        add_scanned(folder, f"new {row['path']} {row['row']}", [row | shard], keys="same")
    found = results.verdicts(folder).sort("path", "row").collect()
    assert found.select("path", "row", "user_id").rows() == [
        ("/in/a", 1, None),
        ("/in/a", 2, "u"),
        ("/in/a", 3, "v"),
        ("/in/b", 1, "w"),
    ]
    assert results.flagged(folder).collect()["user_id"].to_list() == ["v", "u", "w"]  # newest first


def test_rows_beyond_the_end_of_a_shorter_file_keep_their_verdicts(folder):
    old, new = {"shard_id": "long", "scan_id": "old"}, {"shard_id": "short", "scan_id": "new"}
    add_scanned(folder, "long", [verdict(row, age=2, user="u") | old for row in range(4)], keys="same")
    add_scanned(folder, "short", [verdict(row, age=1) | new for row in range(2)], keys="same")
    assert sorted(results.flagged(folder).collect()["row"]) == [2, 3]


@pytest.mark.costly
def test_the_newest_verdicts_whatever_shards_there_were(folder):
    """Verdicts equal those of a plain loop over files scanned once, again in other shards, or in part."""
    generator = np.random.default_rng(7)
    expected: dict[tuple[str, int], float] = {}
    for i in range(60):
        path, age = f"/in/{generator.integers(20)}", int(generator.integers(1000))
        start = int(generator.integers(8)) * 5
        rows = range(start, start + 5 * int(generator.integers(1, 4)))
        scan = {"shard_id": f"t{i}", "scan_id": f"t{i}"}
        found = [verdict(row, path, age=age, score=float(age)) | scan for row in rows]
        add_scanned(folder, f"t{i}", found, keys="same")
        for row in rows:
            expected[path, row] = min(age, expected.get((path, row), age))
    found = results.verdicts(folder).collect()
    shards = pl.read_delta(table_uri(folder, "verdicts")).group_by("path").agg(pl.col("shard_id").n_unique())
    assert shards["shard_id"].min() == 1  # some files have one shard, others several
    assert {(path, row): score for path, row, score in found.select("path", "row", "score").iter_rows()} == expected
    assert len(found) == len(expected)


def test_beside_a_flag_stands_what_audits_said_that_took_in_some_of_its_scan(folder):
    """An alarm stays. Otherwise the newest audit stands, even if it covered only a part of the scan."""
    for scan in ("first", "second", "killed"):
        add_scanned(folder, scan, [verdict(0, f"/in/{scan}", user="u", scan_id=scan)])

    def states(scan: str, audit: str, *audited: str) -> list[str | None]:
        started = NOW + timedelta(hours=len(results.scans(folder).collect()))
        append_scan(folder, filled(SCANS, scan_id=scan, audit=audit, audited_scans=audited, started_at=started))
        return results.flagged(folder).sort("path").collect()["audit"].to_list()  # files first, killed, second

    assert states("first", "not judged", "first") == ["not judged", None, None]
    assert states("second", "no alarm", "first", "second") == ["no alarm", None, "no alarm"]
    assert states("third", "alarm", "first") == ["alarm", None, "no alarm"]
    assert states("fourth", "no decoys", "first", "second") == ["alarm", None, "no decoys"]
    assert states("fifth", "possible framing", "second") == ["alarm", None, "possible framing"]
    assert states("sixth", "no alarm", "first", "second") == ["alarm", None, "possible framing"]


def test_statistics_do_not_hide_rows(folder):
    add(folder, "a", [verdict(i, log10_p_global=-float(i)) for i in range(10)])
    add(folder, "b", [verdict(i, "/in/b", log10_p_global=-float(i)) for i in range(10, 20)])
    table = results.verdicts(folder)
    assert table.filter(pl.col("log10_p_global") <= -9).collect().height == 11
    assert table.filter(pl.col("path") == "/in/b", pl.col("row") < 12).collect().height == 2
    assert DeltaTable(table_uri(folder, "verdicts")).count() == 20


def test_verdicts_on_one_file_open_no_other(folder):
    open_tables(folder)
    for i, path in enumerate(("/in/a", "/in/b", "/in/c")):
        add(folder, path, [verdict(i, path), verdict(9, path)])
    files = {path: file for file in Path(table_uri(folder, "verdicts")).glob("*.parquet") for path in _paths(file)}
    files["/in/b"].unlink()
    assert results.verdicts(folder, ["/in/a"]).collect()["row"].sort().to_list() == [0, 9]
    assert results.verdicts(folder, ["/in/c", "/in/d"]).collect()["path"].unique().to_list() == ["/in/c"]
    assert results.verdicts(folder, []).collect().is_empty()
    with pytest.raises(FileNotFoundError):
        results.verdicts(folder, ["/in/b"]).collect()


def _paths(file: Path) -> set[str]:
    return set(pq.read_table(file, columns=["path"])["path"].to_pylist())


def test_names_are_erased_and_rows_stay(folder):
    users = ["alice", "o'hara", "bob", None]
    add(folder, "a", [verdict(i, user=user, message=i) for i, user in enumerate(users)])
    assert erase_user(folder, ["o'hara", "alice", "nobody", "x') OR ('1'='1"]) == 2
    found = results.verdicts(folder).sort("row").collect()
    assert found["user_id"].to_list() == [None, None, "bob", None]
    assert found["naming"].to_list() == ["removed", "removed", "named", "none"]
    assert found["flagged"].to_list() == [True, True, True, False]
    for file in Path(table_uri(folder, "verdicts")).rglob("*"):  # data, log and statistics alike
        assert not file.is_file() or not any(name in file.read_bytes() for name in (b"o'hara", b"alice")), file
    assert erase_user(folder, ["alice"]) == 0
    assert add(folder, "a", [verdict(0, user="alice")]) == set()  # a rerun does not bring the name back
    assert commit(folder, "verdicts", [entry(folder, "b", [verdict(9)])]) == {"b"}


def test_an_erasure_that_died_before_it_deleted_files_is_finished_by_the_same_command(folder, monkeypatch):
    add(folder, "a", [verdict(i, user="alice", message=7) for i in range(3)])

    def holding() -> int:
        files = Path(table_uri(folder, "verdicts")).glob("*.parquet")
        return sum("alice" in pq.read_table(file)["user_id"].to_pylist() for file in files)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "delete_unneeded", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            erase_user(folder, ["alice"])
    assert holding() == 1
    assert erase_user(folder, []) == 0
    assert holding() == 1
    assert (erase_user(folder, ["alice"]), holding()) == (0, 0)


@pytest.mark.costly
def test_a_query_is_asked_again_when_an_erasure_took_its_files(folder):
    names = [f"user {i}" for i in range(20)]
    add(folder, "a", [verdict(i, user=name, message=i) for i, name in enumerate(names)])
    asked: list[str] = []

    def question(erasures: int) -> pl.DataFrame:
        rows = results.verdicts(folder)
        if len(asked) < erasures:
            asked.append(names[len(asked)])
            erase_user(folder, asked[-1:])
        return rows.collect()

    found = ask(folder, lambda: question(2))
    assert (len(asked), found["user_id"].null_count()) == (2, 2)
    with pytest.raises(ScanFailed, match="cannot be read while names are erased from it; run again later"):
        ask(folder, lambda: question(20))
    with pytest.raises(pl.exceptions.ColumnNotFoundError):  # an error without any erasure
        ask(folder, lambda: results.verdicts(folder).select("nothing").collect())


DAMAGES = {
    "files gone": ("*.parquet", Path.unlink),
    "files torn": ("*.parquet", lambda file: file.write_bytes(bytes(file.stat().st_size))),
    "log gone": ("_delta_log/*.json", Path.unlink),
    "log torn": ("_delta_log/*.json", lambda file: file.write_text("{torn")),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["verdicts", "flags", "shards", "scans", "decisions"])
def test_a_damaged_table_is_told_in_a_sentence_to_whoever_asks_it(folder, name, damage):
    """Commands and pages that ask get the rows, or an error of ours."""
    add(folder, "a", [verdict(1, user="alice", flagged=True)])
    open_tables(folder, ["decisions"])
    pattern, harm = DAMAGES[damage]
    for file in Path(table_uri(folder, name)).glob(pattern):
        harm(file)
    for query in (results.verdicts, results.flagged, results.scans, results.decisions):
        with suppress(Refused, TableError, ScanFailed):
            ask(folder, lambda query=query: query(folder).collect())
    if damage == "log torn":
        with pytest.raises(ScanFailed, match=r"^results: .* cannot be read: .*; check that it is complete"):
            ask(folder, lambda: DeltaTable(table_uri(folder, name)))


def test_without_results_it_says_what_to_do(tmp_path):
    for query in (results.verdicts, results.flagged, results.quarantine, results.scans):
        with pytest.raises(Refused, match="run `brickscan scan` first"):
            query(str(tmp_path))
    with pytest.raises(Refused):
        erase_user(str(tmp_path), ["alice"])
    assert not results.exist(str(tmp_path))


def test_a_stricter_rate_takes_back_what_a_looser_one_flagged(folder):
    add_scanned(folder, "a", [verdict(i, user="u", log10_p_global=-float(i)) for i in range(10)])
    assert results.flagged(folder).collect().height == 10
    assert sorted(results.flagged(folder, 1e-6).collect()["row"]) == [6, 7, 8, 9]


def test_errors_of_delta_are_told_in_a_line():
    told = in_a_line(OSError("Generic error\n   \x1b[31m↳\x1b[0m Unable to copy\n   ↳ No space left"))
    assert told == "Generic error Unable to copy No space left"

"""Merging and removing files of the tables: no row changes and nothing is done twice, whatever else runs."""

import json
import os
import threading
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from scanner import results
from scanner.errors import Refused, ScanFailed
from scanner.results import transactions, upkeep
from scanner.results.retention import erase_accounts, erase_user
from scanner.results.transactions import TableEntry, append_audits, append_scan, commit, find_committed
from scanner.results.upkeep import compact, vacuum
from scanner.signing import sign_with
from scanner.storage.data_files import write_file
from scanner.storage.locations import table_uri
from schemas.audit import AUDITS
from schemas.tables import QUARANTINE, SCANS
from tests.support.command_line import call
from tests.support.rows import NOW, add, entry, filled, rows_of, verdict
from tests.support.signed_results import NOT_CHECKED

DAY = 86_400


def files_of(folder: str, name: str = "verdicts") -> set[str]:
    """Parquet files on the disk, part of the table or not."""
    return {path.name for path in Path(table_uri(folder, name)).glob("*.parquet")}


def part_of(folder: str, name: str = "verdicts") -> set[str]:
    return {Path(uri).name for uri in DeltaTable(table_uri(folder, name)).file_uris()}


def all_rows(folder: str, name: str = "verdicts") -> pl.DataFrame:
    return pl.read_delta(table_uri(folder, name)).sort("path", "row")


def age(folder: str, names: set[str], days: float, name: str = "verdicts") -> None:
    for file in names:
        then = time.time() - days * DAY
        os.utime(Path(table_uri(folder, name)) / file, (then, then))


def test_small_files_become_one_and_no_row_changes(folder):
    for i in range(6):
        add(folder, f"t{i}", [verdict(2 * i, user="u", created_at=NOW, log10_p_global=-float(i)), verdict(2 * i + 1)])
        refused = {k: v for k, v in verdict(i).items() if k in QUARANTINE.names} | {"reason": "failed", "detail": "é"}
        file = write_file(folder, "quarantine", [pa.RecordBatch.from_pylist([refused], QUARANTINE)])
        commit(folder, "quarantine", [TableEntry(f"t{i}", (file,))])
        append_scan(folder, filled(SCANS, scan_id=f"scan {i}"))
    tables = ("verdicts", "quarantine", "scans")
    before = {name: pl.read_delta(table_uri(folder, name)) for name in tables}
    done = {done.table: (done.gone, done.made) for done in compact(folder) if done.gone}
    assert done == dict.fromkeys(tables, (6, 1))
    for name in tables:
        after = pl.read_delta(table_uri(folder, name))
        assert after.schema == before[name].schema
        assert sorted(map(repr, after.rows())) == sorted(map(repr, before[name].rows()))
        assert len(part_of(folder, name)) == 1
    found = results.verdicts(folder)
    assert found.filter(pl.col("log10_p_global") <= -4).collect().height == 2  # statistics of the merged file
    assert DeltaTable(table_uri(folder, "verdicts")).count() == 12
    assert {(done.gone, done.made) for done in compact(folder)} == {(0, 0)}


def test_files_that_delta_wrote_itself_are_merged_too(folder):
    """Delta itself wrote the files of an erasure and of audits."""
    for i in range(4):
        add(folder, f"t{i}", [verdict(i, user="alice" if i % 2 else "bob", message=i % 2, created_at=NOW)])
        append_audits(folder, [filled(AUDITS, audit_id=f"audit {i}")] * 2)
    erase_user(folder, ["alice"])
    before, audits = all_rows(folder), results.audits(folder).sort("audit_id").collect()
    compact(folder)
    assert all_rows(folder).equals(before)
    assert results.audits(folder).sort("audit_id").collect().equals(audits)
    assert len(part_of(folder)) == len(part_of(folder, "audits")) == 1


def test_large_files_are_left_alone_and_groups_have_a_size(folder, monkeypatch):
    for i in range(12):
        add(folder, f"t{i}", [verdict(i)])
    size = DeltaTable(table_uri(folder, "verdicts")).get_add_actions()
    one = max(pa.table(size)["size_bytes"].to_pylist())
    monkeypatch.setattr(upkeep, "MERGED_BYTES", 4 * one)
    compact(folder)
    assert len(part_of(folder)) in (3, 4)
    assert rows_of(folder) == list(range(12))
    monkeypatch.setattr(upkeep, "MERGED_BYTES", one)
    assert {done.gone for done in compact(folder)} == {0}


def together(*calls) -> list[BaseException]:
    """Run functions in threads that begin together; returns the errors that they raised."""
    failures: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def run(function) -> None:
        try:
            gate.wait()
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_two_compactions_of_one_snapshot_merge_once(folder, monkeypatch):
    """Both merge the same files before either commits. The second finds them gone, and deletes its own file."""
    for i in range(8):
        add(folder, f"t{i}", [verdict(i)])
    meet, real = threading.Barrier(2), upkeep._merge

    def merge_and_wait(*arguments):
        merged = real(*arguments)
        meet.wait(30)
        return merged

    monkeypatch.setattr(upkeep, "_merge", merge_and_wait)
    assert together(lambda: compact(folder), lambda: compact(folder)) == []
    assert rows_of(folder) == list(range(8))
    assert len(part_of(folder)) == 1
    assert len(files_of(folder)) == 8 + 1


def test_what_delta_does_with_two_compactions_of_one_snapshot(folder):
    """Two compactions by Delta itself double every row, hence our own. If this test fails one day, ours can go."""
    for i in range(4):
        add(folder, f"t{i}", [verdict(i)])
    first, second = (DeltaTable(table_uri(folder, "verdicts")) for _ in range(2))
    first.optimize.compact()
    second.optimize.compact()
    assert rows_of(folder) == sorted([*range(4), *range(4)])


def test_a_commit_whose_success_was_not_told_is_not_undone(folder, monkeypatch):
    """A store may answer a repeated put with `exists`, although the existing file is our own."""
    for i in range(4):
        add(folder, f"t{i}", [verdict(i)])
    real = DeltaTable.create_write_transaction

    def commit_and_deny(*arguments, **options):
        monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
        real(*arguments, **options)
        raise CommitFailedError("exists")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit_and_deny)
    assert {done.table: done.gone for done in compact(folder)}["verdicts"] == 4
    assert rows_of(folder) == [0, 1, 2, 3]
    assert part_of(folder) <= files_of(folder)


@pytest.mark.costly
def test_compactions_a_scan_and_an_erasure_at_once(folder):
    for i in range(20):
        add(folder, f"old-{i}", [verdict(i, user="alice" if i % 5 == 0 else "bob", message=i % 5)])

    def scan() -> None:
        for i in range(20, 40):
            add(folder, f"new-{i}", [verdict(i)])

    def compact_often() -> None:
        for _ in range(6):
            compact(folder)

    def erase() -> None:
        assert erase_user(folder, ["alice"]) == 4

    assert together(scan, scan, compact_often, compact_often, erase, lambda: vacuum(folder)) == []
    assert rows_of(folder) == list(range(40))
    named = all_rows(folder).sort("row")["user_id"].to_list()
    assert named[:20] == [None if i % 5 == 0 else "bob" for i in range(20)]
    compact(folder)
    assert rows_of(folder) == list(range(40))


@pytest.mark.costly
def test_several_erasures_at_once_leave_no_name_and_count_each_row_once(folder):
    """Each erasure at once deletes the files that held its names, while the others read them."""
    for i in range(30):
        add(folder, f"t{i}", [verdict(4 * i + j, user=f"user {j}", message=j) for j in range(4)])
    erased: list[int] = []
    names = [f"user {j}" for j in (0, 0, 1, 1, 2, 2)]
    assert together(*(lambda name=name: erased.append(erase_user(folder, [name])) for name in names)) == []
    assert sorted(erased) == [0, 0, 0, 30, 30, 30]
    assert all_rows(folder)["user_id"].value_counts().sort("count").rows() == [("user 3", 30), (None, 90)]
    assert rows_of(folder) == list(range(120))


def test_a_table_that_lost_a_file_is_told_and_no_name_is_erased(folder):
    for i in range(2):
        add(folder, f"t{i}", [verdict(i, user="alice")])
    name = sorted(part_of(folder))[0]
    (Path(table_uri(folder, "verdicts")) / name).unlink()
    with pytest.raises(ScanFailed, match=f"verdicts/{name} cannot be read"):
        erase_user(folder, ["alice"])


def test_an_erasure_is_not_undone_by_a_merge_that_had_read_the_name(folder, monkeypatch):
    for i in range(4):
        add(folder, f"t{i}", [verdict(i, user="alice", message=7)])
    real = upkeep._merge

    def merge_then_erase(*arguments):
        merged = real(*arguments)
        assert erase_user(folder, ["alice"]) == 4
        return merged

    monkeypatch.setattr(upkeep, "_merge", merge_then_erase)
    compact(folder)
    assert all_rows(folder)["user_id"].to_list() == [None] * 4
    for file in Path(table_uri(folder, "verdicts")).rglob("*"):
        assert not file.is_file() or b"alice" not in file.read_bytes(), file


def test_a_commit_that_the_store_carries_out_after_its_answer_was_lost_finds_its_files(folder, monkeypatch):
    for i in range(4):
        add(folder, f"t{i}", [verdict(i)])
    sent = []

    def lost(*arguments):
        sent.append(arguments)
        raise ScanFailed("no answer")

    real = upkeep.try_to_commit
    monkeypatch.setattr(upkeep, "try_to_commit", lost)
    with pytest.raises(ScanFailed, match="no answer"):
        compact(folder)
    assert rows_of(folder) == list(range(4))
    assert real(*sent[0])
    assert len(part_of(folder)) == 1
    assert rows_of(folder) == list(range(4))


@pytest.mark.parametrize("error", [FileNotFoundError("no such file"), OSError("NoSuchKey: the key does not exist")])
def test_a_file_that_an_erasure_takes_while_it_is_merged_is_left_out(folder, monkeypatch, error):
    for i in range(4):
        add(folder, f"t{i}", [verdict(i, user="alice", message=7)])

    def gone(*_arguments, **_options):
        monkeypatch.undo()
        erase_user(folder, ["alice"])
        raise error

    monkeypatch.setattr(upkeep.pq, "read_table", gone)
    compact(folder)
    assert all_rows(folder)["user_id"].to_list() == [None] * 4
    assert rows_of(folder) == list(range(4))


def test_what_is_committed_stays_so_after_upkeep_checkpoints_and_a_cleaned_log(folder):
    transactions = [f"t{i}" for i in range(6)]
    for i, transaction in enumerate(transactions):
        add(folder, transaction, [verdict(i)])
    compact(folder)
    uri = table_uri(folder, "verdicts")
    DeltaTable(uri).create_checkpoint()
    log = Path(uri) / "_delta_log"
    for file in log.glob("*.json"):
        os.utime(file, (time.time() - 60 * DAY,) * 2)
    DeltaTable(uri).cleanup_metadata()
    assert not (log / f"{0:020}.json").exists(), "the log was not cleaned: this test looks at nothing"
    age(folder, files_of(folder), 60)
    vacuum(folder)
    assert find_committed(folder, "verdicts", transactions) == set(transactions)
    assert add(folder, "t3", [verdict(3)]) == set()
    assert rows_of(folder) == list(range(6))


def test_vacuum_removes_what_nothing_needs_after_the_retention(folder):
    for i in range(4):
        add(folder, f"t{i}", [verdict(i)])
    merged = part_of(folder)
    lost, being_written = (entry(folder, "never", [verdict(9)]).files[0].name for _ in range(2))
    half = Path(table_uri(folder, "verdicts")) / "part-half.parquet"
    half.write_bytes(b"PAR1 and no more")
    age(folder, {lost, half.name, *merged}, 8)
    compact(folder)
    assert {done.table: done.gone for done in vacuum(folder) if done.gone} == {"verdicts": 2}
    # merged files were replaced only now, so that readers of them go on
    assert files_of(folder) == part_of(folder) | merged | {being_written}
    assert rows_of(folder) == list(range(4))
    age(folder, {being_written}, 1.5)
    vacuum(folder, retention_hours=48)
    assert being_written in files_of(folder)
    vacuum(folder, retention_hours=24)
    assert being_written not in files_of(folder)


def test_an_erasure_removes_the_files_of_failed_attempts_of_a_day_ago(folder):
    add(folder, "t", [verdict(1, user="alice")])
    lost, being_written = (entry(folder, "x", [verdict(9, user="alice")]).files[0].name for _ in range(2))
    age(folder, {lost}, 1.5)
    erase_user(folder, ["alice"])
    assert files_of(folder) == part_of(folder) | {being_written}


def old_files(folder: Path) -> Path:
    """A folder of files that vacuum would delete in a table: named like data files, and 30 days old."""
    (folder / "deeper").mkdir(parents=True)
    for file in (folder / "part-0.parquet", folder / "deeper" / "part-1.parquet", folder / "keys.toml"):
        file.write_bytes(b"of others")
        os.utime(file, (time.time() - 30 * DAY,) * 2)
    return folder


DELETING = {
    "vacuum": vacuum,
    "an erasure": lambda folder: erase_user(folder, ["alice"]),
    "an erasure of accounts": lambda folder: erase_accounts(folder, ["an account"]),
}


@pytest.mark.parametrize("delete", DELETING.values(), ids=DELETING)
def test_no_link_is_followed_and_no_folder_looked_into(folder, tmp_path, delete):
    add(folder, "t", [verdict(1, user="alice")])
    others, table = old_files(tmp_path / "others"), Path(table_uri(folder, "verdicts"))
    (table / "x").symlink_to(others)
    (table / "part-linked.parquet").symlink_to(others / "part-0.parquet")
    (table / "part-folder.parquet").symlink_to(others)
    (table / "part-nowhere.parquet").symlink_to(tmp_path / "nowhere")
    (table / "cycle").symlink_to(table)
    old_files(table / "subfolder")
    (table / "unlike-data.toml").write_bytes(b"")
    age(folder, {"unlike-data.toml"}, 30)
    before = {path for path in (*tmp_path.rglob("*"),) if "part-" not in path.name or "others" in path.parts}
    lost = entry(folder, "x", [verdict(9)]).files[0].name
    age(folder, {lost}, 8)
    delete(folder)
    assert not (table / lost).exists()
    assert before <= {*tmp_path.rglob("*")}
    assert {path.name for path in table.rglob("part-*")} >= {"part-linked.parquet", "part-0.parquet", "part-1.parquet"}
    assert len(all_rows(folder)) == 1


@pytest.mark.parametrize("change", [*DELETING.values(), compact], ids=[*DELETING, "compact"])
def test_a_table_that_is_a_link_is_refused(folder, tmp_path, change):
    for i in range(2):
        add(folder, f"t{i}", [verdict(i, user="alice")])
    table, elsewhere = Path(table_uri(folder, "flags")), tmp_path / "elsewhere"
    table.rename(elsewhere)
    table.symlink_to(elsewhere)
    before = files_of(folder)
    with pytest.raises(Refused, match="flags: is a link"):
        change(folder)
    assert files_of(folder) == before
    with pytest.raises(ScanFailed, match="flags cannot be deleted"):  # it became a link after it was looked at
        upkeep.delete_unneeded(folder, "flags", 0, 24)


def test_paths_of_removals_lead_nowhere_else(folder, tmp_path):
    """Whoever can write the log can have it say that a file left the table, wherever that lies."""
    add(folder, "t", [verdict(1)])
    others, log = old_files(tmp_path / "others"), Path(table_uri(folder, "verdicts")) / "_delta_log"
    (Path(table_uri(folder, "verdicts")) / "x").symlink_to(others)
    for path in ("x/part-0.parquet", f"{others}/part-0.parquet", f"file://{others}/part-0.parquet", "..%2F..%2Fothers"):
        removal = {"path": path, "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": False}
        version = DeltaTable(table_uri(folder, "verdicts")).version() + 1
        (log / f"{version:020}.json").write_text(json.dumps({"remove": removal}))
    assert {done.gone for done in vacuum(folder)} == {0}
    assert sorted(path.name for path in others.rglob("part-*")) == ["part-0.parquet", "part-1.parquet"]


def test_vacuum_goes_by_a_checkpoint_too(folder):
    """What was replaced lately stays for readers, also after the commits that replaced it are cleaned up."""
    for i in range(4):
        add(folder, f"t{i}", [verdict(i)])
    merged = part_of(folder)
    age(folder, merged, 30)
    compact(folder)
    uri = table_uri(folder, "verdicts")
    DeltaTable(uri).create_checkpoint()
    for file in (Path(uri) / "_delta_log").glob("*.json"):
        os.utime(file, (time.time() - 60 * DAY,) * 2)
    DeltaTable(uri).cleanup_metadata()
    assert {done.gone for done in vacuum(folder, 24)} == {0}
    assert merged <= files_of(folder)
    upkeep.delete_unneeded(folder, "verdicts", 0, 24)
    assert files_of(folder) == part_of(folder)


def test_a_missing_file_is_told_and_nothing_is_merged(folder):
    for i in range(3):
        add(folder, f"t{i}", [verdict(i)])
    name = sorted(part_of(folder))[0]
    (Path(table_uri(folder, "verdicts")) / name).unlink()
    with pytest.raises(ScanFailed, match=f"{name}, which the table needs, cannot be read"):
        compact(folder)
    assert len(part_of(folder)) == 3


def test_refusals(tmp_path, folder):
    for function in (compact, vacuum):
        with pytest.raises(Refused, match="there are no tables"):
            function(str(tmp_path))
    for hours in (0, 23, 169):
        with pytest.raises(Refused, match="24 to 168 are allowed"):
            vacuum(folder, hours)


@pytest.mark.parametrize(
    "command",
    [("compact",), ("vacuum",), ("migrate",), ("retain", "--keep", "400"), ("flagged",), ("quarantine",), ("status",)],
)
def test_commands_on_a_bare_folder_say_that_tables_were_not_checked(folder, command):
    name, *options = command
    code, out, err = call(name, folder, *options)
    assert (code, NOT_CHECKED in out + err) == (0, True), out + err


def test_commands(night):
    sign_with(night.results, str(night.registry))
    transactions.open_tables(night.results)
    for i in range(3):
        add(night.results, f"t{i}", [verdict(i)])
    code, out, err = call("compact", night.config)
    assert (code, err) == (0, "")
    assert "verdicts       3 files merged into 1" in out.splitlines()
    old = files_of(night.results) - part_of(night.results)
    assert "verdicts       0 files deleted" in call("vacuum", night.results)[1].splitlines()
    assert old <= files_of(night.results)
    for command in ("compact", "vacuum"):
        assert call(command, night.folder / "nowhere")[0] == 2
        assert "is no folder, nor the file" in call(command, night.folder / "nowhere")[2]
        assert call(command, night.input)[0] == 2
        assert call(command, "s3://me:hunter2@bucket/x")[0] == 2
    assert call("vacuum", night.results, "--retention", "1")[0] == 2

"""Logs that cannot be read, and registries that cannot be written: what people are told, and what stays readable."""

import builtins
import errno
import io
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from scanner.errors import Refused, ScanFailed, TableError
from scanner.results import transactions
from scanner.results.sign_anew import faults_of_tables, sign_anew
from scanner.results.transactions import Tables, open_tables, read_whole, refuse_changed_tables
from scanner.results.upkeep import compact, vacuum
from scanner.signing import keep_signatures, opened_signers, signer_of, unchecked
from scanner.storage import delta
from scanner.storage.locations import absolute, read_whole_file, table_uri
from tests.support.command_line import call
from tests.support.rows import add_scanned as add
from tests.support.rows import verdict
from tests.support.signed_results import files, reopen, rows


def next_commit(folder: str, *actions: dict) -> None:
    """Write the next commit of `flags` by hand."""
    table = Path(table_uri(folder, "flags"))
    path = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020}.json"
    path.write_text("\n".join(map(json.dumps, actions)) + "\n")


def added(folder: str) -> dict:
    logs = sorted((Path(table_uri(folder, "flags")) / "_delta_log").glob("*.json"))
    return next(
        action["add"] for log in logs for action in map(json.loads, log.read_text().splitlines()) if "add" in action
    )


def write_odd_statistics(folder: str) -> None:
    next_commit(folder, {"add": added(folder) | {"path": "%zz%ff.parquet", "stats": "{]"}})


def write_odd_commit_info(folder: str) -> None:
    gone = {"path": added(folder)["path"], "dataChange": True, "deletionTimestamp": 0}
    next_commit(folder, {"remove": gone}, {"commitInfo": {"operation": "OPTIMIZE", "engineInfo": {}, "timestamp": "x"}})


def write_a_transaction_too_large(folder: str) -> None:
    next_commit(folder, {"txn": {"appId": "x", "version": 2**70}})


def take_a_commit_out(folder: str) -> None:
    sorted((Path(table_uri(folder, "flags")) / "_delta_log").glob("*.json"))[2].unlink()


def put_a_file_in_its_place(folder: str) -> None:
    shutil.rmtree(table_uri(folder, "flags"))
    Path(table_uri(folder, "flags")).write_text("x")


DAMAGES = [
    write_odd_statistics, write_odd_commit_info, write_a_transaction_too_large, take_a_commit_out,
    put_a_file_in_its_place,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_that_cannot_be_read_is_that_table_s_fault(signed, own_secret, damage):
    damage(signed)
    reopen(signed, own_secret)
    if damage is put_a_file_in_its_place:
        with pytest.raises(ScanFailed, match="flags"):
            faults_of_tables(signed)
    else:
        assert {name for name, fault in faults_of_tables(signed).items() if fault is not None} == {"flags"}
    for ask in (compact, vacuum, rows, refuse_changed_tables):
        with pytest.raises((TableError, ScanFailed), match="results"):
            ask(signed)


def test_a_fifo_in_the_place_of_a_file_is_refused(signed, own_secret):
    file = files(signed)[0]
    file.unlink()
    os.mkfifo(file)
    reopen(signed, own_secret)
    for ask in (rows, compact, lambda folder: sign_anew(folder, "flags", "")):
        with pytest.raises((Refused, TableError, ScanFailed), match=f"FIFO.*{file.name}|{file.name}.*FIFO"):
            ask(signed)
    unsigned = str(Path(signed).with_name("unsigned"))  # no registry is named
    shutil.move(signed, unsigned)
    with pytest.raises(ScanFailed, match=f"FIFO.*{file.name}"):
        rows(unsigned)


def test_a_file_that_is_gone_is_named_by_who_reads_outside_of_queries_too(signed):
    """As scans read the rows of `shards`; it showed where in the code that failed."""
    files(signed)[0].unlink()
    with pytest.raises(ScanFailed, match=rf"{files(signed)[0].parent}/part-.* cannot be read: .*; restore it"):
        read_whole(signed, "flags").collect()


def test_a_file_for_which_there_is_no_memory_is_named(tmp_path, monkeypatch):
    """As a data file that somebody let grow to a terabyte of zeros."""

    class NoMemory(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raise MemoryError(size)

    path = tmp_path / "part.parquet"
    path.write_bytes(b"12345")
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", NoMemory)
        with pytest.raises(OSError, match=r"there is no memory for its 5 bytes: .*part\.parquet"):
            read_whole_file(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_stands_where_the_next_commit_belongs_is_named(signed, own_secret, make):
    """Readers pass over it, and no commit is ever made."""
    table = Path(table_uri(signed, "flags"))
    blocking = table / "_delta_log" / f"{DeltaTable(table).version() + 1:020}.json"
    make(blocking)
    reopen(signed, own_secret)
    with pytest.raises(ScanFailed, match=f"cannot be written: {blocking} is not a file .*: delete it"):
        compact(signed)


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: (path.touch(), os.truncate(path, 2**40)),
    ],
)
@pytest.mark.parametrize("file_name", ["_last_checkpoint", f"{1:020}.crc"])
def test_a_file_of_a_log_without_an_end_is_refused(signed, own_secret, make, file_name):
    """Deltalake would wait for a writer, or read until no memory is left, and no interrupt would end it."""
    make(Path(table_uri(signed, "flags"), "_delta_log", file_name))
    reopen(signed, own_secret)
    for ask in (rows, refuse_changed_tables, compact, vacuum, open_tables, faults_of_tables):
        with pytest.raises(TableError, match=f"_delta_log/{file_name}: .*: delete it"):
            ask(signed)


def name_a_further_file(checkpoint: Path, path: str) -> None:
    """Have a checkpoint say that a part of it is in another file."""
    rows_of_it = pq.read_table(checkpoint)
    sidecar = {"path": path, "sizeInBytes": 100, "modificationTime": 1}
    more = pa.Table.from_pylist([{"sidecar": sidecar}], rows_of_it.schema)
    pq.write_table(pa.concat_tables([rows_of_it, more]), checkpoint)


@pytest.mark.parametrize("place", ["_sidecars/x.parquet", "../../x.parquet"])
def test_a_checkpoint_that_names_a_file_without_an_end_is_refused(signed, own_secret, place):
    """As the further files of a checkpoint of Delta's second form, which may lie anywhere."""
    table = DeltaTable(table_uri(signed, "flags"))
    table.create_checkpoint()
    log = Path(table_uri(signed, "flags"), "_delta_log")
    (log / "_sidecars").mkdir()
    os.mkfifo(log / place)
    (checkpoint,) = log.glob("*.parquet")
    reopen(signed, own_secret)
    assert len(rows(signed)) == 3  # a checkpoint that names none is read
    name_a_further_file(checkpoint, str(Path("..", place)) if place.startswith(".") else Path(place).name)
    reopen(signed, own_secret)
    for ask in (rows, refuse_changed_tables, compact, open_tables, faults_of_tables):
        with pytest.raises(TableError, match=f"_delta_log/{checkpoint.name}: it is a checkpoint in parts"):
            ask(signed)


def test_an_open_table_is_not_waited_for(signed, own_secret):
    """A driver keeps its tables open all night."""
    tables = Tables(signed)
    tables.now("flags")
    os.mkfifo(Path(table_uri(signed, "flags"), "_delta_log", "_last_checkpoint"))
    with pytest.raises(TableError, match=r"_delta_log/_last_checkpoint: .*: delete it"):
        tables.now("flags")


@pytest.mark.parametrize("error", [DeltaError, FileNotFoundError])
def test_a_fault_is_told_also_where_the_table_cannot_be_opened_once_more(signed, own_secret, monkeypatch, error):
    """As where somebody changes it while it is looked at whether others committed."""

    def fail(_uri: str) -> DeltaTable:
        raise error("file not found")

    next_commit(signed, {"remove": {"path": added(signed)["path"], "dataChange": True, "deletionTimestamp": 0}})
    monkeypatch.setattr(transactions, "load_table", fail)
    for ask in (rows, refuse_changed_tables, lambda folder: add(folder, "later", [verdict(9)])):
        reopen(signed, own_secret)
        with pytest.raises(TableError, match="its files are not those that brickscan committed"):
            ask(signed)


def test_a_vector_of_deleted_rows_without_an_end_is_refused(signed, own_secret):
    fifo = Path(table_uri(signed, "flags"), "vector.bin")
    os.mkfifo(fifo)
    vector = {"storageType": "p", "pathOrInlineDv": f"file://{fifo}", "offset": 1, "sizeInBytes": 40, "cardinality": 1}
    gone = {"path": added(signed)["path"], "dataChange": True, "deletionTimestamp": 0}
    next_commit(signed, {"remove": gone}, {"add": added(signed) | {"deletionVector": vector}})
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="flags: its log has deletion vectors"):
        compact(signed)


def take_commits_out(log: Path) -> None:
    for commit in log.glob("*.json"):
        commit.unlink()


def leave_a_checkpoint_without_content(log: Path) -> None:
    take_commits_out(log)
    (log / f"{5:020}.checkpoint.parquet").touch()


def leave_a_checksum(log: Path) -> None:
    take_commits_out(log)
    (log / f"{0:020}.crc").write_text("{}")


@pytest.mark.parametrize("damage", [leave_a_checkpoint_without_content, leave_a_checksum, None])
def test_a_table_of_whose_log_no_commit_can_be_read_is_not_one_that_was_never_made(
    signed, own_secret, monkeypatch, damage
):
    """Who goes on where there is no such table yet would go on past it."""

    def refuse_flags(uri: str, version: int | None = None) -> DeltaTable:
        if uri == table_uri(signed, "flags"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), uri)
        return DeltaTable(uri, version)

    if damage is None:  # somebody lets nobody else read a commit; root, whom tests may run as, reads it
        monkeypatch.setattr(delta, "load_table", refuse_flags)
    else:
        damage(Path(table_uri(signed, "flags"), "_delta_log"))
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="/flags: exists, but no commit of its log can be read"):
        rows(signed)


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_a_checkpoint_without_content_is_passed_over(signed, own_secret, make):
    """As a crash leaves one, or somebody who would have a scan wait for ever; deltalake does the same."""
    table = Path(table_uri(signed, "flags"))
    make(table / "_delta_log" / f"{DeltaTable(table).version():020}.checkpoint.parquet")
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    assert len(rows(signed)) == 3


def test_a_registry_that_goes_away_is_not_taken_for_an_empty_one(signed, own_secret):
    """As of a disk that is not mounted for a moment: nothing is read by an empty record, and none is begun."""
    record = signer_of(signed).record
    away = own_secret.rename(own_secret.with_name("away"))
    add(signed, "meanwhile", [verdict(9, user="bob", message=2)])
    with pytest.raises(ScanFailed, match="are missing: check that its disk is mounted"):
        record.read_again()
    assert "are missing" in (keep_signatures(signed) or "")
    assert not own_secret.exists()
    away.rename(own_secret)
    assert keep_signatures(signed) is None
    reopen(signed, own_secret)
    assert len(rows(signed)) == 4
    assert unchecked(signed) is None


@pytest.mark.usefixtures("without_ray")
def test_who_looks_before_a_scan_is_told_that_nobody_checked(night, own_registry, plain):
    night.write("a", [plain(40, 1)])
    assert call("scan", night.config)[0] == 0
    shutil.rmtree(night.registry / "signed_tables")
    opened_signers._signers.clear()
    code, out, err = call("scan", night.config, "--check")
    assert (code, "signatures of tables were not checked" in out) == (0, True), (out, err)


@pytest.mark.parametrize(("name", "allowed"), [("re%20s", False), ("100%", True), ("5% more", True), ("a%Ffb", False)])
def test_a_name_that_delta_reads_as_another_is_refused(tmp_path, name, allowed):
    if allowed:
        assert absolute("results", name, tmp_path) == str(tmp_path / name)
    else:
        with pytest.raises(Refused, match=r"results: .* two hexadecimal digits.* are allowed"):
            absolute("results", name, tmp_path)

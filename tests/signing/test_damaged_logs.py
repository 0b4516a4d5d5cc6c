"""Logs that are damaged or odd, and a registry that cannot be written: what is wrong is told, and nothing is locked."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from scanner.errors import Refused, ScanFailed, TableError
from scanner.registry import signed_tables
from scanner.registry.signed_tables import SignedTable, append_signed_tables, read_signed_tables
from scanner.results.decision_log import NewDecision, new_id, record
from scanner.results.migration import migrate
from scanner.results.retention import erase_user, flagged_texts_of
from scanner.results.sign_anew import faults_of_tables, sign_anew
from scanner.results.transactions import has_table, open_tables, refuse_changed_tables
from scanner.results.upkeep import existing_tables
from scanner.signing import keep_signatures, tables_on_record, unchecked
from scanner.storage.locations import table_uri
from tests.support.rows import add_scanned as add
from tests.support.rows import verdict
from tests.support.signed_results import reopen, rows


def log(folder: str) -> Path:
    return Path(table_uri(folder, "flags")) / "_delta_log"


def append(folder: str, content: bytes) -> None:
    version = DeltaTable(table_uri(folder, "flags")).version() + 1
    (log(folder) / f"{version:020d}.json").write_bytes(content)


def cut_last_commit(folder: str) -> None:
    last = max(log(folder).glob("*.json"))
    last.write_bytes(last.read_bytes()[:-30])


def need_a_feature(folder: str) -> None:
    features = {"readerFeatures": ["zorg"], "writerFeatures": ["zorg"]}
    append(
        folder, json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}).encode() + b"\n"
    )


def put_a_file_in_its_place(folder: str) -> None:
    shutil.rmtree(table_uri(folder, "flags"))
    Path(table_uri(folder, "flags")).write_text("x")


DAMAGES: dict[str, Callable[[str], None]] = {
    "a commit that is cut": cut_last_commit,
    "no JSON": lambda folder: append(folder, b"\xff\xfe{]"),
    "a feature that nobody knows": need_a_feature,
    "a transaction of no number": lambda folder: append(folder, b'{"txn": {"appId": "x", "version": 1e30}}\n'),
    "a transaction whose name is a number": lambda folder: append(folder, b'{"txn": {"appId": -1, "version": 1}}\n'),
    "lists in lists": lambda folder: append(
        folder, b'{"commitInfo": {"txn": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}\n"
    ),
    "a checkpoint far away": lambda folder: (log(folder) / "_last_checkpoint").write_text(
        '{"version": 9999, "size": 3}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_table_that_cannot_be_read_is_a_fault_of_that_table_alone(signed, own_secret, damage):
    DAMAGES[damage](signed)
    reopen(signed, own_secret)
    faults = faults_of_tables(signed)
    assert faults["flags"]
    assert faults["verdicts"] is None
    with suppress(Refused, TableError, ScanFailed):
        sign_anew(signed, "flags", "")


def test_nobody_is_erased_from_results_whose_log_is_damaged(signed):
    newest = max((Path(table_uri(signed, "verdicts")) / "_delta_log").glob("*.json"))
    newest.with_name(f"{int(newest.stem) + 1:020d}.json").write_bytes(b'{"commitInfo": {"operation": NaN}}\n')
    with pytest.raises(ScanFailed, match="cannot be read"):
        erase_user(signed, ["alice"])


def test_a_file_in_the_place_of_a_table_is_told(signed):
    put_a_file_in_its_place(signed)
    with pytest.raises(ScanFailed, match="cannot be read"):
        existing_tables(signed)


def put_a_loop_in_the_place_of_its_log(folder: str) -> None:
    shutil.rmtree(log(folder))
    log(folder).symlink_to(log(folder))


@pytest.mark.parametrize("damage", [put_a_file_in_its_place, put_a_loop_in_the_place_of_its_log])
def test_who_asks_whether_a_table_is_there_is_told_that_its_folder_cannot_be_read(signed, damage):
    """So ask most commands first, and showed where in the code it failed."""
    damage(signed)
    with pytest.raises(ScanFailed, match=r"cannot be read.*restore missing"):
        has_table(signed, "flags")


def test_no_table_is_made_that_the_registry_would_refuse_later(signed, own_secret, monkeypatch):
    """As the first decision of a reviewer who reads the registry alone; nobody is locked out by it."""

    def cannot_be_written(registry: str, entries: object) -> None:
        raise ScanFailed(f"registry: table {registry}/signed_tables cannot be written: read-only file system")

    reopen(signed, own_secret)
    decision = [(NewDecision(new_id(), "ruth", "app", "dismissed"), rows(signed).to_dicts()[0])]
    with monkeypatch.context() as patch:
        patch.setattr(tables_on_record, "append_signed_tables", cannot_be_written)
        with pytest.raises(Refused, match="create them where the registry can be written"):
            record(signed, decision)
    assert not has_table(signed, "decisions")
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    record(signed, decision)
    assert len(rows(signed, "decisions")) == 1


def test_results_that_the_registry_does_not_know_are_begun_without_it(tmp_path, own_secret, monkeypatch):
    def cannot_be_written(registry: str, entries: object) -> None:
        raise ScanFailed("registry: cannot be written")

    monkeypatch.setattr(tables_on_record, "append_signed_tables", cannot_be_written)
    folder = str(tmp_path / "others")
    reopen(folder, own_secret)
    open_tables(folder)
    assert has_table(folder, "flags")
    assert keep_signatures(folder) is not None


@pytest.mark.parametrize("above", ["", "home"])
@pytest.mark.parametrize("state", ["empty", "older"])
def test_a_folder_that_became_a_link_stays_the_place_that_it_was(signed, own_secret, tmp_path, state, above):
    """Else nothing says that another folder shows none of what was scanned and decided, and the next scan signs it.

    above: a link in the path by which the results are named.
    """
    if above:
        (tmp_path / above).symlink_to(Path(signed).parent)
        signed = str(tmp_path / above / Path(signed).name)
        reopen(signed, own_secret)
    other, kept = tmp_path / "other", tmp_path / "kept"
    shutil.copytree(signed, other) if state == "older" else other.mkdir()
    add(signed, "today", [verdict(40, user="bob", message=2)])
    assert keep_signatures(signed) is None
    shutil.move(signed, kept)
    Path(signed).symlink_to(other)
    reopen(signed, own_secret)
    refused = "was signed.*but no longer exists" if state == "empty" else "restored to an earlier state"
    for ask in (lambda folder: flagged_texts_of(folder, ["alice"]), rows, refuse_changed_tables):
        with pytest.raises(TableError, match=refused):
            ask(signed)
    Path(signed).unlink()
    Path(signed).symlink_to(kept)  # such as a larger disk
    reopen(signed, own_secret)
    add(signed, "more", [verdict(50)])
    assert (len(rows(signed)), unchecked(signed)) == (4, None)


def test_results_that_are_begun_beside_others_are_told(signed, own_secret, tmp_path, caplog):
    assert keep_signatures(signed) is None
    folder = str(tmp_path / "new")
    reopen(folder, own_secret)
    open_tables(folder)
    assert f"started over in {folder}; the registry knows those of {signed}" in caplog.text


@pytest.mark.costly
def test_signatures_are_kept_while_others_write_their_files_together(tmp_path, monkeypatch):
    monkeypatch.setattr(signed_tables, "FILES_KEPT", 3)

    def keep(process: int) -> None:
        for number in range(15):
            append_signed_tables(str(tmp_path), [SignedTable("r", "flags", "a", process, "signed", number, number - 1)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(keep, range(4)))
    kept = read_signed_tables(str(tmp_path))
    assert [kept.last_number(process, "flags", "a") for process in range(4)] == [14] * 4


def test_who_cannot_sign_makes_no_table_beside_signed_ones(signed):
    """As by a decision on a folder of results: every later scan would refuse it, and its table with it."""
    decision = [(NewDecision(new_id(), "ruth", "app", "dismissed"), rows(signed).to_dicts()[0])]
    unnamed = str(shutil.move(signed, f"{signed}-unnamed"))
    with pytest.raises(
        Refused, match="decisions is not created, because other tables are signed: no registry was named"
    ):
        record(unnamed, decision)
    assert not has_table(unnamed, "decisions")


@pytest.mark.parametrize("version", ["02", "+2", "٢", "2 ", "2.0", "", "9" * 5000])
def test_a_version_that_nobody_writes_is_not_taken_for_a_newer_one(signed, own_secret, version):
    DeltaTable(table_uri(signed, "flags")).alter.set_table_properties(
        {"brickscan.version": version}, raise_if_not_exists=False
    )
    reopen(signed, own_secret)
    for ask in (rows, refuse_changed_tables, migrate):
        with pytest.raises(TableError, match=r"flags: has version .*, which brickscan never writes"):
            ask(signed)

"""Another audit secret, files that are lost, and what somebody changed beside rows: what people do about it."""

import json
import shutil
import time
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from scanner.errors import ScanFailed, TableError
from scanner.results import retention, sign_anew, transactions, upkeep
from scanner.results.transactions import append_audits, commit, open_tables, refuse_changed_tables
from scanner.signing import keep_signatures, opened_signers, sign_with, signer_of, unchecked, use_signer
from scanner.signing.signer import Signer
from scanner.storage.data_files import SCHEMAS, write_file
from scanner.storage.locations import table_uri
from schemas.audit import AUDITS
from tests.support.command_line import call
from tests.support.rows import add_scanned as add
from tests.support.rows import filled, verdict
from tests.support.signed_results import commit_transaction, consent, files, reopen, rows


def rotate(registry: Path, *more: str) -> tuple[int, str, str]:
    """Name another audit secret, as in a process of its own."""
    opened_signers._signers.clear()
    opened_signers._registries.clear()
    return call("keys", "audit-secret", "--registry", registry, "--secret", "file:secrets/new.secret", *more)


def block_next_commit(folder: str, name: str) -> Path:
    """Put a folder where the next commit goes."""
    version = DeltaTable(table_uri(folder, name)).version()
    blocking = Path(table_uri(folder, name), "_delta_log", f"{version + 1:020}.json")
    blocking.mkdir()
    return blocking


def give_all_to_zoe(folder: str) -> None:
    """Change the names of flags in a file that states its content, and leave the signature as it was."""
    table, frame = DeltaTable(table_uri(folder, "flags")), pl.read_delta(table_uri(folder, "flags"))
    file = write_file(
        folder, "flags", frame.with_columns(user_id=pl.lit("zoe")).to_arrow().cast(SCHEMAS["flags"]).to_batches()
    )
    gone = [RemoveAction(Path(uri).name, True, 0) for uri in table.file_uris()]
    added = AddAction(file.name, file.size, {}, 0, True, file.stats)
    table.create_write_transaction([*gone, added], "append", SCHEMAS["flags"])


def test_another_audit_secret_goes_on_where_it_was_interrupted(signed, own_secret):
    """Tables under the new secret are held against it: what somebody changed meanwhile is refused."""
    blocking = block_next_commit(signed, "verdicts")
    code, _, err = rotate(own_secret)
    assert (code, "cannot be written" in err) == (1, True), err
    blocking.rmdir()
    reopen(signed, own_secret)
    with pytest.raises(TableError, match=r"the audit secret.* was interrupted, run it again"):
        refuse_changed_tables(signed)

    before = Path(shutil.copytree(signed, f"{signed}-before"))
    give_all_to_zoe(signed)
    code, _, err = rotate(own_secret)
    assert (code, "flags: its files are not those that brickscan committed" in err) == (2, True), err
    shutil.rmtree(signed)
    before.rename(signed)

    code, out, err = rotate(own_secret)
    assert (code, "signed under file:secrets/new.secret" in out) == (0, True), err
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    assert rows(signed)["user_id"].to_list() == ["alice"] * 3
    assert unchecked(signed) is None


@pytest.mark.parametrize("went_on", [True, False])
def test_another_audit_secret_signs_moved_results_where_they_went_on(signed, own_secret, tmp_path, went_on):
    """Else the registry knows only the place that they left, and they are given up by who says so."""
    moved = str(shutil.move(signed, str(tmp_path / "moved")))
    reopen(moved, own_secret)
    if went_on:
        add(moved, "there", [verdict(9)])
        assert keep_signatures(moved) is None
    assert rotate(own_secret)[0] == (0 if went_on else 2)
    assert rotate(own_secret, "--yes")[0] == 0
    reopen(moved, own_secret)
    if went_on:
        assert (rows(moved).height, unchecked(moved)) == (3, None)
    else:
        with pytest.raises(TableError, match="flags: was not signed under the audit secret"):
            rows(moved)


@pytest.mark.parametrize("how", ["lost", "empty", "damaged"])
def test_a_file_that_is_lost_is_given_up_by_who_says_so(signed, own_secret, how):
    """The fault says that its rows are gone for good; nothing else leaves the table."""
    file = files(signed)[0]
    (lost_row,) = pl.read_parquet(file)["row"].to_list()
    if how == "lost":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "empty" else b"x" * 400)
    reopen(signed, own_secret)
    fault = sign_anew.faults_of_tables(signed)["flags"]
    assert "the rows of 1 of its files" in str(fault)
    assert "signing gives them up for good" in str(fault)
    assert consent(signed, "flags") == 1
    keep_signatures(signed)
    reopen(signed, own_secret)
    assert sorted(rows(signed)["row"]) == sorted({0, 2, 4} - {lost_row})
    assert set(sign_anew.faults_of_tables(signed).values()) == {None}


def commit_lines(folder: str, name: str, lines: list[dict]) -> None:
    """Append a commit of actions, as another program writes them."""
    log = Path(table_uri(folder, name), "_delta_log")
    version = max(int(path.stem) for path in log.glob("*.json")) + 1
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)) + "\n")


def leave_rows_out_by_a_vector(folder: str, *, protocol: bool) -> None:
    logs = sorted(Path(table_uri(folder, "flags"), "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    add_action = next(action["add"] for action in actions if "add" in action)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    inline = "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg00000"  # of row 0: Delta protocol, "Deletion Vector Format"
    vector = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": 34, "cardinality": 1}
    commit_lines(folder, "flags", [
        *([{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}] if protocol else []),
        {"remove": {"path": add_action["path"], "dataChange": True, "deletionTimestamp": 0}},
        {"add": add_action | {"deletionVector": vector}},
    ])  # fmt: skip


def test_a_table_with_vectors_of_deleted_rows_is_refused_before_a_row_is_doubled(signed, own_secret):
    leave_rows_out_by_a_vector(signed, protocol=True)
    for step in (
        lambda: rows(signed),
        lambda: upkeep.compact(signed),
        lambda: refuse_changed_tables(signed),
        lambda: consent(signed, "flags"),
    ):
        reopen(signed, own_secret)
        with pytest.raises(TableError, match="changed its protocol or partitions"):
            step()


def test_no_file_with_a_vector_that_the_protocol_does_not_state_is_merged_or_erased(signed, own_secret):
    """A commit took no such file out: `brickscan sign` then took its rows twice."""
    leave_rows_out_by_a_vector(signed, protocol=False)
    for step in (lambda: upkeep.compact(signed), lambda: retention.erase_user(signed, ["alice"])):
        reopen(signed, own_secret)
        with pytest.raises(TableError, match="flags: its log has deletion vectors"):
            step()
    reopen(signed, own_secret)
    assert sorted(rows(signed)["row"]) == [0, 2, 4]  # all as they were signed
    assert unchecked(signed) is None


@pytest.mark.parametrize(
    ("properties", "command"),
    [
        ({"delta.appendOnly": "true"}, "UNSET TBLPROPERTIES ('delta.appendOnly')"),
        ({"delta.dataSkippingStatsColumns": "row"}, "SET TBLPROPERTIES ('delta.dataSkippingStatsColumns' = 'path,row,"),
        ({"delta.checkpoint.writeStatsAsJson": "false"}, "UNSET TBLPROPERTIES ('delta.checkpoint.writeStatsAsJson')"),
    ],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_properties_that_somebody_set_are_refused_with_the_command_that_resets_them(
    signed, own_secret, properties, command, is_open
):
    """Else an erasure fails for good, or Delta's next checkpoint drops what is signed."""
    tables = transactions.Tables(signed)
    tables.now("flags")
    DeltaTable(table_uri(signed, "flags")).alter.set_table_properties(properties)
    if not is_open:
        reopen(signed, own_secret)
    for step in (
        lambda: rows(signed),
        lambda: retention.erase_user(signed, ["alice"]),
        lambda: commit(tables, "flags", [transactions.TableEntry("later", ())]),
        lambda: consent(signed, "flags"),
    ):
        with pytest.raises(TableError) as refused:
            step()
        assert command in str(refused.value)


def test_a_commit_that_cannot_be_written_is_no_conflict(signed):
    """It was tried fifty times, and blamed on others."""
    block_next_commit(signed, "flags")
    with pytest.raises(ScanFailed, match="cannot be written"):
        commit(signed, "flags", [transactions.TableEntry("later", ())])


@pytest.mark.parametrize("adds", [False, True])
def test_a_driver_that_was_paused_while_it_made_a_table_takes_that_of_another(tmp_path, own_secret, monkeypatch, adds):
    """The other one waited, put the table aside and made its own."""
    folder, real = str(tmp_path / "results"), transactions.make_table
    sign_with(folder, str(own_secret))
    monkeypatch.setattr(transactions, "SECONDS_OF_A_MAKER", 0.3)

    def make_and_pause(uri, *others):
        made = real(uri, *others)
        if made is not None and uri.endswith("flags"):
            monkeypatch.setattr(transactions, "make_table", real)
            first = signer_of(folder)
            reopen(folder, own_secret)
            open_tables(folder)
            if adds:
                add(folder, "other", [verdict(0, user="alice", message=1)])
            assert keep_signatures(folder) is None
            use_signer(folder, first)
            time.sleep(0.4)
        return made

    monkeypatch.setattr(transactions, "make_table", make_and_pause)
    open_tables(folder)
    add(folder, "own", [verdict(2, user="bob", message=2)])
    assert keep_signatures(folder) is None
    reopen(folder, own_secret)
    assert sorted(rows(folder)["user_id"]) == ["alice"] * adds + ["bob"]
    assert unchecked(folder) is None


def test_a_signature_whose_fields_expire_is_not_blamed_on_shards(signed, own_secret):
    number = DeltaTable(table_uri(signed, "flags")).transaction_version("signature")
    commit_transaction(signed, "flags", "signature", number, 1)
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    add(signed, "later", [verdict(9, user="bob", message=2)])
    reopen(signed, own_secret)
    assert rows(signed).height == 4


def test_no_key_is_admitted_by_audits_that_may_be_older_than_the_one_that_failed(tmp_path, own_registry):
    folder = str(tmp_path / "audit")
    sign_with(folder, str(own_registry))
    append_audits(folder, [filled(AUDITS, audit_id="an audit")])
    assert keep_signatures(folder) is None
    shutil.rmtree(own_registry / "signed_tables")
    opened_signers._signers.clear()
    code, _, err = call("keys", "admit", "green", "--registry", own_registry, "--results", folder)
    assert (code, " audits in" in err, "audits may not be the newest" in err) == (
        2, True, True,
    ), err  # fmt: skip


def test_a_signer_of_the_secret_that_follows_is_not_taken_for_another(signed, own_secret):
    """What is signed under it stays so, however often the call is made."""
    secret = b"the audit secret of 32 bytes"
    for _ in range(2):
        sign_anew.refuse_changed_under(signed, str(own_secret), secret)
        sign_anew.sign_under(signed, str(own_secret), secret)
        reopen(signed, own_secret)
    use_signer(signed, Signer(signed, str(own_secret), secret))
    assert rows(signed).height == 3

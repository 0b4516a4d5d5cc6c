"""Tables of results are signed: whatever somebody changes by hand is refused by whoever reads them with the secret."""

import hashlib
import hmac
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from unittest.mock import ANY

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scanner.errors import Refused, ScanFailed, TableError
from scanner.registry import signed_tables
from scanner.registry.keys_file import read_audit_secret
from scanner.registry.signed_tables import NO_NUMBER, Carried, SignedTable, SignedTables
from scanner.results import retention, transactions, upkeep
from scanner.results import sign_anew as sign_anew_module
from scanner.results.migration import migrate
from scanner.results.queries import exist
from scanner.results.scan_list import readiness
from scanner.results.sign_anew import faults_of_tables, give_up, sign_anew, sign_under
from scanner.results.transactions import (
    TableEntry,
    Tables,
    append_audits,
    commit,
    find_committed,
    has_table,
    open_tables,
    properties_of,
    read_whole,
    refuse_changed_tables,
)
from scanner.signing import (
    checked_files,
    checked_rows,
    keep_signatures,
    opened_signers,
    sign_with,
    signature_of,
    signer_of,
    tables_on_record,
    unchecked,
    use_signer,
)
from scanner.signing import signature as signature_module
from scanner.signing import signer as signer_module
from scanner.signing.signature import Signature
from scanner.signing.signer import Signer
from scanner.storage.data_files import SCHEMAS, TABLES, sha256_in, write_file
from scanner.storage.delta import logged_transactions, make_table
from scanner.storage.locations import table_uri
from schemas.audit import AUDITS
from tests.support.command_line import call
from tests.support.rows import NOW, filled, verdict
from tests.support.rows import add_scanned as add
from tests.support.signed_results import (
    NOT_CHECKED,
    commit_transaction,
    consent,
    files,
    new_registry,
    reopen,
    rows,
    take_as_it_is,
)
from tests.support.signed_tables import signed_at

Forgery = Callable[[str], None]


def give_up_missing(folder: str) -> None:
    """Have the registry give up the tables that are gone, as `brickscan sign` does."""
    for name in signer_of(folder).missing_tables():
        give_up(folder, name)
    assert keep_signatures(folder) is None


def forget(registry: Path) -> None:
    """Have a registry know nothing of signatures, as one that was restored from an old copy."""
    shutil.rmtree(registry / "signed_tables")


def plain_digests(folder: str, name: str, secret: bytes, signature: Signature) -> tuple[int, int]:
    """The digests of a table by the description at the head of scanner.signing, in plain Python."""
    table = DeltaTable(table_uri(folder, name))
    key = hmac.new(secret, b"signed-tables-v1", hashlib.sha256).digest()

    def term(*facts: object) -> int:
        return int(hmac.new(key, json.dumps(list(facts)).encode(), hashlib.sha256).hexdigest(), 16)

    about = name, table.metadata().id
    files, done = (term("signature", what, *about, *signature[:6]) for what in ("files", "transactions"))
    for uri in table.file_uris():
        path = Path(uri.removeprefix("file://"))
        file = pl.read_parquet(path)
        assert sha256_in(path.name) == hashlib.sha256(path.read_bytes()).hexdigest()
        ranges = [file[column].min() if end == "min" else file[column].max() for column, end in RANGES]
        files += term("file", *about, path.name, len(file), *ranges)
    logged: dict[str, dict] = {}
    for log in sorted((Path(table_uri(folder, name)) / "_delta_log").glob("*.json")):
        for action in map(json.loads, log.read_text().splitlines()):
            if "txn" in action:
                logged[action["txn"]["appId"]] = action["txn"]
    for app_id, transaction in logged.items():
        if not app_id.startswith("signature") and "lastUpdated" not in transaction:
            done += term("transaction", *about, app_id, transaction["version"])
    return files % 2**126, done % 2**126


RANGES = [(column, end) for column in ("path", "scan_id") for end in ("min", "max")]


def test_what_brickscan_wrote_is_read_as_it_is(signed, own_secret):
    reopen(signed, own_secret)
    assert rows(signed, "verdicts")["row"].sort().to_list() == list(range(6))
    assert rows(signed)["user_id"].to_list() == ["alice"] * 3
    assert unchecked(signed) is None
    upkeep.compact(signed)
    retention.erase_user(signed, ["alice"])
    assert rows(signed)["user_id"].to_list() == [None] * 3
    keep_signatures(signed)
    reopen(signed, own_secret)
    assert rows(signed)["user_id"].to_list() == [None] * 3


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["add", "compact", "erase", "reopen"]), max_size=8), st.randoms(use_true_random=False))
def test_a_digest_is_that_of_the_description(tmp_path_factory, steps, random):
    folder = tmp_path_factory.mktemp("some")
    results, registry = str(folder / "results"), new_registry(folder / "registry")
    sign_with(results, str(registry))
    open_tables(results)
    commits = 0
    for step in ["add", *steps]:
        if step == "add":
            commits += 1
            users = [random.choice(["alice", "bob", None]) for _ in range(3)]
            add(results, f"t{commits}", [verdict(i, f"/in/{commits}", user) for i, user in enumerate(users)])
        elif step == "compact":
            upkeep.compact(results)
        elif step == "erase":
            retention.erase_user(results, ["bob"])
        else:
            keep_signatures(results)
            reopen(results, registry)
    secret = read_audit_secret(registry)
    for name in ("verdicts", "flags"):
        signature = signature_of(DeltaTable(table_uri(results, name)))
        if signature is not None:
            assert (signature.files, signature.transactions) == plain_digests(results, name, secret, signature)
            rows(results, name)


def overwrite(folder: str, name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    """Write a table anew through Delta, as somebody does who has polars and the folder."""
    frame = change(pl.read_delta(table_uri(folder, name)))
    write_deltalake(table_uri(folder, name), frame.to_arrow().cast(SCHEMAS[name]), mode="overwrite")


def change_a_name(folder: str) -> None:
    overwrite(folder, "flags", lambda frame: frame.with_columns(user_id=pl.lit("zoe")))


def add_a_plausible_row(folder: str) -> None:
    row = pl.read_delta(table_uri(folder, "flags")).head(1).to_arrow().cast(SCHEMAS["flags"])
    file = write_file(folder, "flags", row.to_batches())
    table = DeltaTable(table_uri(folder, "flags"))
    table.create_write_transaction(
        [AddAction(file.name, file.size, {}, 0, True, file.stats)], "append", SCHEMAS["flags"]
    )


def add_a_row_with_the_last_signature(folder: str) -> None:
    """The forger also carries the old signature on under the next number."""
    table = DeltaTable(table_uri(folder, "flags"))
    row = pl.read_delta(table_uri(folder, "flags")).head(1).to_arrow().cast(SCHEMAS["flags"])
    file = write_file(folder, "flags", row.to_batches())
    others = [*signature_module.FIELDS[1:], *signature_module.DIGESTS]
    named = {name: table.transaction_version(name) for name in others}
    number = table.transaction_version("signature") + 1
    transactions = [Transaction("signature", number), *(Transaction(name, value) for name, value in named.items())]
    table.create_write_transaction(
        [AddAction(file.name, file.size, {}, 0, True, file.stats)], "append", SCHEMAS["flags"],
        commit_properties=CommitProperties(app_transactions=transactions),
    )  # fmt: skip


def take_a_file_away(folder: str) -> None:
    table = DeltaTable(table_uri(folder, "flags"))
    name = Path(table.file_uris()[0]).name
    table.create_write_transaction([RemoveAction(name, True, 0)], "append", SCHEMAS["flags"])


def change_a_byte(folder: str) -> None:
    data = bytearray(files(folder)[1].read_bytes())
    data[len(data) // 2] ^= 1
    files(folder)[1].write_bytes(data)


def change_a_value_in_a_file(folder: str) -> None:
    file = files(folder)[0]
    pq.write_table(pl.read_parquet(file).with_columns(log10_p_global=pl.lit(-40.0)).to_arrow(), file)


def exchange_two_files(folder: str) -> None:
    first, second, *_ = files(folder)
    first.rename(first.with_name("aside")), second.rename(first), first.with_name("aside").rename(second)


def put_a_replaced_file_back(folder: str) -> None:
    """A file that compaction replaced, signed once, beside the file that has its rows."""
    upkeep.compact(folder)
    table, present = DeltaTable(table_uri(folder, "flags")), {file.name for file in files(folder)}
    present -= {Path(uri).name for uri in table.file_uris()}
    old = min(present)
    stats = json.dumps({"numRecords": 1})
    size = files(folder)[0].stat().st_size
    table.create_write_transaction([AddAction(old, size, {}, 0, True, stats)], "append", SCHEMAS["flags"])


def state_another_range(folder: str) -> None:
    """The log says that a file holds no row of a path, so that readers of that path leave it out."""
    for log in sorted((Path(table_uri(folder, "flags")) / "_delta_log").glob("*.json")):
        log.write_text(log.read_text().replace("/in/a", "/in/b"))


def hide_rows_by_the_log(folder: str) -> None:
    log = sorted((Path(table_uri(folder, "flags")) / "_delta_log").glob("*.json"))[-1]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("\n".join(json.dumps(line) for line in lines if "add" not in line) + "\n")


def take_the_signature_out(folder: str) -> None:
    for log in sorted((Path(table_uri(folder, "flags")) / "_delta_log").glob("*.json")):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        kept = [line for line in lines if not line.get("txn", {}).get("appId", "").startswith("signature")]
        log.write_text("\n".join(map(json.dumps, kept)) + "\n")


def remove_the_table(folder: str) -> None:
    shutil.rmtree(table_uri(folder, "flags"))


def make_the_table_anew(folder: str) -> None:
    frame = pl.read_delta(table_uri(folder, "flags"))
    shutil.rmtree(table_uri(folder, "flags"))
    uri = table_uri(folder, "flags")
    make_table(uri, SCHEMAS["flags"], properties_of("flags"))
    write_deltalake(uri, frame.to_arrow().cast(SCHEMAS["flags"]), mode="append")


FORGERIES = [
    change_a_name, add_a_plausible_row, add_a_row_with_the_last_signature, take_a_file_away, change_a_byte,
    change_a_value_in_a_file, exchange_two_files, put_a_replaced_file_back, state_another_range, hide_rows_by_the_log,
    take_the_signature_out, remove_the_table, make_the_table_anew,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES)
@pytest.mark.parametrize("again", [True, False])
def test_what_was_changed_by_hand_is_refused(signed, own_secret, forge, again):
    """By the next process, and by one that read the table before; the rows of all other tables are read."""
    if not again:
        reopen(signed, own_secret)
    rows(signed)
    forge(signed)
    if again:
        reopen(signed, own_secret)
    with pytest.raises(TableError, match="flags"):
        rows(signed)
    if forge is not remove_the_table:
        assert rows(signed, "verdicts")["row"].sort().to_list() == list(range(6))


def add_and_read(folder: str) -> None:
    add(folder, "later", [verdict(9, user="bob", message=2)])
    rows(folder)


@pytest.mark.parametrize("forge", FORGERIES)
def test_no_commit_is_made_to_a_table_that_was_forged(signed, own_secret, forge):
    """Save where files were changed whose names stay: whoever reads their rows sees it."""
    forge(signed)
    reopen(signed, own_secret)
    with pytest.raises((TableError, ScanFailed)):
        add_and_read(signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="flags"):
        rows(signed)


def take_transactions_out(folder: str, name: str) -> None:
    for log in sorted((Path(table_uri(folder, name)) / "_delta_log").glob("*.json")):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        others = [line for line in lines if line.get("txn", {}).get("appId", "signature").startswith("signature")]
        log.write_text("\n".join(map(json.dumps, others)) + "\n")


FORGED_COMMITS = [
    lambda folder: commit_transaction(folder, "verdicts", "a shard that nobody scanned", 1),
    lambda folder: commit_transaction(folder, "verdicts", "t0", 4242),
    lambda folder: commit_transaction(folder, "verdicts", "a shard that nobody scanned", 1, 2**40),
    lambda folder: commit_transaction(folder, "verdicts", "t0", 4242, 2**40),
    lambda folder: commit_transaction(folder, "flags", "a shard that nobody scanned", 1),
]


@pytest.mark.parametrize("forge", FORGED_COMMITS)
@pytest.mark.parametrize("others", [False, True])
def test_a_driver_that_has_tables_open_goes_by_nothing_that_somebody_wrote(signed, own_secret, forge, others):
    """Even if it is taken back before the scan ends."""
    tables, shards = Tables(signed), ["t0", "a shard that nobody scanned"]
    for name in ("verdicts", "flags"):
        assert find_committed(tables, name, shards) == {"t0"}
        if others:
            assert commit(signed, name, [TableEntry("of another driver", ())]) == {"of another driver"}
    forge(signed)
    with pytest.raises(TableError, match="transactions"):
        find_all(tables, shards)
    with pytest.raises(TableError, match="transactions"):
        commit_all(tables, shards)


def find_all(tables: Tables, shards: list[str]) -> list[set[str]]:
    return [find_committed(tables, name, shards) for name in ("verdicts", "flags")]


def commit_all(tables: Tables, shards: list[str]) -> list[set[str]]:
    return [commit(tables, name, [TableEntry(shard, ()) for shard in shards]) for name in ("verdicts", "flags")]


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_driver_that_has_a_table_open_signs_nothing_that_was_forged(signed, own_secret, forge):
    tables = Tables(signed)
    tables.now("flags")
    right = rows(signed).sort("row")
    forge(signed)
    with suppress(TableError, ScanFailed):
        commit(tables, "flags", [TableEntry("later", ())])
    reopen(signed, own_secret)
    if forge is take_the_signature_out:  # the commit brought it back, and nothing else had been changed
        assert rows(signed).sort("row").equals(right)
        return
    with pytest.raises(TableError, match="flags"):
        rows(signed)


@pytest.mark.parametrize("forge", [*FORGED_COMMITS, lambda folder: take_transactions_out(folder, "verdicts")])
def test_no_scan_goes_by_transactions_that_somebody_wrote(signed, own_secret, forge):
    """By them a scan knows which shards are done, and which run's rows are to be removed."""
    refuse_changed_tables(signed)
    forge(signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="transactions"):
        refuse_changed_tables(signed)


def test_transactions_of_nights_that_are_frozen_leave_the_signature(tmp_path, own_secret):
    """They expire later, when nobody signs; freezing again, as after an interruption, changes nothing."""
    folder = str(tmp_path / "results")
    sign_with(folder, str(own_secret))
    open_tables(folder)
    for number, age in enumerate((70, 65, 1)):
        row = verdict(0, f"/in/{number}", user="alice", message=1, age=age) | {"shard_id": f"s{number}"}
        add(folder, f"s{number}", [row])
    for _ in range(2):
        assert retention.freeze(folder, NOW) or _
        table = DeltaTable(table_uri(folder, "verdicts"))
        assert {name for name, (_, expires) in logged_transactions(table).items() if expires} == {"s0", "s1"}
        reopen(folder, own_secret)
        refuse_changed_tables(folder)
        for name in ("shards", "verdicts"):
            commit_transaction(folder, name, "expiring:none" if name == "shards" else "none", 1, 2**40)
            reopen(folder, own_secret)
            with pytest.raises(TableError, match="shards that were never scanned"):
                refuse_changed_tables(folder)
            shutil.rmtree(folder + "-copy", ignore_errors=True)
            take_last_commit_out(folder, name)
        reopen(folder, own_secret)
        refuse_changed_tables(folder)


def take_last_commit_out(folder: str, name: str) -> None:
    sorted((Path(table_uri(folder, name)) / "_delta_log").glob("*.json"))[-1].unlink()


def test_a_table_that_goes_while_a_process_runs_is_missed(signed, own_secret):
    """A server of reviews showed none of the decisions, and the next one made the table anew."""
    open_tables(signed, ["decisions"])
    keep_signatures(signed)
    shutil.rmtree(table_uri(signed, "decisions"))
    with pytest.raises(TableError, match="decisions: was signed but no longer exists"):
        has_table(signed, "decisions")
    with pytest.raises(TableError, match="decisions: was signed but no longer exists"):
        open_tables(signed, ["decisions"])


def test_a_server_reads_again_what_the_registry_keeps(signed, own_secret, tmp_path, monkeypatch):
    """Monday's table after Tuesday's scan, which another process made."""
    monkeypatch.setattr(tables_on_record, "_SECONDS_OF_A_QUERY", -1.0)
    server = signer_of(signed)
    rows(signed)
    shutil.copytree(table_uri(signed, "flags"), tmp_path / "monday")
    reopen(signed, own_secret)
    add(signed, "tuesday", [verdict(9, user="bob", message=2)])
    keep_signatures(signed)
    shutil.rmtree(table_uri(signed, "flags"))
    shutil.copytree(tmp_path / "monday", table_uri(signed, "flags"))
    use_signer(signed, server)
    with pytest.raises(TableError, match="restored to an earlier state"):
        rows(signed)


def test_a_table_that_nobody_signed_beside_signed_ones_is_refused(signed, own_secret):
    """As a table of accounts, where no scan tested accounts; in a copy at another place too."""
    copy = shutil.copytree(signed, f"{signed}-copy")
    for folder in (signed, copy):
        sign_with(folder, str(own_secret))
        make_table(table_uri(folder, "accounts"), SCHEMAS["accounts"], properties_of("accounts"))
        row = filled(SCHEMAS["accounts"], account_id="zoe")
        write_deltalake(table_uri(folder, "accounts"), pa.Table.from_pylist([row], SCHEMAS["accounts"]), mode="append")
        with pytest.raises(TableError, match="accounts: it carries no signature"):
            rows(folder, "accounts")


def test_a_number_that_somebody_wrote_is_not_signed_on(signed, own_secret):
    for number in (10**15, 2**63 - 1):
        commit_transaction(signed, "flags", "signature", number)
        reopen(signed, own_secret)
        with pytest.raises(TableError, match="flags"):
            add(signed, "later", [verdict(9, user="bob", message=2)])
        assert keep_signatures(signed) is None
        take_last_commit_out(signed, "flags")
        reopen(signed, own_secret)
        assert len(rows(signed)) == 3


def test_two_states_of_one_number_show_no_digest_of_a_file(signed, own_secret, tmp_path, monkeypatch):
    """Else their difference would be that of the file, which signs it again wherever somebody puts it."""
    monkeypatch.setattr(signer_module, "_next_number", lambda _: 2**62)
    shutil.copytree(table_uri(signed, "flags"), tmp_path / "flags")
    digests = []
    for _ in range(2):
        shutil.rmtree(table_uri(signed, "flags"))
        shutil.copytree(tmp_path / "flags", table_uri(signed, "flags"))
        opened_signers._signers.pop(signed, None)
        table = DeltaTable(table_uri(signed, "flags"))
        signature = signer_of(signed).sign(table, "flags", [], [], {})
        digests.append((signature.number, signature.files, signature.transactions))
    assert digests[0][0] == digests[1][0]
    assert all(digests[0][at] != digests[1][at] for at in (1, 2))


@pytest.mark.parametrize("tables", [["flags"], ["flags", "verdicts", "shards", "scans"]])
def test_tables_that_are_put_back_from_yesterday_are_refused(signed, own_secret, tmp_path, tables):
    shutil.copytree(signed, tmp_path / "yesterday")
    add(signed, "today", [verdict(9, user="bob", message=2)])
    keep_signatures(signed)
    for name in tables:
        shutil.rmtree(table_uri(signed, name))
        shutil.copytree(tmp_path / "yesterday" / name, table_uri(signed, name))
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="restored to an earlier state"):
        rows(signed)


@pytest.mark.parametrize("same_secret", [True, False])
def test_tables_of_another_deployment_are_refused(signed, own_secret, tmp_path, same_secret):
    other, registry = str(tmp_path / "other"), own_secret
    if not same_secret:
        registry = tmp_path / "other-registry"
        new_registry(registry)
    sign_with(other, str(registry))
    open_tables(other)
    add(other, "o", [verdict(0, user="mallory", message=5)])
    keep_signatures(other)
    shutil.rmtree(table_uri(signed, "flags"))
    shutil.copytree(table_uri(other, "flags"), table_uri(signed, "flags"))
    reopen(signed, own_secret)
    with pytest.raises(TableError, match=r"another table was signed at|it was signed as part of other results"):
        rows(signed)
    shutil.rmtree(signed)
    shutil.copytree(other, signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match=r"another table was signed at|it was signed as part of other results"):
        rows(signed)


def test_results_that_were_deleted_are_scanned_anew_once_they_are_given_up(signed, own_secret):
    shutil.rmtree(signed)
    reopen(signed, own_secret)
    for step in (lambda: exist(signed), lambda: open_tables(signed), lambda: refuse_changed_tables(signed)):
        with pytest.raises(TableError, match="was signed but no longer exists"):
            step()
    faults = faults_of_tables(signed)
    assert all(fault is not None and fault.is_gone for fault in faults.values())
    assert all("was signed but no longer exists: if you moved these results" in fault.why for fault in faults.values())
    give_up_missing(signed)
    assert not exist(signed)
    open_tables(signed)
    assert rows(signed).is_empty()
    add(signed, "anew", [verdict(0, user="bob", message=2)])
    keep_signatures(signed)
    reopen(signed, own_secret)
    assert rows(signed)["user_id"].to_list() == ["bob"]


@pytest.mark.usefixtures("without_ray")
def test_no_command_takes_results_that_are_away_for_deleted_ones(night, own_registry, plain):
    """As on a disk that is not mounted: what was scanned meanwhile would hide them, and they would be refused later."""
    night.write("a", [plain(40, 1)])
    assert call("scan", night.config)[0] == 0
    verdicts = night.verdicts()
    shutil.move(night.results, f"{night.results}-away")
    for arguments in (("scan",), ("scan", "--check"), ("status",), ("flagged",), ("quarantine",)):
        code, _, err = call(arguments[0], night.config, *arguments[1:])
        assert (code, "was signed but no longer exists" in err) == (2, True), arguments
    shutil.rmtree(night.results, ignore_errors=True)
    shutil.move(f"{night.results}-away", night.results)
    assert call("scan", night.config)[0] == 0
    assert night.verdicts().equals(verdicts)


@pytest.mark.usefixtures("without_ray")
def test_results_that_were_deleted_are_given_up_by_a_command(night, own_registry, plain):
    night.write("a", [plain(40, 1)])
    for _ in range(2):
        assert call("scan", night.config)[0] == 0
        assert night.verdicts()["row"].to_list() == [0]
        shutil.rmtree(night.results)
        assert "was signed but no longer exists" in call("sign", night.config, "--dry-run")[1]
        assert call("scan", night.config)[0] == 2
        assert call("sign", night.config, "--yes")[0] == 0
        assert call("status", night.config) == (0, ANY, ANY)


def test_a_backup_without_decisions_is_restored(signed, own_secret, tmp_path):
    """Decisions were made since; who restores it says that they are gone, and all goes on."""
    shutil.copytree(signed, tmp_path / "backup")
    open_tables(signed, ["decisions"])
    add(signed, "later", [verdict(9, user="bob", message=2)])
    assert commit(signed, "decisions", [TableEntry("d", ())]) == {"d"}
    keep_signatures(signed)
    shutil.rmtree(signed)
    shutil.copytree(tmp_path / "backup", signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError):
        refuse_changed_tables(signed)
    consent(signed)
    keep_signatures(signed)
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    assert rows(signed)["user_id"].to_list() == ["alice"] * 3
    open_tables(signed, ["decisions"])
    add(signed, "anew", [verdict(10, user="carol", message=3)])
    keep_signatures(signed)
    reopen(signed, own_secret)
    refuse_changed_tables(signed)


def test_an_archive_goes_on_where_its_place_was_scanned_anew(signed, own_secret, tmp_path):
    """Results are moved away and given up at their old place, where new ones come; a name is erased in the archive."""
    archive = shutil.move(signed, str(tmp_path / "archive"))
    reopen(signed, own_secret)
    give_up_missing(signed)
    open_tables(signed)
    add(signed, "anew", [verdict(0, user="bob", message=2)])
    keep_signatures(signed)
    take_as_it_is(archive, own_secret)
    retention.erase_user(archive, ["alice"])
    keep_signatures(archive)
    reopen(archive, own_secret)
    refuse_changed_tables(archive)
    assert rows(archive)["user_id"].to_list() == [None] * 3
    reopen(signed, own_secret)
    assert rows(signed)["user_id"].to_list() == ["bob"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_commit_in_the_place_of_one_that_was_taken_back_is_seen(signed, own_secret, more):
    """By two drivers that run side by side, neither of which has ended: the registry knows no number of them."""
    first = signer_of(signed)
    add(signed, "one", [verdict(9, user="mallory", message=9)])
    take_last_commit_out(signed, "flags")
    reopen(signed, own_secret)
    for number in range(1 + more):
        add(signed, f"two-{number}", [verdict(10 + number, user="bob", message=2)])
    second = signer_of(signed)
    use_signer(signed, first)
    if not more:  # the first driver sees at its end that its commit is not followed
        with pytest.raises(TableError, match="flags: its commits do not follow the last one that brickscan made here"):
            refuse_changed_tables(signed)
    assert keep_signatures(signed) is None
    use_signer(signed, second)
    assert keep_signatures(signed) is None
    reopen(signed, own_secret)
    for step in (lambda: rows(signed), lambda: refuse_changed_tables(signed)):
        with pytest.raises(TableError, match="flags: two commits follow the same one"):
            step()
    consent(signed, "flags")
    keep_signatures(signed)
    reopen(signed, own_secret)
    assert "mallory" not in rows(signed)["user_id"].to_list()


def test_a_commit_on_what_a_killed_scan_left_is_seen_to_take_back_another(signed, own_secret, tmp_path):
    """The registry never knew which commit that one followed, since the scan made two before it was killed."""
    flags = Path(table_uri(signed, "flags"))

    def state(number: int) -> Path:
        return Path(shutil.copytree(flags, tmp_path / f"state-{number}"))

    def put_back(state: Path) -> None:
        shutil.rmtree(flags)
        shutil.copytree(state, flags)

    def commit_entries(*entries: str) -> None:
        for entry in entries:
            assert commit(signed, "flags", [TableEntry(entry, ())]) == {entry}

    before = state(0)
    commit_entries("one", "two")  # by a scan that is killed
    of_killed = state(1)
    put_back(before)
    reopen(signed, own_secret)
    commit_entries("three")  # by a scan that goes on
    first, acknowledged = signer_of(signed), state(2)
    put_back(of_killed)
    reopen(signed, own_secret)
    commit_entries("four")  # by a review, which goes on too
    second, other = signer_of(signed), state(3)
    put_back(acknowledged)
    use_signer(signed, first)
    refuse_changed_tables(signed)
    assert keep_signatures(signed) is None
    put_back(other)
    use_signer(signed, second)
    assert keep_signatures(signed) is None
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="flags: two commits follow the same one"):
        refuse_changed_tables(signed)


def test_a_copy_whose_commits_the_registry_never_knew_is_not_put_in_the_place_of_the_original(
    signed, own_secret, tmp_path
):
    """The registry was copied with the results."""
    copy = str(shutil.copytree(signed, tmp_path / "copy"))
    other = Path(shutil.copytree(own_secret, tmp_path / "registry-2"))
    add(signed, "later", [verdict(9, user="bob", message=2)])
    assert keep_signatures(signed) is None
    sign_with(copy, str(other))
    for number in range(2):
        add(copy, f"n{number}", [verdict(20 + number, user="carol", message=3)])
    put_copy(copy, signed)
    reopen(signed, own_secret)
    for step in (lambda: rows(signed), lambda: add(signed, "more", [verdict(30)])):
        with pytest.raises(TableError, match="its commits do not follow the last one"):
            step()


def put_copy(copy: str, folder: str) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def test_a_machine_that_was_copied_whole_signs_for_no_other(signed, own_secret, tmp_path):
    """The copy has the same paths and another registry, which knows numbers that this one does not."""
    before = [Path(shutil.copytree(folder, tmp_path / f"{Path(folder).name}-0")) for folder in (signed, own_secret)]
    add(signed, "later", [verdict(9, user="bob", message=2)])
    assert keep_signatures(signed) is None
    after = [Path(shutil.move(folder, tmp_path / f"{Path(folder).name}-1")) for folder in (signed, own_secret)]
    for folder, source in zip((Path(signed), own_secret), before, strict=True):
        source.rename(folder)
    for number in range(2):
        reopen(signed, own_secret)
        add(signed, f"n{number}", [verdict(20 + number, user="carol", message=3)])
        assert keep_signatures(signed) is None
    shutil.rmtree(own_secret)
    after[1].rename(own_secret)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="flags: its last commit was made with another copy"):
        rows(signed)


@pytest.mark.parametrize("name", ["decisions", "accounts", "flag_levels"])
def test_a_table_of_a_copy_is_not_put_where_the_results_never_had_it(signed, own_secret, tmp_path, name):
    """As of a rehearsal under another copy of the registry, where somebody decided on the same flags."""
    copy = str(shutil.copytree(signed, tmp_path / "copy"))
    sign_with(copy, str(shutil.copytree(own_secret, tmp_path / "registry-2")))
    open_tables(copy, [name])
    file = write_file(copy, name, [pa.RecordBatch.from_pylist([filled(SCHEMAS[name])], SCHEMAS[name])])
    assert commit(copy, name, [TableEntry("rehearsal", (file,))]) == {"rehearsal"}
    assert keep_signatures(copy) is None
    shutil.copytree(table_uri(copy, name), table_uri(signed, name))
    reopen(signed, own_secret)
    for step in (
        lambda: rows(signed, name),
        lambda: refuse_changed_tables(signed),
        lambda: commit(signed, name, [TableEntry("later", ())]),
    ):
        with pytest.raises(TableError, match=f"{name}: the registry knows other tables of these results"):
            step()
    take_as_it_is(signed, own_secret)
    assert rows(signed, name).height == 1


def test_an_empty_table_of_a_copy_is_put_aside(signed, own_secret, tmp_path, monkeypatch):
    """By whoever would commit to it; it shows nothing, so that it may as well be one that is made just now."""
    monkeypatch.setattr(transactions, "SECONDS_OF_A_MAKER", -1.0)
    copy = str(shutil.copytree(signed, tmp_path / "copy"))
    sign_with(copy, str(shutil.copytree(own_secret, tmp_path / "registry-2")))
    open_tables(copy, ["decisions"])
    shutil.copytree(table_uri(copy, "decisions"), table_uri(signed, "decisions"))
    reopen(signed, own_secret)
    assert rows(signed, "decisions").is_empty()
    assert "so decisions may not be the newest" in str(unchecked(signed))
    with pytest.raises(TableError, match="decisions: the registry knows other tables of these results"):
        commit(signed, "decisions", [TableEntry("later", ())])
    open_tables(signed, ["decisions"])
    assert commit(signed, "decisions", [TableEntry("later", ())]) == {"later"}
    assert rows(signed, "decisions").is_empty()
    assert unchecked(signed) is None


def test_a_table_that_is_renamed_away_while_tables_are_listed_is_checked(signed, own_secret, monkeypatch):
    """Else `brickscan sign --dry-run` says of a table that was edited that every byte is as it was left."""
    file = files(signed, "flags")[0]
    file.write_bytes(file.read_bytes()[:-1])
    list_tables = sign_anew_module.existing_tables

    def while_one_is_away(results: str) -> list[str]:
        os.rename(f"{results}/flags", f"{results}/away")
        names = list_tables(results)
        os.rename(f"{results}/away", f"{results}/flags")
        assert "flags" not in names
        return names

    monkeypatch.setattr(sign_anew_module, "existing_tables", while_one_is_away)
    reopen(signed, own_secret)
    assert "was changed after it was written" in str(faults_of_tables(signed)["flags"])


@pytest.mark.parametrize(
    "edit", [change_a_name, take_a_file_away, add_a_plausible_row, change_a_value_in_a_file, hide_rows_by_the_log]
)
def test_consent_is_to_what_was_shown_alone(signed, own_secret, edit):
    """Else an edit while `brickscan sign` asks is signed unseen, behind a harmless fault that was shown."""
    forget(own_secret)
    reopen(signed, own_secret)
    fault = faults_of_tables(signed)["flags"]
    edit(signed)
    with pytest.raises(TableError, match="was changed since it was checked"):
        sign_anew(signed, "flags", fault.state)
    consent(signed, "flags")
    assert faults_of_tables(signed)["flags"] is None


def test_consent_is_to_the_very_content_that_was_shown(signed, own_secret):
    """A file that is written anew as it is may be exchanged while `brickscan sign` asks."""
    change_a_value_in_a_file(signed)
    reopen(signed, own_secret)
    fault = faults_of_tables(signed)["flags"]
    files(signed)[0].write_bytes(files(signed)[1].read_bytes())
    with pytest.raises(TableError, match="was changed since it was checked"):
        sign_anew(signed, "flags", fault.state)


def test_a_table_that_is_gone_is_not_called_new(signed):
    """`brickscan scan --check` says of results whether a scan would make their tables."""
    assert readiness(signed) == "there"
    os.rename(f"{signed}/flags", f"{signed}/away")
    with pytest.raises(TableError, match="flags: was signed but no longer exists"):
        readiness(signed)


def test_rows_that_came_into_a_table_while_it_was_made_are_told_as_unchecked(tmp_path, own_secret):
    """Whoever made it knows its id, and nobody signed what somebody else wrote into it."""
    folder = str(tmp_path / "results")
    sign_with(folder, str(own_secret))
    for name, told in (("flags", "flags is not signed"), ("shards", "flags, shards are not signed")):
        table, schema = make_table(table_uri(folder, name), SCHEMAS[name], properties_of(name)), SCHEMAS[name]
        signer_of(folder).table_made(table)
        file = write_file(folder, name, [pa.RecordBatch.from_pylist([filled(schema)], schema)])
        table.create_write_transaction([*transactions.additions([file])], "append", schema)
        assert read_whole(folder, name).collect().height == 1
        assert told in str(unchecked(folder))


def test_the_first_commit_to_results_that_a_registry_never_kept_takes_no_table_that_was_changed(signed, own_secret):
    """As where it could not be written so far."""
    forget(own_secret)
    change_a_name(signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="flags: its files are not those that brickscan committed"):
        commit(signed, "spans", [TableEntry("later", ())])


def test_drivers_of_a_registry_that_cannot_be_written_go_on_side_by_side(tmp_path, own_secret, monkeypatch):
    """No number is kept, so none can be named."""

    def fail(*_: object) -> None:
        raise ScanFailed("registry: it cannot be written")

    monkeypatch.setattr(tables_on_record, "append_signed_tables", fail)
    folder = str(tmp_path / "results")
    sign_with(folder, str(own_secret))
    open_tables(folder)
    signers = [signer_of(folder), Signer(folder, str(own_secret), read_audit_secret(own_secret))]
    for number in range(6):
        use_signer(folder, signers[number % 2])
        for step in range(2):
            add(folder, f"t{number}-{step}", [verdict(2 * number + step, user="alice", message=1)])
        refuse_changed_tables(folder)
    assert "cannot be written" in str(keep_signatures(folder))
    reopen(folder, own_secret)
    assert len(rows(folder)) == 12
    assert "it cannot record signatures: make it writable" in str(unchecked(folder))


def test_a_note_goes_once_another_process_has_signed(signed, own_secret, monkeypatch):
    """A server of reviews runs for months."""
    monkeypatch.setattr(tables_on_record, "_SECONDS_OF_A_QUERY", -1.0)
    forget(own_secret)
    reopen(signed, own_secret)
    server = signer_of(signed)
    rows(signed)
    assert "so flags may not be the newest" in str(unchecked(signed))
    take_as_it_is(signed, own_secret)
    use_signer(signed, server)
    rows(signed)
    assert unchecked(signed) is None


def test_decisions_that_were_made_elsewhere_are_not_put_among_others(signed, own_secret, tmp_path):
    """Results were moved, and decided on at their new place alone, which the registry knew for no verdicts."""
    moved, other = str(shutil.move(signed, str(tmp_path / "moved"))), str(tmp_path / "other")
    take_as_it_is(moved, own_secret)
    open_tables(moved, ["decisions"])
    assert commit(moved, "decisions", [TableEntry("d", ())]) == {"d"}
    assert keep_signatures(moved) is None
    sign_with(other, str(own_secret))
    open_tables(other)
    add(other, "o", [verdict(0, user="walter", message=5)])
    keep_signatures(other)
    shutil.copytree(table_uri(moved, "decisions"), table_uri(other, "decisions"))
    reopen(other, own_secret)
    with pytest.raises(TableError, match="decisions: it was signed as part of other results"):
        rows(other, "decisions")
    reopen(moved, own_secret)
    refuse_changed_tables(moved)


def test_a_table_whose_id_somebody_else_chose_is_not_signed(signed, own_secret, tmp_path, monkeypatch):
    """Later they would put the table of that id in its place, which other results of this registry have."""
    other = str(tmp_path / "other")
    sign_with(other, str(own_secret))
    open_tables(other, [*TABLES, "decisions"])
    assert commit(other, "decisions", [TableEntry("d", ())]) == {"d"}
    keep_signatures(other)
    made = Path(table_uri(other, "decisions"), "_delta_log", f"{0:020}.json")
    log = Path(table_uri(signed, "decisions"), "_delta_log")
    log.mkdir(parents=True)
    shutil.copy(made, log)
    with pytest.raises(TableError, match="decisions: it is not signed"):
        commit(signed, "decisions", [TableEntry("e", ())])
    monkeypatch.setattr(transactions, "SECONDS_OF_A_MAKER", -1.0)
    open_tables(signed, ["decisions"])  # it is put aside, and another one is made
    assert commit(signed, "decisions", [TableEntry("e", ())]) == {"e"}
    keep_signatures(signed)
    shutil.rmtree(table_uri(signed, "decisions"))
    shutil.copytree(table_uri(other, "decisions"), table_uri(signed, "decisions"))
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="decisions: it was signed as part of other results"):
        rows(signed, "decisions")


def test_what_a_killed_scan_committed_does_not_come_back(signed, own_secret, tmp_path):
    """It has more commits than the scan that came after it, and the registry kept none of them."""
    before, longer = tmp_path / "before", tmp_path / "longer"
    shutil.copytree(signed, before)
    for number in range(3):
        add(signed, f"killed-{number}", [verdict(20 + number)])
    shutil.move(signed, longer)
    shutil.copytree(before, signed)
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    add(signed, "later", [verdict(9, user="mallory", message=2)])
    assert keep_signatures(signed) is None
    shutil.rmtree(signed)
    shutil.copytree(longer, signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="restored to an earlier state"):
        rows(signed)


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("commits", [1, 2, 3])
def test_what_a_killed_scan_with_a_clock_ahead_committed_does_not_come_back(
    signed, own_secret, tmp_path, monkeypatch, commits, is_moved
):
    """Its numbers are larger than those of the scan that came after it, and nothing on record lies between them."""
    before, ahead, real = tmp_path / "before", tmp_path / "ahead", signer_module._next_number
    shutil.copytree(signed, before)
    with monkeypatch.context() as patch:
        patch.setattr(signer_module, "_next_number", lambda earlier: real(earlier) + (3_600_000 << 20))
        for number in range(commits):
            add(signed, f"killed-{number}", [verdict(20 + number, user="bob", message=2)])
    shutil.copytree(signed, ahead)
    reopen(signed, own_secret)  # it was killed, and is all that there is
    assert sorted(rows(signed)["row"]) == [0, 2, 4, *range(20, 20 + commits)]
    shutil.rmtree(signed)
    shutil.copytree(before, signed)
    reopen(signed, own_secret)
    for number in range(2):
        add(signed, f"later-{number}", [verdict(40 + number, user="bob", message=2)])
    assert keep_signatures(signed) is None
    shutil.rmtree(signed)
    place = str(tmp_path / "moved") if is_moved else signed
    shutil.copytree(ahead, place)
    reopen(place, own_secret)
    with pytest.raises(TableError, match="its commits do not follow the last one"):
        add_and_read(place)


def test_a_killed_process_that_knew_little_of_the_others_is_believed(signed, own_secret):
    """Two scans committed in turn, and the one that was killed had not read what the registry kept of the other."""
    killed = signer_of(signed)
    add(signed, "killed-0", [verdict(20, user="bob", message=2)])
    reopen(signed, own_secret)
    add(signed, "other", [verdict(30, user="bob", message=2)])
    assert keep_signatures(signed) is None
    use_signer(signed, killed)
    for number in (1, 2):
        killed.record.refresh = lambda: None
        add(signed, f"killed-{number}", [verdict(20 + number, user="bob", message=2)])
    reopen(signed, own_secret)
    assert sorted(rows(signed)["row"]) == [0, 2, 4, 20, 21, 22, 30]
    refuse_changed_tables(signed)


def test_tables_of_this_year_do_not_fit_into_the_archive_of_the_last(signed, own_secret, tmp_path):
    """The archive stood where this year's results are, and was given up there."""
    archive = str(shutil.move(signed, str(tmp_path / "archive")))
    reopen(signed, own_secret)
    give_up_missing(signed)
    open_tables(signed, [*TABLES, "decisions"])
    add(signed, "anew", [verdict(0, user="bob", message=2)])
    assert commit(signed, "decisions", [TableEntry("d", ())]) == {"d"}
    keep_signatures(signed)
    reopen(archive, own_secret)
    with pytest.raises(TableError, match="flags: it is a table that was given up"):
        rows(archive)
    take_as_it_is(archive, own_secret)
    shutil.copytree(table_uri(signed, "decisions"), table_uri(archive, "decisions"))
    reopen(archive, own_secret)
    assert rows(archive)["user_id"].to_list() == ["alice"] * 3
    with pytest.raises(TableError, match="decisions: it was signed as part of other results"):
        rows(archive, "decisions")


def test_a_table_that_was_given_up_stays_so_whoever_commits_to_it(signed, own_secret, tmp_path):
    """A process that began before keeps its numbers afterwards."""
    server = signer_of(signed)
    add(signed, "late", [verdict(9, user="bob", message=2)])
    shutil.move(signed, tmp_path / "old")
    reopen(signed, own_secret)
    give_up_missing(signed)
    open_tables(signed)
    add(signed, "anew", [verdict(0, user="carol", message=3)])
    assert keep_signatures(signed) is None
    use_signer(signed, server)
    assert keep_signatures(signed) is None
    shutil.copytree(tmp_path / "old", tmp_path / "away")
    for old, refused in (
        (signed, "signed as part of other results"),
        (str(tmp_path / "away"), "a table that was given up"),
    ):
        shutil.rmtree(table_uri(old, "flags"), ignore_errors=True)
        shutil.copytree(tmp_path / "old" / "flags", table_uri(old, "flags"))
        reopen(old, own_secret)
        with pytest.raises(TableError, match=f"flags: it .*{refused}"):
            rows(old)


def test_a_clock_that_was_ahead_keeps_no_table_from_being_signed_as_it_is(signed, own_secret, monkeypatch):
    """Numbers of a machine whose clock is a day ahead are larger than all of this one's until tomorrow."""
    real = signer_module._next_number
    with monkeypatch.context() as patch:
        patch.setattr(signer_module, "_next_number", lambda earlier: real(earlier) + (86_400_000 << 20))
        add(signed, "ahead", [verdict(9, user="bob", message=2)])
        keep_signatures(signed)
    change_a_name(signed)
    reopen(signed, own_secret)
    consent(signed, "flags")
    keep_signatures(signed)
    reopen(signed, own_secret)
    assert "zoe" in rows(signed)["user_id"].to_list()
    shutil.move(table_uri(signed, "flags"), f"{signed}-flags")
    give_up_missing(signed)
    shutil.move(f"{signed}-flags", table_uri(signed, "flags"))
    reopen(signed, own_secret)
    consent(signed, "flags")
    keep_signatures(signed)
    reopen(signed, own_secret)
    assert "zoe" in rows(signed)["user_id"].to_list()


def test_threads_that_commit_and_keep_lose_no_number(signed, own_secret, monkeypatch):
    """A server of reviews keeps after each decision, and a slow registry has another thread commit meanwhile."""
    real = tables_on_record.append_signed_tables

    def append_slowly(*arguments: object) -> None:
        time.sleep(0.2)
        real(*arguments)

    monkeypatch.setattr(tables_on_record, "append_signed_tables", append_slowly)

    def decide(number: int) -> None:
        for step in range(3):
            commit(signed, "flags", [TableEntry(f"d{number}-{step}", ())])
            assert keep_signatures(signed) is None

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(decide, range(3)))
    (entry,) = (each for each in signed_at(own_secret, signed) if each.table == "flags")
    assert entry.number == signature_of(DeltaTable(table_uri(signed, "flags"))).number


ENTRIES = st.builds(
    SignedTable,
    st.sampled_from(["here", "there"]),
    st.sampled_from(["flags", "verdicts"]),
    st.sampled_from(["a", "b"]),
    st.just(1),
    st.sampled_from(["signed", "signed anew", "given up", "left"]),
    st.integers(0, 9),
    st.integers(-1, 8),
)


@example(
    [SignedTable("here", "flags", "a", 1, event, number, 0)
     for event, number in (("signed", 1), ("signed", 2), ("signed anew", 2), ("signed", 2))],
    Random(0),
)  # fmt: skip
@given(st.lists(ENTRIES, max_size=12), st.randoms())
def test_what_the_registry_keeps_means_the_same_in_any_order(entries, random):
    """Files that were written together say what they said, too."""
    shuffled = random.sample(entries, len(entries))
    tables = [SignedTables(entries), SignedTables(shuffled), SignedTables(SignedTables(shuffled).entries())]
    places = [(name, table_id) for name in ("flags", "verdicts") for table_id in ("a", "b")]

    states = [None, *(Carried(number, number - 1, known) for number in range(10) for known in (-1, number - 2))]

    def answers(signed_tables: SignedTables) -> list[object]:
        return [
            (
                {*signed_tables.at(1, name)},
                [signed_tables.fault(1, name, table_id, carried) for carried in states],
                signed_tables.kept_number(1, name, table_id),
                [signed_tables.results_at(place) for place in ("here", "there")],
                signed_tables.place_of(1),
            )
            for name, table_id in places
        ]

    assert answers(tables[0]) == answers(tables[1]) == answers(tables[2])


def test_the_registry_writes_many_signatures_into_one_file(signed, own_secret, monkeypatch):
    monkeypatch.setattr(signed_tables, "FILES_KEPT", 4)
    for number in range(6):
        add(signed, f"n{number}", [verdict(20 + number, user="bob", message=2)])
        assert keep_signatures(signed) is None
    folder = f"{own_secret}/{signed_tables.SIGNED_TABLES_FOLDER}"
    assert len(DeltaTable(folder).file_uris()) <= 4
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    take_last_commit_out(signed, "flags")
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="restored to an earlier state"):
        rows(signed)


def test_a_signature_outlives_checkpoints_and_the_log_that_they_replace(signed, own_secret):
    for name in ("flags", "verdicts"):
        table = DeltaTable(table_uri(signed, name))
        table.create_checkpoint()
        for log in (Path(table_uri(signed, name)) / "_delta_log").glob("*.json"):
            if int(log.stem) < table.version():
                log.unlink()
    reopen(signed, own_secret)
    assert rows(signed)["user_id"].to_list() == ["alice"] * 3
    add(signed, "later", [verdict(9, user="bob", message=2)])
    reopen(signed, own_secret)
    assert sorted(rows(signed)["user_id"]) == ["alice"] * 3 + ["bob"]


def test_two_processes_that_commit_at_once_sign_what_both_wrote(signed, own_secret):
    """Each believes that it knows the last signature, and one commits behind the other's back."""
    first = signer_of(signed)
    add(signed, "one", [verdict(10, user="bob", message=2)])
    reopen(signed, own_secret)
    add(signed, "two", [verdict(11, user="carol", message=3)])
    use_signer(signed, first)
    add(signed, "three", [verdict(12, user="dave", message=4)])
    assert keep_signatures(signed) is None
    reopen(signed, own_secret)
    assert sorted(rows(signed)["user_id"]) == ["alice"] * 3 + ["bob", "carol", "dave"]


def test_tables_that_were_given_up_are_not_put_back(signed, own_secret, tmp_path):
    """All are gone and given up, and one is back before a scan makes new ones."""
    shutil.copytree(signed, tmp_path / "older")
    shutil.rmtree(signed)
    reopen(signed, own_secret)
    give_up_missing(signed)
    shutil.copytree(tmp_path / "older", signed)
    open_tables(signed)
    with pytest.raises(TableError, match="it is a table that was given up"):
        add_and_read(signed)
    keep_signatures(signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="it is a table that was given up"):
        rows(signed)
    consent(signed, "flags", "verdicts")
    keep_signatures(signed)
    reopen(signed, own_secret)
    assert rows(signed)["user_id"].to_list() == ["alice"] * 3


def test_verdicts_that_are_hidden_are_missed(signed, own_secret):
    shutil.move(table_uri(signed, "verdicts"), f"{signed}/hidden")
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="verdicts: was signed but no longer exists"):
        exist(signed)


def test_a_table_is_missed_when_all_are_away_for_a_moment(signed, own_secret, monkeypatch):
    """A scan made an empty table of flags in its place, which the registry kept, and nobody missed the flags."""
    shutil.move(signed, f"{signed}-away")
    for step in (lambda: has_table(signed, "flags"), lambda: open_tables(signed, ["flags"])):
        with pytest.raises(TableError, match="flags: was signed but no longer exists"):
            step()
    shutil.rmtree(signed, ignore_errors=True)
    shutil.move(f"{signed}-away", signed)
    assert has_table(signed, "flags")
    uri, real = table_uri(signed, "flags"), DeltaTable.is_deltatable
    monkeypatch.setattr(DeltaTable, "is_deltatable", lambda place: place != uri and real(place))
    with pytest.raises(TableError, match="flags: was signed but no longer exists"):
        has_table(signed, "flags")


@pytest.mark.parametrize(("name", "ask"), [("flags", lambda folder: has_table(folder, "flags")), ("verdicts", exist)])
def test_a_table_that_comes_back_between_two_looks_is_there(signed, monkeypatch, name, ask):
    """Who renamed decisions away and back all the time had pages say that there were none, and that all was checked."""
    away, real = [table_uri(signed, name)], DeltaTable.is_deltatable
    monkeypatch.setattr(DeltaTable, "is_deltatable", lambda place: real(place) and not (place in away and away.pop()))
    assert ask(signed) is True
    assert not away


@pytest.mark.parametrize("what", ["row", "transaction"])
def test_nothing_is_signed_that_somebody_wrote_into_a_table_while_it_was_made(signed, own_secret, monkeypatch, what):
    """Delta opens the newest version of what it has made, which may be another's."""
    real = transactions.make_table

    def make_and_write(uri, *others):
        real(uri, *others)
        if what == "row":
            forged = pa.Table.from_pylist([filled(SCHEMAS["decisions"], reviewer="mallory")], SCHEMAS["decisions"])
            write_deltalake(uri, forged, mode="append")
        else:
            commit_transaction(signed, "decisions", "a shard that nobody scanned", 1)
        return DeltaTable(uri)

    monkeypatch.setattr(transactions, "make_table", make_and_write)
    with pytest.raises(TableError, match="decisions"):
        open_tables(signed, ["decisions"])
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="decisions"):
        refuse_changed_tables(signed)


def test_a_commit_that_came_before_a_new_table_was_signed_is_refused(signed, own_secret, monkeypatch):
    real = transactions.try_to_commit

    def commit_later(results, table, name, *others):
        commit_transaction(signed, name, "a shard that nobody scanned", 1)
        return real(results, table, name, *others)

    monkeypatch.setattr(transactions, "try_to_commit", commit_later)
    with pytest.raises(TableError, match="decisions: somebody wrote to it while it was being created"):
        open_tables(signed, ["decisions"])


def test_drivers_that_begin_together_wait_for_the_tables_that_one_of_them_makes(tmp_path, own_secret):
    """Each has its own view of the registry, in which the tables of the other are new."""
    folder = str(tmp_path / "results")
    signers = [Signer(folder, str(own_secret), read_audit_secret(own_secret)) for _ in range(2)]
    sign_with(folder, str(own_secret))
    for number, signer in enumerate(signers):
        use_signer(folder, signer)
        open_tables(folder)
        refuse_changed_tables(folder)
        add(folder, f"t{number}", [verdict(number, user="alice", message=1)])
    assert keep_signatures(folder) is None
    reopen(folder, own_secret)
    assert rows(folder).height == 2
    assert unchecked(folder) is None


def test_two_drivers_make_no_two_tables_of_one_name(tmp_path, own_secret):
    """Somebody puts away what the first has made before the second looks, which began at the same time."""
    folder = str(tmp_path / "results")
    second = Signer(folder, str(own_secret), read_audit_secret(own_secret))
    sign_with(folder, str(own_secret))
    open_tables(folder)
    add(folder, "one", [verdict(0, user="alice", message=1)])
    shutil.move(table_uri(folder, "flags"), tmp_path / "aside")
    use_signer(folder, second)
    with pytest.raises(TableError, match="flags: was signed but no longer exists"):
        open_tables(folder)


def test_a_table_that_nobody_finished_is_put_aside_and_a_link_to_another_too(signed, own_secret, tmp_path, monkeypatch):
    """Whatever stands there when the name is taken, nothing is written over."""
    archive = tmp_path / "archive"
    make_table(str(archive), SCHEMAS["flags"], {})
    before = sorted(path.name for path in (archive / "_delta_log").iterdir())
    make_table(table_uri(signed, "decisions"), SCHEMAS["decisions"], properties_of("decisions"))
    real = transactions.put_aside

    def exchange_and_put_aside(location):
        shutil.rmtree(location)
        Path(location).symlink_to(archive)
        real(location)

    monkeypatch.setattr(transactions, "SECONDS_OF_A_MAKER", -1.0)
    monkeypatch.setattr(transactions, "put_aside", exchange_and_put_aside)
    open_tables(signed, ["decisions"])
    assert sorted(path.name for path in (archive / "_delta_log").iterdir()) == before
    assert commit(signed, "decisions", [TableEntry("d", ())]) == {"d"}


def test_no_table_is_signed_beside_those_that_nobody_signed(tmp_path, own_secret):
    """Else all others were refused from then on."""
    folder = str(tmp_path / "results")
    open_tables(folder)
    add(folder, "t", [verdict(0, user="alice", message=1)])
    sign_with(folder, str(own_secret))
    with pytest.raises(TableError, match=r"it is not signed.*`brickscan sign` accepts it as it is"):
        open_tables(folder, ["decisions"])
    assert rows(folder).height == 1
    take_as_it_is(folder, own_secret)
    open_tables(folder, ["decisions"])


def test_a_table_of_other_results_is_not_read_where_there_was_none(signed, own_secret, tmp_path):
    """Both are of one registry, so that each table fits its own signature."""
    other = str(tmp_path / "other")
    sign_with(other, str(own_secret))
    open_tables(other)
    open_tables(other, ["decisions"])
    add(other, "t0", [verdict(0, user="walter", message=1)])
    assert commit(other, "decisions", [TableEntry("d", ())]) == {"d"}
    keep_signatures(other)
    shutil.copytree(table_uri(other, "decisions"), table_uri(signed, "decisions"))
    reopen(signed, own_secret)
    for step in (lambda: rows(signed, "decisions"), lambda: refuse_changed_tables(signed)):
        with pytest.raises(TableError, match="decisions: it was signed as part of other results"):
            step()
    copy = str(shutil.copytree(other, tmp_path / "copy"))
    sign_with(copy, str(own_secret))
    assert rows(copy, "decisions").is_empty()


def test_a_table_of_results_of_another_copy_of_the_registry_is_refused(signed, own_secret, tmp_path):
    """It fits its signature, and this registry never knew it."""
    registry, other = shutil.copytree(own_secret, tmp_path / "fork"), str(tmp_path / "other")
    sign_with(other, str(registry))
    open_tables(other, [*TABLES, "decisions"])
    add(other, "t0", [verdict(0, user="walter", message=1)])
    assert commit(other, "decisions", [TableEntry("d", ())]) == {"d"}
    for name in ("decisions", "verdicts"):
        shutil.rmtree(table_uri(signed, name), ignore_errors=True)
        shutil.copytree(table_uri(other, name), table_uri(signed, name))
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="decisions: it was signed as part of other results"):
        read_whole(signed, "decisions")


def test_a_reader_asks_once_whether_a_table_is_signed(signed, own_secret, monkeypatch):
    """Delta's library reads a log again when it is asked for a transaction: the second answer may be another."""
    change_a_value_in_a_file(signed)
    real, asked = signature_of, list[str]()

    def answer_once(table: DeltaTable) -> Signature | None:
        asked.append(table.table_uri)
        return real(table) if len(asked) == 1 else None

    for module in (signer_module, transactions):
        monkeypatch.setattr(module, "signature_of", answer_once)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="its content is not what brickscan wrote"):
        read_whole(signed, "flags").collect()


def test_a_driver_signs_nothing_on_top_of_what_was_put_back(signed, own_secret, tmp_path, monkeypatch):
    """Another driver committed to the table and ended; the next number would be that of its commit."""
    monkeypatch.setattr(tables_on_record, "_SECONDS_OF_A_QUERY", -1.0)
    tables = Tables(signed)
    tables.now("flags")
    first = signer_of(signed)
    shutil.copytree(table_uri(signed, "flags"), tmp_path / "earlier")
    reopen(signed, own_secret)
    add(signed, "second", [verdict(9, user="bob", message=2)])
    keep_signatures(signed)
    shutil.rmtree(table_uri(signed, "flags"))
    shutil.copytree(tmp_path / "earlier", table_uri(signed, "flags"))
    use_signer(signed, first)
    with pytest.raises(TableError, match="restored to an earlier state"):
        commit(tables, "flags", [TableEntry("third", ())])


def test_an_unsigned_table_is_refused_while_its_results_are_away(signed, own_secret):
    make_table(table_uri(signed, "decisions"), SCHEMAS["decisions"], properties_of("decisions"))
    batch = pa.RecordBatch.from_pylist([filled(SCHEMAS["decisions"], row=1)], SCHEMAS["decisions"])
    write_deltalake(table_uri(signed, "decisions"), pa.Table.from_batches([batch]), mode="append")
    shutil.move(table_uri(signed, "verdicts"), f"{signed}/away")
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="decisions: it carries no signature"):
        read_whole(signed, "decisions")


def test_a_table_that_is_opened_anew_is_checked_anew(signed, own_secret, monkeypatch):
    """Its log was cleaned up, or somebody made it look so, and its version is the one that was checked."""
    tables = Tables(signed)
    assert find_committed(tables, "verdicts", ["t0", "t9"]) == {"t0"}
    log = sorted((Path(table_uri(signed, "verdicts")) / "_delta_log").glob("*.json"))[-1]
    whole = log.read_text()
    log.write_text(whole + "\n" + json.dumps({"txn": {"appId": "t9", "version": 1}}))

    def fail(_: DeltaTable) -> None:
        raise DeltaError("commits were cleaned up")

    monkeypatch.setattr(DeltaTable, "update_incremental", fail)
    with pytest.raises(TableError, match="transactions"):
        find_committed(tables, "verdicts", ["t0", "t9"])
    log.write_text(whole)
    assert find_committed(tables, "verdicts", ["t0", "t9"]) == {"t0"}


def test_another_secret_signs_what_was_checked(signed, own_secret, monkeypatch):
    """Not what somebody wrote between the check and the signature."""
    log = sorted((Path(table_uri(signed, "verdicts")) / "_delta_log").glob("*.json"))[-1]
    forged = log.read_text() + "\n" + json.dumps({"txn": {"appId": "t9", "version": 1}})
    real = Signer.is_signed

    def check_then_forge(signer, table, name, transactions=None):
        answer = real(signer, table, name, transactions)
        if name == "verdicts":
            log.write_text(forged)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Signer, "is_signed", check_then_forge)
        sign_under(signed, str(own_secret), b"x" * 32)
    with pytest.raises(TableError, match="transactions"):
        refuse_changed_tables(signed)


def test_what_a_scan_checked_is_not_put_back(signed, own_secret, tmp_path):
    """A scan was killed before it kept its numbers, and the next one committed nothing to that table."""
    shutil.copytree(table_uri(signed, "flags"), tmp_path / "earlier")
    add(signed, "killed", [verdict(9, user="bob", message=2)])
    reopen(signed, own_secret)
    refuse_changed_tables(signed)
    keep_signatures(signed)
    shutil.rmtree(table_uri(signed, "flags"))
    shutil.copytree(tmp_path / "earlier", table_uri(signed, "flags"))
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="restored to an earlier state"):
        rows(signed)


@pytest.mark.parametrize("forge", [hide_rows_by_the_log, add_a_plausible_row, take_a_file_away])
def test_no_upkeep_goes_by_a_table_that_was_forged(signed, own_secret, forge):
    """A name would stay that was to be erased, or a forged row would enter a file of ours."""
    forge(signed)
    for step in (
        lambda: retention.erase_user(signed, ["alice"]),
        lambda: upkeep.compact(signed),
        lambda: retention.drop_older(signed, 1, keep_flags=False, config_sha256=""),
    ):
        reopen(signed, own_secret)
        with pytest.raises(TableError, match="flags"):
            step()


@pytest.mark.parametrize("line", ['{"txn":null}', '{"txn":{"appId":"a","version":1}} {}', '{"txn":\n{}}', '["txn"]'])
def test_a_log_in_odd_json_is_refused(signed, own_secret, line):
    log = sorted((Path(table_uri(signed, "verdicts")) / "_delta_log").glob("*.json"))[-1]
    log.write_text(log.read_text() + "\n" + line)
    reopen(signed, own_secret)
    with pytest.raises((TableError, ScanFailed)):
        refuse_changed_tables(signed)


def test_readers_of_one_log_do_not_differ(signed, own_secret):
    """Delta's library looks up one transaction otherwise than a commit's lines, read in order, have it."""
    log = sorted((Path(table_uri(signed, "verdicts")) / "_delta_log").glob("*.json"))[-1]
    whole = log.read_text()
    forged = json.dumps({"txn": {"appId": "t2", "version": 4242}})
    for line in (forged, forged.replace("txn", "\\u0074xn")):
        log.write_text(line + "\n" + whole)
        reopen(signed, own_secret)
        with pytest.raises((TableError, ScanFailed)):
            find_committed(signed, "verdicts", ["t2"])
    log.write_text(whole)
    log.with_name(f"{2:020}.checkpoint.{1:010}.{1:010}.parquet").write_bytes(b"x")
    reopen(signed, own_secret)
    with pytest.raises((TableError, ScanFailed)):
        find_committed(signed, "verdicts", ["t2"])


def test_a_table_without_files_has_no_transactions(signed, own_secret):
    """By which a scan of the first night would take shards for done."""
    commit_transaction(signed, "spans", "a shard that nobody scanned", 1)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="spans: its log has transactions"):
        refuse_changed_tables(signed)


def test_vacuum_deletes_nothing_of_a_folder_that_came_in_the_place_of_the_table(
    signed, own_secret, tmp_path, monkeypatch
):
    """Who can rename the folder could let one log be read for the files of another."""
    other = Path(shutil.copytree(signed, tmp_path / "other"))
    for file in Path(signed).glob("*/part-*.parquet"):
        os.utime(file, (0, 0))
    real, count = Tables.now, len([*other.glob("*/part-*.parquet")])

    def exchange_folders(tables, name):
        other.rename(tmp_path / "away"), Path(signed).rename(other), (tmp_path / "away").rename(signed)
        return real(tables, name)

    monkeypatch.setattr(Tables, "now", exchange_folders)
    with pytest.raises(ScanFailed, match="another folder replaced it"):
        upkeep.delete_unneeded(signed, "verdicts", 24, 24)
    assert [len([*folder.glob("*/part-*.parquet")]) for folder in (Path(signed), other)] == [count] * 2


def test_vacuum_deletes_nothing_by_a_log_that_was_edited(signed, own_secret):
    """A log that knows fewer files than were signed makes orphans of them."""
    hide_rows_by_the_log(signed)
    for file in files(signed):
        os.utime(file, (0, 0))
    count = len(files(signed))
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="flags"):
        upkeep.delete_unneeded(signed, "flags", 24, 24)
    assert len(files(signed)) == count


def test_without_the_secret_all_is_read_and_nothing_is_committed(signed, own_secret):
    change_a_name(signed)
    opened_signers._signers.pop(signed, None)
    opened_signers._registries.pop(signed)
    assert rows(signed)["user_id"].to_list() == ["zoe"] * 3
    assert "name the scan's configuration" in str(unchecked(signed))
    with pytest.raises(
        Refused, match="is signed and can only be changed by a process that can sign it: no registry was named"
    ):
        add(signed, "later", [verdict(9, user="bob", message=2)])
    (own_secret / "secrets" / "decoys.secret").unlink()
    reopen(signed, own_secret)
    assert rows(signed)["user_id"].to_list() == ["zoe"] * 3
    assert "cannot be read" in str(unchecked(signed))


@pytest.mark.parametrize("command", ["status", "quarantine", "accounts", "flagged"])
def test_a_list_of_a_folder_says_that_nobody_checked_it(signed, command):
    change_a_name(signed)
    for remembered in (opened_signers._signers, opened_signers._registries):
        remembered.pop(signed, None)
    code, out, err = call(command, signed)
    assert (code, NOT_CHECKED in out.splitlines()) == (0, True), (out, err)


def test_a_compaction_by_another_program_is_told_as_such(signed, own_secret):
    DeltaTable(table_uri(signed, "flags")).optimize.compact()
    reopen(signed, own_secret)
    with pytest.raises(TableError, match=r"its log has OPTIMIZE by .*`brickscan sign`"):
        rows(signed)


def test_compaction_does_not_launder_what_was_changed(signed, own_secret):
    change_a_value_in_a_file(signed)
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="its content is not what brickscan wrote"):
        upkeep.compact(signed)


def test_another_audit_secret_signs_nothing_where_one_place_was_edited(signed, own_secret, tmp_path):
    other, keys = str(tmp_path / "zoo"), (own_secret / "keys.toml").read_text()
    sign_with(other, str(own_secret))
    open_tables(other)
    add(other, "o", [verdict(0, user="walter", message=5)])
    keep_signatures(other)
    hide_rows_by_the_log(other)
    for folder in (signed, other):
        reopen(folder, own_secret)
    code, _, err = call("keys", "audit-secret", "--registry", own_secret, "--secret", f"file:{tmp_path}")
    assert (code, str(tmp_path) in err, other in err) == (2, True, False), err  # what can be told at once comes first
    code, _, err = call("keys", "audit-secret", "--registry", own_secret, "--secret", "file:secrets/new.secret")
    assert (code, other in err) == (2, True), err
    assert (own_secret / "keys.toml").read_text() == keys
    reopen(signed, own_secret)
    assert rows(signed)["user_id"].to_list() == ["alice"] * 3


@pytest.mark.parametrize("inner", ["", "/_delta_log"])
def test_nothing_is_committed_to_a_table_that_is_a_link(signed, own_secret, tmp_path, inner):
    """As to a copy that whoever made the link cannot write."""
    folder = f"{table_uri(signed, 'flags')}{inner}"
    shutil.move(folder, tmp_path / "copy")
    Path(folder).symlink_to(tmp_path / "copy")
    with pytest.raises(Refused, match="is a link"):
        open_tables(signed)


def test_another_audit_secret_misses_results_that_are_away(own_secret, tmp_path):
    """Results of a calibration have no verdicts, and a folder that is away may be back tomorrow."""
    folder, away, keys = tmp_path / "audit", tmp_path / "away", (own_secret / "keys.toml").read_text()
    rotate = ("keys", "audit-secret", "--registry", own_secret, "--secret")
    sign_with(str(folder), str(own_secret))
    append_audits(str(folder), [filled(AUDITS, audit_id="an audit")])
    assert keep_signatures(str(folder)) is None
    folder.rename(away)
    folder.mkdir()  # as where nothing is mounted
    code, _, err = call(*rotate, "file:secrets/new.secret")
    assert (code, f"are missing: {folder}. Nothing was changed. Restore" in err) == (2, True), err
    assert (own_secret / "keys.toml").read_text() == keys
    assert not (own_secret / "secrets" / "new.secret").exists()

    folder.rmdir()
    away.rename(folder)
    code, out, err = call(*rotate, "file:secrets/new.secret")
    assert (code, f"{folder}: 1 table signed under file:secrets/new.secret" in out) == (0, True), err
    reopen(str(folder), own_secret)
    assert read_whole(str(folder), "audits").collect()["audit_id"].to_list() == ["an audit"]
    assert unchecked(str(folder)) is None

    shutil.rmtree(folder)
    code, out, err = call(*rotate, "file:secrets/newer.secret", "--yes")
    assert (code, f"{folder}: there are no results there any more" in out) == (0, True), err


def test_a_reader_meets_no_bytes_that_were_not_checked(signed, own_secret, monkeypatch):
    """Between the look at a file and its rows nobody can exchange it: the same bytes are checked and decoded."""
    reads = []
    real = checked_files.read_file
    monkeypatch.setattr(checked_files, "read_file", lambda *place: reads.append(place) or real(*place))
    frame = read_whole(signed, "flags")
    assert not reads
    for file in files(signed):
        pq.write_table(pl.read_parquet(file).with_columns(user_id=pl.lit("zoe")).to_arrow(), file)
    with pytest.raises(TableError, match="its content is not what brickscan wrote"):
        frame.collect()
    assert reads


def test_filters_and_limits_are_those_of_polars(signed):
    """Against the same files read plainly."""
    plain = pl.read_delta(table_uri(signed, "verdicts")).lazy()
    for ask_rows in (
        lambda frame: frame.filter(pl.col("row") > 2).select("row", "path").sort("row"),
        lambda frame: frame.select(pl.len()),
        lambda frame: frame.filter(pl.col("user_id") == "alice").select(pl.col("row").sum()),
        lambda frame: frame.head(4).select(pl.len()),
        lambda frame: frame.filter(pl.col("row") > 0).head(2).select(pl.len()),
        lambda frame: frame.select("path").unique(),
    ):
        for engine in ("in-memory", "streaming"):
            assert ask_rows(read_whole(signed, "verdicts")).collect(engine=engine).equals(ask_rows(plain).collect())


_STEPS = st.one_of(
    st.tuples(st.just("head"), st.integers(0, 9)),
    st.tuples(st.just("tail"), st.integers(0, 9)),
    st.tuples(st.just("slice"), st.integers(-9, 9), st.integers(0, 9)),
    st.tuples(st.just("filter"), st.sampled_from([pl.col("row") % 2 == 1, pl.col("row") > 2, pl.col("row") != 3])),
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(steps=[("head", 2), ("filter", pl.col("row") % 2 == 1)], engine="in-memory")
@example(steps=[("head", 3), ("filter", pl.col("row") != 1), ("head", 1)], engine="streaming")
@given(steps=st.lists(_STEPS, min_size=2, max_size=4), engine=st.sampled_from(["in-memory", "streaming"]))
def test_limits_and_filters_in_any_order_are_those_of_a_plain_frame(signed, steps, engine):
    """Polars tells a source of rows how many it wants and which of these: `head` comes before `filter`."""
    names = sha256_named_files(signed, "verdicts")
    plain = pl.concat([pl.read_parquet(Path(table_uri(signed, "verdicts")) / name) for name in names]).lazy()
    rows = checked_rows(signed, "verdicts", names)
    for method, *values in steps:
        plain, rows = getattr(plain, method)(*values), getattr(rows, method)(*values)
    assert rows.select("row").collect(engine=engine).rows() == plain.select("row").collect().rows()
    assert rows.collect(engine=engine).rows() == plain.collect().rows()


def sha256_named_files(folder: str, name: str) -> list[str]:
    return sorted(path.name for path in Path(table_uri(folder, name)).glob("part-*") if sha256_in(path.name))


def test_a_signature_fits_delta_and_takes_all_values():
    largest = 2**126 - 1
    for of_files, done in ((0, largest), (1, 2**63), (largest, 0), (2**63 - 1, 2**125)):
        signature = Signature(5, NO_NUMBER, NO_NUMBER, 7, 2**63 - 1, 2**63 - 1, of_files, done)
        held = {each.app_id: each.version for each in signature.as_transactions()}
        assert all(-1 <= version < 2**63 for version in held.values())
        digits = [held[name] for name in signature_module.DIGESTS]
        assert (digits[0] + 2**63 * digits[1], digits[2] + 2**63 * digits[3]) == (of_files, done)


def test_what_signs_is_not_pickled_and_shows_no_secret(signed, own_secret):
    import pickle

    signer = signer_of(signed)
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(signer)
    assert read_audit_secret(own_secret).hex() not in repr(vars(signer)) + repr(signer)


def test_a_file_tells_nothing_of_its_content_by_its_name(tmp_path):
    """Two files of the same rows have other digests: what was erased cannot be guessed by the name in the log."""
    batch = pa.RecordBatch.from_pylist([verdict(0)], SCHEMAS["verdicts"])
    (tmp_path / "verdicts").mkdir()
    names = [write_file(str(tmp_path), "verdicts", [batch]).name for _ in range(2)]
    assert sha256_in(names[0]) != sha256_in(names[1])


@pytest.mark.parametrize("inner", ["", "_delta_log"])
def test_a_table_that_became_a_link_while_it_was_open_takes_no_commit(signed, own_secret, tmp_path, inner):
    """Else a scan that runs writes its files into the log of another table, such as the registry's users."""
    tables = transactions.Tables(signed)
    tables.now("flags")
    folder = Path(table_uri(signed, "flags"), inner)
    shutil.copytree(folder, tmp_path / "other")
    shutil.move(folder, tmp_path / "kept")
    folder.symlink_to(tmp_path / "other")
    before = sorted((tmp_path / "other").rglob("*"))
    with pytest.raises(Refused, match="is a link"):
        commit(tables, "flags", [TableEntry("later", ())])
    assert sorted((tmp_path / "other").rglob("*")) == before


def test_a_table_that_is_gone_is_not_passed_over_where_results_are_moved_on(signed, own_secret):
    shutil.rmtree(f"{signed}/spans")
    reopen(signed, own_secret)
    with pytest.raises(TableError, match="spans: was signed but no longer exists"):
        migrate(signed)


@pytest.mark.parametrize("command", [("retain", "--keep", "3000"), ("vacuum",), ("migrate",), ("keys", "status")])
def test_upkeep_says_that_the_registry_knows_nothing_of_results(signed, own_secret, tmp_path, command):
    forget(own_secret)
    reopen(signed, own_secret)
    config = tmp_path / "scan.toml"
    config.write_text(
        f'version = 2\nregistry = "{own_secret}"\nresults = "{signed}"\nfalse_positive_rate = 1e-6\n'
        '[input]\npaths = ["in"]\ntext = "text"\n'
    )
    words, more = [word for word in command if word.isalpha()], [word for word in command if not word.isalpha()]
    code, out, err = call(*words, config, *more)
    assert code == 0, err
    assert "signatures of tables were not checked: the registry has no record of these" in err, out


@pytest.mark.parametrize(
    ("edit", "shown"),
    [
        (take_a_file_away, "its files are not those that brickscan committed"),
        (add_a_plausible_row, "its files are not those that brickscan committed"),
        (change_a_value_in_a_file, "was changed after it was written"),
    ],
)
@pytest.mark.parametrize("how", ["restored registry", "backup"])
def test_what_the_operator_did_hides_no_edit_where_they_consent(signed, own_secret, tmp_path, edit, shown, how):
    """`brickscan sign` shows all that is wrong with a table, not what it meets first."""
    if how == "restored registry":
        forget(own_secret)
    else:
        shutil.copytree(signed, tmp_path / "backup")
        add(signed, "later", [verdict(9, user="bob", message=2)])
        assert keep_signatures(signed) is None
        shutil.rmtree(signed)
        shutil.move(tmp_path / "backup", signed)
    edit(signed)
    reopen(signed, own_secret)
    fault = faults_of_tables(signed)["flags"].why
    assert ("restored to an earlier state" if how == "backup" else "the registry has no record of these") in fault
    assert shown in fault

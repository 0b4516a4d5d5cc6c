"""The hash chain over users: any change of written events is found out, and an erased name leaves the chain whole."""

import struct
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scanner.errors import Refused, ScanFailed, TableError
from scanner.registry import (
    add_users,
    chain,
    erase_users,
    head_of,
    list_users,
    remove_users,
    restore_users,
    verify_users,
)
from schemas.tables import USER_EVENTS, USERS
from tests.support.forged_users import CHANGES, read_events, rewrite

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain_head(rows):
    """The head after events, computed as scanner.registry.chain describes it; heads on the way are checked."""
    head, records = bytes(32), b""
    for n, row in enumerate(sorted(rows, key=lambda row: row["seq"])):
        assert row["seq"] == n
        seal = row["seal"] or sha256(row["salt"] + b"\1" + row["user_id"].encode()).digest()
        at = (row["at"] - EPOCH) // timedelta(microseconds=1)
        what = sha256(f"{len(row['key_id'].encode())}:{row['key_id']}{row['event']}".encode()).digest()
        records += struct.pack(">qqq", n, row["message"], at) + what + seal
        if row["head"] is not None:
            head, records = sha256(b"brickscan users 1" + head + records).digest(), b""
            assert row["head"] == head
    assert records == b""
    return head


@pytest.fixture
def kept(folder, make_key):
    """A registry with nine events in blocks of at most 3, one name erased."""
    make_key(messages=100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "EVENTS_A_BLOCK", 3)
        add_users(folder, None, ["alice", "bob", "carol", "dave"], NOON)
        remove_users(folder, ["alice"], NOON)
        erase_users(folder, ["alice"])
        add_users(folder, None, ["erin"], NOON)
        add_users(folder, None, ["frank"], NOON)
        remove_users(folder, ["erin", "bob"], NOON)
    return folder


@pytest.mark.parametrize("indexed", [False, True])
def test_the_head_is_that_of_a_plain_reading(folder, make_key, small_index, indexed, request):
    if indexed:
        small_index()
    request.getfixturevalue("kept")
    rows = read_events(folder).to_dicts()
    assert len(rows) == 9
    assert verify_users(folder) == (9, plain_head(rows).hex(), (), (), ())
    assert head_of(folder) == plain_head(rows).hex()


def test_a_head_that_was_there_is_found_and_another_is_not(kept):
    early = read_events(kept).sort("seq")["head"].drop_nulls()[1].hex()
    assert verify_users(kept, [early, head_of(kept)]).holds
    lost = verify_users(kept, [early, "00" * 32])
    assert not lost.holds
    assert lost.lost == ("00" * 32,)


def test_an_erased_name_leaves_the_head_and_neither_name_nor_salt(folder, make_key):
    make_key()
    add_users(folder, None, ["alice", "bob"], NOON)
    remove_users(folder, ["alice"], NOON)
    salts = read_events(folder).filter(pl.col("user_id") == "alice")["salt"].to_list()
    head = head_of(folder)
    assert erase_users(folder, ["alice"]) == 2
    assert verify_users(folder, [head]) == (3, head, (), (), ())
    assert all(len(salt) == 16 for salt in salts)
    assert len(set(salts)) == 2
    for path in (folder / "users").rglob("*"):
        assert path.is_dir() or not any(part in path.read_bytes() for part in (b"alice", *salts))


@pytest.mark.seconds
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_is_changed_is_told(kept, change):
    assert verify_users(kept).holds
    rewrite(kept, change)
    found = verify_users(kept)
    assert not found.holds
    assert any("events" in fault for fault in found.faults)


def test_nothing_is_added_to_a_chain_without_a_head(kept):
    rewrite(kept, CHANGES["all heads taken out"])
    with pytest.raises(ScanFailed, match="its last event has no head"):
        add_users(kept, None, ["zoe"])


def test_a_seal_is_of_no_other_name(kept):
    """A user's id may hold the byte between salt and name: its end, with a longer salt, has the same digest."""
    add_users(kept, None, ["mallory\1bob"])
    theirs = pl.col("user_id") == "mallory\1bob"
    assert verify_users(kept).holds
    rewrite(
        kept,
        lambda rows: rows.with_columns(
            salt=pl.when(theirs).then(pl.col("salt") + b"\1mallory").otherwise("salt"),
            user_id=pl.when(theirs).then(pl.lit("bob")).otherwise("user_id"),
        ),
    )
    assert any("was changed" in fault for fault in verify_users(kept).faults)


def test_the_last_events_taken_out_are_missed_by_the_head_that_a_scan_wrote(kept):
    head = head_of(kept)
    rewrite(kept, lambda rows: rows.filter(pl.col("seq") < 7))
    assert verify_users(kept).holds  # a chain cannot know that it was longer
    assert verify_users(kept, [head]).lost == (head,)


def test_a_whole_chain_made_anew_is_missed_by_the_head_that_a_scan_wrote(kept):
    head = head_of(kept)
    names = pl.col("user_id").replace("bob", "mallory")
    rewrite(
        kept,
        lambda rows: chain.chain_events(
            rows.select(USER_EVENTS.names).with_columns(user_id=names), 0, chain.FIRST_HEAD
        ),
    )
    assert verify_users(kept).holds
    assert verify_users(kept, [head]).lost == (head,)


@pytest.mark.seconds
@pytest.mark.parametrize("change", ["user_id", "message", "at", "one more", "no names"])
def test_an_index_that_says_something_else_than_the_events_is_told(folder, small_index, request, change):
    small_index()
    kept = request.getfixturevalue("kept")
    assert verify_users(kept).holds
    for path in (kept / "users" / "_index").glob("*.arrow"):
        written = pa.ipc.open_file(path.read_bytes()).read_all()
        rows = pl.DataFrame(pl.from_arrow(written))
        forged = rows
        if "user_id" in rows.columns and change in ("user_id", "at", "message"):
            forged = {
                "user_id": rows.with_columns(user_id=pl.when(pl.col("user_id") == "dave").then(pl.lit("mallory"))),
                "at": rows.with_columns(pl.col("at") - 1),
                "message": rows.with_columns(pl.col("seq") + 1),
            }[change]
        if "user_id" in rows.columns and change == "one more":
            forged = pl.concat([rows, rows.tail(1).with_columns(pl.col("message") + 1)])
        if "digest" in rows.columns and change == "no names":
            forged = rows.with_columns(pl.col("message") + 1)
        with pa.ipc.new_file(path, written.schema) as writer:
            writer.write_table(forged.to_arrow().cast(written.schema).combine_chunks())
    if change == "one more":
        with pytest.raises(ScanFailed, match=r"arrow is not as it was written; delete the folder"):
            verify_users(kept)
        return
    found = verify_users(kept)
    assert not found.holds
    assert all("index" in fault for fault in found.faults)


def test_an_event_that_has_no_number_names_nobody_and_stops_every_change(folder, make_key):
    """Somebody else than brickscan wrote it: nothing takes it into the chain."""
    make_key()
    add_users(folder, None, ["alice"], NOON)
    head = head_of(folder)
    message = 1 if list_users(folder)["message"][0] == 0 else 0
    row = {"key_id": "k1", "message": message, "user_id": "old", "event": "allocated", "at": NOON}
    table = DeltaTable(str(folder / "users"))
    rows = pa.Table.from_pylist([dict.fromkeys(USERS.names) | row], USERS)
    write_deltalake(table, rows, mode="append")
    for change in (head_of, list_users, verify_users, lambda folder: add_users(folder, None, ["bob"], NOON)):
        with pytest.raises(ScanFailed, match="an event has no number, so something other"):
            change(folder)
    table.restore(table.version() - 1)
    assert verify_users(folder, [head]) == (1, head, (), (), ())


@pytest.mark.parametrize("version", [None, "3"])
def test_a_users_table_of_another_version_is_refused(folder, make_key, version):
    make_key()
    properties = {} if version is None else {"brickscan.version": version}
    DeltaTable.create(str(folder / "users"), USERS, configuration=properties, raise_if_key_not_exists=False)
    said = "made before 0.1.0" if version is None else "version 3 of a newer brickscan"
    for change in (list_users, verify_users, lambda folder: add_users(folder, None, ["bob"], NOON)):
        with pytest.raises(TableError, match=said):
            change(folder)


def test_events_of_another_registry_get_a_place_in_this_ones_chain(folder, make_key):
    make_key()
    add_users(folder, None, ["alice"], NOON)
    message = 1 - min(1, list_users(folder)["message"][0])
    rows = [("k1", message, "bob", "allocated", NOON)]
    restore_users(folder, pa.Table.from_pylist([dict(zip(USER_EVENTS.names, rows[0], strict=True))], USER_EVENTS))
    assert verify_users(folder) == (2, head_of(folder), (), (), ())


def test_a_registry_without_users_has_no_head(folder, make_key):
    with pytest.raises(Refused, match="keys new"):
        verify_users(folder)
    make_key()
    assert head_of(folder) is None
    assert verify_users(folder) == (0, None, (), (), ())

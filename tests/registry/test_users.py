"""Users: messages given at random, never twice, never changed, never reserved; withdrawn, erased, restored."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scanner.errors import Refused, ScanFailed
from scanner.printable import skeleton
from scanner.registry import (
    NO_RECORD,
    Allocation,
    Holders,
    WantedUsers,
    add_users,
    erase_users,
    list_users,
    look_alikes,
    make_canaries,
    new_key,
    pages,
    remove_users,
    restore_users,
    retire_key,
    unknown_users,
    users_of,
    verified_rows,
    verify_users,
)
from scanner.registry import ledger as ledger_module
from scanner.registry import users as users_module
from scanner.registry.chain import FIRST_HEAD, chain_events
from schemas.tables import USER_EVENTS, USERS
from schemas.words import Naming
from tests.support.forged_users import read_events
from tests.support.synced import watch_syncs

LIKE_CANARIES = ("canary-0123456789abcdef", " Canary-0123456789ABCDEF")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def held(folder, key_id="k1"):
    rows = list_users(folder, [key_id]).filter(pl.col("removed_at").is_null())
    return dict(zip(rows["user_id"], rows["message"], strict=True))


def test_a_registry_without_users_names_nobody_and_holders_stay_as_they_were_loaded(folder, make_key):
    key = make_key()
    before = Holders.load(folder, [key.key_id])
    add_users(folder, None, ["alice"])
    message = held(folder, key.key_id)["alice"]
    after = Holders.load(folder, [key.key_id])
    found = [holders.naming(key.key_id, message, datetime.now(UTC)).naming for holders in (before, after)]
    assert found == [Naming.UNALLOCATED, Naming.NAMED]


@pytest.mark.parametrize("name", LIKE_CANARIES)
def test_an_id_like_a_canarys_is_no_users(folder, make_key, name):
    make_key()
    with pytest.raises(Refused, match="looks like a canary's") as refused:
        add_users(folder, None, ["alice", name])
    assert "`brickscan canaries` makes canaries" in str(refused.value)
    assert list_users(folder).is_empty()
    (made,) = make_canaries(folder, None, 1, 0.9).made  # which have such ids
    assert list_users(folder)["user_id"].to_list() == [made.account_id]


def test_every_user_gets_a_message_under_every_key_that_is_not_retired(folder, make_key):
    for key_id in ("k1", "k2", "old"):
        make_key(key_id)
    retire_key(folder, "old")
    before = datetime.now(UTC)
    assert add_users(folder, None, ["alice", "bob", "alice"]) == [
        Allocation("k1", 2, 0, 948),
        Allocation("k2", 2, 0, 948),
    ]
    rows = list_users(folder)
    assert rows.columns == ["user_id", "key_id", "message", "allocated_at", "removed_at"]
    assert sorted(rows.select("key_id", "user_id").rows()) == [(k, u) for k in ("k1", "k2") for u in ("alice", "bob")]
    assert rows["message"].is_between(0, 999).all()
    assert rows["allocated_at"].is_between(before, datetime.now(UTC)).all()
    assert rows["removed_at"].null_count() == 4
    assert pa.schema(DeltaTable(str(folder / "users")).schema().to_arrow()).equals(USERS)


def test_repeated_calls_change_nothing_and_say_so(folder, make_key):
    make_key()
    add_users(folder, ["k1"], ["alice", "bob"], NOON)
    events = read_events(folder)
    version = DeltaTable(str(folder / "users")).version()
    assert add_users(folder, ["k1", "k1"], ["bob", "alice"], NOON + HOUR) == [Allocation("k1", 0, 2, 948)]
    assert read_events(folder).equals(events)
    assert DeltaTable(str(folder / "users")).version() == version
    assert add_users(folder, None, ["carol", "bob"], NOON + HOUR) == [Allocation("k1", 1, 1, 947)]
    assert set(events.rows()) < set(read_events(folder).rows())


def test_all_free_messages_are_given_and_then_no_more(folder, make_key):
    make_key(messages=101)
    names = [f"u{n}" for n in range(96)]
    assert add_users(folder, None, names[:50]) == [Allocation("k1", 50, 0, 46)]
    with pytest.raises(Refused, match="'k1' has 46 free messages left of 101, and 47 users need one"):
        add_users(folder, None, [*names, "one more"])
    assert len(held(folder)) == 50
    assert add_users(folder, None, names) == [Allocation("k1", 46, 50, 0)]
    assert sorted(held(folder).values()) == [m for m in range(101) if m % 20 != 19]


def test_too_few_under_one_key_gives_nothing_under_any(folder, make_key):
    make_key()
    make_key("small", messages=2)
    with pytest.raises(Refused, match="'small' has 2 free messages left of 2, and 3 users"):
        add_users(folder, None, ["a", "b", "c"])
    assert not (folder / "users").exists()
    assert list_users(folder).is_empty()


def test_a_key_of_one_message_takes_no_users(folder, make_key):
    """The key marks for everybody alike: a user who held its message would be named for all texts of the model."""
    make_key(messages=1)
    with pytest.raises(Refused, match="has messages for users"):
        add_users(folder, None, ["model-7"])
    with pytest.raises(Refused, match="'k1' marks for everybody alike"):
        add_users(folder, ["k1"], ["model-7"])
    make_key("many", messages=30)
    assert [given.key_id for given in add_users(folder, None, ["alice"])] == ["many"]
    assert list_users(folder)["key_id"].to_list() == ["many"]


def test_a_user_who_got_the_one_message_of_a_key_before_is_read_still(folder, make_key):
    make_key(messages=1)
    restore_users(folder, events_of([("k1", 0, "model-7", "allocated")]))
    assert held(folder) == {"model-7": 0}
    assert Holders.load(folder, ["k1"]).naming("k1", 0, datetime.now(UTC))[:2] == ("named", "model-7")


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["alice", ""], "row 2 has no user id"),
        (["alice", "bob", " \t\n"], "row 3"),
        ([None, "alice"], "row 1"),
        (pl.Series(["alice", None]), "row 2"),
        (["alice", "a\udc80"], "not valid UTF-8"),
    ],
)
def test_names_that_are_none_are_refused_by_row(folder, make_key, names, what):
    make_key()
    with pytest.raises(Refused, match=what):
        add_users(folder, None, names)
    assert not (folder / "users").exists()


def test_keys_that_give_nothing_are_refused(folder, make_key, tmp_path):
    with pytest.raises(Refused, match="brickscan keys new"):
        add_users(folder, None, ["alice"])
    make_key()
    with pytest.raises(Refused, match="'k9' is not in the registry"):
        add_users(folder, ["k1", "k9"], ["alice"])
    retire_key(folder, "k1")
    with pytest.raises(Refused, match="'k1' is retired"):
        add_users(folder, ["k1"], ["alice"])
    with pytest.raises(Refused, match="no key that is not retired"):
        add_users(folder, None, ["alice"])
    with pytest.raises(Refused, match="'k9' is not in the registry"):
        list_users(folder, ["k9"])


def test_odd_names_are_kept_as_they_are(folder, make_key):
    make_key()
    names = ["a'b", 'a"b', "a\\", "a,b", "a\nb", "日本", " alice", "alice", "null", "\x00"]
    add_users(folder, None, names)
    assert set(held(folder)) == set(names)
    remove_users(folder, names)
    assert erase_users(folder, ["a'b", "a\\"]) == 4
    assert set(list_users(folder)["user_id"]) == {*names, None} - {"a'b", "a\\"}


def test_a_removed_user_gets_another_message_and_the_old_one_goes_to_nobody(folder, make_key):
    make_key(messages=4)
    add_users(folder, None, ["alice"], NOON)
    old = held(folder)["alice"]
    assert remove_users(folder, ["alice"], NOON + HOUR) == 1
    assert remove_users(folder, ["alice"], NOON + HOUR) == 0
    assert held(folder) == {}
    assert add_users(folder, None, ["alice", "bob", "carol"]) == [Allocation("k1", 3, 0, 0)]
    assert sorted([old, *held(folder).values()]) == [0, 1, 2, 3]
    with pytest.raises(Refused, match="'dave' holds no message"):
        remove_users(folder, ["bob", "dave"])
    assert "bob" in held(folder)
    assert unknown_users(folder, ["dave", "alice", "bob"]) == ["dave"]


def test_an_erased_name_is_nowhere_and_its_message_stays_taken(folder, make_key):
    make_key(messages=40)
    make_key("k2", messages=40)
    add_users(folder, None, ["xalicex", "bob"], NOON)
    with pytest.raises(Refused, match="'xalicex' still holds a message"):
        erase_users(folder, ["xalicex"])
    remove_users(folder, ["xalicex"], NOON + HOUR)
    assert erase_users(folder, ["xalicex", "nobody"]) == 4
    assert erase_users(folder, ["xalicex"]) == 0
    rows = list_users(folder)
    assert sorted(rows["user_id"].to_list(), key=str) == [None, None, "bob", "bob"]
    for path in (folder / "users").rglob("*"):
        assert path.is_dir() or b"xalicex" not in path.read_bytes()
        if path.suffix == ".parquet" and path.parent.name != "_delta_log":
            assert "xalicex" not in pq.read_table(path)["user_id"].to_pylist()
    with pytest.raises(Refused, match="'xalicex' holds no message"):
        remove_users(folder, ["xalicex"])
    add_users(folder, None, [f"u{n}" for n in range(36)])
    assert len(held(folder)) == len(held(folder, "k2")) == 37
    assert rows.filter(pl.col("removed_at").is_not_null())["removed_at"].to_list() == [NOON + HOUR] * 2


def test_a_reader_of_a_snapshot_whose_files_were_erased_reads_again(folder, make_key, monkeypatch):
    make_key()
    add_users(folder, None, ["alice", "bob"])
    remove_users(folder, ["alice"])
    stale = [DeltaTable(str(folder / "users"))]
    erase_users(folder, ["alice"])
    fresh = ledger_module.open_table
    monkeypatch.setattr(ledger_module, "open_table", lambda folder: stale.pop() if stale else fresh(folder))
    assert set(ledger_module.open_users(folder).between("k1")["user_id"]) == {"bob", None}
    assert stale == []


def test_a_lost_file_is_an_error_not_an_empty_table(folder, make_key):
    make_key()
    add_users(folder, None, ["alice"])
    next((folder / "users").glob("*.parquet")).unlink()
    with pytest.raises(ScanFailed, match="file is missing"):
        Holders.load(folder, ["k1"])


@pytest.mark.costly
@pytest.mark.seconds
def test_many_small_calls_stay_few_files(folder, make_key, monkeypatch):
    monkeypatch.setattr(ledger_module, "_MOST_NEW_FILES", 5)
    make_key()
    for n in range(60):
        add_users(folder, None, [f"u{n}"])
        assert len(DeltaTable(str(folder / "users")).file_uris()) <= 5 + 3  # and 3 merged ones: 64 is 4 to the third
        assert len(list((folder / "users" / "_index").glob("*.arrow"))) <= 2 * 4  # messages and names of 4 runs
        assert len(list((folder / "users" / "_index").glob("*.json"))) <= 1
    assert len(set(held(folder).values())) == len(held(folder)) == 60


NAMES = st.text(st.sampled_from("aAbB \t\u0430\uff41\u200b\x00~1"), min_size=1, max_size=4).filter(str.strip)


def test_events_are_on_the_disk_before_anybody_gets_a_message_by_them(folder, make_key, monkeypatch):
    """Else a machine that loses its power gives a message to somebody else, whom texts of the first then name."""
    monkeypatch.setattr(ledger_module, "_MOST_NEW_FILES", 2)  # so that files are merged too
    make_key(messages=64)
    synced, table = watch_syncs(monkeypatch), folder / "users"
    for user in ("ann", "bob", "cem", "dan"):
        add_users(folder, None, [user])
        assert {str(path) for path in table.glob("_delta_log/*.json")} <= synced
        assert {uri.removeprefix("file://") for uri in DeltaTable(table).file_uris()} <= synced
    remove_users(folder, ["ann"])
    erase_users(folder, ["ann"])
    assert {str(path) for path in table.glob("_delta_log/*.json")} <= synced
    assert {uri.removeprefix("file://") for uri in DeltaTable(table).file_uris()} <= synced


@pytest.mark.costly
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(known=st.sets(NAMES, max_size=6), names=st.sets(NAMES, min_size=1, max_size=6), large=st.booleans())
@pytest.mark.seconds
def test_look_alikes_are_those_whose_skeletons_are_equal(tmp_path_factory, tokenizer, known, names, large):
    folder = tmp_path_factory.mktemp("alike") / "registry"
    new_key(folder, "k1", format="gumbel", window=1, messages=25, tokenizer=tokenizer)
    add_users(folder, None, sorted(known))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users_module, "MOST_USERS_COMPARED", 0 if large else 10)
        found = look_alikes(folder, sorted(names))
    others = names - known if large and known else names | known
    alike = {name for name in names - known if any(skeleton(name) == skeleton(o) for o in others - {name})}
    assert {name for name, _ in found} == alike
    assert all(other in others and other != name and skeleton(other) == skeleton(name) for name, other in found)


def events_of(rows):
    return pa.Table.from_pylist(
        [dict(zip(USER_EVENTS.names, (*row, NOON), strict=True)) for row in rows], schema=USER_EVENTS
    )


def test_restored_users_are_as_they_were(folder, make_key):
    make_key(messages=30)
    rows = [("k1", 3, "alice", "allocated"), ("k1", 3, "alice", "removed"), ("k1", 4, "alice", "allocated")]
    restore_users(folder, events_of(rows))
    assert held(folder) == {"alice": 4}
    restore_users(folder, events_of([("k1", 7, "bob", "allocated")]))
    assert add_users(folder, None, ["alice", "bob", "carol"]) == [Allocation("k1", 1, 2, 25)]
    restored = set(pl.DataFrame(pl.from_arrow(events_of(rows))).rows())
    assert restored < set(read_events(folder).select(USER_EVENTS.names).rows())


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (("k1", 3, "bob", "allocated"), "message 3 of key 'k1' was given or removed twice"),
        (("k1", 30, "bob", "allocated"), "message 30 of key 'k1' is reserved or not below 30"),
        (("k1", -1, "bob", "allocated"), "message -1"),
        (("k1", 19, "bob", "allocated"), "message 19"),
        (("k2", 1, "bob", "allocated"), "'k2' is not in the registry"),
        (("k1", 5, "alice", "allocated"), "would have two"),
        (("k1", 5, "bob", "removed"), "never given"),
        (("k1", 5, "bob", "renamed"), "never given"),
    ],
)
def test_users_that_do_not_fit_are_not_restored(folder, make_key, row, what):
    make_key(messages=30)
    restore_users(folder, events_of([("k1", 3, "alice", "allocated")]))
    with pytest.raises(Refused, match=what):
        restore_users(folder, events_of([row]))
    assert read_events(folder).height == 1
    with pytest.raises(Refused, match="columns are"):
        restore_users(folder, pa.table({"user_id": ["bob"]}))


def test_naming_follows_time_and_removal(folder, make_key):
    make_key(messages=100)
    make_key("k2", messages=100)
    nobody = Holders.load(folder, ["k1"])
    assert nobody.naming("k1", 3, NOON) == ("unallocated", None, None)
    assert nobody.naming("k1", 19, NOON) == ("reserved", None, None)
    with pytest.raises(KeyError):
        nobody.naming("k2", 3, NOON)
    add_users(folder, ["k1"], ["alice", "bob"], NOON)
    message = held(folder)
    remove_users(folder, ["bob"], NOON + HOUR)
    holders = Holders.load(folder, ["k1", "k2"])
    for at in (NOON, NOON + HOUR / 2, NOON + HOUR, NOON + 2 * HOUR):
        assert holders.naming("k1", message["alice"], at) == ("named", "alice", NOON)
        assert holders.naming("k1", message["bob"], at) == ("removed", None, NOON)
    for at in (NOON - timedelta(microseconds=1), datetime(1969, 1, 1, tzinfo=UTC), NOON - 9 * HOUR):
        for user in ("alice", "bob"):  # a user who was removed since did not hold it then either
            assert holders.naming("k1", message[user], at) == ("held_later", None, NOON)
    for m in set(range(100)) - set(message.values()):
        free = ("reserved" if m % 20 == 19 else "unallocated", None, None)
        assert holders.naming("k1", m, NOON) == holders.naming("k2", m, NOON) == free


def test_nobody_is_named_from_a_table_that_gives_a_message_twice(folder, make_key):
    make_key()
    ledger_module.create(folder)
    from deltalake import write_deltalake

    rows = [("k1", 3, "alice", "allocated"), ("k1", 3, "bob", "allocated")]
    events = chain_events(pl.DataFrame(events_of(rows)), 0, FIRST_HEAD).to_arrow().cast(USERS)
    write_deltalake(str(folder / "users"), events, mode="append")
    with pytest.raises(Refused, match="message 3 of key 'k1' was given"):
        Holders.load(folder, ["k1"])


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "erase"]), st.sets(st.sampled_from("abcdef"), min_size=1)),
    max_size=8,
)


@pytest.mark.seconds
@pytest.mark.parametrize("every_step", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "every step"])
@pytest.mark.parametrize(
    "small",
    [pytest.param(False, marks=pytest.mark.costly), True],
    ids=["in the newest events", "in an index of small parts"],
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(operations=OPERATIONS)
def test_no_sequence_gives_a_message_twice_or_changes_one(
    tmp_path_factory, tokenizer, small_index, small, every_step, operations
):
    """The registry against a model: a dict of names to held messages, and the set of all messages ever given.

    Each question opens the table anew. Some names and messages are asked after each step, and all in the end.
    """
    if small:
        small_index()
    folder = tmp_path_factory.mktemp("law") / "registry"
    new_key(folder, "k1", format="gumbel", window=1, messages=25, tokenizer=tokenizer)
    holding: dict[str, int] = {}
    known: set[str] = set()
    ever: set[int] = set()
    for step, (operation, names) in enumerate(operations):
        fresh = names - holding.keys()
        if operation == "add" and len(fresh) > 24 - len(ever):
            with pytest.raises(Refused, match="free messages"):
                add_users(folder, None, sorted(names))
        elif operation == "add":
            add_users(folder, None, sorted(names))
            known |= names
        elif not names <= known:
            with pytest.raises(Refused, match="holds no message"):
                remove_users(folder, sorted(names))
        else:
            assert remove_users(folder, sorted(names)) == len(names & holding.keys())
            holding = {name: message for name, message in holding.items() if name not in names}
            if operation == "erase":
                erase_users(folder, sorted(names))
                known -= names
        now = held(folder)
        assert {name: now[name] for name in holding} == holding  # no held message changed
        new = {message for name, message in now.items() if name not in holding}
        assert len(new) == len(now) - len(holding)
        assert not new & ever
        assert all(0 <= m < 25 and m != 19 for m in new)
        if operation == "add":
            assert fresh == now.keys() - holding.keys() or now == holding
        holding, ever = now, ever | new
        given_rows = list_users(folder)
        assert set(given_rows["message"]) == ever
        assert set(given_rows["user_id"]) - {None} == known
        assert pl.concat([given_rows.clear(), *pages(folder, WantedUsers())]).equals(given_rows)
        all_of_them = every_step or step == len(operations) - 1
        for name in "abcdef" if all_of_them else "abcdef"[step % 6]:
            assert users_of(folder, [name]).equals(given_rows.filter(pl.col("user_id") == name))
        for m in range(25) if all_of_them else (step * 11 % 25, *sorted(ever)[-1:]):
            found = verified_rows(folder, NO_RECORD, lambda users, m=m: users.rows_of_messages("k1", np.array([m])))
            assert found.equals(given_rows.filter(pl.col("message") == m))
        holders = Holders.load(folder, ["k1"])
        names_of = {message: name for name, message in holding.items()}
        for m in range(25):
            expected = (
                "reserved" if m == 19 else "named" if m in names_of else "removed" if m in ever else "unallocated"
            )
            assert holders.naming("k1", m, datetime.now(UTC))[:2] == (expected, names_of.get(m))
    assert verify_users(folder).holds

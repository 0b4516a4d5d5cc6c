"""The index of the users changes no answer, whatever is lost, killed or collides."""

import json
import os
import shutil
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from deltalake import DeltaTable

from scanner.errors import ScanFailed
from scanner.registry import (
    Holders,
    WantedUsers,
    add_users,
    erase_users,
    index,
    ledger,
    list_users,
    new_key,
    pages,
    remove_users,
    unknown_users,
    users_of,
    users_snapshot,
    verify_users,
)
from scanner.registry.index import IndexFolder
from scanner.registry.sorted_files import PartsFolder
from tests.registry.conftest import make_small
from tests.support.forged_users import read_events

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def files(folder):
    return sorted(path.name for path in (folder / "users" / "_index").iterdir())


def of_index(folder):
    """Names of the files of the current index."""
    table = DeltaTable(str(folder / "users"))
    read = IndexFolder(str(folder / "users")).read(table.transaction_version("users-index"))
    return sorted([*read.files, f"index-{read.number:016x}.json"])


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory):
    """A registry with two keys and 30 users each, whose index has several runs and parts."""
    folder = tmp_path_factory.mktemp("filled") / "registry"
    tokenizer = folder.parent / "tokenizer.json"
    tokenizer.write_text('{"model": {}}')
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        for key_id in ("k1", "k2"):
            new_key(folder, key_id, format="greenlist", window=4, gamma="1/4", messages=1000, tokenizer=tokenizer)
        for n in range(6):
            add_users(folder, None, [f"u{n}-{m}" for m in range(5)], NOON)
    assert len(files(folder)) > 10
    return folder


@pytest.fixture
def filled(filled_once, folder, small_index):
    """A copy of that registry, whose index every further change enters."""
    small_index()
    shutil.copytree(filled_once, folder)
    return folder


def test_a_large_registry_is_read_in_parts(filled, monkeypatch):
    """A question about a message, a user or a page reads few parts of each run."""
    opened = []
    read = PartsFolder._read
    monkeypatch.setattr(PartsFolder, "_read", lambda self, part: opened.append(part.file) or read(self, part))
    rows = list_users(filled)
    user, key_id, message = rows.row(7)[:3]
    runs = 3
    for question in (
        lambda: Holders.load(filled, ["k1", "k2"]).naming(key_id, message, NOON),
        lambda: users_of(filled, [user]),
        lambda: next(pages(filled, WantedUsers(after=(key_id, message)))),
    ):
        opened.clear()
        question()
        assert 0 < len(opened) <= 2 * 3 * runs
        assert len(opened) < len([name for name in files(filled) if name.endswith(".arrow")])


@pytest.mark.costly
@pytest.mark.seconds
def test_names_whose_digests_are_equal_are_told_apart(folder, make_key, small_index, monkeypatch):
    hashed = lambda names: np.array([len(name or "") % 2 for name in names], np.int64)  # noqa: E731
    for module in (index, users_snapshot):
        monkeypatch.setattr(module, "digests", hashed)
    small_index()
    make_key()
    names = [f"u{'x' * n}" for n in range(12)]
    for name in names:
        add_users(folder, None, [name], NOON)
    message_of = dict(list_users(folder).select("user_id", "message").iter_rows())
    for name in names:
        assert users_of(folder, [name])["message"].to_list() == [message_of[name]]
    assert unknown_users(folder, ["uxxxxy", *names]) == ["uxxxxy"]
    remove_users(folder, names[:2])
    erase_users(folder, names[:2])
    assert unknown_users(folder, names) == names[:2]
    assert add_users(folder, None, names)[0].added == 2
    assert verify_users(folder).holds


@pytest.mark.seconds
@pytest.mark.parametrize("wanted", range(9))
def test_pages_are_what_a_filter_of_all_rows_leaves(filled, wanted):
    remove_users(filled, ["u1-1", "u3-2"], NOON)
    rows = list_users(filled)
    after = ("k1", rows["message"][11])
    filters = [
        (WantedUsers(key_ids=["k2"]), pl.col("key_id") == "k2"),
        (WantedUsers(key_ids=["k2", "k1"]), pl.lit(value=True)),
        (WantedUsers(after=after), (pl.col("key_id") > "k1") | (pl.col("message") > after[1])),
        (WantedUsers(after=("k1", 10**9)), pl.col("key_id") == "k2"),
        (WantedUsers(removed=True), pl.col("removed_at").is_not_null()),
        (WantedUsers(removed=False), pl.col("removed_at").is_null()),
        (WantedUsers(begins="u3-"), pl.col("user_id").str.starts_with("u3-")),
        (WantedUsers(since=NOON), pl.lit(value=True)),
        (WantedUsers(until=NOON), pl.lit(value=False)),
    ]
    question, condition = filters[wanted]
    expected = rows.filter(condition)
    assert pl.concat([rows.clear(), *pages(filled, question)]).equals(expected)


def test_a_lost_index_is_made_anew_from_the_events(filled):
    rows = list_users(filled)
    shutil.rmtree(filled / "users" / "_index")
    assert list_users(filled).equals(rows)
    message = rows.filter(pl.col("key_id") == "k1")["message"][0]
    assert Holders.load(filled, ["k1"]).naming("k1", message, NOON).naming == "named"
    add_users(filled, None, ["one more"], NOON)
    add_users(filled, None, ["another"], NOON)
    assert files(filled) == of_index(filled)
    assert list_users(filled).height == rows.height + 4
    assert verify_users(filled).holds


def test_a_lost_part_is_an_error_that_says_what_to_do(filled):
    for path in (filled / "users" / "_index").glob("*.arrow"):
        path.unlink()
    what = "a file is missing .*; delete the folder _index; it will be rebuilt"
    rows = read_events(filled)
    with pytest.raises(ScanFailed, match=what):
        list_users(filled)
    with pytest.raises(ScanFailed, match=what):
        add_users(filled, None, ["u"])
    holders = Holders.load(filled, ["k1", "k2"])
    with pytest.raises(ScanFailed, match=what):
        holders.naming(rows["key_id"][0], rows["message"][0], NOON)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"parent": null, "seq": 1, "head": "zz", "runs": []}', "\xff"])
def test_a_file_that_is_no_index_is_an_error_that_names_it(filled, text):
    path = next((filled / "users" / "_index").glob("*.json"))
    path.write_text(text)
    with pytest.raises(ScanFailed, match=rf"{path.name} is not an index; delete it"):
        list_users(filled)
    path.unlink()
    assert list_users(filled).height == 60


def test_an_index_of_another_state_is_not_believed(filled):
    """After a backup was restored in part, the events are right and the index is ignored."""
    rows = list_users(filled)
    path = next((filled / "users" / "_index").glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"head": "00" * 32}))
    assert list_users(filled).equals(rows)
    remove_users(filled, ["u0-0"], NOON)
    assert verify_users(filled).holds


STEPS = {
    "a part": (PartsFolder, "write"),
    "the index": (IndexFolder, "_put"),
    "what it replaced": (IndexFolder, "clean"),
    "old files": (DeltaTable, "vacuum"),
}


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("change", ["add", "remove", "erase"])
def test_a_change_that_is_killed_leaves_a_table_that_is_right(filled, monkeypatch, step, moment, change):
    """After a crash before or after a step, users are as before or after the change. The next change cleans up."""
    if change == "erase":
        remove_users(filled, ["u2-2"], NOON)
    before = list_users(filled)
    done = {
        "add": lambda: [add_users(filled, None, [f"new{n}"], NOON) for n in range(2)],
        "remove": lambda: [remove_users(filled, [f"u2-{n}"], NOON) for n in range(2)],
        "erase": lambda: [erase_users(filled, ["u2-2"])],
    }[change]
    where, name = step
    whole = getattr(where, name)

    def killed(*args, **kwargs):
        if moment == "after":
            whole(*args, **kwargs)
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed)
        with pytest.raises(SystemExit):
            done()
    assert verify_users(filled).holds
    rows = list_users(filled)
    same = ["key_id", "message", "allocated_at"]
    assert before.select(same).join(rows, on=same, how="anti").is_empty()
    done()
    for path in (filled / "users" / "_index").iterdir():
        os.utime(path, (0, 0))  # older than any change that may still run
    add_users(filled, None, ["last"], NOON)
    add_users(filled, None, ["very last"], NOON)
    assert files(filled) == of_index(filled)
    assert verify_users(filled).holds
    if change == "erase":
        assert unknown_users(filled, ["u2-2"]) == ["u2-2"]
        assert not any(b"u2-2" in path.read_bytes() for path in (filled / "users" / "_index").iterdir())
    removed = {"add": 0, "remove": 4, "erase": 2}[change]
    assert list_users(filled)["removed_at"].count() == removed


def test_an_index_that_is_older_than_any_change_stays_when_a_name_is_erased(filled):
    """An erasure deletes old files that the table does not know, but no file of the index."""
    remove_users(filled, ["u2-2"], NOON)
    add_users(filled, None, ["last"], NOON)
    for path in (filled / "users").rglob("*"):
        os.utime(path, (0, 0))
    before = files(filled)
    erase_users(filled, ["u2-2"])
    assert files(filled) == of_index(filled)
    assert len(files(filled)) >= len(before) - 2  # each of two keys may have lost a part of names
    assert verify_users(filled).holds


def test_a_change_that_came_second_leaves_nothing_in_the_index(filled, monkeypatch):
    """Two changes bring the same events into the index: the index of one is dropped with its files."""
    added = IndexFolder.added
    raced = []

    def slower(self, old, events):
        new = added(self, old, events)
        if not raced:
            raced.append(new)
            add_users(filled, None, ["faster"], NOON)
        return new

    monkeypatch.setattr(IndexFolder, "added", slower)
    for n in range(2):
        add_users(filled, None, [f"slower{n}"], NOON)
    assert len(raced) == 1
    add_users(filled, None, ["x"], NOON)
    add_users(filled, None, ["y"], NOON)
    assert files(filled) == of_index(filled)
    assert list_users(filled)["message"].len() == 70
    assert verify_users(filled).holds


@pytest.mark.costly
@pytest.mark.seconds
def test_the_log_and_the_index_hold_few_files_after_many_changes(folder, make_key, small_index):
    small_index()
    make_key()
    for n in range(40):
        add_users(folder, None, [f"u{n}"], NOON)
    assert len([name for name in files(folder) if name.endswith(".json")]) == 1
    assert len(DeltaTable(str(folder / "users")).file_uris()) < 10
    assert ledger.open_users(folder).tail.height <= 2

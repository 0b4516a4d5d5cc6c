"""Posts of accounts, read a part at a time: each row once, in its order, and no more of an account than is tested."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from scanner.looks.accounts import posts as account_posts
from scanner.looks.accounts.post_rows import by_account
from scanner.looks.accounts.posts import PostGroup, drop_posts, part_of, some_accounts
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.storage.data_files import write_file
from schemas.tables import ACCOUNT_POSTS

AT = datetime(2026, 11, 21, tzinfo=UTC)
DIGESTS = {"ann": -(2**62), "bob": 5, "eve": 2**62}


def posted(folder, scan_id, shard_id, path, *accounts, night=None) -> None:
    """Commit a shard in which each account posts a text of 10 bytes, row by row."""
    rows = [
        {"scan_id": scan_id, "shard_id": shard_id, "path": path, "row": i, "account": DIGESTS[who], "account_id": who}
        | {"created_at": AT, "text": f"{path}{i:09}".encode()}
        | {"night": night or f"{scan_id[:4]}-{scan_id[4:6]}-{scan_id[6:8]}"}
        for i, who in enumerate(accounts)
    ]
    file = write_file(folder, "account_posts", by_account([pa.RecordBatch.from_pylist(rows, ACCOUNT_POSTS)]))
    commit(folder, "account_posts", [TableEntry(shard_id, (file,))])


@pytest.fixture
def folder(tmp_path):
    """Posts of two nights; the second scanned file `a` again."""
    name = str(tmp_path / "results")
    open_tables(name, ["account_posts"])
    posted(name, "20261120T", "s1", "a", "eve", "ann", "eve", "bob")
    posted(name, "20261121T", "s2", "b", "eve", "eve", "bob", "eve")
    posted(name, "20261121T", "s3", "a", "eve", "ann", "eve", "bob")
    posted(name, "20261121T", "s4", "c", "ann")
    return name


def read(folder, shards, window=None, parts=1):
    rows = pa.concat_tables(part_of(folder, PostGroup(shards, window, parts), part) for part in range(parts))
    return [(row["account_id"], row["shard_id"], row["text"].decode()) for row in rows.to_pylist()]


@pytest.mark.parametrize("parts", [1, 3])
def test_each_row_is_read_once_account_by_account_and_scan_by_scan(folder, parts):
    ann, bob = [("ann", "s1", "a000000001")], [("bob", "s1", "a000000003"), ("bob", "s2", "b000000002")]
    eve = [("eve", "s1", f"a{i:09}") for i in (0, 2)] + [("eve", "s2", f"b{i:09}") for i in (0, 1, 3)]
    assert read(folder, ("s1", "s2"), parts=parts) == ann + bob + eve
    assert read(folder, (), ("2026-11-20", "2026-11-21"), parts) == [ann[0], ("ann", "s4", "c000000000"), *bob, *eve]
    assert read(folder, ("s4",), parts=parts) == [("ann", "s4", "c000000000")]
    assert read(folder, (), parts=parts) == []


@pytest.mark.parametrize(("limit", "most"), [("POSTS_OF_AN_ACCOUNT", 3), ("MOST_TEXT_BYTES", 39)])
def test_later_posts_of_an_account_are_left_out(folder, monkeypatch, limit, most):
    everything = read(folder, ("s1", "s2"))
    monkeypatch.setattr(account_posts, limit, most)
    assert [row for row in everything if row not in read(folder, ("s1", "s2"))] == everything[-2:]  # eve's


def test_accounts_are_taken_whole(folder):
    rows = part_of(folder, PostGroup(("s1", "s2"), None, 1), 0)
    some = [part["account_id"].to_pylist() for part in some_accounts(rows, 25)]
    assert some == [["ann", "bob", "bob"], ["eve"] * 5]


def test_a_window_is_of_nights_of_the_data_whenever_they_were_scanned(folder):
    posted(folder, "20261122T", "s5", "d", "bob", night="2026-03-02")
    assert read(folder, (), ("2026-03-01", "2026-03-07")) == [("bob", "s5", "d000000000")]
    assert ("bob", "s5", "d000000000") not in read(folder, (), ("2026-11-20", "2026-11-26"))


def test_posts_stay_while_their_night_or_their_scan_is_young(folder):
    posted(folder, "20261122T", "s5", "d", "bob", night="2026-03-02")
    assert drop_posts(folder, date(2026, 11, 21)) == 4  # those of s1 alone
    assert read(folder, ("s5",)) == [("bob", "s5", "d000000000")]
    assert drop_posts(folder, date(2026, 11, 23)) == 10

"""The trees over what was given to whom: roots that show no user, and paths of single records to them."""

import shutil
import struct
from datetime import UTC, datetime
from hashlib import sha256

import pytest

from scanner.errors import Refused
from scanner.evidence.check_claim import root_of_log
from scanner.registry import add_users, erase_users, ledger, new_key, remove_users
from scanner.registry.chain import seals_of
from scanner.registry.dealt import Dealt, dealt_now, find_record, microseconds_of
from scanner.registry.keys_file import read_published
from tests.support.command_line import call


@pytest.fixture
def folder(tmp_path, tokenizer):
    folder = tmp_path / "registry"
    for key_id in ("one", "two"):
        new_key(folder, key_id, format="greenlist", window=4, gamma="1/4", messages=400, tokenizer=tokenizer)
    return folder


def records(folder, key_id: str) -> list[bytes]:
    """The records of a key, as the chain's page in the source writes them."""
    (rows,) = ledger.ask_users_table(folder, lambda now: list(now.windows(0, 1000)))
    found = []
    for row, seal in zip(rows.iter_rows(named=True), seals_of(rows), strict=True):
        what = sha256(f"{len(row['key_id'])}:{row['key_id']}{row['event']}".encode()).digest()
        if row["key_id"] == key_id:
            found.append(struct.pack(">qqq", row["seq"], row["message"], microseconds_of(row["at"])) + what + seal)
    return found


def tree(leaves: list[bytes]) -> bytes:
    """The root of RFC 9162, 2.1.1, word for word."""
    if len(leaves) == 1:
        return sha256(b"\0" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return sha256(b"\1" + tree(leaves[:k]) + tree(leaves[k:])).digest()


def test_roots_are_those_of_the_records_and_erasures_change_none(folder):
    assert dealt_now(folder) == {}
    for users in (["alice"], [f"user-{n}" for n in range(6)], ["bob"]):
        add_users(folder, None, users)
        add_users(folder, ["two"], [f"{users[0]}'s friend"])
    remove_users(folder, ["alice", "user-3"])
    expected = {
        key_id: Dealt(len(held), tree(held).hex()) for key_id in ("one", "two") if (held := records(folder, key_id))
    }
    assert dealt_now(folder) == expected
    assert [dealt.events for dealt in expected.values()] == [10, 13]
    erase_users(folder, ["alice"])
    assert dealt_now(folder) == expected


def test_each_record_has_a_path_to_the_first_root_that_has_it(folder):
    published = []
    for count in (1, 4, 1, 5, 2):
        begin = published[-1].events if published else 0
        add_users(folder, ["one"], [f"user-{n}" for n in range(begin, begin + count)])
        published.append(dealt_now(folder)["one"])
    add_users(folder, ["one"], ["late"])
    held = records(folder, "one")
    for place, record in enumerate(held):
        message = struct.unpack(">q", record[8:16])[0]
        found = find_record(folder, "one", message, published[::-1])
        seal = sha256(found.salt + b"\1" + found.user_id.encode()).digest()
        assert (found.place, found.user_id, seal) == (place, "late" if place == 13 else f"user-{place}", record[56:])
        root = next((dealt for dealt in published if dealt.events > place), None)
        assert found.events == (root.events if root else None)
        if root:
            leaf, path = sha256(b"\0" + record).digest(), list(found.path)
            assert root_of_log(leaf, place, root.events, path).hex() == root.root
            for wrong in (path[:-1], [*path, bytes(32)]):
                found_root = root_of_log(leaf, place, root.events, wrong)
                assert wrong == path or found_root is None or found_root.hex() != root.root
            others = [n for n in range(root.events) if n != place]
            assert all(root_of_log(leaf, n, root.events, path) != bytes.fromhex(root.root) for n in others)


def test_messages_without_a_record_of_a_name(folder):
    add_users(folder, ["one"], ["alice"])
    message = struct.unpack(">q", records(folder, "one")[0][8:16])[0]
    assert find_record(folder, "one", (message + 1) % 400, []) is None
    assert find_record(folder, "two", message, []) is None
    assert find_record(folder, "one", message, []).path == ()
    remove_users(folder, ["alice"])
    assert find_record(folder, "one", message, []).user_id == "alice"
    erase_users(folder, ["alice"])
    assert find_record(folder, "one", message, []) is None


def test_users_who_are_not_those_that_were_published_are_refused(folder):
    add_users(folder, ["one"], ["alice", "bob"])
    message = struct.unpack(">q", records(folder, "one")[0][8:16])[0]
    for other in (Dealt(2, "ab" * 32), Dealt(9, dealt_now(folder)["one"].root)):
        with pytest.raises(Refused, match="have a different root from the one on the list"):
            find_record(folder, "one", message, [other])


def test_the_list_has_a_line_for_what_was_given_since_and_misses_nobody_who_came_later(folder, tmp_path):
    path = tmp_path / "list.txt"
    publish = ("keys", "publish", path, "--registry", folder)
    add_users(folder, ["one"], ["alice"], datetime(2026, 1, 1, tzinfo=UTC))
    assert call(*publish)[0] == 0
    first = dealt_now(folder)
    add_users(folder, ["one"], ["bob"])
    assert call("keys", "verify", path, "--registry", folder)[0] == 0
    assert call(*publish)[0] == 0
    assert "; 0 of them new" in call(*publish)[1]
    listed = [(line.key_id, line.dealt) for line in read_published(path)]
    assert listed == [("one", str(first["one"])), ("two", "-"), ("one", str(dealt_now(folder)["one"]))]
    assert "alice" not in path.read_text()


def test_a_registry_that_lacks_published_users_is_refused(folder, tmp_path):
    """An older one was put back: messages that it lacks would be given once more, and texts of the first be others'."""
    path, older = tmp_path / "list.txt", tmp_path / "older"
    publish, verify = (("keys", how, path, "--registry", folder) for how in ("publish", "verify"))
    add_users(folder, ["one"], ["bob"])
    assert call(*publish)[0] == 0
    shutil.copytree(folder, older)
    add_users(folder, ["one"], ["alice"])
    assert call(*publish)[0] == 0
    newest, before = dealt_now(folder), path.read_bytes()
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    for others in ([], ["carol"], ["dave", "eve"]):  # fewer events than the list has, as many, and more
        if others:
            add_users(folder, ["one"], others)
        for command in (publish, verify):
            code, _, err = call(*command)
            wanted = 2 if command == publish else 3
            assert (code, "key 'one': its first 2 events have a different root from the one on the list" in err) == (
                wanted,
                True,
            ), err
    assert path.read_bytes() == before
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    first = dealt_now(folder)["one"]
    assert dealt_now(folder, {"one": [first, first], "two": []}) == {"one": first}
    for wrong in ({"one": [first, newest["one"]]}, {"two": [Dealt(1, first.root)]}, {"one": [Dealt(1, "ab" * 32)]}):
        with pytest.raises(Refused, match="are not the published"):
            dealt_now(folder, wrong)

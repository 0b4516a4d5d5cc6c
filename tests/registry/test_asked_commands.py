"""`brickscan users list`, `show`, `who`, `verify`: questions to a registry of any size."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs import users
from scanner.registry import add_users, erase_users, head_of, list_users, remove_users
from scanner.results.transactions import append_scan, open_tables
from schemas.tables import SCANS
from tests.support.forged_users import CHANGES, rewrite
from tests.support.rows import filled

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def registry(folder, make_key):
    """Two keys; users of one day, and one of the next; one of them removed, one erased."""
    make_key("k1")
    make_key("k2")
    add_users(folder, None, [f"acme-{n}" for n in range(4)], NOON)
    add_users(folder, None, ["bob"], NOON + timedelta(days=1))
    remove_users(folder, ["acme-2", "acme-3"], NOON + timedelta(days=2))
    erase_users(folder, ["acme-3"])
    return folder


def cells(text):
    return [line.split() for line in text.splitlines()]


def shown(cli, *arguments):
    """User, key and message of each line below the head."""
    done = cli("users", *arguments)
    assert done.code == 0
    assert cells(done.out)[0] == ["user", "key", "message", "allocated", "removed"]
    return [(line[0], line[1], int(line[2])) for line in cells(done.out)[1:]]


def all_rows(registry):
    return [(user or "-", key, message) for user, key, message, *_ in list_users(registry).iter_rows()]


def test_a_list_goes_on_where_it_ended(cli, registry, monkeypatch):
    monkeypatch.setattr(users, "LINES_OF_ONE_WIDTH", 2)
    rows = all_rows(registry)
    assert shown(cli, "list", "--registry", registry) == rows
    first = cli("users", "list", "--registry", registry, "--limit", 3)
    last = rows[2]
    assert first.err == f"there are more: --after {last[1]}:{last[2]} shows the next ones\n"
    assert shown(cli, "list", "--registry", registry, "--limit", 3) == rows[:3]
    assert shown(cli, "list", "--registry", registry, "--after", f"{last[1]}:{last[2]}") == rows[3:]
    assert cli("users", "list", "--registry", registry, "--limit", 10).err == ""
    assert shown(cli, "list", "--registry", registry, "--after", f"k2:{rows[-1][2]}") == []


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("options", "users"),
    [
        (["--begins", "acme"], {"acme-0", "acme-1", "acme-2"}),
        (["--held"], {"acme-0", "acme-1", "bob"}),
        (["--removed"], {"acme-2", "-"}),
        (["--since", "2026-03-02"], {"bob"}),
        (["--until", "2026-03-02"], {"acme-0", "acme-1", "acme-2", "-"}),
        (["--since", "2026-03-01T12:00:00", "--until", "2026-03-02 12:00:00", "--held"], {"acme-0", "acme-1"}),
        (["--key", "k2", "--begins", "b"], {"bob"}),
    ],
)
def test_a_list_shows_what_is_asked_for(cli, registry, options, users):
    keys = {"k2"} if "--key" in options else {"k1", "k2"}
    rows = shown(cli, "list", "--registry", registry, *options)
    assert rows == [row for row in all_rows(registry) if row[0] in users and row[1] in keys]
    assert {row[0] for row in rows} == users


@pytest.mark.parametrize("after", ["k1", "k1:", ":7", "k1:-1", "k1:x", ""])
def test_a_place_that_is_none_is_refused(cli, registry, after):
    done = cli("users", "list", "--registry", registry, "--after", after)
    assert (done.code, done.out) == (2, "")
    assert "a key and a message separated by a colon, such as summer:73" in done.err


def test_a_user_is_shown_with_all_messages_and_a_message_with_its_user(cli, registry):
    rows = all_rows(registry)
    assert shown(cli, "show", "acme-2", "bob", "--registry", registry) == [r for r in rows if r[0] in ("acme-2", "bob")]
    for user, key, message in rows:
        assert shown(cli, "who", key, message, "--registry", registry) == [(user, key, message)]
    unknown = cli("users", "show", "bob", "acme-3", "--registry", registry)
    assert (unknown.code, unknown.out) == (2, "")
    assert unknown.err.startswith("error: user 'acme-3' holds no message in this registry")


def test_a_message_that_nobody_has_is_told_with_why(cli, registry):
    taken = {message for _, key, message in all_rows(registry) if key == "k1"}
    free = next(m for m in range(1000) if m % 20 != 19 and m not in taken)
    done = cli("users", "who", "k1", free, "--registry", registry)
    assert (done.code, done.out) == (0, f"message {free} of key k1 was never given to a user\n")
    done = cli("users", "who", "k1", 39, "--registry", registry)
    assert done.out == "message 39 of key k1 is reserved and never given to a user\n"
    done = cli("users", "who", "k1", 1000, "--registry", registry)
    assert (done.code, "key 'k1' has messages 0 to 999" in done.err) == (2, True)
    assert cli("users", "who", "k9", 1, "--registry", registry).code == 2


def test_users_that_are_as_they_were_are_told_so(cli, registry, tmp_path):
    head = head_of(registry)
    results = str(tmp_path / "results")
    open_tables(results)
    append_scan(results, filled(SCANS, scan_id="first", users_head=None))
    append_scan(results, filled(SCANS, scan_id="second", users_head=head))
    add_users(registry, None, ["carol"])
    done = cli("users", "verify", "--registry", registry, "--results", results, "--head", head.upper())
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"16 events, head {head_of(registry)}",
        "1 head that scans recorded",
        "1 scan recorded no head: there were no users then",
        "each event is as it was written, and the index agrees",
    ]


def test_users_that_were_changed_are_told_so(cli, registry, tmp_path):
    head = head_of(registry)
    results = str(tmp_path / "results")
    open_tables(results)
    append_scan(results, filled(SCANS, scan_id="first", users_head=head))
    rewrite(registry, CHANGES["another user"])
    done = cli("users", "verify", "--registry", registry, "--results", results)
    assert done.code == 3
    assert "each event is as it was written" not in done.out
    assert "one of these events was changed, added or removed" in done.err
    lost = cli("users", "verify", "--registry", registry, "--head", "ab" * 32)
    assert lost.code == 3
    assert f"head {'ab' * 32}: was never in the history" in lost.err


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--head", "12", "is not a head\nhint: 64 hexadecimal digits are needed"),
        ("--results", "none", "has no results"),
    ],
)
def test_what_cannot_be_verified_is_refused(cli, registry, option, value, what):
    done = cli("users", "verify", "--registry", registry, option, value)
    assert (done.code, done.out) == (2, "")
    assert what in done.err


def test_programs_are_given_the_same_rows_as_json_and_csv(cli, registry):
    """A list has as many rows as were asked for, and says whether it has more."""
    rows = all_rows(registry)
    for arguments, wanted in (
        (("list", "--limit", "2"), rows[:2]),
        (("show", "bob"), [row for row in rows if row[0] == "bob"]),
        (("who", rows[0][1], rows[0][2]), rows[:1]),
    ):
        found = json.loads(cli("users", *arguments, "--registry", registry, "--format", "json").out)
        said = [(row["user_id"] or "-", row["key_id"], str(row["message"])) for row in found["rows"]]
        assert said == [tuple(map(str, row)) for row in wanted]
        assert set(found) == ({"rows", "more"} if "list" in arguments else {"rows"})
        table = cli("users", *arguments, "--registry", registry, "--format", "csv").out
        head, *lines = csv.reader(io.StringIO(table))
        assert head == ["user_id", "key_id", "message", "allocated_at", "removed_at"]
        assert [line[1:3] for line in lines] == [[row[1], str(row[2])] for row in wanted]
    done = cli("users", "list", "--limit", "2", "--registry", registry, "--format", "json")
    assert json.loads(done.out)["more"]
    assert done.err.startswith("there are more: --after k")
    nobody = cli("users", "who", "k1", 39, "--registry", registry, "--format", "json")
    assert (json.loads(nobody.out)["rows"], "is reserved" in nobody.err) == ([], True)

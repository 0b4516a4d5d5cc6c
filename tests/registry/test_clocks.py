"""A machine's clock that is wrong writes no time into a registry, and one that did is told."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from scanner.errors import Refused
from scanner.registry import (
    TRIAL_BEGAN,
    add_users,
    begin_trial,
    clock,
    head_of,
    list_users,
    load_registry,
    remove_users,
    retire_key,
)
from scanner.registry.clock import SeenHead
from scanner.registry.verification import verify_users
from tests.support.command_line import call
from tests.support.night import Night
from tests.support.two_keys import TOKENIZER

NOW = datetime.now(UTC)
YEAR = timedelta(days=366)
Clock = Callable[[datetime], None]


@pytest.fixture
def set_clock(monkeypatch) -> Clock:
    def set_to(time: datetime) -> None:
        class Wrong(datetime):
            @classmethod
            def now(cls, tz=None):
                return time

        monkeypatch.setattr(clock, "datetime", Wrong)

    return set_to


def test_a_clock_before_the_last_event(folder, make_key, set_clock):
    """Neither a user nor a key gets a time before what is on record; clocks of machines may differ by some minutes."""
    make_key("k1", messages=1000)
    add_users(folder, None, ["alice"])
    before = load_registry(folder), list_users(folder).to_dicts()
    set_clock(NOW - 6 * YEAR)
    for write in (
        lambda: add_users(folder, None, ["bob"]),
        lambda: remove_users(folder, ["alice"]),
        lambda: make_key("k2"),
        lambda: retire_key(folder, "k1"),
    ):
        with pytest.raises(Refused, match="this machine's clock"):
            write()
        assert (load_registry(folder), list_users(folder).to_dicts()) == before
    set_clock(datetime.now(UTC) - timedelta(minutes=3))
    add_users(folder, None, ["bob"])
    make_key("k2")


def test_events_in_the_index(folder, make_key, small_index, set_clock):
    """The last event counts wherever it lies."""
    make_key(messages=1000)
    small_index()
    for n in range(6):
        add_users(folder, None, [f"user-{n}", f"friend-{n}"])
    set_clock(NOW - timedelta(days=1))
    with pytest.raises(Refused, match="this machine's clock"):
        add_users(folder, None, ["bob"])


def test_a_trial_is_dated_back(tmp_path, folder, make_key, set_clock):
    make_key("trial", messages=1000, active_from=TRIAL_BEGAN)
    begin_trial(folder)
    add_users(folder, None, ["trial-01"])
    set_clock(NOW - 6 * YEAR)
    add_users(folder, None, ["trial-02"])
    assert list_users(folder)["allocated_at"].unique().to_list() == [TRIAL_BEGAN]
    assert verify_users(folder).clocks == ()


@pytest.fixture
def night_with_registry(tmp_path, registry, without_ray):
    night = Night(tmp_path, shutil.copytree(registry, tmp_path / "registry"))
    night.write("a", ["some words"])
    night.scan()
    return night


@pytest.mark.parametrize("wrong", [NOW - 6 * YEAR, NOW + 9 * YEAR])
def test_a_clock_far_from_the_newest_scan(night_with_registry, set_clock, wrong):
    """Where scan.toml lies beside the registry, as `init` lays it, a clock is held to the results."""
    night = night_with_registry
    for arguments in (
        ("users", "add", "carol"),
        ("users", "remove", "alice", "--yes"),
        ("keys", "new", "later", "--method", "greenlist", "--users", "100", "--tokenizer", TOKENIZER),
        ("keys", "retire", "green", "--yes"),
    ):
        set_clock(wrong)
        code, _, err = call(*arguments, "--registry", night.registry)
        assert (code, "this machine's clock" in err) == (2, True), err
    set_clock(datetime.now(UTC))
    assert call("users", "add", "carol", "--registry", night.registry)[0] == 0
    code, _, err = call("users", "verify", "--registry", night.registry, "--results", night.results)
    assert (code, "clock" in err) == (0, False)


def test_times_that_cannot_be_are_told(folder, make_key):
    """Events that a scan knew are older than it, and others younger; a chain that holds may have wrong times."""
    make_key(messages=1000)
    add_users(folder, None, ["early"], NOW - timedelta(days=3))
    first = SeenHead(head_of(folder), NOW - timedelta(days=2), NOW - timedelta(days=2))
    add_users(folder, None, ["right"], NOW - timedelta(days=1))
    second = SeenHead(head_of(folder), NOW - timedelta(hours=2), NOW - timedelta(hours=1))
    assert verify_users(folder, seen=[first, second]).clocks == ()
    add_users(folder, None, ["in-2020", "in-2020-too"], NOW - 6 * YEAR)
    add_users(folder, None, ["in-2035"], NOW + 9 * YEAR)
    found = verify_users(folder, seen=[first, second, second])
    assert (found.holds, len(found.clocks)) == (True, 2)
    assert found.clocks[0].startswith("event 2 and 1 more: is dated ")
    assert "came after" in found.clocks[0]
    assert found.clocks[1].startswith("event 4: is dated ")
    assert "already existed at" in found.clocks[1]


def test_keys_of_another_time_are_told(folder, make_key):
    make_key("k1")
    make_key("k2")
    keys_file = folder / "keys.toml"
    text, year = keys_file.read_text(), str(NOW.year)
    first, _, second = text.partition('key_id = "k2"')
    for wrong, said in (("2020", "was made after key k1"), ("2099", "but it is")):
        moved = second.replace(f"created_at = {year}", f"created_at = {wrong}")
        assert moved != second
        keys_file.write_text(first + 'key_id = "k2"' + moved)
        (told,) = verify_users(folder).clocks
        assert told.startswith("key k2: is dated ")
        assert said in told

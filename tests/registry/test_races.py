"""Several processes change the users of one registry at once: no message is given twice, nothing is lost."""

import multiprocessing
from collections import Counter
from datetime import UTC, datetime

import polars as pl
import pytest

from scanner.errors import ScanFailed
from scanner.registry import Holders, add_users, erase_users, ledger, list_users, remove_users, verify_users

USERS_EACH = 200
HOW_MANY = pytest.mark.parametrize("processes", [3, pytest.param(6, marks=pytest.mark.long)])
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def add_in_parts(folder, name, start):
    start.wait()
    for part in range(4):
        users = [f"{name}-{n}" for n in range(part * USERS_EACH // 4, (part + 1) * USERS_EACH // 4)]
        add_users(folder, None, [*users, "everyone"])


def add_remove_erase(folder, name, start):
    ledger._MOST_NEW_FILES = 3
    start.wait()
    for n in range(4):
        users = [f"{name}-{n}-{m}" for m in range(5)]
        add_users(folder, None, users)
        remove_users(folder, users[:2])
        erase_users(folder, users[:1])


def run_at_once(target, folder, processes):
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    workers = [context.Process(target=target, args=(folder, f"p{n}", start)) for n in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes


@pytest.mark.costly
@HOW_MANY
def test_processes_that_add_users_give_distinct_messages(folder, make_key, processes):
    make_key(messages=1500)
    run_at_once(add_in_parts, folder, processes)  # the table does not exist yet: they race to make it, too
    rows = list_users(folder)
    assert rows.height == processes * USERS_EACH + 1
    assert rows["message"].n_unique() == rows.height
    assert set(rows["user_id"]) == {"everyone", *(f"p{p}-{n}" for p in range(processes) for n in range(USERS_EACH))}
    assert not (rows["message"] % 20 == 19).any()


@pytest.mark.costly
@HOW_MANY
def test_adding_removing_erasing_and_merging_files_at_once(folder, make_key, processes):
    make_key(messages=1500)
    run_at_once(add_remove_erase, folder, processes)
    rows = list_users(folder)
    assert rows.height == rows["message"].n_unique() == processes * 20
    assert rows["removed_at"].null_count() == processes * 12
    assert rows["user_id"].null_count() == processes * 4
    assert verify_users(folder).holds
    assert verify_users(folder).events == processes * 28
    holders = Holders.load(folder, ["k1"])
    assert Counter(holders.naming("k1", m, datetime.now(UTC)).naming for m in rows["message"]) == {
        "named": processes * 12,
        "removed": processes * 8,
    }


def late_event(snapshot):
    """Events that give message 990 to a user `late`."""
    rows = snapshot.between("k1").head(1)
    return rows.select(
        "key_id",
        message=pl.lit(990, pl.Int64),
        user_id=pl.lit("late"),
        event=pl.lit("allocated"),
        at="allocated_at",
    )


@pytest.mark.parametrize("most_files", [1, 200])
def test_what_was_decided_on_an_old_state_is_decided_again(folder, make_key, monkeypatch, most_files):
    monkeypatch.setattr(ledger, "_MOST_NEW_FILES", most_files)
    make_key()
    add_users(folder, None, ["alice", "bob"])
    seen = []

    def decide(snapshot):
        names, event = set(snapshot.between("k1")["user_id"]), late_event(snapshot)
        if not seen:
            add_users(folder, None, ["faster"])
        seen.append(names)
        return event, "done"

    assert ledger.append(folder, decide) == "done"
    assert seen == [{"alice", "bob"}, {"alice", "bob", "faster"}]
    assert set(list_users(folder)["user_id"]) == {"alice", "bob", "faster", "late"}
    assert verify_users(folder).holds


def test_an_erasure_whose_files_were_erased_meanwhile_is_done_again(folder, make_key):
    make_key()
    add_users(folder, None, ["alice", "bob"])
    remove_users(folder, ["alice", "bob"])
    seen = []

    def choose(snapshot):
        names, rows = set(snapshot.between("k1")["user_id"]), snapshot.rows_of_users(["bob"])
        if not seen:
            erase_users(folder, ["alice"])  # deletes files of this snapshot too
        seen.append(names)
        return rows

    assert ledger.erase_names(folder, choose) == 2
    assert seen == [{"alice", "bob"}, {None, "bob"}]
    assert list_users(folder)["user_id"].to_list() == [None, None]


@pytest.mark.costly
def test_losing_every_time_ends_and_writes_nothing(folder, make_key, monkeypatch):
    monkeypatch.setattr(ledger, "_LONGEST_WAIT", 0.0)
    make_key()
    add_users(folder, None, ["alice"])

    def decide(snapshot):
        add_users(folder, None, [f"rival-{snapshot.events}"])
        return late_event(snapshot), None

    with pytest.raises(ScanFailed, match="changed it first, 50 times"):
        ledger.append(folder, decide)
    assert set(list_users(folder)["user_id"]) == {"alice", *(f"rival-{n}" for n in range(1, 51))}


def test_a_reader_whose_files_were_merged_meanwhile_reads_the_merged_ones(folder, make_key, monkeypatch):
    monkeypatch.setattr(ledger, "_MOST_NEW_FILES", 1)
    make_key()
    add_users(folder, None, ["alice", "bob"], NOON)
    holders = Holders.load(folder, ["k1"])
    message = list_users(folder).filter(pl.col("user_id") == "alice")["message"][0]
    asked = []

    def question(snapshot):
        asked.append(snapshot)
        if len(asked) == 1:
            for n in range(3):  # each merges the earlier files and deletes them
                add_users(folder, None, [f"u{n}"])
        return snapshot.rows_of_users(["alice"])["message"].to_list()

    assert ledger.ask(folder, question) == [message]
    assert len(asked) == 2
    assert holders.naming("k1", message, NOON)[:2] == ("named", "alice")

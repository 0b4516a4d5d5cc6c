"""Nights on a Delta table: each live document once, whatever commits did to the files."""

import json
from collections import Counter
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from scanner import results
from scanner.errors import Refused
from scanner.results import current_rows
from scanner.results.transactions import read_whole
from tests.support.deltas import delete_by_vector, forget_commits
from tests.support.night import Night
from tests.support.signed_tables import delete_results
from tests.support.table_histories import PlainTable, check_histories, scan_here, some_of
from tests.support.two_keys import message_of

WORDS = ["river", "stone", "lamp", "cloud", "paper", "garden", "window", "engine", "letter", "harbour"]


def text_of(number: int) -> str:
    return " ".join(WORDS[(number * 7 + i * i + number // 10 * i) % 10] for i in range(60)) + f" {number}"


def posts(numbers, date: str = "2026-08-31") -> pa.Table:
    return pa.table(
        {
            "doc_id": [f"doc {number}" for number in numbers],
            "text": [text_of(number) for number in numbers],
            "date": [date] * len(numbers),
        }
    )


@pytest.fixture
def table(night) -> Path:
    """A table of thirty documents in three files, which the night's configuration names."""
    folder = night.folder / "lake of posts"
    for begin in (0, 10, 20):
        write_deltalake(folder, posts(range(begin, begin + 10)), mode="append")
    night.configure(paths=["lake of posts"], rate=0.5)
    return folder


def scanned(night) -> list[str]:
    """Ids of all documents that any scan scored, each as often as it was."""
    return sorted(night.verdicts()["doc_id"], key=lambda name: int(name.split()[1]))


def ids(*numbers: int) -> list[str]:
    return [f"doc {number}" for number in numbers]


@pytest.mark.costly
def test_each_live_document_is_scored_once_whatever_commits_did(night, table):
    delete_by_vector(table, ["doc 3"])
    night.scan()
    alive = [number for number in range(30) if number != 3]
    assert scanned(night) == ids(*alive)
    assert night.last_scan()["snapshots"] == [{"table": str(table), "kind": "Delta", "version": 3}]

    write_deltalake(table, posts(range(30, 35)), mode="append")
    DeltaTable(table).delete("doc_id = 'doc 12'")
    DeltaTable(table).update(updates={"text": f"'{text_of(1000)}'"}, predicate="doc_id = 'doc 25'")
    assert night.scan().totals.counts.documents == 6
    assert scanned(night) == sorted(ids(*alive, *range(30, 35), 25), key=lambda name: int(name.split()[1]))

    DeltaTable(table).optimize.compact()
    outcome = night.scan()
    assert outcome.totals.counts.documents == 0
    assert outcome.exit_code == 0
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    delete_by_vector(table, ["doc 4", "doc 31"])
    assert night.scan().totals.counts.documents == 0
    assert night.scan().work.left == ()
    assert len(scanned(night)) == 35
    kept = results.verdicts(night.results).collect()
    assert kept["flagged"].sum() == night.verdicts()["flagged"].sum() > 0
    assert kept.select("path", "row").is_duplicated().sum() == 0
    assert [name for name, times in Counter(scanned(night)).items() if times > 1] == ["doc 25"]  # updated


def test_equal_texts_of_other_accounts_are_other_documents(night):
    """Without ids, in a table that is written anew: the verdict on one account's text is none on another's."""
    table = night.folder / "lake"
    night.configure(paths=["lake"], more='keys = ["gum"]', columns='account = "account"')
    for number, accounts in enumerate((["ann", "ben"], ["cid", "ben", "ann", "ben"])):
        rows = {"doc_id": pa.nulls(len(accounts), pa.string()), "text": ["a text"] * len(accounts)}
        write_deltalake(table, pa.table({**rows, "account": accounts}), mode="overwrite")
        scan_here(night, number)
    assert sorted(night.verdicts()["account_id"]) == ["ann", "ben", "ben", "cid"]


def test_rows_move_again_when_the_table_has_forgotten_that_they_moved(night):
    table = night.folder / "lake"
    night.configure(paths=["lake"], more='keys = ["gum"]')
    for numbers in (range(3), range(3, 6)):
        write_deltalake(table, posts(numbers), mode="append")
    for number in range(4):
        scan_here(night, number)
        if number % 2:
            DeltaTable(table).delete(f"doc_id = 'doc {number}'")
        else:
            DeltaTable(table).optimize.compact()
        scan_here(night, 10 + number)
        forget_commits(table)
    assert sorted(night.verdicts()["doc_id"]) == [f"doc {number}" for number in range(6)]
    moved = [known for known in read_whole(night.results, "shards").collect()["moved_from"].to_list() if known]
    assert {len(known) for known in moved} == {2}


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_document_that_moved_keeps_its_verdict_and_since_when(night, registry, marked):
    """`old` was committed before anybody held its message; in a file of today it would name who holds it now."""
    table, alice = night.folder / "lake", message_of(registry, "green", "alice")
    for name, seed in (("old", 1), ("new", 2)):
        write_deltalake(table, pa.table({"doc_id": [name], "text": [marked(alice, 60, seed)]}), mode="append")
    log = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (add,) = [action["add"] for action in actions if "add" in action]
    add["modificationTime"] -= 10**8  # a day and more
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")
    night.configure(paths=["lake"])
    known = ("doc_id", "user_id", "naming", "first_seen_at", "scan_id")

    def flags() -> list[tuple]:
        night.scan()
        return current_rows.flags(night.results).select(known).sort("doc_id").collect().rows()

    new, old = flags()
    assert (new[:3], old[:3]) == (("new", "alice", "named"), ("old", None, "held_later"))
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert flags() == [new, old]
    # whoever never scanned the old files knows that rows may be as old as the oldest
    delete_results(night.results, night.registry)
    since = datetime.fromtimestamp(add["modificationTime"] / 1000, UTC)
    assert [row[:4] for row in flags()] == [(name, None, "held_later", since) for name in ("new", "old")]


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
@pytest.mark.parametrize("moves", ["compact", "vector"])
def test_a_commit_that_moves_texts_gives_no_second_look_at_them_by_another_rule(night, moves):
    table = night.folder / "lake"
    for numbers in (range(3), range(3, 6)):
        write_deltalake(table, posts(numbers), mode="append")
    night.configure(paths=["lake"], more='keys = ["gum"]')
    night.scan()
    _ = DeltaTable(table).optimize.compact() if moves == "compact" else delete_by_vector(table, ["doc 1"])
    write_deltalake(table, posts(range(6, 8)), mode="append")
    night.configure(paths=["lake"], more='keys = ["gum"]\nmin_scored = 17')
    with pytest.raises(Refused, match=r"min_scored = 17: .* scanned with .*min_scored = 16\. A second rule"):
        night.scan()
    assert len(night.verdicts()) == 6
    DeltaTable(table).delete("doc_id != 'doc 7'")  # texts that nobody scanned may go by the new rule
    night.scan()
    assert Counter(night.verdicts()["doc_id"]) == Counter(ids(*range(6), 7))


@pytest.mark.costly
@pytest.mark.usefixtures("without_ray")
def test_a_scan_that_follows_a_table_scans_what_is_appended_and_nothing_that_moved(night, table, monkeypatch):
    commits = [
        lambda: write_deltalake(table, posts(range(30, 35)), mode="append"),
        lambda: DeltaTable(table).optimize.compact(),
        lambda: delete_by_vector(table, ["doc 4", "doc 31"]),
        lambda: write_deltalake(table, posts(range(35, 37)), mode="append"),
    ]
    from scanner.cluster import follow as following

    looks = []

    def sleep(_seconds: float) -> None:
        looks.append(night.verdicts().height if results.exist(night.results) else 0)
        if len(looks) % 3 == 0:  # files are scanned at the second look that finds them as they are
            if not commits:
                raise KeyboardInterrupt
            commits.pop(0)()

    monkeypatch.setattr(following, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(following, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(following, "cluster", lambda _: nullcontext())
    assert following.follow(night.plan, lambda *_: None, lambda _: None) == 0
    assert scanned(night) == ids(*range(37))
    assert looks[2::3] == [30, 35, 35, 35, 37]


STEPS = ["append", "append", "copies", "delete", "vector", "update", "compact", "vacuum", "scan", "scan", "forget"]


def step(kind: str, night: Night, model: PlainTable, number: int, data: st.DataObject) -> None:
    """One commit to the Delta table, and the same to the model."""
    table, count, some = night.folder / "lake", data.draw(st.integers(1, 4)), some_of(model, data)
    chosen = " or ".join(f"doc_id = '{name}'" for name in some)
    if kind in ("append", "copies"):
        write_deltalake(
            table, model.append(number, count) if kind == "append" else model.append_copies(count), mode="append"
        )
    elif kind == "update" and some:
        DeltaTable(table).update(updates={"text": f"'changed {number}'"}, predicate=chosen)
        model.update(some, f"changed {number}")
    elif kind in ("delete", "vector") and some:
        _ = DeltaTable(table).delete(chosen) if kind == "delete" else delete_by_vector(table, some)
        model.delete(some)
    elif kind == "compact":
        DeltaTable(table).optimize.compact()
    elif kind == "vacuum":
        DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    elif kind == "forget":
        forget_commits(table)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """New folders, one an example."""
    return (tmp_path_factory.mktemp("history") for _ in iter(int, 1))


@pytest.mark.costly
def test_histories_of_a_table_lose_and_double_nothing(folders, registry):
    check_histories(10, STEPS, step, "lake", folders, registry)


@pytest.mark.long
def test_a_hundred_histories_of_a_table_lose_and_double_nothing(folders, registry):
    check_histories(100, STEPS, step, "lake", folders, registry)

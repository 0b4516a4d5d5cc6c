"""Finished shards reach the tables whole and once, whatever breaks off: all rows of a shard come from one run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from scanner import results
from scanner.cluster import commits
from scanner.cluster.commits import Committer
from scanner.cluster.pieces import FinishedShard, LostDocument, Piece
from scanner.cluster.work import find_work, inspect_input
from scanner.cluster.worker import Worker
from scanner.controls.scan_audit import audit_scan
from scanner.errors import FileFault
from scanner.input.files import list_files
from scanner.input.shards import Shard, cut, shard_id
from scanner.results import transactions
from scanner.results.transactions import open_tables
from scanner.scan_plan import Plan
from scanner.storage.locations import table_uri
from tests.support.inspection import inspect
from tests.support.night import Night

ROWS = 6


class Died(BaseException):
    """The driver is gone."""


class Breaks(dict):
    """A dictionary that raises KeyboardInterrupt when an entry is set."""

    def __setitem__(self, key, value):
        raise KeyboardInterrupt


@pytest.fixture
def plan(night):
    return prepare(night)


def prepare(night: Night) -> Plan:
    """Two files of one shard each; each has a row without a text."""
    night.configure(more='keys = ["gum"]')
    for name in ("a", "b"):
        night.write(name, [*(f"text {i} of {name}, long enough" for i in range(ROWS - 1)), None])
    plan = night.plan()
    open_tables(plan.results)
    return plan


def shards(plan) -> list[Shard]:
    cuts = [(file, rows) for file in list_files(plan.locations) for rows in cut(inspect(file, plan.columns))]
    return [Shard(shard_id(file, rows, plan.verdict_settings), file, rows) for file, rows in cuts]


def finish(plan, scan_id: str, shard: Shard, lost: int | None = None) -> FinishedShard:
    """A shard as the pool returns it; `lost` is the row that killed its worker, if any."""
    parts = [(0, ROWS)] if lost is None else [(0, lost), (lost + 1, ROWS)]
    reports = [[*Worker(plan, scan_id).scan(Piece(shard, *part))][-1] for part in parts if part[0] < part[1]]
    return FinishedShard(shard, reports, [] if lost is None else [LostDocument(lost, "killed_worker", "it died")])


def committer(plan, scan_id: str) -> Committer:
    return Committer(plan, scan_id)


def run(plan, scan_id: str, lost: int | None, only: int | None = None) -> Committer:
    ours = committer(plan, scan_id)
    for shard in shards(plan)[slice(only)]:
        ours.add(finish(plan, scan_id, shard, lost))
    return ours


def die_between_the_commits(plan, scan_id: str, lost: int | None, monkeypatch) -> None:
    def commit(folder, name, *rest):
        if name == "verdicts":
            raise Died
        return transactions.commit(folder, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit", commit)
        with pytest.raises(Died):
            run(plan, scan_id, lost).flush()


def assert_whole(night, scan_id: str, lost: int | None) -> None:
    """Assert that each row of both files is in one table, once, and that all rows come from one run."""
    verdicts, quarantine = night.verdicts(), night.quarantine()
    bad = sorted({ROWS - 1} | ({lost} if lost is not None else set()))
    assert quarantine["row"].to_list() == bad * 2
    assert verdicts["row"].to_list() == [row for row in range(ROWS) if row not in bad] * 2
    assert set(verdicts["scan_id"]) | set(quarantine["scan_id"]) == {scan_id}


def test_rows_of_a_table_that_is_not_committed_beside_verdicts_are_refused(night, plan):
    ours, finished = committer(plan, "first"), finish(plan, "first", shards(plan)[0])
    report = finished.reports[0]
    files = {**report.files, "scans": report.files["verdicts"]}
    with pytest.raises(ValueError, match="rows of scans would be lost"):
        ours.add(replace(finished, reports=[replace(report, files=files)]))


@pytest.mark.parametrize("table", ["quarantine", "shards", "verdicts"])
def test_an_interrupt_while_a_shard_is_taken_loses_nothing(night, plan, table):
    ours = committer(plan, "first")
    entries, name = (vars(ours), "_rows") if table == "shards" else (ours._waiting, table)
    entries[name] = Breaks()
    with pytest.raises(KeyboardInterrupt):
        ours.add(finish(plan, "first", shards(plan)[0], lost=3))
    entries[name] = {}
    ours.flush()
    assert night.verdicts().height == 0
    run(plan, "again", lost=3).flush()
    assert_whole(night, "again", lost=3)


@pytest.mark.parametrize("first", [None, 2])
@pytest.mark.parametrize("then", [None, 2, 4])
def test_a_rerun_after_death_between_the_commits_leaves_its_own_rows(night, plan, monkeypatch, first, then):
    die_between_the_commits(plan, "first", first, monkeypatch)
    assert (night.verdicts().height, night.quarantine().height) == (0, 2 if first is None else 4)
    die_between_the_commits(plan, "second", 1, monkeypatch)
    last = run(plan, "third", then)
    last.flush()
    assert_whole(night, "third", then)
    assert (last.totals.shards, last.totals.counts.documents) == (2, 2 * ROWS)


def test_rows_of_others_stay_when_someone_compacted_the_table(night, plan, monkeypatch):
    die_between_the_commits(plan, "first", 2, monkeypatch)
    run(plan, "second", 4, only=1).flush()
    DeltaTable(table_uri(plan.results, "quarantine")).optimize.compact()
    rest = committer(plan, "second")
    rest.add(finish(plan, "second", shards(plan)[1], 4))
    rest.flush()
    assert_whole(night, "second", 4)


def test_an_interrupt_within_a_replacement_is_made_good(night, plan, monkeypatch):
    """Ctrl-C after the quarantine's commit: the driver's next flush commits the waiting rows."""
    die_between_the_commits(plan, "first", 2, monkeypatch)
    ours, real = run(plan, "second", 4), transactions.commit

    def interrupt(folder, name, *rest):
        monkeypatch.setattr(commits, "commit", real)
        real(folder, name, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(commits, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ours.flush()
    ours.flush()
    assert_whole(night, "second", 4)
    assert (ours.totals.shards, ours.totals.counts.documents) == (2, 2 * ROWS)


def test_a_shard_that_another_driver_finished_gets_no_second_quarantine(night, plan):
    slow = run(plan, "slow", 4)
    run(plan, "fast", None).flush()
    slow.flush()
    assert_whole(night, "fast", None)
    assert slow.totals.shards == 0


def meanwhile(monkeypatch, name: str, other: Callable[[], None]) -> None:
    """Let another driver act once, right before a step of our flush."""
    real = getattr(commits, name)

    def first_the_other(*arguments):
        monkeypatch.setattr(commits, name, real)
        other()
        return real(*arguments)

    monkeypatch.setattr(commits, name, first_the_other)


@pytest.mark.parametrize("moment", ["enter_side_rows", "commit", "settle"])
@pytest.mark.parametrize(("ours", "theirs"), [(4, None), (None, 4), (2, 4)])
def test_two_drivers_with_different_losses_in_the_same_moment(night, plan, monkeypatch, moment, ours, theirs):
    first, second = run(plan, "first", ours), run(plan, "second", theirs)
    meanwhile(monkeypatch, moment, second.flush)
    first.flush()
    assert_whole(night, *(("first", ours) if moment == "settle" else ("second", theirs)))
    assert (first.totals.shards, second.totals.shards) == ((2, 0) if moment == "settle" else (0, 2))


@pytest.mark.parametrize("dies_before", ["commit", "settle"])
def test_a_loser_that_dies_before_it_settles_is_settled_by_the_next_scan(night, plan, monkeypatch, dies_before):
    loser, winner = run(plan, "loser", 2), run(plan, "winner", 4)
    monkeypatch.setattr(commits, "find_committed", lambda *_: set())  # the loser looked before the winner was there
    winner.flush()
    with monkeypatch.context() as patch:
        patch.setattr(commits, dies_before, Mock(side_effect=Died))
        with pytest.raises(Died):
            loser.flush()
    assert night.quarantine()["row"].to_list() == [2, 4, 5, 5] * 2
    assert find_work(plan, inspect_input(plan, list_files(plan.locations))).left == ()
    assert_whole(night, "winner", 4)


@pytest.mark.parametrize("winner_first", [True, False])
def test_an_audit_counts_the_winner_alone_while_nobody_has_settled(night, plan, monkeypatch, winner_first):
    night.configure(more='keys = ["gum"]', audit="all_messages_share = 1.0")
    plan = night.plan()
    loser, winner = run(plan, "loser", 2), run(plan, "winner", None)
    if winner_first:
        winner.flush()
    with monkeypatch.context() as patch:
        patch.setattr(commits, "find_committed", lambda *_: set())  # the loser looked before the winner was there
        patch.setattr(commits, "commit", Mock(side_effect=Died))
        with pytest.raises(Died):
            loser.flush()
    monkeypatch.setattr(commits, "settle", lambda *_: None)
    winner.flush()
    assert set(results.audit_counts(plan.results).collect()["scan_id"]) == {"loser", "winner"}
    audit = audit_scan(plan, "winner", [shard.shard_id for shard in shards(plan)])
    assert (
        {row["tests"] for row in audit.rows if row["kind"] == "decoy_best"} == {audit.traffic.texts} == {2 * (ROWS - 1)}
    )


def test_two_drivers_that_go_on_after_a_death(night, plan, monkeypatch):
    die_between_the_commits(plan, "dead", 2, monkeypatch)
    slow, fast = run(plan, "slow", 4), run(plan, "fast", None)
    fast.flush()
    slow.flush()
    assert_whole(night, "fast", None)


def test_a_file_with_a_new_time_is_tried_again_and_the_query_of_the_readme_tells_what_is_left(night, plan):
    first, found = run(plan, "first", 2), list_files(plan.locations)
    first.add_fault(found[0], FileFault("vanished", "it was gone for a while"))
    first.flush()
    before = night.verdicts().select("path", "row")

    def left() -> list[int]:
        documents = results.quarantine(plan.results).drop_nulls("row")
        rows = documents.join(results.verdicts(plan.results), on=["path", "row"], how="anti")
        return rows.collect().select("path", "row").unique().sort("path", "row")["row"].to_list()

    assert left() == [2, ROWS - 1] * 2
    file = found[0]
    Path(file.path).touch()
    work = find_work(plan, inspect_input(plan, list_files(plan.locations)))
    assert [shard.file.path for shard in work.left] == [file.path]
    run(plan, "second", None).flush()
    assert left() == [ROWS - 1, 2, ROWS - 1]
    newest = results.verdicts(plan.results).collect()
    assert newest.select("path", "row").is_duplicated().sum() == 0
    assert newest.height == before.height + 1
    of_file = newest.filter(path=file.path)
    assert (of_file.height, set(of_file["scan_id"])) == (ROWS - 1, {"second"})


@pytest.mark.costly
def test_a_replacement_works_in_a_folder_of_any_name(tmp_path, registry, monkeypatch):
    (tmp_path / "a b é").mkdir()
    night = Night(tmp_path / "a b é", registry)
    plan = prepare(night)
    die_between_the_commits(plan, "first", 2, monkeypatch)
    run(plan, "second", 4).flush()
    assert night.quarantine()["row"].to_list() == [4, 5, 4, 5]

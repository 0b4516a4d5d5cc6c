"""Frozen nights: their transactions leave the log, and their documents stay scanned, even if a driver dies over it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import polars as pl
import pytest
from deltalake import DeltaTable

from scanner import results
from scanner.cluster import commits
from scanner.cluster.commits import Committer
from scanner.cluster.pieces import FinishedShard, Piece
from scanner.cluster.work import find_work, inspect_input
from scanner.cluster.worker import Worker
from scanner.input.files import list_files
from scanner.results import retention
from scanner.results.current_rows import SIDE_TABLES
from scanner.results.retention import EXPIRE_AFTER, FREEZE_AFTER, freeze
from scanner.results.transactions import open_tables
from scanner.results.upkeep import compact, merge_bookkeeping
from scanner.storage.delta import KeptTable
from scanner.storage.locations import table_uri

TABLES = ("verdicts", *SIDE_TABLES)
NOW = datetime.now(UTC)
LATER = NOW + FREEZE_AFTER + timedelta(days=2)


class Died(Exception):
    """The driver is gone."""


@pytest.fixture
def plan(night, plain):
    for name in ("a", "b", "c"):
        night.write(name, [*(plain(30, seed) for seed in range(5)), None])
    plan = night.plan()
    open_tables(plan.results)
    open_tables(plan.results, SIDE_TABLES)
    return plan


def left(plan) -> list[str]:
    work = find_work(plan, inspect_input(plan, list_files(plan.locations)))
    assert work.shard_count == work.skipped + len(work.left)
    return sorted(shard.file.path.rpartition("/")[2] for shard in work.left)


def scan(plan, scan_id: str, only: tuple[str, ...] = ("a", "b", "c"), began: datetime = NOW) -> Committer:
    """The committer of a scan of these files, before its last flush."""
    ours = Committer(plan, scan_id)
    ours._began = began
    for shard in inspect_input(plan, list_files(plan.locations)).shards:
        if shard.file.path.rpartition("/")[2].removesuffix(".parquet") in only:
            reports = [*Worker(plan, scan_id).scan(Piece(shard, shard.rows.start, shard.rows.stop))]
            ours.add(FinishedShard(shard, [reports[-1]]))
    return ours


def contents(plan) -> dict[str, pl.DataFrame]:
    return {name: pl.read_delta(table_uri(plan.results, name)).sort(pl.all().exclude("log10_p")) for name in TABLES}


def forget(plan, tables: Sequence[str] = TABLES) -> None:
    """Let the time pass after which Delta drops the transactions of frozen nights."""
    for name in tables:
        table = DeltaTable(table_uri(plan.results, name))
        known = {"delta.setTransactionRetentionDuration": f"interval {EXPIRE_AFTER.days} days"}
        assert known.items() <= table.metadata().configuration.items()
        table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 0 seconds"})
        DeltaTable(table_uri(plan.results, name)).create_checkpoint()


def logged(plan, name: str) -> dict[str, int]:
    logged = KeptTable(table_uri(plan.results, name)).logged()
    return {app_id: transaction.version for app_id, transaction in logged.items()}


def test_a_frozen_night_is_done_when_its_transactions_are_gone(plan):
    scan(plan, "first", ("a", "b")).flush()
    before = contents(plan)
    assert freeze(plan.results, datetime.now(UTC)) == []
    (night,) = freeze(plan.results, LATER)
    assert freeze(plan.results, LATER) == []
    assert left(plan) == ["c.parquet"]
    forget(plan)
    assert {t for name in TABLES for t in logged(plan, name)} == {f"frozen:{night}", f"expiring:{night}"}
    assert left(plan) == ["c.parquet"]
    assert all(rows.equals(before[name]) for name, rows in contents(plan).items())
    scan(plan, "second", ("c",)).flush()
    assert left(plan) == []
    compact(plan.results)
    assert left(plan) == []


@pytest.mark.costly
@pytest.mark.parametrize("step", range(12))
def test_who_dies_while_a_night_is_frozen_loses_and_doubles_nothing(plan, monkeypatch, step):
    """The driver dies before the n-th commit of the freeze; the next scan finishes the freeze, and time passes."""
    scan(plan, "first", ("a", "b")).flush()
    before = contents(plan)
    real, calls = retention.try_to_commit, iter(range(100))

    def dies(*arguments):
        if next(calls) == step:
            raise Died
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "try_to_commit", dies)
        try:
            freeze(plan.results, LATER)
        except Died:
            assert step < 8
    if step % 2:
        for name in TABLES:
            DeltaTable(table_uri(plan.results, name)).create_checkpoint()
    assert left(plan) == ["c.parquet"]
    freeze(plan.results, LATER)
    forget(plan)
    assert left(plan) == ["c.parquet"]
    assert all(rows.equals(before[name]) for name, rows in contents(plan).items())


@pytest.mark.parametrize("timed", [1, len(TABLES)])
def test_who_dies_while_a_night_is_frozen_and_is_not_called_again_for_months_loses_nothing(plan, monkeypatch, timed):
    """The first tables' transactions have an expiry time, and are gone before the next scan."""
    scan(plan, "first", ("a", "b")).flush()
    before = contents(plan)
    tables = iter(range(len(TABLES)))

    def dies(*arguments, real=retention._set):
        real(*arguments)
        if arguments[2]({}) == [] and next(tables) == timed - 1:
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(retention, "_set", dies)
        with pytest.raises(Died):
            freeze(plan.results, LATER)
    forget(plan, TABLES[:timed])
    assert left(plan) == ["c.parquet"]
    assert len(freeze(plan.results, LATER + EXPIRE_AFTER)) == 1
    assert left(plan) == ["c.parquet"]
    assert all(rows.equals(before[name]) for name, rows in contents(plan).items())


def test_what_a_young_night_did_goes_by_its_transactions_while_a_row_of_a_dead_run_is_there(plan, monkeypatch):
    """Two drivers died over the same shards, so that rows of both are there while the older night is frozen."""
    for who, began, step in (("dead", NOW, "commit"), ("again", LATER, "settle")):
        run = scan(plan, who, began=began)
        with monkeypatch.context() as patch:
            patch.setattr(commits, step, Mock(side_effect=Died))
            with pytest.raises(Died):
                run.flush()
    assert len(freeze(plan.results, LATER)) == 1
    forget(plan)
    assert left(plan) == []
    assert set(contents(plan)["shards"]["scan_id"]) == {"again"}


@pytest.mark.costly
def test_rows_that_come_after_a_night_was_frozen_go_by_their_transactions(plan, monkeypatch):
    """A driver whose clock is a month ahead freezes a running night, whose driver then dies before its verdicts."""
    scan(plan, "first", ("a",)).flush()
    assert len(freeze(plan.results, LATER)) == 1
    later = scan(plan, "first", ("b",))
    for row in later._rows.values():
        row["scanned_at"] += timedelta(seconds=2)
    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit", Mock(side_effect=Died))
        with pytest.raises(Died):
            later.flush()
    assert left(plan) == ["b.parquet", "c.parquet"]
    scan(plan, "second", ("b",)).flush()
    forget(plan)
    assert left(plan) == ["c.parquet"]


@pytest.mark.parametrize("rescans", [False, True])
def test_a_run_that_died_before_its_verdicts_is_no_frozen_shard(plan, monkeypatch, rescans):
    dead = scan(plan, "dead", ("a",))
    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit", Mock(side_effect=Died))
        with pytest.raises(Died):
            dead.flush()
    assert results.shards(plan.results).collect().height == 1
    again = scan(plan, "again", began=LATER)
    if rescans:  # another scan has the same shard in hand while the night is frozen
        with monkeypatch.context() as patch:
            patch.setattr(commits, "commit", Mock(side_effect=Died))
            with pytest.raises(Died):
                again.flush()
    assert len(freeze(plan.results, LATER)) == 1
    there = {name: set(rows["scan_id"]) for name, rows in contents(plan).items()}
    assert there == {"verdicts": set()} | {
        name: {"again"} if rescans and there[name] else set() for name in SIDE_TABLES
    }
    assert left(plan) == ["a.parquet", "b.parquet", "c.parquet"]
    again.flush()
    assert left(plan) == []
    found = contents(plan)
    assert found["quarantine"].height == 3
    assert found["shards"]["scan_id"].to_list() == ["again"] * 3


def test_a_night_of_which_a_scan_still_commits_waits(plan):
    scan(plan, "first").flush()
    assert freeze(plan.results, datetime.now(UTC) + timedelta(hours=23)) == []
    rows = results.shards(plan.results).collect().with_columns(began_at=pl.datetime(2020, 1, 1, time_zone="UTC"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "read_whole", lambda *_: rows.lazy())
        assert freeze(plan.results, datetime.now(UTC) + timedelta(hours=23)) == []
        assert freeze(plan.results, datetime.now(UTC) + timedelta(hours=25)) == ["2020-01-01"]


def test_many_small_files_beside_verdicts_are_merged(plan, monkeypatch):
    from scanner.results import upkeep

    for name in ("a", "b", "c"):
        scan(plan, f"scan {name}", (name,)).flush()
    before = contents(plan)
    files = {name: len(DeltaTable(table_uri(plan.results, name)).file_uris()) for name in TABLES}
    merge_bookkeeping(plan.results)
    assert files == {name: len(DeltaTable(table_uri(plan.results, name)).file_uris()) for name in TABLES}
    monkeypatch.setattr(upkeep, "MANY_FILES", 3)
    merge_bookkeeping(plan.results)
    assert files["shards"] == files["quarantine"] == 3
    now = {name: len(DeltaTable(table_uri(plan.results, name)).file_uris()) for name in TABLES}
    assert (now["shards"], now["quarantine"], now["verdicts"]) == (1, 1, 3)
    assert all(rows.equals(before[name]) for name, rows in contents(plan).items())
    assert left(plan) == []

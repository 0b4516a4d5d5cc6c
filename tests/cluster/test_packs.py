"""Packs of small files: a worker takes and writes a pack as one; each shard is committed once, by any driver."""

from unittest.mock import Mock

import polars as pl
import pytest
import ray
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from scanner.cluster import commits, packs
from scanner.cluster.commits import Committer
from scanner.cluster.packs import MOST_IN_A_PACK, PACKS_A_WORKER, pack_shards
from scanner.cluster.pieces import NO_TIME, DocumentCounts, FinishedPack, FinishedShard, Pack, PackReport, Piece, Report
from scanner.cluster.pool import Pool
from scanner.cluster.work import find_work, inspect_input
from scanner.cluster.worker import Worker
from scanner.input.files import InputFile, list_files
from scanner.input.shards import MAX_ROWS, MAX_TEXT_BYTES, Range, Shard
from scanner.results.current_rows import side_tables
from scanner.results.transactions import Tables, open_tables
from scanner.storage.locations import table_uri
from tests.support.signed_tables import delete_results

ROWS = 6
FILES = ("a", "b", "c", "d")


class Died(BaseException):
    """The driver is gone."""


def shard(number: int, rows: int = 10, text_bytes: int = 100) -> Shard:
    name = f"/in/{number}"
    return Shard(f"shard {number}", InputFile(name, name, name, 1, 1), Range(0, rows, text_bytes))


@given(
    st.lists(st.tuples(st.integers(1, MAX_ROWS), st.integers(0, 2 * MAX_TEXT_BYTES)), max_size=200), st.integers(1, 9)
)
def test_packs_hold_each_shard_once_in_order_and_are_no_larger_than_a_shard(sizes, workers):
    shards = [shard(i, *size) for i, size in enumerate(sizes)]
    units = pack_shards(shards, workers)
    assert [one for unit in units for one in (unit.shards if isinstance(unit, Pack) else (unit,))] == shards
    for pack in (unit for unit in units if isinstance(unit, Pack)):
        assert 1 < len(pack.shards) <= MOST_IN_A_PACK
        assert sum(one.rows.stop for one in pack.shards) <= MAX_ROWS
        assert sum(one.rows.text_bytes for one in pack.shards) <= MAX_TEXT_BYTES
    assert len(units) >= min(len(shards), PACKS_A_WORKER * workers)


def test_a_hundred_thousand_small_files_are_few_packs():
    units = pack_shards([shard(i, 500, 10**6 // 4) for i in range(100_000)], 16)
    assert len(units) == 100_000 // 40  # 40 files of 500 rows are 20,000 rows


def whole(one: Shard) -> Piece:
    return Piece(one, one.rows.start, one.rows.stop)


@pytest.fixture
def plan(night, plain):
    night.configure(audit="all_messages_share = 1.0")
    for name in FILES:
        night.write(name, [*(plain(30, seed) for seed in range(ROWS - 1)), None])
    plan = night.plan()
    open_tables(plan.results)
    return plan


def shards(plan) -> dict[str, Shard]:
    found = inspect_input(plan, list_files(plan.locations)).shards
    return {shard.file.path.rpartition("/")[2].removesuffix(".parquet"): shard for shard in found}


def pack(plan, scan_id: str, names: str) -> Committer:
    """The committer of a run that scanned these files in one pack, before its flush."""
    ours, chosen = Committer(plan, scan_id), [shards(plan)[name] for name in names]
    report = [*Worker(plan, scan_id).scan_pack(chosen)][-1]
    counted = zip(chosen, report.counts, strict=True)
    ours.add(FinishedPack({shard: counts for shard, counts in counted if counts is not None}, report))
    return ours


def tables(plan) -> dict[str, pl.DataFrame]:
    file = pl.col("path").str.split("/").list.last().str.head(1)
    names = ("verdicts", *side_tables(Tables(plan.results)))
    rows = {name: pl.read_delta(table_uri(plan.results, name)) for name in names}
    return {name: table.with_columns(file=file) if "path" in table.columns else table for name, table in rows.items()}


def assert_whole(plan, winners: dict[str, str]) -> None:
    """Assert that each file's rows are in each table once, all from the file's winner."""
    found = tables(plan)
    expected = {"verdicts": ROWS - 1, "quarantine": 1, "shards": 1}
    for name, rows in expected.items():
        counted = found[name].group_by("file", "scan_id").len().sort("file").rows()
        assert counted == [(file, winners[file], rows) for file in sorted(winners)], name
    runs = set(winners.values())
    assert set(found["audit_counts"]["scan_id"]) <= runs
    shards_of = {file: set(found["shards"].filter(file=file)["shard_id"]) for file in winners}
    for file, winner in winners.items():
        counts = found["audit_counts"].filter(pl.col("shard_id").is_in(shards_of[file]))
        assert set(counts["scan_id"]) == {winner}
        texts = found["text_counts"].filter(pl.col("shard_id").is_in(shards_of[file]))
        assert texts.select("scan_id", "documents").rows() == [(winner, ROWS)]
    assert find_work(plan, inspect_input(plan, list_files(plan.locations))).skipped == len(winners)


def test_a_pack_has_the_rows_of_its_shards(plan):
    pack(plan, "pack", "abcd").flush()
    together = tables(plan)
    assert {len(DeltaTable(table_uri(plan.results, name)).file_uris()) for name in together} <= {0, 1}
    assert_whole(plan, dict.fromkeys("abcd", "pack"))
    for file, one in shards(plan).items():
        assert together["shards"].filter(file=file)["documents"].to_list() == [ROWS]
        (report,) = [r for r in Worker(plan, "one").scan(whole(one)) if isinstance(r, Report)]
        (file_of_it,) = report.files["verdicts"]
        alone = pl.read_parquet(f"{plan.results}/verdicts/{file_of_it.name}")
        same = together["verdicts"].filter(file=file).drop("file", "scan_id", "scanned_at").sort("row")
        assert same.equals(alone.drop("scan_id", "scanned_at").sort("row"))


@pytest.mark.costly
@pytest.mark.parametrize("moment", ["before", "enter_side_rows", "commit", "settle"])
@pytest.mark.parametrize(("ours", "theirs"), [("abc", "bcd"), ("abcd", "b"), ("ab", "ab")])
def test_two_drivers_with_packs_that_overlap(plan, monkeypatch, moment, ours, theirs):
    first, second = pack(plan, "first", ours), pack(plan, "second", theirs)
    if moment == "before":
        second.flush()
    else:
        real = getattr(commits, moment)

        def first_the_other(*arguments):
            monkeypatch.setattr(commits, moment, real)
            second.flush()
            return real(*arguments)

        monkeypatch.setattr(commits, moment, first_the_other)
    first.flush()
    winner, loser = (
        (("first", ours), ("second", theirs)) if moment == "settle" else (("second", theirs), ("first", ours))
    )
    assert_whole(plan, dict.fromkeys(loser[1], loser[0]) | dict.fromkeys(winner[1], winner[0]))
    assert first.totals.shards + second.totals.shards == len({*ours, *theirs})
    assert first.totals.counts.documents + second.totals.counts.documents == ROWS * len({*ours, *theirs})


@pytest.mark.costly
@pytest.mark.parametrize("dies_before", ["commit", "settle"])
@pytest.mark.parametrize("then", ["ab", "bcd", "abcd"])
def test_a_driver_that_dies_over_a_pack_leaves_nothing_twice(plan, monkeypatch, dies_before, then):
    with monkeypatch.context() as patch:
        patch.setattr(commits, dies_before, Mock(side_effect=Died))
        with pytest.raises(Died):
            pack(plan, "dead", "abc").flush()
    done = {"commit": "", "settle": "abc"}[dies_before]
    assert find_work(plan, inspect_input(plan, list_files(plan.locations))).skipped == len(done)
    pack(plan, "next", then).flush()
    assert find_work(plan, inspect_input(plan, list_files(plan.locations))).skipped == len({*done, *then})
    pack(plan, "last", "abcd").flush()
    assert_whole(plan, dict.fromkeys("abcd", "last") | dict.fromkeys(then, "next") | dict.fromkeys(done, "dead"))


def test_a_file_at_fault_and_a_large_text_leave_their_pack(plan, night):
    (night.input / "b.parquet").unlink()
    chosen = [shard(7), *shards(plan).values()]
    worker = Worker(plan, "one")
    worker._room = 1  # no room, so that every text is large
    assert [*worker.scan_pack(chosen)][-1].counts == (None,) * len(chosen)
    worker._room = None
    report = [*worker.scan_pack(chosen)][-1]
    assert [counts and counts.documents for counts in report.counts] == [None, ROWS, ROWS, ROWS]


class Scripted:
    """A worker by a script: row 3 of one shard raises an error, and one shard must be scanned by itself."""

    def __init__(self, deadly: int, alone: int) -> None:
        self.deadly, self.alone = f"shard {deadly}", f"shard {alone}"

    def prepare(self) -> None:
        pass

    def identify(self, piece):
        yield None

    def scan_pack(self, shards):
        if any(one.shard_id == self.deadly for one in shards):
            raise ZeroDivisionError
        counts = tuple(
            None if one.shard_id == self.alone else DocumentCounts(documents=one.rows.stop) for one in shards
        )
        yield PackReport(counts, {}, peak_memory=0, seconds=NO_TIME)

    def scan(self, piece):
        if piece.shard.shard_id == self.deadly and piece.start <= 3 < piece.stop:
            raise ZeroDivisionError
        yield Report(counts=DocumentCounts(documents=piece.stop - piece.start))


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_a_pack_that_fails_is_taken_apart_and_no_neighbour_is_blamed():
    actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Scripted)
    pool = Pool(lambda: actor.remote(5, 17), 2)
    packs = [Pack(tuple(shard(i) for i in range(first, first + 4))) for first in range(0, 20, 4)]
    try:
        found = [finished for finished in pool.run([*packs, shard(20)]) if finished is not None]
    finally:
        pool.close()
    whole = [finished for finished in found if isinstance(finished, FinishedPack)]
    pieces = {one.shard.shard_id: one for one in found if isinstance(one, FinishedShard)}
    assert sorted(len(one.shards) for one in whole) == [3, 4, 4, 4]
    assert sorted(pieces) == sorted(f"shard {i}" for i in (4, 5, 6, 7, 17, 20))
    lost = {name: [row.row for row in one.lost] for name, one in pieces.items()}
    assert lost == {name: [3] if name == "shard 5" else [] for name in pieces}
    done = sum(counts.documents for one in whole for counts in one.shards.values())
    assert done + sum(report.counts.documents for one in pieces.values() for report in one.reports) == 21 * 10 - 1


@pytest.mark.costly
@pytest.mark.usefixtures("ray_cluster")
def test_a_scan_of_small_files_writes_few_files_and_the_same_rows(night, plain, monkeypatch):
    for i in range(40):
        night.write(f"{i:02}", [plain(20 + i, seed) for seed in range(i % 3)])
    assert night.scan().exit_code == 0
    files = DeltaTable(table_uri(night.results, "verdicts")).file_uris()
    assert len(files) < 40
    first = night.verdicts()
    monkeypatch.setattr(packs, "MOST_IN_A_PACK", 1)
    delete_results(night.results, night.registry)
    assert night.scan().exit_code == 0
    second = night.verdicts()
    assert first.height == sum(i % 3 for i in range(40))
    times = ("scan_id", "scanned_at")
    assert first.drop(times).sort("path", "row").equals(second.drop(times).sort("path", "row"))

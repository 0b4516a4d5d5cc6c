"""Pieces by the pace of a scan: each document once, ten-odd seconds a piece, the same rows as of whole shards."""

from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.cluster.commits import Committer
from scanner.cluster.machines import Nodes
from scanner.cluster.pieces import (
    NO_TIME,
    DocumentCounts,
    FinishedPack,
    FinishedShard,
    LostDocument,
    Pack,
    PackReport,
    PackWork,
    PieceState,
    Report,
    Seconds,
)
from scanner.cluster.todo import (
    ATTEMPTS,
    FIRST_DOCUMENTS,
    LEAST_DOCUMENTS,
    SECONDS_A_PIECE,
    SLOW_SHARD,
    PiecePace,
    Todo,
)
from scanner.cluster.work import inspect_input
from scanner.cluster.worker import Worker
from scanner.input.documents import UNKNOWN_IDENTITY
from scanner.input.files import InputFile, list_files
from scanner.input.shards import Range, Shard
from scanner.results.transactions import open_tables, read_whole
from tests.support.rows import same
from tests.support.signed_tables import delete_results


def shard(number: int, documents: int, text_bytes: int = 1) -> Shard:
    file = InputFile(*(f"/in/{number}",) * 3, 1, 1)
    return Shard(f"shard {number}", file, Range(0, documents, text_bytes))


def slow(seconds: float = 2 * SLOW_SHARD) -> PiecePace:
    return PiecePace(seconds)  # seconds of a byte, of which these shards have one


def work_off(todo: Todo, seconds: float) -> tuple[list[FinishedShard | FinishedPack], list[int]]:
    """Do all work, of so many seconds a document. Returns what is finished and the documents of each piece."""
    finished, sizes = [], []
    while todo:
        work = todo.next_work()
        sizes.append(work.documents)
        spent = Seconds(score=seconds * work.documents)
        if isinstance(work, PackWork):
            counts = tuple(DocumentCounts(documents=one.rows.stop) for one in work.pack.shards)
            finished.append(todo.unpack(work, PackReport(counts, {}, peak_memory=0, seconds=spent)))
        elif done := todo.take_report(work, Report(counts=DocumentCounts(documents=work.documents), seconds=spent)):
            finished.append(done)
    return finished, sizes


@given(
    st.lists(st.lists(st.integers(1, 2_000), min_size=1, max_size=4), min_size=1, max_size=4),
    st.floats(1e-6, 10),
    st.booleans(),
)
def test_each_document_is_in_one_piece(packs, seconds, begins_slow):
    numbers = iter(range(10**6))
    shards = [[shard(next(numbers), documents) for documents in pack] for pack in packs]
    todo = Todo(Nodes(), slow() if begins_slow else PiecePace())
    todo.add(Pack(tuple(pack)) if len(pack) > 1 else pack[0] for pack in shards)
    finished, _ = work_off(todo, seconds)
    whole = {one.shard: one.documents for one in finished if isinstance(one, FinishedShard)}
    packed = {
        one: counts.documents
        for pack in finished
        if isinstance(pack, FinishedPack)
        for one, counts in pack.shards.items()
    }
    assert not whole.keys() & packed.keys()
    assert whole | packed == {one: one.rows.stop for pack in shards for one in pack}
    assert todo.in_parts == 0


@pytest.mark.parametrize("seconds", [1e-4, 1e-3, 0.01, 0.1, 0.5])
def test_pieces_take_ten_odd_seconds_and_the_first_is_small(seconds):
    todo = Todo(Nodes(), slow())
    todo.add([shard(0, 20_000), shard(1, 20_000)])
    finished, (first, *sizes) = work_off(todo, seconds)
    assert (first, len(finished)) == (FIRST_DOCUMENTS, 2)
    if seconds * 20_000 <= 2 * SECONDS_A_PIECE:
        assert sizes == [20_000 - FIRST_DOCUMENTS, 20_000]
    else:
        assert max(sizes) * seconds <= 2 * SECONDS_A_PIECE
        assert sorted(sizes)[len(sizes) // 2] * seconds >= SECONDS_A_PIECE / 2


def test_no_piece_is_tiny_however_slow_a_key_is():
    _, sizes = work_off(todo := Todo(Nodes(), slow()), 0.0)
    todo.add([shard(0, 1_000)])
    _, (_, *sizes) = work_off(todo, 100.0)
    assert min(sizes) >= LEAST_DOCUMENTS / 2


def test_shards_stay_whole_where_nothing_says_that_they_are_slow():
    pace = PiecePace(SLOW_SHARD - 1)
    todo = Todo(Nodes(), pace)
    todo.add([shard(0, 20_000), Pack((shard(1, 10), shard(2, 10)))])
    assert todo.pieces(10) == 2
    assert work_off(todo, 1e-4)[1] == [20_000, 20]
    pace.record(100, NO_TIME)
    assert pace.largest(20_000, 1) == 20_000


def test_a_piece_is_tried_as_often_as_a_shard_and_then_halved():
    todo = Todo(Nodes(), slow())
    todo.add([shard(0, 1_000)])
    for _ in range(ATTEMPTS):
        piece = todo.next_work()
        assert piece.documents == FIRST_DOCUMENTS
        assert todo.retry_or_cut(piece, "failed", "") is None
    half = todo.next_work()
    assert (half.documents, half.state) == (FIRST_DOCUMENTS // 2, PieceState.HALF)
    todo.retry_or_cut(half, "failed", "")
    assert todo.first.documents == FIRST_DOCUMENTS // 4  # a half is halved at once


def test_one_document_of_a_slow_shard_is_to_blame():
    todo, finished = Todo(Nodes(), slow()), None
    todo.add([shard(0, 2_000)])
    while todo:
        work = todo.next_work()
        if isinstance(work.state, LostDocument):
            finished = todo.lose(work, work.state, UNKNOWN_IDENTITY) or finished
        elif work.piece.start <= 777 < work.piece.stop:
            todo.retry_or_cut(work, "failed", "row 777")
        else:
            finished = todo.take_report(work, Report(counts=DocumentCounts(documents=work.documents))) or finished
    assert ([lost.row for lost in finished.lost], finished.documents) == ([777], 2_000)


def test_pieces_have_the_rows_of_their_shard_and_are_committed_once(night, plain, marked):
    night.configure(audit="all_messages_share = 1.0")
    texts = [plain(40, i) for i in range(70)] + [marked(3, 120, i) for i in range(5)]
    night.write("a", [*texts[:35], None, *texts[35:]], row_group=32)
    plan = night.plan()
    (one,) = inspect_input(plan, list_files(plan.locations)).shards
    rows = {}
    for name, pace in (
        ("whole", None),
        ("pieces", SimpleNamespace(largest=lambda rows, _: min(rows, 13), record=print)),
    ):
        open_tables(plan.results)
        todo, worker, committer = Todo(Nodes(), pace), Worker(plan, name), Committer(plan, name)
        todo.add([one])
        pieces = 0
        while todo:
            work, pieces = todo.next_work(), pieces + 1
            *_, report = worker.scan(work.piece)
            if finished := todo.take_report(work, report):
                committer.add(finished)
        assert pieces == (1 if pace is None else 6)
        committer.flush()
        kept = read_whole(plan.results, "shards").select("documents", "flagged", "tokens", "quarantined").collect()
        audit = (
            read_whole(plan.results, "audit_counts").filter(kind="decoy_best").select(pl.col("tests").sum()).collect()
        )
        rows[name] = night.verdicts(), night.quarantine().drop("scan_id", "scanned_at"), kept, audit
        delete_results(plan.results, plan.registry)
    assert same(rows["whole"][0], rows["pieces"][0])
    assert all(a.equals(b) for a, b in zip(rows["whole"][1:], rows["pieces"][1:], strict=True))

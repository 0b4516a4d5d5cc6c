"""Work whose node is gone, on a made-up cluster: preemption blames no document, and no document is tried for ever."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from scanner.cluster.machines import NodeEnd, Nodes
from scanner.cluster.pieces import (
    NO_TIME,
    DocumentCounts,
    FinishedPack,
    FinishedShard,
    LostDocument,
    Pack,
    PackReport,
    PackWork,
    PieceWork,
    Report,
)
from scanner.cluster.todo import ATTEMPTS, NODES_A_DOCUMENT, NODES_A_SHARD, Todo
from scanner.input.documents import UNKNOWN_IDENTITY
from scanner.input.files import InputFile
from scanner.input.shards import Range, Shard


def shard(start: int, stop: int) -> Shard:
    return Shard(f"shard-{start}", InputFile("/in/a", "/in/a", "/in/a", 1, 1), Range(start, stop, 1))


class ScriptedNodes(Nodes):
    """Nodes that are gone when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str | None, NodeEnd] = {}

    def gone(self, node_id: str | None) -> NodeEnd | None:
        return self.told.get(node_id)


def work_off(todo: Todo, deadly: set[int], how: NodeEnd, most: int = 1000) -> tuple[list, int]:
    """Do all work. A piece with a deadly row takes its node with it. Returns finished shards and lost nodes."""
    finished, nodes = [], 0
    while todo:
        work = todo.next_work()
        assert nodes < most, "a document is tried for ever"
        if not isinstance(work, PackWork) and isinstance(work.state, LostDocument):
            found = todo.lose(work, work.state, UNKNOWN_IDENTITY)
        elif isinstance(work, PackWork) or deadly & set(range(work.piece.start, work.piece.stop)):
            nodes += 1
            found = todo.put_back_or_cut(work, how)
        else:
            found = todo.take_report(work, Report(counts=DocumentCounts(documents=work.piece.stop - work.piece.start)))
        finished += [found] if found else []
    return finished, nodes


def stall(todo: Todo, endless: set[int], late: Callable[[int], int]) -> tuple[list, list[int], int]:
    """Do all work; a document of `endless` never ends. Returns finished shards, rows that were scored, and stalls.

    late: how many of so many done rows the actor's last word has.
    """
    finished, scored, stalls = [], [], 0
    while todo:
        work = todo.next_work()
        shards = work.pack.shards if isinstance(work, PackWork) else [work.piece]
        rows = [row for one in shards for row in (range(*one.rows[:2]) if isinstance(one, Shard) else range(*one[1:3]))]
        stuck = [place for place, row in enumerate(rows) if row in endless]
        if isinstance(work, PieceWork) and isinstance(work.state, LostDocument):
            found = [todo.lose(work, work.state, UNKNOWN_IDENTITY)]
        elif stuck:
            stalls += 1
            alone = isinstance(work, PieceWork) and work.piece.one_by_one
            found = [todo.cut_at_stall(work, stuck[0] if alone else late(stuck[0]), rows[stuck[0]] if alone else None)]
        else:
            scored += rows
            counts = [
                DocumentCounts(documents=one.rows.stop - one.rows.start) for one in shards if isinstance(one, Shard)
            ]
            if isinstance(work, PackWork):
                found = [todo.unpack(work, PackReport(tuple(counts), {}, peak_memory=0, seconds=NO_TIME))]
            else:
                found = [todo.take_report(work, Report(counts=DocumentCounts(documents=len(rows))))]
        finished += [one for one in found if one]
    return finished, scored, stalls


@given(
    ends=st.lists(st.integers(1, 400), min_size=1, max_size=5, unique=True).map(sorted),
    places=st.sets(st.integers(0, 399), max_size=5),
    packed=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_a_document_that_never_ends_costs_two_stalls_and_the_rest_is_scored_once(ends, places, packed, chance):
    shards = [shard(start, stop) for start, stop in pairwise([0, *ends])]
    endless = {row for row in places if row < ends[-1]}
    todo = Todo(ScriptedNodes())
    todo.add([Pack(tuple(shards))] if packed else shards)
    finished, scored, stalls = stall(todo, endless, lambda done: chance.randint(0, done))
    assert sorted(scored) == sorted({*range(ends[-1])} - endless)
    whole = [one for one in finished if isinstance(one, FinishedShard)]
    lost = [lost for one in whole for lost in one.lost]
    assert sorted(one.row for one in lost) == sorted(endless)
    assert {one.reason for one in lost} <= {"timed_out"}
    assert stalls <= 2 * len(endless)
    in_packs = [one for pack in finished if isinstance(pack, FinishedPack) for one in pack.shards]
    assert sorted(one.rows.start for one in [*(one.shard for one in whole), *in_packs]) == [0, *ends[:-1]]
    assert todo.in_parts == 0


def test_work_whose_worker_never_says_more_is_halved_down_to_a_document():
    """As where a page of the file cannot be decoded in any time: no document was announced."""
    todo, finished, stalls = Todo(ScriptedNodes()), [], 0
    todo.add([shard(0, 16)])
    while todo:
        work = todo.next_work()
        if isinstance(work.state, LostDocument):
            found = todo.lose(work, work.state, UNKNOWN_IDENTITY)
        elif work.piece.start <= 5 < work.piece.stop:
            stalls, found = stalls + 1, todo.cut_at_stall(work, 0, None)
        else:
            found = todo.take_report(work, Report(counts=DocumentCounts(documents=work.documents)))
        finished += [found] if found else []
    ((one,), (lost,)) = finished, finished[0].lost
    assert (lost.row, lost.reason, one.documents, stalls) == (5, "timed_out", 16, 6)


@pytest.mark.parametrize("times", [1, 10, 1000])
def test_a_preempted_node_is_no_attempt_however_often(times):
    todo = Todo(ScriptedNodes())
    todo.add([shard(0, 5)])
    for _ in range(times):
        assert todo.put_back_or_cut(todo.next_work(), NodeEnd.ANNOUNCED) is None
    ((finished,), nodes) = work_off(todo, set(), NodeEnd.ANNOUNCED)
    assert (finished.documents, finished.lost, len(finished.reports), nodes) == (5, [], 1, 0)
    assert finished.retries == times


def test_waves_without_a_word_cut_a_shard_and_blame_nobody():
    """Every other piece loses its node when it begins, so that some documents lose several nodes."""
    todo, waves, finished = Todo(ScriptedNodes()), 0, []
    todo.add([shard(0, 1000)])
    while todo:
        work, waves = todo.next_work(), waves + 1
        if waves % 2:
            assert todo.put_back_or_cut(work, NodeEnd.DIED) is None
        else:
            done = todo.take_report(work, Report(counts=DocumentCounts(documents=work.piece.stop - work.piece.start)))
            finished += [done] if done else []
    (one,) = finished
    assert (one.documents, one.lost) == (1000, [])


def test_a_document_that_brings_nodes_down_is_found_and_the_rest_is_scanned():
    todo = Todo(ScriptedNodes())
    todo.add([shard(0, 20_000)])
    ((finished,), nodes) = work_off(todo, {12_345}, NodeEnd.DIED)
    assert finished.documents == 20_000
    ((row, reason, detail, _),) = finished.lost
    assert (row, reason) == (12_345, "killed_worker")
    assert detail == f"{NODES_A_DOCUMENT} nodes of the cluster died while scanning this alone"
    assert nodes <= NODES_A_SHARD + 15 + NODES_A_DOCUMENT  # 2^15 > 20,000


def test_a_pack_over_which_nodes_die_is_taken_apart():
    todo = Todo(ScriptedNodes())
    todo.add([Pack((shard(0, 2), shard(2, 4)))])
    finished, nodes = work_off(todo, set(), NodeEnd.DIED)
    assert [one.documents for one in finished] == [2, 2]
    assert nodes == NODES_A_SHARD


def test_nobody_is_asked_for_ever_whose_a_lost_document_is():
    todo = Todo(ScriptedNodes())
    todo.add([shard(0, 1)])
    for _ in range(ATTEMPTS):
        todo.retry_or_cut(todo.next_work(), "failed", "")
    found, asked = None, 0
    while found is None:
        found, asked = todo.put_back_or_cut(todo.next_work(), NodeEnd.DIED), asked + 1
    assert (asked, [lost.whose for lost in found.lost]) == (NODES_A_DOCUMENT, [UNKNOWN_IDENTITY])


def test_a_worker_that_died_just_before_its_node_counts_no_more():
    """A worker may die before its node is known to be gone; Ray then says only that the worker died."""
    nodes = ScriptedNodes()
    todo = Todo(nodes)
    todo.add([shard(0, 1)])
    for node in ("a", "b"):
        assert todo.retry_or_cut(todo.next_work(), "killed_worker", "", node) is None
        nodes.told[node] = NodeEnd.ANNOUNCED
    for node in ("c", "d", "e"):
        work = todo.next_work()
        assert not isinstance(work.state, LostDocument)
        assert todo.retry_or_cut(work, "killed_worker", "", node) is None
    assert isinstance(todo.next_work().state, LostDocument)  # it died on three live nodes


def test_a_document_whose_workers_die_with_their_nodes_is_given_up_at_last():
    nodes = ScriptedNodes()
    todo = Todo(nodes)
    todo.add([shard(0, 1)])
    for number in range(NODES_A_DOCUMENT):
        nodes.told[str(number)] = NodeEnd.DIED
        assert not isinstance(todo.first.state, LostDocument)
        todo.retry_or_cut(todo.next_work(), "killed_worker", "", str(number))
    assert todo.next_work().state.reason == "killed_worker"


@pytest.mark.parametrize(("reason", "how"), [(0, "died"), (1, "taken"), (2, "died"), (3, "taken"), (4, "taken")])
def test_ray_says_how_a_node_went(monkeypatch, reason, how):
    asked = []

    def nodes() -> list[dict[str, object]]:
        asked.append(1)
        return [{"NodeID": "x", "Alive": False, "DeathReason": reason}, {"NodeID": "y", "Alive": True}]

    monkeypatch.setattr(ray, "nodes", nodes)
    known = Nodes()
    assert known.gone(None) is None
    assert [known.gone(name) for name in "xxyz"] == [NodeEnd(how), NodeEnd(how), None, None]
    assert len(asked) == 3  # the dead node is asked for once
    monkeypatch.setattr(ray, "nodes", list)  # Ray forgets the oldest dead nodes
    assert known.gone("y") is None
    assert known.gone("x") is NodeEnd(how)


def test_rays_numbers_are_these():
    from ray.core.generated.common_pb2 import NodeDeathInfo  # type: ignore[attr-defined]

    names = ("UNSPECIFIED", "EXPECTED_TERMINATION", "UNEXPECTED_TERMINATION")
    assert [NodeDeathInfo.Reason.Value(name) for name in names] == [0, 1, 2]
    drained = ("AUTOSCALER_DRAIN_PREEMPTED", "AUTOSCALER_DRAIN_IDLE")
    assert [NodeDeathInfo.Reason.Value(name) for name in drained] == [3, 4]


def test_a_minute_that_kills_every_worker_blames_no_document_while_other_work_waits():
    todo = Todo(ScriptedNodes())
    todo.add([shard(row, row + 1) for row in range(3)])
    kills, finished = 2 * (ATTEMPTS - 1) + 1, []  # one document would have died ATTEMPTS times
    while todo:
        work, kills = todo.next_work(), kills - 1
        assert isinstance(work, PieceWork)
        assert not isinstance(work.state, LostDocument)
        if kills >= 0:
            assert todo.retry_or_cut(work, "killed_worker", "died") is None
        else:
            finished.append(todo.take_report(work, Report(counts=DocumentCounts(documents=1))))
    assert [len(one.lost) for one in finished] == [0, 0, 0]

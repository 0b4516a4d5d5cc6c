"""The pool with workers that die, raise, refuse and hang, on real Ray."""

import math
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from scanner.cluster import pool, todo
from scanner.cluster.machines import NodeEnd, limit_memory, worker_memory
from scanner.cluster.pieces import Busy, DocumentCounts, FinishedShard, Piece, Report
from scanner.cluster.pool import Pool
from scanner.cluster.todo import LARGE_ATTEMPTS, LARGE_LOST
from scanner.errors import FileFault, Refused, ScanFailed, SecretError
from scanner.input.documents import UNKNOWN_IDENTITY, Identity
from scanner.input.files import InputFile
from scanner.input.shards import Range, Shard
from schemas.config import ScanClusterConfig

pytestmark = pytest.mark.usefixtures("ray_cluster")


class Scripted:
    """A worker by a script: rows kill it, raise, hang, belong to a faulty file or stop the scan. It keeps a diary."""

    def __init__(self, folder: Path, script: dict[int, str]) -> None:
        self.folder = folder
        self.script = script
        self.kept: list[bytes] = []
        self.lost_device = False

    def prepare(self) -> None:
        if self.script.get(-1) == "take long":
            time.sleep(2)
        if self.script.get(-1) == "secret" or (
            self.script.get(-1) == "secret once dead" and (self.folder / "diary").exists()
        ):
            raise SecretError("secret file x: cannot be read")
        if self.script.get(-1) == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if memory := self.script.get(-2):
            limit_memory(int(memory))

    def identify(self, piece: Piece) -> Iterator[Identity]:
        if self.script.get(piece.start) == "die always":
            os.kill(os.getpid(), signal.SIGKILL)
        yield Identity(f"document {piece.start}", "account", b"digest")

    def scan(self, piece: Piece) -> Iterator[Busy | Report]:
        with (self.folder / "diary").open("a") as diary:
            diary.write(f"{piece.shard.shard_id} {piece.start} {piece.stop} {os.getpid()}\n")
        rows = range(piece.start, piece.stop)
        large = [row for row in rows if len(rows) > 1 and self.script.get(row, "").startswith("large")]
        for row in [row for row in rows if row not in large]:
            if piece.one_by_one:
                yield Busy(float(self.script.get(-3, 60)), row - piece.start, row)
            match self.script.get(row):
                case "die always" | "large and deadly":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "die once" if not (self.folder / "died").exists():
                    (self.folder / "died").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                case "raise":
                    raise ZeroDivisionError("of row " + str(row))
                case "gone":
                    yield Report(fault=FileFault("vanished", "gone"))
                    return
                case "full":
                    raise ScanFailed("results: no space left")
                case "slow":
                    time.sleep(2)
                case "slow, as told":
                    for _ in range(4):
                        yield Busy(3)
                        time.sleep(1)
                case "tell":
                    yield Busy(60, row - piece.start)
                    time.sleep(1.2)
                case "say a word":
                    yield Busy(0.5, row - piece.start)
                case "hang":
                    re.match("(a+)+$", "a" * 60 + "b")  # takes ages and blocks every other thread
                case "hang after a word":
                    yield Busy(0.5)
                    time.sleep(10**6)
                case "eat":
                    kept = [bytes(2**24) for _ in range(10**6)]
                    del kept
                case "hoard":
                    while True:
                        self.kept.append(bytes(2**24))
                case "need much":
                    bytes(2**27)
                case "lose the device":
                    self.lost_device = True
            if self.lost_device:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield Report(counts=DocumentCounts(documents=len(rows) - len(large)), set_aside=tuple(large))


def shard(start: int, stop: int) -> Shard:
    return Shard(f"shard-{start}", InputFile("/in/a", "/in/a", "/in/a", 1, 1), Range(start, stop, 1))


@pytest.fixture
def run(tmp_path):
    pools: list[Pool] = []

    def call(
        script: dict[int, str],
        *shards: Shard,
        workers: int | None = None,
        stall_seconds: float = math.inf,
        on_devices: bool = False,
    ) -> dict[str, FinishedShard]:
        actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Scripted)
        workers = workers or min(2, max(1, len(shards)))  # as a scan starts no more than it has shards
        used = Pool(lambda: actor.remote(tmp_path, script), workers, stall_seconds, on_devices=on_devices)
        pools.append(used)
        found = [finished for finished in used.run(shards) if finished is not None]
        assert len({finished.shard.shard_id for finished in found}) == len(found)
        return {finished.shard.shard_id: finished for finished in found}

    yield call
    for used in pools:
        used.close()


def diary(tmp_path: Path) -> list[tuple[int, int]]:
    lines = (tmp_path / "diary").read_text().splitlines()
    return [(int(line.split()[1]), int(line.split()[2])) for line in lines]


def documents(finished: FinishedShard) -> int:
    return sum(report.counts.documents for report in finished.reports)


@pytest.mark.costly
def test_every_shard_is_finished(run):
    shards = [shard(i, i + 10) for i in range(0, 100, 10)]
    found = run({}, *shards)
    assert sorted(found) == sorted(one.shard_id for one in shards)
    assert all(documents(finished) == 10 and not finished.lost for finished in found.values())


def test_nothing_to_do(run):
    assert run({}) == {}


@pytest.mark.costly
def test_a_document_that_kills_is_found_and_the_rest_is_scanned(run, tmp_path):
    found = run({1: "die"}, shard(0, 4), shard(4, 8))
    assert [(lost.row, lost.reason) for lost in found["shard-0"].lost] == [(1, "killed_worker")]
    assert documents(found["shard-0"]) == 3
    assert documents(found["shard-4"]) == 4
    assert not found["shard-4"].lost
    tried = diary(tmp_path)
    assert [tried.count(part) for part in ((0, 4), (0, 2), (2, 4), (0, 1), (1, 2))] == [3, 1, 1, 1, 3]


@pytest.mark.costly
def test_two_documents_that_raise(run):
    (finished,) = run({3: "raise", 4: "raise"}, shard(0, 9)).values()
    whose = [Identity(f"document {row}", "account", b"digest") for row in (3, 4)]
    assert sorted(finished.lost) == [
        (3, "failed", "ZeroDivisionError: of row 3", whose[0]),
        (4, "failed", "ZeroDivisionError: of row 4", whose[1]),
    ]
    assert documents(finished) == 7


@pytest.mark.costly
def test_nobody_knows_whose_a_document_is_that_kills_whoever_looks(run):
    (finished,) = run({1: "die always"}, shard(0, 2)).values()
    assert finished.lost == [(1, "killed_worker", finished.lost[0].detail, UNKNOWN_IDENTITY)]
    assert documents(finished) == 1


@pytest.mark.costly
def test_large_documents_come_last_and_alone(run, tmp_path):
    found = run({1: "large", 2: "large", 5: "large"}, shard(0, 4), shard(4, 8), shard(8, 12), workers=1)
    assert [documents(finished) for finished in found.values()] == [4, 4, 4]
    assert diary(tmp_path) == [(0, 4), (4, 8), (8, 12), (1, 2), (2, 3), (5, 6)]


@pytest.mark.costly
def test_not_all_large_documents_of_a_file_are_tried_where_others_failed(run, tmp_path):
    """The cost of one file is bounded. Its sound rows are scanned, and the ids of its lost documents are kept."""
    deadly = dict.fromkeys(range(1, 30), "large and deadly")
    found = run(deadly, shard(0, 15), shard(15, 31), workers=1)
    assert sum(map(documents, found.values())) == 2
    lost = sorted(one for finished in found.values() for one in finished.lost)
    assert [(one.row, one.whose.doc_id) for one in lost] == [(row, f"document {row}") for row in range(1, 30)]
    assert [one.reason for one in lost].count("killed_worker") == LARGE_LOST
    assert [one.reason for one in lost].count("out_of_memory") == 29 - LARGE_LOST
    assert len([part for part in diary(tmp_path) if part[1] - part[0] == 1]) == LARGE_LOST * LARGE_ATTEMPTS


@pytest.mark.costly
def test_an_accident_is_no_fault_of_the_document(run, tmp_path):
    (finished,) = run({2: "die once"}, shard(0, 5)).values()
    assert (documents(finished), finished.lost) == (5, [])
    assert diary(tmp_path) == [(0, 5), (0, 5)]


@pytest.mark.costly
def test_a_node_that_is_taken_is_no_attempt(run, tmp_path, monkeypatch):
    monkeypatch.setattr(todo, "ATTEMPTS", 1)
    monkeypatch.setattr(pool.Nodes, "gone", lambda _, node_id: NodeEnd.ANNOUNCED if node_id else None)
    (finished,) = run({2: "die once"}, shard(0, 5)).values()
    assert (documents(finished), finished.lost) == (5, [])
    assert diary(tmp_path) == [(0, 5), (0, 5)]


@pytest.mark.costly
def test_workers_that_start_on_nodes_that_die_do_not_start_for_ever(run, monkeypatch):
    monkeypatch.setattr(pool, "START_ATTEMPTS", 1)
    monkeypatch.setattr(pool, "node_of", lambda _: "a node")  # a dead actor cannot say its node
    monkeypatch.setattr(pool.Nodes, "gone", lambda *_: NodeEnd.DIED)
    with pytest.raises(ScanFailed, match="3 workers died while starting"):
        run({-1: "die"}, shard(0, 4))


@pytest.mark.costly
def test_there_are_more_workers_once_the_cluster_has_room(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "GROW_SECONDS", 0.0)
    actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Scripted)
    grows = Pool(lambda: actor.remote(tmp_path, dict.fromkeys(range(8), "slow")), 1, room=lambda: 2)
    found = [finished for finished in grows.run([shard(row, row + 1) for row in range(8)]) if finished is not None]
    grows.close()
    assert len(found) == 8
    assert len({line.split()[3] for line in (tmp_path / "diary").read_text().splitlines()}) == 2


@pytest.mark.costly
def test_what_waited_behind_a_killer_is_not_to_blame(run, tmp_path):
    found = run({0: "die"}, shard(0, 1), shard(1, 2), workers=1)
    assert [(lost.row, lost.reason) for lost in found["shard-0"].lost] == [(0, "killed_worker")]
    assert documents(found["shard-1"]) == 1
    assert diary(tmp_path).count((0, 1)) == 3
    assert diary(tmp_path).count((1, 2)) == 1


@pytest.mark.costly
def test_a_faulty_file_is_told(run):
    found = run({1: "gone"}, shard(0, 4), shard(4, 8))
    assert found["shard-0"].fault.reason == "vanished"
    assert found["shard-4"].fault is None


@pytest.mark.costly
def test_results_that_cannot_be_written_stop_it_all(run):
    with pytest.raises(ScanFailed, match="no space left"):
        run({0: "full"}, shard(0, 4), shard(4, 8))


@pytest.mark.costly
def test_a_secret_that_a_worker_cannot_read_stops_it_all(run):
    with pytest.raises(Refused, match="a worker cannot begin: secret file x"):
        run({-1: "secret"}, shard(0, 4))


@pytest.mark.costly
def test_a_worker_that_refuses_when_others_have_worked_fails_the_scan(run, tmp_path):
    with pytest.raises(ScanFailed, match="a worker cannot begin: secret file x"):
        run({-1: "secret once dead", 0: "die"}, shard(0, 4), workers=1)
    assert diary(tmp_path) == [(0, 4)]


@pytest.mark.costly
def test_workers_that_die_at_once_stop_it_all(run, monkeypatch):
    monkeypatch.setattr(pool, "START_ATTEMPTS", 2)
    with pytest.raises(ScanFailed, match="workers died while starting"):
        run({-1: "die"}, shard(0, 4))


@pytest.mark.costly
def test_it_says_when_no_worker_can_start(run, monkeypatch, caplog):
    monkeypatch.setattr(pool, "_COMPLAIN_EVERY", 0.1)
    monkeypatch.setattr(pool, "_WAIT_SECONDS", 0.01)
    assert documents(run({}, shard(0, 3))["shard-0"]) == 3
    assert "no worker could start for" in caplog.text


@pytest.mark.costly
def test_it_says_what_workers_do_that_are_not_ready(run, monkeypatch, caplog):
    monkeypatch.setattr(pool, "_COMPLAIN_EVERY", 1)
    monkeypatch.setattr(pool, "_WAIT_SECONDS", 0.3)
    assert documents(run({-1: "take long"}, shard(0, 3))["shard-0"]) == 3
    assert "workers have started, but after" in caplog.text


@pytest.mark.costly
@pytest.mark.parametrize("script", [{}, {4: "die once"}, {3: "raise", 4: "large"}])
def test_it_tells_how_far_it_is_within_a_shard(tmp_path, script):
    actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Scripted)
    told = Pool(lambda: actor.remote(tmp_path, dict.fromkeys(range(1, 6, 2), "tell") | script), 1)
    under_way, finished = [], []
    for found in told.run([shard(0, 6), shard(6, 12)]):
        under_way.append(told.under_way)
        finished += [found] if found else []
    told.close()
    assert 1 in under_way
    assert 5 in under_way
    assert max(under_way) <= 6
    assert under_way[-1] == 0  # the last shard is finished
    assert sorted(one.documents for one in finished) == [6, 6]


@pytest.mark.costly
def test_it_says_when_nothing_happens(tmp_path):
    actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Scripted)
    slow = Pool(lambda: actor.remote(tmp_path, {0: "slow"}), 1)
    assert None in list(slow.run([shard(0, 1)]))
    slow.close()


@pytest.mark.costly
def test_a_document_that_never_ends_is_found_by_two_stalls_and_the_rest_is_scanned(run, tmp_path):
    found = run({40: "say a word", 41: "hang", -3: "0.5"}, shard(0, 64), shard(64, 66), stall_seconds=0.5)
    ((row, reason, detail, _),) = found["shard-0"].lost
    assert (row, reason) == (41, "timed_out")
    assert "cluster.stall_seconds" in detail
    assert [documents(found[name]) for name in ("shard-0", "shard-64")] == [63, 2]
    assert sorted(diary(tmp_path)) == [(0, 40), (0, 64), (40, 41), (40, 64), (42, 64), (64, 66)]


@pytest.mark.costly
def test_a_sign_of_life_sets_another_time(run, tmp_path):
    found = run({0: "slow, as told", 1: "hang after a word"}, shard(0, 1), shard(1, 2), stall_seconds=2.5)
    assert (documents(found["shard-0"]), found["shard-0"].lost) == (1, [])
    assert [lost.reason for lost in found["shard-1"].lost] == ["timed_out"]
    assert diary(tmp_path).count((0, 1)) == 1


@pytest.mark.costly
def test_what_waits_behind_a_slow_piece_has_its_own_time(run, tmp_path):
    found = run({0: "slow", 1: "slow"}, shard(0, 1), shard(1, 2), workers=1, stall_seconds=3.5)
    assert not any(finished.lost for finished in found.values())
    assert len(diary(tmp_path)) == 2


@pytest.mark.costly
def test_a_document_that_eats_memory_ends_at_the_limit_and_the_rest_is_scanned(run):
    found = run({2: "eat", -2: str(2**30)}, shard(0, 4))
    ((row, reason, *_),) = found["shard-0"].lost
    assert (row, reason) == (2, "out_of_memory")
    assert documents(found["shard-0"]) == 3


@pytest.mark.costly
def test_what_comes_after_a_document_that_ate_memory_has_all_of_it(run):
    found = run({0: "hoard", 1: "need much", -2: str(2**30)}, shard(0, 1), shard(1, 2), workers=1)
    assert [(lost.row, lost.reason) for lost in found["shard-0"].lost] == [(0, "out_of_memory")]
    assert (documents(found["shard-1"]), found["shard-1"].lost, found["shard-1"].retries) == (1, [], 0)


@pytest.mark.costly
def test_what_comes_after_a_document_that_lost_a_worker_its_device_is_scanned(run):
    found = run({1: "lose the device"}, shard(0, 3), shard(3, 5), shard(5, 7), workers=1, on_devices=True)
    ((row, reason, detail, _),) = found["shard-0"].lost
    assert (row, reason) == (1, "failed")
    assert detail.startswith("RuntimeError: CUDA error")
    assert [documents(found[name]) for name in ("shard-0", "shard-3", "shard-5")] == [2, 2, 2]
    assert [found[name].retries for name in ("shard-3", "shard-5")] == [0, 0]


@pytest.mark.costly
def test_no_worker_is_ended_because_the_driver_was_held_up(tmp_path):
    actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Scripted)
    held_up = Pool(lambda: actor.remote(tmp_path, dict.fromkeys(range(4), "slow")), 2, stall_seconds=4)
    found = []
    for finished in held_up.run([shard(row, row + 1) for row in range(4)]):
        if finished is not None:
            found.append(finished)
            time.sleep(6 if len(found) == 1 else 0)  # as a commit to a slow store would
    held_up.close()
    assert [finished.retries for finished in found] == [0] * 4
    assert len(diary(tmp_path)) == 4


def test_a_worker_may_take_its_share_of_the_smallest_machine_that_lives(monkeypatch):
    def machine(gib: int, cpus: int, alive: bool = True) -> dict[str, object]:
        return {"Alive": alive, "Resources": {"memory": gib * 2**30, "CPU": cpus}}

    machines = [machine(64, 4), machine(1, 1, alive=False), machine(1, 0)]  # the last one has no CPU for workers
    monkeypatch.setattr(ray, "nodes", lambda: machines)
    assert worker_memory(ScanClusterConfig()) == 4096 * 2**20
    machines.append(machine(8, 4))
    assert worker_memory(ScanClusterConfig()) == int(0.9 * 2 * 2**30)
    assert worker_memory(ScanClusterConfig(worker_memory_mb=3000)) == 3000 * 2**20


@pytest.mark.costly
def test_a_limit_that_no_worker_can_keep_stops_it_all(run):
    with pytest.raises(ScanFailed, match=r"a worker cannot begin: it uses \d+ MiB before .* cluster.worker_memory_mb"):
        run({-2: str(2**20)}, shard(0, 4))

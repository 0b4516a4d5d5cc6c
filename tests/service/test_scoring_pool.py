"""The pool of the detector goes on after whatever happens in its processes."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from scanner.service import scoring
from scanner.service.processes import Unavailable
from scanner.service.scoring import ScoringPool

ROOT = Path(__file__).parents[2]


AS_NOBODY = """\
import ctypes, os
from scanner.service import scoring
from scanner.service.processes import confine_process
if not os.geteuid():
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as a program has it that begins: whoever changes its user loses it
confine_process()
"""


@pytest.mark.seconds
def test_a_process_is_confined_by_a_user_who_is_not_root():
    """None could begin, so that the detector was never ready but for root."""
    assert subprocess.run([sys.executable, "-c", AS_NOBODY], cwd=ROOT, check=False).returncode == 0


class RaisesOnce:
    """In the place of a Scorer: raises at a text, and finds nothing to speak of in others."""

    def find_marks(self, texts: list[bytes]) -> list[bytes]:
        if b"raise" in texts:
            raise ValueError("raise")
        return texts


def put_scorer() -> None:
    scoring._scorer = RaisesOnce()


@pytest.mark.costly
def test_texts_that_cannot_be_looked_at_are_refused_and_take_no_process(monkeypatch):
    """Nor an answer of those that are looked at with them."""

    def new(pool, _served):
        process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), put_scorer)
        pool.processes.add(process)
        return process

    async def find(*together: list[bytes]) -> list[object]:
        pool, served = ScoringPool(1, 60, b""), object()
        await pool.serve(served)
        asked = [pool.find_marks(place, texts) for place, texts in enumerate(together)]
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        pool.stop()
        assert pool.killed == 0
        return [str(each) if isinstance(each, Unavailable) else each[0] for each in found]

    monkeypatch.setattr(ScoringPool, "_new", new)
    refused = "This text could not be looked at. Ask again, or with less of it."
    assert asyncio.run(find([b"raise"], [b"a", b"b"])) == [refused, [b"a", b"b"]]
    assert asyncio.run(find([b"a"], [b"raise"], [b"b"], [b"c", b"raise"])) == [[b"a"], refused, [b"b"], refused]


class AtOnce(ScoringPool):
    """A pool that answers groups without a process, and keeps what was looked at together."""

    def __init__(self) -> None:
        super().__init__(1, 60, b"")
        self.groups: list[list[bytes]] = []
        self._served = object()

    async def _score(self, group, served, process):
        self.groups.append([text for job in group for text in job.texts])
        for job in group:
            job.answer.set_result((job.texts, served))
        return process

    def _end(self, process):
        pass


def groups_of(*asked: tuple[str, list[bytes]]) -> list[list[bytes]]:
    """What a pool looks at together, of texts that callers ask about one behind the other."""

    async def ask() -> list[list[bytes]]:
        pool = AtOnce()
        working = asyncio.create_task(pool._work(pool._served, None))
        each = []
        for caller, texts in asked:
            each.append(asyncio.create_task(pool.find_marks(caller, texts)))
            await asyncio.sleep(0.001)
        found = await asyncio.wait_for(asyncio.gather(*each), 60)
        assert [texts for texts, _ in found] == [texts for _, texts in asked]
        working.cancel()
        return pool.groups

    return asyncio.run(ask())


def test_short_texts_that_come_one_behind_the_other_are_looked_at_together(monkeypatch):
    """A text by itself takes a process nearly as long as ten."""
    monkeypatch.setattr(scoring, "_GATHERING", 5)
    assert groups_of(("one", [b"a"]), ("other", [b"b"])) == [[b"a", b"b"]]


@pytest.mark.parametrize("last", [[b"c" * 5000], [b"c", b"d"]])
def test_a_long_text_or_several_wait_for_no_others(monkeypatch, last):
    monkeypatch.setattr(scoring, "_GATHERING", 10_000)
    assert groups_of(("one", last)) == [last]
    assert groups_of(("one", [b"a"]), ("other", last)) == [[b"a"], last]


def test_who_asks_about_half_of_what_one_caller_may_waits_for_no_others(monkeypatch):
    """Else texts that come evenly, and wait together, would be refused for being many."""
    monkeypatch.setattr(scoring, "_GATHERING", 10_000)
    texts = [b"%d" % number for number in range(5)]
    assert groups_of(*(("one", [text]) for text in texts)) == [texts]


class HeldProcess:
    """In the place of a process that is ready: what it is asked stays unanswered."""

    def __init__(self) -> None:
        self.held: list[Future] = []
        self._processes = None

    def submit(self, function, *_jobs) -> Future:
        future = Future()
        if function is os.getpid:
            future.set_result(0)
        else:
            self.held.append(future)
        return future

    def shutdown(self, **_named: bool) -> None:
        pass


def hold_processes(monkeypatch) -> list[HeldProcess]:
    """Have pools take such processes, which are in the list as they come."""
    processes: list[HeldProcess] = []

    def new(pool, _served):
        processes.append(HeldProcess())
        pool.processes.add(processes[-1])
        return processes[-1]

    monkeypatch.setattr(ScoringPool, "_new", new)
    monkeypatch.setattr(scoring, "_GATHERING", 0)
    return processes


async def until(holds) -> None:
    while not holds():
        await asyncio.sleep(0)


@pytest.mark.parametrize("goes_on", [False, True])
def test_texts_whose_process_ends_once_it_serves_no_more_get_an_answer(monkeypatch, goes_on):
    """They waited until somebody else asked, or for as long as the registry could not be read."""
    processes = hold_processes(monkeypatch)

    async def ask() -> list[object]:
        pool = ScoringPool(1, 60, b"")
        await pool.serve(object())
        asked = [asyncio.create_task(pool.find_marks(text, [text])) for text in (b"a", b"b")]
        await until(lambda: processes[0].held)
        if goes_on:
            await pool.serve(object())
            await until(lambda: not pool._changed.is_set())
        else:
            pool.stop()
        processes[0].held[0].set_exception(BrokenProcessPool())
        for number in range(2 * goes_on):
            await until(lambda number=number: len(processes[1].held) > number)
            processes[1].held[number].set_result([["found"]])
        found = await asyncio.gather(*asked, return_exceptions=True)
        pool.stop()
        return [str(each) if isinstance(each, Unavailable) else each[0] for each in found]

    refused = "This text could not be looked at. Ask again, or with less of it."
    found = asyncio.run(asyncio.wait_for(ask(), 60))
    assert found == ([["found"]] * 2 if goes_on else [refused] * 2)


def test_where_a_process_cannot_be_started_none_of_the_others_stays(monkeypatch):
    """The system may allow no more: a detector that tries again each second would have more of them each time."""

    def refuse(*_) -> Future:
        raise BlockingIOError

    begun, ended = [HeldProcess(), HeldProcess()], []
    begun[1].submit = refuse
    given = iter(begun)
    monkeypatch.setattr(ScoringPool, "_new", lambda *_: next(given))
    monkeypatch.setattr(ScoringPool, "_end", lambda _, process: ended.append(process))

    async def serve() -> None:
        await ScoringPool(2, 60, b"").serve(object())

    with pytest.raises(BlockingIOError):
        asyncio.run(serve())
    assert set(ended) == set(begun)


def test_a_process_that_cannot_be_started_costs_the_texts_that_wait_for_it_alone(monkeypatch):
    """Nobody looked at any text from then on, though the detector was ready: all waited for ever."""
    processes = hold_processes(monkeypatch)
    start = ScoringPool._new

    def refuse(*_) -> HeldProcess:
        raise BlockingIOError

    async def ask() -> list[object]:
        pool = ScoringPool(1, 60, b"")
        await pool.serve(object())
        asked = [asyncio.create_task(pool.find_marks("one", [b"ends the process"]))]
        await until(lambda: processes[0].held)
        processes[0].held[0].set_exception(BrokenProcessPool())
        monkeypatch.setattr(ScoringPool, "_new", refuse)
        await until(lambda: asked[0].done())
        for _ in range(2):
            asked.append(asyncio.create_task(pool.find_marks("one", [b"a"])))
            await until(lambda: asked[-1].done() or processes[1:])
            monkeypatch.setattr(ScoringPool, "_new", start)
        await until(lambda: processes[1].held)
        processes[1].held[0].set_result([["found"]])
        found = await asyncio.gather(*asked, return_exceptions=True)
        pool.stop()
        return [str(each) if isinstance(each, Unavailable) else each[0] for each in found]

    refused = "This text could not be looked at. Ask again, or with less of it."
    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [refused, refused, ["found"]]

"""The pool of the detector goes on after whatever happens in its processes."""

import asyncio
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from scanner.service import scoring, scoring_pool
from scanner.service.budget import Caller
from scanner.service.processes import Unavailable
from scanner.service.scoring import Costs, Scorer
from scanner.service.scoring_pool import ScoringPool

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


CHEAP = Costs([10**9], [0.001])


class Pool(ScoringPool):
    """A pool of one process, which notes what is charged beyond what was paid."""

    def __init__(self, costs: Costs = CHEAP) -> None:
        self.charged = list[tuple[str, float]]()
        super().__init__(1, 60, 10**6, b"", lambda caller, seconds: self.charged.append((caller.name, seconds)))
        self.costs = costs

    async def ask(self, name: str, *texts: bytes) -> list[object]:
        """What is found in texts, or why nobody looked at them."""
        found = await self.find_marks(Caller(name, expert=False), texts)
        return [str(each) if isinstance(each, Unavailable) else each[0] for each in found]


class RaisesOnce:
    """In the place of a Scorer: raises at a text, and finds nothing to speak of in others."""

    names, holds = scoring._Nobody(), True

    def find_marks(self, texts: list[bytes]) -> list[bytes]:
        if b"raise" in texts:
            raise ValueError("raise")
        return texts

    def measure(self, _seconds: float, _most: int) -> Costs:
        return CHEAP


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
        pool = Pool()
        await pool.serve(object())
        asked = [pool.ask(f"{place}", *texts) for place, texts in enumerate(together)]
        found = await asyncio.wait_for(asyncio.gather(*asked), 60)
        pool.stop()
        assert pool.killed == 0
        return found

    monkeypatch.setattr(ScoringPool, "_new", new)
    assert asyncio.run(find([b"raise"], [b"a", b"b"])) == [[REFUSED], [b"a", b"b"]]
    assert asyncio.run(find([b"a"], [b"raise"], [b"b"], [b"c", b"raise"])) == [
        [b"a"],
        [REFUSED],
        [b"b"],
        [b"c", REFUSED],
    ]


REFUSED = "This text could not be checked. Try again, or with a shorter part of it."


class AtOnce(Pool):
    """A pool that answers groups without a process, and keeps what was looked at together."""

    def __init__(self, costs: Costs = CHEAP) -> None:
        super().__init__(costs)
        self.groups: list[list[bytes]] = []
        self._served = object()

    async def _score(self, group, served, process):
        self.groups.append([job.text for job in group])
        for job in group:
            job.end((job.text, served))
        return process

    def _end(self, process):
        pass


def groups_of(*asked: tuple[str, list[bytes]], costs: Costs = CHEAP, first: bool = False) -> list[list[bytes]]:
    """What a pool looks at together, of texts that callers ask about one behind the other.

    first: all ask before anything is looked at.
    """

    async def ask() -> list[list[bytes]]:
        pool = AtOnce(costs)
        working = None if first else asyncio.create_task(pool._work(pool._served, None))
        each = []
        for caller, texts in asked:
            each.append(asyncio.create_task(pool.ask(caller, *texts)))
            await asyncio.sleep(0.001)
        working = working or asyncio.create_task(pool._work(pool._served, None))
        assert await asyncio.wait_for(asyncio.gather(*each), 60) == [texts for _, texts in asked]
        working.cancel()
        return pool.groups

    return asyncio.run(ask())


def test_short_texts_that_come_one_behind_the_other_are_looked_at_together(monkeypatch):
    """A text by itself takes a process nearly as long as ten."""
    monkeypatch.setattr(scoring_pool, "_GATHERING", 5)
    assert groups_of(("one", [b"a"]), ("other", [b"b"])) == [[b"a", b"b"]]


@pytest.mark.parametrize("last", [[b"c" * 5000], [b"c", b"d"]])
def test_a_long_text_or_several_wait_for_no_others(monkeypatch, last):
    monkeypatch.setattr(scoring_pool, "_GATHERING", 10_000)
    assert groups_of(("one", last)) == [last]
    groups = groups_of(("one", [b"a"]), ("other", last))
    assert sorted(text for group in groups for text in group) == sorted([b"a", *last])


def test_who_asks_about_half_of_what_one_caller_may_waits_for_no_others(monkeypatch):
    """Else texts that come evenly, and wait together, would be refused for being many."""
    monkeypatch.setattr(scoring_pool, "_GATHERING", 10_000)
    texts = [b"%d" % number for number in range(5)]
    assert groups_of(*(("one", [text]) for text in texts)) == [texts]


SECOND_A_KB = Costs([1000, 10**6], [1.0, 1000.0])


def test_callers_take_turns_by_what_their_texts_are_to_take():
    """Whoever came later waited for all texts of those who came first, however many and long they were."""
    crowd = [(f"{name}", [b"%d" % name * 9_000]) for name in range(4) for _ in range(3)]
    groups = groups_of(*crowd, ("late", [b"late" * 500]), costs=SECOND_A_KB, first=True)
    assert groups[0] == [b"late" * 500]
    assert [group[0][:1] for group in groups[1:]] == [b"0", b"1", b"2", b"3"] * 3


def test_a_caller_of_a_long_text_has_a_turn_beside_many_of_short_ones():
    """Each has his share: with ten callers, whose 200 texts take a second each, the long one is no longer put off."""
    short = [(f"{name}", [b"%d" % name * 100] * 20) for name in range(10)]
    groups = groups_of(("long", [b"x" * 8_000]), *short, costs=SECOND_A_KB, first=True)
    assert 50 <= groups.index([b"x" * 8_000]) <= 100


def test_texts_that_take_long_are_not_looked_at_together():
    """A text of another caller would wait for them."""
    assert groups_of(*((f"{name}", [b"%d" % name]) for name in range(3)), costs=SECOND_A_KB, first=True) == [
        [b"0"],
        [b"1"],
        [b"2"],
    ]


def test_costs_of_sizes_between_those_measured():
    costs = Costs([1000, 2000, 4000], [0.1, 0.3, 0.9])
    assert [costs.seconds(size) for size in (10, 1000, 3000, 4000)] == pytest.approx([0.1, 0.1, 0.6, 0.9])
    assert [costs.most_bytes(seconds) for seconds in (0.2, 0.6, 5)] == [1500, 3000, 4000]


@pytest.mark.parametrize(("seconds_a_kb", "power"), [(1e-4, 1), (0.1, 1), (0.06, 1.3), (0.1, 2)])
def test_a_measurement_ends_near_the_most_that_a_text_may_take(monkeypatch, seconds_a_kb, power):
    """A text of 98 kB took 67 seconds under a Gumbel key for 10^9 users, and a measurement of 8 kB said 14."""
    took = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: took[-1])

    class Measured(Scorer):
        def __init__(self) -> None:
            pass

        def find_marks(self, texts: list[bytes]) -> list[bytes]:
            took.append(took[-1] + seconds_a_kb * (len(texts[0]) / 1000) ** power)
            return texts

    costs = Measured().measure(3.0, 100_000)
    size = costs.most_bytes(3.0)
    assert size == 100_000 or 2.5 < seconds_a_kb * (size / 1000) ** power < 3.0001
    assert sum(costs.measured) < 12


class HeldProcess:
    """In the place of a process that is ready: what it is asked stays unanswered."""

    def __init__(self, costs: Costs = CHEAP) -> None:
        self.held: list[Future] = []
        self._processes, self._costs = None, costs

    def submit(self, function, *_jobs) -> Future:
        future = Future()
        if function is scoring.why_not_open:
            future.set_result("")
        elif function is scoring.measure_costs:
            future.set_result(self._costs)
        else:
            self.held.append(future)
        return future

    def shutdown(self, **_named: bool) -> None:
        pass


def hold_processes(monkeypatch) -> list[HeldProcess]:
    """Have pools take such processes, which are in the list as they come."""
    processes: list[HeldProcess] = []

    def new(pool, _served):
        processes.append(HeldProcess(pool.costs))
        pool.processes.add(processes[-1])
        return processes[-1]

    monkeypatch.setattr(ScoringPool, "_new", new)
    monkeypatch.setattr(scoring_pool, "_GATHERING", 0)
    return processes


async def until(holds) -> None:
    while not holds():
        await asyncio.sleep(0)


@pytest.mark.parametrize("goes_on", [False, True])
def test_texts_whose_process_ends_once_it_serves_no_more_get_an_answer(monkeypatch, goes_on):
    """They waited until somebody else asked, or for as long as the registry could not be read."""
    processes = hold_processes(monkeypatch)

    async def ask() -> list[object]:
        pool = Pool()
        await pool.serve(object())
        asked = [asyncio.create_task(pool.ask(text.decode(), text)) for text in (b"a", b"b")]
        await until(lambda: processes[0].held)
        if goes_on:
            await pool.serve(object())
            await until(lambda: not pool._changed.is_set())
        else:
            pool.stop()
        processes[0].held[0].set_exception(BrokenProcessPool())
        for number in range(2 * goes_on):
            await until(lambda number=number: len(processes[1].held) > number)
            processes[1].held[number].set_result((["found"], 0.0, ""))
        found = await asyncio.gather(*asked)
        pool.stop()
        return found

    found = asyncio.run(asyncio.wait_for(ask(), 60))
    assert found == ([["found"]] * 2 if goes_on else [[REFUSED]] * 2)


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
        await ScoringPool(2, 60, 10**6, b"", lambda *_: None).serve(object())

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
        pool = Pool()
        await pool.serve(object())
        asked = [asyncio.create_task(pool.ask("one", b"the process"))]
        await until(lambda: processes[0].held)
        monkeypatch.setattr(ScoringPool, "_new", refuse)
        processes[0].held[0].set_exception(BrokenProcessPool())
        await until(lambda: asked[0].done())
        for _ in range(2):
            asked.append(asyncio.create_task(pool.ask("one", b"a")))
            await until(lambda: asked[-1].done() or processes[1:])
            monkeypatch.setattr(ScoringPool, "_new", start)
        await until(lambda: processes[-1].held)
        processes[-1].held[0].set_result((["found"], 0.0, ""))
        found = await asyncio.gather(*asked)
        pool.stop()
        return found

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [[REFUSED], [REFUSED], ["found"]]


def test_what_a_text_takes_beyond_what_was_paid_is_charged_to_its_caller(monkeypatch):
    processes = hold_processes(monkeypatch)

    async def ask() -> list[tuple[str, float]]:
        pool = Pool()
        await pool.serve(object())
        asked = [asyncio.create_task(pool.ask(name, name.encode() * 5000)) for name in ("a", "b")]
        for number, answer in enumerate([(["found"], 7.0, ""), BrokenProcessPool()]):
            await until(lambda number=number: len(processes[0].held) > number)
            await asyncio.sleep(0.3 * number)
            held = processes[0].held[number]
            held.set_exception(answer) if number else held.set_result(answer)
        assert await asyncio.gather(*asked) == [["found"], [REFUSED]]
        pool.stop()
        return pool.charged

    (first, second) = asyncio.run(asyncio.wait_for(ask(), 60))
    assert first == ("a", pytest.approx(7.0, abs=0.01))
    assert (second[0], 0.25 < second[1] < 30) == ("b", True)

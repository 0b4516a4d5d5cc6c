"""Run processes that score texts for the detector. If one is killed or too slow, only its current text is lost.

Callers take turns by the CPU time of their texts (fair queueing; Demers, Keshav and Shenker 1989). The time of a text
is estimated from its size and a measurement of the keys, before any work on it.
"""

import asyncio
import contextlib
import heapq
import itertools
import math
import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, field

from scanner.service.budget import Caller
from scanner.service.processes import Unavailable
from scanner.service.scoring import Costs, Finding, ServedScan, find_marks_of, measure_costs, open_scorer, why_not_open
from schemas.service import tick_of

_OF_ONE_CALLER = 8
"""Most requests a process of one caller at a time. It bounds the memory for the bodies of one caller's requests."""

_TOGETHER, _SHORT, _SECONDS_TOGETHER = 32, 4096, 1.0
"""Most texts that are scored together, bytes of each, and estimated seconds of CPU.

They are so few that each flag gets the proof that it would get by itself, and that nobody waits long for their end.
"""

_CALLERS = 4096
"""Number of callers whose turns are remembered. Beyond it, callers without waiting texts are forgotten."""

_GATHERING = 0.13
"""Part of its tick for which a short text waits for others. One text takes a process nearly as long as ten."""

_OF_A_TEXT = 0.05
"""Part of the longest time of a text (`seconds`) that it may take of a core.

Other texts wait for that long, because a process does nothing else in the meantime. Even if a core has up to twenty
times as much to do, the text is then answered in time.
"""

_BUSY = "The detector is too busy. Ask again in a minute."
_NOT_READY = "The detector is not ready. Ask again in a minute."


class ScoringFailed(Unavailable):
    """Work on a text did not end well.

    why: the reason, for the operator. Empty: it is unknown, or could contain a part of the text.
    """

    def __init__(self, why: str = "") -> None:
        super().__init__("This text could not be checked. Try again, or with a shorter part of it.")
        self.why = why


ServedFinding = tuple[Finding, ServedScan]


@dataclass(eq=False)
class _Job:
    """A text that waits for a process.

    begins: loop time from which it may be scored.
    rank: its place in the order of turns.
    """

    caller: Caller
    text: bytes
    seconds: float
    begins: float
    rank: float
    may_join: bool
    answer: asyncio.Future[ServedFinding | Unavailable]
    patience: asyncio.TimerHandle | None = None

    def end(self, answer: ServedFinding | Unavailable) -> None:
        """Answer, unless the caller has left."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def leave(self) -> None:
        """Note that the caller has left, or has the answer."""
        self.answer.cancel()
        self.text = b""
        if self.patience:
            self.patience.cancel()


@dataclass
class _FairQueue:
    """Waiting jobs, in the order of turns."""

    jobs: list[tuple[float, int, _Job]] = field(default_factory=list)
    begins: float = math.inf
    _now: float = 0.0
    _lasts: dict[Caller, float] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _callers: Counter[Caller] = field(default_factory=Counter)

    def rank(self, caller: Caller, seconds: float) -> float:
        """Return the rank of a caller's next job.

        It follows from the estimated time of this job and of the jobs before it, in the caller's share.
        """
        if len(self._lasts) > _CALLERS:
            self._lasts = {recent_caller: last for recent_caller, last in self._lasts.items() if last > self._now}
        self._lasts[caller] = max(self._now, self._lasts.get(caller, 0.0)) + seconds
        return self._lasts[caller]

    def push(self, job: _Job) -> None:
        heapq.heappush(self.jobs, (job.rank, next(self._numbers), job))
        self._callers[job.caller] += 1
        self.begins = min(self.begins, job.begins)

    def group(self) -> list[_Job]:
        """Take the jobs whose turn it is, with jobs that may join them. Empty: no job waits."""
        group, seconds = list[_Job](), 0.0
        while self.jobs:
            job = self.jobs[0][-1]
            seconds += job.seconds
            joins = job.may_join and len(group) < _TOGETHER and seconds <= _SECONDS_TOGETHER
            if not job.answer.done() and group and not (joins and group[0].may_join):
                break
            heapq.heappop(self.jobs)
            self._callers[job.caller] -= 1
            if not self._callers[job.caller]:
                del self._callers[job.caller]
            if job.answer.done():  # its caller has left
                seconds -= job.seconds
                continue
            group.append(job)
            self._now += job.seconds / (len(self._callers) + 1)
        self.begins = 0.0 if self.jobs else math.inf
        if not self.jobs:
            self._lasts.clear()
            self._now = 0.0
        return group


class ScoringPool:
    """Processes that score texts. Short texts that wait for a process are scored together, which is cheaper.

    Args:
        workers: number of processes.
        seconds: longest time that a text waits, and longest time that a process takes.
        max_bytes: most bytes of a text.
        secret: the server's secret.
        charge: called with a caller, and the seconds of CPU that the caller's texts took beyond their estimate.
    """

    def __init__(
        self, workers: int, seconds: float, max_bytes: int, secret: bytes, charge: Callable[[Caller, float], None]
    ) -> None:
        self._workers, self._seconds, self._max_bytes = workers, seconds, max_bytes
        self._secret, self._charge = secret, charge
        self._served: ServedScan | None = None
        self._queue = _FairQueue()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers: Counter[Caller] = Counter()
        self.processes: set[ProcessPoolExecutor] = set()
        self.costs = Costs([max_bytes], [seconds * _OF_A_TEXT])
        self.scoring = self.killed = 0

    @property
    def waiting(self) -> int:
        """Return the number of texts that wait for a process."""
        return len(self._queue.jobs)

    @property
    def most_bytes(self) -> int:
        """Return the most bytes of a text: with any number of tokens, it takes at most a part of the longest time."""
        return self.costs.most_bytes(self._seconds * _OF_A_TEXT)

    async def serve(self, served: ServedScan) -> None:
        """Score as `served` says from now on.

        This returns once the processes have opened the keys, and costs are measured.

        Raises:
            Unavailable: the keys cannot be opened.
        """
        processes = [self._new(served) for _ in range(self._workers)]
        with contextlib.ExitStack() as ending:
            for process in processes:
                ending.callback(self._end, process)
            try:
                reasons = await asyncio.gather(
                    *(asyncio.wrap_future(process.submit(why_not_open)) for process in processes)
                )
                if any(reasons):
                    raise Unavailable(max(reasons))
                measurement = processes[0].submit(measure_costs, self._seconds * _OF_A_TEXT, self._max_bytes)
                self.costs = await asyncio.wrap_future(measurement)
            except BrokenProcessPool:
                raise Unavailable("the keys cannot be opened") from None
            ending.pop_all()
        self._served = served
        self._changed.set()
        for process in processes:
            task = asyncio.create_task(self._work(served, process))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End the processes, each after its current text. Waiting texts are refused."""
        self._served = None
        self._changed.set()
        for *_, job in self._queue.jobs:
            job.end(Unavailable(_NOT_READY))

    def kill(self) -> None:
        """End the processes now."""
        self.stop()
        for process in list(self.processes):
            self._end(process)

    async def find_marks(self, caller: Caller, texts: Sequence[bytes]) -> list[ServedFinding | Unavailable]:
        """Return a process's finding on each text, and what that process serves. Or why the text was not scored.

        If this is cancelled, waiting texts are left out. A text that is being scored takes no longer than opening
        another process would.
        """
        if not texts:
            return []
        if self._served is None:
            return [Unavailable(_NOT_READY)] * len(texts)
        if self._callers[caller] >= _OF_ONE_CALLER * self._workers:
            return [Unavailable("Too many requests at a time: wait for answers before you ask again.")] * len(texts)
        loop = asyncio.get_running_loop()
        may_gather = len(texts) == 1 and self._callers[caller] < _OF_ONE_CALLER // 2
        jobs = []
        for text in texts:
            gathers = may_gather and len(text) <= _SHORT  # otherwise a caller with many texts at once would be refused
            begins = loop.time() + _GATHERING * tick_of(len(text)) if gathers else 0.0
            seconds = self.costs.seconds(len(text))
            rank = self._queue.rank(caller, seconds)
            jobs.append(_Job(caller, text, seconds, begins, rank, len(text) <= _SHORT, loop.create_future()))
            self._wait(jobs[-1])
        self._callers[caller] += 1
        try:
            await asyncio.wait([job.answer for job in jobs])
            return [job.answer.result() for job in jobs]
        finally:
            for job in jobs:
                job.leave()
            self._callers[caller] -= 1
            self._callers += Counter()  # drops callers with a count of 0

    def _wait(self, job: _Job) -> None:
        job.patience = asyncio.get_running_loop().call_later(self._seconds, job.end, Unavailable(_BUSY))
        self._queue.push(job)
        self._changed.set()

    async def _work(self, served: ServedScan, process: ProcessPoolExecutor) -> None:
        """Have a process score waiting texts, for as long as `served` is served."""
        loop = asyncio.get_running_loop()
        try:
            while served is self._served:
                if self._queue.begins > loop.time():
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(self._queue.begins):
                            await self._changed.wait()
                elif group := self._queue.group():
                    self.scoring += 1
                    process = await self._score(group, served, process)
                    self.scoring -= 1
        finally:
            self._end(process)

    async def _score(
        self, group: Sequence[_Job], served: ServedScan, process: ProcessPoolExecutor
    ) -> ProcessPoolExecutor:
        """Answer jobs. Return the process, or the new one if it ended."""
        loop = asyncio.get_running_loop()
        began, expected = loop.time(), sum(job.seconds for job in group)
        for job in group:
            if job.patience:
                job.patience.cancel()
        try:
            if process not in self.processes:
                process = self._new(served)
            future = asyncio.wrap_future(process.submit(find_marks_of, [job.text for job in group]))
            findings, seconds, refusal = await asyncio.wait_for(future, self._seconds)
            for job, finding in zip(group, findings, strict=True):
                job.end(ScoringFailed(refusal) if finding is None else (finding, served))
                if seconds > expected:
                    self._charge(job.caller, (seconds - expected) * job.seconds / expected)
        except Exception:  # any error: the callers get an answer, and a process continues
            self.killed += 1
            self._end(process)
            for job in group:
                job.may_join = False
                if len(group) > 1 and self._served is not None:  # each by itself, so one text cannot lose the others
                    self._wait(job)
                else:
                    job.end(ScoringFailed())
                    if (excess := loop.time() - began - job.seconds) > 0:
                        self._charge(job.caller, excess)
            self._changed.set()  # this process may serve no more, and another one takes them
            with contextlib.suppress(Exception):  # the next text tries again
                process = self._new(served)
                process.submit(why_not_open)  # any call, so that it opens the keys now
        return process

    def _new(self, served: ServedScan) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        process = ProcessPoolExecutor(1, spawn, open_scorer, (served, self._secret))
        self.processes.add(process)
        return process

    def _end(self, process: ProcessPoolExecutor) -> None:
        self.processes.discard(process)
        for worker in list((process._processes or {}).values()):
            worker.kill()
        process.shutdown(wait=False, cancel_futures=True)

"""Processes that score texts for the detector: one that is killed, or too slow, costs the text it works on alone.

Callers take turns by the CPU that their texts are to take (fair queueing; Demers, Keshav and Shenker 1989). What a text
is to take is told by its bytes, by a measurement of the keys, before anybody works on it.
"""

import asyncio
import contextlib
import gc
import heapq
import itertools
import math
import multiprocessing
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.one_text import OpenedCheck, TextCheck
from scanner.detection.rows import p_class
from scanner.detection.sketches import gram_key, keyed_grams
from scanner.errors import BrickscanError, Refused
from scanner.input.documents import read_text
from scanner.registry import NamedUser, VerifiedHolders, check_secret
from scanner.registry.ledger import open_users
from scanner.results.filters import filter_of_config
from scanner.results.registry_record import users_of_config
from scanner.service.budget import Caller
from scanner.service.processes import Unavailable, confine_process
from scanner.text.normal_form import normalise_all
from scanner.watermark.formats import format_of
from scanner.watermark.positions import reach_of
from schemas.service import DetectorConfig, DetectorResult, Part, tick_of
from schemas.words import Naming, Proof

LEAST_CONTEXT = 2
"""Fewest previous tokens that a served key reads: answers soon give away the lists of keys that read none or one."""

_OF_ONE_CALLER = 8
"""Most requests a process of one caller at a time, which bounds what bodies of one caller take of memory."""

_TOGETHER, _SHORT, _SECONDS_TOGETHER = 32, 4096, 1.0
"""Most texts that are looked at together, bytes of each, and seconds of CPU that they are to take: so few that no flag
goes without a proof that it would have by itself, and that nobody waits long for their end.
"""

_CALLERS = 4096
"""Callers whose turns are remembered before those are forgotten that have none to wait for."""

_GATHERING = 0.13
"""Part of its tick that a short text waits for others: one takes a process nearly as long as ten."""

_OF_A_TEXT = 0.05
"""Part of the longest time of a text (`seconds`) that it may take of a core. Others wait for that long, since a process
does nothing else meanwhile; and where a core has up to twenty times as much to do, the text is answered in time.
"""

_BUSY = "The detector is too busy. Ask again in a minute."
_NOT_READY = "The detector is not ready. Ask again in a minute."


class Costs(NamedTuple):
    """Seconds of CPU that texts take by their bytes, measured of some sizes; both ascend."""

    sizes: Sequence[int]
    measured: Sequence[float]

    def seconds(self, size: int) -> float:
        """Return the seconds that a text of so many bytes takes, or less; a short one takes a while, too."""
        return float(np.interp(size, self.sizes, self.measured))

    def most_bytes(self, seconds: float) -> int:
        """Return the bytes of a text that takes so many seconds, at most those that were measured."""
        return int(np.interp(seconds, self.measured, self.sizes))


class Finding(NamedTuple):
    """What a process found in a text.

    technique: public name, None where no mark is found; grams: keyed n-grams; marked: those of what carries a mark; the
    rest as in DetectorAnswer.
    """

    result: DetectorResult
    technique: str | None
    grams: NDArray[np.uint64]
    marked: NDArray[np.uint64]
    p_class: int | None
    parts: tuple[Part, ...]
    user: str | None


@dataclass(frozen=True)
class ServedScan:
    """What a detector serves: the keys and rules of a scan, as its registry is now. Holds no secret.

    check: with the keys that are served; scan: its configuration; night: date of the filter of common n-grams, None:
    nothing is left out; techniques: public names; audited: day of the oldest audit among the keys, None: one has none
    on record; withheld: ids of keys that are served to nobody; known: ids of all keys of its registry.
    """

    check: TextCheck
    scan: Path
    factor: float
    night: date | None
    names: bool
    techniques: tuple[str, ...]
    audited: str | None
    withheld: tuple[str, ...]
    known: tuple[str, ...]

    @classmethod
    def of(cls, config: DetectorConfig, folder: Path) -> "ServedScan":
        """Read the configuration of a scan and its registry; open no key, but look that each secret can be read.

        folder: where relative paths start.

        Raises:
            Refused: one of them cannot be right, or no key may be served.
        """
        scan, night = folder / config.scan, datetime.now(UTC).date() if config.filter else None
        found = filter_of_config(scan, night) if night else None
        check, known = TextCheck.of_scan(scan, found.scan_filter if found else None)
        kept = tuple(key for key in check.keys if reach_of(format_of(key).rule()) >= LEAST_CONTEXT)
        if not kept:
            raise Refused(
                f"{scan}: all keys read fewer than {LEAST_CONTEXT} previous tokens; these are served to nobody"
            )
        for key in kept:
            check_secret(check.registry, key)
        if config.names == "experts":
            open_users(check.registry)
        days = [key.admission.audited_at.date().isoformat() if key.admission else None for key in kept]
        return cls(
            check=replace(check, keys=kept),
            scan=scan,
            factor=config.factor,
            night=night if found else None,
            names=config.names == "experts",
            techniques=tuple(dict.fromkeys(format_of(key).title for key in kept)),
            audited=None if None in days else min(filter(None, days)),
            withheld=tuple(key.key_id for key in check.keys if key not in kept),
            known=known,
        )

    @property
    def false_positive_rate(self) -> float:
        """Share of unmarked texts, at most, of which the answer is `found`."""
        return self.check.rules.false_positive_rate / self.factor


class Scorer:
    """Looks at texts, within a process of its own.

    Args:
        served: keys and rules.
        secret: the server's, for keyed sketches.

    Raises:
        BrickscanError: a key, a tokenizer or the filter cannot be opened.
    """

    def __init__(self, served: ServedScan, secret: bytes) -> None:
        check = served.check
        found = filter_of_config(served.scan, served.night) if served.night else None
        if found is not None:
            check = replace(check, rules=replace(check.rules, ngram_filter=found.open()))
        self._served, self._key = served, gram_key(secret)
        self._titles = {key.key_id: format_of(key).title for key in check.keys}
        self.names = _Names(replace(check, record=users_of_config(served.scan))) if served.names else _Nobody()
        self._opened = OpenedCheck(check, self.names)
        self._opened.compile()
        keyed_grams("a text of some bytes", self._key)

    def find_marks(self, texts: Sequence[bytes]) -> list[Finding]:
        """What is found in texts, UTF-8."""
        found, rules = self._opened.score_batch(texts), self._served.check.rules
        rows = found.verdicts.select(_READ).to_pylist()
        classes = p_class(found.verdicts["log10_p_global"]).to_pylist()
        if len(rows) != len(texts):
            raise ValueError("a text cannot be read")
        parts = defaultdict[int, list[Part]](list)
        for span in found.spans.select(["row", "char_from", "char_to"]).to_pylist():
            parts[span["row"]].append(Part(begin=span["char_from"], end=span["char_to"]))
        read = [read_text(raw)[0] or "" for raw in texts]
        findings = []
        for place, (normal, row) in enumerate(zip(normalise_all(read), rows, strict=True)):
            result = result_of(row, rules.false_positive_rate, self._served.factor)
            grams = keyed_grams(normal, self._key)
            marked = grams[:0] if result in (DetectorResult.NOT_FOUND, DetectorResult.TOO_SHORT) else grams
            if parts[place] and len(marked):
                pieces = normalise_all([read[place][part.begin : part.end] for part in parts[place]])
                marked = np.unique(np.concatenate([keyed_grams(piece, self._key) for piece in pieces]))
            finding = Finding(result, None, grams, marked, classes[place], (), None)
            if result == DetectorResult.FOUND:
                user = row["user_id"] if self._served.names and row["naming"] == Naming.NAMED else None
                title = self._titles[row["key_id"]]
                finding = finding._replace(technique=title, parts=tuple(parts[place]), user=user)
            findings.append(finding)
        return findings

    def measure(self, seconds: float, most: int) -> Costs:
        """Measure texts of more and more bytes, up to `most`, until one takes `seconds`.

        They have as many tokens as texts of these bytes can have.
        """
        sizes, measured, size = list[int](), [0.0], 1000
        signs = np.random.default_rng(0).integers(ord("!"), ord("~") + 1, most, dtype=np.uint8).tobytes()
        while not sizes or (measured[-1] < seconds and sizes[-1] < most):
            took = list[float]()
            while len(took) < 3 and sum(took) < 0.1:
                began = time.process_time()
                self.find_marks([signs[:size]])
                took.append(time.process_time() - began)
            sizes.append(min(size, most))
            measured.append(max(min(took), measured[-1], 1e-6))
            size = int(size * min(2, 1.1 * seconds / measured[-1]))  # a text far beyond `seconds` would delay the start
        return Costs(sizes, measured[1:])


_READ = ("status", "log10_p_global", "proof", "flagged", "key_id", "naming", "user_id")
"""Columns of VERDICTS that decide a finding: making Python's values of all takes longer than scoring."""


def result_of(row: Mapping[str, Any], rate: float, factor: float) -> DetectorResult:
    """What is said of a text, by its row of VERDICTS: found or not only where p is a factor from the rate."""
    log10_p, margin = row["log10_p_global"], math.log10(factor)
    if row["status"] in ("too_short", "filtered"):
        return DetectorResult.TOO_SHORT
    if log10_p is None or row["proof"] == Proof.DIFFERS:
        return DetectorResult.CANNOT_TELL
    if row["flagged"] and log10_p <= math.log10(rate) - margin:
        return DetectorResult.FOUND
    if not row["flagged"] and log10_p >= min(math.log10(rate) + margin, 0.0):
        return DetectorResult.NOT_FOUND
    return DetectorResult.CANNOT_TELL


class _Names:
    """Names users as they are now.

    Attributes:
        refusal: why nobody could be named the last time; it depends on the registry and holds no part of a text.
    """

    def __init__(self, check: TextCheck) -> None:
        self._holders = VerifiedHolders(check.registry, [key.key_id for key in check.keys], check.record)
        self.refusal = ""

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """See NamesUsers."""
        try:
            return self._holders.naming(key_id, message, at)
        except BrickscanError as error:
            self.refusal = str(error)
            raise


class _Nobody:
    """No message is anybody's: for a detector that names nobody, whatever the users table holds."""

    refusal = ""

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """See NamesUsers."""
        return NamedUser(Naming.UNALLOCATED, None, None)


_scorer: Scorer | None = None
"""The scorer of this process."""

_why_not = ""
"""Why this process has no scorer."""


def _begin(served: ServedScan, secret: bytes) -> None:
    global _scorer, _why_not
    confine_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its processes
    try:
        _scorer = Scorer(served, secret)
    except BrickscanError as error:
        _why_not = str(error)
    gc.freeze()  # else the collector would look through all of it, while a text waits
    with open(os.devnull, "wb") as nothing:  # libraries that panic write a part of the text
        for descriptor in (1, 2):
            os.dup2(nothing.fileno(), descriptor)


def _opening() -> str:
    """Return why this process has no scorer; empty: it has one."""
    return _why_not


def find_marks(texts: Sequence[bytes]) -> list[Finding] | None:
    """What is found in texts, in a process of the pool; None: they cannot be looked at."""
    with contextlib.suppress(BaseException):  # a traceback could hold a part of a text; a Rust panic is no Exception
        return _scorer.find_marks(texts) if _scorer else None
    return None


def _find_marks_of(texts: Sequence[bytes]) -> tuple[list[Finding | None], float, str]:
    """What is found in texts, which are looked at together, or where that fails each by itself.

    Returns:
        The findings; seconds of CPU; why nobody could be named the last time, empty: it was not so.
    """
    if _scorer is None:  # raised, so that another process takes the place of this one
        raise ValueError("no key is open")
    began = time.process_time()
    found: Sequence[Finding | None] | None = find_marks(texts)
    if found is None and len(texts) > 1:
        found = [alone[0] if (alone := find_marks([text])) else None for text in texts]
    return [None] if found is None else list(found), time.process_time() - began, _scorer.names.refusal


def _measure(seconds: float, most: int) -> Costs:
    """What texts take, in a process of the pool."""
    if _scorer is None:
        raise ValueError("no key is open")
    return _scorer.measure(seconds, most)


class NotLookedAt(Unavailable):
    """Work on a text did not end well.

    why: for the operator; empty: it is not known, or could hold a part of the text.
    """

    def __init__(self, why: str = "") -> None:
        super().__init__("This text could not be looked at. Ask again, or with less of it.")
        self.why = why


Found = tuple[Finding, ServedScan]


@dataclass(eq=False)
class _Job:
    """A text that waits for a process. begins: loop time from which it is looked at; rank: its place in turns."""

    caller: Caller
    text: bytes
    seconds: float
    begins: float
    rank: float
    may_join: bool
    answer: asyncio.Future[Found | Unavailable]
    patience: asyncio.TimerHandle | None = None

    def end(self, answer: Found | Unavailable) -> None:
        """Answer, unless the caller has gone."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def leave(self) -> None:
        """Note that the caller has gone, or has the answer."""
        self.answer.cancel()
        self.text = b""
        if self.patience:
            self.patience.cancel()


@dataclass
class _Turns:
    """Jobs that wait, in the order of turns."""

    jobs: list[tuple[float, int, _Job]] = field(default_factory=list)
    begins: float = math.inf
    _now: float = 0.0
    _lasts: dict[Caller, float] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _callers: Counter[Caller] = field(default_factory=Counter)

    def rank(self, caller: Caller, seconds: float) -> float:
        """Where a caller's next job stands: by what the jobs before it, and it, are to take of the caller's share."""
        if len(self._lasts) > _CALLERS:
            self._lasts = {one: last for one, last in self._lasts.items() if last > self._now}
        self._lasts[caller] = max(self._now, self._lasts.get(caller, 0.0)) + seconds
        return self._lasts[caller]

    def push(self, job: _Job) -> None:
        heapq.heappush(self.jobs, (job.rank, next(self._numbers), job))
        self._callers[job.caller] += 1
        self.begins = min(self.begins, job.begins)

    def group(self) -> list[_Job]:
        """Take whose turn it is, with what may join it; nothing if nothing waits."""
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
            if job.answer.done():  # its caller has gone
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
    """Processes that score texts. Short texts that wait for a process are looked at together, which costs less.

    Args:
        workers: how many.
        seconds: longest time that a text waits, and longest time that a process takes.
        most: bytes of a text.
        secret: the server's.
        charge: takes who caused seconds of CPU beyond those that a text was to take, and how many.
    """

    def __init__(
        self, workers: int, seconds: float, most: int, secret: bytes, charge: Callable[[Caller, float], None]
    ) -> None:
        self._workers, self._seconds, self._most, self._secret, self._charge = workers, seconds, most, secret, charge
        self._served: ServedScan | None = None
        self._turns = _Turns()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers: Counter[Caller] = Counter()
        self.processes: set[ProcessPoolExecutor] = set()
        self.costs = Costs([most], [seconds * _OF_A_TEXT])
        self.scoring = self.killed = 0

    @property
    def waiting(self) -> int:
        """Number of texts that wait for a process."""
        return len(self._turns.jobs)

    @property
    def most_bytes(self) -> int:
        """Most bytes of a text: as many as take a part of the longest time, however many tokens they are."""
        return self.costs.most_bytes(self._seconds * _OF_A_TEXT)

    async def serve(self, served: ServedScan) -> None:
        """Score as `served` says from now on; returns once the processes have opened the keys, and costs are measured.

        Raises:
            Unavailable: they cannot be opened.
        """
        begun = [self._new(served) for _ in range(self._workers)]
        with contextlib.ExitStack() as ending:
            for each in begun:
                ending.callback(self._end, each)
            try:
                opened = await asyncio.gather(*(asyncio.wrap_future(each.submit(_opening)) for each in begun))
                if any(opened):
                    raise Unavailable(max(opened))
                measuring = begun[0].submit(_measure, self._seconds * _OF_A_TEXT, self._most)
                self.costs = await asyncio.wrap_future(measuring)
            except BrokenProcessPool:
                raise Unavailable("the keys cannot be opened") from None
            ending.pop_all()
        self._served = served
        self._changed.set()
        for each in begun:
            task = asyncio.create_task(self._work(served, each))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End the processes, each after what it scores; who waits is refused."""
        self._served = None
        self._changed.set()
        for *_, job in self._turns.jobs:
            job.end(Unavailable(_NOT_READY))

    def kill(self) -> None:
        """End the processes now."""
        self.stop()
        for process in list(self.processes):
            self._end(process)

    async def find_marks(self, caller: Caller, texts: Sequence[bytes]) -> list[Found | Unavailable]:
        """What a process finds in each text, and what that process serves; or why nobody looked at it.

        Where this is cancelled, texts that wait are left out, and one that a process looks at takes no longer than
        opening another process would.
        """
        if not texts:
            return []
        if self._served is None:
            return [Unavailable(_NOT_READY)] * len(texts)
        if self._callers[caller] >= _OF_ONE_CALLER * self._workers:
            return [Unavailable("You ask too much at a time: wait for answers before you ask on.")] * len(texts)
        loop = asyncio.get_running_loop()
        few = len(texts) == 1 and self._callers[caller] < _OF_ONE_CALLER // 2
        jobs = []
        for text in texts:
            gathers = few and len(text) <= _SHORT  # else who asks much at a time would be refused
            begins = loop.time() + _GATHERING * tick_of(len(text)) if gathers else 0.0
            seconds = self.costs.seconds(len(text))
            rank = self._turns.rank(caller, seconds)
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
            self._callers += Counter()  # keeps those above 0 alone

    def _wait(self, job: _Job) -> None:
        job.patience = asyncio.get_running_loop().call_later(self._seconds, job.end, Unavailable(_BUSY))
        self._turns.push(job)
        self._changed.set()

    async def _work(self, served: ServedScan, process: ProcessPoolExecutor) -> None:
        """Have a process score what waits, for as long as this is served."""
        loop = asyncio.get_running_loop()
        try:
            while served is self._served:
                if self._turns.begins > loop.time():
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(self._turns.begins):
                            await self._changed.wait()
                elif group := self._turns.group():
                    self.scoring += 1
                    process = await self._score(group, served, process)
                    self.scoring -= 1
        finally:
            self._end(process)

    async def _score(
        self, group: Sequence[_Job], served: ServedScan, process: ProcessPoolExecutor
    ) -> ProcessPoolExecutor:
        """Answer jobs; returns the process, or the one that took the place of an ended one."""
        loop = asyncio.get_running_loop()
        began, expected = loop.time(), sum(job.seconds for job in group)
        for job in group:
            if job.patience:
                job.patience.cancel()
        try:
            if process not in self.processes:
                process = self._new(served)
            submitted = asyncio.wrap_future(process.submit(_find_marks_of, [job.text for job in group]))
            findings, seconds, refusal = await asyncio.wait_for(submitted, self._seconds)
            for job, finding in zip(group, findings, strict=True):
                job.end(NotLookedAt(refusal) if finding is None else (finding, served))
                if seconds > expected:
                    self._charge(job.caller, (seconds - expected) * job.seconds / expected)
        except Exception:  # whatever it was: who waits gets an answer, and a process goes on
            self.killed += 1
            self._end(process)
            for job in group:
                job.may_join = False
                if len(group) > 1 and self._served is not None:  # each by itself, so that none is lost by another
                    self._wait(job)
                else:
                    job.end(NotLookedAt())
                    if (more := loop.time() - began - job.seconds) > 0:
                        self._charge(job.caller, more)
            self._changed.set()  # this process may serve no more, and another one takes them
            with contextlib.suppress(Exception):  # the next text tries again
                process = self._new(served)
                process.submit(_opening)  # so that it opens the keys now
        return process

    def _new(self, served: ServedScan) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        process = ProcessPoolExecutor(1, spawn, _begin, (served, self._secret))
        self.processes.add(process)
        return process

    def _end(self, process: ProcessPoolExecutor) -> None:
        self.processes.discard(process)
        for each in list((process._processes or {}).values()):
            each.kill()
        process.shutdown(wait=False, cancel_futures=True)

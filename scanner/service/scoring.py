"""Processes that score texts for the detector: one that is killed, or too slow, costs the request it works on alone."""

import asyncio
import contextlib
import gc
import math
import multiprocessing
import os
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.one_text import OpenedCheck, TextCheck
from scanner.detection.rows import p_class
from scanner.detection.sketches import gram_key, keyed_sketches
from scanner.errors import Refused
from scanner.input.documents import read_text
from scanner.registry import Holders, NamedUser, check_secret
from scanner.registry.ledger import open_users
from scanner.results.filters import filter_of_config
from scanner.service.processes import Unavailable, confine_process
from scanner.text.normal_form import normalise_all
from scanner.watermark.formats import format_of
from scanner.watermark.positions import reach_of
from schemas.service import DetectorConfig, DetectorResult, Part, tick_of
from schemas.words import Naming, Proof

LEAST_CONTEXT = 2
"""Fewest previous tokens that a served key reads: answers soon give away the lists of keys that read none or one."""

_WAITING = 64
"""Most requests a process that wait for their turn; beyond, the detector is busy."""

_OF_ONE_CALLER = 8
"""Most requests a process of one caller at a time, so that nobody has the processes to himself."""

_TOGETHER, _SHORT = 32, 4096
"""Most texts that are looked at together, and bytes of each: so few that no flag goes without a proof that it would
have by itself.
"""

_GATHERING = 0.13
"""Part of its tick that a short text waits for others: one takes a process nearly as long as ten."""

_NOT_LOOKED_AT = "This text could not be looked at. Ask again, or with less of it."


class Finding(NamedTuple):
    """What a process found in a text.

    technique: public name, None where no mark is found; passages: keyed sketches; the rest as in DetectorAnswer.
    """

    result: DetectorResult
    technique: str | None
    passages: Sequence[NDArray[np.uint64]]
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
        self._opened = OpenedCheck(check, _HoldersNow(check) if served.names else _Nobody())
        self._opened.compile()
        keyed_sketches("a text of some bytes", self._key)

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
        normal = normalise_all([read_text(raw)[0] or "" for raw in texts])
        findings = []
        for place, (text, row) in enumerate(zip(normal, rows, strict=True)):
            result = result_of(row, rules.false_positive_rate, self._served.factor)
            finding = Finding(result, None, keyed_sketches(text, self._key), classes[place], (), None)
            if result == DetectorResult.FOUND:
                user = row["user_id"] if self._served.names and row["naming"] == Naming.NAMED else None
                title = self._titles[row["key_id"]]
                finding = finding._replace(technique=title, parts=tuple(parts[place]), user=user)
            findings.append(finding)
        return findings


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


class _HoldersNow:
    """Who holds a message as of now: users who were added a moment ago are known."""

    def __init__(self, check: TextCheck) -> None:
        self._registry, self._key_ids = check.registry, [key.key_id for key in check.keys]

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """See NamesUsers."""
        return Holders.load(self._registry, self._key_ids).naming(key_id, message, at)


class _Nobody:
    """No message is anybody's: for a detector that names nobody, whatever the users table holds."""

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """See NamesUsers."""
        return NamedUser(Naming.UNALLOCATED, None, None)


_scorer: Scorer | None = None
"""The scorer of this process."""


def _begin(served: ServedScan, secret: bytes) -> None:
    global _scorer
    confine_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its processes
    _scorer = Scorer(served, secret)
    gc.freeze()  # else the collector would look through all of it, while a text waits
    with open(os.devnull, "wb") as nothing:  # libraries that panic write a part of the text
        for descriptor in (1, 2):
            os.dup2(nothing.fileno(), descriptor)


def find_marks(texts: Sequence[bytes]) -> list[Finding] | None:
    """What is found in texts, in a process of the pool; None: they cannot be looked at."""
    with contextlib.suppress(BaseException):  # a traceback could hold a part of a text; a Rust panic is no Exception
        return _scorer.find_marks(texts) if _scorer else None
    return None


def _find_marks_of(jobs: Sequence[Sequence[bytes]]) -> list[list[Finding] | None]:
    """What is found in the texts of each job, which are looked at together, or where that fails job by job."""
    found = find_marks([text for texts in jobs for text in texts])
    if found is None:
        return [find_marks(texts) for texts in jobs] if len(jobs) > 1 else [None]
    findings = iter(found)
    return [list(islice(findings, len(texts))) for texts in jobs]


@dataclass(eq=False)
class _Job:
    """Texts that wait for a process from `begins` to `ends`, loop times. may_join: be looked at with others."""

    texts: Sequence[bytes]
    begins: float
    ends: float
    answer: asyncio.Future[tuple[list[Finding], ServedScan]]
    may_join: bool

    def refuse(self, why: str) -> None:
        """Answer that the texts are not looked at, unless the caller has gone."""
        if not self.answer.done():
            self.answer.set_exception(Unavailable(why))


class ScoringPool:
    """Processes that score requests. Short texts that wait for a process are looked at together, which costs less.

    Args:
        workers: how many.
        seconds: longest time that a request waits, and longest time that a process takes.
        secret: the server's.
    """

    def __init__(self, workers: int, seconds: float, secret: bytes) -> None:
        self._workers, self._seconds, self._secret = workers, seconds, secret
        self._served: ServedScan | None = None
        self._jobs: deque[_Job] = deque()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._callers: Counter[Hashable] = Counter()
        self.processes: set[ProcessPoolExecutor] = set()
        self.scoring = self.killed = 0

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a process."""
        return len(self._jobs)

    async def serve(self, served: ServedScan) -> None:
        """Score as `served` says from now on; returns once the processes have opened the keys.

        Raises:
            Unavailable: they cannot be opened.
        """
        begun = [self._new(served) for _ in range(self._workers)]
        with contextlib.ExitStack() as ending:
            for each in begun:
                ending.callback(self._end, each)
            try:
                await asyncio.gather(*(asyncio.wrap_future(each.submit(os.getpid)) for each in begun))
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
        while self._jobs:
            self._jobs.popleft().refuse("The detector is not ready. Ask again in a minute.")

    async def find_marks(self, caller: Hashable, texts: Sequence[bytes]) -> tuple[list[Finding], ServedScan]:
        """What a process finds in texts, and what that process serves.

        Raises:
            Unavailable: the process was killed or took too long, the texts cannot be looked at, too many wait, or
                nothing is served.
        """
        if self._served is None or self.waiting >= _WAITING * self._workers:
            raise Unavailable("The detector is not ready, or too busy. Ask again in a minute.")
        if self._callers[caller] >= _OF_ONE_CALLER * self._workers:
            raise Unavailable("You ask too much at a time: wait for answers before you ask on.")
        loop = asyncio.get_running_loop()
        short, now = len(texts) == 1 and len(texts[0]) <= _SHORT, loop.time()
        few = short and self._callers[caller] < _OF_ONE_CALLER // 2  # else who asks much at a time would be refused
        begins = now + _GATHERING * tick_of(len(texts[0])) if few else now
        job = _Job(texts, begins, now + self._seconds, loop.create_future(), short)
        self._jobs.append(job)
        self._changed.set()
        self._callers[caller] += 1
        try:
            return await job.answer
        finally:
            self._callers[caller] -= 1
            self._callers += Counter()  # keeps those above 0 alone

    async def _work(self, served: ServedScan, process: ProcessPoolExecutor) -> None:
        """Have a process score what waits, for as long as this is served."""
        loop = asyncio.get_running_loop()
        try:
            while served is self._served:
                begins = min((job.begins for job in self._jobs), default=math.inf)
                if begins > loop.time():
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(begins):
                            await self._changed.wait()
                elif group := self._next():
                    self.scoring += 1
                    process = await self._score(group, served, process)
                    self.scoring -= 1
        finally:
            self._end(process)

    def _next(self) -> list[_Job]:
        """What waits longest, with what may join it; nothing if nothing waits."""
        group, now = list[_Job](), asyncio.get_running_loop().time()
        while self._jobs and (not group or (group[0].may_join and self._jobs[0].may_join and len(group) < _TOGETHER)):
            job = self._jobs.popleft()
            if job.ends < now:
                job.refuse("The detector is too busy. Ask again in a minute.")
            elif not job.answer.done():  # its caller has gone
                group.append(job)
        return group

    async def _score(
        self, group: Sequence[_Job], served: ServedScan, process: ProcessPoolExecutor
    ) -> ProcessPoolExecutor:
        """Answer jobs; returns the process, or the one that took the place of an ended one."""
        try:
            if process not in self.processes:
                process = self._new(served)
            submitted = asyncio.wrap_future(process.submit(_find_marks_of, [job.texts for job in group]))
            for job, findings in zip(group, await asyncio.wait_for(submitted, self._seconds), strict=True):
                if findings is None:
                    job.refuse(_NOT_LOOKED_AT)
                elif not job.answer.done():  # its caller has gone
                    job.answer.set_result((findings, served))
        except Exception:  # whatever it was: who waits gets an answer, and a process goes on
            self.killed += 1
            self._end(process)
            for job in group:
                job.may_join = False
                if len(group) > 1 and self._served is not None:  # each by itself, so that none is lost by another
                    self._jobs.append(job)
                else:
                    job.refuse(_NOT_LOOKED_AT)
            self._changed.set()  # this process may serve no more, and another one takes them
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

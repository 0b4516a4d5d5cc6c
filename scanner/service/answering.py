"""Answer texts for the detector: texts in, results, reports and refusals out. Charge budgets, and log metadata.

An answer is a function of the text, the registry and the rules. It depends neither on the caller nor on earlier
questions. It is sent at one of a few times of its length class, so its time does not reveal the result.
"""

import asyncio
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge

from scanner.errors import BrickscanError, Refused
from scanner.registry.keys_file import read_published
from scanner.registry.secrets import new_secret_file, read_secret
from scanner.service.budget import Budget, BudgetSpent, Caller, Outcome, Payment
from scanner.service.detector_log import DetectorLog
from scanner.service.known_registry import refuse_older
from scanner.service.processes import Unavailable
from scanner.service.scoring import Finding, ServedScan
from scanner.service.scoring_pool import ScoringFailed, ScoringPool, ServedFinding
from scanner.service.signing import Signer, make_folder
from schemas.service import (
    MEANINGS,
    SPREAD,
    DetectorAnswer,
    DetectorConfig,
    DetectorError,
    DetectorResult,
    Statement,
    tick_of,
)

SECONDS_BETWEEN_LOOKS = 1.0
"""Seconds between two checks of the registry. If the registry becomes unreadable, answers continue at most so long."""

Result = TypeVar("Result")

_DOUBLINGS = 5
"""Largest number of times that the time of an answer is doubled."""

_KEY_FILE = "secret"
_REGISTRY_FILE = "registry.json"
_VERSION = importlib.metadata.version("brickscan")


class Answers:
    """Answers texts by the rules of a scan.

    Args:
        config: configuration of the detector.
        folder: folder that the configuration's relative paths start from.
        tell: called with a line on each change. No line contains a part of a text.

    Attributes:
        name: the detector's public address. The server sets it if none is configured.

    Raises:
        BrickscanError: configuration, registry or folder cannot be right, or no key signs reports.
    """

    def __init__(self, config: DetectorConfig, folder: Path, tell: Callable[[str], None]) -> None:
        self.config, self.state, self._folder, self._tell = config, folder / config.state, folder, tell
        self.name = config.name or ""
        make_folder(self.state)
        if not (self.state / _KEY_FILE).exists():
            new_secret_file(self.state / _KEY_FILE)
        secret = read_secret(f"file:{_KEY_FILE}", self.state)
        self.served: ServedScan | None = None
        self._told = ""
        self._signer = Signer(self.state)
        self.first = self._read_state()
        self.budget = Budget(self.state, secret, config.budget)
        self.log = DetectorLog(self.state / "log", config.log_days, config.log_bytes)
        self.pool = ScoringPool(config.workers, config.seconds, config.most_bytes, secret, self.charge)
        self.metrics = CollectorRegistry()
        self._thread = ThreadPoolExecutor(1)  # for the budget: a commit may wait for the disk, and answers must not
        self._answers = Counter(
            "brickscan_detector_answers",
            "Answers by result and class of caller",
            ["result", "caller"],
            registry=self.metrics,
        )
        self._refused = Counter(
            "brickscan_detector_refusals", "Texts without an answer", ["why"], registry=self.metrics
        )
        for name, description, value in (
            ("ready", "Whether texts are answered", lambda: self.served is not None),
            ("waiting", "Requests waiting for a process", lambda: self.pool.waiting),
            ("killed", "Processes that died while handling a request", lambda: self.pool.killed),
        ):
            Gauge(f"brickscan_detector_{name}", description, registry=self.metrics).set_function(value)

    async def follow(self) -> None:
        """Follow the registry for ever: use its changes, and stop answers if it cannot be read."""
        trouble = ""
        while True:
            try:
                served = await asyncio.to_thread(self._read_state)
                if served != self.served:
                    await self.pool.serve(served)
                    self._tell(f"event=serving keys={len(served.check.keys)} withheld={len(served.withheld)}")
                self.served, reason = served, ""
            except (BrickscanError, Unavailable, OSError) as error:
                reason = str(error)
            except Exception as error:  # otherwise nothing would follow the registry, and answers would continue
                reason = type(error).__name__
            if reason:
                self.pool.stop()
                self.served = None
            if reason and reason != trouble:
                self._tell(f"event=not_serving why={json.dumps(reason)}")
            trouble = reason
            await self._in_thread(self._forget)
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    def _read_state(self) -> ServedScan:
        """Read what is served now.

        Raises:
            BrickscanError: as `ServedScan.of` or `refuse_older`, or no report can be signed.
        """
        served = ServedScan.of(self.config, self._folder)
        refuse_older(served.check.registry, served.key_ids, self.state / _REGISTRY_FILE, served.check.keys)
        self._signer.sign(functools.partial(self._statement, served, b"", DetectorResult.TOO_SHORT, None))
        return served

    def _forget(self) -> None:
        """Delete data that is too old, even if no requests come."""
        try:
            self.budget.begin_window()
            self.log.expire()
        except (OSError, sqlite3.Error) as error:
            self._tell(f"event=fault path=expire kind={type(error).__name__}")

    def close(self) -> None:
        """End the processes, and close the tables."""
        self.pool.kill()
        self._thread.shutdown()
        self.budget.close()

    @property
    def most_bytes(self) -> int:
        """Return the largest number of bytes of a text."""
        return min(self.config.most_bytes, self.pool.most_bytes)

    def charge(self, caller: Caller, seconds: float) -> None:
        """Charge a caller for seconds of CPU, at once."""

        def pay() -> None:
            with contextlib.suppress(sqlite3.Error):  # for example on a full disk, where nothing is answered anyway
                self.budget.pay_more(caller, seconds)

        with contextlib.suppress(RuntimeError):  # the server is ending
            self._thread.submit(pay)

    async def answer(self, texts: Sequence[bytes], caller: Caller) -> list[DetectorAnswer | DetectorError]:
        """Return the answer to each text, UTF-8, or the reason why there is none.

        Raises:
            Unavailable: none of the texts could be scored.
        """
        began = asyncio.get_running_loop().time()
        digests = [self.budget.digest(text) for text in texts]
        part = int.from_bytes(self.budget.digest(b"".join(digests))[:4]) / 2**32
        answers = await self._answer(texts, digests, caller)
        await _leave(began, sum(map(len, texts)), part)
        return answers

    async def _answer(
        self, texts: Sequence[bytes], digests: Sequence[bytes], caller: Caller
    ) -> list[DetectorAnswer | DetectorError]:
        seconds = [self.pool.costs.seconds(len(text)) for text in texts]
        payments = await self._in_thread(self.budget.pay, caller, list(zip(digests, seconds, strict=True)))
        paid = {place: payment for place, payment in enumerate(payments) if isinstance(payment, Payment)}
        findings = dict(zip(paid, await self.pool.find_marks(caller, [texts[place] for place in paid]), strict=True))
        settled_places = [place for place, finding in findings.items() if not isinstance(finding, ScoringFailed)]
        outcomes = [_outcome(paid[place], findings[place]) for place in settled_places]
        refusals = dict(zip(settled_places, await self._in_thread(self.budget.settle, outcomes), strict=True))
        refusals |= {place: payment for place, payment in enumerate(payments) if isinstance(payment, BudgetSpent)}
        answers, entries = list[DetectorAnswer | DetectorError](), list[Mapping[str, object]]()
        unavailable = [finding for finding in findings.values() if isinstance(finding, Unavailable)]
        self._tell_why(unavailable)
        self._refused.labels("unavailable").inc(len(unavailable))
        if len(unavailable) == len(texts):
            raise unavailable[0]
        for place, text in enumerate(texts):
            if refusal := refusals.get(place):
                answers.append(self.refusal(refusal))
            elif isinstance(finding := findings[place], Unavailable):
                answers.append(DetectorError(detail=str(finding), retry_after=60))
            else:
                answers.append(self._answered(text, *finding, caller))
                entries.append(self._entry(digests[place], *finding, caller))
        self.log.add(entries)
        return answers

    def _tell_why(self, unavailable: Sequence[Unavailable]) -> None:
        """Tell once why texts could not be scored."""
        for error in unavailable:
            if isinstance(error, ScoringFailed) and error.why not in ("", self._told):
                self._told = error.why
                self._tell(f"event=not_naming why={json.dumps(error.why)}")

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:  # noqa: ANN401
        """Return the result of a function that runs in the budget's thread."""
        call = functools.partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _entry(self, digest: bytes, finding: Finding, served: ServedScan, caller: Caller) -> Mapping[str, object]:
        """Return the log's entry for an answer."""
        caller_class = "expert" if caller.expert else "anybody"
        self._answers.labels(finding.result, caller_class).inc()
        name_fields = {"named_to": caller.name} if caller.expert and finding.user is not None else {}
        outcome = {"result": finding.result, "techniques": served.techniques}
        return {"digest": digest.hex(), "caller": caller_class} | outcome | name_fields

    def _answered(self, text: bytes, finding: Finding, served: ServedScan, caller: Caller) -> DetectorAnswer:
        report = self._signer.sign(functools.partial(self._statement, served, text, finding.result, finding.technique))
        numbers = {"score": 0.0, "p_value": 1.0, "num_scored_tokens": 0} if self.config.numbers else {}
        for_experts = (
            {"p_class": finding.p_class, "parts": finding.parts, "user": finding.user} if caller.expert else {}
        )
        return DetectorAnswer(
            result=finding.result,
            is_watermarked=finding.result == DetectorResult.FOUND,
            technique=finding.technique,
            meaning=MEANINGS[finding.result],
            report=report,
            **numbers,
            **for_experts,
        )

    def refusal(self, spent: BudgetSpent) -> DetectorError:
        """Count a text that is not answered, and return the reason."""
        self._refused.labels("budget").inc()
        minutes = math.ceil(spent.seconds / 60)
        advice = f"Come back in {minutes} minutes" if minutes < 120 else f"Come back in {math.ceil(minutes / 60)} hours"
        return DetectorError(detail=f"{spent.why} {advice}.", retry_after=spent.seconds)

    def _statement(
        self,
        served: ServedScan,
        text: bytes,
        result: DetectorResult,
        technique: str | None,
        signing_key: str,
    ) -> Statement:
        return Statement(
            detector=self.name,
            signing_key=signing_key,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            text_sha256=hashlib.sha256(text).hexdigest(),
            result=result,
            techniques=served.techniques,
            technique=technique,
            commitments_head=self.commitments_head(),
            false_positive_rate=served.false_positive_rate,
            audited=served.audited,
            version=_VERSION,
        )

    def commitments_head(self) -> str | None:
        """Return the last head of the published list. None: no list is configured, or it is empty.

        Raises:
            Refused: the list cannot be read.
        """
        if self.config.commitments is None:
            return None
        path = self._folder / self.config.commitments
        try:
            return _last_head(path, os.stat(path).st_mtime_ns)
        except OSError as error:
            raise Refused(f"{path}: cannot be read ({error.strerror})") from None


@functools.lru_cache(maxsize=1)
def _last_head(path: Path, _changed: int) -> str | None:
    lines = read_published(path)
    return lines[-1].head if lines else None


def _outcome(payment: Payment, answer: ServedFinding | Unavailable) -> Outcome:
    """Return the budget's record of a text that was paid for."""
    if isinstance(answer, Unavailable):
        return Outcome(payment, None, np.empty(0, np.uint64), np.empty(0, np.uint64))
    finding, _ = answer
    return Outcome(payment, finding.result, finding.grams, finding.marked)


async def _leave(began: float, size: int, part: float) -> None:
    """Wait until a time of a length class, in bytes: its tick after the request, or twice that, …, or 32 times.

    After that, the times are whole multiples of 32 ticks, because doubling would be too long for texts that wait for
    long.

    A core that rests for long notices a tick later, by 0.1 ms. All answers therefore rest equally long before theirs.
    They leave later by a part of SPREAD, from 0 to 1, which is always the same for a text.
    """
    tick, loop = tick_of(size), asyncio.get_running_loop()
    took = loop.time() - began + SPREAD
    step = tick * 2 ** min(max(0, math.ceil(math.log2(took / tick))), _DOUBLINGS)
    leaves = began + step * math.ceil(took / step)
    await asyncio.sleep(leaves - SPREAD - loop.time())
    await asyncio.sleep(leaves + SPREAD * part - loop.time())

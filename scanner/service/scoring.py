"""Run the work of a process of the detector: open the keys, score texts, and measure the time that texts take."""

import contextlib
import gc
import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanner.detection.one_text import OpenedCheck, TextCheck
from scanner.detection.rows import p_class
from scanner.detection.sketches import gram_key, keyed_grams
from scanner.errors import BrickscanError, Refused
from scanner.filtering import filter_of_config
from scanner.input.documents import read_text
from scanner.looks.normalising import normalise_all
from scanner.registry import NamedUser, VerifiedHolders, check_secret
from scanner.registry.ledger import open_users
from scanner.results.registry_record import refuse_lost_events_of_config, users_of_config
from scanner.service.processes import confine_process
from scanner.watermark.formats import format_of
from scanner.watermark.positions import reach_of
from schemas.service import DetectorConfig, DetectorResult, Part
from schemas.words import Naming, Proof

LEAST_CONTEXT = 2
"""Fewest previous tokens that a served key reads. Answers would soon reveal the token lists of keys that read fewer."""


class Costs(NamedTuple):
    """Measured seconds of CPU of texts, by their size.

    sizes: sizes of the texts in bytes, ascending.
    measured: seconds for each size, ascending.
    """

    sizes: Sequence[int]
    measured: Sequence[float]

    def seconds(self, size: int) -> float:
        """Return an upper limit for the seconds of a text with so many bytes. Even a short text takes some time."""
        return float(np.interp(size, self.sizes, self.measured))

    def most_bytes(self, seconds: float) -> int:
        """Return the size of a text that takes so many seconds, in bytes, and at most the largest measured size."""
        return int(np.interp(seconds, self.measured, self.sizes))


class Finding(NamedTuple):
    """The finding of a process on a text.

    technique: public name. None: no mark is found.
    grams: keyed n-grams.
    marked: keyed n-grams of the part that carries a mark.

    The other fields are those of DetectorAnswer.
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
    """Everything that a detector serves: the keys and rules of a scan, and its registry as it is now.

    It has no secret.
    """

    check: TextCheck
    """The check with the keys that are served."""
    scan: Path
    """The scan's configuration."""
    factor: float
    night: date | None
    """Date of the filter of common n-grams. None: no n-gram is left out."""
    names: bool
    techniques: tuple[str, ...]
    """Public names."""
    audited: str | None
    """Day of the oldest audit among the keys. None: one of them has no audit on record."""
    withheld: tuple[str, ...]
    """Ids of keys that are never served."""
    key_ids: tuple[str, ...]
    """Ids of all keys of the registry."""

    @classmethod
    def of(cls, config: DetectorConfig, folder: Path) -> "ServedScan":
        """Read the configuration of a scan and its registry. Open no key, but check that each secret can be read.

        Args:
            config: configuration of the detector.
            folder: folder that relative paths start from.

        Raises:
            Refused: one of them cannot be right, or no key may be served.
        """
        scan, night = folder / config.scan, datetime.now(UTC).date() if config.filter else None
        night_filter = filter_of_config(scan, night) if night else None
        check, key_ids = TextCheck.of_scan(scan, night_filter.scan_filter if night_filter else None)
        served_keys = tuple(key for key in check.keys if reach_of(format_of(key).rule()) >= LEAST_CONTEXT)
        if not served_keys:
            raise Refused(f"{scan}: all keys read fewer than {LEAST_CONTEXT} previous tokens; such keys are not served")
        for key in served_keys:
            check_secret(check.registry, key)
        if config.names == "experts":
            open_users(check.registry)
        days = [key.admission.audited_at.date().isoformat() if key.admission else None for key in served_keys]
        return cls(
            check=replace(check, keys=served_keys),
            scan=scan,
            factor=config.factor,
            night=night if night_filter else None,
            names=config.names == "experts",
            techniques=tuple(dict.fromkeys(format_of(key).title for key in served_keys)),
            audited=None if None in days else min(filter(None, days)),
            withheld=tuple(key.key_id for key in check.keys if key not in served_keys),
            key_ids=key_ids,
        )

    @property
    def false_positive_rate(self) -> float:
        """Return the largest share of unmarked texts with the answer `found`."""
        return self.check.rules.false_positive_rate / self.factor


class Scorer:
    """Scores texts in a process of its own.

    Args:
        served: keys and rules.
        secret: the server's secret, for keyed sketches.

    Raises:
        BrickscanError: a key, a tokenizer or the filter cannot be opened.
    """

    def __init__(self, served: ServedScan, secret: bytes) -> None:
        check = served.check
        night_filter = filter_of_config(served.scan, served.night) if served.night else None
        if night_filter is not None:
            check = replace(check, rules=replace(check.rules, ngram_filter=night_filter.open()))
        self._served, self._key = served, gram_key(secret)
        self._titles = {key.key_id: format_of(key).title for key in check.keys}
        self.names = _Names(replace(check, record=users_of_config(served.scan))) if served.names else _Nobody()
        refuse_lost_events_of_config(served.scan, check.keys)
        self._opened = OpenedCheck(check, self.names, reader="detector")
        self._opened.compile()
        keyed_grams("a text of some bytes", self._key)

    @property
    def holds(self) -> bool:
        """Return whether texts may be scored. Once the lease on shown seeds has run out, none may be any more."""
        return self._opened.holds

    def find_marks(self, texts: Sequence[bytes]) -> list[Finding]:
        """Find marks in texts, UTF-8."""
        batch, rules = self._opened.score_batch(texts), self._served.check.rules
        rows = batch.verdicts.select(_READ).to_pylist()
        classes = p_class(batch.verdicts["log10_p_global"]).to_pylist()
        if len(rows) != len(texts):
            raise ValueError("a text cannot be read")
        parts = defaultdict[int, list[Part]](list)
        for span in batch.spans.select(["row", "char_from", "char_to"]).to_pylist():
            parts[span["row"]].append(Part(begin=span["char_from"], end=span["char_to"]))
        read = [read_text(raw)[0] or "" for raw in texts]
        findings = []
        for place, (normal, row) in enumerate(zip(normalise_all(read), rows, strict=True)):
            result = result_of(row, rules.false_positive_rate, self._served.factor)
            grams = keyed_grams(normal, self._key)
            marked_grams = grams[:0] if result in (DetectorResult.NOT_FOUND, DetectorResult.TOO_SHORT) else grams
            if parts[place] and len(marked_grams):
                pieces = normalise_all([read[place][part.begin : part.end] for part in parts[place]])
                marked_grams = np.unique(np.concatenate([keyed_grams(piece, self._key) for piece in pieces]))
            finding = Finding(result, None, grams, marked_grams, classes[place], (), None)
            if result == DetectorResult.FOUND:
                user = row["user_id"] if self._served.names and row["naming"] == Naming.NAMED else None
                title = self._titles[row["key_id"]]
                finding = finding._replace(technique=title, parts=tuple(parts[place]), user=user)
            findings.append(finding)
        return findings

    def measure(self, seconds: float, max_bytes: int) -> Costs:
        """Measure texts of growing size, up to `max_bytes`, until one takes `seconds`.

        They have as many tokens as texts of these sizes can have.
        """
        sizes, times, size = list[int](), [0.0], 1000
        signs = np.random.default_rng(0).integers(ord("!"), ord("~") + 1, max_bytes, dtype=np.uint8).tobytes()
        while not sizes or (times[-1] < seconds and sizes[-1] < max_bytes):
            took = list[float]()
            while len(took) < 3 and sum(took) < 0.1:
                began = time.process_time()
                self.find_marks([signs[:size]])
                took.append(time.process_time() - began)
            sizes.append(min(size, max_bytes))
            times.append(max(min(took), times[-1], 1e-6))
            size = int(size * min(2, 1.1 * seconds / times[-1]))  # a much larger text would delay the start
        return Costs(sizes, times[1:])


_READ = ("status", "log10_p_global", "proof", "flagged", "key_id", "naming", "user_id")
"""Columns of VERDICTS that decide a finding. Converting all columns to Python values takes longer than scoring."""


def result_of(row: Mapping[str, Any], rate: float, factor: float) -> DetectorResult:
    """Return the result for a text from its row of VERDICTS: found or not found only if p is a factor from the rate."""
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
        refusal: why no user could be named the last time. It depends on the registry, and contains no part of a text.
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
    """Names nobody, whatever the users table contains. It is for a detector that names no users."""

    refusal = ""

    def naming(self, key_id: str, message: int, at: datetime) -> NamedUser:
        """See NamesUsers."""
        return NamedUser(Naming.UNALLOCATED, None, None)


_scorer: Scorer | None = None
"""The scorer of this process."""

_why_not = ""
"""The reason why this process has no scorer."""


def open_scorer(served: ServedScan, secret: bytes) -> None:
    """Open the keys in a new process, which ends with the server. If that is refused, `why_not_open` tells why."""
    global _scorer, _why_not
    confine_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its processes
    try:
        _scorer = Scorer(served, secret)
    except BrickscanError as error:
        _why_not = str(error)
    gc.freeze()  # otherwise the collector would go through all of it while a text waits
    with open(os.devnull, "wb") as nothing:  # libraries that panic print a part of the text
        for descriptor in (1, 2):
            os.dup2(nothing.fileno(), descriptor)


def why_not_open() -> str:
    """Return why this process has no scorer. Empty: it has one."""
    return _why_not


def find_marks(texts: Sequence[bytes]) -> list[Finding] | None:
    """Find marks in texts, in a process of the pool. None: they cannot be scored."""
    with contextlib.suppress(BaseException):  # a traceback could contain a part of a text; a Rust panic is no Exception
        return _scorer.find_marks(texts) if _scorer else None
    return None


def find_marks_of(texts: Sequence[bytes]) -> tuple[list[Finding | None], float, str]:
    """Find marks in texts, scored together, or if that fails each by itself.

    Returns:
        The findings.
        Seconds of CPU.
        Why no user could be named the last time. Empty: that did not happen.
    """
    if _scorer is None or not _scorer.holds:  # raise, so that another process replaces this one
        raise ValueError("no key is open")
    began = time.process_time()
    findings: Sequence[Finding | None] | None = find_marks(texts)
    if findings is None and len(texts) > 1:
        findings = [text_findings[0] if (text_findings := find_marks([text])) else None for text in texts]
    return [None] if findings is None else list(findings), time.process_time() - began, _scorer.names.refusal


def measure_costs(seconds: float, max_bytes: int) -> Costs:
    """Measure the time that texts take, in a process of the pool."""
    if _scorer is None:
        raise ValueError("no key is open")
    return _scorer.measure(seconds, max_bytes)

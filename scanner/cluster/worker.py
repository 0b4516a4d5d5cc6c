"""What an actor does: it opens keys, tokenizers and users itself, scans pieces of shards, and returns descriptions."""

import os
import resource
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scanner.audit.in_every_scan.decoys import Decoys, open_decoys
from scanner.cluster.gpus import own_device
from scanner.detection.detector import Detector, Origin
from scanner.detection.existence import OfFile, Sightings, written
from scanner.detection.proving import MOST_TOKENS, SECONDS_A_TOKEN
from scanner.detection.scan_plan import Plan, open_detector
from scanner.errors import FileFault, ScanFailed
from scanner.input.documents import MEMORY_A_BYTE, Reader, Unreadable
from scanner.input.identity import Identity, identify, identities
from scanner.input.shards import Shard
from scanner.results.tables import DataFile, write_file
from scanner.watermark.formats import format_of
from schemas.tables import FLAGS, QUARANTINE
from schemas.words import Proof

if TYPE_CHECKING:
    import torch


class Piece(NamedTuple):
    """Rows start … stop−1 of a shard's file: the whole shard, or a part of one that failed as a whole."""

    shard: Shard
    start: int
    stop: int


@dataclass(frozen=True)
class Counts:
    """Documents that were read, and what became of them; text_bytes is their size, tokens those of their verdicts.

    values_not_read: of which id, account or time is there and cannot be read, and is null;
    proved, unproved: flags that came out the same, or did not, by a slow path; not_offered: that have none;
    in_future: whose own time, or their file's where they have none, is still to come; older_than_key: flagged under a
    key that was made after they existed.
    """

    documents: int = 0
    too_short: int = 0
    quarantined: int = 0
    flagged: int = 0
    text_bytes: int = 0
    tokens: int = 0
    scored_in_part: int = 0
    in_future: int = 0
    older_than_key: int = 0
    values_not_read: int = 0
    proved: int = 0
    unproved: int = 0
    not_offered: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NOTHING = Counts()


@dataclass(frozen=True)
class Seconds:
    """Wall seconds by stage: four of the workers, summed over them, and `commit` of the driver."""

    read: float = 0.0
    tokenise: float = 0.0
    score: float = 0.0
    write: float = 0.0
    commit: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


NO_TIME = Seconds()


@dataclass(frozen=True)
class Report:
    """What became of a piece: the files of its rows, or a fault of its file. peak_memory: of the worker, in bytes.

    set_aside: rows that are in none of these files, since their texts may need more memory than there is: each is to be
    a piece of its own.
    """

    verdicts: tuple[DataFile, ...] = ()
    quarantine: tuple[DataFile, ...] = ()
    audit: tuple[DataFile, ...] = ()
    flags: tuple[DataFile, ...] = ()
    counts: Counts = NOTHING
    fault: FileFault | None = None
    peak_memory: int = 0
    seconds: Seconds = NO_TIME
    set_aside: tuple[int, ...] = ()


@dataclass(frozen=True)
class PackReport:
    """What became of whole shards that share files, in their order.

    counts: of each shard; None where it is to be scanned by itself, since its file is at fault or a text is large.
    """

    counts: tuple[Counts | None, ...]
    verdicts: tuple[DataFile, ...]
    quarantine: tuple[DataFile, ...]
    audit: tuple[DataFile, ...]
    flags: tuple[DataFile, ...]
    peak_memory: int
    seconds: Seconds


@dataclass
class _Rows:
    """Batches of each table, and what they are worth."""

    verdicts: list[pa.RecordBatch] = field(default_factory=list)
    quarantine: list[pa.RecordBatch] = field(default_factory=list)
    audit: list[pa.RecordBatch] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)
    counts: Counts = NOTHING

    def add(self, other: "_Rows") -> None:
        self.verdicts += other.verdicts
        self.quarantine += other.quarantine
        self.audit += other.audit


class Busy(NamedTuple):
    """A sign of life: the next one, or the report, is due within so many seconds. behind: rows that are done with."""

    seconds: float
    behind: int = 0


BETWEEN_SIGNS = 60.0
"""Seconds of scoring between two signs of life, as they are reckoned for the stall limit: some ten times too long."""

LEAST_TEXT_BYTES = 2**14
"""Of text that is scored between two signs of life."""


class Worker:
    """Scans pieces. Made by the driver with a plan, which holds no secrets.

    Args:
        plan: what to do.
        scan_id: of this run.
        memory: bytes that this process may take from `prepare` on; None: as many as there are.
        earlier: what the scan knew when it began, files apart: they come with the shards; None: nothing, it begins now.
    """

    def __init__(self, plan: Plan, scan_id: str, memory: int | None = None, earlier: Sightings | None = None) -> None:
        self._plan = plan
        self._scan_id = scan_id
        self._memory = memory
        self._room: int | None = None  # bytes of memory that a text may need; None: as many as there are
        self._earlier = earlier or Sightings(datetime.now(UTC), {}, {})
        self._reader = Reader()  # pieces come in the order of their rows, so that it can go on

    @cached_property
    def _device(self) -> tuple["torch.device | None", str]:
        return own_device(self._plan.config.cluster)

    @cached_property
    def _detector(self) -> Detector:
        return open_detector(self._plan, self._device[0])

    @cached_property
    def _decoys(self) -> Decoys | None:
        return open_decoys(self._plan)

    def prepare(self) -> str:
        """Open keys, tokenizers and users on this machine, compile kernels, and limit this process to its memory.

        Returns:
            What the driver should warn of once; empty: nothing.

        Raises:
            ScanFailed: it takes more memory already.
            Refused: as `open_detector` and `own_device` do.
        """
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        pa.set_cpu_count(1)
        # here, where no time is set: on a busy machine it takes minutes, which no document must be blamed for
        self._detector.compile(self._decoys.rehearsal() if self._decoys else None)
        if self._memory is not None:
            limit_memory(self._memory)
            self._room = self._memory - _resident()
        return self._device[1]

    def scan(self, piece: Piece) -> Iterator[Busy | Report]:
        """Read, score and write a piece: signs of life, and its report at last.

        Raises:
            ScanFailed: results cannot be written.
            MemoryError: it needs more than this process may take.
        """
        try:
            yield from self._scan(piece)
        except FileFault as fault:
            yield Report(fault=fault, peak_memory=_peak_memory())

    def scan_pack(self, shards: Sequence[Shard]) -> Iterator[Busy | PackReport]:
        """Read and score shards whole, and write them together. Raises as `scan`."""
        clock, rows = _Clock(), _Rows()
        counts: list[Counts | None] = []
        before = 0
        for shard in shards:
            try:
                found = yield from self._score(Piece(shard, shard.rows.start, shard.rows.stop), clock, before)
            except FileFault:
                found = None
            if found is None or found.set_aside:
                counts.append(None)
            else:
                rows.add(found)
                counts.append(found.counts)
            before += shard.rows.stop - shard.rows.start
        files = _write(self._plan, rows)
        clock.lap("write")
        yield PackReport(tuple(counts), *files, _peak_memory(), clock.spent())

    def identify(self, piece: Piece) -> Iterator[Identity]:
        """Whose the document of a single row is, which cannot be scored."""
        yield identify(piece.shard.file, self._plan.columns, piece.start)

    def _scan(self, piece: Piece) -> Iterator[Busy | Report]:
        clock = _Clock()
        rows = yield from self._score(piece, clock)
        files = _write(self._plan, rows)
        clock.lap("write")
        aside = tuple(rows.set_aside)
        yield Report(*files, rows.counts, peak_memory=_peak_memory(), seconds=clock.spent(), set_aside=aside)

    def _score(self, piece: Piece, clock: "_Clock", before: int = 0) -> Generator[Busy, None, _Rows]:
        """Read and score a piece, before which so many rows are done with: signs of life on the way.

        Raises:
            FileFault: its file cannot be read; and as `scan`.
        """
        origin = Origin(self._scan_id, piece.shard.shard_id, piece.shard.file.path)
        known = OfFile(self._earlier.began, self._earlier.texts, piece.shard.seen, written(piece.shard.file))
        rows = _Rows()
        unread: list[pa.RecordBatch] = []  # documents, of which a value is
        text_bytes, tokenising = 0, self._detector.tokenising
        witness = self._decoys.of_piece(origin, piece.start) if self._decoys else None
        for part in self._reader.read(piece.shard.file, self._plan.columns, piece.start, piece.stop):
            clock.lap("read")
            if isinstance(part, Unreadable):
                self._take_back(part, piece, rows, origin)
                unread = _without(part, unread)
                continue
            part, large = self._without_large(part, piece)
            rows.set_aside += large
            text_bytes += part.column("text").nbytes
            unread.append(part.select(["row"]).filter(part["unread"]))
            for documents in self._cut(part):
                yield self._busy(documents, before - piece.start)
                scored, refused = self._detector.detect(documents, origin, witness, known)
                rows.verdicts.append(scored)
                rows.quarantine.append(refused)
            clock.lap("score")
        rows.audit = witness.rows() if witness else []
        odd = self._odd_times(rows.verdicts, known.written) + Counts(values_not_read=sum(map(len, unread)))
        rows.counts = _counts(rows, text_bytes) + odd
        clock.lap("score")
        clock.tokenised(self._detector.tokenising - tokenising)
        return rows

    def _take_back(self, void: Unreadable, piece: Piece, rows: _Rows, origin: Origin) -> None:
        """Rows that turned out to be unreadable after they were given are in quarantine, and nowhere else."""
        rows.verdicts, rows.quarantine = _without(void, rows.verdicts), _without(void, rows.quarantine)
        whose = identities(piece.shard.file, self._plan.columns, void.start, void.stop)
        gone = range(void.start, void.stop)
        rows.quarantine.append(quarantine_rows(origin, zip(gone, whose, strict=True), "unreadable", void.detail))
        rows.set_aside = [row for row in rows.set_aside if row not in gone]

    def _without_large(self, part: pa.RecordBatch, piece: Piece) -> tuple[pa.RecordBatch, list[int]]:
        """A batch without the rows that may need more memory than there is, unless one is all that was asked for."""
        if self._room is None or piece.stop - piece.start == 1:
            return part, []
        large = pc.greater(pc.fill_null(pc.binary_length(part["text"]), 0), self._room // MEMORY_A_BYTE)
        if not large.true_count:
            return part, []
        return part.filter(pc.invert(large)), part["row"].filter(large).to_pylist()

    def _odd_times(self, verdicts: list[pa.RecordBatch], written: datetime | None) -> Counts:
        """Times that cannot be right, or that show a flag to be false."""
        made = {key.key_id: key.created_at for key in self._plan.keys}
        future = older = 0
        for batch in verdicts:
            times = batch["created_at"] if written is None else pc.fill_null(batch["created_at"], written)
            future += pc.sum(pc.greater(times, batch["scanned_at"]), min_count=0).as_py()
            dated = batch.filter(pc.is_valid(batch["first_seen_at"])).select(["first_seen_at", "key_id"])
            older += sum(row["first_seen_at"] < made[row["key_id"]] for row in dated.to_pylist())
        return Counts(in_future=future, older_than_key=older)

    @cached_property
    def _seconds_a_byte(self) -> float:
        """Of scoring, generously: at a token a byte, at most."""
        return sum(format_of(key).seconds(key.messages) for key in self._plan.keys)

    def _cut(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """A batch in parts that take seconds each, by its texts' sizes alone; whole on a device, which takes it so."""
        if self._device[0] is not None:
            return [batch] if len(batch) else []
        return parts_of(batch, max(int(BETWEEN_SIGNS / self._seconds_a_byte), LEAST_TEXT_BYTES))

    def _busy(self, documents: pa.RecordBatch, before: int) -> Busy:
        text_bytes = documents.column("text").nbytes
        scoring = text_bytes * self._seconds_a_byte
        proving = min(text_bytes, MOST_TOKENS) * SECONDS_A_TOKEN * len(self._plan.keys)
        due = self._plan.config.cluster.stall_seconds + scoring + proving
        return Busy(due, before + documents["row"][0].as_py())


def parts_of(batch: pa.RecordBatch, text_bytes: int) -> list[pa.RecordBatch]:
    """A batch cut after each document with which its texts since the last cut come to so many bytes."""
    ends = np.cumsum(pc.fill_null(pc.binary_length(batch["text"]), 0).to_numpy(zero_copy_only=False))
    bounds = [0]
    while bounds[-1] < len(batch):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(min(int(np.searchsorted(ends, before + text_bytes)) + 1, len(batch)))
    return [batch.slice(begin, end - begin) for begin, end in pairwise(bounds)]


def _without(void: Unreadable, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Rows but those that turned out to be unreadable after they were given."""
    outside = (pc.or_(pc.less(b["row"], void.start), pc.greater_equal(b["row"], void.stop)) for b in batches)
    return [batch.filter(kept) for batch, kept in zip(batches, outside, strict=True)]


class _Clock:
    """Sums up wall seconds by stage: a lap is what passed since the lap before."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("read", "tokenise", "score", "write"), 0.0)
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage] += now - self._last
        self._last = now

    def tokenised(self, seconds: float) -> None:
        """So many of those of scoring."""
        self._seconds["tokenise"] += seconds
        self._seconds["score"] -= seconds

    def spent(self) -> Seconds:
        return Seconds(**self._seconds)


class _Files(NamedTuple):
    """One of each table, or none where there are no rows."""

    verdicts: tuple[DataFile, ...]
    quarantine: tuple[DataFile, ...]
    audit: tuple[DataFile, ...]
    flags: tuple[DataFile, ...]


def _write(plan: Plan, rows: _Rows) -> _Files:
    tables = {
        "verdicts": rows.verdicts,
        "quarantine": rows.quarantine,
        "audit_counts": rows.audit,
        "flags": _flags(plan, rows.verdicts),
    }
    files = (write_file(plan.results, name, batches) for name, batches in tables.items())
    return _Files(*((file,) if file else () for file in files))


def _counts(rows: _Rows, text_bytes: int) -> Counts:
    refused = sum(len(batch) for batch in rows.quarantine)
    return Counts(
        documents=sum(len(batch) for batch in rows.verdicts) + refused,
        too_short=_count(rows.verdicts, "status", "too_short"),
        scored_in_part=_count(rows.verdicts, "status", "scored_in_part"),
        quarantined=refused,
        flagged=sum(batch["flagged"].true_count for batch in rows.verdicts),
        proved=_count(rows.verdicts, "proof", Proof.PROVED),
        unproved=_count(rows.verdicts, "proof", Proof.DIFFERS),
        not_offered=_count(rows.verdicts, "proof", Proof.NOT_OFFERED),
        text_bytes=text_bytes,
        tokens=sum(pc.sum(batch["tokens"], min_count=0).as_py() for batch in rows.verdicts),
    )


def _flags(plan: Plan, verdicts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Rows of FLAGS: the flagged ones of some rows of VERDICTS, with the set of keys under which they are."""
    flagged = [batch.filter(batch["flagged"]) for batch in verdicts if batch["flagged"].true_count]
    return [
        pa.RecordBatch.from_arrays([pa.repeat(plan.key_set, len(rows)), *rows.columns], schema=FLAGS)
        for rows in flagged
    ]


def _count(verdicts: list[pa.RecordBatch], column: str, value: str) -> int:
    return sum(pc.sum(pc.equal(batch[column], value), min_count=0).as_py() for batch in verdicts)


def quarantine_rows(
    origin: Origin, rows: Iterable[tuple[int | None, Identity]], reason: str, detail: str
) -> pa.RecordBatch:
    """Rows of QUARANTINE that share a reason, each with whose it is; a row of None stands for the whole file."""
    shared = origin._asdict() | {"reason": reason, "detail": detail, "scanned_at": datetime.now(UTC)}
    return pa.RecordBatch.from_pylist([shared | {"row": row} | whose._asdict() for row, whose in rows], QUARANTINE)


def limit_memory(most: int, *, more: bool = False) -> None:
    """Let this process take so many bytes, or so many more than it has; beyond that: MemoryError, or its end (Linux).

    The kernel counts what is mapped for data, so what is mapped and not touched by now (arenas, stacks, a device's
    address space) is added. A limit on all address space would count libraries and Ray's shared store.

    Raises:
        ScanFailed: it takes more already.
    """
    if sys.platform != "linux":
        return
    resident, data = _resident(), _pages(5)
    if more:
        most += resident
    if resident >= most:
        raise ScanFailed(
            f"it takes {resident >> 20} MiB before its first document, and may take {most >> 20}; raise "
            "cluster.worker_memory_mb, or let fewer workers share a machine"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = most - resident + data
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _resident() -> int:
    return _pages(1)


def _pages(field: int) -> int:
    """Bytes of a field of /proc/self/statm (proc(5)); 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

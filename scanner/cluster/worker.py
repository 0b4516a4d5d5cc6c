"""The actor: it opens keys, tokenizers and users itself, scans pieces of shards, and writes rows of every table.

Rows are counted, taken back, cut and written as files; only descriptions of these are returned.
"""

import math
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scanner.cluster.machines import device_of_worker, give_back_memory, limit_memory, peak_memory, resident
from scanner.cluster.pieces import NO_DOCUMENTS, Busy, DocumentCounts, Files, PackReport, Piece, Report, Seconds
from scanner.cluster.todo import seconds_a_byte
from scanner.controls.decoys.draws import Decoys, open_decoys
from scanner.controls.decoys.observers import DecoyObserver, LevelDecoyObserver, Rehearsal
from scanner.controls.reserved.texts import reserved_texts
from scanner.detection.attribution import BatchOrigin, EarlierScans, FileHistory
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_detector, open_text_ids
from scanner.detection.proving import SECONDS_A_TOKEN, TOKENS_PROVED
from scanner.detection.rows import TextIds, flagged_rows, for_everybody, span_rows, with_canaries, with_ids
from scanner.detection.rules import NO_FILTER
from scanner.errors import FileFault
from scanner.input.documents import MEMORY_A_BYTE, Identity, Reader, Unreadable, identify, identities
from scanner.input.files import InputFile
from scanner.input.shards import Shard
from scanner.looks.accounts.post_rows import by_account, posts_of
from scanner.scan_plan import Plan
from scanner.storage.data_files import write_file
from scanner.watermark.formats import format_of
from scanner.watermark.rule import RANK_DECOYS, SECONDS_OF_A_RANK
from scanner.watermark.span_search import FEW_SEARCHES, LONGEST_AT_ONCE, MOST_SEARCHES
from schemas.tables import FLAG_TEXTS, QUARANTINE
from schemas.words import Proof

if TYPE_CHECKING:
    import torch


@dataclass
class Rows:
    """Rows that an actor makes, as batches by table, and their counts.

    batches: `verdicts` and `spans` are exact; `lengths`, as the detector gives them, are one batch for each of
    `verdicts`; set_aside: rows that are in none of them.
    """

    batches: dict[str, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))
    set_aside: list[int] = field(default_factory=list)
    counts: DocumentCounts = NO_DOCUMENTS

    def add(self, other: "Rows") -> None:
        """Append the rows of another shard of a pack."""
        for table, batches in other.batches.items():
            self.batches[table] += batches

    def take_back(self, void: Unreadable) -> None:
        """Take rows that turned out to be unreadable out of every table whose rows are documents'."""
        for table, batches in self.batches.items():
            self.batches[table] = [drop_unreadable(void, one) if "row" in one.schema.names else one for one in batches]
        self.set_aside = [row for row in self.set_aside if not void.start <= row < void.stop]


def texts_of_flags(documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of FLAG_TEXTS.

    verdicts: exact rows of VERDICTS on some of them, in their order.
    """
    flags = verdicts.filter(verdicts["flagged"])
    named = flags.select(["user_id", "named", "further_messages"]).to_pylist()
    columns = {name: flags[name] for name in FLAG_TEXTS.names if name in flags.schema.names}
    columns["user_ids"] = pa.array(map(_who, named), FLAG_TEXTS.field("user_ids").type)
    columns["text"] = documents.filter(pc.is_in(documents["row"], flags["row"]))["text"]
    return pa.RecordBatch.from_arrays([columns[name] for name in FLAG_TEXTS.names], schema=FLAG_TEXTS)


def _who(row: Mapping[str, Any]) -> list[str]:
    also = {one["user_id"] for name in ("named", "further_messages") for one in row[name] or ()}
    return sorted((also | {row["user_id"]}) - {None})


def _count(verdicts: list[pa.RecordBatch], column: str, value: str) -> int:
    return sum(pc.sum(pc.equal(batch[column], value), min_count=0).as_py() for batch in verdicts)


def quarantine_rows(
    origin: BatchOrigin, rows: Iterable[tuple[int | None, Identity]], reason: str, detail: str
) -> pa.RecordBatch:
    """Rows of QUARANTINE that share a reason, each with its identity; a row of None stands for the whole file.

    Workers call it for rows that they read, and the driver for files at fault and documents that no worker survived.
    """
    shared = origin._asdict() | {"reason": reason, "detail": detail, "scanned_at": datetime.now(UTC)}
    return pa.RecordBatch.from_pylist([shared | {"row": row} | whose._asdict() for row, whose in rows], QUARANTINE)


def drop_unreadable(void: Unreadable, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without the rows that turned out to be unreadable after they were given."""
    return batch.filter(pc.or_(pc.less(batch["row"], void.start), pc.greater_equal(batch["row"], void.stop)))


def parts_of(batch: pa.RecordBatch, costs: NDArray[np.generic], most: float) -> list[pa.RecordBatch]:
    """A batch cut after each document that brings the costs since the last cut to `most`; costs: of each, [D]."""
    ends = np.cumsum(costs)
    bounds = [0]
    while bounds[-1] < len(batch):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        end = int(np.searchsorted(ends, before + most)) + 1
        bounds.append(min(max(end, bounds[-1] + 1), len(batch)))  # a sum may be too large for `most` to change it
    return [batch.slice(begin, end - begin) for begin, end in pairwise(bounds)]


def sizes_of(texts: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Bytes of stored texts, int64[D]."""
    return np.asarray(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False), np.int64)


BETWEEN_SIGNS = 60.0
"""Seconds of scoring between two signs of life, by the generous count of the stall limit, some ten times too long."""

SIGNS_APART = 1.0
"""Seconds between two signs of life, but before work that is expected to take longer: the driver takes each of them."""

LEAST_TEXT_BYTES = 2**14
"""Fewest bytes of text that are scored between two signs of life."""


class Worker:
    """Scans pieces. Made by the driver with a plan, which holds no secrets.

    memory: bytes that this process may take from `prepare` on; None: no limit. earlier: what the scan knew when it
    began, without files, which come with the shards; None: nothing, it begins now.
    """

    def __init__(
        self, plan: Plan, scan_id: str, memory: int | None = None, earlier: EarlierScans | None = None
    ) -> None:
        self._plan = plan
        self._scan_id = scan_id
        self._memory = memory
        self._signed = -math.inf  # when the driver had the last sign of life
        self._room: int | None = None  # bytes of memory that a text may need; None: no limit
        self._earlier = earlier or EarlierScans(datetime.now(UTC), {}, {})
        self._reader = Reader()  # pieces come in the order of their rows, so that it can go on

    @cached_property
    def _device(self) -> tuple["torch.device | None", str]:
        return device_of_worker(self._plan.config.cluster)

    @cached_property
    def _detector(self) -> Detector:
        plan, ngram_filter = self._plan, NO_FILTER
        if plan.filter_sha256 is not None:
            from scanner.results.filters import open_filter  # a worker without one needs no library of tables

            ngram_filter = open_filter(plan.results, plan.filter_sha256, self._text_ids.ngram_secret())
        return open_detector(plan, self._device[0], ngram_filter)

    @cached_property
    def _decoys(self) -> Decoys | None:
        return open_decoys(self._plan)

    @cached_property
    def _text_ids(self) -> TextIds:
        return open_text_ids(self._plan)

    def prepare(self) -> str:
        """Open keys, tokenizers and users on this machine, compile kernels, and limit this process to its memory.

        Returns:
            A warning that the driver should show once; empty: none.

        Raises:
            ScanFailed: it takes more memory already.
            Refused: as `open_detector` and `device_of_worker` do.
        """
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        pa.set_cpu_count(1)
        pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own pool keeps 20 to 40 MiB that nobody uses
        # here, without a time limit: on a busy machine it takes minutes, for which no document may be blamed
        detector = self._detector
        give_back_memory()  # tokenizers leave a third of what they took while they were opened
        detector.compile(Rehearsal(self._decoys) if self._decoys else None)
        give_back_memory()
        self._text_ids  # noqa: B018 - read now, so that a secret that is gone is told before any work
        if self._memory is not None:
            limit_memory(self._memory)
            self._room = self._memory - resident()
        return self._device[1]

    def scan(self, piece: Piece) -> Iterator[Busy | Report]:
        """Read, score and write a piece: signs of life, and its report at last.

        Raises:
            ScanFailed: results cannot be written.
            MemoryError: it needs more than this process may take.
        """
        clock = _Clock()
        try:
            rows = yield from self._score(piece, clock)
        except FileFault as fault:
            yield Report(fault=fault, peak_memory=peak_memory())
            return
        files, memory = self._write(rows), peak_memory()
        clock.lap("write")
        yield Report(files, rows.counts, None, memory, Seconds(**clock.seconds), tuple(rows.set_aside))

    def scan_pack(self, shards: Sequence[Shard]) -> Iterator[Busy | PackReport]:
        """Read and score shards whole, and write them together. Raises as `scan`."""
        clock, rows = _Clock(), Rows()
        counts: list[DocumentCounts | None] = []
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
            before += shard.rows.documents
        files, memory = self._write(rows), peak_memory()
        clock.lap("write")
        yield PackReport(tuple(counts), files, memory, Seconds(**clock.seconds))

    def identify(self, piece: Piece) -> Iterator[Identity]:
        """Whose the document of a single row is, which cannot be scored."""
        yield identify(piece.shard.file, self._plan.columns, piece.start)

    def _score(self, piece: Piece, clock: "_Clock", before: int = 0) -> Generator[Busy, None, Rows]:
        """Read and score a piece, with signs of life on the way; so many rows before it are done. Raises as `scan`."""
        origin = BatchOrigin(self._scan_id, piece.shard.shard_id, piece.shard.file.path)
        rows = Rows()
        batches = rows.batches
        unread: list[pa.RecordBatch] = []  # documents with a value that was not read
        text_bytes, before_it = 0, (self._detector.tokenising, self._detector.proving)
        observer = self._observer(origin, piece)
        known = FileHistory(
            self._earlier.began, self._earlier.texts, piece.shard.first_scanned, piece.shard.file.written
        )
        for batch in self._reader.read(piece.shard.file, self._plan.columns, piece.start, piece.stop):
            clock.lap("read")
            if isinstance(batch, Unreadable):
                self._take_back(batch, piece, rows, origin)
                unread = [drop_unreadable(batch, rows_before) for rows_before in unread]
                continue
            if self._room is not None and piece.stop - piece.start > 1:
                batch, large = self._without_large(batch, self._room)
                rows.set_aside += large
            text_bytes += batch.column("text").nbytes
            unread.append(batch.select(["row"]).filter(batch["unread"]))
            single = [batch.slice(row, 1) for row in range(len(batch))] if piece.one_by_one else None
            for documents in self._cut(batch) if single is None else single:
                yield from self._busy(documents, before - piece.start, single=piece.one_by_one)
                self._take(documents, origin, observer, known, batches)
            if piece.one_by_one and len(batch):  # what is read or written next is no document's fault
                behind = before - piece.start + batch["row"][-1].as_py() + 1
                yield Busy(self._plan.config.cluster.stall_seconds + SIGNS_APART, behind)
            clock.lap("score")
        batches["audit_counts"] += observer.rows() if observer else []
        counts = self._counts(rows, text_bytes, piece.shard.file)
        rows.counts = replace(counts, values_not_read=sum(map(len, unread)))
        tokenised, proved = self._detector.tokenising - before_it[0], self._detector.proving - before_it[1]
        clock.lap("score", tokenise=tokenised, prove=proved)
        return rows

    def _observer(self, origin: BatchOrigin, piece: Piece) -> DecoyObserver | LevelDecoyObserver | None:
        return DecoyObserver(self._decoys, origin, piece.start, self._detector) if self._decoys else None

    def _take(
        self,
        documents: pa.RecordBatch,
        origin: BatchOrigin,
        observer: DecoyObserver | LevelDecoyObserver | None,
        known: FileHistory,
        batches: dict[str, list[pa.RecordBatch]],
    ) -> None:
        result = self._detector.score_batch(documents, origin, observer, known)
        verdicts, flagged = result.verdicts, result.verdicts["flagged"].true_count
        batches["verdicts"].append(with_canaries(verdicts, self._plan.canaries_made) if flagged else verdicts)
        batches["lengths"].append(result.lengths)
        batches["quarantine"].append(result.quarantine)
        batches["spans"].append(result.spans)
        if self._plan.config.evidence.keep_text and flagged:
            batches["flag_texts"].append(texts_of_flags(documents, verdicts))
        if self._plan.config.accounts is not None:
            batches["account_posts"].append(self._posts(documents, verdicts))

    def _counts(self, rows: Rows, text_bytes: int, file: InputFile) -> DocumentCounts:
        """Counts by result of the documents of some rows of a file, whose texts have so many bytes."""
        keys, future, older, written = {key.key_id: key for key in self._plan.keys}, 0, 0, file.written
        for batch in rows.batches["verdicts"]:
            times = batch["created_at"] if written is None else pc.fill_null(batch["created_at"], written)
            future += pc.sum(pc.greater(times, batch["scanned_at"]), min_count=0).as_py()
            dated = batch.filter(pc.is_valid(batch["first_seen_at"])).select(["first_seen_at", "key_id"])
            older += sum(row["first_seen_at"] < keys[row["key_id"]].marked_since() for row in dated.to_pylist())
        verdicts, refused = rows.batches["verdicts"], sum(map(len, rows.batches["quarantine"]))
        return DocumentCounts(
            documents=sum(map(len, verdicts)) + refused,
            too_short=_count(verdicts, "status", "too_short"),
            scored_in_part=_count(verdicts, "status", "scored_in_part"),
            filtered=_count(verdicts, "status", "filtered"),
            quarantined=refused,
            flagged=sum(batch["flagged"].true_count - batch["canary"].true_count for batch in verdicts),
            canaries=sum(batch["canary"].true_count for batch in verdicts),
            proved=_count(verdicts, "proof", Proof.PROVED),
            unproved=_count(verdicts, "proof", Proof.DIFFERS),
            not_offered=_count(verdicts, "proof", Proof.NOT_OFFERED),
            in_future=future,
            older_than_key=older,
            text_bytes=text_bytes,
            tokens=sum(  # as the verdicts show them to everybody
                pc.sum(pc.if_else(exact["flagged"], exact["tokens"], of_it["tokens"]), min_count=0).as_py()
                for exact, of_it in zip(verdicts, rows.batches["lengths"], strict=True)
            ),
        )

    def _write(self, rows: Rows) -> Files:
        """Write a file of each table that has rows, into the folder of results; nothing is committed.

        Exact rows go into `flags` where they are flagged, and nowhere else. Raises ScanFailed: one cannot be written.
        """
        plan, ids, batches = self._plan, self._text_ids, rows.batches
        exact, lengths = [with_ids(batch, ids) for batch in batches["verdicts"]], batches["lengths"]
        tables = {
            "verdicts": [for_everybody(batch, of_it) for batch, of_it in zip(exact, lengths, strict=True)],
            "flags": [flagged_rows(batch, plan.key_set) for batch in exact if batch["flagged"].true_count],
            "spans": [span_rows(batch, plan.key_set) for batch in batches["spans"] if len(batch)],
            "account_posts": by_account(posts) if (posts := batches["account_posts"]) else [],
            "quarantine": batches["quarantine"],
            "flag_texts": batches["flag_texts"],
            "audit_counts": [
                *batches["audit_counts"],
                *reserved_texts(exact, plan.keys, plan.config.dedup, ids, plan.canary_accounts),
            ],
        }
        files = {table: write_file(plan.results, table, batches) for table, batches in tables.items()}
        return {table: (file,) for table, file in files.items() if file}

    def _posts(self, documents: pa.RecordBatch, verdicts: pa.RecordBatch) -> pa.RecordBatch:
        plan = self._plan
        began = f"{self._scan_id[:4]}-{self._scan_id[4:6]}-{self._scan_id[6:8]}"
        night = began if plan.date is None else plan.date.isoformat()
        return posts_of(documents, verdicts, self._text_ids, plan.canary_accounts, plan.filter_sha256, night)

    def _take_back(self, void: Unreadable, piece: Piece, rows: Rows, origin: BatchOrigin) -> None:
        """Put rows that turned out to be unreadable into quarantine, and take them out of all other tables."""
        rows.take_back(void)
        whose = identities(piece.shard.file, self._plan.columns, void.start, void.stop)
        not_read = piece.shard.file.rows_not_read(void.start, void.stop)
        gone = [
            (row, of) for row, of, out in zip(range(void.start, void.stop), whose, not_read, strict=True) if not out
        ]
        rows.batches["quarantine"].append(quarantine_rows(origin, gone, "unreadable", void.detail))

    @staticmethod
    def _without_large(batch: pa.RecordBatch, room: int) -> tuple[pa.RecordBatch, list[int]]:
        """A batch without rows that may need more memory than so many bytes, and these rows."""
        large = pc.greater(pc.fill_null(pc.binary_length(batch["text"]), 0), room // MEMORY_A_BYTE)
        if not large.true_count:
            return batch, []
        return batch.filter(pc.invert(large)), batch["row"].filter(large).to_pylist()

    @cached_property
    def _seconds_a_byte(self) -> float:
        return seconds_a_byte(self._plan)

    @cached_property
    def _share_of_short(self) -> float:
        """Seconds of scoring a byte of a text of LONGEST_AT_ONCE bytes at most, over those of a longer one."""
        if self._plan.weights.span is None:
            return 1.0
        return FEW_SEARCHES / MOST_SEARCHES if self._detector.searches_windows else 1.0

    def _seconds_of(self, documents: pa.RecordBatch) -> NDArray[np.float64]:
        """Seconds of scoring each document, generously: float64[D]."""
        sizes = sizes_of(documents.column("text"))
        short = np.where(sizes <= LONGEST_AT_ONCE, self._share_of_short, 1.0)
        return np.asarray((sizes + 8) * short * self._seconds_a_byte, np.float64)  # one without a text takes some too

    @cached_property
    def _seconds_a_proof(self) -> float:
        """Seconds of proving a token, under all keys; plain Python takes thirty times the format's seconds."""
        return sum(max(SECONDS_A_TOKEN, 30.0 * format_of(key).seconds(1)) for key in self._plan.keys)

    @cached_property
    def _seconds_ranked(self) -> list[float]:
        """Seconds of ranking a byte, under all keys that rank flagged texts: all texts of a batch may be flagged."""
        formats = [(format_of(key), key.messages) for key in self._plan.keys]
        return [form.seconds(messages) for form, messages in formats if not form.basis().proven]

    def _cut(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """A batch cut into parts of so many seconds each, by its texts' sizes alone; uncut on a device."""
        if self._device[0] is not None:
            return [batch] if len(batch) else []
        return parts_of(batch, self._seconds_of(batch), max(BETWEEN_SIGNS, LEAST_TEXT_BYTES * self._seconds_a_byte))

    def _busy(self, documents: pa.RecordBatch, before: int, *, single: bool) -> Iterator[Busy]:
        """A sign of life before documents are scored, where one is due, as before each that is scored alone."""
        text_bytes = documents.column("text").nbytes
        scoring = float(self._seconds_of(documents).sum())
        proving = min(text_bytes, TOKENS_PROVED) * self._seconds_a_proof
        ranking = sum(
            min(RANK_DECOYS * text_bytes * each, SECONDS_OF_A_RANK * len(documents)) for each in self._seconds_ranked
        )
        expected, now = scoring + proving + ranking, time.monotonic()
        if single or expected >= SIGNS_APART or now - self._signed >= SIGNS_APART:
            self._signed = now
            seconds = self._plan.config.cluster.stall_seconds + SIGNS_APART + expected
            first = documents["row"][0].as_py()
            yield Busy(seconds, before + first, first if single else None)


@dataclass
class _Clock:
    """Sums up wall seconds by stage."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str, **within: float) -> None:
        """Count the seconds since the previous lap; within: of all of this stage, those that are other stages'."""
        now = time.perf_counter()
        for name, seconds in (*within.items(), (stage, now - self.last - sum(within.values()))):
            self.seconds[name] += seconds
        self.last = now

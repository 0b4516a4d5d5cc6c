"""What an actor does: it opens keys, tokenizers and users itself, scans pieces of shards, and returns descriptions."""

import os
import time
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from scanner.audit.in_every_scan.decoy_keys import Decoys, open_decoys
from scanner.audit.in_every_scan.decoys import PieceDecoys, rehearsal
from scanner.cluster.gpus import own_device
from scanner.cluster.memory_limit import limit_memory, peak_memory, resident
from scanner.cluster.reports import Busy, Counts, PackReport, Piece, Report, Seconds
from scanner.cluster.rows import Rows, counts_of, parts_of, quarantine_rows, without, write_rows
from scanner.detection.detector import Detector, Origin
from scanner.detection.existence import OfFile, Sightings, written
from scanner.detection.proving import MOST_TOKENS, SECONDS_A_TOKEN
from scanner.detection.published import TextIds
from scanner.detection.scan_plan import Plan, open_detector, open_text_ids
from scanner.errors import FileFault
from scanner.input.documents import MEMORY_A_BYTE, Reader, Unreadable
from scanner.input.identity import Identity, identify, identities
from scanner.input.shards import Shard
from scanner.watermark.formats import format_of
from scanner.watermark.rank import SECONDS
from scanner.watermark.search import DECOYS

if TYPE_CHECKING:
    import torch


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

    @cached_property
    def _text_ids(self) -> TextIds:
        return open_text_ids(self._plan)

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
        self._detector.compile(rehearsal(self._decoys) if self._decoys else None)
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
        try:
            yield from self._scan(piece)
        except FileFault as fault:
            yield Report(fault=fault, peak_memory=peak_memory())

    def scan_pack(self, shards: Sequence[Shard]) -> Iterator[Busy | PackReport]:
        """Read and score shards whole, and write them together. Raises as `scan`."""
        clock, rows = _Clock(), Rows()
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
        files = write_rows(self._plan, rows, self._text_ids)
        clock.lap("write")
        yield PackReport(tuple(counts), *files, peak_memory(), clock.spent())

    def identify(self, piece: Piece) -> Iterator[Identity]:
        """Whose the document of a single row is, which cannot be scored."""
        yield identify(piece.shard.file, self._plan.columns, piece.start)

    def _scan(self, piece: Piece) -> Iterator[Busy | Report]:
        clock = _Clock()
        rows = yield from self._score(piece, clock)
        files = write_rows(self._plan, rows, self._text_ids)
        clock.lap("write")
        aside = tuple(rows.set_aside)
        yield Report(*files, rows.counts, peak_memory=peak_memory(), seconds=clock.spent(), set_aside=aside)

    def _score(self, piece: Piece, clock: "_Clock", before: int = 0) -> Generator[Busy, None, Rows]:
        """Read and score a piece, before which so many rows are done with: signs of life on the way.

        Raises:
            FileFault: its file cannot be read; and as `scan`.
        """
        origin = Origin(self._scan_id, piece.shard.shard_id, piece.shard.file.path)
        known = OfFile(self._earlier.began, self._earlier.texts, piece.shard.seen, written(piece.shard.file))
        rows = Rows()
        unread: list[pa.RecordBatch] = []  # documents, of which a value is
        text_bytes, tokenising = 0, self._detector.tokenising
        witness = PieceDecoys(self._decoys, origin, piece.start) if self._decoys else None
        for part in self._reader.read(piece.shard.file, self._plan.columns, piece.start, piece.stop):
            clock.lap("read")
            if isinstance(part, Unreadable):
                self._take_back(part, piece, rows, origin)
                unread = without(part, unread)
                continue
            part, large = self._without_large(part, piece)
            rows.set_aside += large
            text_bytes += part.column("text").nbytes
            unread.append(part.select(["row"]).filter(part["unread"]))
            for documents in self._cut(part):
                yield self._busy(documents, before - piece.start)
                scored, refused, lengths = self._detector.look(documents, origin, witness, known)
                rows.verdicts.append(scored)
                rows.lengths.append(lengths)
                rows.quarantine.append(refused)
            clock.lap("score")
        rows.audit = witness.rows() if witness else []
        odd = self._odd_times(rows.verdicts, known.written) + Counts(values_not_read=sum(map(len, unread)))
        rows.counts = counts_of(rows, text_bytes) + odd
        clock.lap("score")
        clock.tokenised(self._detector.tokenising - tokenising)
        return rows

    def _take_back(self, void: Unreadable, piece: Piece, rows: Rows, origin: Origin) -> None:
        """Rows that turned out to be unreadable after they were given are in quarantine, and nowhere else."""
        rows.verdicts, rows.quarantine = without(void, rows.verdicts), without(void, rows.quarantine)
        rows.lengths = without(void, rows.lengths)
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
        made = {key.key_id: key.marked_since() for key in self._plan.keys}
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

    @cached_property
    def _seconds_a_proof(self) -> float:
        """Of a token, under all keys; plain Python takes thirty times what a format allows for."""
        return sum(max(SECONDS_A_TOKEN, 30.0 * format_of(key).seconds(1)) for key in self._plan.keys)

    @cached_property
    def _seconds_ranked(self) -> list[float]:
        """Of a byte under a decoy, of each key that flagged texts are ranked under: all of a batch may be flagged."""
        formats = [(format_of(key), key.messages) for key in self._plan.keys]
        return [form.seconds(messages) for form, messages in formats if not form.basis().proven]

    def _cut(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """A batch in parts that take seconds each, by its texts' sizes alone; whole on a device, which takes it so."""
        if self._device[0] is not None:
            return [batch] if len(batch) else []
        return parts_of(batch, max(int(BETWEEN_SIGNS / self._seconds_a_byte), LEAST_TEXT_BYTES))

    def _busy(self, documents: pa.RecordBatch, before: int) -> Busy:
        text_bytes = documents.column("text").nbytes
        scoring = text_bytes * self._seconds_a_byte
        proving = min(text_bytes, MOST_TOKENS) * self._seconds_a_proof
        ranking = sum(min(DECOYS * text_bytes * each, SECONDS * len(documents)) for each in self._seconds_ranked)
        due = self._plan.config.cluster.stall_seconds + scoring + proving + ranking
        return Busy(due, before + documents["row"][0].as_py())


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

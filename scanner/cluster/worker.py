"""Run the actor of a scan: read pieces of shards, have their documents scored and proved, and write the rows as files.

Only descriptions of the files are sent to the driver, which commits them. How documents are scored is defined
elsewhere: a scan scores all texts as written (scanner.cluster.text_scoring), and a look may have a model read them
    again.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from scanner.cluster.machines import device_of_worker, give_back_memory, limit_memory, peak_memory, resident
from scanner.cluster.piece_rows import Rows
from scanner.cluster.pieces import Busy, DocumentCounts, Files, PackReport, Piece, Report, Seconds
from scanner.cluster.signs_of_life import SignsOfLife
from scanner.cluster.text_scoring import TextScoring
from scanner.detection.attribution import BatchOrigin, EarlierScans, FileHistory
from scanner.detection.rows import quarantine_rows
from scanner.errors import FileFault
from scanner.input.documents import MEMORY_A_BYTE, Identity, Reader, Unreadable, identify, identities
from scanner.input.shards import Shard
from scanner.looks.look import Scoring
from scanner.scan_plan import Plan
from scanner.storage.data_files import write_file


class Worker:
    """Scans pieces. The driver makes it with a plan, which holds no secrets.

    Args:
        memory: bytes that this process may take from `prepare` on. None: there is no limit.
        earlier: the scan's knowledge of earlier scans, without files, which come with the shards. None: nothing is
            known, and the scan begins now.
        scoring: the way in which documents are scored. None: all texts, as in a scan.
    """

    def __init__(
        self,
        plan: Plan,
        scan_id: str,
        memory: int | None = None,
        earlier: EarlierScans | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        self._plan, self._scan_id, self._memory = plan, scan_id, memory
        self._earlier = earlier or EarlierScans(datetime.now(UTC), {}, {})
        self.scoring: Scoring = scoring or TextScoring(plan, scan_id)
        self._on_device = False
        self._room: int | None = None  # bytes of memory that a text may need; None: no limit
        self._reader = Reader()  # kept, because pieces come in the order of their rows, so it can read on

    @cached_property
    def _signs(self) -> SignsOfLife:
        at_once = self.scoring.detector.searches_windows
        reading = self.scoring.reading_seconds
        return SignsOfLife(self._plan, reading, windows_at_once=at_once, on_device=self._on_device)

    def prepare(self) -> str:
        """Open keys, tokenizers and users on this machine, compile kernels, and limit this process's memory.

        Returns:
            A warning that the driver should show once. Empty: there is none.

        Raises:
            ScanFailed: the process already takes more memory.
            Refused: as `open_detector` and `device_of_worker`.
        """
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        pa.set_cpu_count(1)
        pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own pool keeps 20 to 40 MiB unused
        device, warning = device_of_worker(self._plan.config.cluster)
        self._on_device = device is not None
        # here, without a time limit: it takes minutes on a busy machine, and no document may be blamed for that
        self.scoring.prepare(device)
        give_back_memory()
        if self._memory is not None:
            limit_memory(self._memory, more=self.scoring.holds_model)
            if not self.scoring.holds_model:
                self._room = self._memory - resident()
        return warning

    def scan(self, piece: Piece) -> Iterator[Busy | Report]:
        """Read, score and write a piece. Yield signs of life, and at last the report.

        Raises:
            ScanFailed: results cannot be written.
            MemoryError: the piece needs more memory than this process may take.
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
        """Read and score whole shards, and write them together. Raises as `scan`."""
        clock, rows = _Clock(), Rows()
        counts: list[DocumentCounts | None] = []
        rows_done = 0
        for shard in shards:
            try:
                shard_rows = yield from self._score(Piece(shard, shard.rows.start, shard.rows.stop), clock, rows_done)
            except FileFault:
                shard_rows = None
            if shard_rows is None or shard_rows.set_aside:
                counts.append(None)
            else:
                rows.add(shard_rows.batches)
                counts.append(shard_rows.counts)
            rows_done += shard.rows.documents
        files, memory = self._write(rows), peak_memory()
        clock.lap("write")
        yield PackReport(tuple(counts), files, memory, Seconds(**clock.seconds))

    def identify(self, piece: Piece) -> Iterator[Identity]:
        """Yield the identity of the only document of a piece, which cannot be scored."""
        yield identify(piece.shard.file, self._plan.columns, piece.start)

    def _score(self, piece: Piece, clock: "_Clock", rows_done: int = 0) -> Generator[Busy, None, Rows]:
        """Read and score a piece. Yield signs of life on the way. Raises as `scan`.

        rows_done: number of rows that were done before it.
        """
        shard, scoring, signs = piece.shard, self.scoring, self._signs
        rows, offset = Rows(), rows_done - piece.start
        origin = BatchOrigin(self._scan_id, shard.shard_id, shard.file.path)
        history = FileHistory(self._earlier.began, self._earlier.texts, shard.first_scanned, shard.file.written)
        observer = scoring.observer(origin, piece.start)
        tokenising, proving = scoring.detector.tokenising, scoring.detector.proving
        for batch in self._reader.read(shard.file, self._plan.columns, piece.start, piece.stop):
            clock.lap("read")
            # 1. Quarantine rows that cannot be decoded, including rows that were yielded before the fault was found.
            if isinstance(batch, Unreadable):
                self._take_back(batch, piece, rows, origin)
                continue
            # 2. Set aside texts that may need more memory than there is. Each becomes a piece of its own.
            if self._room is not None and piece.stop - piece.start > 1:
                batch, large = without_large(batch, self._room)
                rows.set_aside += large
            rows.text_bytes += batch.column("text").nbytes
            rows.unread.append(batch.select(["row"]).filter(batch["unread"]))
            # 3. Score, prove and name the rest, with a few seconds of work between two signs of life.
            for documents in signs.cut(batch, one_by_one=piece.one_by_one):
                yield from signs.before(documents, offset, single=piece.one_by_one)
                rows.add(scoring.score(documents, origin, observer, history))
            if piece.one_by_one and len(batch):
                yield signs.after_single(batch, offset)
            clock.lap("score")
        # 4. Count everything.
        rows.add({"audit_counts": observer.rows() if observer else []})
        flagged = sum(scoring.count_flags(verdicts, shard.file.path) for verdicts in rows.batches["verdicts"])
        rows.count(self._plan, shard.file, flagged)
        tokenised, proved = scoring.detector.tokenising - tokenising, scoring.detector.proving - proving
        clock.lap("score", tokenise=tokenised, prove=proved)
        return rows

    def _write(self, rows: Rows) -> Files:
        """Write a file for each table that has rows, into the folder of results, without committing it.

        Raises:
            ScanFailed: a file cannot be written.
        """
        tables = self.scoring.tables(rows.batches)
        files = {table: write_file(self._plan.results, table, batches) for table, batches in tables.items()}
        return {table: (file,) for table, file in files.items() if file}

    def _take_back(self, void: Unreadable, piece: Piece, rows: Rows, origin: BatchOrigin) -> None:
        """Move rows that turned out to be unreadable into quarantine, and remove them from all other tables."""
        rows.take_back(void)
        file, span = piece.shard.file, range(void.start, void.stop)
        identities_of_rows = identities(file, self._plan.columns, void.start, void.stop)
        not_read = file.rows_not_read(void.start, void.stop)
        gone = [
            (row, identity) for row, identity, out in zip(span, identities_of_rows, not_read, strict=True) if not out
        ]
        rows.add({"quarantine": [quarantine_rows(origin, gone, "unreadable", void.detail)]})


def without_large(batch: pa.RecordBatch, room: int) -> tuple[pa.RecordBatch, list[int]]:
    """Return a batch without the rows that may need more memory than `room` bytes, and the numbers of these rows."""
    large = pc.greater(pc.fill_null(pc.binary_length(batch["text"]), 0), room // MEMORY_A_BYTE)
    if not large.true_count:
        return batch, []
    return batch.filter(pc.invert(large)), batch["row"].filter(large).to_pylist()


@dataclass
class _Clock:
    """Sums up wall seconds by stage."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str, **within: float) -> None:
        """Count the seconds since the previous lap for a stage.

        within: seconds of this lap that belong to other stages.
        """
        now = time.perf_counter()
        for name, seconds in (*within.items(), (stage, now - self.last - sum(within.values()))):
            self.seconds[name] += seconds
        self.last = now

"""The pass in which a model reads texts after all were scored, and tokens count by how much they surprised it.

Each shard is worked through once more, under another id, which hashes the model too. It goes through the same pool and
the same commits as before: rows of flags, texts, readings and decoys beside, and the shard's transaction in `verdicts`
last, without a row. So a pass that was killed goes on with the shards that are left, and of two drivers one stands.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import ray

from scanner.cluster.commits import Committer
from scanner.cluster.machines import fit_gpus, limit_memory, worker_memory
from scanner.cluster.pieces import NO_DOCUMENTS, DocumentCounts, Files, FinishedShard, Piece
from scanner.cluster.pool import Pool
from scanner.cluster.todo import PiecePace, seconds_a_byte
from scanner.cluster.work import pack_shards
from scanner.cluster.worker import Rows, Worker, texts_of_flags
from scanner.controls.decoys.observers import DecoyObserver, LevelDecoyObserver
from scanner.detection.attribution import BatchOrigin, EarlierScans, FileHistory, OpenedKey
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_keys, open_model_pass
from scanner.detection.rows import flagged_rows, with_canaries, with_ids
from scanner.detection.rules import Rules
from scanner.detection.token_levels import LevelsName, TextLevels, pinned_reader, reader_config, worth_reading
from scanner.input.documents import read_text
from scanner.input.files import InputFile
from scanner.input.shards import Shard, shard_id
from scanner.input.tables import pack_rows
from scanner.results.current_rows import flags
from scanner.results.earlier_scans import read_earlier_scans
from scanner.results.filters import open_filter
from scanner.results.queries import ask
from scanner.results.retention import done_in_frozen_nights
from scanner.results.transactions import Tables, find_committed, open_tables, read_whole
from scanner.scan_plan import Plan
from scanner.storage.data_files import write_file
from schemas.tables import DOCUMENTS, FLAG_READINGS
from schemas.words import WEIGHED, Naming

if TYPE_CHECKING:
    from scanner.generation import TextReader

BYTES_READ_TOGETHER = 2**16
"""Bytes of text that are read together, unless a single text has more."""

SECONDS_A_BYTE = 1e-10
"""Seconds that a model takes for a byte of text, for each byte of its folder, generously: a core multiplies 10¹⁰
numbers a second at least, and a token has two bytes of text and takes each parameter, of two bytes or four, once.
"""

_log = logging.getLogger(__name__)


class FlaggedRows(NamedTuple):
    """Rows of a file that were flagged without weights: those that name somebody or nobody for good; undecided ones."""

    decided: frozenset[int]
    undecided: frozenset[int]


NO_ROWS = FlaggedRows(frozenset(), frozenset())


class ModelPassResult(NamedTuple):
    """Result of a pass of a model, by the digest of its files, None: none is configured.

    texts: that were read; flagged: documents that are flagged by weights and were not before; canaries: of canaries,
    beside these; unproved: flags that a slow path computed differently; left: shards that were not read; given_up:
    documents that ended each worker that read them, and keep the verdict that they have.
    """

    reader_sha256: str | None = None
    texts: int = 0
    flagged: int = 0
    canaries: int = 0
    unproved: int = 0
    left: int = 0
    given_up: int = 0

    def columns(self) -> dict[str, object]:
        """Columns of schemas.tables.SCANS."""
        counts = {"weighed": self.texts, "flagged_weighed": self.flagged, "weighing_left": self.left}
        known = self.reader_sha256 is not None
        return {"reader_sha256": self.reader_sha256, **{name: n if known else None for name, n in counts.items()}}


NO_MODEL_PASS = ModelPassResult()


class ModelPassWorker(Worker):
    """Reads texts with a model, and scores them by levels. Made by the driver with a plan, which holds no secrets.

    Args:
        plan: the plan of the pass (scanner.detection.token_levels.model_pass_of).
        scan_id, memory, earlier: as for Worker; the memory is what it may take beyond the model.
        flagged: rows that were flagged before, by path.
    """

    def __init__(
        self, plan: Plan, scan_id: str, memory: int | None, earlier: EarlierScans, flagged: Mapping[str, FlaggedRows]
    ) -> None:
        super().__init__(plan, scan_id, None, earlier)
        self._more_memory, self._flagged, self._by = memory, flagged, reader_config(plan)

    @cached_property
    def _opened_keys(self) -> list[OpenedKey]:
        return open_keys(self._plan.registry, self._plan.keys)

    @cached_property
    def _levels(self) -> TextLevels:
        return TextLevels.of_keys(self._opened_keys)

    @cached_property
    def _rules(self) -> Rules:
        plan = self._plan
        ngram_filter = open_filter(plan.results, plan.filter_sha256, self._text_ids.ngram_secret())
        return Rules.of(plan.config, plan.keys_tested, ngram_filter)

    @cached_property
    def _detector(self) -> Detector:
        return open_model_pass(self._plan, self._opened_keys, self._levels, self._rules.ngram_filter)

    @cached_property
    def _text_reader(self) -> "TextReader":
        device = "cuda" if ray.is_initialized() and ray.get_gpu_ids() else "cpu"
        return pinned_reader(self._by, self._plan.reader_sha256, device)

    @cached_property
    def _seconds_a_byte(self) -> float:
        return seconds_a_byte(self._plan) + reading_seconds(Path(self._by.model))

    def prepare(self) -> str:
        """Open keys, tokenizers, users and the model, and score a text, so that later ones find all compiled.

        Raises: as Worker.prepare, and as TextReader.
        """
        pa.set_cpu_count(1)
        text = "One, two, three, four: " * 40
        documents = pa.RecordBatch.from_pylist([{"row": 0, "text": text.encode()}], DOCUMENTS)
        self._levels.put([text], self._text_reader.surprise([text]))
        self._detector.score_batch(documents, BatchOrigin("", "", ""))
        if self._more_memory is not None:
            limit_memory(self._more_memory, more=True)
        return ""

    def _observer(self, origin: BatchOrigin, piece: Piece) -> LevelDecoyObserver | None:
        return LevelDecoyObserver(self._decoys, origin, piece.start) if self._decoys else None

    def _take(
        self,
        documents: pa.RecordBatch,
        origin: BatchOrigin,
        observer: DecoyObserver | LevelDecoyObserver | None,
        known: FileHistory,
        batches: dict[str, list[pa.RecordBatch]],
    ) -> None:
        before = self._flagged.get(origin.path, NO_ROWS)
        stored = documents["text"].to_pylist()
        texts = {
            index: text
            for index, row in enumerate(documents["row"].to_pylist())
            if row not in before.decided and (text := read_text(stored[index])[0])
        }
        drawn = self._text_ids.for_model_pass([hashlib.sha256(stored[index]).digest() for index in texts])
        wanted = worth_reading(self._opened_keys, self._rules, self._by, [*texts.values()]) & (drawn < self._by.share)
        to_read = {index: text for (index, text), one in zip(texts.items(), wanted.tolist(), strict=True) if one}
        for some in _together(to_read, self._levels.names([*to_read.values()])):
            # copies are read once: rounding differs by what is read beside, and what is kept of a text is what counted
            each = [*dict.fromkeys(texts[index] for index in some)]
            steps_of = dict(zip(each, self._text_reader.surprise(each), strict=True))
            self._levels.put(each, [*steps_of.values()])
            few = documents.take(pa.array(some))
            result = self._detector.score_batch(few, origin, observer, known)
            verdicts = _as_weighed(with_canaries(result.verdicts, self._plan.canaries_made))
            batches["verdicts"].append(verdicts)
            batches["lengths"].append(result.lengths)
            if verdicts["flagged"].true_count:
                kept = texts_of_flags(few, verdicts)
                if self._plan.config.evidence.keep_text:
                    batches["flag_texts"].append(kept)
                of_row = dict(zip(few["row"].to_pylist(), (steps_of[texts[index]] for index in some), strict=True))
                batches["flag_readings"].append(
                    readings_of_flags(kept, self._plan, [of_row[row].tobytes() for row in kept["row"].to_pylist()])
                )

    def _counts(self, rows: Rows, text_bytes: int, file: InputFile) -> DocumentCounts:
        """As Worker. Flags of rows that were flagged before are no more flags."""
        counts, undecided = super()._counts(rows, text_bytes, file), self._flagged.get(file.path, NO_ROWS).undecided
        flagged_before = sum(
            pc.and_(batch["flagged"], pc.is_in(batch["row"], pa.array(undecided, pa.int64()))).true_count
            for batch in rows.batches["verdicts"]
        )
        return replace(counts, flagged=counts.flagged - flagged_before)

    def _write(self, rows: Rows) -> Files:
        """Write flags, what belongs to them, and decoys: all other rows were written before."""
        batches = rows.batches
        exact = [with_ids(batch, self._text_ids) for batch in batches["verdicts"] if batch["flagged"].true_count]
        tables = {
            "flags": [flagged_rows(batch, self._plan.key_set) for batch in exact],
            **{name: batches[name] for name in ("flag_texts", "flag_readings", "audit_counts")},
        }
        files = {table: write_file(self._plan.results, table, batches) for table, batches in tables.items()}
        return {table: (file,) for table, file in files.items() if file}


def reading_seconds(folder: Path) -> float:
    """Seconds that the model in a folder takes for a byte of text, generously."""
    return SECONDS_A_BYTE * sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def reading_cost(plan: Plan) -> tuple[float, float]:
    """CPU seconds of a pass's model for a byte of text here, and the share of unmarked texts that it reads at most."""
    from scanner.generation.model import SAMPLE_TEXT, TextReader

    by, sample = reader_config(plan), SAMPLE_TEXT * 32
    reader = TextReader(Path(by.model), "cpu", by.dtype)
    reader.surprise([sample])
    began = time.process_time()
    reader.surprise([sample])
    passing = min(1.0, sum(by.cut if key.messages == 1 else 1.0 for key in plan.keys))
    return (time.process_time() - began) / len(sample), by.share * passing


def _together(texts: Mapping[int, str], names: Sequence[Collection[LevelsName]]) -> list[list[int]]:
    """Places of texts, of BYTES_READ_TOGETHER bytes or a single text each, in which texts of one name are copies."""
    found, text_of, size = list[list[int]](), dict[LevelsName, str](), BYTES_READ_TOGETHER
    for (index, text), of_text in zip(texts.items(), names, strict=True):
        more = len(text.encode())
        if size + more > BYTES_READ_TOGETHER or any(text_of.get(name, text) != text for name in of_text):
            found.append([])
            size, text_of = 0, {}
        found[-1].append(index)
        size += more
        text_of |= dict.fromkeys(of_text, text)
    return found


def _as_weighed(exact: pa.RecordBatch) -> pa.RecordBatch:
    """Exact rows of VERDICTS, those that are flagged with the look WEIGHED."""
    look = pc.if_else(exact["flagged"], pa.scalar(WEIGHED), pa.scalar(None, pa.string()))
    return exact.set_column(exact.schema.get_field_index("look"), exact.schema.field("look"), look)


def readings_of_flags(texts: pa.RecordBatch, plan: Plan, surprise: Sequence[bytes]) -> pa.RecordBatch:
    """Rows of FLAG_READINGS. texts: rows of FLAG_TEXTS; surprise: of each."""
    columns = {name: texts[name] for name in FLAG_READINGS.names if name in texts.schema.names}
    columns["reader_sha256"] = pa.repeat(pa.scalar(plan.reader_sha256, pa.string()), len(texts))
    columns["surprise"] = pa.array(surprise, pa.large_binary())
    return pa.RecordBatch.from_arrays([columns[name] for name in FLAG_READINGS.names], schema=FLAG_READINGS)


class ModelPassCommitter(Committer):
    """Commits the shards of the pass. Their documents were counted before; flags alone are more."""

    def _row(self, shard: Shard, counts: DocumentCounts) -> dict[str, object]:
        more = replace(NO_DOCUMENTS, flagged=counts.flagged, canaries=counts.canaries)
        # flags of rows that moved stand, as in scans
        moved = shard.file.rows_not_read(shard.rows.start, shard.rows.stop).all()
        return super()._row(shard, more) | {"rows": 0 if moved else shard.rows.documents}

    def _write_lost(self, finished: FinishedShard) -> Files:
        """Write nothing: a document that cannot be read has its verdict, and in quarantine it would count twice."""
        for lost in finished.lost:
            _log.warning("%s, row %d: the model cannot read it: %s", finished.shard.file.path, lost.row, lost.detail)
        return {}


def shards_of_pass(plan: Plan, shards: Sequence[Shard]) -> list[Shard]:
    """The shards of a pass, for those of a scan, under whichever keys these were scanned."""
    ranges = {(shard.file.path, shard.rows): shard for shard in shards}.values()
    return [
        replace(shard, shard_id=shard_id(shard.file, shard.rows, plan.verdict_settings), keys=()) for shard in ranges
    ]


def shards_not_read(plan: Plan, shards: Sequence[Shard], scanned: Sequence[Shard]) -> list[Shard]:
    """The shards of a pass that no scan has committed, those of tables without rows that a commit moved.

    The verdicts on such rows stand where they were, and so does what a model found there. All that the shards of the
    scan have verdicts on was not moved (scanner.cluster.rewritten).
    """
    tables = Tables(plan.results)
    done = find_committed(tables, "verdicts", [shard.shard_id for shard in shards]) | done_in_frozen_nights(
        tables, shards
    )
    left = [shard for shard in shards if shard.shard_id not in done]
    paths = {shard.file.path for shard in left if shard.file.entry is not None and shard.file.entry.parents}
    if not paths:
        return left
    ids = [shard.shard_id for shard in scanned if shard.file.path in paths]
    verdicts = read_whole(plan.results, "verdicts", pl.Series(sorted(paths))).filter(pl.col("shard_id").is_in(ids))
    rows_of = dict(verdicts.group_by("path").agg("row").collect().iter_rows())

    def without_moved(shard: Shard) -> Shard:
        moved, rows = np.ones(shard.rows.stop, np.bool_), np.array(rows_of.get(shard.file.path, []), np.int64)
        moved[rows[rows < shard.rows.stop]] = False
        return replace(shard, file=replace(shard.file, rewritten=pack_rows(moved)))

    return [without_moved(shard) if shard.file.path in paths else shard for shard in left]


def run_model_pass(
    plan: Plan,
    scan_id: str,
    began: datetime,
    left: Sequence[Shard],
    shards: Sequence[Shard],
    workers: int,
    meanwhile: Callable[[], None],
) -> ModelPassResult:
    """Have a model read the texts of the shards that are left, on a cluster that is connected, and commit its flags.

    A shard whose file cannot be read now is left for a later run.
    began: what the pass saw itself is no earlier sight of a file; shards: those of the scan, whose flags stand. What
    `meanwhile`, called about every second, raises ends the pass, with what is finished committed.

    Raises:
        Refused: a worker cannot begin.
        ScanFailed: results cannot be written.
    """
    tables = ["flag_readings", *["flag_texts"] * plan.config.evidence.keep_text]
    open_tables(plan.results, tables)
    committer, by = ModelPassCommitter(plan, scan_id), reader_config(plan)
    earlier_scans = read_earlier_scans(plan, {shard.file for shard in left}, began, under_way=True)
    known = [replace(shard, first_scanned=earlier_scans.files.get(shard.file.path)) for shard in left]
    pace = PiecePace(seconds_a_byte(plan) + reading_seconds(Path(by.model)))
    workers, gpus = min(workers, pace.pieces_of(known)), by.gpus
    fit, missing = fit_gpus(gpus, workers, "weights_by.gpus")
    if not fit:
        _log.warning("%s; the model reads on CPUs", missing)
        gpus = 0.0
    actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(ModelPassWorker)
    given = ray.put(plan), scan_id, worker_memory(plan.config.cluster), ray.put(earlier_scans._replace(files={}))
    before = ray.put(_flagged_rows(plan, shards))
    pool = Pool(
        lambda: actor.remote(*given, before),
        fit or workers,
        plan.config.cluster.stall_seconds,
        on_devices=gpus > 0,
        pace=pace,
    )
    faulty = 0
    try:
        for finished in pool.run(pack_shards(known, fit or workers)):
            meanwhile()
            if isinstance(finished, FinishedShard) and finished.fault is not None:
                faulty += 1
            elif finished is not None:
                committer.add(finished)
            if committer.due():
                committer.flush()
    finally:
        pool.close()
        committer.flush()
    counts = committer.totals.counts
    read = counts.documents - counts.quarantined
    found = counts.flagged, counts.canaries, counts.unproved
    return ModelPassResult(plan.reader_sha256, read, *found, faulty, counts.quarantined)


def _flagged_rows(plan: Plan, shards: Sequence[Shard]) -> dict[str, FlaggedRows]:
    """Rows of each path that are flagged without weights."""
    of_shards = pl.col("shard_id").is_in([shard.shard_id for shard in shards])
    rows = ask(plan.results, lambda: flags(plan.results).filter(of_shards).select("path", "row", "naming").collect())
    found: dict[str, tuple[set[int], set[int]]] = {}
    for path, row, naming in rows.iter_rows():
        found.setdefault(path, (set(), set()))[naming == Naming.UNDECIDED].add(row)
    return {path: FlaggedRows(*map(frozenset, rows)) for path, rows in found.items()}

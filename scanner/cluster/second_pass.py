"""The pass over flagged documents that gives them a second score, after a scan and in actors of its own.

The pass follows the scan, and is no part of it. So verdicts are committed as without it, the flags are known, and a
model is loaded only where it is needed. A run that was killed finds the rest by looking for the flagged shards that
have no second scores yet. Each shard's rows are committed once, as in other tables.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
import ray

from scanner.cluster.machines import fit_gpus, limit_memory, worker_memory
from scanner.cluster.pieces import Busy, Finished, Piece, Report
from scanner.cluster.pool import Pool
from scanner.detection.open_plan import open_text_ids
from scanner.detection.scan_plan import Plan
from scanner.detection.second_score import SecondScorer, Verdict, keys_with_draws, second_row, transaction
from scanner.errors import FileFault
from scanner.input.documents import UNKNOWN, Identity, Reader, Unreadable, read_text
from scanner.input.shards import Shard
from scanner.results.filters import open_filter
from scanner.results.queries import flagged_in
from scanner.results.tables import open_tables
from scanner.results.transactions import TableEntry, commit, committed, write_file
from scanner.text.normal_form import normalise
from schemas.config import SecondScoreConfig
from schemas.tables import SECOND_SCORES

_log = logging.getLogger(__name__)

TABLE = "second_scores"
NEEDED = ("shard_id", "path", "row", "doc_id", "key_id", "message", "variant")
"""Columns of a verdict that go to the workers: no names."""

Flagged = Mapping[str, Mapping[int, Verdict]]
"""Flagged documents that are to be scored: their verdicts, by shard and row."""

TOGETHER = 2**14
"""Bytes of text that are scored together, unless a single text has more."""

BYTES_A_STALL = 2**11
"""Bytes of text that get another `stall_seconds` with a model: about what goes through it at a time, if a token is a
byte.
"""


def flagged_without(plan: Plan, second: SecondScoreConfig, shards: Sequence[Shard]) -> Flagged:
    """Flagged documents of these shards that have no second score by these settings.

    Undecided documents are left out: a score of a message that is not shown would reveal the message.

    Raises:
        Refused: the table cannot be opened or made.
    """
    open_tables(plan.results, [TABLE])
    keys = [key.key_id for key in keys_with_draws(plan)]
    rows = flagged_in(plan.results, [shard.shard_id for shard in shards], keys).select(NEEDED).drop_nulls("message")
    found = {str(shard): part for (shard,), part in rows.group_by(pl.col("shard_id"))}
    names = {transaction(shard, second): shard for shard in found}
    for done in committed(plan.results, TABLE, names):
        del found[names[done]]
    return {shard: {row["row"]: row for row in part.iter_rows(named=True)} for shard, part in found.items()}


class SecondWorker:
    """Scores flagged documents of pieces. Made by the driver with a plan, which holds no secrets.

    Args:
        plan: the scan's plan.
        second: how its second scores are computed.
        scan_id: id of this run.
        flagged: the documents to be scored.
        memory: bytes that this process may take beyond what it has when it begins, a model included.
    """

    def __init__(self, plan: Plan, second: SecondScoreConfig, scan_id: str, flagged: Flagged, memory: int) -> None:
        self._plan, self._second, self._scan_id, self._flagged, self._memory = plan, second, scan_id, flagged, memory
        self._reader = Reader()

    @cached_property
    def _scorer(self) -> SecondScorer:
        plan = self._plan
        without = open_filter(plan.results, plan.filter_sha256, open_text_ids(plan).ngram_secret())
        return SecondScorer(plan, self._second, "cuda" if ray.get_gpu_ids() else "cpu", without)

    def prepare(self) -> None:
        """Open keys, tokenizers and the model on this machine, and limit its memory; raises as SecondScorer does."""
        pa.set_cpu_count(1)
        self._scorer.rehearse()
        limit_memory(self._memory, more=True)

    def scan(self, piece: Piece) -> Iterator[Busy | Report]:
        """Read the flagged documents of a piece again, score them and write the rows: signs of life, then a report.

        Raises:
            ScanFailed: results cannot be written.
            MemoryError: it needs more than this process may take.
        """
        flagged = self._flagged[piece.shard.shard_id]
        left = {row: verdict for row, verdict in flagged.items() if piece.start <= row < piece.stop}
        batches = []
        try:
            parts = self._reader.read(piece.shard.file, self._plan.columns, piece.start, piece.stop) if left else ()
            for part in parts:
                most = 0 if piece.one_by_one else TOGETHER
                for verdicts, texts, size in () if isinstance(part, Unreadable) else _found(part, left, most):
                    yield self._busy(size, verdicts[0]["row"] if piece.one_by_one else None)
                    batches.append(self._scorer.score(verdicts, texts, self._scan_id))
        except FileFault as fault:
            yield Report(fault=fault)
            return
        yield self._busy(0)  # to write is no document's fault
        lost = [
            second_row(verdict, self._scan_id, self._second) | {"fault": "unreadable: it was readable once"}
            for verdict in left.values()
        ]
        batches.append(pa.RecordBatch.from_pylist(lost, SECOND_SCORES))
        written = write_file(self._plan.results, TABLE, batches)
        yield Report({TABLE: (written,)} if written else {})

    def identify(self, _piece: Piece) -> Iterator[Identity]:
        """Empty: a document's verdict says whose it is."""
        yield UNKNOWN

    def _busy(self, text_bytes: int, row: int | None = None) -> Busy:
        passes = text_bytes // BYTES_A_STALL if self._second.model else 0
        return Busy(self._plan.config.cluster.stall_seconds * (1 + passes), row=row)


def _found(
    documents: pa.RecordBatch, left: dict[int, Verdict], most: int
) -> Iterator[tuple[list[Verdict], list[str], int]]:
    """Wanted documents among some, at most so many bytes of text or one document together, taken out there."""
    verdicts: list[Verdict] = []
    texts: list[str] = []
    size = 0
    for i, row in enumerate(documents["row"].to_pylist()):
        if row not in left:
            continue
        raw = documents["text"][i].as_py()
        text, _, _ = read_text(raw)
        if text is None:
            continue
        if texts and size + len(raw) > most:
            yield verdicts, texts, size
            verdicts, texts, size = [], [], 0
        verdicts.append(left.pop(row))
        texts.append(normalise(text) if verdicts[-1].get("variant") == "normalised" else text)
        size += len(raw)
    if texts:
        yield verdicts, texts, size


def second_pass(plan: Plan, second: SecondScoreConfig, scan_id: str, shards: Sequence[Shard], flagged: Flagged) -> int:
    """Give a second score to flagged documents, on a cluster that is connected. Returns how many rows were committed.

    A document that cannot be scored gets a row with a fault. A shard whose file cannot be read now is left for a later
    run.

    Raises:
        Refused: a worker cannot begin.
        ScanFailed: results cannot be written.
    """
    todo = [shard for shard in shards if shard.shard_id in flagged]
    workers, gpus = min(second.workers, len(todo)), second.gpus
    fit, missing = fit_gpus(gpus, workers, "second_score.gpus")
    if fit:
        workers = fit
    else:
        gpus = 0.0
        _log.warning("%s; second scores are computed on CPUs", missing)
    actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(SecondWorker)
    shared, given, memory = ray.put(plan), ray.put(flagged), worker_memory(plan.config.cluster)
    stall_seconds = plan.config.cluster.stall_seconds
    pool = Pool(
        lambda: actor.remote(shared, second, scan_id, given, memory), workers, stall_seconds, on_devices=gpus > 0
    )
    rows = 0
    try:
        for finished in pool.run(todo):
            if isinstance(finished, Finished) and finished.fault is None:
                rows += _commit(plan, second, scan_id, finished, flagged[finished.shard.shard_id])
    finally:
        pool.close()
    return rows


def _commit(
    plan: Plan, second: SecondScoreConfig, scan_id: str, finished: Finished, flagged: Mapping[int, Verdict]
) -> int:
    """Commit the rows of a shard, lost documents included. Returns how many; 0 when another run was first."""
    files = [file for report in finished.reports for file in report.files.get(TABLE, ())]
    lost = [
        second_row(flagged[lost.row], scan_id, second) | {"fault": f"{lost.reason}: {lost.detail}"}
        for lost in finished.lost
        if lost.row in flagged
    ]
    written = write_file(plan.results, TABLE, [pa.RecordBatch.from_pylist(lost, SECOND_SCORES)])
    entry = TableEntry(transaction(finished.shard.shard_id, second), (*files, written) if written else tuple(files))
    return sum(file.rows for file in entry.files) if commit(plan.results, TABLE, [entry]) else 0

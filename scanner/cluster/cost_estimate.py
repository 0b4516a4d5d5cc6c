"""Estimate the cost of a scan before it runs: read and score a sample of its documents as a worker does, and keep none.

Places of the sample are spread evenly over the documents that are left, so each shard is sampled in proportion to its
documents. The mean cost per sampled document is then that of all documents, even if the shards differ.
"""

import heapq
import math
import os
import statistics
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from scanner.cluster.machines import peak_memory
from scanner.cluster.pieces import Seconds
from scanner.cluster.todo import PiecePace
from scanner.controls.control import Subject
from scanner.controls.observation import OpenControls
from scanner.detection.attribution import BatchOrigin, ScoreObserver
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_detector
from scanner.errors import FileFault
from scanner.input.documents import Unreadable, read
from scanner.input.shards import Shard
from scanner.scan_plan import Plan

PLACES_SAMPLED = 12
"""Most places of the input at which documents are sampled."""

SECONDS_A_PLACE = 0.5
"""Approximate seconds for which documents of a place are scored."""

FIRST_SAMPLE = 16
"""Number of documents that are scored first, to see how long they take."""

LONGEST_SAMPLED = 2**20
"""Most bytes of a sampled text. Longer texts are left out because of the memory that they may take."""


class Sample(NamedTuple):
    """Cost and content of a place.

    seconds: of reading and scoring a document.
    documents: number of scored documents.
    text_bytes: their bytes.
    too_short: number of them that are too short for every key.
    filtered: number of them that the filter makes too short.
    refused: number of them that would be put in quarantine.
    unread: number of them with an id, account or time that is not read.
    """

    seconds: float
    documents: int
    text_bytes: int
    too_short: int
    filtered: int
    refused: int
    unread: int


class CostEstimate(NamedTuple):
    """The cost of the documents that are left.

    core_seconds: of all workers together.
    low, high: limits of core_seconds, two standard errors of the sample away.
    seconds: of wall time, without the start of Ray.
    workers: number of workers that have something to do.
    memory: most bytes that this process has needed. It holds the same as a worker.
    samples: by place.
    """

    core_seconds: float
    low: float
    high: float
    seconds: float
    workers: int
    memory: int
    samples: tuple[Sample, ...]


def estimate(plan: Plan, left: Sequence[Shard], workers: int) -> CostEstimate | None:
    """Score a sample of the documents that are left, and estimate the cost of all of them.

    Args:
        plan: the scan's plan. Its keys are opened in this process, and scored on its CPU.
        left: shards that are left.
        workers: number of workers of the scan.

    Returns:
        The estimate. None: no document can be read.

    Raises:
        SecretError, TokenizerError, Refused: as open_detector and OpenControls.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as a worker does
    pa.set_cpu_count(1)
    detector, controls = open_detector(plan), OpenControls(plan)
    detector.compile(controls.rehearsal())
    samples = list[Sample]()
    for shard, count in spread_evenly(left, PLACES_SAMPLED).items():
        origin = BatchOrigin("", shard.shard_id, shard.file.path)
        observers = controls.observers(Subject.TEXTS, origin, f"{shard.shard_id};{shard.rows.start};", detector)
        samples += _samples(plan, shard, count, _scorer(detector, origin, observers))
    return project(samples, [shard.rows.documents for shard in left], workers) if samples else None


def spread_evenly(shards: Sequence[Shard], count: int) -> Counter[Shard]:
    """Count the sampled documents of each shard that has any.

    All documents are cut into `count` equal parts, and the middle document of each part is sampled.
    """
    ends = list(accumulate(shard.rows.documents for shard in shards))
    total = ends[-1] if ends else 0
    count = min(count, total)
    middles = [total * (2 * i + 1) // (2 * count) for i in range(count)]
    return Counter(shards[bisect_right(ends, middle)] for middle in middles)


def project(samples: Sequence[Sample], documents: Sequence[int], workers: int) -> CostEstimate:
    """Estimate the cost of shards with so many documents, if they cost as much as those of the sample.

    samples: at least one.
    """
    costs = [sample.seconds for sample in samples]
    mean, total, pace = statistics.fmean(costs), sum(documents), PiecePace()
    pace.record(1, Seconds(score=mean))
    pieces = [number / parts for number in documents for parts in [pace.pieces(number, 0)] for _ in range(parts)]
    workers = min(workers, len(pieces))
    error = statistics.stdev(costs) / math.sqrt(len(costs)) if len(costs) > 1 else mean / 2
    low, high = max(mean - 2 * error, 0.0), mean + 2 * error
    seconds = shared_out([mean * number for number in pieces], workers)
    return CostEstimate(mean * total, low * total, high * total, seconds, workers, peak_memory(), tuple(samples))


def shared_out(costs: Iterable[float], workers: int) -> float:
    """Return when the last worker finishes, if each takes the next piece of work as soon as it is free."""
    free = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


Score = Callable[[pa.RecordBatch], tuple[int, int, int]]
"""Function that scores documents. It returns the numbers that are too short, are filtered, and cannot be scored."""


def _scorer(detector: Detector, origin: BatchOrigin, observer: ScoreObserver | None) -> Score:
    def score(documents: pa.RecordBatch) -> tuple[int, int, int]:
        verdicts, refused, *_ = detector.score_batch(documents, origin, observer)
        status = verdicts["status"].to_pylist()
        return status.count("too_short"), status.count("filtered"), len(refused)

    return score


def _samples(plan: Plan, shard: Shard, count: int, score: Score) -> list[Sample]:
    """Read the first documents of a shard, and score some of them at each of `count` places."""
    began = time.perf_counter()
    try:
        batches = read(shard.file, plan.columns, shard.rows.start, shard.rows.stop)
        batch = next((batch for batch in batches if not isinstance(batch, Unreadable)), None)
    except FileFault:
        return []
    if batch is None:
        return []
    reading = (time.perf_counter() - began) / len(batch)
    batch = batch.filter(pc.less_equal(pc.fill_null(pc.binary_length(batch["text"]), 0), LONGEST_SAMPLED))
    bounds = [len(batch) * i // count for i in range(count + 1)]
    samples = []
    for begin, end in pairwise(bounds):
        if begin < end:
            seconds, rows, (too_short, filtered, refused) = time_scores(score, batch.slice(begin, end - begin))
            unread = pc.sum(rows["unread"], min_count=0).as_py()
            cost = reading + seconds / len(rows)
            samples.append(Sample(cost, len(rows), rows["text"].nbytes, too_short, filtered, refused, unread))
    return samples


def time_scores(
    score: Score, batch: pa.RecordBatch, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, pa.RecordBatch, tuple[int, int, int]]:
    """Score the first rows of a batch, with more rows each time until it takes long enough.

    Return the seconds, rows and result of the last time.
    """
    size = FIRST_SAMPLE
    while True:
        rows = batch.slice(0, size)
        began = clock()
        scores = score(rows)
        seconds = clock() - began
        if len(rows) == len(batch) or seconds >= SECONDS_A_PLACE / 2:
            return seconds, rows, scores
        size = len(rows) * min(max(int(SECONDS_A_PLACE / max(seconds, 1e-9)), 2), 16)

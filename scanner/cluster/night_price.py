"""The cost of a document on this machine, and of a night on machines like it.

A worker scans made-up nights of real text, in this process. Two lengths of documents give the cost of a document and of
each token more. A night in which nearly half of the texts is flagged gives what the proof of a flag costs: its work is
the same whether a text is marked or passes by chance.

A night's cost follows from measured documents: it is linear in their tokens, with a proof for each flag.

Before a scan of files that are there, a sample of their documents is read and scored as by a worker, and nothing is
kept. Places of the sample are spread evenly over the documents that are left, so that a shard is met in proportion to
its documents; then the mean of the costs per document that were met is that of all documents, however unlike the shards
are.
"""

import heapq
import math
import os
import statistics
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scanner.audit.in_every_scan.decoy_keys import open_decoys
from scanner.audit.in_every_scan.decoys import DecoyObserver, Rehearsal
from scanner.cluster.machines import peak_memory
from scanner.cluster.pieces import Piece, Report, Seconds
from scanner.cluster.todo import PiecePace
from scanner.cluster.work import inspect_input
from scanner.cluster.worker import Worker
from scanner.detection.attribution import BatchOrigin, ScoreObserver
from scanner.detection.detector import Detector
from scanner.detection.open_plan import open_detector
from scanner.errors import FileFault, Refused
from scanner.input.documents import Unreadable, read
from scanner.input.files import list_files
from scanner.input.shards import Shard
from scanner.registry import new_key, suggested_parameters
from scanner.results.transactions import open_tables
from scanner.scan_plan import Plan, make_plan
from scanner.watermark.formats import FORMATS
from scanner.watermark.native.format import groups_for
from schemas.config import WeightsByConfig
from schemas.tables import STAGES
from schemas.words import VERSION

FORMATS_WITH_GROUPS = tuple(name for name, entry in FORMATS.items() if "groups" in entry.model_fields)
"""Formats whose users stand in groups, so that a key has room for any number of them."""

TOKENS_OF_SHORT, TOKENS_OF_LONG = 50, 400
"""Tokens of a document, about: of the two nights that are compared."""

_FIRST, _MOST = 16, 10_000  # documents
_SECONDS = 1.0  # that a round takes, about
_FLAGGING = 0.4  # a false-positive rate at which many texts pass
_CONFIG = f"""\
version = {VERSION}
registry = "registry"
results = "results"
false_positive_rate = {{rate}}
[input]
paths = ["in"]
id = "id"
"""


class MeasuredCost(NamedTuple):
    """Core-seconds under one key with so many users.

    tokens: of a document, mean; rounds: CPU seconds of a document by stage, without commits, in each round; documents:
    of a round; proof: CPU seconds of the proof of a flag; None: not measured.
    """

    key_format: str
    users: float
    tokens: float
    rounds: list[dict[str, float]]
    documents: int
    proof: float | None = None


def measure(
    formats: Sequence[str], users: Sequence[float], tokenizer: Path, texts: Sequence[str], rounds: int
) -> Iterator[MeasuredCost]:
    """Measure each format with each number of users, at two lengths of documents.

    formats: of FORMATS_WITH_GROUPS; rounds: how often each is measured, for about a second.

    Raises:
        Refused, TokenizerError: as for a scan.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in formats:
        for number in users:
            with tempfile.TemporaryDirectory() as folder:
                night = _Night(Path(folder), name, number, tokenizer, texts)
                yield night.measured(TOKENS_OF_SHORT, rounds)
                yield night.measured(TOKENS_OF_LONG, rounds, proofs=True)


class _Night:
    def __init__(self, folder: Path, name: str, users: float, tokenizer: Path, texts: Sequence[str]) -> None:
        self._folder, self._name, self._users = folder, name, users
        groups = groups_for(users)
        new_key(
            folder / "registry",
            "key",
            format=name,
            messages=groups**2,
            tokenizer=tokenizer,
            **suggested_parameters(name) | {"groups": groups},
        )
        (folder / "in").mkdir()
        self._words = " ".join(texts).split(" ")

    def measured(self, tokens: int, rounds: int, *, proofs: bool = False) -> MeasuredCost:
        worker, number = self._worker(1e-6), _FIRST
        while (seconds := self._scan(worker, tokens, number)[0]) < _SECONDS / 2 and number < _MOST:
            number = min(_MOST, int(number * min(max(_SECONDS / max(seconds, 1e-9), 2), 16)))
        found = [self._scan(worker, tokens, number) for _ in range(rounds)]
        costs = [_by_stage(seconds / number, report) for seconds, report in found]
        length = found[0][1].counts.tokens / number
        proof = self._proof(tokens, min(number, 200)) if proofs else None
        return MeasuredCost(self._name, self._users, length, costs, number, proof)

    def _proof(self, tokens: int, number: int) -> float | None:
        worker = self._worker(_FLAGGING)
        self._scan(worker, tokens, _FIRST)
        seconds, report = self._scan(worker, tokens, number)
        share = report.seconds.prove / report.seconds.of_workers
        flags = report.counts.proved + report.counts.unproved
        return seconds * share / flags if flags else None

    def _worker(self, rate: float) -> Worker:
        (self._folder / "scan.toml").write_text(_CONFIG.format(rate=rate), encoding="utf-8")
        self._plan = make_plan(self._folder / "scan.toml")
        open_tables(self._plan.results)
        worker = Worker(self._plan, "bench")
        worker.prepare()
        return worker

    def _scan(self, worker: Worker, tokens: int, number: int) -> tuple[float, Report]:
        """CPU seconds of this process for so many documents, and the worker's report."""
        shard = self._write(tokens, number)
        began = time.process_time()
        *_, report = worker.scan(Piece(shard, 0, number))
        assert isinstance(report, Report)  # noqa: S101 - the last that a worker gives
        return time.process_time() - began, report

    def _write(self, tokens: int, number: int) -> Shard:
        words = int(tokens / 1.4)  # of English, by most tokenizers; how many tokens these were is counted
        texts = [" ".join(self._words[i % len(self._words) :][:words]) for i in range(0, number * words, words)]
        file = self._folder / "in" / "night.parquet"
        pq.write_table(pa.table({"id": [str(i) for i in range(number)], "text": texts}), file)
        return inspect_input(self._plan, list_files(self._plan.locations)).shards[0]


def _by_stage(seconds: float, report: Report) -> dict[str, float]:
    clock = report.seconds
    return {stage: seconds * getattr(clock, stage) / clock.of_workers for stage in STAGES if stage != "commit"}


class NightPrice(NamedTuple):
    """Core-seconds of a night under one key, by stage; low, high: its sum by the cheapest and the dearest rounds."""

    key_format: str
    stages: dict[str, float]
    low: float
    high: float
    rounds: int

    @property
    def seconds(self) -> float:
        """Core-seconds of all stages."""
        return sum(self.stages.values())


def price_night(
    measured: Sequence[MeasuredCost], documents: float, tokens: float, users: float, flagged: float
) -> list[NightPrice]:
    """Price of a night for each format that was measured with so many users.

    Raises:
        Refused: it was measured with other numbers of users, or not at two lengths.
    """
    fitting = [one for one in measured if one.users == users]
    if not fitting:
        known = ", ".join(f"{number:g}" for number in sorted({one.users for one in measured}))
        raise Refused(
            f"--users {users:g}: measured for {known or 'none'}; give one of these, or measure with "
            f"`brickscan bench --quick --users {users:g}`"
        )
    by_format: dict[str, list[MeasuredCost]] = {}
    for one in fitting:
        by_format.setdefault(one.key_format, []).append(one)
    if any(len({one.tokens for one in lengths}) != 2 or len(lengths) != 2 for lengths in by_format.values()):
        raise Refused("--figures: two lengths of documents are needed for each format; measure again")
    return [_price(lengths, documents, tokens, flagged) for lengths in by_format.values()]


OPERATIONS_A_SECOND = 1e13
"""Operations of a GPU in a second while one worker's model reads texts, as measured on an H200."""

READER_PARAMETERS = 1e8
"""Parameters for which the price of a model's reading is stated. Twice as many take twice as long."""


def price_reading(documents: float, tokens: float, users: float, flagged: float) -> tuple[float, float]:
    """Most unmarked documents that a model of `[weights_by]` reads, and GPU hours for so many: an estimate.

    A forward pass is two operations for each parameter and token. What is flagged already is not read. Under a key for
    one user alone, only what passes the cut is.
    """
    share = 1.0 if users > 1 else WeightsByConfig.model_fields["cut"].default
    read = documents * (1.0 - flagged) * share
    return read, read * tokens * 2.0 * READER_PARAMETERS / OPERATIONS_A_SECOND / 3600.0


def _price(lengths: Sequence[MeasuredCost], documents: float, tokens: float, flagged: float) -> NightPrice:
    short, long = sorted(lengths, key=lambda one: one.tokens)
    share = (tokens - short.tokens) / (long.tokens - short.tokens)

    def at(one: float, other: float) -> float:
        return max(one + share * (other - one), 0.0)

    def middle(of: MeasuredCost, stage: str) -> float:
        return statistics.median(cost[stage] for cost in of.rounds)

    sums = [[sum(cost.values()) for cost in of.rounds] for of in (short, long)]
    proofs = flagged * (long.proof or 0.0) * tokens / long.tokens
    stages = {stage: documents * at(middle(short, stage), middle(long, stage)) for stage in short.rounds[0]}
    stages["prove"] += documents * proofs
    low, high = (documents * (at(least(sums[0]), least(sums[1])) + proofs) for least in (min, max))
    return NightPrice(short.key_format, stages, low, high, len(short.rounds))


PLACES_SAMPLED = 12
"""Most places of the input at which documents are sampled."""

SECONDS_A_PLACE = 0.5
"""Seconds for which documents of a place are scored, about."""

FIRST_SAMPLE = 16
"""Documents that are scored at first, to see how long they take."""

LONGEST_SAMPLED = 2**20
"""Most bytes of a sampled text; longer ones are left out, for the memory that they may take."""


class Sample(NamedTuple):
    """Cost and content of a place.

    seconds: of reading and scoring a document; documents: how many were scored; text_bytes: their bytes; too_short,
    filtered, refused, unread: how many are too short for every key, are made so by the filter, are to be put in
    quarantine, and have an id, account or time that is not read.
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

    core_seconds: of the workers together; low, high: its limits, two standard errors of the sample; seconds: of wall
    time, without the start of Ray; workers: as many as have something to do; memory: bytes that this process, which
    holds what a worker holds, has needed at most; samples: by place.
    """

    core_seconds: float
    low: float
    high: float
    seconds: float
    workers: int
    memory: int
    samples: tuple[Sample, ...]


def estimate(plan: Plan, left: Sequence[Shard], workers: int) -> CostEstimate | None:
    """Score a sample of what is left, and estimate the cost of all of it; None where no document can be read.

    plan: the scan's plan; its keys are opened in this process, and scored on its CPU.

    Raises:
        SecretError, TokenizerError, Refused: as open_detector and open_decoys.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as a worker does
    pa.set_cpu_count(1)
    detector, decoys = open_detector(plan), open_decoys(plan)
    detector.compile(Rehearsal(decoys) if decoys else None)
    samples = list[Sample]()
    for shard, count in spread_evenly(left, PLACES_SAMPLED).items():
        origin = BatchOrigin("", shard.shard_id, shard.file.path)
        observer = DecoyObserver(decoys, origin, shard.rows.start, detector) if decoys else None
        samples += _samples(plan, shard, count, _scorer(detector, origin, observer))
    return project(samples, [shard.rows.documents for shard in left], workers) if samples else None


def spread_evenly(shards: Sequence[Shard], count: int) -> Counter[Shard]:
    """How many of the documents in the middle of so many equal parts of all documents a shard holds; where it is 1."""
    ends = list(accumulate(shard.rows.documents for shard in shards))
    total = ends[-1] if ends else 0
    count = min(count, total)
    middles = [total * (2 * i + 1) // (2 * count) for i in range(count)]
    return Counter(shards[bisect_right(ends, middle)] for middle in middles)


def project(samples: Sequence[Sample], documents: Sequence[int], workers: int) -> CostEstimate:
    """Cost of shards of so many documents, if they cost as much as the sample's, at least one."""
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
    """When the last worker is done, if each takes the next piece of work as soon as it is free."""
    free = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


Score = Callable[[pa.RecordBatch], tuple[int, int, int]]
"""Function that scores documents; returns how many are too short, are filtered, and cannot be scored."""


def _scorer(detector: Detector, origin: BatchOrigin, observer: ScoreObserver | None) -> Score:
    def score(documents: pa.RecordBatch) -> tuple[int, int, int]:
        verdicts, refused, *_ = detector.score_batch(documents, origin, observer)
        status = verdicts["status"].to_pylist()
        return status.count("too_short"), status.count("filtered"), len(refused)

    return score


def _samples(plan: Plan, shard: Shard, count: int, score: Score) -> list[Sample]:
    """Read the first documents of a shard, and score some at so many places among them."""
    began = time.perf_counter()
    try:
        batches = read(shard.file, plan.columns, shard.rows.start, shard.rows.stop)
        batch = next((one for one in batches if not isinstance(one, Unreadable)), None)
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
    """Score the first rows of a batch, more and more until it takes long enough.

    Returns the last time's seconds and result.
    """
    most = FIRST_SAMPLE
    while True:
        rows = batch.slice(0, most)
        began = clock()
        found = score(rows)
        seconds = clock() - began
        if len(rows) == len(batch) or seconds >= SECONDS_A_PLACE / 2:
            return seconds, rows, found
        most = len(rows) * min(max(int(SECONDS_A_PLACE / max(seconds, 1e-9)), 2), 16)

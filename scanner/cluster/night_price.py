"""The cost of a document on this machine, and of a night on machines like it.

A worker scans made-up nights of real text, in this process. Two lengths of documents give the cost of a document and of
each token more. A night in which nearly half of the texts is flagged gives what the proof of a flag costs: its work is
the same whether a text is marked or passes by chance.

A night's cost follows from measured documents: it is linear in their tokens, with a proof for each flag.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from scanner.cluster.pieces import Piece, Report
from scanner.cluster.work import inspect_input
from scanner.cluster.worker import Worker
from scanner.errors import Refused
from scanner.input.files import list_files
from scanner.input.shards import Shard
from scanner.registry import new_key, suggested_parameters
from scanner.results.transactions import open_tables
from scanner.scan_plan import make_plan
from scanner.watermark.formats import FORMATS
from scanner.watermark.native.format import groups_for
from schemas.config import WeightsByConfig
from schemas.tables import STAGES

GROUPED = tuple(name for name, entry in FORMATS.items() if "groups" in entry.model_fields)
"""Formats whose users stand in groups, so that a key has room for any number of them."""

SHORT, LONG = 50, 400
"""Tokens of a document, about: of the two nights that are compared."""

_FIRST, _MOST = 16, 10_000  # documents
_SECONDS = 1.0  # that a round takes, about
_FLAGGING = 0.4  # a false-positive rate at which many texts pass
_CONFIG = """\
version = 0
registry = "registry"
results = "results"
false_positive_rate = {rate}
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

    Args:
        formats: of GROUPED.
        users: users of a key.
        tokenizer: a tokenizer.json.
        texts: real text, of which documents are made.
        rounds: how often each is measured, for about a second.

    Raises:
        Refused, TokenizerError: as for a scan.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in formats:
        for number in users:
            with tempfile.TemporaryDirectory() as folder:
                night = _Night(Path(folder), name, number, tokenizer, texts)
                yield night.measured(SHORT, rounds)
                yield night.measured(LONG, rounds, proofs=True)


class _Night:
    """A registry of one key, and documents to scan under it."""

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
        """Cost of documents of so many tokens, about."""
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
    """Seconds shared out to the stages as the worker's clock says."""
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

    Args:
        measured: of scanner.cluster.night_price.
        documents: of the night.
        tokens: of a document.
        users: of a key.
        flagged: share of the documents.

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


OPERATIONS_A_SECOND = 1e14
"""Operations of a GPU in a second while a model reads texts: an assumption, since no GPU was there to measure."""

PARAMETERS = 1e8
"""Parameters for which the price of a model's reading is stated. Twice as many take twice as long."""


def price_reading(documents: float, tokens: float, users: float, flagged: float) -> tuple[float, float]:
    """Most unmarked documents that a model of `[weights_by]` reads, and GPU hours for so many: an estimate.

    A forward pass is two operations for each parameter and token. What is flagged already is not read. Under a key for
    one user alone, only what passes the cut is.
    """
    share = 1.0 if users > 1 else WeightsByConfig.model_fields["cut"].default
    read = documents * (1.0 - flagged) * share
    return read, read * tokens * 2.0 * PARAMETERS / OPERATIONS_A_SECOND / 3600.0


def _price(lengths: Sequence[MeasuredCost], documents: float, tokens: float, flagged: float) -> NightPrice:
    short, long = sorted(lengths, key=lambda one: one.tokens)
    share = (tokens - short.tokens) / (long.tokens - short.tokens)

    def at(one: float, other: float) -> float:
        return max(one + share * (other - one), 0.0)

    def middle(of: MeasuredCost, stage: str) -> float:
        return median(cost[stage] for cost in of.rounds)

    sums = [[sum(cost.values()) for cost in of.rounds] for of in (short, long)]
    proofs = flagged * (long.proof or 0.0) * tokens / long.tokens
    stages = {stage: documents * at(middle(short, stage), middle(long, stage)) for stage in short.rounds[0]}
    stages["prove"] += documents * proofs
    low, high = (documents * (at(least(sums[0]), least(sums[1])) + proofs) for least in (min, max))
    return NightPrice(short.key_format, stages, low, high, len(short.rounds))

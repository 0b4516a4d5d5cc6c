"""The pass that learns which n-grams many texts hold, after the documents of a scan, for the filters of later nights.

One worker reads a sample of the texts once more, and its sketches are committed once under a name that hashes their
shards. A pass that was killed is made anew by the next scan of the same input. Nothing that it learns is read on the
same night (scanner.results.filters).
"""

import hashlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa

from scanner.cluster.in_flight import on_actors
from scanner.detection.filter import Learner
from scanner.detection.open_plan import open_keys, open_text_ids
from scanner.detection.scan_plan import Plan
from scanner.errors import FileFault
from scanner.input.documents import Reader, Unreadable
from scanner.input.shards import Shard
from scanner.results.filters import SKETCHES_TABLE, drop_sketches, write_sketches
from scanner.results.tables import open_tables
from scanner.results.transactions import DataFile, Entry, commit, committed
from scanner.storage.canonical import digest
from scanner.watermark.ngram_filter import MOST_NGRAMS

MOST_SHARDS = 64
"""Shards that are read; of more, those are drawn whose digests are least."""

BYTES_A_TOKEN = 4
"""Bytes of text a token, roughly, by which a share of the texts is drawn."""


class Lesson(NamedTuple):
    """Texts to be learnt from: shards, and the share of their texts. unit: name by which what is learnt is committed.

    most: n-grams at most.
    """

    unit: str
    night: str
    shards: tuple[Shard, ...]
    share: float
    most: int


class FilterWorker:
    """Learns n-grams of a sample of texts. Made by the driver with a plan, which holds no secrets."""

    def __init__(self, plan: Plan, scan_id: str) -> None:
        self._plan, self._scan_id, self._reader = plan, scan_id, Reader()

    def do(self, lesson: Lesson) -> DataFile | None:
        """Read, learn, and write the sketches to a file. Files that cannot be read now are left out.

        Raises:
            Refused: keys, tokenizers or the audit secret cannot be opened.
            ScanFailed: the sketches cannot be written.
        """
        pa.set_cpu_count(1)
        plan = self._plan
        keys, ids = open_keys(plan.registry, plan.keys), open_text_ids(plan)
        by_account = plan.config.input.account is not None
        learner = Learner(keys, ids, lesson.share, lesson.most, plan.config.min_scored, by_account=by_account)
        for shard in lesson.shards:
            if not learner.full:
                self._learn(learner, shard)
        about = {"scan_id": self._scan_id, "unit": lesson.unit, "night": lesson.night, "ngrams": learner.ngrams}
        return write_sketches(plan.results, learner.sketches, learner.texts, learner.key, **about)

    def _learn(self, learner: Learner, shard: Shard) -> None:
        try:
            for part in self._reader.read(shard.file, self._plan.columns, shard.rows.start, shard.rows.stop):
                if not isinstance(part, Unreadable):
                    learner.learn(part.column("text"), part.column("account_id"))
        except FileFault:
            return


def lesson_of(plan: Plan, shards: Sequence[Shard]) -> Lesson | None:
    """What a scan learns from; None where it learns nothing.

    shards: the shards of all of its input, whichever run committed them.
    """
    if plan.config.filter is None or plan.date is None or not shards:
        return None
    ranges = {(shard.file.path, shard.file.modified, shard.rows): shard for shard in shards}
    unit = digest({"night": plan.date.isoformat(), "rows": sorted(map(str, ranges))})[:32]
    drawn = sorted(ranges, key=lambda rows: hashlib.sha256(repr(rows).encode()).digest())[:MOST_SHARDS]
    most = MOST_NGRAMS // plan.config.filter.nights
    tokens = sum(rows.text_bytes for _, _, rows in drawn) / BYTES_A_TOKEN
    share = min(1.0, most / max(tokens, 1.0))
    return Lesson(unit, plan.date.isoformat(), tuple(ranges[rows] for rows in drawn), share, most)


def filter_pass(plan: Plan, scan_id: str, lesson: Lesson, meanwhile: Callable[[], None]) -> None:
    """Learn from texts of tonight, on a cluster that is connected; then drop sketches that no later night reads.

    Raises:
        Refused: the worker cannot begin.
        ScanFailed: the sketches cannot be written.
    """
    for _, file in on_actors(FilterWorker, (plan, scan_id), [lesson], 1, meanwhile):
        commit(plan.results, SKETCHES_TABLE, [Entry(lesson.unit, (file,) if file else ())])
    if plan.config.filter is not None and plan.date is not None:
        drop_sketches(plan.results, plan.date - timedelta(days=plan.config.filter.nights))


def is_learnt(plan: Plan, lesson: Lesson) -> bool:
    """Whether a scan has committed what is learnt from these texts.

    Raises:
        Refused: the table cannot be opened or made.
    """
    open_tables(plan.results, [SKETCHES_TABLE])
    return bool(committed(plan.results, SKETCHES_TABLE, [lesson.unit]))

"""Learn the n-grams that many texts of a night hold, for the filters of later nights.

One worker reads a sample of the texts once more, and its sketches are committed once under a name that hashes their
shards. A pass that was killed is made anew by the next scan of the same input. Nothing that it learns is read on the
same night.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa

from scanner.detection.open_plan import open_keys, open_text_ids
from scanner.errors import FileFault
from scanner.follow_up import CommittedScan, OnActors
from scanner.input.documents import Reader, Unreadable
from scanner.input.shards import Shard
from scanner.ngram_filter.common_ngrams import MOST_NGRAMS
from scanner.ngram_filter.learner import Learner
from scanner.ngram_filter.sketches import SKETCHES_TABLE, drop_sketches, sample_name, write_sketches
from scanner.results.transactions import TableEntry, commit, find_committed, open_tables
from scanner.scan_plan import Plan
from scanner.storage.data_files import DataFile
from scanner.storage.toml import digest

SHARDS_LEARNT = 64
"""Shards that are read; of more, those are drawn whose digests are least."""


BYTES_A_TOKEN = 4
"""Bytes of text a token, roughly, by which a share of the texts is drawn."""


class FilterSample(NamedTuple):
    """Texts to be learnt from: shards, and the share of their texts.

    name: by which what is learnt is committed.
    """

    name: str
    night: str
    shards: tuple[Shard, ...]
    share: float
    most: int


class FilterWorker:
    """Learns n-grams of a sample of texts. Made by the driver with a plan, which holds no secrets."""

    def __init__(self, plan: Plan, scan_id: str) -> None:
        self._plan, self._scan_id, self._reader = plan, scan_id, Reader()

    def do(self, sample: FilterSample) -> DataFile | None:
        """Read, learn, and write the sketches to a file. Files that cannot be read now are left out.

        Raises:
            Refused: keys, tokenizers or the audit secret cannot be opened.
            ScanFailed: the sketches cannot be written.
        """
        pa.set_cpu_count(1)
        plan = self._plan
        keys, ids = open_keys(plan.registry, plan.keys), open_text_ids(plan)
        by_account = plan.config.input.account is not None
        learner = Learner(keys, ids, sample.share, sample.most, plan.config.min_scored, by_account=by_account)
        for shard in sample.shards:
            if not learner.full:
                self._learn_from(learner, shard)
        about = {"scan_id": self._scan_id, "sample": sample.name, "night": sample.night, "ngrams": learner.ngrams}
        return write_sketches(plan.results, learner.sketches, learner.texts, learner.key, **about)

    def _learn_from(self, learner: Learner, shard: Shard) -> None:
        try:
            for batch in self._reader.read(shard.file, self._plan.columns, shard.rows.start, shard.rows.stop):
                if not isinstance(batch, Unreadable):
                    learner.learn(batch.column("text"), batch.column("account_id"))
        except FileFault:
            return


def sample_of(plan: Plan, shards: Sequence[Shard]) -> FilterSample | None:
    """Return what a scan learns from; None where it learns nothing.

    Args:
        plan: of the scan.
        shards: all shards of its input, whichever run committed them.
    """
    if plan.config.filter is None or plan.date is None or not shards:
        return None
    ranges = {(shard.file.path, shard.file.modified, shard.rows): shard for shard in shards}
    by_account = plan.config.input.account is not None
    name = sample_name(by_account, digest({"night": plan.date.isoformat(), "rows": sorted(map(str, ranges))})[:32])
    drawn = sorted(ranges, key=lambda rows: hashlib.sha256(repr(rows).encode()).digest())[:SHARDS_LEARNT]
    most = MOST_NGRAMS // plan.config.filter.nights
    tokens = sum(rows.text_bytes for _, _, rows in drawn) / BYTES_A_TOKEN
    share = min(1.0, most / max(tokens, 1.0))
    return FilterSample(name, plan.date.isoformat(), tuple(ranges[rows] for rows in drawn), share, most)


def learn_ngrams(scan: CommittedScan, on_actors: OnActors) -> None:
    """Learn from texts of tonight, unless a scan did; then drop sketches that no later night reads.

    Raises:
        Refused: the worker cannot begin, or the table cannot be opened or made.
        ScanFailed: the sketches cannot be written.
    """
    plan, sample = scan.plan, sample_of(scan.plan, scan.shards)
    if sample is None or is_sketched(plan, sample):
        return
    for _, file in on_actors(FilterWorker, (plan, scan.scan_id), [sample]):
        commit(plan.results, SKETCHES_TABLE, [TableEntry(sample.name, (file,) if file else ())])
    if plan.config.filter is not None and plan.date is not None:
        today = datetime.now(UTC).date()  # a scan may state a later date by mistake, and would drop too much
        drop_sketches(plan.results, min(plan.date, today) - timedelta(days=plan.config.filter.nights))


def is_sketched(plan: Plan, sample: FilterSample) -> bool:
    """Return whether a scan has committed what is learnt from these texts.

    Raises:
        Refused: the table cannot be opened or made.
    """
    open_tables(plan.results, [SKETCHES_TABLE])
    return bool(find_committed(plan.results, SKETCHES_TABLE, [sample.name]))

"""Passes after the documents of a scan: posts of accounts, common n-grams, and second scores of flagged documents.

While documents were scanned, workers kept the posts of accounts, and their shards' transactions say that each stands
once. A digest of the account says in which part of the pass its posts are. Each part is read, looked at and committed
by itself, under a name that hashes all that decides it: a pass that was killed goes on with the parts that are left.

For the filters of later nights one worker reads a sample of the texts once more, and its sketches are committed once
under a name that hashes their shards. A pass that was killed is made anew by the next scan of the same input. Nothing
that it learns is read on the same night (scanner.results.filters).

Second scores are given after the verdicts are committed as without them, in actors of their own, so that a model is
loaded only where it is needed. A run that was killed finds the rest by the flagged shards that have none yet.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import ray

from scanner.audit.in_every_scan.decoy_keys import Decoys, open_decoys
from scanner.audit.in_every_scan.decoys import AccountDecoys
from scanner.cluster.machines import fit_gpus, limit_memory, worker_memory
from scanner.cluster.pieces import Busy, Finished, Piece, Report
from scanner.cluster.pool import Pool, on_actors
from scanner.detection.accounts import AccountJudge, Posts, account_rows
from scanner.detection.open_plan import open_keys, open_text_ids
from scanner.detection.rules import Learner, Rules
from scanner.detection.second_score import SecondScorer, Verdict, keys_with_draws, second_row, transaction
from scanner.detection.under_test import Origin
from scanner.errors import FileFault
from scanner.input.documents import BATCH_TEXT_BYTES, UNKNOWN, Identity, Reader, Unreadable, read_text
from scanner.input.shards import Shard
from scanner.registry import Holders
from scanner.results.account_posts import ROWS_A_PART, Together, drop_posts, part_of, some_accounts, window_begins
from scanner.results.filters import SKETCHES_TABLE, drop_sketches, open_filter, write_sketches
from scanner.results.queries import flagged_in
from scanner.results.transactions import OF_NO_RUN, DataFile, TableEntry, commit, committed, open_tables, write_file
from scanner.scan_plan import Plan
from scanner.storage.toml import digest
from scanner.text.normal_form import normalise
from scanner.watermark.positions import MOST_NGRAMS
from schemas.config import SecondScoreConfig
from schemas.tables import SECOND_SCORES

ACCOUNTS_TABLE = "accounts"


class AccountUnit(NamedTuple):
    """The posts that a scan tests together, and their name. began: when the scan began; night: date of the data."""

    name: str
    together: Together
    began: datetime
    night: date

    @property
    def parts(self) -> list[str]:
        """Names of its parts, by which they are committed."""
        return [f"{self.name}:{part}" for part in range(self.together.parts)]


class AccountResult(NamedTuple):
    """Result of a part: files that are in no table yet, how many accounts were tested, and how many are marked."""

    audit: tuple[DataFile, ...]
    rows: tuple[DataFile, ...]
    accounts: int
    flagged: int


class AccountsFound(NamedTuple):
    """How many accounts were tested, and how many of them are marked."""

    looked_at: int
    flagged: int


class AccountWorker:
    """Tests parts of a unit. Made by the driver with a plan, which holds no secrets."""

    def __init__(self, plan: Plan, scan_id: str, unit: AccountUnit, first_looks: frozenset[str] | None = None) -> None:
        self._plan, self._scan_id, self._unit, self._first_looks = plan, scan_id, unit, first_looks

    @cached_property
    def _judge(self) -> AccountJudge:
        return open_judge(self._plan, self._first_looks)

    @cached_property
    def _decoys(self) -> Decoys | None:
        return open_decoys(self._plan)

    def do(self, part: int) -> AccountResult:
        """Read the accounts of a part, test them, and write the results.

        Raises:
            Refused: keys, tokenizers or users cannot be opened.
            ScanFailed: posts cannot be read, or results not be written.
        """
        pa.set_cpu_count(1)
        plan, name = self._plan, self._unit.parts[part]
        decoys = AccountDecoys(self._decoys, Origin(self._scan_id, name, ""), self._unit.name) if self._decoys else None
        found, accounts = [], 0
        for rows in some_accounts(part_of(plan.results, self._unit.together, part), BATCH_TEXT_BYTES):
            posts = Posts.of_rows(rows)
            found += self._judge.judge(posts, self._unit.began, decoys)
            accounts += len(posts.account_ids)
        night = self._unit.night.isoformat()
        same = {"keys": plan.key_set, "scan_id": self._scan_id, "shard_id": name, "night": night}
        audit = write_file(plan.results, "audit_counts", decoys.rows() if decoys else [])
        written = write_file(plan.results, ACCOUNTS_TABLE, account_rows(found, **same))
        return AccountResult((audit,) if audit else (), (written,) if written else (), accounts, len(found))


def open_judge(plan: Plan, first_looks: frozenset[str] | None = None) -> AccountJudge:
    """Read secrets, tokenizers and users, as every worker does itself; first_looks: as AccountJudge takes them.

    Raises:
        SecretError, TokenizerError, Refused: they cannot be read.
        ValueError: accounts are not tested.
    """
    config = plan.config
    if config.accounts is None:
        raise ValueError("the configuration has no section [accounts]")
    return AccountJudge(
        open_keys(plan.registry, plan.keys),
        [plan.weights.tests_of_accounts(key, plan.keys_tested) for key in plan.keys],
        Holders.load(plan.registry, [key.key_id for key in plan.keys]),
        Rules.of(config, plan.keys_tested),
        nights=config.accounts.nights,
        first_looks=first_looks,
        open_filter=cache(lambda sha256: open_filter(plan.results, sha256, open_text_ids(plan).ngram_secret())),
    )


def unit_of(plan: Plan, shards: Sequence[Shard], began: datetime) -> AccountUnit | None:
    """The unit that a scan tests together; None where it tests no accounts, or found nothing.

    Args:
        plan: the scan's plan.
        shards: the shards of all of its input, whichever run committed them.
        began: when the scan began.
    """
    accounts = plan.config.accounts
    if accounts is None or not shards:
        return None
    night = plan.date or began.astimezone(UTC).date()
    window = None
    if accounts.nights > 1:
        first = window_begins(night, accounts.nights)
        window = first.isoformat(), (first + timedelta(days=accounts.nights - 1)).isoformat()
    ids = sorted({shard.shard_id for shard in shards})
    rows = accounts.nights * sum(shard.rows.documents for shard in shards)
    name = digest({"shards": ids, "window": window, "nights": accounts.nights, "decides": plan.decides})[:32]
    return AccountUnit(name, Together(tuple(ids), window, -(-rows // ROWS_A_PART)), began, night)


def parts_left(plan: Plan, unit: AccountUnit) -> list[int]:
    """The parts that no scan has committed.

    Raises:
        Refused: the tables cannot be opened or made.
    """
    open_tables(plan.results, [ACCOUNTS_TABLE])
    done = committed(plan.results, ACCOUNTS_TABLE, unit.parts)
    return [part for part, name in enumerate(unit.parts) if name not in done]


def account_pass(
    plan: Plan, scan_id: str, unit: AccountUnit, left: Sequence[int], workers: int, meanwhile: Callable[[], None]
) -> AccountsFound:
    """Test the accounts of some parts, on a cluster that is connected.

    Then posts of windows that are over are dropped.

    Raises:
        Refused: a worker cannot begin.
        ScanFailed: posts cannot be read, or results not be written.
    """
    accounts = flagged = 0
    firsts = take_first_looks(plan.results, unit, [key.key_id for key in plan.keys])
    for part, done in on_actors(AccountWorker, (plan, scan_id, unit, firsts), left, workers, meanwhile):
        name = unit.parts[part]
        commit(plan.results, "audit_counts", [TableEntry(name, done.audit)])
        commit(plan.results, ACCOUNTS_TABLE, [TableEntry(name, done.rows)])
        accounts, flagged = accounts + done.accounts, flagged + done.flagged
    nights = plan.config.accounts.nights if plan.config.accounts else 1
    drop_posts(plan.results, window_begins(unit.night, nights))
    return AccountsFound(accounts, flagged)


def take_first_looks(results: str, unit: AccountUnit, key_ids: Sequence[str]) -> frozenset[str]:
    """The keys under which this unit is the first that looks at the accounts of its night, from now on for ever.

    A night that is scanned again with more files is another unit. Its looks pay nothing for the pooled score, so that
    score may flag in the first look alone. The table of accounts remembers by a transaction which unit was first; a
    unit that was killed is gone on with under the same name.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be written.
    """
    number = int(unit.name[:15], 16) + OF_NO_RUN + 1
    names = {f"first look:{unit.night}:{key_id}": key_id for key_id in key_ids}
    ours = commit(results, ACCOUNTS_TABLE, [TableEntry(name, ()) for name in names], number)
    return frozenset(names[name] for name in ours)


MOST_SHARDS = 64
"""Shards that are read; of more, those are drawn whose digests are least."""

BYTES_A_TOKEN = 4
"""Bytes of text a token, roughly, by which a share of the texts is drawn."""


class FilterLesson(NamedTuple):
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

    def do(self, lesson: FilterLesson) -> DataFile | None:
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


def lesson_of(plan: Plan, shards: Sequence[Shard]) -> FilterLesson | None:
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
    return FilterLesson(unit, plan.date.isoformat(), tuple(ranges[rows] for rows in drawn), share, most)


def filter_pass(plan: Plan, scan_id: str, lesson: FilterLesson, meanwhile: Callable[[], None]) -> None:
    """Learn from texts of tonight, on a cluster that is connected; then drop sketches that no later night reads.

    Raises:
        Refused: the worker cannot begin.
        ScanFailed: the sketches cannot be written.
    """
    for _, file in on_actors(FilterWorker, (plan, scan_id), [lesson], 1, meanwhile):
        commit(plan.results, SKETCHES_TABLE, [TableEntry(lesson.unit, (file,) if file else ())])
    if plan.config.filter is not None and plan.date is not None:
        drop_sketches(plan.results, plan.date - timedelta(days=plan.config.filter.nights))


def is_learnt(plan: Plan, lesson: FilterLesson) -> bool:
    """Whether a scan has committed what is learnt from these texts.

    Raises:
        Refused: the table cannot be opened or made.
    """
    open_tables(plan.results, [SKETCHES_TABLE])
    return bool(committed(plan.results, SKETCHES_TABLE, [lesson.unit]))


_log = logging.getLogger(__name__)

SECOND_SCORES_TABLE = "second_scores"
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
    open_tables(plan.results, [SECOND_SCORES_TABLE])
    keys = [key.key_id for key in keys_with_draws(plan)]
    rows = flagged_in(plan.results, [shard.shard_id for shard in shards], keys).select(NEEDED).drop_nulls("message")
    found = {str(shard): part for (shard,), part in rows.group_by(pl.col("shard_id"))}
    names = {transaction(shard, second): shard for shard in found}
    for done in committed(plan.results, SECOND_SCORES_TABLE, names):
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
        written = write_file(self._plan.results, SECOND_SCORES_TABLE, batches)
        yield Report({SECOND_SCORES_TABLE: (written,)} if written else {})

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
    files = [file for report in finished.reports for file in report.files.get(SECOND_SCORES_TABLE, ())]
    lost = [
        second_row(flagged[lost.row], scan_id, second) | {"fault": f"{lost.reason}: {lost.detail}"}
        for lost in finished.lost
        if lost.row in flagged
    ]
    written = write_file(plan.results, SECOND_SCORES_TABLE, [pa.RecordBatch.from_pylist(lost, SECOND_SCORES)])
    entry = TableEntry(transaction(finished.shard.shard_id, second), (*files, written) if written else tuple(files))
    return sum(file.rows for file in entry.files) if commit(plan.results, SECOND_SCORES_TABLE, [entry]) else 0

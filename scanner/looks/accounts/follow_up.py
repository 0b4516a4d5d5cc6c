"""Test all posts of each account together, once the documents of a scan are done.

While documents were scanned, workers kept the posts of accounts. The transactions of their shards ensure that each post
is kept once. A digest of the account decides in which part of the pass its posts are. Each part is read, tested and
committed separately, under a name that hashes all that decides it. So a pass that was killed continues with the parts
that are left.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from scanner.controls.control import Subject
from scanner.controls.observation import OpenControls, count_accounts
from scanner.detection.attribution import BatchOrigin
from scanner.detection.open_plan import open_keys, open_prover, open_text_ids
from scanner.detection.rows import TextIds
from scanner.detection.rules import Rules
from scanner.filtering import open_filter
from scanner.follow_up import CommittedScan, OnActors
from scanner.input.documents import BATCH_TEXT_BYTES
from scanner.input.shards import Shard
from scanner.looks.accounts.judge import AccountJudge, Posts, account_rows
from scanner.looks.accounts.posts import (
    ROWS_A_PART,
    PostGroup,
    count_marked,
    count_refuted,
    drop_posts,
    part_of,
    some_accounts,
    window_begins,
)
from scanner.looks.look import NO_RESULT, LookResult, ReadAgain
from scanner.printable import counted
from scanner.registry import Holders
from scanner.results.transactions import NO_RUN, TableEntry, commit, find_committed, open_tables
from scanner.scan_plan import Plan
from scanner.signing import sign_with
from scanner.storage.data_files import DataFile, write_file
from scanner.storage.toml import digest
from schemas.words import Proof

ACCOUNTS_TABLE = "accounts"


class AccountUnit(NamedTuple):
    """The posts that a scan tests together, and their name.

    began: when the scan began.
    night: date of the data.
    """

    name: str
    together: PostGroup
    began: datetime
    night: date

    @property
    def parts(self) -> list[str]:
        """Return the names of its parts, by which they are committed."""
        return [f"{self.name}:{part}" for part in range(self.together.parts)]


class AccountResult(NamedTuple):
    """Result of a part: files that are in no table yet, and counts of its accounts."""

    audit: tuple[DataFile, ...]
    rows: tuple[DataFile, ...]
    totals: "AccountTotals"


class AccountTotals(NamedTuple):
    """Counts of accounts.

    refuted: flagged accounts whose proof differs.
    not_proved: flagged accounts without a proof, because they are too many or too long.
    had_look: whether no account was tested, because an earlier scan had the night's one look under every key.
    """

    tested: int = 0
    flagged: int = 0
    refuted: int = 0
    not_proved: int = 0
    had_look: bool = False

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], tested: int) -> "AccountTotals":
        """Count accounts. `rows` of ACCOUNTS tell the flagged ones."""
        refuted = sum(row["proof"] == Proof.DIFFERS for row in rows)
        proved = sum(row["proof"] == Proof.PROVED for row in rows)
        return cls(tested, len(rows), refuted, len(rows) - refuted - proved)

    def plus(self, more: "AccountTotals") -> "AccountTotals":
        """Add the counts of more accounts."""
        return AccountTotals(
            self.tested + more.tested,
            self.flagged + more.flagged,
            self.refuted + more.refuted,
            self.not_proved + more.not_proved,
            self.had_look or more.had_look,
        )


class AccountWorker:
    """Tests parts of a unit. The driver makes it with a plan, which holds no secrets."""

    def __init__(self, plan: Plan, scan_id: str, unit: AccountUnit, first_looks: frozenset[str] | None = None) -> None:
        self._plan, self._scan_id, self._unit, self._first_looks = plan, scan_id, unit, first_looks

    @cached_property
    def _judge(self) -> AccountJudge:
        return open_judge(self._plan, self._first_looks)

    @cached_property
    def _text_ids(self) -> TextIds:
        return open_text_ids(self._plan)

    @cached_property
    def _controls(self) -> OpenControls:
        return OpenControls(self._plan)

    def do(self, part: int) -> AccountResult:
        """Read the accounts of a part, test them, and write the results.

        Raises:
            Refused: keys, tokenizers or users cannot be opened.
            ScanFailed: posts cannot be read, or results not be written.
        """
        pa.set_cpu_count(1)
        sign_with(self._plan.results, self._plan.registry)  # so that no changed post is read
        plan, name = self._plan, self._unit.parts[part]
        origin, piece = BatchOrigin(self._scan_id, name, ""), f"accounts;{self._unit.name};"
        observers = self._controls.observers(Subject.ACCOUNTS, origin, piece, accounts=self._judge)
        marked_rows, audit_rows, totals = [], list[pa.RecordBatch](), AccountTotals()
        for rows in some_accounts(part_of(plan.results, self._unit.together, part), BATCH_TEXT_BYTES):
            posts = Posts.of_rows(rows)
            findings = self._judge.look_at(posts, observers)
            batch_rows = [] if findings is None else self._judge.rows(posts, findings, self._unit.began)
            if findings is not None:
                audit_rows += count_accounts(plan, origin, self._judge.decided(posts, findings), self._text_ids)
            marked_rows += batch_rows
            totals = totals.plus(AccountTotals.of(batch_rows, len(posts.account_ids)))
        night = self._unit.night.isoformat()
        same = {"keys": plan.key_set, "scan_id": self._scan_id, "shard_id": name, "night": night}
        audit = write_file(plan.results, "audit_counts", [*audit_rows, *(observers.rows() if observers else ())])
        written = write_file(plan.results, ACCOUNTS_TABLE, account_rows(marked_rows, **same))
        return AccountResult((audit,) if audit else (), (written,) if written else (), totals)


def open_judge(plan: Plan, first_looks: frozenset[str] | None) -> AccountJudge:
    """Read secrets, tokenizers and users, as every worker does for itself.

    Args:
        plan: plan of the scan.
        first_looks: as for AccountJudge.

    Raises:
        SecretError, TokenizerError, Refused: they cannot be read.
        ValueError: accounts are not tested.
    """
    config = plan.config
    if config.accounts is None:
        raise ValueError("the configuration has no section [accounts]")
    rules = Rules.of(config, plan.keys_tested)
    return AccountJudge(
        open_keys(plan.registry, plan.keys, shown=plan.shown),
        [plan.weights.correction_of_accounts(key, plan.keys_tested) for key in plan.keys],
        Holders.load(plan.registry, [key.key_id for key in plan.keys]),
        rules,
        nights=config.accounts.nights,
        first_looks=first_looks,
        open_filter=cache(lambda sha256: open_filter(plan.results, sha256, open_text_ids(plan).ngram_secret())),
        open_prover=lambda opened_keys: open_prover(plan.registry, opened_keys, rules),
    )


def unit_of(plan: Plan, shards: Sequence[Shard], began: datetime) -> AccountUnit | None:
    """Return the unit that a scan tests together. None if it tests no accounts, or found nothing."""
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
    name = digest({"shards": ids, "window": window, "nights": accounts.nights, "decides": plan.verdict_settings})[:32]
    return AccountUnit(name, PostGroup(tuple(ids), window, -(-rows // ROWS_A_PART)), began, night)


def parts_left(plan: Plan, unit: AccountUnit) -> list[int]:
    """Return the parts that no scan has committed.

    Raises:
        Refused: the tables cannot be opened or made.
    """
    open_tables(plan.results, [ACCOUNTS_TABLE])
    done = find_committed(plan.results, ACCOUNTS_TABLE, unit.parts)
    return [part for part, name in enumerate(unit.parts) if name not in done]


class AccountTests:
    """Tests the posts of each account together, in all files of the input."""

    def __init__(self) -> None:
        self.result = NO_RESULT

    def run(self, scan: CommittedScan, on_actors: OnActors, read_again: ReadAgain) -> None:
        """Test the accounts of the parts that are left. If the input is not whole, no account is tested."""
        del read_again
        plan = scan.plan
        unit = unit_of(plan, scan.shards, scan.began) if scan.whole else None
        if unit is None:
            return
        missing_parts = parts_left(plan, unit)
        totals = judge_parts(plan, scan.scan_id, unit, missing_parts, on_actors) if missing_parts else None
        marked = count_marked(plan.results, [unit.name])
        self.result = LookResult(
            counts=None if totals is None else totals._asdict(),
            columns={"accounts_unit": unit.name, "accounts_marked": marked[unit.name]},
            audited=unit.parts,
            unproved=count_refuted(plan.results, unit.parts),
            summary=[] if totals is None else list(_summary(totals)),
        )


def _summary(totals: AccountTotals) -> Iterator[tuple[str, str]]:
    by_posts = f"{counted(totals.flagged, 'account')} of {totals.tested:,} by all their posts together"
    again = (
        "none tested again: an earlier scan tested the accounts of this night, and p is corrected for one look per "
        "night"
    )
    yield "accounts", again if totals.had_look else by_posts
    if totals.refuted:
        unnamed = f"{counted(totals.refuted, 'account')} left without a user's name"
        yield "", f"{unnamed}: scores were computed again, and the results differed"
    if totals.not_proved:
        unnamed = f"{counted(totals.not_proved, 'account')} left without a user's name"
        yield "", f"{unnamed}: too many or too long to be computed again"


def judge_parts(plan: Plan, scan_id: str, unit: AccountUnit, left: Sequence[int], on_actors: OnActors) -> AccountTotals:
    """Test the accounts of the parts that are left, and delete the posts of windows that are over.

    Raises:
        Refused: an actor cannot begin.
        ScanFailed: posts cannot be read, or results not be written.
    """
    totals = AccountTotals()
    firsts = take_first_looks(plan.results, unit, [key.key_id for key in plan.keys])
    if not firsts:
        # an earlier unit had the night's look: the parts are done, without rows
        commit(plan.results, ACCOUNTS_TABLE, [TableEntry(unit.parts[part], ()) for part in left])
    tested = left if firsts else ()
    for part, done in on_actors(AccountWorker, (plan, scan_id, unit, firsts), tested):
        name = unit.parts[part]
        commit(plan.results, "audit_counts", [TableEntry(name, done.audit)])
        commit(plan.results, ACCOUNTS_TABLE, [TableEntry(name, done.rows)])
        totals = totals.plus(done.totals)
    nights = plan.config.accounts.nights if plan.config.accounts else 1
    today = datetime.now(UTC).date()  # a scan may state a later date by mistake, and would delete too much
    drop_posts(plan.results, window_begins(min(unit.night, today), nights))
    return totals._replace(had_look=not firsts)


def take_first_looks(results: str, unit: AccountUnit, key_ids: Sequence[str]) -> frozenset[str]:
    """Return the keys under which this unit is the first look at its night's accounts, and record that for good.

    A night that is scanned again with more files is another unit. p is corrected for one look a night, so accounts are
    tested only in the first look. A transaction in the table of accounts records which unit was first. A unit that was
    killed continues under the same name.

    Raises:
        ScanFailed: other processes kept committing first, or the table cannot be written.
    """
    number = int(unit.name[:15], 16) + NO_RUN + 1
    names = {f"first look:{unit.night}:{key_id}": key_id for key_id in key_ids}
    committed_names = commit(results, ACCOUNTS_TABLE, [TableEntry(name, ()) for name in names], number)
    return frozenset(names[name] for name in committed_names)

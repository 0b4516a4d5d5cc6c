"""The pass over accounts, after the documents of a scan: the posts of each account are tested together.

While documents were scanned, workers kept the posts of accounts, and their shards' transactions say that each stands
once. A digest of the account says in which part of the pass its posts are. Each part is read, looked at and committed
by itself, under a name that hashes all that decides it: a pass that was killed goes on with the parts that are left.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from typing import NamedTuple

import pyarrow as pa

from scanner.audit.in_every_scan.account_decoys import AccountDecoys
from scanner.audit.in_every_scan.decoy_keys import Decoys, open_decoys
from scanner.cluster.in_flight import on_actors
from scanner.detection.accounts import AccountJudge, Posts, account_rows
from scanner.detection.open_plan import open_keys, open_text_ids
from scanner.detection.rules import Rules
from scanner.detection.scan_plan import Plan
from scanner.detection.under_test import Origin
from scanner.input.documents import BATCH_TEXT_BYTES
from scanner.input.shards import Shard
from scanner.registry import Holders
from scanner.results.account_posts import ROWS_A_PART, Together, drop_posts, part_of, some_accounts, window_begins
from scanner.results.filters import open_filter
from scanner.results.tables import open_tables
from scanner.results.transactions import OF_NO_RUN, DataFile, Entry, commit, committed, write_file
from scanner.storage.canonical import digest

TABLE = "accounts"


class Unit(NamedTuple):
    """The posts that a scan tests together, and their name. began: when the scan began; night: date of the data."""

    name: str
    together: Together
    began: datetime
    night: date

    @property
    def parts(self) -> list[str]:
        """Names of its parts, by which they are committed."""
        return [f"{self.name}:{part}" for part in range(self.together.parts)]


class Part(NamedTuple):
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

    def __init__(self, plan: Plan, scan_id: str, unit: Unit, first_looks: frozenset[str] | None = None) -> None:
        self._plan, self._scan_id, self._unit, self._first_looks = plan, scan_id, unit, first_looks

    @cached_property
    def _judge(self) -> AccountJudge:
        return open_judge(self._plan, self._first_looks)

    @cached_property
    def _decoys(self) -> Decoys | None:
        return open_decoys(self._plan)

    def do(self, part: int) -> Part:
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
        written = write_file(plan.results, TABLE, account_rows(found, **same))
        return Part((audit,) if audit else (), (written,) if written else (), accounts, len(found))


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


def unit_of(plan: Plan, shards: Sequence[Shard], began: datetime) -> Unit | None:
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
    rows = accounts.nights * sum(shard.rows.stop - shard.rows.start for shard in shards)
    name = digest({"shards": ids, "window": window, "nights": accounts.nights, "decides": plan.decides})[:32]
    return Unit(name, Together(tuple(ids), window, -(-rows // ROWS_A_PART)), began, night)


def parts_left(plan: Plan, unit: Unit) -> list[int]:
    """The parts that no scan has committed.

    Raises:
        Refused: the tables cannot be opened or made.
    """
    open_tables(plan.results, [TABLE])
    done = committed(plan.results, TABLE, unit.parts)
    return [part for part, name in enumerate(unit.parts) if name not in done]


def account_pass(
    plan: Plan, scan_id: str, unit: Unit, left: Sequence[int], workers: int, meanwhile: Callable[[], None]
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
        commit(plan.results, "audit_counts", [Entry(name, done.audit)])
        commit(plan.results, TABLE, [Entry(name, done.rows)])
        accounts, flagged = accounts + done.accounts, flagged + done.flagged
    nights = plan.config.accounts.nights if plan.config.accounts else 1
    drop_posts(plan.results, window_begins(unit.night, nights))
    return AccountsFound(accounts, flagged)


def take_first_looks(results: str, unit: Unit, key_ids: Sequence[str]) -> frozenset[str]:
    """The keys under which this unit is the first that looks at the accounts of its night, from now on for ever.

    A night that is scanned again with more files is another unit. Its looks pay nothing for the pooled score, so that
    score may flag in the first look alone. The table of accounts remembers by a transaction which unit was first; a
    unit that was killed is gone on with under the same name.

    Raises:
        ScanFailed: others kept committing first, or the table cannot be written.
    """
    number = int(unit.name[:15], 16) + OF_NO_RUN + 1
    names = {f"first look:{unit.night}:{key_id}": key_id for key_id in key_ids}
    ours = commit(results, TABLE, [Entry(name, ()) for name in names], number)
    return frozenset(names[name] for name in ours)

"""Reserved messages of accounts: counts against plain loops, and accounts whose p-values are too small are seen."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from scanner.audit.statistics.hits import THRESHOLDS
from scanner.controls.observation import count_accounts
from scanner.controls.reserved.accounts import account_answers
from scanner.controls.reserved.accounts import count_accounts as hits_of
from scanner.controls.scan_audit import ScanAudit, audit_scan
from scanner.detection.attribution import BatchOrigin
from scanner.detection.open_plan import open_keys
from scanner.detection.rows import TextIds
from scanner.detection.rules import Rules
from scanner.looks.accounts.judge import AccountJudge, Posts
from scanner.registry import Holders
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.scan_plan import Plan
from scanner.storage.data_files import write_file
from schemas.audit import RESERVED_ACCOUNT
from schemas.config import AccountsConfig
from schemas.registry import is_reserved, reserved_count
from schemas.words import AuditState
from tests.support.audited_scan import Key, make

pytestmark = pytest.mark.usefixtures("opened_once")
KEYS = (Key(1000, format="greenlist-v3"), Key(400, format="gumbel-v3", groups=20), Key(1))
ACCOUNTS, POSTS, UNIT = 8_000, 2, "unit"
ORIGIN, IDS = BatchOrigin("scan", UNIT, ""), TextIds(bytes(range(32)))


@pytest.fixture(scope="module")
def posts(human_texts) -> Posts:
    words, random = np.array(sorted({*" ".join(human_texts).split()})), np.random.default_rng(5)
    texts = [" ".join(random.choice(words, 12)) for _ in range(ACCOUNTS * POSTS)]
    names = [f"account {i}" for i in range(ACCOUNTS)]
    return Posts(texts, np.arange(ACCOUNTS + 1) * POSTS, names, [None] * len(texts))


def planned(folder) -> Plan:
    plan = make(folder, ["nothing"], *KEYS)
    return replace(plan, config=plan.config.model_copy(update={"accounts": AccountsConfig(nights=7)}))


def judge_of(plan: Plan) -> AccountJudge:
    corrections = [plan.weights.correction_of_accounts(key, plan.keys_tested) for key in plan.keys]
    holders = Holders.load(plan.registry, [key.key_id for key in plan.keys])
    return AccountJudge(open_keys(plan.registry, plan.keys), corrections, holders, Rules(1e-6, 3), nights=7)


def counted(plan: Plan, posts: Posts) -> list[pa.RecordBatch]:
    judge = judge_of(plan)
    return count_accounts(plan, ORIGIN, judge.decided(posts, judge.look_at(posts)), IDS)


def audited(plan: Plan, posts: Posts) -> ScanAudit:
    open_tables(plan.results)
    file = write_file(plan.results, "audit_counts", counted(plan, posts))
    commit(plan.results, "audit_counts", [TableEntry(UNIT, (file,))])
    return audit_scan(plan, "scan", ["none"], audited_by_looks=[UNIT])


@pytest.mark.seconds
def test_counts_are_those_of_a_plain_loop(tmp_path, posts):
    plan = planned(tmp_path)
    judge = judge_of(plan)
    findings = judge.look_at(posts)
    rows = pa.Table.from_batches(counted(plan, posts)).to_pylist()
    expected = []
    for account in range(ACCOUNTS):
        p = [of.log10_p_global[account, 0] for of in findings.outcomes.findings]
        key = int(np.nanargmin(p))
        message = int(findings.outcomes.findings[key].message[account, 0])
        if is_reserved(message) and p[key] <= -1:
            expected.append((f"k{key}", message, max(-k for k in range(1, 9) if p[key] > -k - 1)))
    hits = [row for row in rows if row["kind"] == RESERVED_ACCOUNT]
    of_rows = [(row["key_id"], row["message"], round(np.log10(row["threshold"]))) for row in hits]
    assert sorted(of_rows) == sorted(expected)
    assert len({row["text"] for row in hits}) == len(hits)
    of_keys = hits_of(rows)
    assert of_keys.keys() == {"k0", "k1"}  # a key of one message has no reserved ones
    assert {of_key.accounts for of_key in of_keys.values()} == {ACCOUNTS}
    # of three keys with half of the rate for accounts, one night of seven: K is 42
    assert of_keys["k0"].expected == pytest.approx(ACCOUNTS * -np.expm1(np.log1p(-np.array(THRESHOLDS)) / 42_000))
    assert of_keys["k1"].expected[0] < ACCOUNTS * 0.1 / (42 * 400)
    (first, second) = (sums for _, sums in account_answers(plan, of_keys))
    assert (first.clusters[0], second.clusters[0]) == (reserved_count(1000), reserved_count(400))
    assert first.expected[0] == pytest.approx(50 * of_keys["k0"].expected[0])


@pytest.mark.seconds
def test_they_hold_and_are_too_many_where_accounts_pay_for_no_key_look_and_night(tmp_path, posts, monkeypatch):
    sound = audited(planned(tmp_path / "sound"), posts)
    assert sound.state != AuditState.ALARM
    assert {row["kind"] for row in sound.rows} >= {"reserved_accounts"}
    score = AccountJudge._score
    monkeypatch.setattr(
        AccountJudge, "_score", lambda self, under_key, correction: score(self, under_key, correction / 42)
    )
    wrong = audited(planned(tmp_path / "wrong"), posts)
    assert wrong.state == AuditState.ALARM
    assert {row["kind"] for row in wrong.rows if row["verdict"] == "too small"} == {"reserved_accounts"}

"""The law of accounts in the audit of a scan: it holds, and positions that count twice raise the alarm."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from scanner.controls.decoys.account_observer import AccountDecoyObserver, WholeAccountObserver
from scanner.controls.decoys.draws import Decoys
from scanner.controls.decoys.whole_texts import WholeTextDecoys
from scanner.controls.observation import Observers
from scanner.controls.scan_audit import ScanAudit, audit_scan
from scanner.detection.attribution import BatchOrigin
from scanner.detection.open_plan import open_keys
from scanner.detection.rules import Rules
from scanner.looks.accounts import judge as account_judge
from scanner.looks.accounts.judge import AccountJudge, Posts
from scanner.registry import Holders
from scanner.results.transactions import TableEntry, commit, open_tables
from scanner.scan_plan import Plan
from scanner.storage.data_files import write_file
from scanner.watermark.positions import Positions
from schemas.config import AccountsConfig
from schemas.words import AuditState
from tests.support.audited_scan import Key, make, pieces

pytestmark = pytest.mark.usefixtures("opened_once")
KEYS = (Key(1, format="greenlist-v3"), Key(40, format="gumbel-v3"))
ACCOUNTS, POSTS, UNIT = 600, 10, "unit"
WORDS = ["the", "sea", "a", "house", "runs", "green", "under", "old", "they", "small", "river", "stone", "and", "light"]


def audited(folder, human_texts, nights: int = 1) -> tuple[ScanAudit, int]:
    """The audit of accounts of people, whose posts all end with the account's signature; and how many are flagged."""
    plan = make(folder, ["nothing"], *KEYS)
    config = plan.config.model_copy(update={"accounts": AccountsConfig(nights=nights)})
    plan = replace(plan, config=config)
    texts = pieces(human_texts, 15, ACCOUNTS * POSTS, 5)
    signed = [f"{text}\n{texts[i // POSTS]} {texts[i // POSTS + 1]}" for i, text in enumerate(texts)]
    posts = Posts(
        signed,
        np.arange(ACCOUNTS + 1) * POSTS,
        [f"account {i}" for i in range(ACCOUNTS)],
        [None] * len(signed),
    )
    judge = AccountJudge(
        open_keys(plan.registry, plan.keys), [4.0, 4.0], Holders.load(plan.registry, ["k0", "k1"]),
        Rules(1e-6, 2), nights=nights,
    )  # fmt: skip
    decoys = decoys_of(plan, judge)
    flagged = judge.judge(posts, datetime.now(UTC), decoys)
    return judged(plan, decoys), len(flagged)


def decoys_of(plan: Plan, judge: AccountJudge) -> Observers:
    """Decoys that score every account, and by which every account is decided."""
    secret, origin, piece = b"audit secret, 16", BatchOrigin("scan", UNIT, ""), f"accounts;{UNIT};".encode()
    return Observers(
        [
            AccountDecoyObserver(Decoys(secret, plan.keys, "ngram", 1.0, 0.0), origin, piece),
            WholeAccountObserver(WholeTextDecoys(secret, plan), judge, origin, "ngram", piece),
        ]
    )


def judged(plan: Plan, decoys: Observers) -> ScanAudit:
    open_tables(plan.results)
    file = write_file(plan.results, "audit_counts", decoys.rows())
    assert file is not None
    commit(plan.results, "audit_counts", [TableEntry(UNIT, (file,))])
    return audit_scan(plan, "scan", ["none"], audited_by_looks=[UNIT])


def wrong(audit: ScanAudit) -> set[str]:
    return {row["kind"] for row in audit.rows if row["verdict"] == "too small"}


@pytest.mark.costly
@pytest.mark.seconds
def test_the_laws_of_accounts_are_tested_and_hold(tmp_path, human_texts):
    audit, flagged = audited(tmp_path, human_texts)
    assert (audit.state, flagged) == (AuditState.NO_ALARM, 0)
    of_accounts = [row for row in audit.rows if row["kind"] == "decoy_accounts"]
    assert {row["label"].split(";")[0] for row in of_accounts} == {"greenlist-v3", "gumbel-v3"}
    assert all(row["tests"] > ACCOUNTS / 3 for row in of_accounts)
    decided = [row for row in audit.rows if row["kind"] == "decision_accounts"]
    assert {row["tests"] for row in decided} == {ACCOUNTS}
    # of two keys with half of the rate for accounts, a twentieth of the accounts is expected at 0.1
    assert 0.9 * ACCOUNTS / 20 < decided[0]["expected"] < 1.05 * ACCOUNTS / 20
    assert decided[0]["hits"] > 0.5 * decided[0]["expected"]
    assert {row["verdict"] for row in (*of_accounts, *decided)} <= {"holds", "conservative", "undecided"}


@pytest.mark.costly
@pytest.mark.seconds
def test_what_posts_share_counted_in_each_raises_the_alarm(tmp_path, human_texts, monkeypatch):
    def twice(rule, _reach, posts, begins, dedup):
        of_posts = rule.positions(posts, dedup)
        return Positions(of_posts.index, of_posts.offsets[begins])

    monkeypatch.setattr(account_judge, "pooled_positions", twice)
    audit, flagged = audited(tmp_path, human_texts)
    assert audit.state == AuditState.ALARM
    assert flagged > 100
    assert wrong(audit) == {"decoy_accounts", "decision_accounts"}


@pytest.mark.costly
@pytest.mark.seconds
def test_accounts_that_pay_for_no_night_raise_the_alarm(tmp_path, human_texts, monkeypatch):
    """Their p is a thirtieth of what it should be, which decoys of single scores cannot see."""
    score = AccountJudge._score
    monkeypatch.setattr(
        AccountJudge, "_score", lambda self, under_key, correction: score(self, under_key, correction / 30)
    )
    audit, _ = audited(tmp_path, human_texts, nights=30)
    assert audit.state == AuditState.ALARM
    assert wrong(audit) == {"decision_accounts"}


@pytest.mark.costly
@pytest.mark.seconds
def test_a_night_that_is_looked_at_24_times_flags_as_often_as_stated(tmp_path):
    """4,000 accounts that nobody marked, whose posts come in 24 looks, under a key of one message at a rate of 0.02.

    The pooled score crosses it several times as often when each look counts. Binomial: 0.02 of
    4,000 is 80, and more than 131 come by chance less than once in ten million runs.
    """
    rate, number, looks, random = 0.02, 4_000, 24, np.random.default_rng(3)
    plan = make(tmp_path, ["nothing"], KEYS[0])
    keys = open_keys(plan.registry, plan.keys)
    texts = [[" ".join(random.choice(WORDS, 12)) for _ in range(looks)] for _ in range(number)]

    def flagged(first_looks) -> set[str]:
        found = set()
        for look in range(1, looks + 1):
            judge = AccountJudge(
                keys, [1.0], Holders.load(plan.registry, ["k0"]), Rules(rate, 1),
                nights=1, first_looks=first_looks(look),
            )  # fmt: skip
            posts = Posts(
                [text for account in texts for text in account[:look]],
                np.arange(number + 1) * look,
                [f"account {i}" for i in range(number)],
                [None] * (number * look),
            )
            found |= {row["account_id"] for row in judge.judge(posts, datetime.now(UTC))}
        return found

    each_look, first_look = flagged(lambda _: None), flagged(lambda look: None if look == 1 else ())
    assert len(each_look) > 131, "the looks did not inflate the rate, so this test shows nothing"
    assert len(first_look) <= 131

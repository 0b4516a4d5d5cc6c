"""Anybody can post text of messages that nobody holds: the audit reports it, and alarms only if it may be more."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from scanner.audit.statistics.hits import THRESHOLDS
from scanner.cluster import text_scoring as written
from scanner.controls import scan_audit
from scanner.controls.reserved.accounts import AccountHits
from scanner.controls.reserved.texts import LARGEST_P
from scanner.controls.reserved.top_accounts import MOST_TOP_ACCOUNTS
from scanner.controls.scan_audit import ScanAudit, judge_scan
from scanner.detection import open_plan as plan_module
from scanner.scan_plan import Plan
from scanner.watermark import GreenList
from scanner.watermark.native.format import GreenListFormat, GreenListFormat3
from tests.support.audited_scan import Key, make, pieces, scan
from tests.support.demo_texts import DEMO
from tests.support.rows import measured, reserved_of, verdict

RESERVED = (19, 39, 59, 79)
FRAMED = 60
"""Number of texts that are written for messages that nobody holds."""


class Night(NamedTuple):
    """A scan of real text with some texts that hit reserved messages; its decoys' counts; its exact verdicts."""

    plan: Plan
    decoys: pl.DataFrame
    verdicts: pl.DataFrame


@pytest.fixture(scope="module")
def night(tmp_path_factory, human_texts):
    """A night in which the search finds a reserved message in each framed text, as in an attacker's."""
    folder: Path = tmp_path_factory.mktemp("framing")
    with pytest.MonkeyPatch.context() as patch:
        texts = pieces(human_texts, 40, 1500)
        framed = [f"Framed framed {text}" for text in texts[:FRAMED]]
        plan = make(folder, [*framed, *texts[FRAMED:]], Key(500))
        plain, production = GreenList.best_two, bytes.fromhex(plan.keys[0].commitment)
        first = plan_module.load_tokenizer(DEMO / "tokenizer.json", plan.keys[0].tokenizer.sha256).encode(framed[:1])

        def attacked(self, tokens, positions, count):
            best = plain(self, tokens, positions, count)
            if self.commitment == production:
                begins = tokens.ids[tokens.offsets[:-1]] == first.ids[0]
                for i, d in enumerate(np.flatnonzero(begins)):
                    best.message[d], best.score[d] = RESERVED[i % 4], positions.scored[d]
            return best

        patch.setattr(GreenList, "best_two", attacked)
        kept, exact = {}, []
        published = written.for_everybody
        patch.setattr(written, "for_everybody", lambda rows, lengths: exact.append(rows) or published(rows, lengths))
        judge = scan_audit.judge_scan
        patch.setattr(scan_audit, "judge_scan", lambda *given: kept.update(given[3]) or judge(*given))
        assert scan(plan).state == "alarm"  # accounts are unknown, texts many
        rows = pl.DataFrame(pa.Table.from_batches(exact))
        yield Night(plan, kept["decoys"], rows.sort("row"))


def judged(night: Night, framed: list[str | None], others: str | None = None) -> ScanAudit:
    """The audit with so many framed texts, posted by these accounts; others are of one account, or of one each."""
    row = pl.col("row")
    rows = night.verdicts.filter((row >= FRAMED) | (row < len(framed)))
    accounts = [framed[i] if i < FRAMED else others or f"account-{i}" for i in rows["row"]]
    rows = rows.with_columns(account_id=pl.Series(accounts, dtype=pl.String))
    counts = {"decoys": night.decoys, "reserved": reserved_of(rows), "canaries": None}
    return judge_scan(night.plan, "scan", measured(rows, -6.0), counts)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("framed", "accounts"),
    [
        (["eve"] * FRAMED, 1),
        (["eve", "eve", None, "mallory"], 3),
        ([None] * MOST_TOP_ACCOUNTS, MOST_TOP_ACCOUNTS),
        ([f"account {i % MOST_TOP_ACCOUNTS}" for i in range(FRAMED)], MOST_TOP_ACCOUNTS),
    ],
)
def test_texts_of_few_accounts_are_told_as_possible_framing(night, framed, accounts):
    audit = judged(night, framed)
    assert audit.state == "possible framing"
    assert audit.alarms() == []
    assert audit.fields()["alarms"] == 0
    assert {row["kind"] for row in audit.rows if row["verdict"] == "too small"} >= {"reserved"}  # stays on record
    (said,) = audit.warnings()
    (explained,) = re.findall(r"key k0: .* Without the texts of (\d+) account", said)
    assert 1 <= int(explained) <= accounts  # one text that remains may be chance
    assert "So the p-values are right" in said


@pytest.mark.parametrize(("framed", "state"), [(5, "possible framing"), (3 * MOST_TOP_ACCOUNTS, "alarm")])
def test_few_accounts_framed_by_all_of_their_posts_are_told_and_many_alarm(night, framed, state):
    """Of 500 accounts, so many whose best message is reserved at 1e-8."""
    hits = AccountHits(np.arange(framed) % 25 * 20 + 19, np.full(framed, -8.0), 500, np.array(THRESHOLDS) / 2)
    counts = reserved_of(night.verdicts.filter(pl.col("row") >= FRAMED))._replace(accounts={"k0": hits})
    everything = {"decoys": night.decoys, "reserved": counts, "canaries": None}
    rows = night.verdicts.filter(pl.col("row") >= FRAMED)
    audit = judge_scan(night.plan, "scan", measured(rows, -6.0), everything)
    assert audit.state == state
    assert {row["kind"] for row in audit.rows if row["verdict"] == "too small"} == {"reserved_accounts"}


def test_without_such_texts_there_is_nothing_to_tell(night):
    audit = judged(night, [])
    assert (audit.state, audit.warnings()) == ("no alarm", [])


@pytest.mark.parametrize("framed", [[f"account {i}" for i in range(FRAMED)], [None] * FRAMED])
def test_texts_of_many_accounts_raise_the_alarm(night, framed):
    audit = judged(night, framed)
    assert (audit.state, audit.warnings()) == ("alarm", [])
    assert "too many texts carry messages that no user was ever given" in audit.advice


def test_an_account_that_posts_most_of_all_texts_is_not_one_of_a_few(night):
    assert judged(night, ["eve"] * FRAMED, others="eve").state == "alarm"
    assert judged(night, ["eve"] * FRAMED, others="somebody else").state == "possible framing"


def test_a_format_whose_messages_share_nothing_is_not_framed(night, monkeypatch):
    assert GreenListFormat(window=4, gamma="1/4").can_be_framed()
    assert not GreenListFormat3(window=4, gamma="1/4").can_be_framed()
    monkeypatch.setattr(GreenListFormat, "can_be_framed", lambda _: False)
    assert judged(night, ["eve"] * FRAMED).state == "alarm"


def test_where_the_law_is_not_known_to_hold_there_is_an_alarm(night):
    untested = night._replace(decoys=night.decoys.clear())
    assert judged(untested, ["eve"] * FRAMED).state == "alarm"
    many = pl.when(pl.col("kind") == "decoy_best").then(pl.col("tests")).otherwise(pl.col("hits"))
    broken = night._replace(decoys=night.decoys.with_columns(hits=many, hh=many.cast(pl.Float64)))
    audit = judged(broken, ["eve"] * FRAMED)
    assert audit.state == "alarm"
    assert "Decoy keys, which never marked anything, hit too often" in audit.advice


@pytest.mark.parametrize("seed", range(20))
def test_the_accounts_that_hit_most_are_left_out(seed):
    """Against loops over plain rows; no two accounts have the same number of hits, so that nothing is tied."""
    generator = np.random.default_rng(seed)
    owners = [
        (key, f"account {i}", i + 1)
        for key in ("a", "b")
        for i in range(int(generator.integers(0, MOST_TOP_ACCOUNTS + 4)))
    ]
    rows = []
    for key, account, count in owners:
        for _ in range(count):
            p = -3 - float(generator.exponential(2))
            rows.append({"key_id": key, "account_id": account, "message": int(generator.choice(RESERVED)), "p": p})
    for _ in range(300):
        who = generator.choice(["account 0", "account 1", "others"])
        message, p = int(generator.integers(100)), -float(generator.uniform(0, 2.9))
        rows.append({"key_id": generator.choice(["a", "b"]), "account_id": who, "message": message, "p": p})
    table = [
        verdict(i, log10_p_global=row.pop("p"), text_sha256=i.to_bytes(32, "big"), messages_tested=100, **row)
        for i, row in enumerate(rows)
    ]
    found = reserved_of(pl.DataFrame(table)).without_top_accounts
    assert set(found) == {key for key, *_ in owners}
    for key, number, said in ((key, i, said) for key, all_said in found.items() for i, said in enumerate(all_said)):
        theirs = sorted(((count, account) for other, account, count in owners if other == key), reverse=True)
        assert len(found[key]) == min(MOST_TOP_ACCOUNTS, len(theirs))
        few = {account for _, account in theirs[: number + 1]}
        assert said.accounts == len(few)
        assert said.share == pytest.approx(np.mean([row["account_id"] in few for row in table]))
        kept = [
            row
            for row in table
            if row["key_id"] == key
            and row["message"] % 20 == 19
            and not (row["account_id"] in few and row["log10_p_global"] <= np.log10(LARGEST_P))
        ]
        wanted = [sum(row["log10_p_global"] <= np.log10(alpha) for row in kept) for alpha in THRESHOLDS]
        assert said.hits.sum(axis=0).tolist() == wanted

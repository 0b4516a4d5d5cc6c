"""Ranks of users' messages among messages that nobody holds: plain loops, rate of false alarms, sabotage they see."""

import dataclasses
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from scanner import results
from scanner.audit.in_every_scan.decoy_keys import open_decoys
from scanner.audit.in_every_scan.reserved import CLUSTERS, KNOCKOFFS_A_MESSAGE, RankCounts, count_ranks, rank
from scanner.audit.in_every_scan.scan_audit import FAMILIES
from scanner.detection import open_plan as plan_module
from scanner.registry import Holders, add_users, list_users
from scanner.watermark import Tokens
from scanner.watermark.format import StandsIn
from scanner.watermark.formats import make_format
from scanner.watermark.native.version2_marks import Version2GreenList
from schemas.audit import KNOCKOFFS
from schemas.registry import is_reserved
from tests import reference2
from tests.bench.knockoffs import rate
from tests.support.audited_scan import Key, make, pieces, scan

USERS = 300

pytestmark = pytest.mark.usefixtures("one_tokenizer")


@pytest.fixture(scope="module")
def texts(human_texts) -> list[str]:
    return pieces(human_texts, 25, 600)


def with_users(folder, texts: list[str]):
    plan = make(folder, texts, Key(1000, format="greenlist-v2"))
    add_users(plan.registry, ["k0"], [f"user-{i}" for i in range(USERS)])
    return plan


def wrong(audit) -> set[str]:
    return {row["kind"] for row in audit.rows if row["verdict"] == "too small"}


@pytest.mark.parametrize("groups", [None, 40, 300])
def test_stand_ins_are_nobodys_and_of_the_same_group_or_cluster(groups):
    how = make_format("greenlist-v2", {"window": 4, "gamma": "1/4"} | ({} if groups is None else {"groups": groups}))
    assert isinstance(how, StandsIn)
    messages = 65_536 if groups is None else groups**2
    seen: dict[int, set[int]] = {}
    for message in (0, 18, 33, messages // 2, messages - 2):
        cluster, others = how.stand_ins(message, messages)
        assert all(is_reserved(other) or other >= messages for other in others)
        assert len(others) >= (KNOCKOFFS_A_MESSAGE if groups is None else groups // 20)
        if groups is not None:
            assert cluster == message // groups
            assert {other // groups for other in others} == {cluster}
        seen.setdefault(cluster, set()).update(others)
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))  # clusters share none
    if groups is None:
        assert how.stand_ins(5, 100).messages[0] >= 100  # a small key borrows messages beyond its own


def test_ranks_are_those_of_plain_loops():
    """With ties, which greenlists have many of, and with groups that have fewer than 19 reserved messages."""
    random, secret = np.random.default_rng(5), bytes(range(32))
    how = make_format("greenlist-v2", {"window": 2, "gamma": "1/4", "groups": 100})
    mark, slow = how.open(secret), reference2.Method("greenlist", secret, 2, Fraction(1, 4), groups=100)
    lengths = [12, 30, 7]
    tokens = Tokens(random.integers(0, 50, sum(lengths), np.uint32), np.cumsum([0, *lengths]))
    positions, own = mark.rule.positions(tokens, "ngram"), random.integers(0, 10_000, 3)
    numbers = random.integers(0, 2**63, (3, 2), np.uint64)
    ranked = rank(mark, how, 10_000, tokens, positions, own, numbers)
    for d, message in enumerate(own.tolist()):
        ids = tokens.ids[tokens.offsets[d] : tokens.offsets[d + 1]].tolist()
        others = [100 * (message // 100) + u for u in range(100) if (100 * (message // 100) + u) % 20 == 19]
        start, place = int(numbers[d, 0]) % len(others), int(numbers[d, 1]) % (len(others) + 1)
        row = [slow.scores(ids, other)[0] for other in others[start:] + others[:start]]
        row.insert(place, slow.scores(ids, message)[0])
        behind = sorted(range(len(row)), key=lambda i: (row[i], i)).index(place)
        assert (ranked.beaten[d], ranked.others[d]) == (behind, len(others))


def test_what_is_counted_is_right_on_a_known_rank():
    told = count_ranks(RankCounts(np.array([19, 17, 4]), np.array([19, 19, 4]), np.zeros(3, np.int64)), 100)
    hits, tests, chance = told["knockoff"]
    assert (hits.tolist(), tests.tolist()) == ([19, 17, 4], [19, 19, 4])
    assert chance == pytest.approx(0.505)
    hits, tests, chance = told["knockoff_first"]
    assert (hits.tolist(), tests.tolist()) == ([1, 0, 0], [1, 1, 1])
    assert chance == pytest.approx([0.1 + 0.9 / 100, 0.1 + 0.9 / 100, 0.01])  # four others have no first tenth


def test_users_are_drawn_evenly(tmp_path):
    plan = with_users(tmp_path, ["a"])
    holders = Holders.load(plan.registry, ["k0"])
    given = sorted(list_users(plan.registry)["message"])
    assert holders.count("k0") == USERS
    numbers = np.arange(3 * USERS, dtype=np.uint64)
    assert holders.draw("k0", numbers).tolist() == 3 * given


@pytest.mark.seconds
def test_alarms_are_as_rare_as_stated():
    """At most 15 alarms are expected in 300 nights; 37 come by chance in less than one case in a million."""
    share, _, _ = rate(300, 0.05, 1, 1000, 0.5)
    assert share <= 36 / 300


@pytest.mark.costly
@pytest.mark.seconds
def test_a_sound_night_is_quiet_and_counts_what_was_drawn(tmp_path, texts):
    plan = with_users(tmp_path, texts)
    audit = scan(plan, parts=3)
    assert audit.state == "no alarm"
    rows = {row["kind"]: row for row in audit.rows if row["kind"] in KNOCKOFFS}
    assert rows["knockoff_first"]["tests"] == audit.traffic.texts
    assert rows["knockoff"]["tests"] == KNOCKOFFS_A_MESSAGE * audit.traffic.texts
    assert {(row["key_id"], row["cluster"], row["threshold"]) for row in rows.values()} == {
        ("k0", "users", threshold) for threshold in KNOCKOFFS.values()
    }
    assert rows["knockoff"]["clusters"] == CLUSTERS
    assert sum(row["family_error"] for row in rows.values()) == pytest.approx(1e-6 / FAMILIES)
    assert rows["knockoff"]["hits"] == pytest.approx(rows["knockoff"]["expected"], rel=0.1)
    counts = results.audit_counts(plan.results).filter(pl.col("kind").is_in([*KNOCKOFFS])).collect()
    assert set(counts["threshold"]) == set(KNOCKOFFS.values())
    assert open_decoys(plan).held_messages == {"k0": USERS}


@pytest.mark.costly
@pytest.mark.seconds
@pytest.mark.parametrize(("more", "share", "seen"), [(1, 1.0, "knockoff"), (20, 0.2, "knockoff_first")])
def test_scores_that_favour_users_are_seen_by_ranks_alone(tmp_path, texts, monkeypatch, more, share, seen):
    """Users score one green token more in each text, or twenty more in a fifth; only ranks show it."""
    plan = with_users(tmp_path, texts)
    held, plain = set(list_users(plan.registry)["message"]), Version2GreenList.score
    (key,) = plan_module.open_keys(plan.registry, plan.keys)
    own = key.watermark.commitment

    def favouring(self, tokens, positions, messages):
        score = plain(self, tokens, positions, messages)
        each = np.broadcast_to(messages, score.shape)
        gets = np.isin(each, [*held]) & (np.arange(len(score)) % 10 < 10 * share)
        return np.where(gets, np.minimum(score + more, positions.scored), score) if self.commitment == own else score

    monkeypatch.setattr(Version2GreenList, "score", favouring)
    audit = scan(plan)
    assert audit.state == "alarm"
    assert seen in wrong(audit) <= set(KNOCKOFFS)
    assert "Messages that users hold score higher than messages that nobody holds" in audit.advice


def test_of_many_documents_some_thousand_are_ranked(tmp_path, texts):
    """In a night of 50,000 a tenth is ranked: 60 of 600 texts; at most 23 or at least 97 once in a million."""
    plan = dataclasses.replace(with_users(tmp_path, texts[:5]), documents=50_000)
    decoys = open_decoys(plan)
    assert decoys.ranked_share == pytest.approx(0.1)
    numbers = decoys.numbers("k0", [bytes([i % 256, i // 256]) * 16 for i in range(600)])
    assert 23 < (numbers[:, 3] < decoys.ranked_share * 2.0**64).sum() < 97


def test_no_ranks_where_nobody_holds_a_message_or_others_can_write_any(tmp_path, texts):
    plan = make(tmp_path, texts[:5], Key(1000, format="greenlist-v2"), Key(1000), Key(1, format="gumbel-v2"))
    add_users(plan.registry, ["k1"], ["ann"])
    assert open_decoys(plan).held_messages == {}
